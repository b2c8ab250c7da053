//! That the table of keys is whole, and at one with itself.

use super::*;

const CONTEXTS: [Context; 3] = [Context::Main, Context::Page, Context::Plan];

fn event(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
    KeyEvent::new(code, modifiers)
}

#[test]
fn no_key_is_bound_twice_in_a_context() {
    for context in CONTEXTS {
        let keys: Vec<Key> = table(context)
            .flat_map(|binding| binding.keys)
            .copied()
            .collect();
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
    assert_eq!(
        main(KeyCode::Char('c'), KeyModifiers::CONTROL),
        Some(KeyAction::QuitAtOnce)
    );
    assert_eq!(
        main(KeyCode::Char('G'), KeyModifiers::SHIFT),
        Some(KeyAction::Last)
    );
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
        (3, KeyAction::Filter),
        (4, KeyAction::Filter),
        (5, KeyAction::Tree),
        (6, KeyAction::ChooseSort),
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
