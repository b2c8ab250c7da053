//! The history of a process: its state, its CPU use, its rows on GPUs, and whether it outlived its job.

use std::sync::Arc;

use foldhash::HashMap;

use super::counter::Counter;
use super::row::{Began, RowContext, RowHistory, Use};
use super::sample_time::{BRIDGED_GAP_MILLISECONDS, SampleTime};
use super::streak::{Clause, Streak};
use crate::model::names::NameFacts;
use crate::model::process::{AskedRelease, Parent, equal};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Identity, Process, Time};
use crate::units::GIB;

/// Maximum number of rows per process. A process has one per GPU or, under MIG, per instance.
const MOST_ROWS: usize = 256;
/// CPU time, in seconds, that two scheduler ticks can charge to an inactive process.
const TICKS_OF_CPU: f64 = 0.02;
/// Maximum CPU use of an inactive process, as a share of a core, apart from scheduler ticks.
const TRACE_OF_CPU: f64 = 0.01;

#[derive(Clone, Debug)]
pub struct ProcessHistory {
    identity: Identity,
    first_seen: Time,
    last_seen: Time,
    state: Option<(char, Streak)>,
    resumed_at: Option<Time>,
    asked: Option<Arc<AskedRelease>>,
    asked_cpu: AskedCpu,
    cpu_wait: CpuWait,
    cpu: Counter,
    counts_descendants: bool,
    still: Option<CpuIdle>,
    abandoned: Clause,
    /// Bytes read and written by the process and its descendants.
    io: Counter,
    rows: Vec<RowHistory>,
    hidden: Vec<Hidden>,
    names: KnownNames,
    may_have_display: bool,
}

/// Facts that follow from the names of the process, cached for as long as the names stay the same.
#[derive(Clone, Debug, Default)]
struct KnownNames {
    command: Option<Arc<[Arc<str>]>>,
    executable: Option<Arc<str>>,
    comm: Option<Arc<str>>,
    framework: Option<Arc<str>>,
    parent: Option<Arc<Parent>>,
    parent_is_reaper: Option<bool>,
    facts: NameFacts,
}

impl KnownNames {
    fn observe(&mut self, process: &Process) {
        let is_same = equal(&self.command, &process.command)
            && equal(&self.executable, &process.executable)
            && equal(&self.comm, &process.comm)
            && equal(&self.framework, &process.framework)
            && equal(&self.parent, &process.parent)
            && self.parent_is_reaper == process.parent_is_reaper;
        if !is_same {
            *self = Self {
                command: process.command.clone(),
                executable: process.executable.clone(),
                comm: process.comm.clone(),
                framework: process.framework.clone(),
                parent: process.parent.clone(),
                parent_is_reaper: process.parent_is_reaper,
                facts: NameFacts::new(process),
            };
        }
    }
}

/// Summary of a process's rows. It lets rules dismiss most processes quickly.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowsSummary {
    pub uses_all: bool,
    pub has_moved: bool,
    pub is_unread: bool,
}

/// A period in which a process used no more than a trace of CPU.
#[derive(Clone, Copy, Debug)]
struct CpuIdle {
    since: Time,
    until: Time,
    total: f64,
}

/// CPU time, in seconds, that the process spent on gpumem's release requests.
#[derive(Clone, Copy, Debug, Default)]
struct AskedCpu {
    last: Option<f64>,
    asked: f64,
}

impl AskedCpu {
    /// Subtracts the CPU time used during a release request. The request uses one thread, so at most its duration is
    /// subtracted.
    fn without(&mut self, seconds: Option<f64>, asked: Option<&AskedRelease>) -> Option<f64> {
        let now = seconds?;
        if let (Some(asked), Some(last)) = (asked, self.last) {
            let longest = asked.until.seconds_since(asked.since).max(0.0);
            self.asked += (now - last).clamp(0.0, longest);
        }
        self.last = Some(now);
        Some((now - self.asked).max(0.0))
    }
}

/// Time, in seconds, for which a process has waited for a CPU since the first known value.
#[derive(Clone, Copy, Debug, Default)]
struct CpuWait {
    last: Option<f64>,
    seconds: f64,
}

