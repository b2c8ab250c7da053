//! Ending processes: the plan as it is shown, a yes to it, and how far it is.
//!
//! Pure: what has to be done is asked of the [`reclaim_worker`](super::reclaim_worker). A number binds the answer to its
//! question, so that what is confirmed is the very plan that is on the screen: it never changes by
//! itself, a newer sample makes no other plan, and only a person asks for another one. A yes counts only
//! once the plan has been drawn, and can be taken back for `UNDO`, all of which is seen: where the plan goes
//! out of sight, or time is missing, the yes is void (`countdown.rs`). Until then nothing is sent; after that,
//! until the first signal, it can be undone still, and stopped at any time. A plan that is [`OLD`] takes no
//! yes. A plan that is carried out is a [`batch`]; how all of it looks is in `view/plan.rs`.

pub mod batch;
mod countdown;

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent};

use super::Control;
use super::keys::KeyAction;
use super::layout::dialog::lay_out;
use super::reclaim_worker::{
    ObservedSample, PlanOptions, PlanRequest, PlanScope, ReclaimProgress, ReclaimRequest,
};
use super::state::dialog::{Answer, Button, Dialog};
use super::state::{App, Effect, Mode, NOTHING_FOUND, NOTHING_SEEN};
use super::view_model::RowKey;
use crate::model::Snapshot;
use crate::model::finding::{Finding, Undecided};
use crate::reclaim::Signal;
use batch::Batch;
pub use countdown::{on_screen_change, on_suspend};

/// A plan that is so many seconds old is made anew before it takes a yes.
pub const OLD: f64 = 300.0;

/// Shows how the marked processes, or the selected one, would be ended, or asked to release memory.
pub fn open_selected(app: &mut App, release: bool) -> Option<Effect> {
    let selected = selected(app);
    let scope = PlanScope::Processes(selected.clone());
    open(app, scope, selected, release)
}

/// Shows how the process of this row would be ended, or asked to release memory, whatever is marked.
pub fn open_row(app: &mut App, row: RowKey, release: bool) -> Option<Effect> {
    open(app, PlanScope::Processes(vec![row]), vec![row], release)
}

/// Shows how all that the rules found would be ended.
pub fn open_findings(app: &mut App) -> Option<Effect> {
    let selected = selected(app);
    open(app, PlanScope::Findings, selected, false)
}

/// The marked rows, or the selected one.
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
        // One at a time; what has come of it is looked at first.
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
    app.mode = Mode::Plan;
    app.reaping.dialog = Some(Dialog {
        options: PlanOptions { scope, release, signal: None, all_users: false, direct: false },
        selected,
        answer: Answer::Asked,
        offset: 0,
        button: Button::Cancel,
        signals: None,
        countdown: None,
        note: None,
        asked: None,
        is_drawn: false,
        is_fast: false,
    });
    request_plan(app)
}

/// Why there is no plan of the past of this machine.
const PAST: &str = "what is shown is of the past, and no more samples come; L shows the last one";

/// No more samples come: who waits for one waits in vain.
pub fn failed(app: &mut App) {
    if let Some(dialog) = &mut app.reaping.dialog
        && dialog.answer == Answer::Waiting
    {
        dialog.answer = Answer::Failed(PAST.to_owned());
    }
}

/// Asks for a plan of what the dialog wishes.
fn request_plan(app: &mut App) -> Option<Effect> {
    let dialog = app.reaping.dialog.as_mut()?;
    dialog.answer = Answer::Asked;
    (dialog.offset, dialog.button) = (0, Button::Cancel);
    (dialog.signals, dialog.countdown, dialog.note) = (None, None, None);
    dialog.is_drawn = false;
    // An answer to an earlier question is none to this.
    app.reaping.number += 1;
    let screenful = app.screenful.as_ref()?;
    if app.setup.replay.is_some() {
        // Of a recording: what would be done at the time that is shown.
        let (findings, undecided) = (screenful.findings.clone(), screenful.undecided.clone());
        return send_request(app, Arc::new(screenful.snapshot.clone()), findings, undecided);
    }
    if app.judged.engine.history().last_time() != Some(screenful.snapshot.time) {
        if app.end.is_some() {
            dialog.answer = Answer::Failed(PAST.to_owned());
            return Some(Effect::Draw);
        }
        dialog.answer = Answer::Waiting;
        dialog.is_fast = true;
        return Some(Effect::Control(Control::Fast(true)));
    }
    let snapshot = Arc::new(screenful.snapshot.clone());
    request_plan_now(app, snapshot)
}

