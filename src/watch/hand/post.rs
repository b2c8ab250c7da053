//! The letterbox between the screen and its hand: neither waits for the other, and nothing is lost in it.
//!
//! What is asked anew takes the place of what was asked before and has not been read: of several samples
//! only the newest is of account, of several questions the last. So a hand that /proc or a disk has held up
//! for an hour finds one sample, and how old it is, and not those of an hour ago; and it always hears that
//! it is to stop, or that the screen is gone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Ask;

/// What the hand finds in the letterbox.
#[derive(Debug)]
pub enum Letter {
    /// This was asked then.
    Ask(Ask, Instant),
    /// Nothing was asked for as long as it had patience.
    Nothing,
    /// Nobody asks any more.
    Closed,
}

/// The screen's side; closes the letterbox when dropped.
#[derive(Debug)]
pub struct Outbox(Arc<Shared>);

/// The hand's side.
#[derive(Debug)]
pub struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    asked: Mutex<Asked>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    is_closed: bool,
    /// By [`place`]: what comes first is read first.
    asks: [Option<(Ask, Instant)>; 5],
}

/// Whether to go on at all comes before what to do; and what is begun is begun before it is stopped.
fn place(ask: &Ask) -> usize {
    match ask {
        Ask::Leave => 0,
        Ask::Begin { .. } => 1,
        Ask::Stop { .. } => 2,
        Ask::Plan(_) => 3,
        Ask::Look(_) => 4,
    }
}

/// An empty letterbox.
pub fn post() -> (Outbox, Inbox) {
    let shared = Arc::new(Shared::default());
    (Outbox(Arc::clone(&shared)), Inbox(shared))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        // Whoever panicked here left a whole letterbox.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    /// Asks, `now`; the hand reads it when it can.
    pub fn send(&self, ask: Ask, now: Instant) {
        let at = place(&ask);
        self.0.lock().asks[at] = Some((ask, now));
        self.0.rung.notify_one();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.rung.notify_one();
    }
}

impl Inbox {
    /// The next letter; waits for it as long as `patience`, or for ever where there is none. Where nobody
    /// asks any more, what was asked is not read.
    pub fn next(&self, patience: Option<Duration>) -> Letter {
        let is_empty =
            |asked: &mut Asked| !asked.is_closed && asked.asks.iter().all(Option::is_none);
        let rung = &self.0.rung;
        let mut asked = match patience {
            None => rung
                .wait_while(self.0.lock(), is_empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = rung.wait_timeout_while(self.0.lock(), patience, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if asked.is_closed {
            return Letter::Closed;
        }
        let first = asked.asks.iter_mut().find_map(Option::take);
        first.map_or(Letter::Nothing, |(ask, at)| Letter::Ask(ask, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Snapshot;
    use crate::model::Time;
    use crate::reclaim::Plan;
    use crate::watch::hand::Sight;

    fn look(seconds: i64) -> Ask {
        Ask::Look(Sight {
            snapshot: Arc::new(Snapshot::new(Time::from_unix_milliseconds(seconds * 1000))),
            found: Vec::new(),
        })
    }

    fn begin(number: u64) -> Ask {
        let plan = Plan {
            time: Time::default(),
            targets: Vec::new(),
            refused: Vec::new(),
        };
        let plan = Arc::new(plan);
        Ask::Begin { number, plan }
    }

    fn read(inbox: &Inbox) -> Option<Ask> {
        match inbox.next(Some(Duration::ZERO)) {
            Letter::Ask(ask, _) => Some(ask),
            Letter::Nothing | Letter::Closed => None,
        }
    }

    #[test]
    fn a_hand_that_was_held_up_finds_the_newest_sample_and_no_other() {
        let (outbox, inbox) = post();
        for second in 0..100_000 {
            outbox.send(look(second), Instant::now());
        }
        assert_eq!(read(&inbox), Some(look(99_999)));
        assert_eq!(read(&inbox), None);
    }

    #[test]
    fn what_is_not_to_be_done_any_more_is_heard_whatever_waits() {
        let (outbox, inbox) = post();
        outbox.send(look(1), Instant::now());
        outbox.send(Ask::Stop { number: 5 }, Instant::now());
        outbox.send(begin(5), Instant::now());
        assert_eq!(read(&inbox), Some(begin(5)), "begun before it is stopped");
        assert_eq!(read(&inbox), Some(Ask::Stop { number: 5 }));
        outbox.send(begin(6), Instant::now());
        outbox.send(Ask::Leave, Instant::now());
        assert_eq!(read(&inbox), Some(Ask::Leave));
        drop(outbox);
        assert!(matches!(inbox.next(None), Letter::Closed), "6 never begins");
    }

    #[test]
    fn whoever_waits_is_told() {
        let (outbox, inbox) = post();
        let reader = std::thread::spawn(move || {
            let first = inbox.next(None);
            (
                matches!(first, Letter::Ask(Ask::Leave, _)),
                inbox.next(None),
            )
        });
        outbox.send(Ask::Leave, Instant::now());
        drop(outbox);
        // Closing may overtake what was asked: either way nothing more is done.
        let (_, second) = reader.join().unwrap();
        assert!(matches!(second, Letter::Closed));
    }
}
