//! The line editor key by key, and what a typed line does.

use super::*;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{press, screen};
use crate::watch::update::update;
use crate::watch::view_model::Screenful;

fn app() -> App {
    let mut app = screen(80, 24);
    let snapshot = sample::snapshot(1, 4);
    app.show(Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None));
    app
}

fn ctrl(app: &mut App, c: char) -> Option<Effect> {
    let key = KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    update(app, Event::Key(key))
}

fn type_in(app: &mut App, text: &str) {
    for c in text.chars() {
        press(app, KeyCode::Char(c));
    }
}

fn prompt(app: &App) -> &Prompt {
    match &app.mode {
        Mode::Prompt(prompt) => prompt,
        mode => panic!("{mode:?}"),
    }
}

/// The text with the cursor as a bar.
fn line(app: &App) -> String {
    let prompt = prompt(app);
    let (before, after) = prompt.text.split_at(prompt.cursor);
    format!("{before}|{after}")
}

fn in_force(app: &App) -> String {
    let filter = app.table.choice.filter.as_ref();
    filter.map_or_else(String::new, Selector::to_string)
}

#[test]
fn a_line_is_edited_as_in_readline() {
    let mut app = app();
    type_in(&mut app, "/ab cd");
    assert_eq!(line(&app), "ab cd|");
    for (key, expected) in [
        (KeyCode::Left, "ab c|d"),
        (KeyCode::Char('x'), "ab cx|d"),
        (KeyCode::Backspace, "ab c|d"),
        (KeyCode::Delete, "ab c|"),
        (KeyCode::Delete, "ab c|"),
        (KeyCode::Right, "ab c|"),
        (KeyCode::Home, "|ab c"),
        (KeyCode::Left, "|ab c"),
        (KeyCode::Backspace, "|ab c"),
        (KeyCode::Right, "a|b c"),
        (KeyCode::End, "ab c|"),
    ] {
        press(&mut app, key);
        assert_eq!(line(&app), expected, "{key:?}");
    }
    type_in(&mut app, " de  ");
    for (key, expected) in [
        ('w', "ab c |"),
        ('a', "|ab c "),
        ('f', "a|b c "),
        ('d', "a| c "),
        ('e', "a c |"),
        ('b', "a c| "),
        ('h', "a | "),
        ('k', "a |"),
        ('u', "|"),
        ('w', "|"),
        ('k', "|"),
    ] {
        ctrl(&mut app, key);
        assert_eq!(line(&app), expected, "{key}");
    }
}

#[test]
fn combining_marks_go_with_their_base_character() {
    let mut app = app();
    type_in(&mut app, "/日e\u{301}\u{302}x");
    for (key, expected) in [
        (KeyCode::Left, "日e\u{301}\u{302}|x"),
        (KeyCode::Left, "日|e\u{301}\u{302}x"),
        (KeyCode::Left, "|日e\u{301}\u{302}x"),
        (KeyCode::Right, "日|e\u{301}\u{302}x"),
        (KeyCode::Right, "日e\u{301}\u{302}|x"),
        (KeyCode::Backspace, "日|x"),
        (KeyCode::Backspace, "|x"),
    ] {
        press(&mut app, key);
        assert_eq!(line(&app), expected, "{key:?}");
    }
}

#[test]
fn a_filter_holds_while_it_is_typed_and_enter_keeps_it() {
    let mut app = app();
    type_in(&mut app, "/user:");
    assert_eq!(app.table.listing.lines.len(), 4, "it is not finished");
    assert!(prompt(&app).error.as_deref().unwrap().contains("needs a value"));
    type_in(&mut app, "ann");
    assert_eq!((app.table.listing.lines.len(), app.table.listing.hidden), (2, 2));
    assert_eq!(prompt(&app).error, None);
    // The last one that made sense stays.
    type_in(&mut app, " mem>");
    assert_eq!(in_force(&app), "user:ann");
    assert!(press(&mut app, KeyCode::Enter).is_some());
    assert!(prompt(&app).error.is_some(), "it stays open and says why");
    type_in(&mut app, "4GiB");
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.mode, Mode::Main);
    assert_eq!(in_force(&app), "user:ann mem>4GiB");
    type_in(&mut app, "/");
    assert_eq!(line(&app), "user:ann mem>4GiB|");
    ctrl(&mut app, 'u');
    assert_eq!(in_force(&app), "");
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.table.choice.filter.is_none(), app.table.listing.hidden), (true, 0));
}

#[test]
fn a_size_without_a_unit_hides_nothing_and_gives_the_reason() {
    let mut app = app();
    type_in(&mut app, "/user:ann mem>20");
    assert_eq!((app.table.listing.lines.len(), app.table.listing.hidden), (2, 2));
    assert_eq!(in_force(&app), "user:ann");
    let expected = "mem: \"20\" has no unit; write 20GiB, 20MiB or 20%";
    assert_eq!(prompt(&app).error.as_deref(), Some(expected));
    press(&mut app, KeyCode::Enter);
    assert_eq!(prompt(&app).error.as_deref(), Some(expected), "it stays open");
    type_in(&mut app, "%");
    assert_eq!(prompt(&app).error, None);
}

