//! The processes that are being watched, and what was last known of each.
//!
//! In the steady state a process costs one `pread` a sample: its `/proc/PID/stat` is kept open. That
//! also makes a reused pid impossible to confuse, because the file of a dead process answers `ESRCH`
//! for ever; then the pid is looked up afresh, and another start makes another process. Where no
//! descriptor is left the file is opened each time instead.
//!
//! This file knows which pid is which process, and what descriptors there are; what is said of one is
//! in `entry`.

use foldhash::{HashMap, HashMapExt as _};
use rustix::fd::OwnedFd;
use rustix::io::{fcntl_dupfd_cloexec, pread};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::host::gpu::holders::Holders;
use crate::host::proc::entry::{Presence, ProcessEntry, Surroundings};
use crate::host::proc::folder::{Folder, is_gone, is_out_of_descriptors};
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::{HostError, Roots};
use crate::model::Process;

/// Descriptors that are left to others: the driver, the terminal, recordings, what is opened for a
/// moment here.
const SPARE_DESCRIPTORS: usize = 128;

/// How many descriptors the kernel's table has room for from the start.
const ROOM_FOR_DESCRIPTORS: i32 = 2048;

/// Raises the limit on open files as far as it may be, once, at the start: every watched process
/// keeps one open. Where that is refused, less is kept open.
///
/// To be called before there is a second thread: the kernel doubles its table of descriptors as
/// they are opened, and where threads share it, it waits for all processors each time (milliseconds;
/// `expand_fdtable` in Linux's `fs/file.c`). So the table is made large while no thread shares it.
pub fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // What may be refused is not needed.
        let _ =
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    // The descriptor is closed at once and the table stays. Without it, it is only slower.
    if let Ok(any) = std::fs::File::open("/") {
        let _ = fcntl_dupfd_cloexec(&any, ROOM_FOR_DESCRIPTORS - 1);
    }
}

/// The watched processes.
#[derive(Debug)]
pub struct Processes {
    entries: HashMap<u32, Box<ProcessEntry>>,
    /// The number of the last sample.
    number: u64,
    /// How many of the entries were in it.
    seen: usize,
    /// How many stat files may be kept open.
    may_keep: usize,
    /// How many are, at most: counted in each sample in which one more is opened, and up from then on.
    kept: Option<usize>,
    around: Surroundings,
}

/// What one call of [`Processes::sample`] found. Every pid that was asked for is in one of the lists.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProcessSample {
    /// The processes that there are, in the order in which they were asked for.
    pub processes: Vec<Process>,
    /// Pids that no process has. That is normal: one may exit between two looks.
    pub gone: Vec<u32>,
    /// Pids of which nothing could be read, and why.
    pub unreadable: Vec<(u32, HostError)>,
}

