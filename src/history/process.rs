//! One process over time: its state, its CPU use, whether it outlived its job, its rows on GPUs.

use std::sync::Arc;

use super::counter::Counter;
use super::row::{Began, RowHistory, Shown, Use};
use super::sample_time::{BRIDGED_GAP_MILLISECONDS, SampleTime};
use super::streak::{Clause, Streak};
use crate::model::name_facts::NameFacts;
use crate::model::process::{AskedRelease, Parent};
use crate::model::shared::equal;
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Identity, Process, Time};
use crate::units::GIB;

/// How many rows of a process are kept: one per GPU, or per instance under MIG.
const MOST_ROWS: usize = 256;
/// CPU seconds that two scheduler ticks may charge to any process.
const TICKS_OF_CPU: f64 = 0.02;
/// The share of a core that an inactive process's threads use.
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

/// Facts from the process's names, cached while they stay the same.
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
                facts: NameFacts::of(process),
            };
        }
    }
}

/// Facts about all rows, so that a rule can skip them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowsSummary {
    pub uses_all: bool,
    /// The memory of some row has changed at some time.
    pub has_moved: bool,
    pub is_unread: bool,
}

/// A time in which a process used no more than a trace of CPU.
#[derive(Clone, Copy, Debug)]
struct CpuIdle {
    since: Time,
    until: Time,
    total: f64,
}

/// CPU time that gpumem's requests took, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct AskedCpu {
    last: Option<f64>,
    asked: f64,
}

impl AskedCpu {
    /// CPU seconds minus those of the request: one thread, for at most the duration of the request.
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

/// How long a process has waited for a CPU since that was first known, in seconds.
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

    pub(super) fn observe(&mut self, process: &Process, moment: SampleTime) {
        let previous = self.last_seen;
        self.asked.clone_from(&process.asked);
        self.names.observe(process);
        self.may_have_display = process.may_have_display();
        self.last_seen = moment.time;
        self.observe_cpu(process, previous, moment);
        let is_bridged = self.observe_stillness(moment);
        self.observe_io(process, moment);
        let lost_parent = process.parent_is_reaper;
        let lost_leader = process.group_leader_alive.map(|is_alive| !is_alive);
        let is_abandoned =
            if process.has_lost_starter() { Some(true) } else { both(lost_parent, lost_leader) };
        self.abandoned.observe(is_abandoned, moment);
        if self.abandoned.streak().is_none() {
            self.hidden = Vec::new();
        }
        if let Some(state) = process.live_state() {
            self.observe_state(state, moment, is_bridged);
        }
    }

    /// Adds the CPU use of the process and, if they were read, its descendants: a process works while its children
    /// do. If reading descendants failed, the sum is unknown. Time spent runnable without a CPU counts as use,
    /// because on a less busy host the process would have run.
    fn observe_cpu(&mut self, process: &Process, previous: Time, moment: SampleTime) {
        let own = (process.cpu_seconds, process.cpu_percent);
        let (seconds, percent) = match process.descendants.as_deref() {
            None => own,
            Some(below) => {
                let sum = |own: Option<f64>, others| Some(own? + others?);
                (sum(own.0, below.cpu_seconds), sum(own.1, below.cpu_percent))
            }
        };
        let counts_descendants = process.descendants.is_some();
        if counts_descendants != self.counts_descendants {
            // A sum cannot be compared with one of its parts.
            self.cpu = Counter::default();
            self.counts_descendants = counts_descendants;
            self.asked_cpu = AskedCpu::default();
        }
        let asked = self.asked.as_deref();
        let asked = asked.filter(|it| it.overlaps(previous, moment.time, 0.0));
        let waited = self.cpu_wait.observe(process.cpu_wait_seconds);
        let seconds = seconds.map(|seconds| seconds + waited);
        let seconds = self.asked_cpu.without(seconds, asked);
        self.cpu.observe(moment.time, seconds, percent, moment.allowed_gap);
    }

