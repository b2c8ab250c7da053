//! The page of explanation: where its text is, what is said above it, and which of its lines are seen.

use std::borrow::Cow;

use ratatui::layout::Rect;

use crate::watch::state::App;
use crate::watch::text::{clock, wrap};

/// The columns at each side of the text, where there are more than enough.
const MARGIN: u16 = 1;
/// The text is never narrower than this.
const LEAST_WIDTH: u16 = 40;
/// What is said above the page is no longer than this many lines each.
const NOTICE_LINES: usize = 2;

/// Where the page's text is on a screen of this size, with what is said above it.
pub fn text(area: Rect) -> Rect {
    let margin = if area.width >= LEAST_WIDTH + 2 * MARGIN { MARGIN } else { 0 };
    Rect {
        x: area.x + margin,
        y: area.y.saturating_add(1),
        width: area.width - 2 * margin,
        height: area.height.saturating_sub(2),
    }
}

/// Where the page's own lines are, below what is said above it.
pub fn body(app: &App) -> Rect {
    let text = text(app.area);
    below(text, notice_lines(app, text.width).len())
}

/// What is said above the page, broken for so many columns.
pub fn notice_lines(app: &App, width: u16) -> Vec<String> {
    let notices = notices(app);
    let lines = notices.iter().flat_map(|it| wrap(it, width, NOTICE_LINES));
    lines.map(Cow::into_owned).collect()
}

/// What is left of it below so many lines.
pub fn below(text: Rect, lines: usize) -> Rect {
    let above = u16::try_from(lines).unwrap_or(u16::MAX).min(text.height);
    Rect { y: text.y.saturating_add(above), height: text.height - above, ..text }
}

/// What is to be said above the page: that its process is gone, or that it is of another time than the
/// rest of the screen.
pub fn notices(app: &App) -> Vec<String> {
    let mut notices = Vec::new();
    let Some(page) = &app.page else {
        return notices;
    };
    if let Some(gone) = page.gone {
        notices.push(format!("gone since {}: as it was", clock(gone)));
        return notices;
    }
    let judged = app.judged.engine.history().last_time();
    if let (Some(of), Some(judged)) = (page.time, judged.filter(|time| page.time != Some(*time))) {
        notices.push(format!("showing {}; findings as of {}", clock(of), clock(judged)));
    } else if let (Some(of), Some(screenful)) = (page.time, &app.screenful)
        && screenful.snapshot.time != of
    {
        notices.push(format!(
            "showing the newest sample, {}; the screen behind shows {}",
            clock(of),
            clock(screenful.snapshot.time)
        ));
    }
    notices
}

/// Which of the page's lines are on the screen; nothing where all of them are.
pub fn position(app: &App) -> String {
    let height = usize::from(body(app).height);
    match &app.page {
        Some(page) if page.lines.len() > height => {
            let first = page.offset.min(page.lines.len() - height);
            format!("{}-{} of {}", first + 1, first + height, page.lines.len())
        }
        _ => String::new(),
    }
}
