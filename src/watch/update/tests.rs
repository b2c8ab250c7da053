//! Tests of how events change the state.

mod chance;
mod every_key;
mod habits;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::SIGTERM;

use std::time::Duration;

use super::*;
use crate::model::Snapshot;
use crate::reclaim::worker::{ReclaimProgress, ReclaimRequest};
use crate::watch::Control;
use crate::watch::column::Column;
use crate::watch::sample;
use crate::watch::state::{Focus, Mode};
use crate::watch::testing::{
    ctrl, filter, keys, note, press, screen, selected_pid, show_sample, tick,
};
use crate::watch::theme::Theme;

fn app_with(snapshot: Snapshot) -> App {
    let mut app = screen(80, 24);
    assert_eq!(show_sample(&mut app, 1, snapshot), Some(Effect::Draw));
    app
}

#[test]
fn escape_goes_one_step_back() {
    let mut app = app_with(sample::snapshot(1, 2));
    keys(&mut app, "g?");
    assert_eq!(app.mode, Mode::Help(0));
    keys(&mut app, "<Esc>");
    assert_eq!((&app.mode, app.table.selected()), (&Mode::Main, Some(0)));
    assert!(app.table.is_chosen());
    keys(&mut app, "<Esc>");
    assert_eq!((app.table.selected(), app.table.is_chosen()), (Some(0), false));
    // Esc must not close a screen that has been open all day.
    assert_eq!(keys(&mut app, "<Esc>"), Some(Effect::Draw));
    assert_eq!(note(&app), "nothing is open; q quits");
}

#[test]
fn keys_without_a_binding_and_releases_do_nothing() {
    let mut app = app_with(sample::snapshot(1, 2));
    assert_eq!(keys(&mut app, "y"), Some(Effect::Draw), "a note reports that the key does nothing");
    let mut release = KeyEvent::from(KeyCode::Char('q'));
    release.kind = KeyEventKind::Release;
    for (line, mode) in [("", Mode::Main), ("?", Mode::Help(0)), ("yo", Mode::ChooseSort)] {
        keys(&mut app, line);
        assert_eq!((press(&mut app, release), &app.mode), (None, &mode));
    }
}

#[test]
fn the_help_scrolls_to_its_end_and_other_keys_close_it() {
    let mut app = screen(80, 24);
    for open in ["?", "h", "<F1>"] {
        for (line, mode) in [(open, Mode::Help(0)), ("jjk", Mode::Help(1))] {
            keys(&mut app, line);
            assert_eq!(app.mode, mode, "{line}");
        }
        keys(&mut app, "G");
        let end = app.mode.clone();
        for (line, mode) in [("j", end), ("gk", Mode::Help(0)), ("q", Mode::Main)] {
            keys(&mut app, line);
            assert_eq!(app.mode, mode, "{line}");
        }
    }
}

#[test]
fn the_selection_moves_and_stays_within_the_table() {
    let mut app = app_with(sample::snapshot(1, 30));
    assert_eq!((app.table.selected(), app.table.is_chosen()), (Some(0), false));
    // The details of a selected process need one line more than the notes.
    keys(&mut app, "jg");
    let table = usize::from(app.layout().unwrap().table.height);
    for (line, at, offset) in [
        ("j", 1, 0),
        ("kk", 0, 0),
        ("Gj", 29, 30 - table),
        ("g", 0, 0),
        ("<PgDn>", table, 1),
        ("<PgUp>", 0, 0),
        ("<End>", 29, 30 - table),
        ("<Home><Down><Up>", 0, 0),
    ] {
        keys(&mut app, line);
        assert_eq!((app.table.selected(), app.table.offset), (Some(at), offset), "{line}");
    }
}

#[test]
fn the_selection_follows_the_process_not_the_row() {
    let mut app = app_with(sample::snapshot(1, 4));
    let pid = Some(sample::pid(0, 3));
    assert_eq!(selected_pid(&app), pid);
    let mut next = sample::snapshot(1, 4);
    sample::entry(&mut next, 0, 3).used_bytes = Some(1);
    show_sample(&mut app, 2, next);
    assert_eq!((selected_pid(&app), app.table.selected()), (pid, Some(3)));
    keys(&mut app, "r");
    assert_eq!((selected_pid(&app), app.table.selected()), (pid, Some(0)));
}

