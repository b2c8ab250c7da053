use super::*;

fn event(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
    KeyEvent::new(code, modifiers)
}

#[test]
fn key_names_parse_and_are_unique_in_a_context() {
    for context in [Context::Main, Context::Page, Context::Plan, Context::Columns] {
        let bindings = GROUPS.iter().filter(|group| group.0 == context).flat_map(|group| group.2);
        let names = bindings.flat_map(|binding| binding.0.split(' '));
        let mut keys: Vec<KeyEvent> = Vec::new();
        for name in names.filter(|name| *name != DIGITS) {
            let key = named(name).unwrap_or_else(|| panic!("{name}"));
            assert!(!keys.contains(&key), "{name} in {context:?}");
            keys.push(key);
        }
    }
    for hint in HINTS {
        let mut keys = events(hint.key);
        assert!(keys.all(|key| action(hint.context, &key).is_some()), "{hint:?}");
    }
}

#[test]
fn a_key_with_an_unbound_modifier_does_nothing() {
    let main = |code, modifiers| action(Context::Main, &event(code, modifiers));
    let q = KeyCode::Char('q');
    assert_eq!(main(q, KeyModifiers::NONE), Some(KeyAction::Quit));
    assert_eq!(main(q, KeyModifiers::ALT), None);
    assert_eq!(main(q, KeyModifiers::CONTROL), None);
    assert_eq!(main(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(KeyAction::QuitAtOnce));
    assert_eq!(main(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(KeyAction::Last));
    assert_eq!(main(KeyCode::Char('7'), KeyModifiers::NONE), Some(KeyAction::Gpu(7)));
}
