//! Ending processes, key by key, with made-up news.

use crossterm::event::KeyModifiers;

use super::*;
use crate::model::Time;
use crate::reclaim::plan::Why;
use crate::reclaim::target::Step;
use crate::reclaim::{Outcome, Plan, Refused};
use crate::rules::{Engine, Settings};
use crate::units::GIB;
use crate::watch::app::{Event, Me, Setup, update};
use crate::watch::hand::Stage;
use crate::watch::keys::{self, Context, Key};
use crate::watch::sample::{self, proposal, target};
use crate::watch::view::look::Depth;

/// A screen that has seen two processes on a GPU.
fn showing(replay: Option<&str>) -> App {
    let setup = Setup {
        replay: replay.map(str::to_owned),
        version: "0.1.0",
        me: Me::default(),
        depth: Depth::Mono,
        ascii: false,
    };
    let engine = Engine::new(Settings::default());
    let mut app = App::new(setup, engine, Duration::from_secs(2), 80, 24);
    see(&mut app, 1, sample::snapshot(1, 2));
    app
}

fn see(app: &mut App, seconds: u64, snapshot: Snapshot) -> Option<Effect> {
    update(
        app,
        Event::Snapshot {
            now: Duration::from_secs(seconds),
            snapshot: Box::new(snapshot),
            is_passing: false,
        },
    )
}

/// The sample of so many seconds after the first.
fn later(seconds: f64) -> Snapshot {
    let mut snapshot = sample::snapshot(1, 2);
    snapshot.time = snapshot.time.plus_seconds(seconds);
    snapshot
}

fn tick(app: &mut App, milliseconds: u64) -> Option<Effect> {
    let now = Duration::from_millis(milliseconds);
    update(app, Event::Tick { now })
}

fn press(app: &mut App, code: KeyCode) -> Option<Effect> {
    update(app, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn char(app: &mut App, key: char) -> Option<Effect> {
    press(app, KeyCode::Char(key))
}

fn hear(app: &mut App, news: News) -> Option<Effect> {
    update(app, Event::Hand(news))
}

fn draw(app: &mut App) {
    assert_eq!(update(app, Event::Drawn), None);
}

/// What is asked for by an effect.
fn asked(effect: Option<Effect>) -> Box<Question> {
    match effect {
        Some(Effect::Hand(Ask::Plan(question))) => question,
        other => panic!("no plan is asked for: {other:?}"),
    }
}

/// Opens the plan of the first row, which has come, and is on the screen.
fn planned(app: &mut App, targets: Vec<Target>) -> u64 {
    char(app, 'j');
    let number = asked(char(app, 'x')).number;
    let plan = Ok(proposal(targets));
    assert_eq!(
        hear(app, News::Planned { number, plan }),
        Some(Effect::Draw)
    );
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
        matches!(effect, Some(Effect::Hand(Ask::Begin { number: of, .. })) if of == number),
        "{effect:?}"
    );
    number
}

fn dialog(app: &App) -> &Dialog {
    app.reaping.dialog.as_ref().unwrap()
}

#[test]
fn a_yes_begins_the_very_plan_that_is_shown_after_the_time_to_undo() {
    let mut app = showing(None);
    let number = planned(&mut app, vec![target(sample::pid(0, 1))]);
    let shown = Arc::clone(&dialog(&app).proposal().unwrap().plan);
    assert_eq!(char(&mut app, 'y'), Some(Effect::Draw));
    // Keys do not tell the time: the next tick does, at once.
    assert_eq!(app.next_tick(), Some(Duration::ZERO));
    assert_eq!(tick(&mut app, 5_500), Some(Effect::Draw));
    for (next, until) in [(6_500, 6_400), (7_500, 7_499), (8_500, 8_499)] {
        assert_eq!(next_tick(&app), Some(Duration::from_millis(next)));
        assert_eq!(tick(&mut app, until), Some(Effect::Draw), "{until}");
        tick(&mut app, next.min(8_499));
    }
    let plan = match tick(&mut app, 8_500) {
        Some(Effect::Hand(Ask::Begin { number: of, plan })) if of == number => plan,
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&plan, &shown));
    assert!(app.reaping.dialog.is_none() && is_running(&app));
}

