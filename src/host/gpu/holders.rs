//! Who holds a GPU device file open, of all processes of the machine.
//!
//! NVML lists those who opened the device; a worker that was forked from one of them has its files, is
//! on no list, and keeps the memory when the other is dead. Only a look at everybody's descriptors
//! finds it, and that is not cheap: a call to the kernel for each. Even a listing of /proc costs half a
//! microsecond for each process, and a machine with GPUs has thousands of the kernel's own: as much as
//! all the rest of a sample. So most samples cost nothing here. /proc is listed every five seconds, to look at
//!
//! - who is new, and again in its first minute: a program opens the device when it has loaded;
//! - all processes, every half a minute.
//!
//! When the caller asks, because there is memory that no process accounts for, all are looked at, at
//! once; then also at what those who hold nothing open have mapped (`mapped_devices`). A look at
//! all of them goes on in the next sample where it takes too long.
//!
//! **Who is who.** A pid may be given to another process between two samples, and the verdict on the
//! one before must not be taken for a verdict on the next. A listing of /proc has the number of each
//! folder, which the kernel makes anew with each folder (`proc_pid_make_inode` in Linux's
//! `fs/proc/base.c`) and drops with its process: another number is another process, or the same one
//! after the kernel wanted memory back, and either is new here. Where an old folder should outlive its
//! process in the kernel's cache, no finding comes of it: that a process holds nothing is believed for
//! half a minute, and that it holds something is not believed before `processes`, which knows a
//! process by its start, has read its descriptors itself.
//!
//! Whose descriptors may not be read is counted ([`Holders::unread`]) and never taken for one who holds
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

/// How often /proc is listed.
const LIST_NS: u64 = 5 * SECOND_NS;

/// How often everybody is looked at.
const WHOLE_NS: u64 = 30 * SECOND_NS;

/// How soon everybody is looked at again on demand.
const ASKED_NS: u64 = 5 * SECOND_NS;

/// How long a process is new: it is looked at with each listing.
const NEW_NS: u64 = 45 * SECOND_NS;

/// How many descriptors are looked at in one sample, about: half a second's work.
const DESCRIPTORS: usize = 256 << 10;

/// Who holds GPU device files.
#[derive(Debug)]
pub struct Holders {
    roots: Roots,
    /// Every process is in /proc, so that all of them can be counted.
    sees_all: bool,
    /// gpumem itself, as this /proc numbers it: what it holds open is NVML's.
    pub(in crate::host) own_pid: Option<u32>,
    /// Everybody, sorted by pid.
    known: Vec<KnownHolder>,
    /// The number of the look at everybody that is under way or was the last.
    round: u32,
    /// It is under way.
    is_under_way: bool,
    /// It was asked for, and wants maps.
    wants_maps: bool,
    /// Another one is asked for.
    is_asked: bool,
    /// When one may be asked for again.
    may_ask_ns: u64,
    /// When the next one is due by itself.
    due_ns: u64,
    /// When /proc is to be listed again.
    list_ns: u64,
    /// How many descriptors are looked at in one sample.
    at_once: usize,
    search: Option<Task<MappedDevices>>,
    /// Sorted by pid.
    mapped: Vec<Mapped>,
    unread: Option<u32>,
    /// Which process descends from which.
    tree: Tree,
}

/// What is known of one process.
#[derive(Clone, Copy, Debug)]
struct KnownHolder {
    listed: ProcEntry,
    verdict: HolderState,
    /// The look at everybody in which it was last looked at.
    round: u32,
    /// When it was first listed; 0 where it was there at the start, and mostly for long.
    listed_ns: u64,
    looked_ns: u64,
}

