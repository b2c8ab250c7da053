//! Tests the prompt: its editing keys, pasted text, and what Enter and Esc do with the text.

use super::*;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{ctrl, events, filter, keys, note, press, screen};
use crate::watch::update::update;
use crate::watch::view_model::Screenful;

fn app() -> App {
    let mut app = screen(80, 24);
    let snapshot = sample::snapshot(1, 4);
    app.show(Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None));
    app
}

fn prompt(app: &App) -> &Prompt {
    match &app.mode {
        Mode::Prompt(prompt) => prompt,
        mode => panic!("{mode:?}"),
    }
}

/// Returns the text with a bar at the cursor.
fn line(app: &App) -> String {
    let prompt = prompt(app);
    let (before, after) = prompt.text.split_at(prompt.cursor);
    format!("{before}|{after}")
}

fn listed(app: &App) -> (usize, String) {
    (app.table.listing.lines.len(), filter(app))
}

#[test]
fn the_line_editor_has_readline_keys_and_keeps_marks_together() {
    let mut app = app();
    for (line_of_keys, expected) in [
        ("/ab cd", "ab cd|"),
        ("<Left>", "ab c|d"),
        ("x", "ab cx|d"),
        ("<Backspace>", "ab c|d"),
        ("<Del><Del>", "ab c|"),
        ("<Right>", "ab c|"),
        ("<Home>", "|ab c"),
        ("<Left><Backspace>", "|ab c"),
        ("<Right>", "a|b c"),
        ("<End>", "ab c|"),
        (" de  <Ctrl-W>", "ab c |"),
        ("<Ctrl-A>", "|ab c "),
        ("<Ctrl-F>", "a|b c "),
        ("<Ctrl-D>", "a| c "),
        ("<Ctrl-E>", "a c |"),
        ("<Ctrl-B>", "a c| "),
        ("<Ctrl-H>", "a | "),
        ("<Ctrl-K>", "a |"),
        ("<Ctrl-U><Ctrl-W><Ctrl-K>", "|"),
        ("日e\u{301}\u{302}x<Left>", "日e\u{301}\u{302}|x"),
        ("<Left>", "日|e\u{301}\u{302}x"),
        ("<Left>", "|日e\u{301}\u{302}x"),
        ("<Right>", "日|e\u{301}\u{302}x"),
        ("<Right>", "日e\u{301}\u{302}|x"),
        ("<Backspace>", "日|x"),
        ("<Backspace>", "|x"),
    ] {
        for key in events(line_of_keys) {
            press(&mut app, key);
        }
        assert_eq!(line(&app), expected, "{line_of_keys}");
    }
}

#[test]
fn a_filter_applies_while_typed_and_enter_keeps_it() {
    let mut app = app();
    keys(&mut app, "/user:");
    assert_eq!(app.table.listing.lines.len(), 4, "the term is incomplete");
    assert!(prompt(&app).error.as_deref().unwrap().contains("needs a value"));
    keys(&mut app, "ann");
    assert_eq!((app.table.listing.lines.len(), app.table.listing.hidden), (2, 2));
    assert_eq!(prompt(&app).error, None);
    keys(&mut app, " mem>");
    assert_eq!(filter(&app), "user:ann");
    assert!(keys(&mut app, "<Enter>").is_some());
    assert!(prompt(&app).error.is_some(), "the prompt stays open with an error");
    keys(&mut app, "4GiB<Enter>");
    assert_eq!(app.mode, Mode::Main);
    assert_eq!(filter(&app), "user:ann mem>4GiB");
    keys(&mut app, "/");
    assert_eq!(line(&app), "user:ann mem>4GiB|");
    press(&mut app, ctrl('u'));
    assert_eq!(filter(&app), "");
    keys(&mut app, "<Enter>");
    assert_eq!((app.table.choice.filter.is_none(), app.table.listing.hidden), (true, 0));
}

#[test]
fn the_beginning_of_a_terms_name_filters_only_after_enter() {
    let mut app = app();
    keys(&mut app, "/runti");
    assert_eq!(listed(&app), (4, String::new()));
    press(&mut app, ctrl('u'));
    keys(&mut app, "user:ann runti");
    assert_eq!(listed(&app), (2, "user:ann".to_owned()));
    press(&mut app, ctrl('u'));
    keys(&mut app, "runti<Enter>");
    assert_eq!(listed(&app), (0, "runti".to_owned()));
    // No term's name starts with this word, so the word filters immediately.
    keys(&mut app, "<Esc>/nowhere");
    assert_eq!(app.table.listing.lines.len(), 0);
}

#[test]
fn escape_and_ctrl_c_restore_the_filter_and_the_selection() {
    for leave in [|app: &mut App| keys(app, "<Esc>"), |app: &mut App| press(app, ctrl('c'))] {
        let mut app = app();
        keys(&mut app, "/ann<Enter>j");
        let selected = app.subject().unwrap().row.key;
        keys(&mut app, "/ bob");
        assert_eq!(app.table.listing.lines.len(), 0);
        assert_eq!(leave(&mut app), Some(Effect::Draw));
        assert_eq!((&app.mode, filter(&app).as_str()), (&Mode::Main, "ann"));
        assert_eq!(app.subject().unwrap().row.key, selected);
    }
}

#[test]
fn pasted_text_is_inserted_and_never_acts_as_keys() {
    let paste = |app: &mut App, text: &str| update(app, Event::Paste(text.to_owned()));
    let mut app = app();
    keys(&mut app, "j");
    let (table, sort) = (app.table.selected(), app.table.choice.sort);
    for text in ["xy\nq", "\u{3}", "/mem>4GiB\n", ""] {
        assert_eq!(paste(&mut app, text), Some(Effect::Draw), "{text:?}");
        assert_eq!(app.mode, Mode::Main, "{text:?}");
        assert!(note(&app).contains("does not act as keys"), "{}", note(&app));
    }
    assert_eq!((app.table.selected(), app.table.choice.sort), (table, sort));
    for (key, open) in [("?", Mode::Help(0)), ("o", Mode::ChooseSort)] {
        keys(&mut app, key);
        paste(&mut app, "jq");
        assert_eq!(app.mode, open);
        keys(&mut app, "<Esc>");
    }

    keys(&mut app, "/user");
    paste(&mut app, ":ann\r\n gpu:0\t\u{1b}\n");
    assert_eq!(line(&app), "user:ann   gpu:0  |", "one line");
    assert_eq!(filter(&app), "user:ann   gpu:0");
    keys(&mut app, "<Home>");
    paste(&mut app, &"x".repeat(2 * CHARS_MAX));
    let prompt = prompt(&app);
    assert_eq!(prompt.text.chars().count(), CHARS_MAX);
    assert!(prompt.text.ends_with("xuser:ann   gpu:0  "));
}
