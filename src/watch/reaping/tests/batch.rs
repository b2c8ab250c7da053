//! Tests of the batch that carries out a plan, and of quitting during a batch.

use super::*;

#[test]
fn a_batch_can_be_undone_and_stopped() {
    let mut app = app_with_sample(None);
    let number = begin_plan(&mut app);
    on_progress(&mut app, ReclaimProgress::Begun { number });
    let stop = Some(Effect::Reclaim(ReclaimRequest::Stop { number }));
    assert_eq!(keys(&mut app, "u"), stop);
    let batch = app.reaping.batch.as_ref().unwrap();
    assert_eq!(batch.summary(), "freed 0 B; 0 of 2 done; stopping");
    assert!(app.reaping.is_running(), "until the worker confirms");
    let error = Some("undone: nothing was sent".to_owned());
    let effect = on_progress(&mut app, ReclaimProgress::Finished { number, error });
    assert_eq!(effect, Some(Effect::Control(Control::Fast(false))));
    let batch = app.reaping.batch.as_ref().unwrap();
    assert!(batch.summary().ends_with("; undone: nothing was sent"));
    assert_eq!(keys(&mut app, "u"), None, "it is over");
}

#[test]
fn starting_a_plan_clears_its_marks() {
    let mut app = app_with_sample(None);
    keys(&mut app, "g ");
    assert_eq!(app.table.tagged.len(), 1);
    begin_plan(&mut app);
    assert!(app.table.tagged.is_empty(), "the plan covered the marked process");
    let mut app = app_with_sample(None);
    keys(&mut app, "g ");
    request_plan_for(&mut app, "X");
    keys(&mut app, "<Esc>");
    assert_eq!(app.table.tagged.len(), 1, "no plan was started");
}

#[test]
fn a_running_plan_receives_every_sample_and_shows_progress() {
    let mut app = app_with_sample(None);
    let number = begin_plan(&mut app);
    let effect = on_progress(&mut app, ReclaimProgress::Begun { number });
    assert_eq!(effect, Some(Effect::Control(Control::Fast(true))));
    let effect = show_sample(&mut app, 5, later(2.0));
    assert!(
        matches!(&effect, Some(Effect::Reclaim(ReclaimRequest::Observe(sample))) if sample.snapshot.time == later(2.0).time),
        "{effect:?}"
    );
    let words = "SIGTERM to 4001".to_owned();
    let sent = ReclaimProgress::Sent { number, place: 0, words };
    assert_eq!(on_progress(&mut app, sent), Some(Effect::Draw));
    let stage = TargetStage::Waiting { until: later(12.0).time, saving: None };
    let waiting = ReclaimProgress::Target { number, place: 0, stage };
    assert_eq!(on_progress(&mut app, waiting), Some(Effect::Draw));
    assert_eq!(app.next_tick(), Some(Duration::from_secs(6)));
    tick(&mut app, 8_000);
    let text = app.reaping.batch.as_ref().unwrap().lines(app.judged.clock());
    assert_eq!(
        text,
        [
            "4001 ann: 6.0 GiB: python",
            "    done: SIGTERM to 4001",
            "    waiting for its memory, 7s left",
            "7 ann: 6.0 GiB: python",
            "    pending",
        ]
    );
    // The batch continues while the table shows another time. `x` shows the batch again.
    assert_eq!(keys(&mut app, "<Esc>"), Some(Effect::Draw));
    assert_eq!(app.mode, Mode::Main);
    keys(&mut app, "[");
    assert_eq!(app.shown_time(), Some(later(0.0).time));
    assert_eq!(app.batch_hint().unwrap(), "killing 1 of 2: SIGTERM to 4001, 7s");
    let effect = show_sample(&mut app, 8, later(5.0));
    assert!(
        matches!(&effect, Some(Effect::Reclaim(ReclaimRequest::Observe(sample))) if sample.snapshot.time == later(5.0).time),
        "{effect:?}"
    );
    keys(&mut app, "L");
    assert_eq!(keys(&mut app, "x"), Some(Effect::Draw));
    assert_eq!((&app.mode, &app.reaping.dialog), (&Mode::Plan, &None));
    keys(&mut app, "<Esc>");

    for (place, outcome) in
        [(0, Outcome::Freed { bytes: 6 * GIB, ms: 300 }), (1, Outcome::RuleNoLongerTrue)]
    {
        let words = outcome.to_string();
        let stage = TargetStage::Ended { outcome, words };
        let progress = ReclaimProgress::Target { number, place, stage };
        on_progress(&mut app, progress);
    }
    let effect = on_progress(&mut app, ReclaimProgress::Finished { number, error: None });
    assert_eq!(effect, Some(Effect::Control(Control::Fast(false))));
    assert_eq!(app.batch_hint().unwrap(), "done: freed 6.0 GiB; 1 of 2 succeeded (x)");
    assert_eq!(show_sample(&mut app, 9, later(8.0)), Some(Effect::Draw));
    keys(&mut app, "x");
    assert_eq!(app.mode, Mode::Plan);
    keys(&mut app, "<Esc>");
    assert_eq!((app.batch_hint(), &app.reaping.batch), (None, &None));
    request_plan_for(&mut app, "x");
}

