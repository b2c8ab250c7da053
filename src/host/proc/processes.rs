//! The processes that are being watched, and what was last known of each.
//!
//! A process's folder is opened in each sample, and its stat read through it: another start under the same pid is
//! another process, and all that follows is read through the same folder.
//!
//! This file knows which pid is which process; what is said of one is in `entry`.

use foldhash::{HashMap, HashMapExt as _};

use crate::host::gpu::holders::Holders;
use crate::host::proc::entry::{Presence, ProcessEntry, Surroundings};
use crate::host::proc::folder::{Folder, is_gone};
use crate::host::proc::stat::{STAT_BYTES, Ticks, parse_stat};
use crate::host::{HostError, Roots};
use crate::model::Process;

/// The watched processes.
#[derive(Debug)]
pub struct Processes {
    entries: HashMap<u32, Box<ProcessEntry>>,
    around: Surroundings,
    content: Vec<u8>,
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
        Self {
            entries: HashMap::new(),
            around: Surroundings::new(roots),
            content: Vec::with_capacity(STAT_BYTES),
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
        self.around.begin(boottime_ns);
        let mut before = std::mem::take(&mut self.entries);
        let mut sample = ProcessSample::default();
        let proc = Folder::list(&self.around.roots.proc).ok();
        for &pid in pids {
            let mut entry = before.remove(&pid);
            let known = entry.as_mut().zip(proc.as_ref());
            if known.is_some_and(|(known, proc)| self.around.renew(known, proc, boottime_ns)) {
                sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
                self.entries.extend(entry.map(|entry| (pid, entry)));
                continue;
            }
            match self.look_at(pid, &mut entry, boottime_ns) {
                Ok(Presence::Here) => {
                    sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
                }
                Ok(Presence::Gone) => {
                    entry = None;
                    sample.gone.push(pid);
                }
                // What was known of it stays known.
                Err(error) => sample.unreadable.push((pid, error)),
            }
            self.entries.extend(entry.map(|entry| (pid, entry)));
        }
        if self.around.settle_names() {
            for process in &mut sample.processes {
                if let Some(entry) = self.entries.get_mut(&process.pid) {
                    self.around.name(entry);
                    *process = entry.process.clone();
                }
            }
        }
        sample
    }

    /// What a process had used of the CPU at the last sample, and its children that it has waited for.
    pub fn ticks(&self, pid: u32) -> Option<Ticks> {
        self.entries.get(&pid).map(|entry| entry.ticks)
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

    /// Looks at one process. `entry` is what is known of it, if anything, and is replaced where the
    /// pid has become another process's.
    fn look_at(
        &mut self,
        pid: u32,
        entry: &mut Option<Box<ProcessEntry>>,
        now_ns: u64,
    ) -> Result<Presence, HostError> {
        let path = self.around.path(pid);
        let folder = match Folder::open(&self.around.roots.proc, pid) {
            Ok(folder) => folder,
            Err(errno) if is_gone(errno) && !self.around.sees_all => {
                return Err(HostError::Hidden { path });
            }
            Err(errno) if is_gone(errno) => return Ok(Presence::Gone),
            Err(errno) => return Err(HostError::Read { path, errno }),
        };
        match folder.read(c"stat", &mut self.content, STAT_BYTES) {
            Ok(()) => {}
            // The folder was there: the process has died since.
            Err(errno) if is_gone(errno) => return Ok(Presence::Gone),
            Err(errno) => return Err(HostError::Read { path, errno }),
        }
        let stat = parse_stat(&self.content).ok_or(HostError::Malformed { path })?;
        let known = entry.take().filter(|it| it.process.start_ticks == Some(stat.start_ticks));
        let mut known = known.unwrap_or_else(|| {
            Box::new(ProcessEntry::new(Process {
                pid,
                start_ticks: Some(stat.start_ticks),
                start_time: self.around.start_time(stat.start_ticks),
                ..Process::default()
            }))
        });
        let presence = self.around.update(&mut known, &stat, &folder, now_ns)?;
        *entry = Some(known);
        Ok(presence)
    }
}

#[cfg(test)]
mod tests;
