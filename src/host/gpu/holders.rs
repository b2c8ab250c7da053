//! Finds every process of the machine that holds a GPU device file open.
//!
//! NVML lists the processes that opened the device. A forked worker inherits the files, is on no list, and
//! keeps the memory after its parent dies. Only reading every process's descriptors finds it, at the cost of a
//! system call for each. Even listing /proc costs half a microsecond a process, and a machine with GPUs has
//! thousands of kernel threads, so a listing costs as much as the rest of a sample. Most samples therefore do
//! nothing here. /proc is listed every five seconds, to read the descriptors of
//!
//! - new processes, and of these again during their first minute, since a program opens the device only once it
//!   has loaded;
//! - all processes, every half minute.
//!
//! If some memory belongs to no known process, the caller asks, and all processes are read at once, together
//! with the memory maps of those that hold nothing open (`mapped_devices`). A read of all processes that takes
//! too long continues in the next sample.
//!
//! **Identity.** A pid may be reused between two samples, and the new process must not inherit the old one's
//! result. A listing of /proc has the inode number of each folder, which the kernel creates and drops with it
//! (`proc_pid_make_inode` in Linux's `fs/proc/base.c`). Another inode is another process, or the same one after
//! memory pressure; both count as new. If the kernel's cache keeps an old folder beyond its process, no finding
//! follows: "holds nothing" expires after half a minute, and "holds something" counts only once
//! `processes`, which identifies a process by its start, has read its descriptors itself.
//!
//! A process whose descriptors may not be read is counted ([`Holders::unread`]), never taken for one that holds
//! none.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io;

use crate::deadline::{ANSWER_TIME, NoAnswer, Task};
use crate::host::Roots;
use crate::host::gpu::gpu_files::holds_gpu_file;
use crate::host::gpu::mapped_devices::{Mapped, MappedDevices, begin_search};
use crate::host::proc::folder::{Folder, MOST_PROCESSES, ProcEntry, if_readable, is_gone};
use crate::host::proc::stat::{STAT_BYTES, Ticks, parse_stat};
use crate::host::proc::thread::left_thread;
use crate::host::proc::tree::Tree;
use crate::model::Process;

const SECOND_NS: u64 = 1_000_000_000;

/// Interval between listings of /proc.
const LIST_NS: u64 = 5 * SECOND_NS;

/// Interval between reads of all processes.
const WHOLE_NS: u64 = 30 * SECOND_NS;

/// Minimum interval between reads of all processes that a caller asks for.
const ASKED_NS: u64 = 5 * SECOND_NS;

/// For how long a process is new, and read at every listing.
const NEW_NS: u64 = 45 * SECOND_NS;

/// The most descriptors that are read in one sample, roughly: half a second's work.
const DESCRIPTORS: usize = 256 << 10;

#[derive(Debug)]
pub struct Holders {
    roots: Roots,
    /// /proc hides no processes, so they can be counted.
    sees_all: bool,
    /// gpumem's own pid in this /proc; NVML holds its files.
    pub(in crate::host) own_pid: Option<u32>,
    /// All processes, sorted by pid.
    known: Vec<KnownHolder>,
    /// The number of the current or last read of all processes.
    round: u32,
    /// A read of all processes is not finished.
    is_under_way: bool,
    /// This read was asked for, and includes memory maps.
    wants_maps: bool,
    /// Another read is asked for.
    is_asked: bool,
    /// The earliest time at which the next one may be asked for.
    may_ask_ns: u64,
    /// When the next read of all processes is due unasked.
    due_ns: u64,
    /// When the next listing of /proc is due.
    list_ns: u64,
    /// The limit of [`DESCRIPTORS`]; tests set a lower one.
    at_once: usize,
    search: Option<Task<MappedDevices>>,
    /// Sorted by pid.
    mapped: Vec<Mapped>,
    unread: Option<u32>,
    /// Parents and descendants.
    tree: Tree,
}

#[derive(Clone, Copy, Debug)]
struct KnownHolder {
    listed: ProcEntry,
    verdict: HolderState,
    /// The last read of all processes that included it.
    round: u32,
    /// When it was first listed; 0 if it was there at the first listing, probably for long.
    listed_ns: u64,
    looked_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HolderState {
    Holds,
    Free,
    /// They may not be read, or there are too many to tell.
    Unread,
    /// A kernel thread, which never holds any.
    Kernel,
}

impl KnownHolder {
    fn is_due(&self, now_ns: u64, round: u32) -> bool {
        let is_new = self.listed_ns > 0 && now_ns.saturating_sub(self.listed_ns) <= NEW_NS;
        let is_due_again = is_new && now_ns.saturating_sub(self.looked_ns) >= LIST_NS;
        match self.verdict {
            HolderState::Kernel => false,
            HolderState::Holds => self.round != round,
            _ => self.round != round || is_due_again,
        }
    }
}

impl Holders {
    /// An empty table; the first refresh reads all processes.
    pub fn new(roots: Roots) -> Self {
        let own = std::fs::read_link(roots.proc.join("self"));
        Self {
            own_pid: own.ok().and_then(|pid| pid.to_str()?.parse().ok()),
            // Pid 1 always exists; see `entry`.
            sees_all: access(roots.proc.join("1"), Access::EXISTS).is_ok(),
            known: Vec::new(),
            round: 0,
            is_under_way: false,
            wants_maps: false,
            is_asked: false,
            may_ask_ns: 0,
            due_ns: 0,
            list_ns: 0,
            at_once: DESCRIPTORS,
            search: None,
            mapped: Vec::new(),
            unread: None,
            tree: Tree::new(),
            roots,
        }
    }