/// What a look at a process's descriptors came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HolderState {
    /// It holds a GPU device file.
    Holds,
    /// It holds none.
    Free,
    /// They may not be read, or there are too many to tell.
    Unread,
    /// It is the kernel's own, and never holds any.
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
    /// Knows no process yet; the first look is at all.
    pub fn new(roots: Roots) -> Self {
        let own = std::fs::read_link(roots.proc.join("self"));
        Self {
            own_pid: own.ok().and_then(|pid| pid.to_str()?.parse().ok()),
            // As in `entry`: the first process is always there.
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

    /// Looks at who is new or due; at everybody, where that is due or asked for (`asks`), which is
    /// granted every five seconds.
    ///
    /// `boottime_ns` is the time now, in nanoseconds since boot (`Clocks::boottime_ns`). Where /proc
    /// cannot be listed, what was known stands; so it does between two listings, so that a pid may be
    /// named whose process has gone.
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
        // One who looks only once sees the maps too, where they are read soon.
        self.take_found(if asks { ANSWER_TIME } else { Duration::ZERO });
        // What was mapped by a process that is gone does not count.
        let known = &self.known;
        self.mapped
            .retain(|it| find(known, it.listed.pid).is_some_and(|now| now.listed == it.listed));
    }

    /// Lists /proc where that is due, and looks at no descriptors: where there are no device files,
    /// no process holds one.
    pub fn look_at_parents(&mut self, boottime_ns: u64) {
        if let Some((proc, listing)) = self.list_where_due(boottime_ns) {
            self.tree.update(&proc, &listing);
        }
    }

    /// Tells each process what its descendants do. /proc is listed again where one of them is new.
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

    /// Which process descends from which, as of the last listing.
    pub(in crate::host) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Everybody who holds a GPU device file, as far as it is known: sorted.
    pub fn pids(&self) -> Vec<u32> {
        let holds = self.known.iter().filter(|it| it.verdict == HolderState::Holds);
        let open = holds.map(|it| it.listed.pid);
        let mapped = self.mapped.iter().map(|it| it.listed.pid);
        let mut pids: Vec<u32> = open.chain(mapped).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The GPU device files that this very process has mapped, where that was seen when everybody's
    /// maps were looked at.
    pub fn mapped_files(&self, process: &Process) -> Option<&Arc<[Arc<str>]>> {
        let place = self.mapped.binary_search_by_key(&process.pid, |it| it.listed.pid);
        let mapped = self.mapped.get(place.ok()?)?;
        (process.start_ticks == Some(mapped.start_ticks)).then_some(&mapped.files)
    }

    /// How many processes there were whose descriptors could not be read when everybody was last looked
    /// at; threads of the kernel and what has exited do not count. `None` before that is known, and
    /// where /proc hides processes, so that they cannot be counted.
    pub fn unread(&self) -> Option<u32> {
        self.unread
    }

    fn count_unread(&self) -> u32 {
        let unread = self.known.iter();
        let unread = unread.filter(|it| it.verdict == HolderState::Unread);
        u32::try_from(unread.count()).unwrap_or(u32::MAX)
    }

    /// Everybody, where /proc is to be listed now: every five seconds, and in each sample while a look at everybody
    /// is under way. Where it cannot be listed, the next sample tries again.
    fn list_where_due(&mut self, now_ns: u64) -> Option<(Folder, Vec<ProcEntry>)> {
        if !self.is_under_way && now_ns < self.list_ns {
            return None;
        }
        let listed = self.list().ok()?;
        self.list_ns = now_ns.saturating_add(LIST_NS);
        Some(listed)
    }

    /// Everybody but gpumem, sorted by pid.
    fn list(&self) -> io::Result<(Folder, Vec<ProcEntry>)> {
        let proc = Folder::list(&self.roots.proc)?;
        let mut listing = proc.processes()?;
        listing.retain(|it| Some(it.pid) != self.own_pid);
        Ok((proc, listing))
    }

    /// Takes in who is there now, and looks at those who are due as far as that goes in one sample.
    /// Answers whether all were looked at in this round.
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
                        // The call that opens them counts, too.
                        left = left.saturating_sub(seen + 1);
                    }
                    // No descriptor is left to look with: the next sample tries again.
                    Some(Err(_)) => (left, is_over) = (0, false),
                    None => is_over = false,
                }
            }
            self.known.push(known);
        }
        is_over
    }

    /// Looks at a process's descriptors; says how many were looked at, too.
    ///
    /// # Errors
    ///
    /// Only where gpumem has no descriptor left.
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

    /// Has the maps looked through: of everybody who holds nothing open, where that was asked for;
    /// else of those again in whose maps something was found.
    fn begin_search(&mut self) {
        if self.search.is_some() {
            // It hangs, or takes its time.
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
        // Where a process could not be looked at, what was known stays.
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
