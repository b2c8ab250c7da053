//! What people have in their fingers: numbers of GPUs, a first Space, the pages behind one key.

use super::*;
use crate::watch::page::{About, PageContent};

/// A screen of so many GPUs, with a few processes each.
fn gpus(count: u32) -> App {
    let mut app = app();
    update(&mut app, Event::Resize(120, 40));
    see(&mut app, 0, sample::snapshot(count, 3));
    app
}

fn filter(app: &App) -> Option<String> {
    app.table.choice.filter.as_ref().map(ToString::to_string)
}

#[test]
fn a_digit_filters_by_its_gpu_and_again_lifts_that() {
    let mut app = gpus(4);
    type_in(&mut app, "2");
    assert_eq!(filter(&app).as_deref(), Some("gpu:2"));
    assert_eq!(app.table.listing.lines.len(), 3);
    type_in(&mut app, "0");
    assert_eq!(filter(&app).as_deref(), Some("gpu:0"));
    type_in(&mut app, "0");
    assert_eq!(filter(&app), None);
    type_in(&mut app, "7");
    assert_eq!(filter(&app), None);
    assert_eq!(app.note.as_deref(), Some("there is no GPU 7; the last is GPU 3"));
}

#[test]
fn the_gpu_that_is_asked_for_is_the_one_that_is_shown() {
    let mut app = gpus(4);
    let shown = |app: &App| -> Vec<u32> {
        let gpus = app.shown_gpus().into_iter();
        gpus.map(|gpu| gpu.index).collect()
    };
    assert_eq!(shown(&app), [0, 1, 2, 3]);
    let rows = app.layout().unwrap().gpus.height;
    type_in(&mut app, "2");
    assert_eq!(shown(&app), [2]);
    let layout = app.layout().unwrap();
    assert_ne!(layout.gpus.height, rows, "one GPU has a card");
    type_in(&mut app, "2");
    assert_eq!(shown(&app), [0, 1, 2, 3]);
    // What asks for no GPU leaves all of them, and so does one that is not there.
    for filter in ["user:ann", "gpu:9"] {
        app.table.choice.filter = crate::model::Selector::parse(filter).unwrap();
        assert_eq!(shown(&app), [0, 1, 2, 3], "{filter}");
    }
    app.table.choice.filter = crate::model::Selector::parse("!gpu:1,2").unwrap();
    assert_eq!(shown(&app), [0, 3]);
}

#[test]
fn f3_selects_the_next_row_that_fits_and_again_the_one_after_as_in_htop() {
    let mut app = gpus(4);
    let find = |app: &mut App, code| press(app, code);
    let command = |app: &App| {
        let subject = app.subject().expect("something is selected");
        subject.process.unwrap().command.clone().unwrap().join(" ")
    };
    let rows = app.table.listing.lines.len();
    find(&mut app, KeyCode::F(3));
    type_in(&mut app, "eval");
    assert!(command(&app).contains("eval.py"));
    assert_eq!(app.table.listing.lines.len(), rows, "no row is hidden");
    let mut seen = vec![app.table.selected().unwrap()];
    for _ in 0..rows {
        find(&mut app, KeyCode::F(3));
        assert!(command(&app).contains("eval.py"));
        seen.push(app.table.selected().unwrap());
    }
    let places: std::collections::BTreeSet<usize> = seen.iter().copied().collect();
    assert!(places.len() > 1, "{seen:?}");
    assert_eq!(seen[0], seen[places.len()], "the table's ends meet");
    let back = KeyEvent::new(KeyCode::F(3), KeyModifiers::SHIFT);
    let at = app.table.selected();
    update(&mut app, Event::Key(back));
    find(&mut app, KeyCode::F(3));
    assert_eq!(app.table.selected(), at);
    find(&mut app, KeyCode::Enter);
    assert_eq!((&app.mode, app.table.selected()), (&Mode::Main, at));

    // F3 and F3 again: what was searched for last.
    find(&mut app, KeyCode::F(3));
    find(&mut app, KeyCode::F(3));
    assert!(command(&app).contains("eval.py") && app.table.selected() != at);
    find(&mut app, KeyCode::Esc);
    assert_eq!(app.table.selected(), at, "Esc leads back");

    find(&mut app, KeyCode::F(3));
    type_in(&mut app, "nothing of the kind");
    let Mode::Prompt(prompt) = &app.mode else {
        panic!("{:?}", app.mode);
    };
    assert_eq!(prompt.error.as_deref(), Some("no row fits"));
    assert_eq!(app.table.selected(), at);
    find(&mut app, KeyCode::Enter);
    let mut empty = gpus(0);
    find(&mut empty, KeyCode::F(3));
    type_in(&mut empty, "x");
    find(&mut empty, KeyCode::F(3));
}

#[test]
fn two_digits_in_a_moment_are_one_number_where_there_is_such_a_gpu() {
    let mut app = gpus(16);
    tick(&mut app, 5_000);
    type_in(&mut app, "1");
    assert_eq!(filter(&app).as_deref(), Some("gpu:1"));
    tick(&mut app, 5_900);
    type_in(&mut app, "2");
    assert_eq!(filter(&app).as_deref(), Some("gpu:12"));
    // What follows begins another number: there is no GPU 123.
    tick(&mut app, 6_000);
    type_in(&mut app, "3");
    assert_eq!(filter(&app).as_deref(), Some("gpu:3"));
    tick(&mut app, 9_000);
    type_in(&mut app, "1");
    tick(&mut app, 10_001);
    type_in(&mut app, "1");
    assert_eq!(filter(&app), None, "later it is the same key again");
    // There is no GPU 17.
    tick(&mut app, 20_000);
    type_in(&mut app, "17");
    assert_eq!(filter(&app).as_deref(), Some("gpu:7"));
}

