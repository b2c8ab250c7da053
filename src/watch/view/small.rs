//! A screen too small for panels: the essentials in as few words as there is room for, and a line that
//! says what it takes to see more.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gpus::figures::sum;
use super::line_writer::Pen;
use crate::units::Span;
use crate::watch::layout::{COLUMNS_MIN, ROWS_MIN};
use crate::watch::picture::badge;
use crate::watch::state::App;
use crate::watch::text::{clean, columns};
use crate::watch::theme::Look;

/// Draws what matters most first; a part that does not fit goes to the next line, if there is one.
/// The last line is kept for why there are no panels.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut parts = Vec::new();
    // What became of the last key; there is no bottom line to say it.
    if let Some(note) = &app.note {
        parts.push((clean(note, area.width).to_string(), look.caution()));
    }
    if app.is_overdue() {
        let age = Span::from_seconds(app.age_seconds().unwrap_or_default() as f64);
        parts.push((format!("no answer for {age}"), look.alarm()));
    }
    match &app.picture {
        None => parts.push(("waiting for the first sample".to_owned(), look.plain())),
        Some(picture) => {
            if let Some(worst) = picture.findings.first() {
                let pid = worst
                    .process
                    .as_ref()
                    .map_or_else(String::new, |process| format!(" {}", process.pid));
                let more = match picture.findings.len() - 1 {
                    0 => String::new(),
                    more => format!(", {more} more"),
                };
                let text = format!("{}{pid}{more}", badge(worst));
                parts.push((text, look.badge(worst.severity)));
            }
            for part in sum(&picture.snapshot).split("  ") {
                parts.push((part.to_owned(), look.plain()));
            }
            let count = picture.rows.len();
            let word = if count == 1 { "process" } else { "processes" };
            parts.push((format!("{count} {word}"), look.plain()));
        }
    }
    parts.push(("q quit".to_owned(), look.faint()));

    let lines = match area.height {
        0 | 1 => area.height,
        height => {
            Pen::new(buffer, area, height - 1).text(&too_small(area), look.caution());
            height - 1
        }
    };
    let mut line = 0;
    let mut x = 0;
    for (text, style) in parts {
        if x > 0 && x + columns(&text) > area.width {
            line += 1;
            x = 0;
        }
        if line >= lines {
            return;
        }
        Pen::new(buffer, area, line).skip(x).text(&text, style);
        x += columns(&text) + 2;
    }
}

/// What the screen lacks, in as many words as there is room for.
fn too_small(area: Rect) -> String {
    let (width, height) = (area.width, area.height);
    let needed = format!("{COLUMNS_MIN}x{ROWS_MIN}");
    let mut words = [
        format!("too small: {width}x{height}; {needed} or more shows panels"),
        format!("too small: {width}x{height}, not {needed}"),
        format!("too small: <{needed}"),
    ]
    .into_iter();
    let fitting = words.find(|text| columns(text) <= width);
    fitting.unwrap_or_else(|| format!("<{needed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_said_at_every_width() {
        let said = |width| too_small(Rect::new(0, 0, width, 9));
        assert_eq!(said(60), "too small: 60x9; 40x10 or more shows panels");
        assert_eq!(said(39), "too small: 39x9, not 40x10");
        assert_eq!(said(18), "too small: <40x10");
        assert_eq!(said(7), "<40x10");
        for width in 6..200 {
            assert!(columns(&said(width)) <= width, "{width}");
        }
    }
}
