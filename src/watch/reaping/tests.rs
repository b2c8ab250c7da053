//! Tests of the keys for plans and batches. The tests simulate the worker's progress.

use super::*;
use crate::model::Time;
use crate::reclaim::plan::Why;
use crate::reclaim::target::Step;
use crate::reclaim::worker::{Proposal, TargetStage};
use crate::reclaim::{Outcome, Plan, Refused, Target};
use crate::units::GIB;
use crate::watch::sample::{self, proposal, target};
use crate::watch::state::Event;
use crate::watch::testing::{ctrl, keys, note, press, screen_of, show_sample, tick};
use crate::watch::update::update;

mod batch;
mod countdown;

fn app_with_sample(replay: Option<&str>) -> App {
    let mut app = screen_of(replay, 2, (80, 24));
    app.setup.has_color = false;
    show_sample(&mut app, 1, sample::snapshot(1, 2));
    app
}

fn later(seconds: f64) -> Snapshot {
    sample::later(1, 2, seconds)
}

fn on_progress(app: &mut App, progress: ReclaimProgress) -> Option<Effect> {
    update(app, Event::Reclaim(progress))
}

fn draw(app: &mut App) {
    assert_eq!(update(app, Event::Drawn), None);
}

fn request_plan_for(app: &mut App, line: &str) -> Box<PlanRequest> {
    match keys(app, line) {
        Some(Effect::Reclaim(ReclaimRequest::Plan(request))) => request,
        other => panic!("{line}: no plan was requested: {other:?}"),
    }
}

fn answer(app: &mut App, number: u64, proposal: Proposal) {
    let plan = Ok(proposal);
    assert_eq!(on_progress(app, ReclaimProgress::Planned { number, plan }), Some(Effect::Draw));
    draw(app);
}

fn show_plan(app: &mut App, targets: Vec<Target>) -> u64 {
    let number = request_plan_for(app, "gx").number;
    answer(app, number, proposal(targets));
    number
}

/// Shows and confirms a plan, and waits for the end of the countdown.
fn begin_plan(app: &mut App) -> u64 {
    let number = show_plan(app, vec![target(sample::pid(0, 1)), target(7)]);
    keys(app, "y");
    tick(app, 1_100);
    match tick(app, 4_100) {
        Some(Effect::Reclaim(ReclaimRequest::Begin { number: begun, .. })) if begun == number => {
            number
        }
        other => panic!("{other:?}"),
    }
}

fn dialog(app: &App) -> &Dialog {
    app.reaping.dialog.as_ref().unwrap()
}

fn dialog_note(app: &App) -> &str {
    dialog(app).note.as_deref().unwrap_or_default()
}

#[test]
fn a_plan_cannot_start_after_the_last_sample() {
    let mut app = app_with_sample(None);
    update(&mut app, Event::SourceFailed("the driver is gone".to_owned()));
    show_plan(&mut app, vec![target(7)]);
    keys(&mut app, "y");
    assert_eq!(dialog(&app).countdown, None);
    assert_eq!(dialog_note(&app), "nothing was sent: no more samples arrive");
}

#[test]
fn a_plan_uses_the_newest_sample_at_any_shown_time() {
    let mut app = app_with_sample(None);
    show_sample(&mut app, 3, later(2.0));
    keys(&mut app, "g[");
    show_sample(&mut app, 5, later(4.0));
    assert_eq!(app.shown_time(), Some(later(0.0).time));
    assert_eq!(*request_plan_for(&mut app, "x").snapshot, later(4.0));
}

#[test]
fn a_plan_never_changes_by_itself() {
    let mut app = app_with_sample(None);
    let number = show_plan(&mut app, vec![target(7)]);
    let before = app.reaping.clone();
    // A newer sample without the process does not change the plan.
    let mut gone = later(2.0);
    gone.gpus[0].processes = Some(Vec::new());
    gone.processes.clear();
    assert_eq!(show_sample(&mut app, 3, gone), Some(Effect::Draw));
    update(&mut app, Event::Resize(100, 40));
    // Answers to earlier requests and repeated answers are ignored.
    for number in [number - 1, number] {
        let plan = Ok(proposal(vec![target(8)]));
        assert_eq!(on_progress(&mut app, ReclaimProgress::Planned { number, plan }), None);
    }
    assert_eq!(app.reaping, before);
    let request = request_plan_for(&mut app, "r");
    assert_eq!(request.number, number + 1);
    assert_eq!(request.snapshot.time, later(2.0).time);
    let PlanScope::Processes(rows) = request.options.scope else { panic!("another scope") };
    let pid = Some(sample::pid(0, 1));
    assert_eq!(Some(rows[0].pid), pid);
    let (user, name, finding, kind, why) = (None, None, None, None, Why::Gone);
    let refused = vec![Refused { pid, user, name, finding, kind, why }];
    let plan = Arc::new(Plan { time: Time::default(), targets: Vec::new(), refused });
    answer(&mut app, request.number, Proposal { plan, ..proposal(Vec::new()) });
    keys(&mut app, "y");
    assert_eq!(dialog(&app).countdown, None, "no target is left");
    assert_ne!(dialog_note(&app), "");
}