impl Processes {
    /// An empty table. The time of the boot is read here and kept, so that start times do not move
    /// when the clock is set.
    pub fn new(roots: Roots) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self {
            entries: HashMap::new(),
            number: 0,
            seen: 0,
            may_keep: limit.saturating_sub(SPARE_DESCRIPTORS),
            kept: None,
            around: Surroundings::new(roots),
        }
    }

    /// Whether the machine had GPU device files, or this process held one open, when last looked at
    /// (twice a minute). Where neither was so, `gpu_files` is unknown of every process and proves
    /// nothing.
    pub fn has_gpu_device_files(&self) -> bool {
        self.around.has_gpu_device_files
    }

    /// Looks at the processes with these pids, each named once, and forgets all others.
    ///
    /// `boottime_ns` is the time now, in nanoseconds since boot (`Clocks::boottime_ns`); CPU use is
    /// reckoned from the last call to this one.
    pub fn sample(&mut self, pids: &[u32], boottime_ns: u64) -> ProcessSample {
        self.number += 1;
        self.seen = 0;
        self.kept = None;
        self.around.begin(boottime_ns);
        let mut sample =
            ProcessSample { processes: Vec::with_capacity(pids.len()), ..ProcessSample::default() };
        for &pid in pids {
            self.look_at(pid, boottime_ns, &mut sample);
        }
        if self.seen != self.entries.len() {
            let number = self.number;
            self.entries.retain(|_, entry| entry.sample == number);
        }
        if self.around.settle_names() {
            for process in &mut sample.processes {
                if let Some(entry) = self.entries.get_mut(&process.pid) {
                    self.around.name(entry);
                    *process = entry.process.clone();
                }
            }
        }
        if self.around.is_short_of_descriptors() {
            self.release_descriptors(&mut None);
        }
        sample
    }

    /// What a process that is watched had used of the CPU itself at the last sample, and what its children
    /// had that have ended and that it waited for, in clock ticks.
    pub fn used_ticks(&self, pid: u32) -> Option<(u64, u64)> {
        let entry = self.entries.get(&pid)?;
        Some((entry.cpu_ticks, entry.waited_ticks))
    }

    /// Tells each process who of those who work with it listens: by the tree of those who hold GPU device
    /// files, which was brought up to date before.
    pub fn fill_relatives(
        &mut self,
        processes: &mut [Process],
        holders: &Holders,
        boottime_ns: u64,
    ) {
        self.around.fill_relatives(processes, holders.tree(), boottime_ns);
    }

    /// How many stat files are kept open, at most.
    fn kept(&mut self) -> usize {
        let entries = &self.entries;
        let count = || entries.values().filter(|it| it.stat.is_some()).count();
        *self.kept.get_or_insert_with(count)
    }

    /// Looks at one process, and puts it into `sample`.
    fn look_at(&mut self, pid: u32, now_ns: u64, sample: &mut ProcessSample) {
        let mut entry = self.entries.remove(&pid);
        let mut presence = self.refresh_entry(pid, &mut entry, now_ns);
        if let Err(HostError::Read { errno, .. }) = &presence
            && is_out_of_descriptors(*errno)
            && self.release_descriptors(&mut entry)
        {
            presence = self.refresh_entry(pid, &mut entry, now_ns);
        }
        match presence {
            Ok(Presence::Here) => {
                sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
            }
            Ok(Presence::Gone) => {
                entry = None;
                sample.gone.push(pid);
            }
            Err(error) => sample.unreadable.push((pid, error)),
        }
        // One that could not be read this time is not forgotten for it.
        if let Some(mut entry) = entry {
            entry.sample = self.number;
            self.seen += 1;
            self.entries.insert(pid, entry);
        }
    }

    /// Looks at one process. `entry` is what is known of it, if anything, and is replaced where the
    /// pid has become another process's.
    fn refresh_entry(
        &mut self,
        pid: u32,
        entry: &mut Option<Box<ProcessEntry>>,
        now_ns: u64,
    ) -> Result<Presence, HostError> {
        let mut content = [0; STAT_BYTES];
        if let Some(known) = entry
            && let Some(file) = &known.stat
        {
            // Where its stat answers after its folder was opened, the folder is its own. Without one the visit tries.
            let folder = match known.is_visit_due(now_ns) {
                true => Folder::open(&self.around.roots.proc, pid).ok(),
                false => None,
            };
            // Whatever else than a line it says: the process is dead, or will be asked for afresh.
            if let Ok(length @ 1..) = pread(file, &mut content, 0)
                && let Some(stat) = parse_stat(&content[..length])
                && known.process.start_ticks == Some(stat.start_ticks)
            {
                return self.around.update(known, &stat, folder.as_ref(), now_ns);
            }
            *entry = None;
        }

        let path = || self.around.path(pid);
        let Some((folder, file)) = self.open(pid)? else {
            return Ok(Presence::Gone);
        };
        let length = match pread(&file, &mut content, 0) {
            Ok(length) => length,
            Err(errno) if is_gone(errno) => return Ok(Presence::Gone),
            Err(errno) => return Err(HostError::Read { path: path(), errno }),
        };
        let Some(stat) = parse_stat(&content[..length]) else {
            return Err(HostError::Malformed { path: path() });
        };
        entry.take_if(|known| known.process.start_ticks != Some(stat.start_ticks));
        let mut known = match entry.take() {
            Some(known) => known,
            None => Box::new(ProcessEntry::new(Process {
                pid,
                start_ticks: Some(stat.start_ticks),
                start_time: self.around.start_time(stat.start_ticks),
                ..Process::default()
            })),
        };
        let result = self.around.update(&mut known, &stat, Some(&folder), now_ns);
        if result == Ok(Presence::Here) {
            let kept = self.kept();
            if kept < self.may_keep {
                known.stat = Some(file);
                self.kept = Some(kept + 1);
            }
            *entry = Some(known);
        }
        result
    }

    /// Opens a process's folder and its stat file; `None` where there is no such process.
    fn open(&self, pid: u32) -> Result<Option<(Folder, OwnedFd)>, HostError> {
        let path = || self.around.path(pid);
        let folder = match Folder::open(&self.around.roots.proc, pid) {
            Ok(folder) => folder,
            Err(errno) if is_gone(errno) && !self.around.sees_all => {
                return Err(HostError::Hidden { path: path() });
            }
            Err(errno) if is_gone(errno) => return Ok(None),
            Err(errno) => {
                return Err(HostError::Read { path: path(), errno });
            }
        };
        match folder.file(c"stat") {
            Ok(file) => Ok(Some((folder, file))),
            // The folder was there: the process has died since.
            Err(errno) if is_gone(errno) => Ok(None),
            Err(errno) => Err(HostError::Read { path: path(), errno }),
        }
    }

    /// Closes the stat files that are kept open, and keeps half as many from now on: others need
    /// descriptors too. Answers whether there were any.
    fn release_descriptors(&mut self, current: &mut Option<Box<ProcessEntry>>) -> bool {
        let entries = self.entries.values_mut();
        let released = entries.chain(current).filter_map(|entry| entry.stat.take()).count();
        self.may_keep = self.may_keep.min(released) / 2;
        self.kept = Some(0);
        released > 0
    }
}

#[cfg(test)]
mod tests;
