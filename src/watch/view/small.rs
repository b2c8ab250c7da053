//! The screen of a terminal that is too small for panels.

use crate::watch::view::header;
use ratatui::layout::Rect;

use ratatui::buffer::Buffer;

use super::line_writer::LineWriter;
use crate::units::Span;
use crate::watch::gpus::sum;
use crate::watch::layout::{COLUMNS_MIN, ROWS_MIN};
use crate::watch::state::App;
use crate::watch::text::{clean, columns};
use crate::watch::theme::Styles;
use crate::watch::view_model::badge;

/// Draws the parts that fit, most important first. The last line contains the required size.
pub fn draw(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let mut parts = Vec::new();
    // A small screen has no bottom line for the note.
    if let Some(note) = &app.note {
        parts.push((clean(note, area.width).to_string(), styles.caution()));
    }
    if app.is_overdue() {
        let age = Span::from_seconds(app.age_seconds().unwrap_or_default() as f64);
        parts.push((format!("no answer for {age}"), styles.alarm()));
    }
    match &app.screenful {
        None => parts.push(("waiting for the first sample".to_owned(), styles.plain())),
        Some(screenful) => {
            let headline = header::headline_within(app, styles, area.width);
            if let Some((headline, style)) = headline.filter(|_| header::has_waste(app)) {
                parts.push((headline.text(app.setup.ascii), style));
            }
            if let Some(worst) = screenful.findings.first() {
                let pid = worst
                    .process
                    .as_ref()
                    .map_or_else(String::new, |process| format!(" {}", process.pid));
                let more = match screenful.findings.len() - 1 {
                    0 => String::new(),
                    more => format!(", {more} more"),
                };
                let text = format!("{}{pid}{more}", badge(worst));
                parts.push((text, styles.badge(worst.severity)));
            }
            for part in sum(&app.shown_gpus()).split("  ") {
                parts.push((part.to_owned(), styles.plain()));
            }
            let count = screenful.rows.len();
            let word = if count == 1 { "process" } else { "processes" };
            parts.push((format!("{count} {word}"), styles.plain()));
        }
    }
    parts.push(("q quit".to_owned(), styles.faint()));

    let lines = match area.height {
        0 | 1 => area.height,
        height => {
            let text = format!("too small: panels need {COLUMNS_MIN}x{ROWS_MIN}");
            LineWriter::new(canvas, area, height - 1).text(&text, styles.caution());
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
        LineWriter::new(canvas, area, line).skip(x).text(&text, style);
        x += columns(&text) + 2;
    }
}
