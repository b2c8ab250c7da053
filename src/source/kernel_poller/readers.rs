//! The threads that read what lies on this machine about kernels: as many as there are processors, and more, up to
//! a bound, while none of them comes to an end of what it reads.
//!
//! Each takes the next kernel from a queue that they share, so that a file that hangs keeps one thread and the
//! kernels behind it go on with the others. What has been read lies here until it is taken.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::KernelKey;
use crate::host::Roots;
use crate::host::jupyter::{KernelCandidate, LocalKernel, read_kernel};

/// How many kernels' files are read at once, those that hang among them.
const READ_AT_ONCE: usize = 16;

/// What was read for a candidate.
pub(super) type Read = (KernelCandidate, Option<LocalKernel>);

/// What the threads share.
#[derive(Debug, Default)]
struct Queue {
    /// Kernels whose files wait to be read.
    waiting: VecDeque<KernelCandidate>,
    /// How many threads there are; one that ends says so while it holds this.
    threads: usize,
}

/// The threads, and what they are to read.
#[derive(Debug)]
pub(super) struct FileReaders {
    roots: Roots,
    queue: Arc<Mutex<Queue>>,
    /// Those that were asked for and have not been taken.
    pending: HashMap<KernelKey, Instant>,
    done: (Sender<Read>, Receiver<Read>),
}

impl FileReaders {
    pub(super) fn new(roots: Roots) -> Self {
        Self { roots, queue: Arc::default(), pending: HashMap::new(), done: channel() }
    }

    /// Has these kernels' files read; each once, until it is taken.
    pub(super) fn ask(&mut self, candidates: impl Iterator<Item = KernelCandidate>, now: Instant) {
        let mut queue = lock(&self.queue);
        for candidate in candidates {
            let key = (candidate.pid, candidate.start_ticks);
            if let Entry::Vacant(vacant) = self.pending.entry(key) {
                vacant.insert(now);
                queue.waiting.push_back(candidate);
            }
        }
        // How many processors there are takes a dozen calls to tell.
        if queue.waiting.is_empty() {
            return;
        }
        let most = thread::available_parallelism().map_or(1, NonZero::get);
        let idle = most.min(READ_AT_ONCE).saturating_sub(queue.threads);
        let more = queue.waiting.len().min(idle);
        drop(queue);
        self.start(more);
    }

    /// Where kernels wait while those threads that there are come to no end, one more reads them.
    pub(super) fn help(&mut self) {
        let queue = lock(&self.queue);
        let may_help = !queue.waiting.is_empty() && queue.threads < READ_AT_ONCE;
        drop(queue);
        if may_help {
            self.start(1);
        }
    }

    fn start(&self, more: usize) {
        for _ in 0..more {
            let (roots, shared) = (self.roots.clone(), Arc::clone(&self.queue));
            let done = self.done.0.clone();
            let builder = thread::Builder::new().name("notebook-files".to_owned());
            lock(&self.queue).threads += 1;
            if builder.spawn(move || read_all(&roots, &shared, &done)).is_err() {
                // What waits is read by those that there are, or after the next call.
                lock(&self.queue).threads -= 1;
                return;
            }
        }
    }

    /// Whether it is asked for, and not taken.
    pub(super) fn is_pending(&self, key: KernelKey) -> bool {
        self.pending.contains_key(&key)
    }

    /// What has been read and not been taken, waiting for one as long as is given.
    pub(super) fn take(&mut self, time: Duration) -> Option<Read> {
        let read = self.done.1.recv_timeout(time).ok()?;
        self.pending.remove(&(read.0.pid, read.0.start_ticks));
        Some(read)
    }

    /// Since when the last one that is not taken is asked for.
    pub(super) fn asked_last(&self) -> Option<Instant> {
        self.pending.values().max().copied()
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread: reads until nothing waits, or its results are not read any more.
fn read_all(roots: &Roots, shared: &Mutex<Queue>, done: &Sender<Read>) {
    loop {
        let candidate = {
            let mut queue = lock(shared);
            match queue.waiting.pop_front() {
                Some(candidate) => candidate,
                None => {
                    queue.threads -= 1;
                    return;
                }
            }
        };
        let kernel = read_kernel(roots, &candidate);
        if done.send((candidate, kernel)).is_err() {
            return;
        }
    }
}
