//! How something would be ended, and how far it is: what the dialog says, and where it is.
//!
//! It takes the width that the lines need and no more than the screen has; the lines scroll, all else
//! is.

use ratatui::layout::Rect;

use crate::reclaim::Signal;
use crate::report::escape::escape;
use crate::units::Span;
use crate::watch::reaping::batch::Batch;
use crate::watch::reclaim_worker::PlanScope;
use crate::watch::state::App;
use crate::watch::state::dialog::{Answer, Button, Dialog, seconds_left};
use crate::watch::text::{columns, wrap};
use crate::watch::view_model::RowKey;

/// Columns of the dialog where there are more.
const WIDTH: u16 = 110;
/// One line of a plan is cut after so many of the screen.
const MOST_LINES: usize = 12;
/// A plan's age is told from so many seconds on.
const SHOWN_AGE: f64 = 60.0;
/// Lines of a plan that are to be seen on the lowest screen.
const LEAST_LINES: usize = 3;
/// What is done where no signal is asked for: what owns a process is asked first, then comes SIGTERM.
const GENTLEST: &str = "default";

/// What is in the dialog.
#[derive(Debug)]
pub struct DialogContent {
    /// What it is.
    pub title: String,
    /// Its lines.
    pub body: Vec<(String, LineTone)>,
    /// Lines that are scrolled away.
    pub offset: usize,
    /// Below the lines: what it comes to.
    pub note: Vec<(String, LineTone)>,
    /// Key, what it changes, and how that is now.
    pub choices: Vec<(&'static str, String)>,
    /// What can be pressed, and which of it Enter presses.
    pub buttons: Vec<(String, bool)>,
}

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineTone {
    /// As it is.
    Plain,
    /// What matters.
    Strong,
    /// What matters less.
    Faint,
    /// What is wrong.
    Alarm,
    /// What is selected.
    Selected,
}

impl LineTone {
    /// Of a line as `gpumem reap` prints it.
    fn of(line: &str) -> Self {
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
}

/// The places of the dialog's parts.
#[derive(Debug)]
pub struct DialogAreas {
    /// All of it.
    pub whole: Rect,
    /// Whether its outermost cells are edges.
    pub is_framed: bool,
    /// Its title.
    pub title: Rect,
    /// The lines that scroll.
    pub body: Rect,
    /// What is below them.
    pub below: Rect,
}

/// A line below the plan.
#[derive(Debug)]
pub enum Below {
    /// What parts it from the plan.
    Rule,
    /// What it comes to.
    Note(String, LineTone),
    /// What else can be asked for: key, and what it changes.
    Choices(Vec<(&'static str, String)>),
    /// What can be pressed.
    Buttons,
}

type DialogLines = Vec<(String, LineTone)>;

/// The dialog, laid out.
#[derive(Debug)]
pub struct DialogLayout {
    /// What it says.
    pub content: DialogContent,
    /// Where its parts are.
    pub areas: DialogAreas,
    /// Its body, broken for its width.
    pub lines: Vec<(String, LineTone)>,
    /// What is below the body.
    pub below: Vec<Below>,
}

impl DialogLayout {
    /// The first line when it is scrolled down to its end.
    pub fn last_offset(&self) -> usize {
        let visible = usize::from(self.areas.body.height);
        self.lines.len().saturating_sub(visible)
    }
}

/// Lays out what is open; `None` where nothing is.
pub fn lay_out(app: &App, area: Rect) -> Option<DialogLayout> {
    let content = match (&app.reaping.dialog, &app.reaping.batch) {
        (Some(dialog), _) => of_plan(app, dialog),
        (None, Some(batch)) => of_batch(app, batch),
        (None, None) => return None,
    };
    // It has edges where it does not have all of the screen, with a blank column inside each.
    let is_framed = area.width > WIDTH + 4;
    let width = if is_framed { WIDTH } else { area.width };
    let inner = width.saturating_sub(if is_framed { 4 } else { 0 });
    let lines: DialogLines = content
        .body
        .iter()
        .flat_map(|(line, tone)| fold(line, inner).into_iter().map(|it| (it, *tone)))
        .collect();
    let mut below = vec![Below::Rule];
    for (note, tone) in &content.note {
        let wrapped = wrap(note, inner, 2);
        below.extend(wrapped.into_iter().map(|it| Below::Note(it.into(), *tone)));
    }
    let mut row: Vec<(&'static str, String)> = Vec::new();
    let mut used = 0;
    for (key, word) in &content.choices {
        let needed = columns(key) + 1 + columns(word) + 2;
        if used + needed > inner + 2 && !row.is_empty() {
            below.push(Below::Choices(std::mem::take(&mut row)));
            used = 0;
        }
        used += needed;
        row.push((key, word.clone()));
    }
    if !row.is_empty() {
        below.push(Below::Choices(row));
    }
    below.push(Below::Buttons);
    // What else could be asked for makes way for the plan.
    let most = usize::from(area.height).saturating_sub(1 + LEAST_LINES);
    while below.len() > most
        && let Some(at) = below.iter().rposition(|it| matches!(it, Below::Choices(_)))
    {
        below.remove(at);
    }

    let below_rows = u16::try_from(below.len()).unwrap_or(u16::MAX);
    let wanted = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let edge = u16::from(is_framed);
    let height = wanted.max(1).saturating_add(below_rows).saturating_add(1 + edge).min(area.height);
    let inside = height.saturating_sub(edge);
    let below_rows = below_rows.min(inside.saturating_sub(2));
    let whole = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    let margin = (width - inner) / 2;
    let part = |top: u16, height: u16| Rect::new(whole.x + margin, whole.y + top, inner, height);
    let body_rows = inside.saturating_sub(1).saturating_sub(below_rows);
    let places = DialogAreas {
        whole,
        is_framed,
        title: part(0, 1.min(inside)),
        body: part(1.min(inside), body_rows),
        below: part(inside - below_rows, below_rows),
    };
    Some(DialogLayout { content, areas: places, lines, below })
}

/// What the plan, or what keeps it, has to say.
pub fn of_plan(app: &App, dialog: &Dialog) -> DialogContent {
    let only_plans = !app.is_live();
    let mut note = Vec::new();
    let mut body: DialogLines = Vec::new();
    match &dialog.answer {
        Answer::Waiting => body.push((
            "waiting for the next sample; what is shown is of the past".to_owned(),
            LineTone::Plain,
        )),
        Answer::Asked => body.push(("making the plan".to_owned(), LineTone::Plain)),
        Answer::Failed(error) => body.push((escape(error).into_owned(), LineTone::Alarm)),
        Answer::Plan(proposal) => {
            let mut lines: &[String] = &proposal.lines;
            // What it comes to is below, whatever is scrolled.
            if let Some((last, rest)) = lines.split_last() {
                note.push((last.clone(), LineTone::Strong));
                lines = rest;
            }
            while let Some((last, rest)) = lines.split_last()
                && last.is_empty()
            {
                lines = rest;
            }
            body.extend(lines.iter().map(|line| (line.clone(), LineTone::of(line))));
            if let Some(age) = app.plan_age_seconds().filter(|age| *age >= SHOWN_AGE) {
                let age = Span::from_seconds(age);
                note.push((format!("made {age} ago; r refreshes it"), LineTone::Plain));
            }
        }
    }
    if let Some(text) = &dialog.note {
        note.push((text.clone(), LineTone::Alarm));
    } else if only_plans {
        let text = "a recording: nothing will be sent";
        note.push((text.to_owned(), LineTone::Plain));
    }
    if let Some(at) = dialog.signals {
        body = vec![("kill it by".to_owned(), LineTone::Plain)];
        let names = Signal::ASKED.iter().map(|signal| signal.name());
        for (place, name) in std::iter::once(GENTLEST).chain(names).enumerate() {
            let (mark, tone) = match place == at {
                true => ("> ", LineTone::Selected),
                false => ("  ", LineTone::Plain),
            };
            body.push((format!("{mark}{name}"), tone));
        }
        return DialogContent {
            title: "another signal".to_owned(),
            body,
            // The selected one is in view.
            offset: at.saturating_sub(2),
            note: Vec::new(),
            choices: vec![("j k", "select".to_owned()), ("Enter", "plan".to_owned())],
            buttons: vec![("Esc: as it was".to_owned(), false)],
        };
    }
    let (choices, buttons) = match dialog.countdown {
        Some(countdown) => {
            let left = countdown.ends.map(|ends| seconds_left(ends, app.judged.now()));
            let left = left.map_or_else(String::new, |left| format!(" in {left}s"));
            let text = format!("nothing was sent so far; it begins{left}");
            note.push((text, LineTone::Alarm));
            let undo = ("u: undo".to_owned(), true);
            (Vec::new(), vec![undo, ("y: now".to_owned(), false)])
        }
        None => (choices(dialog, only_plans), buttons(dialog, only_plans)),
    };
    DialogContent {
        title: match dialog.options.release {
            true => format!("release memory of {}", scope_text(app, dialog)),
            false => format!("kill {}", scope_text(app, dialog)),
        },
        body,
        offset: dialog.offset,
        note,
        choices,
        buttons,
    }
}

fn choices(dialog: &Dialog, only_plans: bool) -> Vec<(&'static str, String)> {
    let yes = |is_so| if is_so { "yes" } else { "no" };
    let signal = dialog.options.signal.map_or(GENTLEST, Signal::name);
    let mut choices = vec![("Tab", "scope".to_owned())];
    if !dialog.options.release {
        choices.push(("s", format!("signal: {signal}")));
    }
    // A recording's plan is root's.
    if !only_plans {
        let all_users = yes(dialog.options.all_users);
        choices.push(("a", format!("other users' too: {all_users}")));
    }
    if dialog.offers_direct() {
        choices.push(("d", format!("signal what others own: {}", yes(dialog.options.direct))));
    }
    choices.push(("r", "refresh".to_owned()));
    choices
}

fn buttons(dialog: &Dialog, only_plans: bool) -> Vec<(String, bool)> {
    let is_on = |button| dialog.button == button;
    let mut buttons = vec![("Esc: leave".to_owned(), is_on(Button::Cancel))];
    match dialog.receivers() {
        0 => {}
        _ if only_plans => {}
        _ if dialog.options.release => {
            let what = match dialog.ends() {
                1 => "y: ask it".to_owned(),
                count => format!("y: ask these {count}"),
            };
            buttons.push((what, is_on(Button::Begin)));
        }
        1 => buttons.push(("y: kill it".to_owned(), is_on(Button::Begin))),
        count => buttons.push((format!("y: kill these {count}"), is_on(Button::Begin))),
    }
    buttons
}

/// What the plan is about; shown where marks are on rows that the table does not show.
pub fn scope_text(app: &App, dialog: &Dialog) -> String {
    let is_shown = |key: &RowKey| {
        let screenful = app.screenful.as_ref();
        screenful.is_some_and(|screenful| app.table.listing.position(screenful, key).is_some())
    };
    let pids = |rows: &[RowKey]| {
        let mut pids: Vec<u32> = rows.iter().map(|key| key.identity.pid).collect();
        pids.dedup();
        let shown = rows.iter().filter(|key| is_shown(key));
        let is_hidden = |pid: &&u32| !shown.clone().any(|key| key.identity.pid == **pid);
        let hidden = pids.iter().filter(is_hidden).count();
        let count = pids.len();
        match (&pids[..], hidden) {
            ([pid], 0) => pid.to_string(),
            ([pid], _) => format!("{pid}, not in the table"),
            (_, 0) => format!("{count} marked processes"),
            (_, _) => format!("{count} marked processes, {hidden} not in the table"),
        }
    };
    match &dialog.options.scope {
        PlanScope::Processes(rows) if rows.is_empty() => "a process".to_owned(),
        PlanScope::Processes(rows) => pids(rows),
        PlanScope::Families(rows) => format!("the family of {}", pids(rows)),
        PlanScope::Findings => "what the rules found".to_owned(),
    }
}

fn of_batch(app: &App, batch: &Batch) -> DialogContent {
    let lines = batch.lines(app.judged.clock()).into_iter();
    let body = lines.map(|line| (line.clone(), LineTone::of(&line))).collect();
    let is_over = batch.over.is_some();
    let tone = match &batch.over {
        Some(Err(_)) => LineTone::Alarm,
        _ => LineTone::Strong,
    };
    let title = if is_over { "what came of it" } else { batch.verb() };
    let mut buttons = vec![("Esc: leave".to_owned(), true)];
    if !is_over {
        let undo = match batch.has_sent() {
            true => "u: stop",
            false => "u: undo",
        };
        buttons = vec![("Esc: leave it going".to_owned(), true), (undo.to_owned(), false)];
    }
    DialogContent {
        title: title.to_owned(),
        body,
        offset: batch.offset,
        note: vec![(batch.summary(), tone)],
        choices: Vec::new(),
        buttons,
    }
}

/// A line in lines of `width` columns, each as far to the right as it begins.
fn fold(line: &str, width: u16) -> Vec<String> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let indent = u16::try_from(indent).unwrap_or(0).min(width / 2);
    let text = line.trim();
    if text.is_empty() {
        return vec![String::new()];
    }
    // What goes on is a little further in, where there is room.
    let more = if width >= 30 { indent + 2 } else { indent };
    let first = wrap(text, width - indent, 2);
    if first.len() < 2 {
        let blank = " ".repeat(usize::from(indent));
        return first.iter().map(|it| format!("{blank}{it}")).collect();
    }
    let head = first[0].to_string();
    let mut out = vec![format!("{}{head}", " ".repeat(usize::from(indent)))];
    let rest = text.get(head.len()..).unwrap_or_default();
    let blank = " ".repeat(usize::from(more));
    let rest = wrap(rest, width.saturating_sub(more), MOST_LINES);
    out.extend(rest.iter().map(|it| format!("{blank}{it}")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_folded_where_it_began_and_cut_in_the_end() {
        let line = format!("    {}", "word ".repeat(20));
        let folded = fold(&line, 40);
        assert!(folded[0].starts_with("    word") && folded[1].starts_with("      word"));
        let long = fold(&"x".repeat(100_000), 40);
        assert_eq!(long.len(), MOST_LINES + 1);
        assert_eq!(fold("", 10), [""]);
        for width in 0..20 {
            for line in ["    日本語日本語", "        deep", "x"] {
                for folded in fold(line, width) {
                    assert!(columns(&folded) <= width.max(1) + 1, "{width}: {folded:?}");
                }
            }
        }
    }
}
