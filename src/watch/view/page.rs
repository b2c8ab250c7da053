//! The page of explanation, on all of the screen but the header and the line of keys.

use ratatui::layout::Rect;
use ratatui::style::Style;

use ratatui::buffer::Buffer;

use super::line_writer::LineWriter;
use super::{header, hints};
use crate::report::style::{Emphasis, pieces};
use crate::watch::layout::Layout;
use crate::watch::layout::page::{below, notice_lines, text};
use crate::watch::state::App;
use crate::watch::theme::Styles;

/// Draws the header, the page and the line of keys.
pub fn draw(app: &App, styles: Styles, layout: &Layout, area: Rect, canvas: &mut Buffer) {
    let Some(page) = &app.page else {
        return;
    };
    header::draw(app, styles, Rect { height: 1, ..area }, canvas);
    let notices = notice_lines(app, text(area).width);
    for (line, notice) in (0..).zip(&notices) {
        LineWriter::new(canvas, text(area), line).text(notice, styles.caution());
    }
    let body = below(text(area), notices.len());
    let height = usize::from(body.height);
    let first = page.offset.min(page.lines.len().saturating_sub(height));
    for (line, text) in (0..body.height).zip(page.lines.iter().skip(first)) {
        let mut writer = LineWriter::new(canvas, body, line);
        for (mark, piece) in pieces(text) {
            writer.text(piece, style(mark, styles));
        }
    }
    let keys = Rect { y: area.bottom().saturating_sub(1), height: 1, ..area };
    hints::draw(app, styles, layout, keys, canvas);
}

fn style(mark: Emphasis, styles: Styles) -> Style {
    match mark {
        Emphasis::Plain => styles.plain(),
        Emphasis::Heading => styles.heading(),
        Emphasis::Chart => styles.held(),
        Emphasis::Severity(severity) => styles.badge(severity),
    }
}