#[test]
fn a_yes_can_be_taken_back_and_nothing_was_sent() {
    for key in [
        KeyCode::Char('u'),
        KeyCode::Char('n'),
        KeyCode::Char('q'),
        KeyCode::Esc,
    ] {
        let mut app = showing(None);
        planned(&mut app, vec![target(7)]);
        char(&mut app, 'y');
        tick(&mut app, 2_000);
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        let note = dialog(&app).note.as_deref();
        assert_eq!(note, Some("undone: nothing was sent"));
        assert_eq!(dialog(&app).countdown, None);
        for at in [5_000, 6_000, 60_000] {
            assert!(!matches!(tick(&mut app, at), Some(Effect::Hand(_))));
        }
        assert!(app.reaping.batch.is_none());
    }
}

#[test]
fn a_second_yes_begins_at_once_but_a_key_held_down_does_not() {
    let mut app = showing(None);
    planned(&mut app, vec![target(7)]);
    for _ in 0..20 {
        assert!(!matches!(char(&mut app, 'y'), Some(Effect::Hand(_))));
    }
    tick(&mut app, 2_000);
    for second in [3_000, 4_000] {
        for _ in 0..20 {
            assert_eq!(char(&mut app, 'y'), None, "held down");
        }
        tick(&mut app, second);
    }
    press(&mut app, KeyCode::Esc);
    assert!(app.reaping.batch.is_none());

    char(&mut app, 'y');
    tick(&mut app, 12_000);
    tick(&mut app, 13_000);
    let effect = press(&mut app, KeyCode::Enter);
    assert!(matches!(effect, Some(Effect::Hand(Ask::Begin { .. }))));
}

/// A yes whose countdown runs to 5 s after the start.
fn counting(app: &mut App) {
    planned(app, vec![target(7)]);
    char(app, 'y');
    tick(app, 2_000);
}

/// That the yes is void, for a reason that is told, and that nothing comes of it later.
fn is_void(app: &mut App, reason: &str) {
    assert_eq!(dialog(app).countdown, None, "{reason}");
    let note = dialog(app).note.clone().unwrap();
    assert_eq!(note, format!("undone: {reason}; nothing was sent"));
    for at in [5_000, 6_000, 60_000, 4_000_000] {
        assert!(!matches!(tick(app, at), Some(Effect::Hand(_))), "{reason}");
    }
}

#[test]
fn a_yes_whose_countdown_is_not_seen_is_void() {
    let mut app = showing(None);
    counting(&mut app);
    update(&mut app, Event::Resize(20, 5));
    // Nor does it count that the screen is large again.
    update(&mut app, Event::Resize(80, 24));
    is_void(&mut app, "the plan went out of sight");

    let mut app = showing(None);
    counting(&mut app);
    char(&mut app, '?');
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.mode, Mode::Plan);
    is_void(&mut app, "the plan went out of sight");
}

#[test]
fn a_yes_is_void_where_time_is_missing() {
    let mut app = showing(None);
    counting(&mut app);
    let effect = update(&mut app, Event::Signal(signal_hook::consts::SIGTSTP));
    assert_eq!(effect, Some(Effect::Stop));
    update(&mut app, Event::Signal(signal_hook::consts::SIGCONT));
    is_void(&mut app, "gpumem was suspended");

    // Stopped by SIGSTOP, which nobody is told of, or held up by a terminal that takes nothing: a tick
    // that comes much too late, with or without a sample before it.
    for has_sample in [false, true] {
        let mut app = showing(None);
        counting(&mut app);
        if has_sample {
            see(&mut app, 3_600, later(3_600.0));
        }
        assert_eq!(tick(&mut app, 3_600_000), Some(Effect::Draw));
        is_void(&mut app, "the screen stood still meanwhile");
    }
}

