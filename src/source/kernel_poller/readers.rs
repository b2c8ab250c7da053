//! The threads that read what lies on this machine about kernels.
//!
//! They share one queue, so that a file that hangs keeps one thread and the kernels behind it go on with the
//! others. What has been read lies here until it is taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::KernelKey;
use crate::host::Roots;
use crate::host::jupyter::{KernelCandidate, LocalKernel, read_kernel};

/// How many kernels' files are read at once, those that hang among them.
const READ_AT_ONCE: usize = 16;

/// What was read for a candidate.
pub(super) type Read = (KernelCandidate, Option<LocalKernel>);

/// The threads, and what they are to read.
#[derive(Debug)]
pub(super) struct FileReaders {
    waiting: Sender<KernelCandidate>,
    /// Those that were asked for and have not been taken.
    pending: HashMap<KernelKey, Instant>,
    done: Receiver<Read>,
}

impl FileReaders {
    pub(super) fn new(roots: &Roots) -> Self {
        let (waiting, queue) = channel();
        let (outbox, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..READ_AT_ONCE {
            let (roots, queue, outbox) = (roots.clone(), Arc::clone(&queue), outbox.clone());
            let builder = thread::Builder::new().name("notebook-files".to_owned());
            // Without a thread, the others read; without any, kernels are known by their argv only.
            let _ = builder.spawn(move || read_all(&roots, &queue, &outbox));
        }
        Self { waiting, pending: HashMap::new(), done }
    }

    /// Has these kernels' files read; each once, until it is taken.
    pub(super) fn ask(&mut self, candidates: impl Iterator<Item = KernelCandidate>, now: Instant) {
        for candidate in candidates {
            let key = (candidate.pid, candidate.start_ticks);
            if let Entry::Vacant(vacant) = self.pending.entry(key)
                && self.waiting.send(candidate).is_ok()
            {
                vacant.insert(now);
            }
        }
    }

    /// Whether it is asked for, and not taken.
    pub(super) fn is_pending(&self, key: KernelKey) -> bool {
        self.pending.contains_key(&key)
    }

    /// What has been read and not been taken, waiting for one as long as is given.
    pub(super) fn take(&mut self, time: Duration) -> Option<Read> {
        let read = self.done.recv_timeout(time).ok()?;
        self.pending.remove(&(read.0.pid, read.0.start_ticks));
        Some(read)
    }

    /// Since when the last one that is not taken is asked for.
    pub(super) fn asked_last(&self) -> Option<Instant> {
        self.pending.values().max().copied()
    }
}

/// A thread: reads until nobody asks any more.
fn read_all(roots: &Roots, queue: &Mutex<Receiver<KernelCandidate>>, outbox: &Sender<Read>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(candidate) = next else { return };
        let kernel = read_kernel(roots, &candidate);
        if outbox.send((candidate, kernel)).is_err() {
            return;
        }
    }
}