impl CpuWait {
    fn observe(&mut self, total: Option<f64>) -> f64 {
        if let (Some(now), Some(last)) = (total, self.last) {
            self.seconds += (now - last).max(0.0);
        }
        self.last = total.or(self.last);
        self.seconds
    }
}

impl ProcessHistory {
    pub(super) fn new(identity: Identity, time: Time) -> Self {
        Self {
            identity,
            first_seen: time,
            last_seen: time,
            state: None,
            resumed_at: None,
            asked: None,
            asked_cpu: AskedCpu::default(),
            cpu_wait: CpuWait::default(),
            cpu: Counter::default(),
            counts_descendants: false,
            still: None,
            abandoned: Clause::default(),
            io: Counter::default(),
            rows: Vec::new(),
            hidden: Vec::new(),
            names: KnownNames::default(),
            may_have_display: false,
        }
    }

    pub(super) fn observe(&mut self, process: &Process, sample: SampleTime) {
        let previous = self.last_seen;
        self.asked.clone_from(&process.asked);
        self.names.observe(process);
        self.may_have_display = process.may_have_display();
        self.last_seen = sample.time;
        self.observe_cpu(process, previous, sample);
        let is_bridged = self.observe_stillness(sample);
        self.observe_io(process, sample);
        let lost_parent = process.parent_is_reaper;
        let lost_leader = process.group_leader_alive.map(|is_alive| !is_alive);
        let is_abandoned =
            if process.has_lost_starter() { Some(true) } else { both(lost_parent, lost_leader) };
        self.abandoned.observe(is_abandoned, sample);
        if self.abandoned.streak().is_none() {
            self.hidden = Vec::new();
        }
        if let Some(state) = process.live_state() {
            self.observe_state(state, sample, is_bridged);
        }
    }

    /// Adds the CPU use of the process and its descendants, because a process works while its children do. If
    /// either is unknown, the sum is unknown. Time spent waiting for a CPU is included, because
    /// the process would have been running on a less busy host.
    fn observe_cpu(&mut self, process: &Process, previous: Time, sample: SampleTime) {
        let process_use = (process.cpu_seconds, process.cpu_percent);
        let (seconds, percent) = match process.descendants.as_deref() {
            None => process_use,
            Some(descendants) => {
                let sum = |process: Option<f64>, descendants| Some(process? + descendants?);
                (
                    sum(process_use.0, descendants.cpu_seconds),
                    sum(process_use.1, descendants.cpu_percent),
                )
            }
        };
        let counts_descendants = process.descendants.is_some();
        if counts_descendants != self.counts_descendants {
            // A total that includes descendants cannot be compared with one that does not, so start over.
            self.cpu = Counter::default();
            self.counts_descendants = counts_descendants;
            self.asked_cpu = AskedCpu::default();
        }
        let asked = self.asked.as_deref();
        let asked = asked.filter(|asked| asked.overlaps(previous, sample.time, 0.0));
        let waited = self.cpu_wait.observe(process.cpu_wait_seconds);
        let seconds = seconds.map(|seconds| seconds + waited);
        let seconds = self.asked_cpu.without(seconds, asked);
        self.cpu.observe(sample.time, seconds, percent, sample.allowed_gap);
    }

    fn observe_io(&mut self, process: &Process, sample: SampleTime) {
        let descendants =
            process.descendants.as_deref().and_then(|descendants| descendants.io_bytes);
        let bytes =
            process.io_bytes.map(|bytes| bytes.saturating_add(descendants.unwrap_or(0)) as f64);
        self.io.observe(sample.time, bytes, None, sample.allowed_gap);
    }

    /// Returns whether the process serves a person or a guest: it draws a desktop, is a virtual machine, or computes
    /// and also has a window, in which there can be unsaved work.
    pub fn is_desktop_or_machine(&self) -> bool {
        let draws = |row: &RowHistory| row.kind() == ProcessType::ComputeGraphics;
        let facts = &self.names.facts;
        facts.is_display
            || facts.hypervisor.is_some()
            || self.may_have_display && self.rows.iter().any(draws)
    }