#[test]
fn the_beginning_of_a_name_hides_nothing_but_enter_means_it() {
    let mut app = app();
    type_in(&mut app, "/runti");
    assert_eq!((in_force(&app).as_str(), app.table.listing.lines.len()), ("", 4));
    ctrl(&mut app, 'u');
    type_in(&mut app, "user:ann runti");
    assert_eq!((in_force(&app).as_str(), app.table.listing.lines.len()), ("user:ann", 2));
    ctrl(&mut app, 'u');
    type_in(&mut app, "runti");
    press(&mut app, KeyCode::Enter);
    assert_eq!((in_force(&app).as_str(), app.table.listing.lines.len()), ("runti", 0));
    // What is no beginning of a name hides at once.
    press(&mut app, KeyCode::Esc);
    type_in(&mut app, "/nowhere");
    assert_eq!(app.table.listing.lines.len(), 0);
}

#[test]
fn escape_and_ctrl_c_restore_the_filter_and_the_selection() {
    for leave in [|app: &mut App| press(app, KeyCode::Esc), |app: &mut App| ctrl(app, 'c')] {
        let mut app = app();
        type_in(&mut app, "/ann");
        press(&mut app, KeyCode::Enter);
        type_in(&mut app, "j");
        let selected = app.subject().unwrap().row.key;
        type_in(&mut app, "/ bob");
        assert_eq!(app.table.listing.lines.len(), 0);
        assert_eq!(leave(&mut app), Some(Effect::Draw));
        assert_eq!((&app.mode, in_force(&app).as_str()), (&Mode::Main, "ann"));
        assert_eq!(app.subject().unwrap().row.key, selected);
    }
}

#[test]
fn the_selection_comes_back_with_its_row_while_one_types() {
    let mut app = app();
    type_in(&mut app, "j");
    let selected = app.subject().unwrap().row.key;
    type_in(&mut app, "/nowhere");
    assert_eq!(app.table.selected(), None);
    ctrl(&mut app, 'u');
    assert_eq!(app.subject().unwrap().row.key, selected);
}

#[test]
fn former_filters_are_called_back() {
    let mut app = app();
    for text in ["/ann", "/bob", "/bob"] {
        type_in(&mut app, text);
        press(&mut app, KeyCode::Enter);
        app.choose(|choice| choice.filter = None);
    }
    type_in(&mut app, "/ha");
    for (key, expected) in [
        (KeyCode::Down, "ha|"),
        (KeyCode::Up, "bob|"),
        (KeyCode::Up, "ann|"),
        (KeyCode::Up, "ann|"),
        (KeyCode::Down, "bob|"),
        (KeyCode::Down, "ha|"),
    ] {
        press(&mut app, key);
        assert_eq!(line(&app), expected, "{key:?}");
    }
    press(&mut app, KeyCode::Up);
    assert_eq!(in_force(&app), "bob");
    // A time to go to is another matter.
    press(&mut app, KeyCode::Esc);
    type_in(&mut app, "@");
    press(&mut app, KeyCode::Up);
    assert_eq!(line(&app), "|");
}

#[test]
fn a_time_is_typed_without_touching_the_filter() {
    let mut app = app();
    type_in(&mut app, "@-5m");
    assert_eq!(prompt(&app).purpose, Purpose::Seek);
    assert_eq!(in_force(&app), "");
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.mode, Mode::Main);
    type_in(&mut app, "@");
    assert_eq!(press(&mut app, KeyCode::Enter), Some(Effect::Draw));
    assert_eq!(app.mode, Mode::Main);
}

#[test]
fn keys_that_are_not_text_do_nothing_and_a_storm_is_bounded() {
    let mut app = app();
    type_in(&mut app, "/");
    for code in [KeyCode::F(2), KeyCode::Tab, KeyCode::PageUp, KeyCode::Char('\u{1b}')] {
        assert_eq!(press(&mut app, code), None, "{code:?}");
    }
    let alt = KeyEvent::new(KeyCode::Char('x'), KeyModifiers::ALT);
    assert_eq!(update(&mut app, Event::Key(alt)), None);
    assert_eq!(line(&app), "|");
    // A word of no term, so that each key is tried on the rows.
    for _ in 0..2000 {
        press(&mut app, KeyCode::Char('日'));
    }
    assert_eq!(prompt(&app).text.chars().count(), MOST_CHARS);
}

#[test]
fn what_is_pasted_is_typed_and_never_pressed() {
    let paste = |app: &mut App, text: &str| update(app, Event::Paste(text.to_owned()));
    let mut app = app();
    press(&mut app, KeyCode::Char('j'));
    let (table, sort) = (app.table.selected(), app.table.choice.sort);
    for text in ["xy\nq", "\u{3}", "/mem>4GiB\n", ""] {
        assert_eq!(paste(&mut app, text), Some(Effect::Draw), "{text:?}");
        assert_eq!(app.mode, Mode::Main, "{text:?}");
        let note = app.note.clone().unwrap_or_default();
        assert!(note.contains("presses no keys"), "{note}");
    }
    assert_eq!((app.table.selected(), app.table.choice.sort), (table, sort));
    for (key, open) in [('?', Mode::Help(0)), ('o', Mode::ChooseSort)] {
        press(&mut app, KeyCode::Char(key));
        paste(&mut app, "jq");
        assert_eq!(app.mode, open);
        press(&mut app, KeyCode::Esc);
    }

    type_in(&mut app, "/user");
    paste(&mut app, ":ann\r\n gpu:0\t\u{1b}\n");
    assert_eq!(line(&app), "user:ann   gpu:0  |", "one line");
    assert_eq!(in_force(&app), "user:ann   gpu:0");
    press(&mut app, KeyCode::Home);
    paste(&mut app, &"x".repeat(2 * MOST_CHARS));
    let prompt = prompt(&app);
    assert_eq!(prompt.text.chars().count(), MOST_CHARS);
    assert!(prompt.text.ends_with("xuser:ann   gpu:0  "));
}
