//! The state of the screen, event by event and key by key; each key of the table in
//! [`every_key`], any of them in any order in [`chance`], and what
//! people have in their fingers from other monitors in [`fingers`].

mod chance;
mod every_key;
mod fingers;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::SIGTERM;

use std::time::Duration;

use super::*;
use crate::model::Snapshot;
use crate::model::finding::Finding;
use crate::watch::Control;
use crate::watch::column::Column;
use crate::watch::reclaim_worker::{ReclaimProgress, ReclaimRequest};
use crate::watch::sample;
use crate::watch::state::{Focus, Mode};
use crate::watch::testing::{press, screen, see, tick};
use crate::watch::theme::Theme;
use crate::watch::view_model::{Screenful, Sort};

fn app() -> App {
    screen(80, 24)
}

/// An app that has seen `snapshot`.
fn showing(snapshot: Snapshot) -> App {
    let mut app = app();
    assert_eq!(see(&mut app, 1, snapshot), Some(Effect::Draw));
    app
}

/// Types characters; every one of them must have an effect.
fn type_in(app: &mut App, keys: &str) {
    for key in keys.chars() {
        assert!(press(app, KeyCode::Char(key)).is_some(), "{key}");
    }
}

fn selected_pid(app: &App) -> Option<u32> {
    app.subject().map(|subject| subject.row.key.identity.pid)
}

fn first_pid(app: &App) -> Option<u32> {
    let subject = app.subject_at(0)?;
    Some(subject.row.key.identity.pid)
}

#[test]
fn q_f10_and_ctrl_c_quit() {
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for key in [KeyCode::Char('q').into(), KeyCode::F(10).into(), ctrl_c] {
        assert_eq!(update(&mut app(), Event::Key(key)), Some(Effect::Quit));
    }
}

#[test]
fn escape_goes_one_step_back() {
    let mut app = showing(sample::snapshot(1, 2));
    type_in(&mut app, "j?");
    assert_eq!(app.mode, Mode::Help(0));
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Effect::Draw));
    assert_eq!((&app.mode, app.table.selected()), (&Mode::Main, Some(0)));
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Effect::Draw));
    assert_eq!(app.table.selected(), None);
    // One too many does not end a screen that was left open all day.
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Effect::Draw));
    assert_eq!(app.note.as_deref(), Some("nothing is open; q quits"));
}

#[test]
fn keys_that_may_change_nothing_note_what_they_did() {
    let mut app = showing(sample::snapshot(1, 2));
    type_in(&mut app, "v");
    assert!(app.note.as_ref().unwrap().contains("cards"));
    type_in(&mut app, "C");
    assert_eq!(app.note, Some(format!("theme: {}", app.theme.name())), "the words of --theme");
    type_in(&mut app, "j");
    assert_eq!(app.note, None);
}

#[test]
fn arrows_choose_the_column_to_sort_by_until_another_key() {
    let mut app = showing(sample::snapshot(1, 3));
    let column = |app: &App| app.table.choice.sort.column;
    let before = column(&app);
    press(&mut app, KeyCode::F(6));
    for (key, steps) in [
        (KeyCode::Right, 1),
        (KeyCode::Down, 2),
        (KeyCode::Left, 1),
        (KeyCode::Up, 0),
        (KeyCode::Up, -1),
    ] {
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        assert_eq!((column(&app), &app.mode), (before.step(steps), &Mode::ChooseSort));
    }
    press(&mut app, KeyCode::Enter);
    assert_eq!((column(&app), &app.mode), (before.step(-1), &Mode::Main));
    assert_eq!(app.table.selected(), None, "the arrows moved nothing else");
}

#[test]
fn keys_without_a_binding_and_releases_do_nothing() {
    let mut app = showing(sample::snapshot(1, 2));
    assert_eq!(press(&mut app, KeyCode::Char('y')), Some(Effect::Draw));
    assert_eq!(app.mode, Mode::Main, "it is said that it does nothing");
    let mut release = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
    release.kind = KeyEventKind::Release;
    assert_eq!(update(&mut app, Event::Key(release)), None);
    type_in(&mut app, "?");
    assert_eq!(update(&mut app, Event::Key(release)), None);
    assert_eq!(app.mode, Mode::Help(0));
    type_in(&mut app, "yo");
    assert_eq!(update(&mut app, Event::Key(release)), None);
    assert_eq!(app.mode, Mode::ChooseSort);
}