#[test]
fn the_first_row_is_selected_when_it_appears() {
    let mut empty = sample::snapshot(1, 4);
    empty.processes.clear();
    empty.gpus[0].processes = Some([].into());
    for pressed in ["", "j", "k", "G"] {
        let mut app = app_with(empty.clone());
        keys(&mut app, pressed);
        show_sample(&mut app, 2, empty.clone());
        assert_eq!(selected_pid(&app), None);
        show_sample(&mut app, 3, sample::snapshot(1, 4));
        assert_eq!((app.table.selected(), app.table.is_chosen()), (Some(0), false), "{pressed}");
    }
}

#[test]
fn no_row_takes_the_selection_of_a_process_that_is_gone() {
    // The row was selected by the table (no key), or by the user (`j`).
    for (line, at) in [("", 0), ("j", 1)] {
        let mut app = app_with(sample::snapshot(1, 4));
        keys(&mut app, line);
        let gone = selected_pid(&app).unwrap();
        // The next sample has another process with the same PID.
        let mut next = sample::snapshot(1, 4);
        let same = next.processes.iter_mut().find(|process| process.pid == gone);
        same.unwrap().start_ticks = Some(99_999);
        for second in [2, 3] {
            show_sample(&mut app, second, next.clone());
            assert_eq!(selected_pid(&app), None);
        }
        keys(&mut app, "x");
        assert_eq!(app.mode, Mode::Main, "there is nothing to kill");
        keys(&mut app, "j");
        assert_eq!(app.table.selected(), Some(at));
    }
}

#[test]
fn a_selection_returns_with_its_process() {
    let all = sample::snapshot(1, 4);
    let (mut without, mut empty) = (all.clone(), all.clone());
    without.gpus[0].processes.as_mut().unwrap().retain(|row| row.pid != sample::pid(0, 1));
    empty.gpus[0].processes = None;
    for (between, pressed, expected) in
        [(&without, "", 1), (&without, "k", 0), (&empty, "", 1), (&empty, "jk", 1)]
    {
        let mut app = app_with(all.clone());
        keys(&mut app, "G<Up>");
        let selected = selected_pid(&app);
        assert_eq!(selected, Some(sample::pid(0, 1)));
        show_sample(&mut app, 2, between.clone());
        assert_eq!(selected_pid(&app), None);
        keys(&mut app, pressed);
        show_sample(&mut app, 3, all.clone());
        let expected = Some(sample::pid(0, expected));
        assert!(app.table.is_chosen(), "{pressed}");
        assert_eq!(selected_pid(&app), expected, "{pressed}");
        show_sample(&mut app, 4, all.clone());
        assert_eq!(selected_pid(&app), expected, "{pressed}");
    }
}

#[test]
fn a_selection_survives_an_unknown_identity_but_not_a_new_one() {
    let with_identity = |start_ticks| {
        let mut next = sample::snapshot(1, 4);
        next.processes[1].start_ticks = start_ticks;
        next
    };
    let mut unknown = with_identity(None);
    unknown.processes[1].start_time = None;
    let mut absent = unknown.clone();
    absent.processes.remove(1);
    let (mine, pid) = (with_identity(Some(5)), Some(sample::pid(0, 1)));
    // The start time is unknown at first, in the middle or at the end. Then another process has the PID.
    for samples in [
        [&unknown, &unknown, &mine, &mine],
        [&absent, &absent, &mine, &mine],
        [&mine, &unknown, &absent, &mine],
        [&mine, &mine, &mine, &unknown],
        [&mine, &absent, &unknown, &absent],
    ] {
        let mut app = app_with(samples[0].clone());
        let at = app
            .screenful
            .as_ref()
            .unwrap()
            .rows
            .iter()
            .position(|row| Some(row.key.identity.pid) == pid);
        app.select_row(Some(app.screenful.as_ref().unwrap().rows[at.unwrap()].key));
        for (second, sample) in (2..).zip(&samples[1..]) {
            show_sample(&mut app, second, (*sample).clone());
            assert_eq!(selected_pid(&app), pid);
        }
        show_sample(&mut app, 9, with_identity(Some(6)));
        assert_eq!(selected_pid(&app), None, "this is another process");
    }
}

