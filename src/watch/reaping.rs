//! Killing processes and freeing their memory: plan, confirmation, and the batch that carries out the plan.
//!
//! The [worker](crate::reclaim::worker) makes plans and carries them out. Answers repeat the number of the request,
//! and later samples do not change a displayed plan, so the user confirms exactly the plan that was drawn.
//!
//! `y` starts a countdown of [`UNDO`], during which nothing is sent and the user can undo the
//! confirmation. gpumem itself undoes the confirmation if the plan leaves the screen or gpumem is
//! stopped. Plans older than [`OLD`] cannot be confirmed.

pub mod panel;

use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent};

use super::Control;
use super::keys::KeyAction;
use super::state::reaping::{Answer, Dialog};
use super::state::{App, Effect, Mode, NOTHING_FOUND, NOTHING_SEEN};
use super::view_model::RowKey;
use crate::model::{Identity, Snapshot};
use crate::reclaim::Signal;
use crate::reclaim::worker::{
    ObservedSample, PlanOptions, PlanRequest, PlanScope, ReclaimProgress, ReclaimRequest,
};
use crate::units::Span;
use crate::watch::state::reaping::Batch;
use panel::lay_out;

/// Age in seconds at or above which a plan must be made again.
pub const OLD: f64 = 300.0;
/// Time after a confirmation during which the user can undo it.
pub const UNDO: Duration = Duration::from_secs(3);
/// Maximum delay between the end of a countdown and the start of the plan. A longer delay means that the countdown
/// was not visible: gpumem was stopped, or the terminal did not accept frames.
const LATE: Duration = Duration::from_secs(3);
/// Warning for a user who quits during a batch. Quitting leaves the plan unfinished.
pub const STILL_ENDING: &str = "still killing; q again quits and sends nothing more";

/// Opens a plan to release or kill the marked processes or, without marks, the selected process.
pub fn open_selected(app: &mut App, release: bool) -> Option<Effect> {
    let selected = selected(app);
    let scope = PlanScope::Processes(identities(&selected));
    open(app, scope, selected, release)
}

/// Opens a plan for one process, regardless of marks.
pub fn open_row(app: &mut App, row: RowKey, release: bool) -> Option<Effect> {
    open(app, PlanScope::Processes(vec![row.identity]), vec![row], release)
}

pub fn open_findings(app: &mut App) -> Option<Effect> {
    let selected = selected(app);
    open(app, PlanScope::Findings, selected, false)
}

fn identities(rows: &[RowKey]) -> Vec<Identity> {
    rows.iter().map(|row| row.identity).collect()
}

fn selected(app: &App) -> Vec<RowKey> {
    let mut rows: Vec<RowKey> = app.table.tagged.iter().copied().collect();
    if rows.is_empty() {
        rows.extend(app.subject().map(|subject| subject.row.key));
    }
    rows.sort_by_key(|key| (key.identity, key.gpu, key.instance));
    rows
}

fn open(app: &mut App, scope: PlanScope, selected: Vec<RowKey>, release: bool) -> Option<Effect> {
    if app.reaping.batch.is_some() {
        // There can be only one batch, so show it instead of a new plan.
        app.mode = Mode::Plan;
        return Some(Effect::Draw);
    }
    let Some(screenful) = &app.screenful else {
        return app.refuse(NOTHING_SEEN);
    };
    match &scope {
        PlanScope::Findings if screenful.findings.is_empty() && screenful.undecided.is_empty() => {
            return app.refuse(NOTHING_FOUND);
        }
        PlanScope::Processes(rows) | PlanScope::Families(rows) if rows.is_empty() => {
            return app.refuse("no process is selected; j or k selects one, X takes all findings");
        }
        _ => {}
    }
    if app.setup.host.is_some() {
        return open_on_host(app, &scope, release);
    }
    app.mode = Mode::Plan;
    app.reaping.dialog = Some(Dialog {
        options: PlanOptions { scope, release, signal: None, all_users: false, direct: false },
        selected,
        answer: Answer::Asked,
        offset: 0,
        countdown: None,
        note: None,
        asked: None,
        is_drawn: false,
    });
    request_plan(app)
}

/// Runs `gpumem` on the remote host, where it makes the plan and asks for confirmation. The command contains
/// identities, so it cannot select a process with a reused PID.
fn open_on_host(app: &mut App, scope: &PlanScope, release: bool) -> Option<Effect> {
    let (PlanScope::Processes(identities) | PlanScope::Families(identities)) = scope else {
        return Some(Effect::OnHost("gpumem reap".to_owned()));
    };
    let boot_id = app.screenful.as_ref()?.snapshot.host.boot_id.clone();
    let name = |identity: &Identity| identity.exact_name(boot_id.as_deref()?);
    let Some(mut names) = identities.iter().map(name).collect::<Option<Vec<_>>>() else {
        return app.refuse("the start time of the process is unknown, so no command can name it");
    };
    names.dedup();
    let command = if release { "release" } else { "kill" };
    Some(Effect::OnHost(format!("gpumem {command} --all-users {}", names.join(" "))))
}

