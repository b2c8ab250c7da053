//! What the main thread hears of the others.

use super::*;

#[test]
fn a_thread_that_panics_is_heard_of() {
    let (sender, messages) = sync_channel(QUEUE);
    spawn("keyboard", &sender, |_| panic!("as a bug would")).unwrap();
    let told = messages.recv().unwrap();
    let is_told = matches!(
        told,
        Message::Failed(Error::Panicked { thread: "keyboard" })
    );
    assert!(is_told);
    spawn("sampling", &sender, |_| {}).unwrap();
    drop(sender);
    assert!(messages.recv().is_err(), "an end is no panic");
}
