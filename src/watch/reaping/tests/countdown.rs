//! Tests of the confirmation: what confirms or cancels a plan, and when the plan starts.

use signal_hook::consts::{SIGCONT, SIGTSTP};

use super::*;

#[test]
fn y_starts_exactly_the_shown_plan_after_the_countdown() {
    let mut app = app_with_sample(None);
    let number = show_plan(&mut app, vec![target(sample::pid(0, 1))]);
    let shown = Arc::clone(&dialog(&app).proposal().unwrap().plan);
    assert_eq!(keys(&mut app, "y"), Some(Effect::Draw));
    for next in [2_000, 3_000, 4_000] {
        assert_eq!(app.reaping.next_tick(app.judged.now()), Some(Duration::from_millis(next)));
        assert_eq!(tick(&mut app, next - 1), Some(Effect::Draw));
        // Pressing or holding `y` again does not shorten the countdown.
        assert_eq!(keys(&mut app, "y"), None);
        if next < 4_000 {
            tick(&mut app, next);
        }
    }
    let plan = match tick(&mut app, 4_000) {
        Some(Effect::Reclaim(ReclaimRequest::Begin { number: begun, plan })) if begun == number => {
            plan
        }
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&plan, &shown));
    assert!(app.reaping.dialog.is_none() && app.reaping.is_running());
}

#[test]
fn y_can_be_undone_and_nothing_is_sent() {
    for key in ["u", "n", "q", "<Esc>"] {
        let mut app = app_with_sample(None);
        show_plan(&mut app, vec![target(7)]);
        keys(&mut app, "y");
        tick(&mut app, 2_000);
        assert_eq!(keys(&mut app, key), Some(Effect::Draw));
        assert_eq!(dialog_note(&app), "undone: nothing was sent");
        assert_eq!(dialog(&app).countdown, None);
        for at in [5_000, 6_000, 60_000] {
            assert!(!matches!(tick(&mut app, at), Some(Effect::Reclaim(_))));
        }
        assert!(app.reaping.batch.is_none());
    }
}

/// Confirms a plan. The countdown ends 4 s after the start of the screen.
fn confirm_plan(app: &mut App) {
    show_plan(app, vec![target(7)]);
    keys(app, "y");
    tick(app, 2_000);
}

/// Checks that the confirmation was cancelled for `reason` and that nothing is sent later.
fn assert_cancelled(app: &mut App, reason: &str) {
    assert_eq!(dialog(app).countdown, None, "{reason}");
    assert_eq!(dialog_note(app), format!("undone: {reason}; nothing was sent"));
    for at in [5_000, 6_000, 60_000, 4_000_000] {
        assert!(!matches!(tick(app, at), Some(Effect::Reclaim(_))), "{reason}");
    }
}

#[test]
fn an_unseen_or_interrupted_countdown_cancels() {
    let after = |events: [Event; 2], reason: &str| {
        let mut app = app_with_sample(None);
        confirm_plan(&mut app);
        for event in events {
            update(&mut app, event);
        }
        assert_eq!(app.mode, Mode::Plan);
        assert_cancelled(&mut app, reason);
    };
    let resized = [Event::Resize(20, 5), Event::Resize(80, 24)];
    after(resized, "the plan was no longer on screen");
    let helped = [KeyCode::Char('?'), KeyCode::Esc].map(|key| Event::Key(key.into()));
    after(helped, "the plan was no longer on screen");
    let suspended = [SIGTSTP, SIGCONT].map(Event::Signal);
    after(suspended, "gpumem was suspended");
    // SIGSTOP stopped gpumem, or the terminal did not accept output, so the next tick is an hour late.
    for has_sample in [false, true] {
        let mut app = app_with_sample(None);
        confirm_plan(&mut app);
        if has_sample {
            show_sample(&mut app, 3_600, later(3_600.0));
        }
        assert_eq!(tick(&mut app, 3_600_000), Some(Effect::Draw));
        assert_cancelled(&mut app, "the screen was not updated in time");
    }
}

#[test]
fn an_old_plan_is_renewed_instead_of_confirmed() {
    let mut app = app_with_sample(None);
    let number = show_plan(&mut app, vec![target(7)]);
    show_sample(&mut app, 300, later(299.0));
    draw(&mut app);
    keys(&mut app, "y");
    assert!(dialog(&app).countdown.is_some(), "old, but not too old");
    keys(&mut app, "u");
    // After a suspension, the samples' clock has advanced but the screen's clock has not.
    show_sample(&mut app, 301, later(30_000.0));
    draw(&mut app);
    let request = request_plan_for(&mut app, "y");
    assert_eq!((request.number, request.snapshot.time), (number + 1, later(30_000.0).time));
    assert_eq!(dialog(&app).countdown, None);
    assert!(dialog_note(&app).contains("8h"));
    answer(&mut app, request.number, proposal(vec![target(7)]));
    keys(&mut app, "y");
    assert!(dialog(&app).countdown.is_some());
}

#[test]
fn the_age_of_a_plan_starts_with_its_request() {
    let mut app = app_with_sample(None);
    let number = request_plan_for(&mut app, "gx").number;
    show_sample(&mut app, 3_600, later(3_600.0));
    answer(&mut app, number, proposal(vec![target(7)]));
    assert_eq!(request_plan_for(&mut app, "y").number, number + 1);
}

#[test]
fn keys_before_the_plan_is_drawn_confirm_nothing() {
    let mut app = app_with_sample(None);
    let number = request_plan_for(&mut app, "gx").number;
    assert_eq!(keys(&mut app, "y"), None, "there is no plan yet");
    draw(&mut app);
    assert_eq!(keys(&mut app, "y"), None, "the frame had no plan");
    let plan = Ok(proposal(vec![target(7)]));
    on_progress(&mut app, ReclaimProgress::Planned { number, plan });
    assert_eq!(keys(&mut app, "y"), None, "the plan was not drawn");
    draw(&mut app);
    assert_eq!(keys(&mut app, "y"), Some(Effect::Draw));
    assert!(dialog(&app).countdown.is_some());
}

#[test]
fn a_screen_too_small_for_the_plan_confirms_nothing() {
    let mut app = app_with_sample(None);
    show_plan(&mut app, vec![target(7)]);
    update(&mut app, Event::Resize(20, 5));
    draw(&mut app);
    assert_eq!(keys(&mut app, "y"), None);
    update(&mut app, Event::Resize(40, 10));
    draw(&mut app);
    assert_eq!(keys(&mut app, "y"), Some(Effect::Draw));
}

#[test]
fn esc_enter_f10_and_n_close_the_plan() {
    for key in ["<Esc>", "<Enter>", "<F10>", "n"] {
        let mut app = app_with_sample(None);
        show_plan(&mut app, vec![target(7)]);
        assert_eq!(keys(&mut app, key), Some(Effect::Draw));
        assert_eq!((&app.mode, &app.reaping.dialog), (&Mode::Main, &None));
    }
}