    /// Reads the processes that are new or due; all of them if that is due, or if `asks`, which is granted
    /// every five seconds.
    ///
    /// `boottime_ns` is the time since boot (`Clocks::boottime_ns`). Between two listings, and if /proc cannot
    /// be listed, the previous results stay, so a listed pid may have exited.
    pub fn refresh(&mut self, boottime_ns: u64, asks: bool) {
        let is_first = self.round == 0;
        self.is_asked |= asks;
        if !self.is_under_way {
            let is_granted = self.is_asked && boottime_ns >= self.may_ask_ns;
            if is_granted || boottime_ns >= self.due_ns {
                self.round = self.round.wrapping_add(1).max(1);
                self.is_under_way = true;
                self.wants_maps = is_granted;
                self.due_ns = boottime_ns.saturating_add(WHOLE_NS);
            }
            if is_granted {
                self.is_asked = false;
                self.may_ask_ns = boottime_ns.saturating_add(ASKED_NS);
            }
        }
        if let Some((proc, listing)) = self.list_where_due(boottime_ns) {
            self.tree.update(&proc, &listing);
            let is_everybody = listing.len() < MOST_PROCESSES;
            let is_over = self.look_at(&proc, listing, is_first, boottime_ns);
            if self.is_under_way && is_over {
                self.is_under_way = false;
                let is_counted = self.sees_all && is_everybody;
                self.unread = is_counted.then(|| self.count_unread());
                self.begin_search();
            }
        }
        // A caller that runs once waits for the maps, if they are read soon.
        self.take_found(if asks { ANSWER_TIME } else { Duration::ZERO });
        // Drops the maps of processes that have exited.
        let known = &self.known;
        self.mapped
            .retain(|it| find(known, it.listed.pid).is_some_and(|now| now.listed == it.listed));
    }

    /// Lists /proc if that is due, and reads no descriptors: without device files no process holds one.
    pub fn look_at_parents(&mut self, boottime_ns: u64) {
        if let Some((proc, listing)) = self.list_where_due(boottime_ns) {
            self.tree.update(&proc, &listing);
        }
    }

    /// Fills in what each process's descendants do. Lists /proc again if one of the processes is new.
    pub fn fill_descendants(
        &mut self,
        processes: &mut [Process],
        watched: impl Fn(u32) -> Option<Ticks>,
        boottime_ns: u64,
    ) {
        let is_new = |it: &Process| {
            it.start_ticks.is_some() && Some(it.pid) != self.own_pid && !self.tree.knows(it)
        };
        if processes.iter().any(is_new)
            && let Ok((proc, listing)) = self.list()
        {
            self.tree.update(&proc, &listing);
        }
        let proc = Folder::list(&self.roots.proc).ok();
        self.tree.fill(proc.as_ref(), processes, watched, boottime_ns);
    }

