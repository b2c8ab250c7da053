//! Finds all processes that hold a GPU device file open.
//!
//! NVML lists only processes that opened the device. A forked worker inherits the open files, is not listed by NVML,
//! and keeps the GPU memory allocated after its parent has exited. To find such workers, gpumem reads the file
//! descriptors of all processes. A machine can have thousands of processes, most of them kernel threads, and each
//! process costs at least one system call. gpumem therefore lists /proc only every five seconds, and reads the file
//! descriptors of
//!
//! - new processes at every listing for 45 seconds after they were first listed, because a program loads its libraries
//!   before it opens the device;
//! - all processes except kernel threads every half minute.
//!
//! A caller that cannot attribute some memory to a process requests a read of all processes. If a read exceeds the
//! limit on file descriptors, the next sample continues the read. A process that has a device file mapped, but not open,
//! is not found, and its memory remains unattributed.
//!
//! **Identity.** The kernel can reuse a pid between two samples, and results about the old process must not be used
//! for the new one. A listing of /proc includes the inode number of each folder, and the kernel assigns a new inode
//! number to each folder that it creates (`proc_pid_make_inode` in `fs/proc/base.c`). A process whose inode number has
//! changed is treated as new. If memory is scarce, the kernel can also recreate the folder of a running process. The
//! result that a process holds no device file expires after half a minute. The result that a process holds a device
//! file is used only after `processes` has compared the start time of the process and read its file descriptors.
//!
//! [`Holders::unread`] counts the processes whose file descriptors could not be read.

use rustix::fs::{Access, access};
use rustix::io;

use crate::host::Roots;
use crate::host::gpu::gpu_files::holds_gpu_file;
use crate::host::proc::folder::{Folder, MAX_PROCESSES, ProcEntry, if_readable, is_gone};
use crate::host::proc::stat::{STAT_BYTES, find_remaining_thread, parse_stat};
use crate::host::proc::tree::{Tree, WatchedUsage};
use crate::model::Process;

const SECOND_NS: u64 = 1_000_000_000;

const LIST_NS: u64 = 5 * SECOND_NS;

const WHOLE_NS: u64 = 30 * SECOND_NS;

const REQUEST_NS: u64 = 5 * SECOND_NS;

/// Time for which a process is treated as new and read at every listing.
const NEW_NS: u64 = 45 * SECOND_NS;

/// Approximate maximum number of file descriptors read in one sample. Reading this many takes about half a second.
const DESCRIPTORS: usize = 256 << 10;