#[test]
fn the_first_space_marks_and_none_marks_who_moved_into_a_row() {
    let mut app = gpus(1);
    press(&mut app, KeyCode::Char(' '));
    assert_eq!((app.table.tagged.len(), app.table.selected()), (1, Some(1)));
    let first = app.subject_at(0).unwrap().row.key;
    assert!(app.table.tagged.contains(&first));
    // The selected process ends; whoever is in its row now was not meant.
    let gone = app.subject().unwrap().row.key.identity.pid;
    let mut snapshot = sample::snapshot(1, 3);
    snapshot.time = snapshot.time.plus_seconds(2.0);
    for gpu in &mut snapshot.gpus {
        gpu.processes.iter_mut().for_each(|rows| rows.retain(|row| row.pid != gone));
    }
    see(&mut app, 2, snapshot);
    assert_eq!(app.table.selected(), None);
    press(&mut app, KeyCode::Char(' '));
    assert_eq!(app.table.tagged.len(), 1, "it only selects");
    assert!(app.table.selected().is_some());
    press(&mut app, KeyCode::Char(' '));
    assert_eq!(app.table.tagged.len(), 2);
}

#[test]
fn i_shows_the_gpu_that_is_meant_and_then_the_next_one() {
    let about = |app: &App| app.page.as_ref().map(|page| page.about);
    let mut app = gpus(3);
    type_in(&mut app, "1i");
    assert_eq!(about(&app), Some(About::Gpu(1)), "the filter's");
    type_in(&mut app, "i");
    assert_eq!(about(&app), Some(About::Gpu(2)));
    type_in(&mut app, "i");
    assert_eq!(about(&app), Some(About::Gpu(0)));
    type_in(&mut app, "2");
    assert_eq!(about(&app), Some(About::Gpu(2)));
    let lines = &app.page.as_ref().unwrap().lines;
    assert!(lines.iter().any(|line| line.contains("GPU 2")), "{lines:?}");
    press(&mut app, KeyCode::Esc);
    assert_eq!((about(&app), filter(&app).as_deref()), (None, Some("gpu:1")));
    let mut none = gpus(0);
    press(&mut none, KeyCode::Char('i'));
    assert_eq!(none.note.as_deref(), Some("there is no GPU"));
}

#[test]
fn the_environment_comes_from_the_worker_and_only_to_its_page() {
    let mut app = gpus(1);
    type_in(&mut app, "e");
    assert_eq!(app.mode, Mode::Main, "nobody is selected");
    type_in(&mut app, "j");
    let who = app.subject().unwrap().row.key.identity;
    let effect = press(&mut app, KeyCode::Char('e'));
    assert_eq!(effect, Some(Effect::Reclaim(ReclaimRequest::Environment(who))));
    let answer = |text: &str| ReclaimProgress::Environment {
        of: who,
        variables: Ok(vec![("HF_HOME".to_owned(), text.to_owned())]),
    };
    update(&mut app, Event::Reclaim(answer("/a\x1b[2J")));
    let lines = app.page.as_ref().unwrap().lines.join("\n");
    assert!(lines.contains(r"HF_HOME=/a\e[2J"), "{lines}");
    press(&mut app, KeyCode::Esc);
    assert_eq!(update(&mut app, Event::Reclaim(answer("late"))), None);
    assert_eq!(app.mode, Mode::Main);
}

#[test]
fn totals_are_of_the_rows_that_are_shown_and_follow_them() {
    let mut app = gpus(2);
    type_in(&mut app, "1s");
    let total = |app: &App| match &app.page.as_ref().unwrap().content {
        PageContent::Totals { groups, .. } => groups[0].1.iter().map(|it| it.processes).sum(),
        content => panic!("{content:?}"),
    };
    let before: usize = total(&app);
    assert_eq!(before, 3, "those of GPU 1");
    let mut snapshot = sample::snapshot(2, 3);
    snapshot.time = snapshot.time.plus_seconds(2.0);
    for gpu in &mut snapshot.gpus {
        gpu.processes.iter_mut().for_each(|rows| rows.truncate(1));
    }
    see(&mut app, 2, snapshot);
    assert_eq!(total(&app), 1);
    assert_eq!(app.mode, Mode::Page);
}

#[test]
fn a_key_without_a_meaning_is_answered() {
    let mut app = gpus(1);
    assert_eq!(press(&mut app, KeyCode::Char('y')), Some(Effect::Draw));
    let note = app.note.take().unwrap();
    assert!(note.contains("? lists the keys"), "{note}");
}

#[test]
fn the_last_column_cannot_be_hidden() {
    let mut app = gpus(1);
    press(&mut app, KeyCode::F(2));
    for _ in Column::ALL {
        press(&mut app, KeyCode::Char(' '));
        press(&mut app, KeyCode::Char('j'));
    }
    press(&mut app, KeyCode::Char(' '));
    assert_eq!(app.table.columns.iter().count(), 1);
    assert_eq!(app.note.as_deref(), Some("the table needs a column"));
    press(&mut app, KeyCode::Char('r'));
    assert_eq!(app.table.columns.iter().count(), Column::ALL.len());
}

#[test]
fn a_gpu_that_is_asked_for_with_the_screen_and_is_not_there_is_named() {
    for (typed, note) in
        [("gpu:0", None), ("gpu:9", Some("gpu:9: there is no such GPU; there are 0, 1"))]
    {
        let mut app = app();
        app.table.choice.filter = crate::model::Selector::parse(typed).unwrap();
        see(&mut app, 0, sample::snapshot(2, 1));
        assert_eq!(app.note.as_deref(), note, "{typed}");
    }
}