    fn observe_io(&mut self, process: &Process, moment: SampleTime) {
        let others = process.descendants.as_deref().and_then(|it| it.io_bytes);
        let bytes = process.io_bytes.map(|own| own.saturating_add(others.unwrap_or(0)) as f64);
        self.io.observe(moment.time, bytes, None, moment.allowed_gap);
    }

    /// Whether the process waits for a person or a guest. It draws a desktop, is a virtual machine, or draws on a
    /// desktop: a program with a window that also computes may contain unsaved work.
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

    fn observe_state(&mut self, state: char, moment: SampleTime, is_bridged: bool) {
        match &mut self.state {
            Some((known, streak)) if *known == state => streak.extend(moment, is_bridged),
            before => {
                if before.is_some_and(|(known, _)| is_stopped(known)) && !is_stopped(state) {
                    self.resumed_at = Some(moment.time);
                }
                let is_witnessed =
                    before.is_some_and(|(_, it)| moment.time - it.until <= moment.allowed_gap);
                let began = if is_witnessed { Began::Witnessed } else { Began::Unwitnessed };
                *before = Some((state, Streak::new(moment.time, began)));
            }
        }
    }

    /// Adds CPU seconds. Returns `true` if they prove that the process needed no CPU since they were last known.
    fn observe_stillness(&mut self, moment: SampleTime) -> bool {
        let Some(total) = self.cpu.total_at(moment.time) else {
            return false;
        };
        let continued = self.still.filter(|still| {
            let gap = moment.time - still.until;
            let trace = TICKS_OF_CPU + TRACE_OF_CPU * gap as f64 / 1000.0;
            gap < BRIDGED_GAP_MILLISECONDS && (0.0..=trace).contains(&(total - still.total))
        });
        self.still = Some(CpuIdle {
            since: continued.map_or(moment.time, |still| still.since),
            until: moment.time,
            total,
        });
        continued.is_some()
    }

    /// Adds a snapshot of a GPU whose device file the process has open without being listed.
    pub(super) fn observe_hidden(
        &mut self,
        device: usize,
        gpu: &Gpu,
        is_unexplained: Option<bool>,
        moment: SampleTime,
    ) {
        let is_still =
            self.still.is_some_and(|it| it.until == moment.time && it.since < moment.time);
        let holds = both(is_unexplained, is_unused(gpu, is_still));
        observe(&mut self.hidden, device, holds, moment);
    }

    pub(super) fn observe_row(
        &mut self,
        shown: Shown,
        gpu: &Gpu,
        row: &GpuProcess,
        moment: SampleTime,
    ) {
        let cpu_total = self.cpu.total_at(moment.time);
        let Some(place) = self.row_index(shown, row, moment) else {
            return;
        };
        let marks = (shown.is_unexplained, self.asked.as_deref());
        self.rows[place].observe(gpu, row, moment, cpu_total, marks);
    }

    /// A row's index; `None` if there are too many rows.
    fn row_index(&mut self, shown: Shown, row: &GpuProcess, moment: SampleTime) -> Option<usize> {
        let device = shown.device;
        let known = self.rows.iter().position(|known| known.is(device, row));
        if known.is_some() {
            return known;
        }
        if self.rows.len() >= MOST_ROWS {
            return None;
        }
        // Most processes are on one GPU and never get a second row.
        self.rows.reserve_exact(1);
        // The process or the row appeared between two snapshots, so its start was observed in both cases.
        self.rows.push(RowHistory::new(device, row, moment.time, shown.was_listed));
        Some(self.rows.len() - 1)
    }