fn request_plan_now(app: &mut App, snapshot: Arc<Snapshot>) -> Option<Effect> {
    let findings = app.judged.engine.findings().to_vec();
    let undecided = app.judged.engine.undecided();
    send_request(app, snapshot, findings, undecided)
}

fn send_request(
    app: &mut App,
    snapshot: Arc<Snapshot>,
    findings: Vec<Finding>,
    undecided: Vec<Undecided>,
) -> Option<Effect> {
    let clock = app.judged.clock();
    let dialog = app.reaping.dialog.as_mut()?;
    dialog.asked = clock;
    Some(Effect::Reclaim(ReclaimRequest::Plan(Box::new(PlanRequest {
        number: app.reaping.number,
        options: dialog.options.clone(),
        snapshot,
        findings,
        undecided,
    }))))
}

/// Takes in a sample that the engine has judged, before it is shown.
pub fn on_snapshot(app: &mut App, snapshot: &Snapshot) -> Option<Effect> {
    if let Some(dialog) = &mut app.reaping.dialog
        && dialog.answer == Answer::Waiting
    {
        dialog.answer = Answer::Asked;
        return request_plan_now(app, Arc::new(snapshot.clone()));
    }
    let batch = app.reaping.batch.as_mut()?;
    if batch.over.is_some() {
        return None;
    }
    batch.update_held(snapshot);
    Some(Effect::Reclaim(ReclaimRequest::Observe(ObservedSample {
        snapshot: Arc::new(snapshot.clone()),
        found: app.judged.engine.unkept().cloned().collect(),
    })))
}