#[test]
fn a_plan_that_is_old_takes_no_yes_and_is_made_anew() {
    let mut app = showing(None);
    let number = planned(&mut app, vec![target(7)]);
    see(&mut app, 300, later(299.0));
    draw(&mut app);
    char(&mut app, 'y');
    assert!(dialog(&app).countdown.is_some(), "old, but not too old");
    char(&mut app, 'u');
    // The machine slept: its clock went on, and that of the screen did not.
    see(&mut app, 301, later(30_000.0));
    draw(&mut app);
    let question = asked(char(&mut app, 'y'));
    assert_eq!(
        (question.number, question.snapshot.time),
        (number + 1, later(30_000.0).time)
    );
    assert_eq!(dialog(&app).countdown, None);
    assert!(dialog(&app).note.as_ref().unwrap().contains("8h"));
    let (number, plan) = (question.number, Ok(proposal(vec![target(7)])));
    hear(&mut app, News::Planned { number, plan });
    assert_eq!(char(&mut app, 'y'), None, "the new one was not drawn");
    draw(&mut app);
    char(&mut app, 'y');
    assert!(dialog(&app).countdown.is_some());
}

#[test]
fn a_plan_that_came_late_is_as_old_as_its_question() {
    let mut app = showing(None);
    char(&mut app, 'j');
    let number = asked(char(&mut app, 'x')).number;
    // /proc hung for an hour.
    see(&mut app, 3_600, later(3_600.0));
    let plan = Ok(proposal(vec![target(7)]));
    hear(&mut app, News::Planned { number, plan });
    draw(&mut app);
    assert_eq!(asked(char(&mut app, 'y')).number, number + 1);
}

#[test]
fn what_is_carried_out_is_told_of_now_whatever_time_is_shown() {
    let mut app = showing(None);
    see(&mut app, 1, later(2.0));
    let number = begun(&mut app);
    hear(&mut app, News::Begun { number });
    press(&mut app, KeyCode::Esc);
    char(&mut app, '[');
    assert_eq!(app.picture.as_ref().unwrap().snapshot.time, later(0.0).time);
    let mut newest = later(4.0);
    sample::entry(&mut newest, 0, 1).used_bytes = Some(2 * GIB);
    let effect = see(&mut app, 5, newest);
    assert!(
        matches!(&effect, Some(Effect::Hand(Ask::Look(sight))) if sight.snapshot.time == later(4.0).time),
        "{effect:?}"
    );
    let batch = app.reaping.batch.as_ref().unwrap();
    assert_eq!(batch.targets[0].held_bytes, Some(2 * GIB));
    let until = later(10.0).time;
    let stage = Stage::Waiting { until };
    let place = 0;
    hear(
        &mut app,
        News::Target {
            number,
            place,
            stage,
        },
    );
    assert_eq!(hint(&app).unwrap(), "ending 1 of 2, 6s");
}

#[test]
fn what_is_carried_out_can_be_undone_and_stopped() {
    let mut app = showing(None);
    let number = begun(&mut app);
    hear(&mut app, News::Begun { number });
    let stop = Some(Effect::Hand(Ask::Stop { number }));
    assert_eq!(char(&mut app, 'u'), stop);
    let batch = app.reaping.batch.as_ref().unwrap();
    assert_eq!(batch.summary(), "0 B back from 0 of 2; stopping");
    assert!(is_running(&app), "not before the hand says so");
    let error = Some("undone: nothing was sent".to_owned());
    let effect = hear(&mut app, News::Over { number, error });
    assert_eq!(effect, Some(Effect::Control(Control::Hurry(false))));
    let batch = app.reaping.batch.as_ref().unwrap();
    assert!(batch.summary().ends_with("; undone: nothing was sent"));
    assert_eq!(char(&mut app, 'u'), None, "it is over");
}