    /// Handles rows that this snapshot did not show; `is_listed` reports whether it showed a GPU's processes.
    /// Returns `false` if nothing about the process is worth keeping.
    pub(super) fn observe_what_is_missing(
        &mut self,
        moment: SampleTime,
        is_listed: impl Fn(usize) -> bool,
    ) -> bool {
        let cpu_total = self.cpu.total_at(moment.time);
        let mut may_be_hidden = false;
        self.rows.retain_mut(|row| {
            if row.last_seen() == moment.time {
                return true;
            }
            row.pass(moment, cpu_total);
            let is_hidden = !is_listed(row.device());
            may_be_hidden |= is_hidden;
            is_hidden || moment.time - row.last_seen() <= moment.allowed_gap
        });
        let gone = moment.time - self.last_seen;
        let keep = if may_be_hidden {
            moment.allowed_gap.max(BRIDGED_GAP_MILLISECONDS)
        } else {
            moment.allowed_gap
        };
        gone <= keep
    }

    /// Facts about all rows that a rule can check before looking at any.
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

    /// The state as in /proc, and the time throughout which every sample showed it; `None` while unknown.
    pub fn state(&self) -> Option<(char, Streak)> {
        self.state
    }

    /// Since when the CPU time has not advanced by more than a trace between samples; `None` if the last snapshot
    /// lacks it.
    pub fn still_since(&self) -> Option<Time> {
        self.still.filter(|still| still.until == self.last_seen).map(|still| still.since)
    }

    /// Since when a reaper has adopted the process and its process group's leader is gone; for a notebook kernel,
    /// since when its server is gone.
    pub fn abandoned(&self) -> Option<&Streak> {
        self.abandoned.streak()
    }

    /// GPUs whose device file an abandoned process has open without being listed.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// When the process was last seen running again after a signal or debugger had stopped it.
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

/// Whether both hold; a known no outweighs an unknown.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// Whether a signal or terminal (`T`) or a debugger (`t`) stopped the process.
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

// A process on a GPU without an entry in NVML's list: only the open device file shows it.
//
// A worker forked from a trainer keeps the memory of the trainer's context, which is listed under the trainer's pid
// or not at all. The worker is watched only if its parent and its group's leader are gone, and only on GPUs with
// memory that the list does not explain. Which process holds that memory is unknown.

/// The least unexplained memory; less is rounding by contexts and driver.
const LEAST_UNEXPLAINED_BYTES: u64 = GIB;
/// The driver's reserve, if it does not report one, is at most one part in this many of the memory.
const RESERVED_SHARE: u64 = 50;
/// How many device files of a process are kept; a machine has fewer GPUs.
const MOST_FILES: usize = 256;

/// A GPU whose device file a process has open without being listed on it.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    device: u32,
    clause: Clause,
}

impl Hidden {
    pub(super) fn device(&self) -> usize {
        self.device as usize
    }

    /// Since when the list has not explained the GPU's memory and the process has not used the GPU.
    pub fn streak(&self) -> Option<&Streak> {
        self.clause.streak()
    }
}

/// Adds a snapshot of a GPU whose file the process has open.
pub(super) fn observe(
    known: &mut Vec<Hidden>,
    device: usize,
    holds: Option<bool>,
    moment: SampleTime,
) {
    let place = known.iter().position(|hidden| hidden.device() == device);
    let place = match place {
        Some(place) => place,
        None if known.len() < MOST_FILES && holds == Some(true) => {
            known.push(Hidden {
                device: u32::try_from(device).unwrap_or(u32::MAX),
                clause: Clause::default(),
            });
            known.len() - 1
        }
        None => return,
    };
    known[place].clause.observe(holds, moment);
}

/// Whether a GPU has more memory in use than its list explains; `None` if unknown.
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

/// Whether no process used a GPU, or a listed one did while this unlisted one was inactive (`is_still`).
pub(super) fn is_unused(gpu: &Gpu, is_still: bool) -> Option<bool> {
    let rows = gpu.processes.as_ref()?;
    match gpu.gpu_percent? {
        0 => Some(true),
        _ => Some(is_still && rows.iter().any(|row| Use::of(gpu, row) == Use::Used)),
    }
}
