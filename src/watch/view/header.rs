//! The first line: the host, how much memory is reclaimable, the versions, where the snapshots come from;
//! at its end the clock: when what is shown was so, whether the screen is paused, and what leads back to now.
//!
//! The clock and what is reclaimable are written in as many words as there is room for, what matters most
//! in the fewest; the host's name gives way to them.

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use ratatui::buffer::Buffer;

use super::headline;
use super::line_writer::LineWriter;
use crate::model::Snapshot;
use crate::units::Span;
use crate::watch::state::playback::speed_text;
use crate::watch::state::{App, End};
use crate::watch::text::{clean, columns};
use crate::watch::theme::Styles;

/// Columns that a host's name and the blanks after it take, mostly.
const HOST: u16 = 9;
/// Columns of the mark of a recording.
const REPLAY: u16 = 10;

/// Draws the line.
pub fn draw(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let (right, right_style) = clock(app, styles, area.width);
    let right_width = columns(&right);
    // What is now comes first: the rest of the line takes what the clock leaves.
    let left = Rect { width: area.width.saturating_sub(right_width + 1), ..area };
    let mut writer = LineWriter::new(canvas, left, 0);
    if let Some(host) = &app.setup.host {
        writer.text(&format!(" {} ", clean(&host.name, area.width / 2)), styles.origin()).skip(1);
    }
    if let Some(name) = &app.setup.replay {
        let name = clean(name, area.width);
        let badges =
            [format!(" REPLAY {name}: nothing can be signalled "), format!(" REPLAY {name} ")];
        let beside = HOST + headline::least(app);
        let badge = badges.iter().find(|badge| columns(badge) + beside <= left.width);
        writer.text(badge.map_or(" REPLAY ", String::as_str), styles.origin()).skip(2);
    }
    let Some(screenful) = &app.screenful else {
        writer.text("gpumem ", styles.strong()).text(app.setup.version, styles.plain());
        LineWriter::new(canvas, area, 0).at_end(&right, right_style);
        return;
    };
    let host = screenful.snapshot.host.hostname.as_deref();
    let driver = &screenful.snapshot.driver;
    let host = host.map(|host| clean(host, area.width));
    let least = headline::least(app);
    // A part is whole or not at all, and with it what matters less.
    if let Some(host) = host.filter(|host| columns(host) + least <= writer.room()) {
        writer.text(&host, styles.strong()).skip(2);
    }
    if headline::draw(app, styles, &mut writer) {
        writer.skip(2);
    }
    let parts: [(&str, Option<&str>, Style); 3] = [
        ("gpumem ", Some(app.setup.version), styles.plain()),
        ("driver ", driver.version.as_deref(), styles.plain()),
        ("CUDA ", driver.cuda_version.as_deref(), styles.plain()),
    ];
    for (label, value, style) in parts {
        let Some(value) = value else { continue };
        let value = clean(value, area.width);
        if columns(label) + columns(&value) > writer.room() {
            break;
        }
        writer.text(label, styles.faint()).text(&value, style).skip(2);
    }
    LineWriter::new(canvas, area, 0).at_end(&right, right_style);
}

/// The clock and the state, in as many words as there is room for.
fn clock(app: &App, styles: Styles, width: u16) -> (String, Style) {
    let (texts, style) = match &app.setup.replay {
        None => live(app, styles),
        Some(_) => replay(app, styles),
    };
    let badge = if app.setup.replay.is_some() { REPLAY } else { 0 };
    let most = width.saturating_sub(HOST + badge + headline::least(app) + 1);
    let text = texts.iter().find(|text| columns(text) <= most).or(texts.last());
    (text.cloned().unwrap_or_default(), style)
}