#[test]
fn a_failed_plan_is_shown_and_cannot_be_confirmed() {
    let mut app = app_with_sample(None);
    let number = request_plan_for(&mut app, "gx").number;
    let plan = Err("cannot read /proc".to_owned());
    on_progress(&mut app, ReclaimProgress::Planned { number, plan });
    draw(&mut app);
    assert_eq!(keys(&mut app, "y"), None);
    assert_eq!(dialog(&app).answer, Answer::Failed("cannot read /proc".to_owned()));
    let mut none = app_with_sample(None);
    keys(&mut none, "/nothing<Enter>x");
    assert!(note(&none).starts_with("no process is selected"), "{}", note(&none));
    assert_eq!((&none.mode, none.reaping.dialog), (&Mode::Main, None));
}

#[test]
fn changing_scope_or_signal_requests_a_new_plan() {
    let mut app = app_with_sample(None);
    let number = show_plan(&mut app, vec![target(7)]);
    let mut scope = || request_plan_for(&mut app, "<Tab>").options.scope;
    assert!(matches!(scope(), PlanScope::Families(_)));
    assert!(matches!(scope(), PlanScope::Findings));
    assert!(matches!(scope(), PlanScope::Processes(_)));
    let back = request_plan_for(&mut app, "<BackTab>");
    assert_eq!((back.options.scope, back.number), (PlanScope::Findings, number + 4));
    assert!(request_plan_for(&mut app, "a").options.all_users);
    keys(&mut app, "d");
    assert!(!dialog(&app).options.direct && !dialog_note(&app).is_empty());
    let mut signals = || request_plan_for(&mut app, "s").options;
    let first = signals();
    assert_eq!((first.signal, first.all_users), (Some(Signal::Term), true));
    let rest: Vec<Option<Signal>> = (0..Signal::ASKED.len()).map(|_| signals().signal).collect();
    assert_eq!(rest[0], Some(Signal::Int));
    assert_eq!(rest.last(), Some(&None), "then back to the default");
}

#[test]
fn an_owned_process_is_signalled_only_on_request() {
    let mut app = app_with_sample(None);
    let steps = vec![Step::Advise { command: "scancel 7".into() }];
    show_plan(&mut app, vec![Target { steps, ..target(7) }]);
    keys(&mut app, "y");
    assert_eq!(dialog(&app).countdown, None);
    assert!(request_plan_for(&mut app, "d").options.direct);
    assert!(!request_plan_for(&mut app, "d").options.direct);
}

#[test]
fn a_plan_covers_the_marked_processes_or_all_findings() {
    let mut app = app_with_sample(None);
    let scope = request_plan_for(&mut app, "  x").options.scope;
    let PlanScope::Processes(rows) = scope else { panic!("another scope") };
    let pids: Vec<u32> = rows.iter().map(|row| row.pid).collect();
    assert_eq!(pids, [sample::pid(0, 0), sample::pid(0, 1)]);
    assert_eq!(request_plan_for(&mut app, "<Esc>X").options.scope, PlanScope::Findings);
}

#[test]
fn a_plan_for_a_recording_uses_the_shown_time_and_sends_nothing() {
    let mut app = app_with_sample(Some("demo"));
    app.judged.engine.observe(&later(2.0));
    let request = request_plan_for(&mut app, "gx");
    assert_eq!(request.snapshot.time, later(0.0).time);
    answer(&mut app, request.number, proposal(vec![target(7)]));
    for _ in 0..3 {
        assert_eq!(keys(&mut app, "y"), Some(Effect::Draw));
    }
    assert!(dialog(&app).countdown.is_none());
    assert!(dialog_note(&app).contains("nothing was sent"));
}
