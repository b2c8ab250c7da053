//! A screen too small for panels: the essentials in as few words as there is room for.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gpus;
use super::look::Look;
use super::pen::{Pen, columns};
use crate::units::Span;
use crate::watch::app::App;
use crate::watch::picture::badge;

/// Draws what matters most first; a part that does not fit goes to the next line, if there is one.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut parts = Vec::new();
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
            for part in gpus::sum(&picture.snapshot).split("  ") {
                parts.push((part.to_owned(), look.plain()));
            }
            let count = picture.rows.len();
            let word = if count == 1 { "process" } else { "processes" };
            parts.push((format!("{count} {word}"), look.plain()));
        }
    }
    parts.push(("q quit".to_owned(), look.faint()));

    let mut line = 0;
    let mut x = 0;
    for (text, style) in parts {
        if x > 0 && x + columns(&text) > area.width {
            line += 1;
            x = 0;
        }
        if line >= area.height {
            return;
        }
        Pen::new(buffer, area, line).skip(x).text(&text, style);
        x += columns(&text) + 2;
    }
}