/// What is to be said of this machine's time, longest first.
fn live(app: &App, styles: Styles) -> (Vec<String>, Style) {
    let span = |seconds: u64| Span::from_seconds(seconds as f64);
    let paused = if app.playback.is_paused { "PAUSED, " } else { "" };
    if let Some(age) = app.age_seconds().filter(|_| app.is_overdue()) {
        let text = format!("no answer for {}", span(age));
        return (vec![format!("{paused}{text}"), text], styles.alarm());
    }
    let Some(screenful) = &app.screenful else {
        let texts = ["waiting for the first sample", "waiting"];
        return (texts.map(str::to_owned).to_vec(), styles.plain());
    };
    let silent = silent_seconds(&screenful.snapshot).filter(|_| !app.playback.is_paused);
    if let Some(seconds) = silent {
        let text = format!("no GPU answers for {}", Span::from_seconds(seconds.floor()));
        return (vec![text, "no GPU answers".to_owned()], styles.alarm());
    }
    let shown = screenful.snapshot.time.local();
    let (date, time) = (shown.date(), shown.clock());
    let short = format!("{time} {}", shown.zone());
    let long = format!("{date} {short}");
    if app.playback.is_paused {
        let texts = match app.behind_seconds() {
            None => vec![format!("PAUSED {short}, L: resume"), format!("PAUSED {time}")],
            Some(seconds) => {
                let behind = format!("{} behind", Span::from_seconds(seconds.floor()));
                vec![format!("PAUSED {long}, {behind}, L: now"), format!("PAUSED, {behind}")]
            }
        };
        return (texts, styles.caution().add_modifier(Modifier::BOLD));
    }
    if let Some(End::Failed(_)) = &app.end {
        let text = |clock: &str| format!("no more samples since {clock}");
        let texts = vec![text(&long), format!("none since {time}")];
        return (texts, styles.alarm());
    }
    let state = match app.late_seconds() {
        Some(age) => format!("{} ago", span(age)),
        None => format!("every {}", Span(app.playback.interval)),
    };
    (vec![format!("{long}, {state}"), format!("{short}, {state}"), time], styles.plain())
}

/// For how long no GPU has answered; `None` while one of them does. The samples still come, of what
/// the host knows; no one should take their time for that of the GPUs' figures.
fn silent_seconds(snapshot: &Snapshot) -> Option<f64> {
    let ages: Option<Vec<f64>> = snapshot.gpus.iter().map(|gpu| gpu.stale_seconds).collect();
    ages?.into_iter().reduce(f64::min)
}

/// What is to be said of a recording's time, longest first.
fn replay(app: &App, styles: Styles) -> (Vec<String>, Style) {
    let read = app.playback.percent.map(|percent| format!(" {percent}%"));
    let read = read.unwrap_or_default();
    if app.playback.is_seeking() {
        let reached = app.timeline.newest().map(|mark| mark.time.local());
        let reached = reached.map(|time| time.to_string()).unwrap_or_default();
        let texts =
            vec![format!("seeking, {reached}{read}, Esc to stop"), format!("seeking{read}")];
        return (texts, styles.strong());
    }
    let Some(screenful) = &app.screenful else {
        return (vec!["reading".to_owned()], styles.plain());
    };
    let shown = screenful.snapshot.time.local();
    let (date, time) = (shown.date(), shown.clock());
    let long = format!("{date} {time} {}", shown.zone());
    let (state, style) = match &app.end {
        Some(End::Failed(_)) if app.is_at_end() => ("no more samples".to_owned(), styles.alarm()),
        Some(End::Complete) if app.is_at_end() => ("the end".to_owned(), styles.strong()),
        _ if app.playback.is_paused => {
            ("PAUSED".to_owned(), styles.caution().add_modifier(Modifier::BOLD))
        }
        _ => (speed_text(app.playback.speed), styles.plain()),
    };
    let shown = match (app.playback.is_paused, &app.end) {
        (true, _) if !app.is_at_end() => format!("{state}, p plays"),
        (false, None) => format!("playing {state}"),
        _ => state.clone(),
    };
    let texts = vec![
        format!("{long}{read}, {shown}"),
        format!("{time}, {shown}"),
        format!("{time} {state}"),
    ];
    (texts, style)
}

#[cfg(test)]
mod tests;