    /// The process tree of the last listing.
    pub(in crate::host) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The pids known to hold a GPU device file, sorted.
    pub fn pids(&self) -> Vec<u32> {
        let holds = self.known.iter().filter(|it| it.verdict == HolderState::Holds);
        let open = holds.map(|it| it.listed.pid);
        let mapped = self.mapped.iter().map(|it| it.listed.pid);
        let mut pids: Vec<u32> = open.chain(mapped).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The GPU device files that this very process has mapped, as of the last read of all maps.
    pub fn mapped_files(&self, process: &Process) -> Option<&Arc<[Arc<str>]>> {
        let place = self.mapped.binary_search_by_key(&process.pid, |it| it.listed.pid);
        let mapped = self.mapped.get(place.ok()?)?;
        (process.start_ticks == Some(mapped.start_ticks)).then_some(&mapped.files)
    }

    /// How many processes' descriptors could not be read at the last read of all; kernel threads and zombies do
    /// not count. `None` before the first one, and if /proc hides processes.
    pub fn unread(&self) -> Option<u32> {
        self.unread
    }

    fn count_unread(&self) -> u32 {
        let unread = self.known.iter();
        let unread = unread.filter(|it| it.verdict == HolderState::Unread);
        u32::try_from(unread.count()).unwrap_or(u32::MAX)
    }

    /// Lists all processes if that is due: every five seconds, and in each sample while a read of all is not
    /// finished. If it fails, the next sample tries again.
    fn list_where_due(&mut self, now_ns: u64) -> Option<(Folder, Vec<ProcEntry>)> {
        if !self.is_under_way && now_ns < self.list_ns {
            return None;
        }
        let listed = self.list().ok()?;
        self.list_ns = now_ns.saturating_add(LIST_NS);
        Some(listed)
    }

    /// All processes but gpumem, sorted by pid.
    fn list(&self) -> io::Result<(Folder, Vec<ProcEntry>)> {
        let proc = Folder::list(&self.roots.proc)?;
        let mut listing = proc.processes()?;
        listing.retain(|it| Some(it.pid) != self.own_pid);
        Ok((proc, listing))
    }

    /// Takes in a listing and reads the descriptors of due processes, up to the sample's limit. Returns whether
    /// the round is finished.
    fn look_at(
        &mut self,
        proc: &Folder,
        listing: Vec<ProcEntry>,
        is_first: bool,
        now_ns: u64,
    ) -> bool {
        let before = std::mem::take(&mut self.known);
        let mut before = before.into_iter().peekable();
        let mut left = self.at_once;
        let mut is_over = true;
        self.known = Vec::with_capacity(listing.len() + 16);
        for listed in listing {
            while before.next_if(|it| it.listed.pid < listed.pid).is_some() {}
            let same = before.next_if(|it| it.listed == listed);
            let mut known = same.unwrap_or(KnownHolder {
                listed,
                verdict: HolderState::Free,
                round: self.round.wrapping_sub(1),
                listed_ns: if is_first { 0 } else { now_ns },
                looked_ns: 0,
            });
            if known.is_due(now_ns, self.round) {
                match (left > 0).then(|| self.judge(proc, listed.pid)) {
                    Some(Ok((verdict, seen))) => {
                        known =
                            KnownHolder { verdict, round: self.round, looked_ns: now_ns, ..known };
                        // The call that opens the folder counts, too.
                        left = left.saturating_sub(seen + 1);
                    }
                    // gpumem is out of descriptors; the next sample tries again.
                    Some(Err(_)) => (left, is_over) = (0, false),
                    None => is_over = false,
                }
            }
            self.known.push(known);
        }
        is_over
    }

    /// Reads a process's descriptors; also returns how many.
    ///
    /// # Errors
    ///
    /// Only if gpumem is out of descriptors.
    fn judge(&self, proc: &Folder, pid: u32) -> io::Result<(HolderState, usize)> {
        let mut content = [0; STAT_BYTES];
        let stat = match proc.stat_of(pid, &mut content) {
            Ok(length) => parse_stat(&content[..length]),
            Err(errno) if is_gone(errno) => return Ok((HolderState::Free, 0)),
            Err(errno) => if_readable(Err(errno))?,
        };
        let mut left = None;
        match stat {
            Some(stat) if stat.is_kernel_thread => return Ok((HolderState::Kernel, 0)),
            Some(stat) if stat.is_exiting => {
                let folder = Folder::open(&self.roots.proc, pid).ok();
                left = folder.and_then(|folder| left_thread(&folder, &stat));
                if left.is_none() {
                    return Ok((HolderState::Free, 0));
                }
            }
            _ => {}
        }
        let descriptors = match &left {
            Some(thread) => thread.folder.folder(c"fd"),
            None => proc.descriptors_of(pid),
        };
        let (holds, seen) = match descriptors {
            Ok(descriptors) => holds_gpu_file(&descriptors, &self.roots.dev)?,
            Err(errno) if is_gone(errno) => return Ok((HolderState::Free, 0)),
            Err(errno) => (if_readable(Err(errno))?, 0),
        };
        let verdict = match holds {
            Some(true) => HolderState::Holds,
            Some(false) => HolderState::Free,
            None => HolderState::Unread,
        };
        Ok((verdict, seen))
    }

    /// Starts reading maps: of all processes that hold nothing open if that was asked for, else only of those
    /// whose maps had something before.
    fn begin_search(&mut self) {
        if self.search.is_some() {
            // Slow or hung.
            return;
        }
        let listed: Vec<ProcEntry> = if self.wants_maps {
            let free = self.known.iter().filter(|it| it.verdict == HolderState::Free);
            free.map(|it| it.listed).collect()
        } else {
            self.mapped.iter().map(|it| it.listed).collect()
        };
        if !listed.is_empty() {
            self.search = begin_search(&self.roots, listed);
        }
    }

    fn take_found(&mut self, patience: Duration) {
        let Some(search) = &self.search else {
            return;
        };
        let MappedDevices { mut mapped, stuck } = match search.wait(patience) {
            Err(NoAnswer::Late) => return,
            found => found.unwrap_or_default(),
        };
        self.search = None;
        // A process that could not be read keeps its old result.
        let is_stuck = |it: &Mapped| stuck.binary_search(&it.listed).is_ok();
        mapped.extend(self.mapped.drain(..).filter(is_stuck));
        mapped.sort_unstable_by_key(|it| it.listed.pid);
        self.mapped = mapped;
    }
}

fn find(known: &[KnownHolder], pid: u32) -> Option<&KnownHolder> {
    let place = known.binary_search_by_key(&pid, |it| it.listed.pid);
    known.get(place.ok()?)
}

#[cfg(test)]
mod tests;
