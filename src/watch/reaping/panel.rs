//! The panel with a plan or a batch. The lines scroll, and the keys stay visible.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Widget as _};

use crate::reclaim::Signal;
use crate::reclaim::worker::PlanScope;
use crate::report::escape::escape;
use crate::units::Span;
use crate::watch::state::App;
use crate::watch::state::reaping::{Answer, Dialog, seconds_left};
use crate::watch::text::{columns, wrap};
use crate::watch::theme::Styles;
use crate::watch::view::line_writer::{LineWriter, clear};
use crate::watch::view_model::RowKey;

const WIDTH: u16 = 110;
/// Maximum number of screen lines for one line of a plan.
const LINES_MAX: usize = 12;
/// Minimum age, in seconds, at which the panel shows the age of a plan.
const SHOWN_AGE: f64 = 60.0;
/// Minimum number of lines for the plan. Keys are dropped to make room.
const LINES_MIN: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    Plain,
    Strong,
    Faint,
    Alarm,
}

impl Tone {
    /// Returns the tone of a line that `gpumem reap` would print.
    fn of_line(line: &str) -> Self {
        if line.starts_with("skipped:") || line.starts_with("undecided:") {
            Self::Faint
        } else if line.starts_with("error:") {
            Self::Alarm
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            Self::Strong
        } else {
            Self::Plain
        }
    }