#[test]
fn marks_go_with_the_plan_that_was_begun() {
    let mut app = showing(None);
    char(&mut app, 'j');
    char(&mut app, ' ');
    assert_eq!(app.tagged.len(), 1);
    begun(&mut app);
    assert!(app.tagged.is_empty(), "who is marked was dealt with");
    let mut app = showing(None);
    char(&mut app, 'j');
    char(&mut app, ' ');
    asked(char(&mut app, 'X'));
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.tagged.len(), 1, "nothing was begun");
}

#[test]
fn where_no_more_samples_come_nothing_is_waited_for_nor_begun() {
    let fail = |app: &mut App| update(app, Event::SourceFailed("the driver is gone".to_owned()));
    let mut app = showing(None);
    char(&mut app, 'j');
    app.engine.observe(&later(2.0));
    char(&mut app, 'x');
    assert_eq!(dialog(&app).answer, Answer::Waiting);
    fail(&mut app);
    assert_eq!(dialog(&app).answer, Answer::Failed(PAST.to_owned()));
    char(&mut app, 'r');
    assert_eq!(dialog(&app).answer, Answer::Failed(PAST.to_owned()));

    let mut app = showing(None);
    fail(&mut app);
    planned(&mut app, vec![target(7)]);
    char(&mut app, 'y');
    assert_eq!(dialog(&app).countdown, None);
    let note = dialog(&app).note.as_deref();
    assert_eq!(note, Some("nothing was sent: no more samples come"));
}

#[test]
fn what_is_typed_before_the_plan_is_seen_confirms_nothing() {
    let mut app = showing(None);
    char(&mut app, 'j');
    let number = asked(char(&mut app, 'x')).number;
    assert_eq!(char(&mut app, 'y'), None, "there is no plan");
    draw(&mut app);
    assert_eq!(char(&mut app, 'y'), None, "what was drawn was no plan");
    let plan = Ok(proposal(vec![target(7)]));
    hear(&mut app, News::Planned { number, plan });
    assert_eq!(char(&mut app, 'y'), None, "it was not drawn");
    draw(&mut app);
    assert_eq!(char(&mut app, 'y'), Some(Effect::Draw));
    assert!(dialog(&app).countdown.is_some());
}

#[test]
fn on_a_screen_that_is_too_small_to_show_it_nothing_is_confirmed() {
    let mut app = showing(None);
    planned(&mut app, vec![target(7)]);
    update(&mut app, Event::Resize(20, 5));
    draw(&mut app);
    assert_eq!(char(&mut app, 'y'), None);
    update(&mut app, Event::Resize(40, 10));
    draw(&mut app);
    assert_eq!(char(&mut app, 'y'), Some(Effect::Draw));
}

