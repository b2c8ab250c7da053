//! Tests of the playback keys on a live screen.

use crossterm::event::KeyCode;

use super::*;
use crate::watch::sample;
use crate::watch::state::{End, Event};
use crate::watch::testing::{keys, note, press, screen_of, show_sample, tick};
use crate::watch::update::update;

mod recordings;

fn live(app: &mut App, second: u64) {
    assert_eq!(show_sample(app, second, sample::later(1, 2, second as f64)), Some(Effect::Draw));
}

fn app_after(seconds: u64) -> App {
    let mut app = screen_of(None, 1, (80, 24));
    for second in 0..seconds {
        live(&mut app, second);
    }
    app
}

/// Returns the seconds from the first sample to the displayed sample.
fn second(app: &App) -> i64 {
    let start = sample::snapshot(1, 2).time;
    (app.shown_time().unwrap() - start) / 1000
}

#[test]
fn a_paused_screen_is_unchanged_while_samples_are_judged() {
    for key in ["p", "L"] {
        let mut app = app_after(5);
        keys(&mut app, "p");
        assert_eq!((second(&app), app.behind_seconds()), (4, None));
        for now in 5..9 {
            live(&mut app, now);
        }
        assert_eq!((second(&app), app.behind_seconds()), (4, Some(4.0)));
        let newest = app.timeline.newest().unwrap().time;
        assert_eq!(app.judged.engine.history().last_time(), Some(newest));
        assert_eq!(keys(&mut app, key), Some(Effect::Draw));
        assert_eq!((second(&app), app.playback.is_paused), (8, false), "{key}");
        live(&mut app, 9);
        assert_eq!(second(&app), 9);
    }
}

#[test]
fn a_note_explains_a_key_without_effect_until_the_next_key() {
    let mut app = app_after(3);
    for (line, expected) in [("[[[", "nothing older"), ("n", "since"), ("N", "before")] {
        keys(&mut app, line);
        assert!(note(&app).contains(expected), "{line}: {}", note(&app));
        // A key without an effect shows a note. A key without a printable name only clears the note.
        assert_eq!(keys(&mut app, "~"), Some(Effect::Draw));
        assert!(note(&app).starts_with("'~'"));
        let none = KeyCode::Char('\u{7}');
        assert_eq!(press(&mut app, none), Some(Effect::Draw));
        assert_eq!(note(&app), "");
        assert_eq!(press(&mut app, none), None);
    }
}

#[test]
fn seeking_finds_a_kept_time() {
    assert!(seek(&mut app_after(0), "10:05").is_err());
    let mut app = app_after(120);
    // The first sample is from 10:04:05.123.
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
    for (text, reason) in [
        ("10:00", "nothing before 2026-11-21 10:04:05 is kept"),
        ("+1h", "in the future"),
        ("soon", "not a time"),
    ] {
        let error = seek(&mut app, text).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert_eq!(second(&app), 119);
    }
}

#[test]
fn a_shorter_interval_does_not_raise_an_early_alarm() {
    let mut app = app_after(1);
    app.playback.interval = Duration::from_secs(60);
    live(&mut app, 1);
    keys(&mut app, ")");
    assert_eq!(tick(&mut app, 50_000), None);
    assert!(!app.is_overdue());
    keys(&mut app, "))))");
    live(&mut app, 51);
    tick(&mut app, 55_000);
    assert!(app.is_overdue());
}

#[test]
fn a_hanging_driver_raises_an_alarm_on_a_paused_screen() {
    let mut app = app_after(5);
    keys(&mut app, "p");
    assert_eq!(tick(&mut app, 9_000), Some(Effect::Draw));
    assert!(app.is_overdue() && app.playback.is_paused);
}