    pub fn names(&self) -> &NameFacts {
        &self.names.facts
    }

    fn observe_state(&mut self, state: char, sample: SampleTime, is_bridged: bool) {
        match &mut self.state {
            Some((last, streak)) if *last == state => streak.extend(sample, is_bridged),
            before => {
                if before.is_some_and(|(last, _)| is_stopped(last)) && !is_stopped(state) {
                    self.resumed_at = Some(sample.time);
                }
                let is_witnessed = before
                    .is_some_and(|(_, streak)| sample.time - streak.until <= sample.allowed_gap);
                let began = if is_witnessed { Began::Witnessed } else { Began::Unwitnessed };
                *before = Some((state, Streak::new(sample.time, began)));
            }
        }
    }

    /// Updates the period without CPU use. Returns whether the process used no more than a trace of CPU since the
    /// previous sample.
    fn observe_stillness(&mut self, sample: SampleTime) -> bool {
        let Some(total) = self.cpu.total_at(sample.time) else {
            return false;
        };
        let continued = self.still.filter(|still| {
            let gap = sample.time - still.until;
            let trace = TICKS_OF_CPU + TRACE_OF_CPU * gap as f64 / 1000.0;
            gap < BRIDGED_GAP_MILLISECONDS && (0.0..=trace).contains(&(total - still.total))
        });
        self.still = Some(CpuIdle {
            since: continued.map_or(sample.time, |still| still.since),
            until: sample.time,
            total,
        });
        continued.is_some()
    }

    /// Records whether, in this snapshot, the process may hold memory on a GPU that does not list it.
    pub(super) fn observe_hidden(
        &mut self,
        device: usize,
        gpu: &Gpu,
        is_unexplained: Option<bool>,
        sample: SampleTime,
    ) {
        let is_still =
            self.still.is_some_and(|still| still.until == sample.time && still.since < sample.time);
        let holds = both(is_unexplained, is_unused(gpu, is_still));
        observe(&mut self.hidden, device, holds, sample);
    }

    pub(super) fn observe_row(
        &mut self,
        shown: RowContext,
        gpu: &Gpu,
        row: &GpuProcess,
        sample: SampleTime,
    ) {
        let cpu_total = self.cpu.total_at(sample.time);
        let Some(index) = self.row_index(shown, row, sample) else {
            return;
        };
        let marks = (shown.is_unexplained, self.asked.as_deref());
        self.rows[index].observe(gpu, row, sample, cpu_total, marks);
    }

    /// Returns the index of a row and adds the row if it is new. Returns `None` if there are too many rows.
    fn row_index(
        &mut self,
        shown: RowContext,
        row: &GpuProcess,
        sample: SampleTime,
    ) -> Option<usize> {
        let device = shown.device;
        let index = self.rows.iter().position(|history| history.is_for(device, row));
        if index.is_some() {
            return index;
        }
        if self.rows.len() >= MOST_ROWS {
            return None;
        }
        // Most processes are on one GPU and never get a second row.
        self.rows.reserve_exact(1);
        // A row that was not in the previous list has just appeared, so its beginning was observed.
        self.rows.push(RowHistory::new(device, row, sample.time, shown.was_listed));
        Some(self.rows.len() - 1)
    }

    /// Handles the rows that are missing from this snapshot. `is_listed` returns whether a GPU's list was read.
    /// Returns whether the process can still exist and must be kept.
    pub(super) fn observe_what_is_missing(
        &mut self,
        sample: SampleTime,
        is_listed: impl Fn(usize) -> bool,
    ) -> bool {
        let cpu_total = self.cpu.total_at(sample.time);
        let mut may_be_hidden = false;
        self.rows.retain_mut(|row| {
            if row.last_seen() == sample.time {
                return true;
            }
            row.pass(sample, cpu_total);
            let is_hidden = !is_listed(row.device());
            may_be_hidden |= is_hidden;
            is_hidden || sample.time - row.last_seen() <= sample.allowed_gap
        });
        let gone = sample.time - self.last_seen;
        let keep = if may_be_hidden {
            sample.allowed_gap.max(BRIDGED_GAP_MILLISECONDS)
        } else {
            sample.allowed_gap
        };
        gone <= keep
    }

