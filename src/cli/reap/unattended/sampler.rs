//! The thread that looks at the machine: it opens the driver, however long that takes, and then samples
//! at the interval, or as soon as it is asked to.
//!
//! A driver that hangs holds up this thread and nothing else; one that goes away later gives snapshots
//! with errors and comes back by itself (see [`crate::source::live`]).

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::ServiceEvent;

/// Pause between the first attempts to open the driver; doubled after each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Samples until the event channel closes. `asks` carries requests for a sample now.
pub(super) fn run<M>(
    mut open: impl FnMut() -> Result<(M, ServiceEvent), String>,
    mut sample: impl FnMut(&mut M) -> ServiceEvent,
    interval: Duration,
    asks: &Receiver<()>,
    events: &SyncSender<ServiceEvent>,
) {
    let mut pause = FIRST_PAUSE;
    let mut machine = loop {
        match open() {
            Ok((machine, opened)) => {
                if events.send(opened).is_err() {
                    return;
                }
                break machine;
            }
            Err(error) => {
                if events.send(ServiceEvent::NotOpened(error)).is_err() || !wait(asks, pause) {
                    return;
                }
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    };
    loop {
        let begun = Instant::now();
        if events.send(sample(&mut machine)).is_err() {
            return;
        }
        if !wait(asks, interval.saturating_sub(begun.elapsed())) {
            return;
        }
    }
}

/// Waits, or returns early on a request; `false` if the request channel is closed.
fn wait(asks: &Receiver<()>, time: Duration) -> bool {
    let asked = asks.recv_timeout(time);
    // Merge requests that arrived meanwhile.
    while asks.try_recv().is_ok() {}
    asked != Err(RecvTimeoutError::Disconnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Snapshot, Time};
    use std::sync::mpsc::sync_channel;
    use std::thread;

    #[test]
    fn a_driver_that_is_not_there_is_tried_until_it_is() {
        let (ask, asks) = sync_channel(8);
        let (events, received) = sync_channel(8);
        let mut left = 2;
        let open = move || match left {
            0 => Ok((7, ServiceEvent::NotOpened("opened".to_owned()))),
            _ => {
                left -= 1;
                Err(format!("no driver, {left}"))
            }
        };
        let sample = |number: &mut i64| {
            *number += 1;
            ServiceEvent::Sample {
                snapshot: Box::new(Snapshot::new(Time::from_unix_milliseconds(*number))),
                at: Instant::now(),
            }
        };
        let hour = Duration::from_secs(3600);
        let thread = thread::spawn(move || run(open, sample, hour, &asks, &events));
        let next = || received.recv().unwrap();
        for expected in ["no driver, 1", "no driver, 0", "opened"] {
            let ServiceEvent::NotOpened(text) = next() else { panic!("{expected}") };
            assert_eq!(text, expected);
            // A request ends the wait.
            ask.send(()).unwrap();
        }
        for expected in [8, 9] {
            let ServiceEvent::Sample { snapshot, .. } = next() else { panic!("no sample") };
            assert_eq!(snapshot.time, Time::from_unix_milliseconds(expected));
            ask.send(()).unwrap();
        }
        drop(ask);
        while received.recv().is_ok() {}
        thread.join().unwrap();
    }
}
