//! That the table of keys is whole, and at one with itself.

use super::*;

const CONTEXTS: [Context; 4] = [Context::Main, Context::Page, Context::Plan, Context::Columns];

fn event(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
    KeyEvent::new(code, modifiers)
}

#[test]
fn no_key_is_bound_twice_in_a_context() {
    for context in CONTEXTS {
        let keys: Vec<Key> = table(context).flat_map(|binding| binding.keys).copied().collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?} in {context:?}");
        }
    }
}

#[test]
fn every_action_is_reached_by_a_key_and_every_key_has_words() {
    let source = include_str!("../keys.rs");
    let body = source.split("pub enum KeyAction {").nth(1).unwrap();
    let body = body.split("\n}").next().unwrap();
    let names: Vec<&str> = body
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .map(|line| line.split(['(', ',']).next().unwrap())
        .collect();
    assert!(names.contains(&"Down") && names.contains(&"SortBy"));
    let bindings = || GROUPS.iter().flat_map(|group| group.bindings);
    for name in names {
        let is_it = |action: KeyAction| format!("{action:?}").split('(').next() == Some(name);
        assert!(bindings().any(|binding| is_it(binding.action)), "{name}");
    }
    for binding in bindings() {
        assert!(!binding.keys.is_empty(), "{binding:?}");
        assert!(!binding.label.is_empty() && !binding.does.is_empty());
    }
}

#[test]
fn a_key_counts_when_it_is_pressed_with_nothing_else_held() {
    let main = |code, modifiers| action(Context::Main, &event(code, modifiers));
    let q = KeyCode::Char('q');
    assert_eq!(main(q, KeyModifiers::NONE), Some(KeyAction::Quit));
    assert_eq!(main(q, KeyModifiers::ALT), None);
    assert_eq!(main(q, KeyModifiers::CONTROL), None);
    assert_eq!(main(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(KeyAction::QuitAtOnce));
    assert_eq!(main(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(KeyAction::Last));
}

#[test]
fn a_context_has_its_own_keys_and_those_of_the_table() {
    let space = event(KeyCode::Char(' '), KeyModifiers::NONE);
    assert_eq!(action(Context::Main, &space), Some(KeyAction::Tag));
    assert_eq!(action(Context::Page, &space), Some(KeyAction::PageDown));
    let pause = event(KeyCode::Char('p'), KeyModifiers::NONE);
    assert_eq!(action(Context::Page, &pause), Some(KeyAction::Pause));
}

#[test]
fn what_htop_has_in_the_fingers_does_the_same_here() {
    let press = |code: KeyCode| action(Context::Main, &event(code, KeyModifiers::NONE));
    let by = |c: char| press(KeyCode::Char(c));
    for (key, wanted) in [
        (1, KeyAction::Help),
        (2, KeyAction::Columns),
        (3, KeyAction::Search),
        (4, KeyAction::Filter),
        (5, KeyAction::Tree),
        (6, KeyAction::ChooseSort),
        (7, KeyAction::Totals),
        (8, KeyAction::GpuPage),
        (9, KeyAction::Reap),
        (10, KeyAction::Quit),
    ] {
        assert_eq!(press(KeyCode::F(key)), Some(wanted), "F{key}");
    }
    for (key, wanted) in [
        (' ', KeyAction::Tag),
        ('U', KeyAction::UntagAll),
        ('u', KeyAction::Mine),
        ('t', KeyAction::Tree),
        ('/', KeyAction::Filter),
        ('\\', KeyAction::Filter),
        ('I', KeyAction::Reverse),
        ('Z', KeyAction::Pause),
        ('M', KeyAction::SortBy(Column::Memory)),
        ('P', KeyAction::SortBy(Column::CpuPercent)),
        ('T', KeyAction::SortBy(Column::Runtime)),
    ] {
        assert_eq!(by(key), Some(wanted), "{key}");
    }
    assert_eq!(by('k'), Some(KeyAction::Up), "a bare k never ends anything");
}

#[test]
fn a_habit_that_is_bound_to_nothing_is_answered() {
    let code = |code| event(code, KeyModifiers::NONE);
    for (habits, answer) in HABITS {
        assert!(answer.len() <= 78, "it has room at 80 columns: {answer}");
        for key in *habits {
            assert_eq!(action(Context::Main, &key.event()), None, "{key:?} is bound");
            assert_eq!(unbound(&key.event()).as_deref(), Some(*answer));
        }
    }
    let plain = "'y' does nothing here; ? lists the keys";
    assert_eq!(unbound(&code(KeyCode::Char('y'))).as_deref(), Some(plain));
    let number = "F11 does nothing here; ? lists the keys";
    assert_eq!(unbound(&code(KeyCode::F(11))).as_deref(), Some(number));
    for silent in [KeyCode::Null, KeyCode::CapsLock, KeyCode::Char('\u{7}')] {
        assert_eq!(unbound(&code(silent)), None, "{silent:?}");
    }
}

#[test]
fn a_digit_carries_its_number() {
    for (number, digit) in (0u8..).zip('0'..='9') {
        let event = event(KeyCode::Char(digit), KeyModifiers::NONE);
        assert_eq!(action(Context::Main, &event), Some(KeyAction::Gpu(number)));
    }
}
