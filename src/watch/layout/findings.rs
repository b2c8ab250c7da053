//! What the lower panel has to say, and which of the findings have room in it.
//!
//! A line each; where there is room for all of them twice, the sentence is below the evidence.
//! [`visible`] says which of them are seen, and where.

use crate::model::snapshot::Snapshot;
use crate::watch::layout::{Gpus, Layout};
use crate::watch::state::{App, End, Focus};
use crate::watch::text::{MESSAGE_CHARS, clean, clock, wrap};
use crate::watch::view_model::Screenful;

/// From this width on, the sentence of each may be below its evidence.
const WIDE: u16 = 72;
/// So many suspects have a line, and more where there is room: the table has a mark for each.
const SUSPECTS_WANTED: usize = 2;
/// A panel that is lower has no title.
const TITLED: u16 = 4;

/// Which findings are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisibleFindings {
    /// The first one, by its place.
    pub first: usize,
    /// How many.
    pub shown: usize,
    /// Lines that each takes.
    pub lines_each: u16,
    /// The row of the screen that the first one is on.
    pub top: u16,
}

/// Whether the panel shows the list, and not the selected process.
pub fn are_shown(app: &App) -> bool {
    app.focus == Focus::Findings || app.subject().is_none()
}

/// Which findings are seen; `None` where the list is not on the screen.
pub fn visible(app: &App, layout: &Layout) -> Option<VisibleFindings> {
    let area = layout.status;
    if !are_shown(app) {
        return None;
    }
    let screenful = app.screenful.as_ref()?;
    let mut used = u16::from(area.height >= TITLED);
    for (text, limit) in alarms(app) {
        let room = area.height.saturating_sub(used).min(limit);
        used += wrap(&text, area.width, usize::from(room)).len() as u16;
    }
    let room = area.height.saturating_sub(used);
    let has_notes = notes(screenful, Some(layout.gpu_form)).next().is_some();
    Some(choose_visible(app, screenful, layout, room, has_notes).at(area.y + used))
}

/// The finding on a row of the screen, by its place.
pub fn at_row(app: &App, layout: &Layout, row: u16) -> Option<usize> {
    let visible = visible(app, layout)?;
    let line = row.checked_sub(visible.top)?;
    let at = usize::from(line / visible.lines_each);
    (at < visible.shown).then_some(visible.first + at)
}

impl VisibleFindings {
    fn at(self, top: u16) -> Self {
        Self { top, ..self }
    }
}

/// Chooses what has room on so many lines.
pub fn choose_visible(
    app: &App,
    screenful: &Screenful,
    layout: &Layout,
    room: u16,
    has_notes: bool,
) -> VisibleFindings {
    let count = screenful.findings.len();
    let room = usize::from(room);
    // A line is kept for the notes where there is more than one.
    let kept = usize::from(has_notes && room > 1);
    let twice = layout.status.width >= WIDE && count * 2 + kept <= room;
    let shown = count.min(room - kept);
    let selected = match app.focus {
        Focus::Findings => app.selected_finding().map(|(at, _)| at),
        Focus::Table => None,
    };
    let first = selected.map_or(app.findings.offset, |at| {
        app.findings.offset.clamp((at + 1).saturating_sub(shown), at)
    });
    VisibleFindings {
        first: first.min(count - shown),
        shown,
        lines_each: if twice { 2 } else { 1 },
        top: 0,
    }
}

/// Whether the panel has a line for its title.
pub fn has_title(layout: &Layout) -> bool {
    layout.status.height >= TITLED
}

/// Lines that the list, what is wrong, and the notes would take.
pub fn lines_wanted(app: &App, screenful: &Screenful) -> usize {
    let errors = usize::from(!screenful.snapshot.errors.is_empty());
    let unavailable = unavailable(&screenful.snapshot, None).len();
    let suspects = screenful.suspects.len().min(SUSPECTS_WANTED);
    let undecided = match suspects {
        0 => screenful.undecided.len(),
        // Each suspect says when its rule can tell.
        _ => screenful.undecided.len().min(1),
    };
    let notes = errors + unavailable + suspects + undecided;
    screenful.findings.len() + notes + alarms(app).len()
}

/// What is wrong with the samples themselves, each with the lines that it may take.
pub fn alarms(app: &App) -> Vec<(String, u16)> {
    let mut alarms = Vec::new();
    if let Some(End::Failed(error)) = &app.end {
        let text = format!("no more samples: {}", clean(error, MESSAGE_CHARS));
        alarms.push((text, 2));
    }
    if let (Some(screenful), true) = (&app.screenful, app.is_overdue()) {
        let time = clock(screenful.snapshot.time);
        let text = format!("the driver does not answer; all of this is from {time}");
        alarms.push((text, 1));
    }
    alarms
}

/// What a note is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoteKind {
    /// Something could not be read, or is not available.
    Missing,
    /// A process looks like waste.
    Suspect,
    /// A rule could not decide yet.
    Undecided,
}

/// What could not be read, what is not available, who is suspected, and what could not be decided yet.
pub fn notes(
    screenful: &Screenful,
    form: Option<Gpus>,
) -> impl Iterator<Item = (NoteKind, String)> {
    let errors = &screenful.snapshot.errors;
    let unread = errors.first().map(|error| {
        let call = clean(&error.call, 200);
        // What happened comes before the name of the call, which few know and which is cut first.
        let place =
            error.gpu.map_or_else(|| call.clone().into_owned(), |index| format!("GPU {index}"));
        let call = error.gpu.map_or_else(String::new, |_| format!(" ({call})"));
        let more = match errors.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        format!("could not read {place}: {}{call}{more}", clean(&error.error, 400))
    });
    let undecided = screenful.undecided.iter().map(|undecided| {
        format!(
            "not decided yet: {}: {}",
            clean(&undecided.rule, 100),
            clean(&undecided.reason, 400)
        )
    });
    let unavailable = unavailable(&screenful.snapshot, form);
    let missing = unread.into_iter().chain(unavailable);
    let suspects = screenful.suspects.iter().map(|suspect| {
        let message = clean(&suspect.message, MESSAGE_CHARS);
        format!("{}: {message}; {}", suspect.mark, suspect.missing)
    });
    let missing = missing.map(|text| (NoteKind::Missing, text));
    let suspects = suspects.map(|text| (NoteKind::Suspect, text));
    let undecided = undecided.map(|text| (NoteKind::Undecided, text));
    missing.chain(suspects).chain(undecided)
}

/// Why figures are not to be had, each reason once; and that a hidden holder may not have been seen,
/// where there is memory that no one holds.
fn unavailable(snapshot: &Snapshot, form: Option<Gpus>) -> Vec<String> {
    let has_words = form.is_some_and(|form| form != Gpus::Totals);
    let mut notes: Vec<String> = Vec::new();
    for gpu in &snapshot.gpus {
        for (what, reason) in [
            ("memory", &gpu.memory_unavailable),
            ("memory of processes", &gpu.process_memory_unavailable),
        ] {
            // A GPU's own line tells it already.
            let Some(reason) = reason.as_ref().filter(|_| !has_words || what != "memory") else {
                continue;
            };
            let text = format!("{what} n/a: {}", clean(reason, 400));
            if !notes.iter().any(|note| note.ends_with(&text)) {
                notes.push(format!("GPU {}: {text}", gpu.index));
            }
        }
    }
    let gpus = snapshot.gpus.iter();
    let mut balances = gpus.filter_map(|gpu| snapshot.balance(gpu));
    if balances.any(|balance| balance.notable_bytes().is_some()) {
        notes.extend(snapshot.host.unread_text());
    }
    notes
}
