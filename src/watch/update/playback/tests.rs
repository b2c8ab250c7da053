//! Time, key by key, on this machine.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::watch::sample;
use crate::watch::state::{End, Event};
use crate::watch::testing::screen_of;
use crate::watch::update::update;

mod recordings;

fn app(replay: Option<&str>) -> App {
    screen_of(replay, 1, (80, 24))
}

fn press(app: &mut App, key: char) -> Option<Effect> {
    let key = KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE);
    update(app, Event::Key(key))
}

/// The sample of this machine at a second.
fn live(app: &mut App, second: u64) -> Option<Effect> {
    let mut snapshot = sample::snapshot(1, 2);
    snapshot.time = snapshot.time.plus_seconds(second as f64);
    let event = Event::Snapshot {
        now: Duration::from_secs(second),
        snapshot: Box::new(snapshot),
        is_passing: false,
    };
    update(app, event)
}

/// An app that has seen this machine for so many seconds.
fn watching(seconds: u64) -> App {
    let mut app = app(None);
    for second in 0..seconds {
        assert_eq!(live(&mut app, second), Some(Effect::Draw));
    }
    app
}

/// Which second of [`live`] is shown.
fn second(app: &App) -> i64 {
    let start = sample::snapshot(1, 2).time;
    (app.shown_time().unwrap() - start) / 1000
}

#[test]
fn a_paused_screen_does_not_change_while_samples_come_and_are_judged() {
    let mut app = watching(5);
    assert_eq!(press(&mut app, 'p'), Some(Effect::Draw));
    assert_eq!((second(&app), app.behind_seconds()), (4, None));
    for now in 5..9 {
        // It is told how far behind it is.
        assert_eq!(live(&mut app, now), Some(Effect::Draw));
    }
    assert_eq!((second(&app), app.behind_seconds()), (4, Some(4.0)));
    let newest = app.timeline.newest().unwrap().time;
    assert_eq!(app.judged.engine.history().last_time(), Some(newest));
    for key in ['p', 'L'] {
        let mut app = watching(5);
        press(&mut app, 'p');
        live(&mut app, 5);
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        assert_eq!((second(&app), app.playback.is_paused), (5, false));
        live(&mut app, 6);
        assert_eq!(second(&app), 6);
    }
}

#[test]
fn keys_go_back_and_forth_through_what_this_machine_was() {
    let mut app = watching(200);
    for (key, at) in [
        ('[', 198),
        ('[', 197),
        (']', 198),
        ('{', 138),
        ('{', 78),
        ('}', 138),
        ('{', 78),
        ('{', 18),
        ('{', 0),
        ('{', 0),
        ('[', 0),
        (']', 1),
        ('}', 61),
        ('}', 121),
        ('}', 181),
        ('}', 199),
        (']', 199),
    ] {
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        assert_eq!((second(&app), app.playback.is_paused), (at, true), "{key}");
    }
}

#[test]
fn what_a_key_cannot_do_is_noted_until_the_next_key() {
    let mut app = watching(3);
    for (keys, expected) in [("[[[", "nothing older"), ("n", "since"), ("N", "before")] {
        for key in keys.chars() {
            press(&mut app, key);
        }
        let note = app.note.clone().unwrap_or_default();
        assert!(note.contains(expected), "{keys}: {note}");
        // A key that does nothing says so in its place, and what is none has it taken from the screen.
        assert_eq!(press(&mut app, '~'), Some(Effect::Draw));
        assert!(app.note.as_deref().is_some_and(|it| it.starts_with("'~'")));
        assert_eq!(press(&mut app, '\u{7}'), Some(Effect::Draw));
        assert_eq!(app.note, None);
        assert_eq!(press(&mut app, '\u{7}'), None);
    }
}

#[test]
fn a_time_is_gone_to_where_it_is_kept() {
    assert!(seek(&mut app(None), "10:05").is_err());
    let mut app = watching(120);
    // 10:04:05.123 is second 0.
    for (text, at) in [
        ("10:05", 55),
        ("-10s", 45),
        ("+1m", 105),
        ("start", 0),
        ("2026-11-21 10:04:06", 1),
        ("end", 119),
    ] {
        assert_eq!(seek(&mut app, text), Ok(Some(Effect::Draw)), "{text}");
        assert_eq!(second(&app), at, "{text}");
    }
    for (text, why) in [
        ("10:00", "nothing before 2026-11-21 10:04:05 is kept"),
        ("+1h", "yet to come"),
        ("soon", "not a time"),
    ] {
        let error = seek(&mut app, text).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert_eq!(second(&app), 119);
    }
}

#[test]
fn plus_and_minus_step_through_the_intervals() {
    let mut app = watching(1);
    let mut asked = Vec::new();
    for key in "++++----------".chars() {
        match press(&mut app, key) {
            Some(Effect::Control(Control::Interval(interval))) => {
                assert_eq!(interval, app.playback.interval);
                asked.push(interval.as_millis());
            }
            effect => {
                assert_eq!(effect, Some(Effect::Draw));
                assert!(app.note.is_some());
            }
        }
    }
    assert_eq!(asked, [500, 250, 100, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000]);
}

#[test]
fn a_longer_wait_that_has_begun_is_no_silence() {
    let mut app = watching(1);
    app.playback.interval = Duration::from_secs(60);
    live(&mut app, 1);
    press(&mut app, '+');
    let now = Duration::from_secs(50);
    assert_eq!(update(&mut app, Event::Tick { now }), None);
    assert!(!app.is_overdue());
    // The next sample comes at the new interval, and so does the alarm.
    for _ in 0..4 {
        press(&mut app, '+');
    }
    live(&mut app, 51);
    let now = Duration::from_secs(55);
    update(&mut app, Event::Tick { now });
    assert!(app.is_overdue());
}

#[test]
fn a_driver_that_hangs_is_an_alarm_while_the_screen_is_paused_too() {
    let mut app = watching(5);
    press(&mut app, 'p');
    let now = Duration::from_secs(9);
    assert_eq!(update(&mut app, Event::Tick { now }), Some(Effect::Draw));
    assert!(app.is_overdue() && app.playback.is_paused);
}
