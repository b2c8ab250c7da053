use super::*;
use crate::watch::testing::screen_of;

fn app() -> App {
    screen_of(None, 1, (80, 24))
}

#[test]
fn saved_settings_are_restored() {
    for column in Column::ALL {
        let mut app = app();
        app.table.choice.sort = Sort { column, reversed: true };
        app.table.choice.tree = true;
        app.border = 8;
        app.theme = app.theme.next();
        let columns = [Column::Command, column, Column::Pid];
        app.table.columns = Columns::new(columns).unwrap();
        let text = serde_json::to_vec(&app.ui_state()).unwrap();
        let mut next = self::app();
        next.restore(&parse(&text));
        assert_eq!(next.table.choice, app.table.choice);
        assert_eq!(next.table.columns, app.table.columns);
        assert_eq!((next.border, next.theme), (app.border, app.theme));
        assert_eq!(next.ui_state(), app.ui_state());
    }
}

#[test]
fn invalid_settings_are_ignored_one_by_one() {
    let default = app().ui_state();
    for text in [
        "",
        "null",
        "[1,2]",
        "{",
        "\u{0}\u{ff}",
        r#"{"columns":7}"#,
        r#"{"columns":[]}"#,
        r#"{"columns":["NO SUCH",7,null]}"#,
        r#"{"sort":7,"tree":null,"gpus":["cards"],"theme":{}}"#,
        r#"{"sort":["no such column",true],"border":"wide","theme":"plaid"}"#,
        r#"{"of another version":{"deep":[1]}}"#,
    ] {
        let mut app = app();
        app.restore(&parse(text.as_bytes()));
        assert_eq!(app.ui_state(), default, "{text}");
    }
    let mut app = app();
    app.restore(&parse(br#"{"sort":["PID",false],"theme":"plaid","tree":true,"new":1}"#));
    assert_eq!(app.table.choice.sort.column, Column::Pid);
    assert!(app.table.choice.tree && !app.table.choice.sort.reversed);
}
