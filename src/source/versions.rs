//! The versions of frameworks that no path tells: what pip has left beside them, read on a thread of its own.
//!
//! A folder of packages may be on a file system that hangs. So [`Versions`] tells the thread whose version is
//! wanted and takes what it has read so far; a sample that has asked goes on once all is there, and after
//! [`ANSWER_TIME`] without. One
//! folder that hangs keeps the versions of others back, and nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deadline::{ANSWER_TIME, Answers, Worker};
use crate::host::{Roots, has_version_metadata, read_version};
use crate::model::Process;

/// How many may be asked for before the thread has read one, and room for all that may be and were not taken.
const QUEUES: (usize, usize) = (64, 2 * 64);

/// Who a process is, pid and start ticks, and its framework.
type FrameworkKey = (u32, u64, Arc<str>);

/// What is known of the processes of the last snapshot.
#[derive(Debug)]
pub(super) struct Versions {
    roots: Roots,
    /// Absent before the first is asked for.
    thread: Option<Worker<FrameworkKey, (FrameworkKey, Option<String>)>>,
    /// `None` where it was asked for and has not come, or there is none.
    known: HashMap<FrameworkKey, Option<Arc<str>>>,
}

impl Versions {
    pub(super) fn new(roots: Roots) -> Self {
        Self { roots, thread: None, known: HashMap::new() }
    }

    /// Puts into each process the version of its framework, where its metadata tells more than its paths.
    pub(super) fn join(&mut self, processes: &mut [Process]) {
        let keys: Vec<Option<FrameworkKey>> = processes.iter().map(key).collect();
        if keys.iter().all(Option::is_none) {
            self.known.clear();
            return;
        }
        let before = std::mem::take(&mut self.known);
        let mut asked = 0;
        for key in keys.iter().flatten() {
            if let Some(known) = before.get(key) {
                self.known.insert(key.clone(), known.clone());
            } else if self.ask(key) {
                self.known.insert(key.clone(), None);
                asked += 1;
            }
        }
        self.take(asked);
        for (process, key) in processes.iter_mut().zip(keys) {
            let version = key.and_then(|key| self.known.get(&key).cloned().flatten());
            if version.is_some() {
                process.framework_version = version;
            }
        }
    }

    /// Whether it could be asked for; else it is at the next sample.
    fn ask(&mut self, key: &FrameworkKey) -> bool {
        if self.thread.is_none() {
            let roots = self.roots.clone();
            let read = move |answers: Answers<_>| {
                move |key: FrameworkKey| {
                    let version = read_version(&roots, key.0, key.1, &key.2);
                    answers.send((key, version)).ok()
                }
            };
            // Without a thread, versions are known by paths only.
            self.thread = Worker::start("versions", QUEUES, read).ok();
        }
        let thread = self.thread.as_ref();
        thread.is_some_and(|thread| thread.ask(key.clone()).is_ok())
    }

    /// Takes what has been read, and waits for as many as were asked for now.
    fn take(&mut self, asked: usize) {
        let Some(thread) = &self.thread else {
            return;
        };
        let deadline = Instant::now() + ANSWER_TIME;
        let mut awaited = asked;
        loop {
            let left = match awaited {
                0 => Duration::ZERO,
                _ => deadline.saturating_duration_since(Instant::now()),
            };
            let Some((key, version)) = thread.take(left) else {
                return;
            };
            awaited = awaited.saturating_sub(1);
            if let Some(known) = self.known.get_mut(&key) {
                *known = version.map(Arc::from);
            }
        }
    }
}

fn key(process: &Process) -> Option<FrameworkKey> {
    let framework = process.framework.as_ref()?;
    let is_wanted = has_version_metadata(framework, process.framework_version.as_deref());
    let start_ticks = process.start_ticks.filter(|_| is_wanted)?;
    Some((process.pid, start_ticks, Arc::clone(framework)))
}
