//! The page of explanation, on all of the screen but the header and the line of keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::line_writer::Pen;
use super::{header, hints};
use crate::report::style::{Emphasis, pieces};
use crate::watch::layout::page::{below, said, text};
use crate::watch::state::App;
use crate::watch::theme::Look;

/// Draws the header, the page and the line of keys.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    let Some(page) = &app.page else {
        return;
    };
    header::draw(app, look, Rect { height: 1, ..area }, buffer);
    let said = said(app, text(area).width);
    for (line, notice) in (0..).zip(&said) {
        Pen::new(buffer, text(area), line).text(notice, look.caution());
    }
    let body = below(text(area), said.len());
    let height = usize::from(body.height);
    let first = page.offset.min(page.lines.len().saturating_sub(height));
    for (line, text) in (0..body.height).zip(page.lines.iter().skip(first)) {
        let mut pen = Pen::new(buffer, body, line);
        for (mark, piece) in pieces(text) {
            pen.text(piece, style(mark, look));
        }
    }
    let keys = Rect {
        y: area.bottom().saturating_sub(1),
        height: 1,
        ..area
    };
    hints::draw(app, look, keys, buffer);
}

fn style(mark: Emphasis, look: Look) -> Style {
    match mark {
        Emphasis::Plain => look.plain(),
        Emphasis::Heading => look.heading(),
        Emphasis::Severity(severity) => look.badge(severity),
    }
}
