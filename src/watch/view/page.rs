//! The page of explanation, on all of the screen but the header and the line of keys.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::header::{self, date_and_time};
use super::hints;
use super::look::Look;
use super::pen::{Pen, wrap};
use crate::model::Time;
use crate::report::style::{Emphasis, pieces};
use crate::watch::app::App;
use crate::watch::page::notices;

/// The columns at each side of the text, where there are more than enough.
const MARGIN: u16 = 1;
/// The text is never narrower than this.
const LEAST_WIDTH: u16 = 40;
/// What is said above the page is no longer than this many lines each.
const NOTICE_LINES: usize = 2;

/// Where the page's text stands on a screen of this size, with what is said above it.
pub fn text(area: Rect) -> Rect {
    let margin = if area.width >= LEAST_WIDTH + 2 * MARGIN {
        MARGIN
    } else {
        0
    };
    Rect {
        x: area.x + margin,
        y: area.y.saturating_add(1),
        width: area.width - 2 * margin,
        height: area.height.saturating_sub(2),
    }
}

/// Where the page's own lines stand, below what is said above it.
pub fn body(app: &App) -> Rect {
    let text = text(app.area);
    below(text, said(app, text.width).len())
}

/// What is said above the page, broken for so many columns.
fn said(app: &App, width: u16) -> Vec<String> {
    let notices = notices(app);
    let lines = notices.iter().flat_map(|it| wrap(it, width, NOTICE_LINES));
    lines.map(Cow::into_owned).collect()
}

fn below(text: Rect, lines: usize) -> Rect {
    let above = u16::try_from(lines).unwrap_or(u16::MAX).min(text.height);
    Rect {
        y: text.y.saturating_add(above),
        height: text.height - above,
        ..text
    }
}

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

/// Which of the page's lines are on the screen; nothing where all of them are.
pub fn place(app: &App) -> String {
    let height = usize::from(body(app).height);
    match &app.page {
        Some(page) if page.lines.len() > height => {
            let first = page.offset.min(page.lines.len() - height);
            format!("{}-{} of {}", first + 1, first + height, page.lines.len())
        }
        _ => String::new(),
    }
}

fn style(mark: Emphasis, look: Look) -> Style {
    match mark {
        Emphasis::Plain => look.plain(),
        Emphasis::Heading => look.heading(),
        Emphasis::Severity(severity) => look.badge(severity),
    }
}

/// `10:04:05 UTC`.
pub fn clock(time: Time) -> String {
    format!("{} UTC", date_and_time(time).1)
}