/// Takes in what came of what was asked.
pub fn on_progress(app: &mut App, progress: ReclaimProgress) -> Option<Effect> {
    let reaping = &mut app.reaping;
    if let ReclaimProgress::Planned { number, plan } = progress {
        let dialog = reaping.dialog.as_mut()?;
        if number != reaping.number || dialog.answer != Answer::Asked {
            return None;
        }
        dialog.answer = plan.map_or_else(Answer::Failed, Answer::Plan);
        dialog.is_drawn = false;
        return Some(match std::mem::take(&mut dialog.is_fast) {
            true => Effect::Control(Control::Fast(false)),
            false => Effect::Draw,
        });
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

/// What is shown has been drawn: from now on it can be answered.
pub fn drawn(app: &mut App) {
    let is_shown = is_in_sight(app);
    if let Some(dialog) = &mut app.reaping.dialog {
        dialog.is_drawn = is_shown;
    }
}

/// Whether the plan is what the screen shows.
fn is_in_sight(app: &App) -> bool {
    app.mode == Mode::Plan && app.layout().is_some()
}

/// Time has passed.
pub fn tick(app: &mut App) -> Option<Effect> {
    countdown::tick(app).or_else(|| app.reaping.is_running().then_some(Effect::Draw))
}

/// What is said to who would quit while a plan is being carried out, and so leave it half done.
pub const STILL_ENDING: &str = "still killing; q again leaves, and nothing more is sent";

/// Carries out the plan that is shown.
fn begin(app: &mut App) -> Option<Effect> {
    let reaping = &mut app.reaping;
    let dialog = reaping.dialog.take()?;
    let Answer::Plan(proposal) = dialog.answer else {
        return None;
    };
    if dialog.options.scope != PlanScope::Findings {
        // Done with: the next plan is of whoever is marked after this.
        for row in &dialog.selected {
            app.table.tagged.remove(row);
        }
    }
    let (number, plan) = (reaping.number, Arc::clone(&proposal.plan));
    reaping.batch = Some(Batch::new(number, proposal));
    Some(Effect::Reclaim(ReclaimRequest::Begin { number, plan }))
}

/// Takes a key while the plan is open.
pub fn on_key(app: &mut App, key: &KeyEvent, action: Option<KeyAction>) -> Option<Effect> {
    let action = action?;
    match &mut app.reaping.dialog {
        None => on_batch(app, action),
        Some(dialog) if dialog.countdown.is_some() => countdown::on_key(app, action),
        Some(dialog) if dialog.signals.is_some() => on_signals(app, action),
        // Of three, two steps on are one back.
        Some(_) if key.code == KeyCode::BackTab => turn(app, 2),
        Some(_) => on_plan(app, action),
    }
}

fn on_plan(app: &mut App, action: KeyAction) -> Option<Effect> {
    if scroll(app, action) {
        return Some(Effect::Draw);
    }
    let dialog = app.reaping.dialog.as_mut()?;
    match action {
        KeyAction::Confirm => return countdown::confirm(app),
        KeyAction::Open => {
            return match dialog.button {
                Button::Begin => countdown::confirm(app),
                Button::Cancel => close(app),
            };
        }
        KeyAction::Back => return close(app),
        KeyAction::OtherButton => {
            dialog.button = match dialog.button {
                Button::Cancel => Button::Begin,
                Button::Begin => Button::Cancel,
            };
        }
        KeyAction::ChooseSignal if dialog.options.release => {
            dialog.note = Some("a release ends nothing; x plans to kill, by a signal".to_owned());
        }
        KeyAction::ChooseSignal => {
            let asked = dialog.options.signal;
            let place = Signal::ASKED.iter().position(|&it| Some(it) == asked);
            dialog.signals = Some(place.map_or(0, |place| place + 1));
        }
        KeyAction::SwitchFocus => return turn(app, 1),
        KeyAction::EveryUser => {
            dialog.options.all_users ^= true;
            return request_plan(app);
        }
        KeyAction::Direct if dialog.offers_direct() => {
            dialog.options.direct ^= true;
            return request_plan(app);
        }
        KeyAction::Direct => {
            dialog.note = Some("nothing here is owned by a scheduler or a service".to_owned());
        }
        KeyAction::PlanAgain => return request_plan(app),
        _ => return None,
    }
    Some(Effect::Draw)
}

/// The next scope, `steps` on.
fn turn(app: &mut App, steps: usize) -> Option<Effect> {
    let dialog = app.reaping.dialog.as_mut()?;
    if !dialog.selected.is_empty() {
        let rows = || dialog.selected.clone();
        let scopes =
            [PlanScope::Processes(rows()), PlanScope::Families(rows()), PlanScope::Findings];
        let at = scopes.iter().position(|it| *it == dialog.options.scope);
        let next = (at.unwrap_or(0) + steps) % scopes.len();
        dialog.options.scope = scopes[next].clone();
    } else {
        dialog.options.scope = PlanScope::Findings;
    }
    request_plan(app)
}

fn on_signals(app: &mut App, action: KeyAction) -> Option<Effect> {
    let dialog = app.reaping.dialog.as_mut()?;
    let at = dialog.signals?;
    let last = Signal::ASKED.len();
    match action {
        KeyAction::Back | KeyAction::ChooseSignal => dialog.signals = None,
        KeyAction::Open => {
            dialog.options.signal = at.checked_sub(1).map(|at| Signal::ASKED[at]);
            return request_plan(app);
        }
        KeyAction::Down => dialog.signals = Some((at + 1).min(last)),
        KeyAction::Up => dialog.signals = Some(at.saturating_sub(1)),
        KeyAction::First => dialog.signals = Some(0),
        KeyAction::Last => dialog.signals = Some(last),
        _ => return None,
    }
    Some(Effect::Draw)
}

fn on_batch(app: &mut App, action: KeyAction) -> Option<Effect> {
    if scroll(app, action) {
        return Some(Effect::Draw);
    }
    let is_running = app.reaping.is_running();
    match action {
        KeyAction::Undo if is_running => {
            let batch = app.reaping.batch.as_mut()?;
            batch.is_stopping = true;
            let number = batch.number;
            Some(Effect::Reclaim(ReclaimRequest::Stop { number }))
        }
        KeyAction::Back | KeyAction::Open => close(app),
        _ => None,
    }
}

/// Leaves the plan, or what is carried out, which goes on all the same.
fn close(app: &mut App) -> Option<Effect> {
    app.mode = Mode::Main;
    if !app.reaping.is_running() {
        app.reaping.batch = None;
    }
    let was_fast = app.reaping.dialog.take().is_some_and(|it| it.is_fast);
    Some(match was_fast {
        true => Effect::Control(Control::Fast(false)),
        false => Effect::Draw,
    })
}

/// Scrolls, if the action does that.
fn scroll(app: &mut App, action: KeyAction) -> bool {
    let Some(dialog) = lay_out(app, app.area) else {
        return false;
    };
    let (last, page) = (dialog.last_offset(), usize::from(dialog.areas.body.height).max(1));
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
