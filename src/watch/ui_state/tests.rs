//! What is remembered, and what is made of it.

use super::*;
use crate::watch::testing::screen_of;

fn app() -> App {
    screen_of(None, 1, (80, 24))
}

#[test]
fn an_arrangement_comes_back() {
    for form in [None, Some(Form::Cards), Some(Form::Lines), Some(Form::Totals)] {
        for column in Column::ALL {
            let mut app = app();
            app.table.choice.sort = Sort { column, reversed: true };
            app.table.choice.tree = true;
            app.table.choice.hide_small = true;
            app.form = form;
            app.theme = app.theme.next();
            let columns = [Column::Command, column, Column::Pid];
            app.table.columns = Columns::new(columns).unwrap();
            let text = serde_json::to_vec(&app.ui_state()).unwrap();
            let mut next = self::app();
            next.restore(&UiState::parse(&text));
            assert_eq!(next.table.choice, app.table.choice);
            assert_eq!(next.table.columns, app.table.columns);
            assert_eq!((next.form, next.theme), (app.form, app.theme));
            assert_eq!(next.ui_state(), app.ui_state());
        }
    }
}

#[test]
fn garbage_changes_nothing_and_what_makes_sense_counts() {
    let usual = app().ui_state();
    for text in [
        "",
        "null",
        "[1,2]",
        "{",
        "\u{0}\u{ff}",
        r#"{"columns":7}"#,
        r#"{"columns":[]}"#,
        r#"{"columns":["NO SUCH",7,null]}"#,
        r#"{"sort":7,"reversed":"yes","tree":null,"gpus":["cards"],"theme":{}}"#,
        r#"{"sort":"no such column","reversed":true,"gpus":"no such form","theme":"plaid"}"#,
        r#"{"of another version":{"deep":[1]}}"#,
    ] {
        let mut app = app();
        app.restore(&UiState::parse(text.as_bytes()));
        assert_eq!(app.ui_state(), usual, "{text}");
    }
    let mut app = app();
    app.restore(&UiState::parse(br#"{"sort":"PID","theme":"plaid","tree":true,"new":1}"#));
    assert_eq!(app.table.choice.sort.column, Column::Pid);
    assert!(app.table.choice.tree && !app.table.choice.sort.reversed);
}

#[test]
fn only_what_changed_is_kept_and_a_direction_stays_with_its_column() {
    let mut app = app();
    let start = app.ui_state();
    assert_eq!(app.ui_state().since(&start), UiState::default());
    app.table.choice.sort.column = Column::Pid;
    let changes = app.ui_state().since(&start);
    let expected =
        UiState { sort: Some("PID".to_owned()), reversed: Some(false), ..UiState::default() };
    assert_eq!(changes, expected);
    let stored = UiState {
        sort: Some("USER".to_owned()),
        reversed: Some(true),
        tree: Some(true),
        ..UiState::default()
    };
    let expected = UiState { tree: Some(true), ..expected };
    assert_eq!(stored.with(changes), expected);
}