#[test]
fn enter_leaves_unless_somebody_went_to_the_other_button() {
    let mut app = showing(None);
    planned(&mut app, vec![target(7)]);
    assert_eq!(press(&mut app, KeyCode::Enter), Some(Effect::Draw));
    assert_eq!((&app.mode, &app.reaping.dialog), (&Mode::Main, &None));
    planned(&mut app, vec![target(7)]);
    press(&mut app, KeyCode::Right);
    press(&mut app, KeyCode::Enter);
    assert!(dialog(&app).countdown.is_some());
    for key in [KeyCode::Esc, KeyCode::Char('q'), KeyCode::Char('n')] {
        let mut app = showing(None);
        planned(&mut app, vec![target(7)]);
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        assert_eq!((&app.mode, &app.reaping.dialog), (&Mode::Main, &None));
    }
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
    let news = News::Planned {
        number: number - 1,
        plan: old.clone(),
    };
    assert_eq!(hear(&mut app, news), None);
    // Nor is a second answer.
    assert_eq!(hear(&mut app, News::Planned { number, plan: old }), None);
    assert_eq!(app.reaping, before);
    // Who asks for another one gets it, about the same process.
    let question = asked(char(&mut app, 'r'));
    assert_eq!(question.number, number + 1);
    assert_eq!(question.snapshot.time, later(2.0).time);
    let Scope::Processes(rows) = question.wish.scope else {
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
    hear(&mut app, News::Planned { number, plan });
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
    hear(&mut app, News::Planned { number, plan });
    draw(&mut app);
    assert_eq!(char(&mut app, 'y'), None);
    assert_eq!(
        dialog(&app).answer,
        Answer::Failed("cannot read /proc".to_owned())
    );
    let mut none = showing(None);
    char(&mut none, 'x');
    let note = none.note.as_deref().unwrap_or_default();
    assert!(note.starts_with("no process is selected"), "{note}");
    assert_eq!((&none.mode, none.reaping.dialog), (&Mode::Main, None));
}

#[test]
fn the_scope_turns_and_another_signal_is_chosen_and_planned_anew() {
    let mut app = showing(None);
    let number = planned(&mut app, vec![target(7)]);
    let scopes: Vec<Scope> = (0..3)
        .map(|_| asked(press(&mut app, KeyCode::Tab)).wish.scope)
        .collect();
    assert!(
        matches!(
            &scopes[..],
            [Scope::Families(_), Scope::Findings, Scope::Processes(_)]
        ),
        "{scopes:?}"
    );
    let back = asked(press(&mut app, KeyCode::BackTab));
    assert_eq!(
        (back.wish.scope, back.number),
        (Scope::Findings, number + 4)
    );
    assert!(asked(char(&mut app, 'a')).wish.all_users);
    char(&mut app, 'd');
    assert!(!dialog(&app).wish.direct && dialog(&app).note.is_some());
    char(&mut app, 's');
    char(&mut app, 'j');
    char(&mut app, 'j');
    assert_eq!(dialog(&app).signals, Some(2));
    let question = asked(press(&mut app, KeyCode::Enter));
    assert_eq!(question.wish.signal, Some(Signal::Int));
    assert!(question.wish.all_users);
    char(&mut app, 's');
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Effect::Draw));
    assert_eq!(dialog(&app).wish.signal, Some(Signal::Int), "as it was");
    press(&mut app, KeyCode::F(9));
    char(&mut app, 'g');
    let question = asked(press(&mut app, KeyCode::Enter));
    assert_eq!(question.wish.signal, None);
}

#[test]
fn what_somebody_else_owns_is_signalled_only_where_that_is_asked_for() {
    let mut app = showing(None);
    let mut owned = target(7);
    owned.steps = vec![Step::Advise {
        command: "scancel 7".into(),
    }];
    planned(&mut app, vec![owned]);
    char(&mut app, 'y');
    assert_eq!(dialog(&app).countdown, None);
    assert!(asked(char(&mut app, 'd')).wish.direct);
    assert!(!asked(char(&mut app, 'd')).wish.direct);
}

#[test]
fn marked_processes_are_meant_together_and_findings_are_asked_for_by_x() {
    let mut app = showing(None);
    for _ in 0..3 {
        char(&mut app, ' ');
    }
    let Scope::Processes(rows) = asked(char(&mut app, 'x')).wish.scope else {
        panic!("another scope");
    };
    let pids: Vec<u32> = rows.iter().map(|row| row.identity.pid).collect();
    assert_eq!(pids, [sample::pid(0, 0), sample::pid(0, 1)]);
    press(&mut app, KeyCode::Esc);
    let question = asked(char(&mut app, 'X'));
    assert_eq!(question.wish.scope, Scope::Findings);
}