#[test]
fn x_and_enter_act_on_the_first_row_by_default() {
    for line in ["x", "/pid:4001<Enter>x", "/nothing<Enter><Esc>x"] {
        let mut app = app_with(sample::snapshot(1, 4));
        keys(&mut app, line);
        assert_eq!(app.mode, Mode::Plan, "{line}");
    }
    let mut app = app_with(sample::snapshot(1, 4));
    keys(&mut app, "<Enter>");
    assert_eq!(app.mode, Mode::Page);
    // `x` must not act on a process that the filter hides.
    let mut app = app_with(sample::snapshot(1, 4));
    keys(&mut app, "G/pid:4002<Enter>");
    assert_eq!(selected_pid(&app), Some(4002));
}

#[test]
fn ctrl_l_and_ctrl_z_work_in_every_mode() {
    for (line, mode) in [("", Mode::Main), ("?", Mode::Help(0)), ("o", Mode::ChooseSort)] {
        let mut app = app_with(sample::snapshot(1, 1));
        keys(&mut app, line);
        for (letter, effect) in [('l', Effect::Repaint), ('z', Effect::Suspend)] {
            assert_eq!(press(&mut app, ctrl(letter)), Some(effect));
            assert_eq!(app.mode, mode);
        }
    }
}

#[test]
fn signals_stop_resume_and_exit() {
    for (signal, effect) in
        [(SIGTSTP, Effect::Stop), (SIGCONT, Effect::Resume), (SIGTERM, Effect::Die(SIGTERM))]
    {
        assert_eq!(update(&mut screen(80, 24), Event::Signal(signal)), Some(effect));
    }
}

#[test]
fn the_age_is_shown_when_a_sample_is_late_and_alarms_after_three_intervals() {
    let mut app = app_with(sample::snapshot(1, 1));
    // Nothing changes on the screen until the next sample is late.
    assert_eq!(app.next_tick(), Some(Duration::from_secs(4)));
    assert_eq!(tick(&mut app, 3_900), None);
    assert_eq!(tick(&mut app, 4_000), Some(Effect::Draw));
    assert_eq!((app.age_seconds(), app.is_overdue()), (Some(3), false));
    assert_eq!(app.next_tick(), Some(Duration::from_secs(5)));
    for (milliseconds, is_overdue) in [(7_900, false), (8_000, true)] {
        tick(&mut app, milliseconds);
        assert_eq!(app.is_overdue(), is_overdue);
    }
    show_sample(&mut app, 8, sample::snapshot(1, 1));
    assert_eq!((app.age_seconds(), app.is_overdue()), (Some(0), false));
}

#[test]
fn a_recording_has_no_age() {
    let mut app = app_with(sample::snapshot(1, 1));
    app.setup.replay = Some("old.jsonl".to_owned());
    assert_eq!((app.age_seconds(), app.next_tick()), (None, None));
    assert_eq!(tick(&mut app, 60_000), None);
    assert_eq!(update(&mut app, Event::SourceEnded), Some(Effect::Draw));
    assert_eq!(app.end, Some(End::Complete));
}

#[test]
fn a_failed_source_ends_the_screen_only_before_a_sample() {
    let failed = || Event::SourceFailed("no driver".to_owned());
    let fail = Effect::Fail("no driver".to_owned());
    assert_eq!(update(&mut screen(80, 24), failed()), Some(fail));
    let mut app = app_with(sample::snapshot(1, 1));
    assert_eq!(update(&mut app, failed()), Some(Effect::Draw));
    assert_eq!(app.end, Some(End::Failed("no driver".to_owned())));
    assert_eq!(app.next_tick(), None);
}
