//! Tests of keys that users of other monitors expect: GPU numbers, Space, F3, and one key per page.

use std::collections::BTreeSet;

use super::*;
use crate::model::Selector;
use crate::watch::state::page::PageContent;

fn gpus(count: u32) -> App {
    let mut app = screen(120, 40);
    show_sample(&mut app, 0, sample::snapshot(count, 3));
    app
}

#[test]
fn a_digit_sets_and_removes_the_filter_for_its_gpu() {
    let mut app = gpus(4);
    for (line, expected, rows) in
        [("2", "gpu:2", 3), ("0", "gpu:0", 3), ("0", "", 12), ("7", "", 12)]
    {
        keys(&mut app, line);
        assert_eq!((filter(&app).as_str(), app.table.listing.lines.len()), (expected, rows));
    }
    assert_eq!(note(&app), "there is no GPU 7; the last is GPU 3");
}

#[test]
fn only_the_gpus_of_the_filter_are_shown() {
    let mut app = gpus(4);
    for (filter, expected) in [
        ("gpu:2", &[2][..]),
        ("", &[0, 1, 2, 3]),
        ("user:ann", &[0, 1, 2, 3]),
        ("gpu:9", &[0, 1, 2, 3]),
        ("!gpu:1,2", &[0, 3]),
    ] {
        app.table.choice.filter = Selector::parse(filter).unwrap();
        let shown: Vec<u32> = app.shown_gpus().into_iter().map(|gpu| gpu.index).collect();
        assert_eq!(shown, expected, "{filter}");
    }
}

#[test]
fn f3_selects_the_next_matching_row_as_in_htop() {
    let mut app = gpus(4);
    let is_eval = |app: &App| {
        let subject = app.subject().expect("a row is selected");
        subject.process.unwrap().command.clone().unwrap().contains(&"eval.py".into())
    };
    let rows = app.table.listing.lines.len();
    keys(&mut app, "<F3>eval");
    assert_eq!(app.table.listing.lines.len(), rows, "no row is hidden");
    let mut selected = vec![app.table.selected().unwrap()];
    for _ in 0..rows {
        keys(&mut app, "<F3>");
        assert!(is_eval(&app));
        selected.push(app.table.selected().unwrap());
    }
    let distinct: BTreeSet<usize> = selected.iter().copied().collect();
    assert!(distinct.len() > 1, "{selected:?}");
    assert_eq!(selected[0], selected[distinct.len()], "the search wraps around");
    let at = app.table.selected();
    press(&mut app, KeyEvent::new(KeyCode::F(3), KeyModifiers::SHIFT));
    keys(&mut app, "<F3>");
    assert_eq!(app.table.selected(), at);
    keys(&mut app, "<Enter>");
    assert_eq!((&app.mode, app.table.selected()), (&Mode::Main, at));

    keys(&mut app, "<F3><F3>");
    assert!(is_eval(&app) && app.table.selected() != at);
    keys(&mut app, "<Esc>");
    assert_eq!(app.table.selected(), at, "Esc restores the selection");

    keys(&mut app, "<F3>nothing of the kind");
    let Mode::Prompt(prompt) = &app.mode else { panic!("{:?}", app.mode) };
    assert_eq!(prompt.error.as_deref(), Some("no row matches"));
    assert_eq!(app.table.selected(), at);
    keys(&mut gpus(0), "<F3>x<F3>");
}

#[test]
fn two_quick_digits_form_one_number_if_that_gpu_exists() {
    let mut app = gpus(16);
    for (milliseconds, digits, expected) in [
        (5_000, "1", "gpu:1"),
        (5_900, "2", "gpu:12"),
        // There is no GPU 123, so the third digit starts another number.
        (6_000, "3", "gpu:3"),
        (9_000, "1", "gpu:1"),
        (10_001, "1", ""),
        (20_000, "17", "gpu:7"),
    ] {
        tick(&mut app, milliseconds);
        keys(&mut app, digits);
        assert_eq!(filter(&app), expected, "{digits} at {milliseconds}");
    }
}

#[test]
fn space_marks_the_first_row_but_never_a_row_that_moved_up() {
    let mut app = gpus(1);
    keys(&mut app, " ");
    assert_eq!((app.table.tagged.len(), app.table.selected()), (1, Some(1)));
    let first = app.subject_at(0).unwrap().row.key;
    assert!(app.table.tagged.contains(&first));
    keys(&mut app, "k ");
    assert!(app.table.tagged.is_empty());
    keys(&mut app, "k ");
    // The selected process ends. Space must not mark the row that moves up.
    let gone = selected_pid(&app).unwrap();
    let mut snapshot = sample::later(1, 3, 2.0);
    snapshot.gpus[0].processes.as_mut().unwrap().retain(|row| row.pid != gone);
    show_sample(&mut app, 2, snapshot);
    assert_eq!(app.table.selected(), None);
    keys(&mut app, " ");
    assert_eq!(app.table.tagged.len(), 1, "the key only selects a row");
    assert!(app.table.selected().is_some());
    keys(&mut app, " ");
    assert_eq!(app.table.tagged.len(), 2);
}

#[test]
fn the_environment_is_shown_only_on_its_page() {
    let mut app = gpus(1);
    let identity = app.subject().unwrap().row.key.identity;
    let effect = keys(&mut app, "e");
    assert_eq!(effect, Some(Effect::Reclaim(ReclaimRequest::Environment(identity))));
    let answer = |text: &str| ReclaimProgress::Environment {
        of: identity,
        variables: Ok(vec![("HF_HOME".to_owned(), text.to_owned())]),
    };
    update(&mut app, Event::Reclaim(answer("/a\x1b[2J")));
    let lines = app.page.as_ref().unwrap().lines.join("\n");
    assert!(lines.contains(r"HF_HOME=/a\e[2J"), "{lines}");
    keys(&mut app, "<Esc>");
    assert_eq!(update(&mut app, Event::Reclaim(answer("late"))), None);
    assert_eq!(app.mode, Mode::Main);
}

#[test]
fn totals_cover_the_shown_rows_and_are_updated() {
    let mut app = gpus(2);
    keys(&mut app, "1s");
    let total = |app: &App| match &app.page.as_ref().unwrap().content {
        PageContent::Totals { groups, .. } => groups[0].1.iter().map(|total| total.processes).sum(),
        content => panic!("{content:?}"),
    };
    let before: usize = total(&app);
    assert_eq!(before, 3, "the processes of GPU 1");
    show_sample(&mut app, 2, sample::later(2, 1, 2.0));
    assert_eq!(total(&app), 1);
    assert_eq!(app.mode, Mode::Page);
}

#[test]
fn the_last_column_cannot_be_hidden() {
    let mut app = gpus(1);
    keys(&mut app, "<F2>");
    for _ in Column::ALL {
        keys(&mut app, " j");
    }
    keys(&mut app, " ");
    assert_eq!(app.table.columns.iter().count(), 1);
    assert_eq!(note(&app), "the table needs a column");
    keys(&mut app, "r");
    assert_eq!(app.table.columns.iter().count(), Column::ALL.len());
}

#[test]
fn a_missing_gpu_in_the_initial_filter_is_noted() {
    for (typed, expected) in
        [("gpu:0", ""), ("gpu:9", "gpu:9: there is no such GPU; there are 0, 1")]
    {
        let mut app = screen(80, 24);
        app.table.choice.filter = Selector::parse(typed).unwrap();
        show_sample(&mut app, 0, sample::snapshot(2, 1));
        assert_eq!(note(&app), expected, "{typed}");
    }
}