#[test]
fn a_batch_that_cannot_start_gives_the_reason() {
    let mut app = app_with_sample(None);
    let number = begin_plan(&mut app);
    let error = Some("nothing was sent: another reaper is running".to_owned());
    let stranger = ReclaimProgress::Finished { number: number + 1, error: None };
    assert_eq!(on_progress(&mut app, stranger), None);
    on_progress(&mut app, ReclaimProgress::Finished { number, error });
    assert!(!app.reaping.is_running());
    let batch = app.reaping.batch.as_ref().unwrap();
    assert!(batch.summary().ends_with("another reaper is running"));
    assert_eq!(batch.lines(None)[1], "    nothing more is sent");
    assert_eq!(keys(&mut app, "<Enter>"), Some(Effect::Draw));
    assert_eq!((&app.mode, &app.reaping.batch), (&Mode::Main, &None));
}

fn app_with_hidden_batch() -> (App, u64) {
    let mut app = app_with_sample(None);
    let number = begin_plan(&mut app);
    on_progress(&mut app, ReclaimProgress::Begun { number });
    keys(&mut app, "<Esc>");
    assert_eq!(app.mode, Mode::Main);
    (app, number)
}

/// Checks that the key only warns about the running batch.
fn assert_quit_warning(app: &mut App, key: &str) {
    assert_eq!(keys(app, key), Some(Effect::Draw), "{key}");
    assert_eq!(note(app), STILL_ENDING, "{key}");
    assert!(app.reaping.is_running(), "the batch continues");
}

#[test]
fn quitting_during_a_batch_needs_a_second_key_press() {
    const QUIT: [&str; 3] = ["q", "Q", "<F10>"];
    for (first, second) in QUIT.iter().flat_map(|first| QUIT.map(|second| (first, second))) {
        let (mut app, _) = app_with_hidden_batch();
        assert_quit_warning(&mut app, first);
        assert_eq!(keys(&mut app, second), Some(Effect::Quit));
    }
    // Other events neither confirm the warning nor clear it.
    let (mut app, number) = app_with_hidden_batch();
    assert_quit_warning(&mut app, "q");
    tick(&mut app, 6_000);
    show_sample(&mut app, 7, later(4.0));
    let (place, words) = (0, "SIGTERM to 4001".to_owned());
    on_progress(&mut app, ReclaimProgress::Sent { number, place, words });
    assert_eq!(note(&app), STILL_ENDING);
    assert_eq!(keys(&mut app, "q"), Some(Effect::Quit));
}

#[test]
fn another_key_after_the_first_q_cancels_quitting() {
    for key in ["j", "?", "/", "s", "x", "p"] {
        let (mut app, _) = app_with_hidden_batch();
        assert_quit_warning(&mut app, "q");
        assert_ne!(keys(&mut app, key), Some(Effect::Quit), "{key}");
        assert_ne!(note(&app), STILL_ENDING, "{key}");
        keys(&mut app, "<Esc>");
        assert_eq!(app.mode, Mode::Main, "{key}");
        assert_quit_warning(&mut app, "q");
    }
    let (mut app, _) = app_with_hidden_batch();
    assert_quit_warning(&mut app, "q");
    for _ in 0..5 {
        assert_eq!(keys(&mut app, "<Esc>"), Some(Effect::Draw));
    }
    // While the batch's panel is open, `q` closes the panel.
    keys(&mut app, "x");
    assert_eq!(keys(&mut app, "q"), Some(Effect::Draw));
    assert_eq!((&app.mode, &app.note), (&Mode::Main, &None));
    assert_quit_warning(&mut app, "q");
}

#[test]
fn ctrl_c_quits_immediately_during_a_batch() {
    for (before, mode) in [("", Mode::Main), ("q", Mode::Main), ("x", Mode::Plan)] {
        let (mut app, _) = app_with_hidden_batch();
        keys(&mut app, before);
        assert_eq!(app.mode, mode);
        assert_eq!(press(&mut app, ctrl('c')), Some(Effect::Quit));
    }
}
