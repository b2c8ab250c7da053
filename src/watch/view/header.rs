//! The first line: the host, the versions, where the snapshots come from, the clock and the age of
//! what is shown.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::look::Look;
use super::pen::{Pen, clean, columns};
use crate::model::Time;
use crate::units::Span;
use crate::watch::app::{App, End};

/// Draws the line.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    let (right, right_style) = clock(app, look, area.width);
    let right_width = columns(&right);
    // What is now comes first: the rest of the line takes what the clock leaves.
    let left = Rect {
        width: area.width.saturating_sub(right_width + 1),
        ..area
    };
    let mut pen = Pen::new(buffer, left, 0);
    if let Some(name) = &app.setup.replay {
        let name = clean(name, area.width);
        let long = format!(" REPLAY {name}: nothing can be signalled ");
        let badge = if columns(&long) <= left.width {
            &long
        } else {
            " REPLAY "
        };
        pen.text(badge, look.origin()).skip(2);
    }
    let Some(picture) = &app.picture else {
        pen.text("gpumem ", look.strong())
            .text(app.setup.version, look.plain());
        Pen::new(buffer, area, 0).at_end(&right, right_style);
        return;
    };
    let host = picture.snapshot.host.hostname.as_deref();
    let driver = &picture.snapshot.driver;
    let parts: [(&str, Option<&str>, Style); 4] = [
        ("", host, look.strong()),
        ("gpumem ", Some(app.setup.version), look.plain()),
        ("driver ", driver.version.as_deref(), look.plain()),
        ("CUDA ", driver.cuda_version.as_deref(), look.plain()),
    ];
    for (label, value, style) in parts {
        let Some(value) = value else { continue };
        let value = clean(value, area.width);
        // A part stands whole or not at all, and with it what matters less.
        if columns(label) + columns(&value) > pen.room() {
            break;
        }
        pen.text(label, look.faint()).text(&value, style).skip(2);
    }
    Pen::new(buffer, area, 0).at_end(&right, right_style);
}

/// The clock and the age, in as many words as there is room for.
fn clock(app: &App, look: Look, width: u16) -> (String, Style) {
    let age = app.age_seconds();
    let overdue = age.filter(|_| app.is_overdue());
    if let Some(seconds) = overdue {
        let span = Span::from_seconds(seconds as f64);
        return (format!("no answer for {span}"), look.alarm());
    }
    let Some(picture) = &app.picture else {
        return ("waiting for the first sample".to_owned(), look.plain());
    };
    let (date, time) = date_and_time(picture.snapshot.time);
    let clock = if width >= 100 || app.setup.replay.is_some() && width >= 80 {
        format!("{date} {time} UTC")
    } else {
        format!("{time} UTC")
    };
    match (&app.end, age) {
        (Some(End::Failed(_)), _) => (format!("no more samples since {clock}"), look.alarm()),
        (Some(End::Complete), _) => (format!("{clock}, the end"), look.strong()),
        (None, Some(seconds)) if width >= 60 => {
            let span = Span::from_seconds(seconds as f64);
            (format!("{clock}, {span} ago"), look.plain())
        }
        (None, _) => (clock, look.plain()),
    }
}

/// `2026-11-21` and `10:04:05`; a time that no calendar has stays as it is.
pub fn date_and_time(time: Time) -> (String, String) {
    let text = time.to_string();
    match text.split_once('T') {
        Some((date, rest)) => (
            date.to_owned(),
            rest.split('.').next().unwrap_or(rest).to_owned(),
        ),
        None => (String::new(), text),
    }
}
