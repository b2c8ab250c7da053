//! The mailbox between the screen and its worker. Neither waits for the other.
//!
//! A new request replaces an unread one of its kind, because only the newest sample or query counts. A worker that
//! was blocked for an hour by /proc or a disk finds one recent sample, with its age. It always sees a request to
//! stop, and whether the screen is gone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ReclaimRequest;

#[derive(Debug)]
pub enum Received {
    /// A request, and when it was made.
    Request(ReclaimRequest, Instant),
    /// No request came in time.
    TimedOut,
    /// The sender was dropped.
    Closed,
}

/// The screen's side. The mailbox closes when it is dropped.
#[derive(Debug)]
pub struct ReclaimHandle(Arc<Mailbox>);

#[derive(Debug)]
pub struct MailboxReceiver(Arc<Mailbox>);

#[derive(Debug, Default)]
struct Mailbox {
    state: Mutex<MailboxState>,
    available: Condvar,
}

#[derive(Debug, Default)]
struct MailboxState {
    is_closed: bool,
    /// Indexed by [`priority`]. The lowest index is read first.
    requests: [Option<(ReclaimRequest, Instant)>; 7],
}

/// Leaving and stopping come before other work, but a plan is started before it is stopped.
fn priority(ask: &ReclaimRequest) -> usize {
    match ask {
        ReclaimRequest::Leave => 0,
        ReclaimRequest::Begin { .. } => 1,
        ReclaimRequest::Stop { .. } => 2,
        ReclaimRequest::Plan(_) => 3,
        ReclaimRequest::Observe(_) => 4,
        ReclaimRequest::Environment(_) => 5,
        ReclaimRequest::Commands(_) => 6,
    }
}

pub fn mailbox() -> (ReclaimHandle, MailboxReceiver) {
    let shared = Arc::new(Mailbox::default());
    (ReclaimHandle(Arc::clone(&shared)), MailboxReceiver(shared))
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        // No code panics while the mailbox is half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReclaimHandle {
    /// Sends a request made `now`.
    pub fn send(&self, ask: ReclaimRequest, now: Instant) {
        let at = priority(&ask);
        self.0.lock().requests[at] = Some((ask, now));
        self.0.available.notify_one();
    }
}

impl Drop for ReclaimHandle {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.available.notify_one();
    }
}

impl MailboxReceiver {
    /// The next request. Waits up to `patience`, or forever without one. After closing, unread requests are
    /// dropped.
    pub fn receive(&self, patience: Option<Duration>) -> Received {
        let is_empty = |asked: &mut MailboxState| {
            !asked.is_closed && asked.requests.iter().all(Option::is_none)
        };
        let available = &self.0.available;
        let mut asked = match patience {
            None => available
                .wait_while(self.0.lock(), is_empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = available.wait_timeout_while(self.0.lock(), patience, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if asked.is_closed {
            return Received::Closed;
        }
        let first = asked.requests.iter_mut().find_map(Option::take);
        first.map_or(Received::TimedOut, |(ask, at)| Received::Request(ask, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Snapshot;
    use crate::model::Time;
    use crate::reclaim::Plan;
    use crate::reclaim::worker::ObservedSample;

    fn look(seconds: i64) -> ReclaimRequest {
        ReclaimRequest::Observe(ObservedSample {
            snapshot: Arc::new(Snapshot::new(Time::from_unix_milliseconds(seconds * 1000))),
            found: Vec::new(),
        })
    }

    fn begin(number: u64) -> ReclaimRequest {
        let plan = Plan { time: Time::default(), targets: Vec::new(), refused: Vec::new() };
        let plan = Arc::new(plan);
        ReclaimRequest::Begin { number, plan }
    }

    fn read(inbox: &MailboxReceiver) -> Option<ReclaimRequest> {
        match inbox.receive(Some(Duration::ZERO)) {
            Received::Request(ask, _) => Some(ask),
            Received::TimedOut | Received::Closed => None,
        }
    }

    #[test]
    fn a_delayed_worker_finds_only_the_newest_sample() {
        let (outbox, inbox) = mailbox();
        for second in 0..100_000 {
            outbox.send(look(second), Instant::now());
        }
        assert_eq!(read(&inbox), Some(look(99_999)));
        assert_eq!(read(&inbox), None);
    }

    #[test]
    fn a_stop_is_received_whatever_else_waits() {
        let (outbox, inbox) = mailbox();
        outbox.send(look(1), Instant::now());
        outbox.send(ReclaimRequest::Stop { number: 5 }, Instant::now());
        outbox.send(begin(5), Instant::now());
        assert_eq!(read(&inbox), Some(begin(5)), "begun before it is stopped");
        assert_eq!(read(&inbox), Some(ReclaimRequest::Stop { number: 5 }));
        outbox.send(begin(6), Instant::now());
        outbox.send(ReclaimRequest::Leave, Instant::now());
        assert_eq!(read(&inbox), Some(ReclaimRequest::Leave));
        drop(outbox);
        assert!(matches!(inbox.receive(None), Received::Closed), "6 never begins");
    }

    #[test]
    fn a_receiver_that_waits_is_woken() {
        let (outbox, inbox) = mailbox();
        let reader = std::thread::spawn(move || {
            let first = inbox.receive(None);
            (matches!(first, Received::Request(ReclaimRequest::Leave, _)), inbox.receive(None))
        });
        outbox.send(ReclaimRequest::Leave, Instant::now());
        drop(outbox);
        // The mailbox may close before the request is read. Either way nothing more is done.
        let (_, second) = reader.join().unwrap();
        assert!(matches!(second, Received::Closed));
    }
}
