//! Ending processes, key by key, with made-up news.

use crossterm::event::KeyModifiers;

use super::*;
use crate::reclaim::plan::Why;
use crate::reclaim::target::Step;
use crate::reclaim::{Outcome, Plan, Refused};
use crate::units::GIB;
use crate::watch::reclaim_worker::TargetStage;
use crate::watch::sample::{self, proposal, target};
use crate::watch::state::Event;
use crate::watch::testing::{press, screen_of, see, tick};
use crate::watch::update::update;

mod batch;
mod countdown;

/// A screen that has seen two processes on a GPU.
fn showing(replay: Option<&str>) -> App {
    let mut app = screen_of(replay, 2, (80, 24));
    app.setup.has_color = false;
    see(&mut app, 1, sample::snapshot(1, 2));
    app
}

/// The sample of so many seconds after the first.
fn later(seconds: f64) -> Snapshot {
    let mut snapshot = sample::snapshot(1, 2);
    snapshot.time = snapshot.time.plus_seconds(seconds);
    snapshot
}

fn char(app: &mut App, key: char) -> Option<Effect> {
    press(app, KeyCode::Char(key))
}

fn on_progress(app: &mut App, progress: ReclaimProgress) -> Option<Effect> {
    update(app, Event::Reclaim(progress))
}

fn draw(app: &mut App) {
    assert_eq!(update(app, Event::Drawn), None);
}

/// What is asked for by an effect.
fn asked(effect: Option<Effect>) -> Box<PlanRequest> {
    match effect {
        Some(Effect::Reclaim(ReclaimRequest::Plan(question))) => question,
        other => panic!("no plan is asked for: {other:?}"),
    }
}

/// Opens the plan of the first row, which has come, and is on the screen.
fn planned(app: &mut App, targets: Vec<Target>) -> u64 {
    char(app, 'j');
    let number = asked(char(app, 'x')).number;
    let plan = Ok(proposal(targets));
    assert_eq!(on_progress(app, ReclaimProgress::Planned { number, plan }), Some(Effect::Draw));
    draw(app);
    number
}

/// As [`planned`], and a yes that was not taken back.
fn begun(app: &mut App) -> u64 {
    let number = planned(app, vec![target(sample::pid(0, 1)), target(7)]);
    char(app, 'y');
    tick(app, 1_100);
    let effect = tick(app, 4_100);
    assert!(
        matches!(effect, Some(Effect::Reclaim(ReclaimRequest::Begin { number: of, .. })) if of == number),
        "{effect:?}"
    );
    number
}

fn dialog(app: &App) -> &Dialog {
    app.reaping.dialog.as_ref().unwrap()
}

#[test]
fn where_no_more_samples_come_nothing_is_begun() {
    let mut app = showing(None);
    update(&mut app, Event::SourceFailed("the driver is gone".to_owned()));
    planned(&mut app, vec![target(7)]);
    char(&mut app, 'y');
    assert_eq!(dialog(&app).countdown, None);
    let note = dialog(&app).note.as_deref();
    assert_eq!(note, Some("nothing was sent: no more samples come"));
}

#[test]
fn whatever_time_is_shown_the_plan_is_of_the_newest_sample() {
    let mut app = showing(None);
    see(&mut app, 3, later(2.0));
    char(&mut app, 'j');
    char(&mut app, '[');
    see(&mut app, 5, later(4.0));
    assert_eq!(app.shown_time(), Some(later(0.0).time));
    let question = asked(char(&mut app, 'x'));
    assert_eq!(question.snapshot.time, later(4.0).time);
    assert_eq!(*question.snapshot, later(4.0));
}

#[test]
fn a_plan_never_changes_by_itself() {
    let mut app = showing(None);
    let number = planned(&mut app, vec![target(7)]);
    let before = app.reaping.clone();
    // A newer sample, in which its process is gone, is no reason for another plan.
    let mut gone = later(2.0);
    gone.gpus[0].processes = Some(Vec::new());
    gone.processes.clear();
    assert_eq!(see(&mut app, 3, gone), Some(Effect::Draw));
    update(&mut app, Event::Resize(100, 40));
    // An answer to a question of before is none to this.
    let old = Ok(proposal(vec![target(8)]));
    let progress = ReclaimProgress::Planned { number: number - 1, plan: old.clone() };
    assert_eq!(on_progress(&mut app, progress), None);
    // Nor is a second answer.
    assert_eq!(on_progress(&mut app, ReclaimProgress::Planned { number, plan: old }), None);
    assert_eq!(app.reaping, before);
    // Who asks for another one gets it, about the same process.
    let question = asked(char(&mut app, 'r'));
    assert_eq!(question.number, number + 1);
    assert_eq!(question.snapshot.time, later(2.0).time);
    let PlanScope::Processes(rows) = question.options.scope else {
        panic!("another scope");
    };
    assert_eq!(rows[0].identity.pid, sample::pid(0, 1));
    let plan = Ok(Proposal {
        plan: Arc::new(Plan {
            time: Time::default(),
            targets: Vec::new(),
            refused: vec![Refused {
                pid: Some(rows[0].identity.pid),
                user: None,
                name: None,
                finding: None,
                kind: None,
                why: Why::Gone,
            }],
        }),
        ..proposal(Vec::new())
    });
    let number = question.number;
    on_progress(&mut app, ReclaimProgress::Planned { number, plan });
    draw(&mut app);
    char(&mut app, 'y');
    assert_eq!(dialog(&app).countdown, None, "nobody is left to end");
    assert!(dialog(&app).note.is_some());
}

