//! The first line: host, reclaimable and free memory, versions and source, with the clock on the right. A second line
//! shows the load of the host.
//!
//! The clock and the memory are shortened to fit. The host's name is dropped if it does not fit beside the shortest
//! text about reclaimable memory.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::line_writer::LineWriter;
use crate::model::field::gpu::FillLevel;
use crate::model::reclaimable::Headline;
use crate::model::{Reclaimable, Snapshot};
use crate::report::gpus::free_gpus;
use crate::units::{GIB, Span};
use crate::watch::gpus::used_of_total;
use crate::watch::state::playback::speed_text;
use crate::watch::state::{App, End};
use crate::watch::text::{clean, columns};
use crate::watch::theme::Styles;
use crate::watch::view_model::percent;

/// Typical width of a host's name, with the blanks after it.
const HOST: u16 = 9;
const REPLAY: u16 = 10;
/// Typical width of the free memory with two GPUs. The free memory takes precedence over the date and over details of
/// the reclaimable memory.
const FREE: u16 = 30;
/// Width of `reclaimable: not known`, with the blanks after it.
const NOT_KNOWN: u16 = 24;

pub fn draw(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let (right, right_style) = clock(app, styles, area.width);
    let right_width = columns(&right);
    // The clock gets its columns first.
    let left = Rect { width: area.width.saturating_sub(right_width + 1), ..area };
    let mut writer = LineWriter::new(canvas, left, 0);
    if let Some(host) = &app.setup.host {
        writer.text(&format!(" {} ", clean(&host.name, area.width / 2)), styles.origin()).skip(1);
    }
    if let Some(name) = &app.setup.replay {
        let name = clean(name, area.width);
        let badges =
            [format!(" REPLAY {name}: nothing can be signalled "), format!(" REPLAY {name} ")];
        let beside = HOST + headline_min(app);
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
    let reserved = headline_min(app);
    // A part is shown only if it fits together with all more important parts.
    if let Some(host) = host.filter(|host| columns(host) + reserved <= writer.room()) {
        writer.text(&host, styles.strong()).skip(2);
    }
    let separator = match draw_headline(app, styles, &mut writer) {
        true => Headline::separator(app.setup.ascii),
        false => "",
    };
    draw_free(&screenful.snapshot, separator, styles, &mut writer);
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

/// Draws the load of the host, most important first.
pub fn draw_load(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let load = app.screenful.as_ref().and_then(|screenful| screenful.snapshot.host.load);
    let Some(load) = load.filter(|_| !area.is_empty()) else { return };
    let used = |total: Option<u64>, free: Option<u64>| {
        let (total, free) = total.zip(free).filter(|(total, _)| *total > 0)?;
        let used = total.saturating_sub(free);
        let level = FillLevel::of_memory(percent(used, total));
        Some((used_of_total(used, total), styles.strain(level)))
    };
    let number = |value: Option<f64>, text: fn(f64) -> String| Some((text(value?), styles.plain()));
    let parts = [
        ("CPU", number(load.cpu_percent, |percent| format!("{percent:.0}%"))),
        ("memory", used(load.memory_total_bytes, load.memory_available_bytes)),
        ("swap", used(load.swap_total_bytes, load.swap_free_bytes)),
        ("load", number(load.load_average, |load| format!("{load:.1}"))),
    ];
    let mut writer = LineWriter::new(canvas, area, 0);
    writer.text("host", styles.heading());
    for (label, part) in parts {
        // A host can have no swap.
        let Some((text, style)) = part else { continue };
        if columns(label) + columns(&text) + 3 > writer.room() {
            break;
        }
        writer.skip(2).text(label, styles.faint()).skip(1).text(&text, style);
    }
}

fn clock(app: &App, styles: Styles, width: u16) -> (String, Style) {
    let (texts, style) = match &app.setup.replay {
        None => live(app, styles),
        Some(_) => replay(app, styles),
    };
    let beside = match &app.setup.replay {
        Some(_) => REPLAY,
        None if app.screenful.is_none() || style != styles.plain() => 0,
        None if has_waste(app) => FREE,
        None => FREE + NOT_KNOWN,
    };
    let room = width.saturating_sub(HOST + beside + headline_min(app) + 1);
    let text = texts.iter().find(|text| columns(text) <= room).or(texts.last());
    (text.cloned().unwrap_or_default(), style)
}

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
    let (state, brief) = match app.late_seconds() {
        Some(age) => (format!("{} ago", span(age)), format!("{time}, {} ago", span(age))),
        None => (format!("every {}", Span(app.playback.interval)), short.clone()),
    };
    (vec![format!("{long}, {state}"), format!("{short}, {state}"), brief, time], styles.plain())
}

/// Returns the seconds since a GPU last answered, or `None` if a GPU answers or there are no GPUs. New samples still
/// contain data about the host, but their time does not apply to the GPUs.
fn silent_seconds(snapshot: &Snapshot) -> Option<f64> {
    let ages: Option<Vec<f64>> = snapshot.gpus.iter().map(|gpu| gpu.stale_seconds).collect();
    ages?.into_iter().reduce(f64::min)
}

fn replay(app: &App, styles: Styles) -> (Vec<String>, Style) {
    let read = app.playback.percent.map(|percent| format!(" {percent}%"));
    let read = read.unwrap_or_default();
    if app.playback.is_seeking() {
        let reached = app.timeline.newest().map(|frame| frame.time.local());
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
        time,
    ];
    (texts, style)
}

fn reclaimable(app: &App) -> Option<Reclaimable> {
    Some(app.screenful.as_ref()?.reclaimable)
}

pub fn has_waste(app: &App) -> bool {
    reclaimable(app).is_some_and(|sum| sum.processes > 0 || sum.suspected_processes > 0)
}

pub fn headline_min(app: &App) -> u16 {
    let [.., shortest] = reclaimable(app).unwrap_or_default().headlines();
    if has_waste(app) { columns(&shortest.text(app.setup.ascii)) + 2 } else { 0 }
}

/// Writes the longest headline that fits beside the free memory. If none fits, reclaimable memory takes precedence over
/// free memory. Returns false if nothing was written.
fn draw_headline(app: &App, styles: Styles, writer: &mut LineWriter<'_>) -> bool {
    let room = writer.room();
    let within = |room| headline_within(app, styles, room);
    let headline = within(room.saturating_sub(FREE));
    let headline = headline.or_else(|| within(room).filter(|_| has_waste(app)));
    let Some((headline, style)) = headline else { return false };
    writer.text(&headline.found, style);
    if let Some(suspected) = &headline.suspected {
        if !headline.found.is_empty() {
            let separator = Headline::separator(app.setup.ascii);
            writer.text(separator, styles.faint());
        }
        writer.text(suspected, styles.suspected());
    }
    true
}

/// Writes the free memory and the GPUs with the most free memory, such as `free 394 GiB: GPU 6 79, 2 58 …`.
fn draw_free(snapshot: &Snapshot, separator: &str, styles: Styles, writer: &mut LineWriter<'_>) {
    let free = free_gpus(snapshot);
    let total = free.iter().fold(0u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
    let sum = format!("free {} GiB", total / GIB);
    if free.is_empty() || columns(separator) + columns(&sum) > writer.room() {
        writer.skip(2);
        return;
    }
    writer.text(separator, styles.faint()).text(&sum, styles.plain());
    let named = free.iter().filter(|(bytes, _)| *bytes >= GIB && snapshot.gpus.len() > 1);
    for (at, (bytes, index)) in named.enumerate() {
        let (start, rest) = if at == 0 { (": GPU ", "") } else { (", ", "…") };
        let text = format!("{start}{index} {}", bytes / GIB);
        if columns(&text) + 2 > writer.room() {
            writer.skip(1).text(rest, styles.faint());
            break;
        }
        writer.text(&text, styles.plain());
    }
    writer.skip(2);
}

pub fn headline_within(app: &App, styles: Styles, room: u16) -> Option<(Headline, Style)> {
    let reclaimable = reclaimable(app)?;
    let fits = |headline: &Headline| columns(&headline.text(app.setup.ascii)) <= room;
    let headline = reclaimable.headlines().into_iter().find(fits)?;
    let style = match (reclaimable.processes, &headline.suspected) {
        (0, Some(_)) if headline.found.is_empty() => styles.suspected(),
        (0, _) => styles.faint(),
        _ => styles.reclaimable(),
    };
    Some((headline, style))
}

#[cfg(test)]
mod tests;