#[derive(Debug)]
pub struct Holders {
    roots: Roots,
    /// Whether /proc contains process 1. If it does not, /proc probably hides other processes, too, and the number of
    /// unread processes is unknown.
    sees_all: bool,
    /// Pid of gpumem in this /proc. gpumem itself holds device files open and is excluded.
    pub(in crate::host) own_pid: Option<u32>,
    table: Vec<KnownHolder>,
    round: u32,
    is_under_way: bool,
    is_asked: bool,
    may_ask_ns: u64,
    due_ns: u64,
    list_ns: u64,
    descriptor_limit: usize,
    unread: Option<u32>,
    tree: Tree,
    tree_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct KnownHolder {
    listed: ProcEntry,
    verdict: HolderState,
    /// Value of [`Holders::round`] when the file descriptors were last read.
    round: u32,
    /// Time of the first listing that contained the process, or 0 for processes in the very first listing, most of
    /// which are not new.
    listed_ns: u64,
    read_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HolderState {
    Holds,
    Free,
    Unread,
    Kernel,
}

impl KnownHolder {
    fn is_due(&self, now_ns: u64, round: u32) -> bool {
        let is_new = self.listed_ns > 0 && now_ns.saturating_sub(self.listed_ns) <= NEW_NS;
        let is_due_again = is_new && now_ns.saturating_sub(self.read_ns) >= LIST_NS;
        match self.verdict {
            HolderState::Kernel => false,
            HolderState::Holds => self.round != round,
            _ => self.round != round || is_due_again,
        }
    }
}

impl Holders {
    pub fn new(roots: Roots) -> Self {
        let own_link = std::fs::read_link(roots.proc.join("self"));
        Self {
            own_pid: own_link.ok().and_then(|pid| pid.to_str()?.parse().ok()),
            sees_all: access(roots.proc.join("1"), Access::EXISTS).is_ok(),
            table: Vec::new(),
            round: 0,
            is_under_way: false,
            is_asked: false,
            may_ask_ns: 0,
            due_ns: 0,
            list_ns: 0,
            descriptor_limit: DESCRIPTORS,
            unread: None,
            tree: Tree::new(),
            tree_ns: 0,
            roots,
        }
    }

    /// Reads the file descriptors of new and due processes. If `read_all` is set, requests a read of all processes.
    /// Requests are granted at most every five seconds.
    ///
    /// Between two listings, and while /proc cannot be listed, the previous results remain. They can contain exited
    /// processes.
    pub fn refresh(&mut self, boottime_ns: u64, read_all: bool) {
        let is_first = self.round == 0;
        self.is_asked |= read_all;
        if !self.is_under_way {
            let is_granted = self.is_asked && boottime_ns >= self.may_ask_ns;
            if is_granted || boottime_ns >= self.due_ns {
                self.round = self.round.wrapping_add(1).max(1);
                self.is_under_way = true;
                self.due_ns = boottime_ns.saturating_add(WHOLE_NS);
            }
            if is_granted {
                self.is_asked = false;
                self.may_ask_ns = boottime_ns.saturating_add(REQUEST_NS);
            }
        }
        // All processes are listed every five seconds, and in each sample while a read of all processes is in progress.
        // After a failure, the next sample tries again.
        if (self.is_under_way || boottime_ns >= self.list_ns)
            && let Ok((proc, listing)) = self.list()
        {
            self.list_ns = boottime_ns.saturating_add(LIST_NS);
            let is_full_read = listing.len() < MAX_PROCESSES;
            let is_complete = self.read_due(&proc, listing, is_first, boottime_ns);
            if self.is_under_way && is_complete {
                self.is_under_way = false;
                let is_counted = self.sees_all && is_full_read;
                self.unread = is_counted.then(|| self.count_unread());
            }
        }
    }

    /// Fills in the activity of each process's descendants and process group. Lists /proc every five seconds, and
    /// whenever `processes` contains a new process.
    pub fn fill_descendants(
        &mut self,
        processes: &mut [Process],
        watched: impl Fn(u32) -> Option<WatchedUsage>,
        boottime_ns: u64,
    ) {
        let is_new = |process: &Process| {
            process.start_ticks.is_some()
                && Some(process.pid) != self.own_pid
                && !self.tree.knows(process)
        };
        if (boottime_ns >= self.tree_ns || processes.iter().any(is_new))
            && let Ok((proc, listing)) = self.list()
        {
            self.tree_ns = boottime_ns.saturating_add(LIST_NS);
            self.tree.update(&proc, &listing, &watched, boottime_ns);
        }
        let proc = Folder::list(&self.roots.proc).ok();
        self.tree.fill(proc.as_ref(), processes, watched, boottime_ns);
    }

    pub(in crate::host) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn pids(&self) -> Vec<u32> {
        let holders = self.table.iter().filter(|row| row.verdict == HolderState::Holds);
        holders.map(|row| row.listed.pid).collect()
    }

    /// Returns how many processes had unreadable file descriptors at the last read of all processes. Kernel threads
    /// and zombies are not included. Returns `None` before the first such read, if /proc hides processes, or
    /// if there are too many processes to list.
    pub fn unread(&self) -> Option<u32> {
        self.unread
    }

    fn count_unread(&self) -> u32 {
        let rows = self.table.iter();
        let rows = rows.filter(|row| row.verdict == HolderState::Unread);
        u32::try_from(rows.count()).unwrap_or(u32::MAX)
    }

    fn list(&self) -> io::Result<(Folder, Vec<ProcEntry>)> {
        let proc = Folder::list(&self.roots.proc)?;
        let mut listing = proc.processes()?;
        listing.retain(|entry| Some(entry.pid) != self.own_pid);
        Ok((proc, listing))
    }

    /// Merges `listing` into the table and reads the file descriptors of due processes up to the limit of one sample.
    /// Returns whether all due processes were read.
    fn read_due(
        &mut self,
        proc: &Folder,
        listing: Vec<ProcEntry>,
        is_first: bool,
        now_ns: u64,
    ) -> bool {
        let old_rows = std::mem::take(&mut self.table);
        let mut old_rows = old_rows.into_iter().peekable();
        let mut budget = self.descriptor_limit;
        let mut is_complete = true;
        self.table = Vec::with_capacity(listing.len() + 16);
        for listed in listing {
            while old_rows.next_if(|row| row.listed.pid < listed.pid).is_some() {}
            let old_row = old_rows.next_if(|row| row.listed == listed);
            let mut row = old_row.unwrap_or(KnownHolder {
                listed,
                verdict: HolderState::Free,
                round: self.round.wrapping_sub(1),
                listed_ns: if is_first { 0 } else { now_ns },
                read_ns: 0,
            });
            if row.is_due(now_ns, self.round) {
                match (budget > 0).then(|| self.judge(proc, listed.pid)) {
                    Some(Ok((verdict, read_count))) => {
                        row = KnownHolder { verdict, round: self.round, read_ns: now_ns, ..row };
                        budget = budget.saturating_sub(read_count + 1);
                    }
                    // gpumem has reached its limit on open files. The next sample tries again.
                    Some(Err(_)) => (budget, is_complete) = (0, false),
                    None => is_complete = false,
                }
            }
            self.table.push(row);
        }
        is_complete
    }

    /// Returns whether a process holds a device file, and how many of its file descriptors were read. Returns an
    /// error only if gpumem has reached its limit on open files.
    fn judge(&self, proc: &Folder, pid: u32) -> io::Result<(HolderState, usize)> {
        let read = |descriptors: io::Result<Folder>| match descriptors {
            Ok(descriptors) => holds_gpu_file(&descriptors, &self.roots.dev),
            Err(errno) if is_gone(errno) => Ok((Some(false), 0)),
            Err(errno) => Ok((if_readable(Err(errno))?, 0)),
        };
        let (mut holds, mut read_count) = read(proc.descriptors_of(pid))?;
        if holds != Some(true) && read_count == 0 {
            // The files of an exiting process are visible only through another thread, if there is one.
            let mut content = [0; STAT_BYTES];
            let stat = match proc.file_of(pid, "stat", &mut content) {
                Err(errno) if is_gone(errno) => return Ok((HolderState::Free, 0)),
                length => if_readable(length)?.and_then(|length| parse_stat(&content[..length])),
            };
            if stat.as_ref().is_some_and(|stat| stat.is_kernel_thread) {
                return Ok((HolderState::Kernel, 0));
            }
            if let Some(stat) = stat.filter(|stat| stat.is_exiting) {
                let folder = Folder::open(&self.roots.proc, pid).ok();
                let thread = folder.and_then(|folder| find_remaining_thread(&folder, &stat));
                let Some(thread) = thread else { return Ok((HolderState::Free, 0)) };
                (holds, read_count) = read(thread.folder.folder(c"fd"))?;
            }
        }
        let verdict = match holds {
            Some(true) => HolderState::Holds,
            Some(false) => HolderState::Free,
            None => HolderState::Unread,
        };
        Ok((verdict, read_count))
    }
}

#[cfg(test)]
mod tests;