#[test]
fn an_error_is_shown_and_takes_no_yes() {
    let mut app = showing(None);
    char(&mut app, 'j');
    let number = asked(char(&mut app, 'x')).number;
    let plan = Err("cannot read /proc".to_owned());
    on_progress(&mut app, ReclaimProgress::Planned { number, plan });
    draw(&mut app);
    assert_eq!(char(&mut app, 'y'), None);
    assert_eq!(dialog(&app).answer, Answer::Failed("cannot read /proc".to_owned()));
    let mut none = showing(None);
    char(&mut none, 'x');
    let note = none.note.as_deref().unwrap_or_default();
    assert!(note.starts_with("no process is selected"), "{note}");
    assert_eq!((&none.mode, none.reaping.dialog), (&Mode::Main, None));
}

#[test]
fn the_scope_and_the_signal_turn_and_are_planned_anew() {
    let mut app = showing(None);
    let number = planned(&mut app, vec![target(7)]);
    let scopes: Vec<PlanScope> =
        (0..3).map(|_| asked(press(&mut app, KeyCode::Tab)).options.scope).collect();
    assert!(
        matches!(
            &scopes[..],
            [PlanScope::Families(_), PlanScope::Findings, PlanScope::Processes(_)]
        ),
        "{scopes:?}"
    );
    let back = asked(press(&mut app, KeyCode::BackTab));
    assert_eq!((back.options.scope, back.number), (PlanScope::Findings, number + 4));
    assert!(asked(char(&mut app, 'a')).options.all_users);
    char(&mut app, 'd');
    assert!(!dialog(&app).options.direct && dialog(&app).note.is_some());
    let mut signals = || asked(char(&mut app, 's')).options;
    let first = signals();
    assert_eq!((first.signal, first.all_users), (Some(Signal::Term), true));
    let rest: Vec<Option<Signal>> = (0..Signal::ASKED.len()).map(|_| signals().signal).collect();
    assert_eq!(rest[0], Some(Signal::Int));
    assert_eq!(rest.last(), Some(&None), "and again from the beginning");
}

#[test]
fn what_somebody_else_owns_is_signalled_only_where_that_is_asked_for() {
    let mut app = showing(None);
    let mut owned = target(7);
    owned.steps = vec![Step::Advise { command: "scancel 7".into() }];
    planned(&mut app, vec![owned]);
    char(&mut app, 'y');
    assert_eq!(dialog(&app).countdown, None);
    assert!(asked(char(&mut app, 'd')).options.direct);
    assert!(!asked(char(&mut app, 'd')).options.direct);
}

#[test]
fn marked_processes_are_meant_together_and_findings_are_asked_for_by_x() {
    let mut app = showing(None);
    for _ in 0..2 {
        char(&mut app, ' ');
    }
    let PlanScope::Processes(rows) = asked(char(&mut app, 'x')).options.scope else {
        panic!("another scope");
    };
    let pids: Vec<u32> = rows.iter().map(|row| row.identity.pid).collect();
    assert_eq!(pids, [sample::pid(0, 0), sample::pid(0, 1)]);
    press(&mut app, KeyCode::Esc);
    let question = asked(char(&mut app, 'X'));
    assert_eq!(question.options.scope, PlanScope::Findings);
}

#[test]
fn of_a_recording_what_is_shown_is_planned_and_nothing_is_sent() {
    let mut app = showing(Some("demo"));
    app.judged.engine.observe(&later(2.0));
    char(&mut app, 'j');
    let question = asked(char(&mut app, 'x'));
    assert_eq!(question.snapshot.time, later(0.0).time);
    let number = question.number;
    let plan = Ok(proposal(vec![target(7)]));
    on_progress(&mut app, ReclaimProgress::Planned { number, plan });
    draw(&mut app);
    for _ in 0..3 {
        assert_eq!(char(&mut app, 'y'), Some(Effect::Draw));
    }
    assert!(dialog(&app).countdown.is_none());
    assert!(dialog(&app).note.as_ref().unwrap().contains("nothing was sent"));
}

#[test]
fn a_long_plan_scrolls_to_its_end_and_no_further() {
    let mut app = showing(None);
    let number = planned(&mut app, vec![target(7)]);
    let mut long = proposal(vec![target(7)]);
    long.lines = (0..100).map(|at| format!("line {at}")).collect();
    char(&mut app, 'r');
    let plan = Ok(long);
    let number = number + 1;
    on_progress(&mut app, ReclaimProgress::Planned { number, plan });
    draw(&mut app);
    press(&mut app, KeyCode::End);
    let end = dialog(&app).offset;
    assert!(end > 70, "{end}");
    char(&mut app, 'j');
    press(&mut app, KeyCode::PageDown);
    assert_eq!(dialog(&app).offset, end);
    char(&mut app, 'k');
    assert_eq!(dialog(&app).offset, end - 1);
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::PageUp);
    assert_eq!(dialog(&app).offset, 0);
    char(&mut app, 'y');
    assert!(dialog(&app).countdown.is_some());
}
