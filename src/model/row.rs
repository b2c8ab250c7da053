//! Rows of tables and selections. A row is a process on a GPU, or an unlisted process that has GPU files open, with the
//! facts from one snapshot.
//!
//! [`field`](super::field) contains the facts about a row, and [`selector`](super::selector) filters rows.

use std::sync::Arc;

use foldhash::HashMap;

use super::finding::{Finding, Kind};
use super::snapshot::{Gpu, GpuProcess, LastKnown, Process, Snapshot};
use super::suspect::Suspect;
use super::{Identity, Start, Time};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CurrentUser {
    /// `None` for a recording, which may be from another machine.
    pub uid: Option<u32>,
    pub name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RowIndices {
    /// Index in [`Snapshot::gpus`]. For an unlisted process, the first GPU whose device file it has open, or `None`
    /// if there is none.
    pub gpu: Option<usize>,
    /// Index in [`Gpu::processes`], or `None` if NVML does not list the process.
    pub entry: Option<usize>,
    pub process: Option<usize>,
    pub finding: Option<usize>,
}

/// Returns the rows of a snapshot. The listed processes come first, GPU by GPU, and then the unlisted processes.
pub fn places(snapshot: &Snapshot, findings: &[Finding]) -> Vec<RowIndices> {
    // If two processes have the same pid, use the first, as `Snapshot::process` does.
    let processes = snapshot.processes.iter().enumerate().rev();
    let processes: HashMap<u32, usize> =
        processes.map(|(index, process)| (process.pid, index)).collect();
    let finding_of: HashMap<Identity, usize> = findings
        .iter()
        .enumerate()
        .filter_map(|(index, finding)| Some((finding.process.as_ref()?.identity, index)))
        .collect();
    let mut rows = Vec::new();
    for (gpu_at, gpu) in snapshot.gpus.iter().enumerate() {
        for (entry_at, entry) in gpu.processes.iter().flatten().enumerate() {
            let process = processes.get(&entry.pid).copied();
            let identity = identity(entry.pid, process.map(|at| &snapshot.processes[at]));
            let finding = finding_of.get(&identity).copied();
            rows.push(RowIndices {
                gpu: Some(gpu_at),
                entry: Some(entry_at),
                process,
                finding: finding.filter(|&at| concerns(&findings[at], gpu.index)),
            });
        }
    }
    for process in snapshot.unlisted_holders() {
        let holds = |gpu: &Gpu| gpu.is_open_in(process) == Some(true);
        rows.push(RowIndices {
            gpu: snapshot.gpus.iter().position(holds),
            entry: None,
            process: processes.get(&process.pid).copied(),
            // A finding on an unlisted process is about a GPU on which the process is not listed.
            finding: finding_of.get(&process.identity()).copied(),
        });
    }
    rows
}

#[derive(Clone, Copy, Debug)]
pub struct ProcessRow<'a> {
    pub snapshot: &'a Snapshot,
    /// Identity of the process, even of an unresolved one, or `None` if the row is a whole GPU.
    pub identity: Option<Identity>,
    /// GPU of the row. For an unlisted process, the first GPU whose device file it has open, or `None` if there is
    /// none.
    pub gpu: Option<&'a Gpu>,
    /// Entry of the process in the GPU's list, or `None` if NVML does not list the process.
    pub entry: Option<&'a GpuProcess>,
    /// The process, or the reason why it is unresolved. The facts about an unresolved pid may be about another process.
    pub process: Result<&'a Process, &'a str>,
    /// Last known facts about a process that has exited but is still listed by NVML.
    pub ended: Option<&'a LastKnown>,
    pub finding: Option<&'a Finding>,
    pub suspect: Option<&'a Suspect>,
    /// Seconds since the process last used this GPU, 0 while it is using the GPU, or `None` if unknown.
    pub idle_seconds: Option<f64>,
    pub growth_bytes: Option<i64>,
}

impl<'a> ProcessRow<'a> {
    /// Builds the row for `place`. The idle time stays unknown, because it requires several snapshots.
    pub fn new(snapshot: &'a Snapshot, findings: &'a [Finding], place: RowIndices) -> Self {
        let gpu = place.gpu.map(|at| &snapshot.gpus[at]);
        let entry = gpu.and_then(|gpu| gpu.processes.as_ref()?.get(place.entry?));
        let process = place.process.map(|at| &snapshot.processes[at]);
        Self {
            snapshot,
            identity: entry
                .map(|entry| entry.pid)
                .or(process.map(|process| process.pid))
                .map(|pid| identity(pid, process)),
            gpu,
            entry,
            process: match process {
                None => Err("this process is unknown"),
                Some(process) => stranger(process).map_or(Ok(process), Err),
            },
            ended: process.and_then(Process::ended),
            finding: place.finding.map(|at| &findings[at]),
            suspect: None,
            idle_seconds: None,
            growth_bytes: None,
        }
    }

    pub fn of_gpu(snapshot: &'a Snapshot, gpu: &'a Gpu, finding: Option<&'a Finding>) -> Self {
        Self {
            snapshot,
            identity: None,
            gpu: Some(gpu),
            entry: None,
            process: Err("it is not a process"),
            ended: None,
            finding,
            suspect: None,
            idle_seconds: None,
            growth_bytes: None,
        }
    }