/// Requests a plan for the newest sample of a live machine, or for the displayed sample of a recording.
fn request_plan(app: &mut App) -> Option<Effect> {
    let newest = app.timeline.newest().filter(|_| app.is_behind() && app.is_live());
    let newest = newest.and_then(|frame| app.timeline.screenful(frame.number));
    let screenful = newest.as_ref().or(app.screenful.as_ref())?;
    let clock = app.judged.clock();
    let dialog = app.reaping.dialog.as_mut()?;
    dialog.answer = Answer::Asked;
    (dialog.offset, dialog.countdown, dialog.note) = (0, None, None);
    (dialog.is_drawn, dialog.asked) = (false, clock);
    // Answers with an older number are ignored.
    app.reaping.number += 1;
    Some(Effect::Reclaim(ReclaimRequest::Plan(Box::new(PlanRequest {
        number: app.reaping.number,
        options: dialog.options.clone(),
        snapshot: Arc::new(screenful.snapshot.clone()),
        findings: screenful.findings.clone(),
        undecided: screenful.undecided.clone(),
    }))))
}

pub fn on_snapshot(app: &App, snapshot: &Snapshot) -> Option<Effect> {
    app.reaping.is_running().then(|| {
        Effect::Reclaim(ReclaimRequest::Observe(ObservedSample {
            snapshot: Arc::new(snapshot.clone()),
            found: app.judged.engine.unkept().cloned().collect(),
        }))
    })
}

pub fn on_progress(app: &mut App, progress: ReclaimProgress) -> Option<Effect> {
    let reaping = &mut app.reaping;
    if let ReclaimProgress::Planned { number, plan } = progress {
        let dialog = reaping.dialog.as_mut()?;
        if number != reaping.number || dialog.answer != Answer::Asked {
            return None;
        }
        dialog.answer = plan.map_or_else(Answer::Failed, Answer::Plan);
        dialog.is_drawn = false;
        return Some(Effect::Draw);
    }
    let batch = reaping.batch.as_mut()?;
    match progress {
        ReclaimProgress::Begun { number } if number == batch.number => {
            return Some(Effect::Control(Control::Fast(true)));
        }
        ReclaimProgress::Target { number, place, stage } if number == batch.number => {
            batch.set_stage(place, stage);
        }
        ReclaimProgress::Sent { number, place, words } if number == batch.number => {
            batch.add_sent(place, words);
        }
        ReclaimProgress::Finished { number, error } if number == batch.number => {
            batch.over = Some(error.map_or(Ok(()), Err));
            return Some(Effect::Control(Control::Fast(false)));
        }
        _ => return None,
    }
    Some(Effect::Draw)
}

pub fn drawn(app: &mut App) {
    let is_shown = is_visible(app);
    if let Some(dialog) = &mut app.reaping.dialog {
        dialog.is_drawn = is_shown;
    }
}

fn is_visible(app: &App) -> bool {
    app.mode == Mode::Plan && app.layout().is_some()
}

fn undo(app: &mut App, why: &str) -> Option<Effect> {
    let dialog = app.reaping.dialog.as_mut()?;
    dialog.countdown.take()?;
    dialog.note = Some(format!("undone: {why}"));
    Some(Effect::Draw)
}

pub fn on_screen_change(app: &mut App) {
    if !is_visible(app) {
        undo(app, "the plan was no longer on screen; nothing was sent");
    }
}

pub fn on_suspend(app: &mut App) {
    undo(app, "gpumem was suspended; nothing was sent");
}

/// Starts the batch if the countdown has ended and was visible until the end. Undoes the confirmation if the
/// countdown was not visible.
pub fn tick(app: &mut App) -> Option<Effect> {
    let Some(ends) = app.reaping.dialog.as_ref().and_then(|dialog| dialog.countdown) else {
        let shows_age = app.reaping.is_running() || app.reaping.dialog.is_some();
        return shows_age.then_some(Effect::Draw);
    };
    let now = app.judged.now();
    if !is_visible(app) {
        undo(app, "the plan was not on screen; nothing was sent")
    } else if now >= ends + LATE {
        undo(app, "the screen was not updated in time; nothing was sent")
    } else if now >= ends {
        start_batch(app)
    } else {
        Some(Effect::Draw)
    }
}