    pub fn rows_summary(&self) -> RowsSummary {
        RowsSummary {
            uses_all: self.rows.iter().all(|row| row.last_use() == Use::Used),
            has_moved: self.rows.iter().any(|row| row.growth().has_moved()),
            is_unread: self.rows.iter().any(|row| row.used_bytes().is_none()),
        }
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub fn first_seen(&self) -> Time {
        self.first_seen
    }

    pub fn last_seen(&self) -> Time {
        self.last_seen
    }

    /// Returns the state of the process as in /proc, and the period in which all samples have shown it. Returns `None`
    /// if the state is unknown.
    pub fn state(&self) -> Option<(char, Streak)> {
        self.state
    }

    /// Returns the time since which the CPU time has advanced by no more than a trace from sample to sample. Returns
    /// `None` if the CPU time is unknown in the last snapshot.
    pub fn still_since(&self) -> Option<Time> {
        self.still.filter(|still| still.until == self.last_seen).map(|still| still.since)
    }

    /// Returns the period in which the program that started the process has been gone, or in which the parent has been
    /// a reaper and the leader of the process group has been gone.
    pub fn abandoned(&self) -> Option<&Streak> {
        self.abandoned.streak()
    }

    /// Returns the GPUs whose device files an abandoned process has open although they do not list it.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// Returns when the process was last observed running again after it had been stopped.
    pub fn resumed_at(&self) -> Option<Time> {
        self.resumed_at
    }

    pub fn io(&self) -> &Counter {
        &self.io
    }

    pub fn cpu(&self) -> &Counter {
        &self.cpu
    }

    pub fn rows(&self) -> &[RowHistory] {
        &self.rows
    }
}

/// Returns the logical AND of three-valued answers.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// Returns whether the process was stopped by a signal or the terminal (`T`) or by a debugger (`t`).
fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}

#[cfg(test)]
impl ProcessHistory {
    pub(super) fn size(&self) -> usize {
        size_of::<Self>()
            + self.cpu.size()
            + self.rows.capacity() * size_of::<RowHistory>()
            + self.hidden.capacity() * size_of::<Hidden>()
    }
}

// NVML does not list all processes that hold GPU memory. Only an open device file suggests that an unlisted process
// does.
//
// A worker that was forked from a trainer keeps the memory of the trainer's context alive. NVML lists this memory under
// the trainer's pid or not at all. An abandoned worker is therefore watched, but only on GPUs with memory that the list
// does not explain. It is not certain that this worker holds the memory.

/// Minimum amount of unexplained memory. Contexts and rounding explain less.
const LEAST_UNEXPLAINED_BYTES: u64 = GIB;
/// Divisor by which the driver's reserve is estimated from the total memory, if the driver does not report it. The
/// estimate is at least 1 GiB.
const RESERVED_SHARE: u64 = 50;
/// Maximum number of device files per process. No machine has so many GPUs.
const MOST_FILES: usize = 256;

/// A GPU whose device file a process has open although the GPU does not list the process.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    device: u32,
    clause: Clause,
}

impl Hidden {
    pub(super) fn device(&self) -> usize {
        self.device as usize
    }

    /// Returns the period in which the GPU had memory that its list did not explain, and the process did not use the
    /// GPU.
    pub fn streak(&self) -> Option<&Streak> {
        self.clause.streak()
    }
}

pub(super) fn observe(
    all: &mut Vec<Hidden>,
    device: usize,
    holds: Option<bool>,
    sample: SampleTime,
) {
    let index = all.iter().position(|hidden| hidden.device() == device);
    let index = match index {
        Some(index) => index,
        None if all.len() < MOST_FILES && holds == Some(true) => {
            all.push(Hidden {
                device: u32::try_from(device).unwrap_or(u32::MAX),
                clause: Clause::default(),
            });
            all.len() - 1
        }
        None => return,
    };
    all[index].clause.observe(holds, sample);
}