#[test]
fn the_help_scrolls_to_its_end_and_any_other_key_leaves_it() {
    let mut app = app();
    for key in [KeyCode::Char('?'), KeyCode::Char('h'), KeyCode::F(1)] {
        press(&mut app, key);
        assert_eq!(app.mode, Mode::Help(0));
        type_in(&mut app, "jjk");
        assert_eq!(app.mode, Mode::Help(1));
        type_in(&mut app, "G");
        let end = app.mode.clone();
        type_in(&mut app, "j");
        assert_eq!(app.mode, end);
        type_in(&mut app, "gk");
        assert_eq!(app.mode, Mode::Help(0));
        type_in(&mut app, "q");
        assert_eq!(app.mode, Mode::Main);
    }
}

#[test]
fn the_selection_moves_and_stays_within_the_table() {
    let mut app = showing(sample::snapshot(1, 30));
    assert_eq!(app.table.selected(), None);
    let table = usize::from(app.layout().unwrap().table.height);
    for (keys, at) in [("j", 0), ("j", 1), ("k", 0), ("k", 0), ("G", 29), ("j", 29), ("g", 0)] {
        type_in(&mut app, keys);
        assert_eq!(app.table.selected(), Some(at), "{keys}");
        let seen = app.table.offset..app.table.offset + table;
        assert!(seen.contains(&at), "{at} in {seen:?}");
    }
    press(&mut app, KeyCode::PageDown);
    assert_eq!(app.table.selected(), Some(table));
    press(&mut app, KeyCode::PageUp);
    assert_eq!((app.table.selected(), app.table.offset), (Some(0), 0));
    press(&mut app, KeyCode::End);
    assert_eq!(app.table.offset, 30 - table);
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Up);
    assert_eq!((app.table.selected(), app.table.offset), (Some(0), 0));
}

#[test]
fn moving_in_an_empty_table_selects_nothing() {
    for mut app in [app(), showing(sample::snapshot(0, 0)), showing(sample::snapshot(2, 0))] {
        type_in(&mut app, "jkgG");
        press(&mut app, KeyCode::PageDown);
        assert_eq!(app.table.selected(), None);
    }
}

#[test]
fn the_selection_follows_the_process_not_the_row() {
    let mut app = showing(sample::snapshot(1, 4));
    type_in(&mut app, "j");
    let pid = sample::pid(0, 3);
    assert_eq!(selected_pid(&app), Some(pid));
    let mut next = sample::snapshot(1, 4);
    sample::entry(&mut next, 0, 3).used_bytes = Some(1);
    see(&mut app, 2, next);
    assert_eq!((selected_pid(&app), app.table.selected()), (Some(pid), Some(3)));
    type_in(&mut app, "r");
    assert_eq!((selected_pid(&app), app.table.selected()), (Some(pid), Some(0)));
}

#[test]
fn no_row_moves_into_the_selection_of_a_process_that_is_gone() {
    let mut app = showing(sample::snapshot(1, 4));
    type_in(&mut app, "jj");
    let gone = selected_pid(&app).unwrap();
    // The same pid, but another process.
    let mut next = sample::snapshot(1, 4);
    for process in &mut next.processes {
        if process.pid == gone {
            process.start_ticks = Some(99_999);
        }
    }
    see(&mut app, 2, next);
    assert_eq!(selected_pid(&app), None);
    // The next step starts where the eye is.
    type_in(&mut app, "j");
    assert_eq!(app.table.selected(), Some(1));
}

#[test]
fn every_letter_after_o_sorts_by_its_column() {
    let mut app = showing(sample::snapshot(2, 3));
    for column in Column::ALL {
        let letter = column.spec().letter;
        type_in(&mut app, &format!("o{letter}"));
        assert_eq!(app.table.choice.sort, Sort { column, reversed: false });
        type_in(&mut app, &format!("o{}", letter.to_ascii_uppercase()));
        assert_eq!(app.table.choice.sort, Sort { column, reversed: true });
        assert_eq!(app.mode, Mode::Main);
    }
    let before = app.table.choice.sort;
    press(&mut app, KeyCode::F(6));
    assert_eq!(app.mode, Mode::ChooseSort);
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.mode, app.table.choice.sort), (Mode::Main, before));
}

