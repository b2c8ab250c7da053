//! Tests of the messages between threads, and snapshots for other tests (in [`sample`]).

use super::*;

pub(crate) mod sample;

#[test]
fn a_thread_that_panics_is_reported() {
    let (sender, messages) = sync_channel(QUEUE);
    spawn("keyboard", &sender, |_| panic!("as a bug would")).unwrap();
    let message = messages.recv().unwrap();
    let is_reported =
        matches!(message, ThreadMessage::Failed(WatchError::Panicked { thread: "keyboard" }));
    assert!(is_reported);
    spawn("sampling", &sender, |_| {}).unwrap();
    drop(sender);
    assert!(messages.recv().is_err(), "a normal end is not reported");
}
