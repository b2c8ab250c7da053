//! Many processes that are new at once, as in the first sample: their files are read on several threads.
//!
//! Nearly all of that time is the kernel's, and it makes each process's files by itself. What is read is taken in
//! meanwhile, one process after the other as they come; where this finds nothing, nothing is known yet, and the
//! usual way says why.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use rustix::fd::OwnedFd;
use rustix::io::pread;

use super::Roots;
use super::folder::{Folder, MOST_THREADS};
use super::stat::{STAT_BYTES, parse_stat};
use super::visit::{DueReads, VisitReads};

/// Fewer are read sooner than a thread is started.
const FEW: usize = 32;
/// So many are read by a thread before it hands them over.
const BATCH: usize = 8;
/// So many batches wait to be taken in at most: each process in them has two descriptors open meanwhile.
const WAITING: usize = 4;
/// So many descriptors may be open besides those that are kept: of whom waits, and of whom is being read.
pub(super) const DESCRIPTORS: usize = 3 * BATCH * (WAITING + MOST_THREADS);

/// What was read of a process that was not known.
#[derive(Debug)]
pub(super) struct FirstLook {
    pub(super) folder: Folder,
    /// Its stat, opened, and what it said.
    pub(super) file: OwnedFd,
    pub(super) content: Box<[u8]>,
    pub(super) reads: VisitReads,
}

impl FirstLook {
    fn at(pid: u32, roots: &Roots, content: &mut Vec<u8>) -> Option<Self> {
        let folder = Folder::open(&roots.proc, pid).ok()?;
        let file = folder.file(c"stat").ok()?;
        let mut line = [0; STAT_BYTES];
        let length = pread(&file, &mut line, 0).ok()?;
        let stat = parse_stat(&line[..length]).filter(|stat| !stat.is_released)?;
        let due = DueReads::all(&stat);
        let reads = due.read(&folder, &roots.dev, (None, &[]), content).ok()?;
        Some(Self { folder, file, content: line[..length].into(), reads })
    }
}

/// Looks at processes that are not known, and calls `each` with them and with what was read of them, in no order;
/// with none where they are few, or where there is one processor.
pub(super) fn look_at(pids: &[u32], roots: &Roots, mut each: impl FnMut(u32, Option<FirstLook>)) {
    if pids.len() < FEW {
        return;
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    if threads < 2 {
        return;
    }
    let (batches, next) = (pids.chunks(BATCH), AtomicUsize::new(0));
    let next = || batches.clone().nth(next.fetch_add(1, Ordering::Relaxed));
    let (looks, taken) = sync_channel(WAITING);
    thread::scope(|scope| {
        let start = |_| {
            let (looks, next) = (looks.clone(), &next);
            let work = move || {
                let mut content = Vec::new();
                while let Some(batch) = next() {
                    let mut look = |&pid: &u32| (pid, FirstLook::at(pid, roots, &mut content));
                    let seen: Vec<_> = batch.iter().map(&mut look).collect();
                    if looks.send(seen).is_err() {
                        break;
                    }
                }
            };
            let builder = thread::Builder::new().name("processes".to_owned());
            // Without a thread, the others do its work.
            builder.spawn_scoped(scope, work).ok()
        };
        let workers: Vec<_> = (1..threads.min(MOST_THREADS)).filter_map(start).collect();
        drop(looks);
        let mut content = Vec::new();
        loop {
            // What was read is taken in first, so that few descriptors are open.
            if let Ok(looks) = taken.try_recv() {
                looks.into_iter().for_each(|(pid, look)| each(pid, look));
            } else if let Some(batch) = next() {
                for &pid in batch {
                    each(pid, FirstLook::at(pid, roots, &mut content));
                }
            } else {
                break;
            }
        }
        let rest = taken.into_iter().flatten();
        rest.for_each(|(pid, look)| each(pid, look));
        for worker in workers {
            let _ = worker.join();
        }
    });
}