/// Returns whether at least [`LEAST_UNEXPLAINED_BYTES`] more of a GPU's memory is in use than its process list
/// explains. Returns `None` if that is unknown, or if the GPU is divided into MIG instances.
pub(super) fn is_unexplained(gpu: &Gpu) -> Option<bool> {
    if gpu.is_divided() || gpu.stale_seconds.is_some() {
        return None;
    }
    let memory = gpu.memory?;
    let used = match memory.reserved_bytes {
        Some(_) => memory.used_bytes,
        None => memory.used_bytes.saturating_sub((memory.total_bytes / RESERVED_SHARE).max(GIB)),
    };
    let listed = gpu.process_bytes()?;
    Some(used.saturating_sub(listed) >= LEAST_UNEXPLAINED_BYTES)
}

/// Returns whether an unlisted process does not use the GPU: the GPU is unused, or a listed process uses it while the
/// unlisted one is inactive (`is_still`). Returns `None` if the GPU's list or utilization is unknown.
pub(super) fn is_unused(gpu: &Gpu, is_still: bool) -> Option<bool> {
    let rows = gpu.processes.as_ref()?;
    match gpu.gpu_percent? {
        0 => Some(true),
        _ => Some(is_still && rows.iter().any(|row| Use::from_row(gpu, row) == Use::Used)),
    }
}

// NVML also lists pids without a living process: /proc does not list the pid, or shows a zombie whose identity is
// uncertain. A zombie with a certain identity has a `ProcessHistory` like other processes.

/// Maximum number of rows without a living process that are watched.
const MOST_UNLISTED: usize = 4096;

/// A pid that NVML lists on a GPU although no living process has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnlistedPid {
    /// The period in which all lists that were read contained the pid, and no living process had it.
    pub streak: Streak,
    /// `Z` or `X`, or `None` if /proc does not list the pid.
    pub state: Option<char>,
}

/// Pids without a living process, by the index of the GPU in the history and by pid.
#[derive(Clone, Debug, Default)]
pub(super) struct UnlistedPids(HashMap<(usize, u32), UnlistedPid>);

impl UnlistedPids {
    /// Starts or extends the streak of a pid whose process no longer runs or is not in /proc. Removes a pid whose
    /// process may be alive, or that has no entry in the snapshot. `was_listed` tells whether the previous list was
    /// read, too.
    pub(super) fn observe(
        &mut self,
        device: usize,
        pid: u32,
        process: Option<&Process>,
        sample: SampleTime,
        was_listed: bool,
    ) {
        let Some(state) = process.and_then(state_of_unlisted) else {
            self.0.remove(&(device, pid));
            return;
        };
        if let Some(unlisted) = self.0.get_mut(&(device, pid)) {
            unlisted.streak.extend(sample, false);
            unlisted.state = state;
        } else if self.0.len() < MOST_UNLISTED {
            let began = if was_listed { Began::Witnessed } else { Began::Unwitnessed };
            let streak = Streak::new(sample.time, began);
            self.0.insert((device, pid), UnlistedPid { streak, state });
        }
    }

    /// Removes pids that belong to known processes (`is_known`), and pids that were not listed for longer than the
    /// allowed gap.
    pub(super) fn forget(&mut self, sample: SampleTime, is_known: impl Fn(u32) -> bool) {
        self.0.retain(|(_, pid), unlisted| {
            sample.time - unlisted.streak.until <= sample.allowed_gap && !is_known(*pid)
        });
    }

    pub(super) fn get(&self, device: usize, pid: u32) -> Option<&UnlistedPid> {
        self.0.get(&(device, pid))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the state of a dead process, or `Some(None)` if /proc does not list the pid. Returns `None` if the process
/// may be alive, because the process in /proc may be a different one.
fn state_of_unlisted(process: &Process) -> Option<Option<char>> {
    match process.state {
        Some('Z' | 'X') => Some(process.state),
        Some(_) => None,
        None => (process.unresolved.is_none() && !process.identity().is_certain()).then_some(None),
    }
}