#[test]
fn on_a_sample_of_the_past_the_next_one_is_waited_for() {
    let mut app = showing(None);
    char(&mut app, 'j');
    // The screen shows what was; the engine has seen more.
    app.engine.observe(&later(2.0));
    let effect = char(&mut app, 'x');
    assert_eq!(effect, Some(Effect::Control(Control::Hurry(true))));
    assert_eq!(dialog(&app).answer, Answer::Waiting);
    let question = asked(see(&mut app, 3, later(4.0)));
    assert_eq!(question.snapshot.time, later(4.0).time);
    let number = question.number;
    let plan = Ok(proposal(vec![target(7)]));
    let effect = hear(&mut app, News::Planned { number, plan });
    assert_eq!(effect, Some(Effect::Control(Control::Hurry(false))));
    press(&mut app, KeyCode::Esc);
    app.engine.observe(&later(6.0));
    char(&mut app, 'x');
    let effect = press(&mut app, KeyCode::Esc);
    assert_eq!(effect, Some(Effect::Control(Control::Hurry(false))));
}

#[test]
fn of_a_recording_what_is_shown_is_planned_and_nothing_is_sent() {
    let mut app = showing(Some("demo"));
    app.engine.observe(&later(2.0));
    char(&mut app, 'j');
    let question = asked(char(&mut app, 'x'));
    assert_eq!(question.snapshot.time, later(0.0).time);
    let number = question.number;
    let plan = Ok(proposal(vec![target(7)]));
    hear(&mut app, News::Planned { number, plan });
    draw(&mut app);
    for _ in 0..3 {
        assert_eq!(char(&mut app, 'y'), Some(Effect::Draw));
    }
    assert!(dialog(&app).countdown.is_none());
    assert!(
        dialog(&app)
            .note
            .as_ref()
            .unwrap()
            .contains("nothing was sent")
    );
}

#[test]
fn what_is_carried_out_is_looked_at_with_every_sample_and_told() {
    let mut app = showing(None);
    let number = begun(&mut app);
    let effect = hear(&mut app, News::Begun { number });
    assert_eq!(effect, Some(Effect::Control(Control::Hurry(true))));
    let effect = see(&mut app, 5, later(2.0));
    assert!(
        matches!(&effect, Some(Effect::Hand(Ask::Look(sight))) if sight.snapshot.time == later(2.0).time),
        "{effect:?}"
    );
    let words = "SIGTERM to 4001".to_owned();
    let sent = News::Sent {
        number,
        place: 0,
        words,
    };
    assert_eq!(hear(&mut app, sent), Some(Effect::Draw));
    let stage = Stage::Waiting {
        until: later(12.0).time,
    };
    let waiting = News::Target {
        number,
        place: 0,
        stage,
    };
    assert_eq!(hear(&mut app, waiting), Some(Effect::Draw));
    assert_eq!(app.next_tick(), Some(Duration::from_secs(6)));
    tick(&mut app, 8_000);
    let text = app.reaping.batch.as_ref().unwrap().lines(app.clock());
    assert_eq!(
        text,
        [
            "4001 ann: 6.0 GiB: python",
            "    done: SIGTERM to 4001",
            "    waiting for it, 7s left; 0 B of 6.0 GiB back",
            "7 ann: 6.0 GiB: python",
            "    its turn is to come",
        ]
    );
    // It goes on behind the table, and x comes back to it.
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Effect::Draw));
    assert_eq!(app.mode, Mode::Main);
    assert_eq!(hint(&app).unwrap(), "ending 1 of 2: SIGTERM to 4001, 7s");
    assert_eq!(char(&mut app, 'x'), Some(Effect::Draw));
    assert_eq!((&app.mode, &app.reaping.dialog), (&Mode::Plan, &None));
    press(&mut app, KeyCode::Esc);

    for (place, outcome) in [
        (
            0,
            Outcome::Freed {
                bytes: 6 * GIB,
                ms: 300,
            },
        ),
        (1, Outcome::RuleNoLongerTrue),
    ] {
        let words = outcome.to_string();
        let stage = Stage::Ended { outcome, words };
        let news = News::Target {
            number,
            place,
            stage,
        };
        hear(&mut app, news);
    }
    let effect = hear(
        &mut app,
        News::Over {
            number,
            error: None,
        },
    );
    assert_eq!(effect, Some(Effect::Control(Control::Hurry(false))));
    assert_eq!(hint(&app).unwrap(), "over: 6.0 GiB back from 1 of 2 (x)");
    assert_eq!(see(&mut app, 9, later(8.0)), Some(Effect::Draw));
    char(&mut app, 'x');
    assert_eq!(app.mode, Mode::Plan);
    press(&mut app, KeyCode::Esc);
    assert_eq!((hint(&app), &app.reaping.batch), (None, &None));
    asked(char(&mut app, 'x'));
}