    pub fn suspected(self, suspect_of: impl Fn(Identity) -> Option<&'a Suspect>) -> Self {
        let index = self.gpu.map(|gpu| gpu.index);
        let is_here = |suspect: &&Suspect| suspect.gpus.iter().any(|on| Some(on.index) == index);
        let suspect = self.identity.and_then(suspect_of).filter(is_here);
        Self { suspect: suspect.filter(|_| self.finding.is_none()), ..self }
    }

    /// Adds the idle time. `idle_since` returns when a process last used the GPU with this index, or `None` if the time
    /// is unknown.
    pub fn idle(self, idle_since: impl Fn(Identity, u32) -> Option<Time>) -> Self {
        let idle_seconds = match (self.entry, self.gpu, self.identity) {
            (Some(entry), _, _) if entry.sm_percent.is_some_and(|percent| percent > 0) => Some(0.0),
            (Some(_), Some(gpu), Some(identity)) => idle_since(identity, gpu.index)
                .map(|since| self.snapshot.time.seconds_since(since).max(0.0)),
            _ => None,
        };
        Self { idle_seconds, ..self }
    }

    pub fn pid(&self) -> Option<u32> {
        Some(self.identity?.pid)
    }

    pub fn user(&self) -> Option<&'a Arc<str>> {
        match (self.process, self.ended) {
            (Ok(process), _) => process.user.as_ref(),
            (Err(_), ended) => ended?.user.as_ref(),
        }
    }

    pub fn is_listed(&self) -> bool {
        self.entry.is_some()
    }

    pub fn instance(&self) -> (Option<u32>, Option<u32>) {
        self.entry.map_or((None, None), |entry| (entry.gpu_instance_id, entry.compute_instance_id))
    }

    pub fn used_bytes(&self) -> Option<u64> {
        self.entry?.used_bytes
    }

    pub fn is_unused(&self) -> bool {
        let kind =
            self.finding.map(|finding| finding.kind).or(self.suspect.map(|suspect| suspect.kind));
        kind.is_some_and(Kind::is_unused)
    }

    pub fn runtime_seconds(&self) -> Option<f64> {
        let start = self.process.ok()?.start_time?;
        Some(self.snapshot.time.seconds_since(start).max(0.0))
    }

    /// Returns whether the row belongs to this user. Compares names only if a uid is unknown. Returns `None` if the
    /// owner is unknown.
    pub fn is_of(&self, me: &CurrentUser) -> Option<bool> {
        let process = self.process.ok()?;
        if let (Some(mine), Some(uid)) = (me.uid, process.uid) {
            return Some(mine == uid);
        }
        Some(me.name.as_deref()? == process.user.as_deref()?)
    }

    /// Returns whether the row is on the GPU with this index or, for an unlisted process, whether it has the GPU's
    /// device file open. Returns `None` if the GPU of the row is unknown.
    pub fn is_on(&self, index: u32) -> Option<bool> {
        if self.is_listed() || self.identity.is_none() {
            return Some(self.gpu?.index == index);
        }
        let process = self.process.ok()?;
        let gpu = self.snapshot.gpus.iter().find(|gpu| gpu.index == index);
        gpu.map_or(Some(false), |gpu| gpu.is_open_in(process))
    }

    pub fn memory_percent(&self) -> Option<f64> {
        let (gpu_instance, compute_instance) = self.instance();
        let memory = match gpu_instance {
            Some(_) => self.gpu?.mig_device(gpu_instance, compute_instance)?.memory,
            None => self.gpu?.memory,
        };
        let total = memory?.total_bytes;
        (total > 0).then(|| self.used_bytes().map(|used| percent(used, total)))?
    }

    /// Returns the name of the GPU or MIG device, or the indices of all GPUs whose device files an unlisted process
    /// has open. Returns `None` if there is none.
    pub fn place_on_gpus(&self) -> Option<String> {
        let (gpu_instance, compute_instance) = self.instance();
        let text = match self.process {
            Ok(process) if !self.is_listed() => self.snapshot.held_gpus(process),
            _ => self.gpu?.part_name(gpu_instance, compute_instance),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    pub fn holding(&self) -> Option<String> {
        let process = self.process.ok().filter(|_| !self.is_listed())?;
        Some(self.snapshot.holding(process))
    }

    pub fn mps_role(&self) -> Option<&'static str> {
        self.process.ok()?.mps_role(self.entry)
    }
}

fn identity(pid: u32, process: Option<&Process>) -> Identity {
    let unknown = Identity { pid, start: Start::Unknown };
    process.map_or(unknown, Process::identity)
}

/// Returns why facts from /proc about this pid are not trusted, or `None` if they are trusted.
fn stranger(process: &Process) -> Option<&str> {
    match &process.unresolved {
        Some(reason) => Some(reason),
        None if !process.identity().is_certain() => Some("this pid is not in /proc"),
        None => None,
    }
}

/// Returns whether a finding is about this GPU, or about the process on all GPUs.
fn concerns(finding: &Finding, gpu: u32) -> bool {
    finding.gpus.is_empty() || finding.gpus.iter().any(|found| found.index == gpu)
}

pub fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

pub fn notebook(process: &Process) -> Option<&str> {
    process.jupyter.as_ref()?.notebook_path.as_deref()
}
