//! Many processes that are new at once, as in the first sample: their files are read on several threads.
//!
//! Nearly all of that time is the kernel's, and it makes each process's files by itself. What is read is taken in
//! afterwards, one process after the other; where this finds nothing, nothing is known yet, and the usual way
//! says why.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fd::OwnedFd;
use rustix::io::pread;

use super::Roots;
use super::folder::Folder;
use super::stat::{STAT_BYTES, parse_stat};
use super::visit::{DueReads, VisitReads};

/// Fewer are read sooner than a thread is started.
const FEW: usize = 32;
/// So many are read before they are taken in: each has two descriptors open meanwhile.
pub(super) const LOT: usize = 128;
/// So many descriptors may be open for each: its folder, its stat, and what is read.
pub(super) const DESCRIPTORS_EACH: usize = 3;
/// More threads would wait for one another.
const MOST_THREADS: usize = 4;

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
        Some(Self {
            folder,
            file,
            content: line[..length].into(),
            reads,
        })
    }
}

/// Looks at processes that are not known; at none where they are few, or where there is one processor.
pub(super) fn look_at(pids: &[u32], roots: &Roots) -> HashMap<u32, FirstLook> {
    if pids.len() < FEW {
        return HashMap::new();
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    if threads < 2 {
        return HashMap::new();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut content, mut seen) = (Vec::new(), Vec::new());
        while let Some(&pid) = pids.get(next.fetch_add(1, Ordering::Relaxed)) {
            seen.extend(FirstLook::at(pid, roots, &mut content).map(|look| (pid, look)));
        }
        seen
    };
    thread::scope(|scope| {
        let others = 1..threads.min(MOST_THREADS);
        let start = |_| {
            let builder = thread::Builder::new().name("processes".to_owned());
            // Without a thread, this one does it all.
            builder.spawn_scoped(scope, work).ok()
        };
        let others: Vec<_> = others.filter_map(start).collect();
        let mut seen: HashMap<u32, FirstLook> = work().into_iter().collect();
        for other in others {
            seen.extend(other.join().unwrap_or_default());
        }
        seen
    })
}
