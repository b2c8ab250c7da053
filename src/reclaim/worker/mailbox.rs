//! The mailbox through which the screen sends requests to its worker. Sending never waits for the worker.
//!
//! A new request replaces an unread request of the same kind, because only the newest sample or query matters. If
//! /proc or a disk blocks the worker for an hour, the worker then finds only the newest sample. Requests to leave or
//! stop are read before samples and queries. The worker notices when the screen is gone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ReclaimRequest;

#[derive(Debug)]
pub enum Received {
    /// A request and when it was sent.
    Request(ReclaimRequest, Instant),
    TimedOut,
    Closed,
}

/// The sending side. Dropping it closes the mailbox.
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
    /// Unread requests, indexed by [`priority`]. The request with the lowest index is read first.
    requests: [Option<(ReclaimRequest, Instant)>; 7],
}

/// Returns the index of a request, which is read before requests with higher indices. A plan is started before it is
/// stopped, so that both are reported.
fn priority(request: &ReclaimRequest) -> usize {
    match request {
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
        // No code panics while the state is inconsistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReclaimHandle {
    pub fn send(&self, request: ReclaimRequest, now: Instant) {
        let index = priority(&request);
        self.0.lock().requests[index] = Some((request, now));
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
    /// Returns the next request. Waits up to `patience`, or forever if `patience` is `None`. Unread requests are
    /// dropped when the mailbox closes.
    pub fn receive(&self, patience: Option<Duration>) -> Received {
        let is_empty = |state: &mut MailboxState| {
            !state.is_closed && state.requests.iter().all(Option::is_none)
        };
        let available = &self.0.available;
        let mut state = match patience {
            None => available
                .wait_while(self.0.lock(), is_empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = available.wait_timeout_while(self.0.lock(), patience, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if state.is_closed {
            return Received::Closed;
        }
        let first = state.requests.iter_mut().find_map(Option::take);
        first.map_or(Received::TimedOut, |(request, sent)| Received::Request(request, sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Snapshot;
    use crate::model::Time;
    use crate::reclaim::Plan;
    use crate::reclaim::worker::ObservedSample;

    fn observe(seconds: i64) -> ReclaimRequest {
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
            Received::Request(request, _) => Some(request),
            Received::TimedOut | Received::Closed => None,
        }
    }

    #[test]
    fn a_delayed_worker_finds_only_the_newest_sample() {
        let (outbox, inbox) = mailbox();
        for second in 0..100_000 {
            outbox.send(observe(second), Instant::now());
        }
        assert_eq!(read(&inbox), Some(observe(99_999)));
        assert_eq!(read(&inbox), None);
    }

    #[test]
    fn a_stop_is_received_before_other_requests() {
        let (outbox, inbox) = mailbox();
        outbox.send(observe(1), Instant::now());
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
    fn a_waiting_receiver_is_woken() {
        let (outbox, inbox) = mailbox();
        let reader = std::thread::spawn(move || {
            let first = inbox.receive(None);
            (matches!(first, Received::Request(ReclaimRequest::Leave, _)), inbox.receive(None))
        });
        outbox.send(ReclaimRequest::Leave, Instant::now());
        drop(outbox);
        // The mailbox may be closed before the worker reads the request. Either way, the worker must see that it is
        // closed.
        let (_, second) = reader.join().unwrap();
        assert!(matches!(second, Received::Closed));
    }
}