fn confirm(app: &mut App) -> Option<Effect> {
    let (is_live, has_ended) = (app.is_live(), app.end.is_some());
    let ends = app.judged.now() + UNDO;
    let old = app.plan_age_seconds().filter(|age| *age >= OLD);
    let dialog = app.reaping.dialog.as_mut()?;
    if dialog.proposal().is_none() || !dialog.is_drawn {
        return None;
    }
    let why = if let Some(age) = old {
        let effect = request_plan(app);
        let note = format!("that plan was {} old; this is a new one", Span::from_seconds(age));
        if let Some(dialog) = &mut app.reaping.dialog {
            dialog.note = Some(format!("nothing was sent: {note}"));
        }
        return effect;
    } else if !is_live {
        "it is a recording"
    } else if dialog.ends() == 0 && dialog.options.release {
        "no process here can be asked to release memory"
    } else if dialog.ends() == 0 {
        "nothing to kill"
    } else if has_ended {
        "no more samples arrive"
    } else {
        (dialog.note, dialog.countdown) = (None, Some(ends));
        return Some(Effect::Draw);
    };
    dialog.note = Some(format!("nothing was sent: {why}"));
    Some(Effect::Draw)
}

fn start_batch(app: &mut App) -> Option<Effect> {
    let reaping = &mut app.reaping;
    let dialog = reaping.dialog.take()?;
    let Answer::Plan(proposal) = dialog.answer else {
        return None;
    };
    if dialog.options.scope != PlanScope::Findings {
        for row in &dialog.selected {
            app.table.tagged.remove(row);
        }
    }
    let (number, plan) = (reaping.number, Arc::clone(&proposal.plan));
    reaping.batch = Some(Batch::new(number, proposal));
    Some(Effect::Reclaim(ReclaimRequest::Begin { number, plan }))
}

pub fn on_key(app: &mut App, key: &KeyEvent, action: Option<KeyAction>) -> Option<Effect> {
    let action = action?;
    let is_counting = app.reaping.dialog.as_ref().is_some_and(|dialog| dialog.countdown.is_some());
    match action {
        KeyAction::Undo | KeyAction::Back | KeyAction::Quit if is_counting => {
            return undo(app, "nothing was sent");
        }
        _ if is_counting => return None,
        KeyAction::Back | KeyAction::Quit => return close(app),
        _ if scroll(app, action) => return Some(Effect::Draw),
        KeyAction::Undo if app.reaping.is_running() => {
            let batch = app.reaping.batch.as_mut()?;
            batch.is_stopping = true;
            let number = batch.number;
            return Some(Effect::Reclaim(ReclaimRequest::Stop { number }));
        }
        KeyAction::Confirm => return confirm(app),
        _ => {}
    }
    let dialog = app.reaping.dialog.as_mut()?;
    match action {
        KeyAction::NextSignal if dialog.options.release => {
            dialog.note = Some("a release sends no signal; press x to plan a kill".to_owned());
            return Some(Effect::Draw);
        }
        KeyAction::NextSignal => {
            let asked = dialog.options.signal;
            let at = Signal::ASKED.iter().position(|&signal| Some(signal) == asked);
            dialog.options.signal = Signal::ASKED.get(at.map_or(0, |at| at + 1)).copied();
        }
        KeyAction::SwitchFocus => {
            let rows = || identities(&dialog.selected);
            let scopes =
                [PlanScope::Processes(rows()), PlanScope::Families(rows()), PlanScope::Findings];
            let at = scopes.iter().position(|scope| *scope == dialog.options.scope);
            // Two steps forward are one step back, because there are three scopes.
            let steps = if key.code == KeyCode::BackTab { 2 } else { 1 };
            let next = match dialog.selected.is_empty() {
                true => 2,
                false => (at.unwrap_or(0) + steps) % scopes.len(),
            };
            dialog.options.scope = scopes[next].clone();
        }
        KeyAction::EveryUser => dialog.options.all_users ^= true,
        KeyAction::Direct if dialog.offers_direct() => dialog.options.direct ^= true,
        KeyAction::Direct => {
            dialog.note = Some("nothing here is owned by a scheduler or a service".to_owned());
            return Some(Effect::Draw);
        }
        KeyAction::PlanAgain => {}
        _ => return None,
    }
    request_plan(app)
}

fn close(app: &mut App) -> Option<Effect> {
    app.mode = Mode::Main;
    if !app.reaping.is_running() {
        app.reaping.batch = None;
    }
    app.reaping.dialog = None;
    Some(Effect::Draw)
}

/// Scrolls the panel. Returns false if `action` does not scroll.
fn scroll(app: &mut App, action: KeyAction) -> bool {
    let Some(dialog) = lay_out(app, app.area) else {
        return false;
    };
    let (last, page) = (dialog.last_offset(), usize::from(dialog.body.height).max(1));
    let offset = match (&mut app.reaping.dialog, &mut app.reaping.batch) {
        (Some(dialog), _) => &mut dialog.offset,
        (None, Some(batch)) => &mut batch.offset,
        (None, None) => return false,
    };
    *offset = match action {
        KeyAction::Down => *offset + 1,
        KeyAction::Up => offset.saturating_sub(1),
        KeyAction::PageDown => *offset + page,
        KeyAction::PageUp => offset.saturating_sub(page),
        KeyAction::First => 0,
        KeyAction::Last => last,
        _ => return false,
    }
    .min(last);
    true
}

#[cfg(test)]
mod tests;
