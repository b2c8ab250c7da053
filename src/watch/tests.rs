//! What the main thread hears of the others.

use super::*;

#[test]
fn a_thread_that_panics_is_reported() {
    let (sender, messages) = sync_channel(QUEUE);
    spawn("keyboard", &sender, |_| panic!("as a bug would")).unwrap();
    let message = messages.recv().unwrap();
    let is_reported = matches!(
        message,
        ThreadMessage::Failed(WatchError::Panicked { thread: "keyboard" })
    );
    assert!(is_reported);
    spawn("sampling", &sender, |_| {}).unwrap();
    drop(sender);
    assert!(messages.recv().is_err(), "an end is no panic");
}

#[test]
fn esc_and_a_key_that_come_at_once_are_two_keys() {
    let keys = |code, modifiers| pressed(KeyEvent::new(code, modifiers)).collect::<Vec<_>>();
    let q = KeyEvent::from(KeyCode::Char('q'));
    let alt = KeyModifiers::ALT;
    assert_eq!(keys(q.code, alt), [KeyCode::Esc.into(), q]);
    assert_eq!(keys(q.code, KeyModifiers::NONE), [q]);
    let control = KeyModifiers::CONTROL;
    let both = keys(q.code, alt | control);
    assert_eq!(both[1], KeyEvent::new(q.code, control));
    // These have sequences of their own.
    assert_eq!(keys(KeyCode::Up, alt), [KeyEvent::new(KeyCode::Up, alt)]);
}