    fn style(self, styles: Styles) -> Style {
        match self {
            Self::Plain => styles.plain(),
            Self::Strong => styles.strong(),
            Self::Faint => styles.faint(),
            Self::Alarm => styles.alarm(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Content {
    title: String,
    body: Vec<(String, Tone)>,
    /// Number of lines scrolled off the top.
    offset: usize,
    pub note: Vec<(String, Tone)>,
    /// Keys that change an option, with the option.
    choices: Vec<(&'static str, String)>,
    /// Keys that confirm, undo or close, with descriptions.
    ways_out: Vec<(&'static str, String)>,
}

#[derive(Debug)]
pub struct Panel {
    whole: Rect,
    is_framed: bool,
    title: Rect,
    pub body: Rect,
    below: Rect,
    content: Content,
    lines: Vec<(String, Tone)>,
    notes: Vec<(String, Tone)>,
    keys: Vec<Vec<(&'static str, String)>>,
}

impl Panel {
    pub fn last_offset(&self) -> usize {
        self.lines.len().saturating_sub(usize::from(self.body.height))
    }
}

pub fn lay_out(app: &App, area: Rect) -> Option<Panel> {
    let content = match &app.reaping.dialog {
        Some(dialog) => of_plan(app, dialog),
        None => of_batch(app)?,
    };
    // A panel narrower than the screen has a frame.
    let is_framed = area.width > WIDTH + 4;
    let (width, margin) = if is_framed { (WIDTH, 2) } else { (area.width, 0) };
    let inner = width - 2 * margin;
    let body = content.body.iter();
    let lines: Vec<(String, Tone)> =
        body.flat_map(|(line, tone)| fold(line, inner).map(|line| (line, *tone))).collect();
    let notes = content.note.iter();
    let notes: Vec<(String, Tone)> = notes
        .flat_map(|(note, tone)| wrap(note, inner, 2).into_iter().map(|line| (line.into(), *tone)))
        .collect();
    let mut keys = rows(&content.choices, inner);
    // The plan's lines take precedence over the options.
    let keys_max = usize::from(area.height).saturating_sub(1 + LINES_MIN);
    keys.truncate(keys_max.saturating_sub(2 + notes.len()));
    keys.push(content.ways_out.clone());

    let edge = u16::from(is_framed);
    let rows = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let below = rows(1 + notes.len() + keys.len());
    let wanted = rows(lines.len()).max(1).saturating_add(below).saturating_add(1 + edge);
    let height = wanted.min(area.height);
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let whole = Rect::new(area.x + x, area.y + y, width, height);
    let inside = whole.height.saturating_sub(edge);
    let below = below.min(inside.saturating_sub(2));
    let part = |top: u16, height: u16| Rect::new(whole.x + margin, whole.y + top, inner, height);
    Some(Panel {
        whole,
        is_framed,
        title: part(0, 1.min(inside)),
        body: part(1.min(inside), inside.saturating_sub(1 + below)),
        below: part(inside - below, below),
        content,
        lines,
        notes,
        keys,
    })
}

fn rows(choices: &[(&'static str, String)], width: u16) -> Vec<Vec<(&'static str, String)>> {
    let mut rows: Vec<Vec<(&'static str, String)>> = Vec::new();
    let mut left = 0;
    for (key, word) in choices {
        let needed = columns(key) + 1 + columns(word);
        if rows.is_empty() || needed > left {
            rows.push(Vec::new());
            left = width;
        }
        left = left.saturating_sub(needed + 2);
        rows.last_mut().into_iter().for_each(|row| row.push((*key, word.clone())));
    }
    rows
}

pub fn of_plan(app: &App, dialog: &Dialog) -> Content {
    let verb = if dialog.options.release { "release memory of" } else { "kill" };
    let mut content = Content {
        title: format!("{verb} {}", scope_text(app, dialog)),
        offset: dialog.offset,
        ..Content::default()
    };
    let note = &mut content.note;
    match &dialog.answer {
        Answer::Asked => content.body.push(("making the plan".to_owned(), Tone::Plain)),
        Answer::Failed(error) => content.body.push((escape(error).into_owned(), Tone::Alarm)),
        Answer::Plan(proposal) => {
            // The summary stays below the lines that scroll.
            if let Some((last, lines)) = proposal.lines.split_last() {
                note.push((last.clone(), Tone::Strong));
                let end = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |at| at + 1);
                let lines = lines[..end].iter();
                content.body.extend(lines.map(|line| (line.clone(), Tone::of_line(line))));
            }
            if let Some(age) = app.plan_age_seconds().filter(|age| *age >= SHOWN_AGE) {
                let age = Span::from_seconds(age);
                note.push((format!("made {age} ago; r refreshes it"), Tone::Plain));
            }
        }
    }
    if let Some(text) = &dialog.note {
        note.push((text.clone(), Tone::Alarm));
    } else if !app.is_live() {
        note.push(("a recording: nothing will be sent".to_owned(), Tone::Plain));
    }
    if let Some(ends) = dialog.countdown {
        let left = seconds_left(ends, app.judged.now());
        note.push((format!("nothing was sent yet; it begins in {left}s"), Tone::Alarm));
        content.ways_out = vec![("u", "undo".to_owned())];
    } else {
        content.choices = choices(app, dialog);
        content.ways_out = vec![("Esc", "leave".to_owned())];
        let verb = if dialog.options.release { "ask" } else { "kill" };
        let count = match dialog.options.release {
            true => dialog.ends(),
            false => dialog.receivers(),
        };
        match count {
            0 => {}
            _ if !app.is_live() => {}
            1 => content.ways_out.push(("y", format!("{verb} it"))),
            count => content.ways_out.push(("y", format!("{verb} these {count}"))),
        }
    }
    content
}

fn choices(app: &App, dialog: &Dialog) -> Vec<(&'static str, String)> {
    let options = &dialog.options;
    let yes = |is_so| if is_so { "yes" } else { "no" };
    let mut choices = vec![("Tab", "scope".to_owned())];
    if !options.release {
        choices.push(("s", format!("signal: {}", options.signal.map_or("default", Signal::name))));
    }
    // Plans for recordings are made as root, who sees all users.
    if app.is_live() {
        choices.push(("a", format!("other users' too: {}", yes(options.all_users))));
    }
    if dialog.offers_direct() {
        choices.push(("d", format!("signal what others own: {}", yes(options.direct))));
    }
    choices.push(("r", "refresh".to_owned()));
    choices
}

/// Describes the scope of the plan and how many of the marked processes the table hides.
pub fn scope_text(app: &App, dialog: &Dialog) -> String {
    let is_shown = |key: &RowKey| {
        let screenful = app.screenful.as_ref();
        screenful.is_some_and(|screenful| app.table.listing.position(screenful, key).is_some())
    };
    let prefix = match &dialog.options.scope {
        PlanScope::Findings => return "what the rules found".to_owned(),
        PlanScope::Processes(_) => "",
        PlanScope::Families(_) => "the family of ",
    };
    let rows = &dialog.selected;
    let mut pids: Vec<u32> = rows.iter().map(|key| key.identity.pid).collect();
    pids.dedup();
    let is_hidden = |pid: &&u32| !rows.iter().any(|key| key.identity.pid == **pid && is_shown(key));
    let hidden = match (pids.iter().filter(is_hidden).count(), pids.len()) {
        (0, _) => String::new(),
        (_, 1) => ", not in the table".to_owned(),
        (hidden, _) => format!(", {hidden} not in the table"),
    };
    match &pids[..] {
        [pid] => format!("{prefix}{pid}{hidden}"),
        pids => format!("{prefix}{} marked processes{hidden}", pids.len()),
    }
}

fn of_batch(app: &App) -> Option<Content> {
    let batch = app.reaping.batch.as_ref()?;
    let lines = batch.lines(app.judged.clock()).into_iter();
    let (title, tone) = match &batch.over {
        None => (batch.verb(), Tone::Strong),
        Some(Ok(())) => ("result", Tone::Strong),
        Some(Err(_)) => ("result", Tone::Alarm),
    };
    let mut ways_out = vec![("Esc", "leave".to_owned())];
    if batch.over.is_none() {
        let undo = if batch.has_sent() { "stop" } else { "undo" };
        ways_out = vec![("Esc", "leave it running".to_owned()), ("u", undo.to_owned())];
    }
    Some(Content {
        title: title.to_owned(),
        body: lines.map(|line| (line.clone(), Tone::of_line(&line))).collect(),
        offset: batch.offset,
        note: vec![(batch.summary(), tone)],
        choices: Vec::new(),
        ways_out,
    })
}

/// Wraps a line to `width` columns and indents continuation lines.
fn fold(line: &str, width: u16) -> impl Iterator<Item = String> {
    let text = line.trim_start_matches(' ');
    let indent = u16::try_from(line.len() - text.len()).unwrap_or(0).min(width / 2);
    let more = if width >= 30 { indent + 2 } else { indent };
    let mut parts = wrap(text, width - indent, 2);
    if parts.len() > 1 {
        parts = wrap(text, width - more, LINES_MAX);
    } else if parts.is_empty() {
        parts.push("".into());
    }
    let blank = |at: usize| " ".repeat(usize::from(if at == 0 { indent } else { more }));
    let lines = parts.iter().enumerate().map(|(at, part)| blank(at) + part);
    lines.collect::<Vec<_>>().into_iter()
}

pub fn draw(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let Some(panel) = lay_out(app, area) else {
        return;
    };
    // Half a line beside the panel would be hard to read.
    clear(canvas, Rect { x: area.x, width: area.width, ..panel.whole });
    if panel.is_framed {
        Block::bordered().border_style(styles.faint()).render(panel.whole, canvas);
    }
    let title = styles.heading().patch(styles.strong());
    LineWriter::new(canvas, panel.title, 0).rule(&panel.content.title, title, styles.faint());
    let hidden = panel.last_offset();
    let offset = panel.content.offset.min(hidden);
    let lines = panel.lines.iter().skip(offset);
    for (at, (line, tone)) in (0..panel.body.height).zip(lines) {
        LineWriter::new(canvas, panel.body, at).text(line, tone.style(styles));
    }
    let more = match hidden - offset {
        _ if hidden == 0 => String::new(),
        0 => "the end; k scrolls back".to_owned(),
        1 => "1 more line; j scrolls".to_owned(),
        more => format!("{more} more lines; j scrolls"),
    };
    LineWriter::new(canvas, panel.below, 0).rule(&more, styles.caution(), styles.faint());
    for (at, (text, tone)) in (1..).zip(&panel.notes) {
        LineWriter::new(canvas, panel.below, at).text(text, tone.style(styles));
    }
    for (at, row) in (1 + panel.notes.len() as u16..).zip(&panel.keys) {
        let mut writer = LineWriter::new(canvas, panel.below, at);
        for (key, word) in row {
            writer.text(key, styles.key()).skip(1).text(word, styles.plain()).skip(2);
        }
    }
}

#[cfg(test)]
mod tests;