#[test]
fn sort_keys_step_jump_and_turn_around() {
    let mut app = showing(sample::snapshot(1, 4));
    assert_eq!(first_pid(&app), Some(sample::pid(0, 3)));
    for (keys, column) in [
        (">", Column::MemoryPercent),
        (".", Column::History),
        ("<", Column::MemoryPercent),
        (",", Column::Memory),
        ("P", Column::CpuPercent),
        ("M", Column::Memory),
    ] {
        type_in(&mut app, keys);
        assert_eq!(app.table.choice.sort.column, column, "{keys}");
    }
    type_in(&mut app, "r");
    assert_eq!(first_pid(&app), Some(sample::pid(0, 0)));
    type_in(&mut app, "I");
    assert_eq!(first_pid(&app), Some(sample::pid(0, 3)));
}

#[test]
fn a_redraw_and_a_suspension_are_asked_for_in_every_mode() {
    for keys in ["", "?", "o"] {
        let mut app = showing(sample::snapshot(1, 1));
        type_in(&mut app, keys);
        let mode = app.mode.clone();
        for (c, effect) in [('l', Effect::Repaint), ('z', Effect::Suspend)] {
            let key = KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
            assert_eq!(update(&mut app, Event::Key(key)), Some(effect));
            assert_eq!(app.mode, mode);
        }
    }
}

#[test]
fn signals_stop_resume_and_end() {
    for (signal, effect) in
        [(SIGTSTP, Effect::Stop), (SIGCONT, Effect::Resume), (SIGTERM, Effect::Die(SIGTERM))]
    {
        assert_eq!(update(&mut app(), Event::Signal(signal)), Some(effect));
    }
}

#[test]
fn the_age_is_shown_when_a_sample_is_late_and_alarms_after_three_intervals() {
    let mut app = showing(sample::snapshot(1, 1));
    // Nothing is drawn while all is well: the next sample is due in two seconds.
    assert_eq!(app.next_tick(), Some(Duration::from_secs(4)));
    assert_eq!(tick(&mut app, 3_900), None);
    assert_eq!(tick(&mut app, 4_000), Some(Effect::Draw));
    assert_eq!((app.age_seconds(), app.is_overdue()), (Some(3), false));
    assert_eq!(app.next_tick(), Some(Duration::from_secs(5)));
    tick(&mut app, 7_900);
    assert!(!app.is_overdue());
    tick(&mut app, 8_000);
    assert!(app.is_overdue());
    see(&mut app, 8, sample::snapshot(1, 1));
    assert_eq!((app.age_seconds(), app.is_overdue()), (Some(0), false));
}

#[test]
fn a_recording_has_no_age() {
    let mut app = showing(sample::snapshot(1, 1));
    app.setup.replay = Some("old.jsonl".to_owned());
    assert_eq!((app.age_seconds(), app.next_tick()), (None, None));
    assert_eq!(tick(&mut app, 60_000), None);
    assert_eq!(update(&mut app, Event::SourceEnded), Some(Effect::Draw));
    assert_eq!(app.end, Some(End::Complete));
}

#[test]
fn a_source_that_fails_ends_the_screen_only_if_nothing_was_seen() {
    let failed = || Event::SourceFailed("no driver".to_owned());
    let fail = Effect::Fail("no driver".to_owned());
    assert_eq!(update(&mut app(), failed()), Some(fail));
    let mut app = showing(sample::snapshot(1, 1));
    assert_eq!(update(&mut app, failed()), Some(Effect::Draw));
    assert_eq!(app.end, Some(End::Failed("no driver".to_owned())));
    assert_eq!(app.next_tick(), None);
}

#[test]
fn a_resize_keeps_the_selection_in_view() {
    let mut app = showing(sample::snapshot(1, 30));
    type_in(&mut app, "G");
    for (columns, rows) in [(80, 12), (200, 60), (1, 1), (0, 0), (80, 24)] {
        assert_eq!(update(&mut app, Event::Resize(columns, rows)), Some(Effect::Repaint));
        assert_eq!(app.table.selected(), Some(29));
        if let Some(layout) = app.layout() {
            assert!(app.table.offset + usize::from(layout.table.height) >= 30);
        }
    }
}

#[test]
fn what_the_engine_found_is_on_show() {
    let mut app = app();
    let snapshot = sample::snapshot(1, 2);
    let findings: Vec<Finding> = vec![sample::finding(&snapshot, 0, 0)];
    app.show(Screenful::new(snapshot, findings, Vec::new(), |_, _| None));
    type_in(&mut app, "oxj");
    assert_eq!(selected_pid(&app), Some(sample::pid(0, 0)));
}