#[test]
fn one_that_does_not_begin_says_why_and_leaves_the_rest() {
    let mut app = showing(None);
    let number = begun(&mut app);
    let error = Some("nothing was sent: another reaper is at work".to_owned());
    let stranger = News::Over {
        number: number + 1,
        error: None,
    };
    assert_eq!(hear(&mut app, stranger), None);
    hear(&mut app, News::Over { number, error });
    assert!(!is_running(&app));
    let batch = app.reaping.batch.as_ref().unwrap();
    assert!(batch.summary().ends_with("another reaper is at work"));
    assert_eq!(batch.lines(None)[1], "    left as it is");
    assert_eq!(press(&mut app, KeyCode::Enter), Some(Effect::Draw));
    assert_eq!((&app.mode, &app.reaping.batch), (&Mode::Main, &None));
}

#[test]
fn what_nvml_does_not_say_is_not_said_to_be_back() {
    let mut app = showing(None);
    begun(&mut app);
    let back = |app: &App| app.reaping.batch.as_ref().unwrap().targets[0].held_bytes;
    let mut snapshot = later(2.0);
    // The member's start ticks are 1, as is the sample's second process's.
    sample::entry(&mut snapshot, 0, 1).used_bytes = Some(2 * GIB);
    see(&mut app, 5, snapshot.clone());
    assert_eq!(back(&app), Some(2 * GIB));
    snapshot.time = later(4.0).time;
    snapshot.gpus[0].stale_seconds = Some(4.0);
    see(&mut app, 6, snapshot);
    assert_eq!(back(&app), None, "the driver hangs");
    let mut stranger = later(6.0);
    stranger.processes[1].start_ticks = Some(99);
    see(&mut app, 7, stranger);
    assert_eq!(back(&app), Some(0), "the number is another's");
    let mut lost = later(8.0);
    sample::lose(&mut lost, 0);
    see(&mut app, 8, lost);
    assert_eq!(back(&app), None);
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
    hear(&mut app, News::Planned { number, plan });
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

#[test]
fn the_keys_of_a_plan_are_those_of_its_table() {
    let shown = || {
        let mut app = showing(None);
        planned(&mut app, vec![target(7)]);
        app
    };
    let own: Vec<Key> = keys_of(Context::Plan).collect();
    for &key in &own {
        let mut counting = shown();
        char(&mut counting, 'y');
        let effects = [shown(), counting].map(|mut app| update(&mut app, Event::Key(key.event())));
        let does = effects.iter().any(Option::is_some);
        assert!(does, "{key:?} is in the help and does nothing");
    }
    for key in keys_of(Context::Main).filter(|key| !own.contains(key)) {
        let effect = update(&mut shown(), Event::Key(key.event()));
        let action = keys::action(Context::Main, &key.event()).unwrap();
        let scrolls = matches!(
            action,
            Action::PageDown | Action::PageUp | Action::First | Action::Last
        );
        let is_everywhere = matches!(
            action,
            Action::Help | Action::Repaint | Action::Suspend | Action::QuitAtOnce
        );
        assert_eq!(effect.is_some(), scrolls || is_everywhere, "{key:?}");
    }
}

fn keys_of(context: Context) -> impl Iterator<Item = Key> {
    keys::table(context).flat_map(|it| it.keys).copied()
}
