//! Keeps the watched processes by pid, with the last known values of each (`entry`).
//!
//! Each sample reads `stat` of each process. If a pid has a different start time than before, the pid has been
//! reused. All other files are read through the folder through which `stat` was read.

use foldhash::{HashMap, HashMapExt as _};

use crate::host::gpu::holders::Holders;
use crate::host::proc::entry::{HostFacts, Presence, ProcessEntry};
use crate::host::proc::folder::{Folder, is_gone};
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::proc::tree::WatchedUsage;
use crate::host::{HostError, Roots};
use crate::model::Process;

#[derive(Debug)]
pub struct Processes {
    entries: HashMap<u32, Box<ProcessEntry>>,
    around: HostFacts,
    content: Vec<u8>,
}

/// Result of [`Processes::sample`]. Each requested pid is in exactly one of the lists.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProcessSample {
    pub processes: Vec<Process>,
    /// Pids that belong to no process, usually because the process exited after the previous sample.
    pub gone: Vec<u32>,
    pub unreadable: Vec<(u32, HostError)>,
}

impl Processes {
    /// Creates an empty table. The boot time is read only here, so that start times do not change when the clock is
    /// set.
    pub fn new(roots: Roots) -> Self {
        Self {
            entries: HashMap::new(),
            around: HostFacts::new(roots),
            content: Vec::with_capacity(STAT_BYTES),
        }
    }

    /// Returns whether the machine has GPU device files or gpumem holds one open. Otherwise, `gpu_files` is `None`
    /// for all processes. The answer is updated twice a minute.
    pub fn has_gpu_device_files(&self) -> bool {
        self.around.has_gpu_device_files
    }

    /// Reads the processes with these pids, each of which must occur only once, and removes all others from the table.
    ///
    /// `boottime_ns` is the current time in nanoseconds since boot (`Clocks::boottime_ns`). CPU usage is measured
    /// since the previous call.
    pub fn sample(&mut self, pids: &[u32], boottime_ns: u64) -> ProcessSample {
        self.around.begin(boottime_ns);
        let mut old_entries = std::mem::take(&mut self.entries);
        let processes = Vec::with_capacity(pids.len());
        let mut sample = ProcessSample { processes, ..ProcessSample::default() };
        let proc = Folder::list(&self.around.roots.proc).ok();
        for &pid in pids {
            let mut entry = old_entries.remove(&pid);
            let renewable = entry.as_mut().zip(proc.as_ref());
            if renewable
                .is_some_and(|(entry, proc)| self.around.update_from_stat(entry, proc, boottime_ns))
            {
                sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
                self.entries.extend(entry.map(|entry| (pid, entry)));
                continue;
            }
            match self.read_process(pid, &mut entry, boottime_ns) {
                Ok(Presence::Here) => {
                    sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
                }
                Ok(Presence::Gone) => {
                    entry = None;
                    sample.gone.push(pid);
                }
                Err(error) => sample.unreadable.push((pid, error)),
            }
            self.entries.extend(entry.map(|entry| (pid, entry)));
        }
        if self.around.update_names() {
            for process in &mut sample.processes {
                if let Some(entry) = self.entries.get_mut(&process.pid) {
                    self.around.name(entry);
                    *process = entry.process.clone();
                }
            }
        }
        sample
    }

    pub fn usage(&self, pid: u32) -> Option<WatchedUsage> {
        let entry = self.entries.get(&pid)?;
        let (io_bytes, io_read_ns) = entry.file_bytes;
        Some(WatchedUsage { ticks: entry.ticks, io_bytes, io_read_ns })
    }

    /// Sets the listening relatives of each process. Uses the process tree of `holders`, which must be up to date.
    pub fn fill_relatives(
        &mut self,
        processes: &mut [Process],
        holders: &Holders,
        boottime_ns: u64,
    ) {
        self.around.fill_relatives(processes, holders.tree(), boottime_ns);
    }

    /// Reads a process. `entry` is its previous entry, which is replaced if the pid has been reused.
    fn read_process(
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
            // The kernel lets gpumem open the folder of a hidden process (proc(5), hidepid).
            Err(errno) if is_gone(errno) && !self.around.sees_all => {
                return Err(HostError::Hidden { path });
            }
            Err(errno) if is_gone(errno) => return Ok(Presence::Gone),
            Err(errno) => return Err(HostError::Read { path, errno }),
        }
        let stat = parse_stat(&self.content).ok_or(HostError::Malformed { path })?;
        let old_entry =
            entry.take().filter(|entry| entry.process.start_ticks == Some(stat.start_ticks));
        let mut new_entry = old_entry.unwrap_or_else(|| {
            let process = Process {
                pid,
                start_ticks: Some(stat.start_ticks),
                start_time: self.around.start_time(stat.start_ticks),
                ..Process::default()
            };
            Box::new(ProcessEntry::new(process, self.around.started_ns(stat.start_ticks)))
        });
        let presence = self.around.update(&mut new_entry, &stat, &folder, now_ns)?;
        *entry = Some(new_entry);
        Ok(presence)
    }
}

#[cfg(test)]
mod tests;
