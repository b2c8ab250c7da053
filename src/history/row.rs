//! Keeps the history of a process on a GPU or MIG instance: its memory and its periods without use.

use super::growth::Growth;
use super::power::DESKTOP_PERCENT;
use super::sample_time::{BRIDGED_GAP_MILLISECONDS, SampleTime};
use crate::model::process::AskedRelease;
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Time};

/// Maximum CPU use of a waiting process, as a share of a core, apart from scheduler ticks.
const TRACE_OF_CPU: f64 = 0.02;
/// CPU use, as a share of a core, that is too low for even one burst of GPU work per minute.
const CPU_OF_NO_BURST: f64 = 0.005;
const TICK_OF_CPU: f64 = 0.02;
/// CPU time, in seconds, that scheduler ticks can charge to an inactive process.
const TICKS_OF_CPU: f64 = 0.1;

/// Seconds after a release request during which a drop of memory is attributed to the request. Releases are verified
/// for the same time.
const RELEASED_SECONDS: f64 = 10.0;
/// Minimum change of memory that is attributed to the process. The driver causes smaller ones.
const MOVEMENT_BYTES: u64 = 64 << 20;
/// Minimum share of the power limit that a working GPU draws, even if it reports no utilization.
const POWER_AT_WORK: f64 = 0.6;
/// At most one in this many samples of a run can show unexplained use. The GPU's value is measured at a different
/// time than the processes', so a few such samples are normal.
const EXPLAINED_TO_UNEXPLAINED: u64 = 10;

/// Evidence that a process did not use a GPU: the utilization of the process, or that of the whole GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoUseSource {
    Process,
    Device,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// The driver reported that the process used an engine of the GPU.
    Used,
    /// The GPU was used, but the driver does not report by which process.
    DeviceUsed,
    NotUsed(NoUseSource),
    Unknown,
}

impl Use {
    pub fn from_row(gpu: &Gpu, row: &GpuProcess) -> Self {
        let engines =
            [row.sm_percent, row.memory_percent, row.encoder_percent, row.decoder_percent];
        if engines.iter().flatten().any(|percent| *percent > 0) {
            return Self::Used;
        }
        // High power contradicts a utilization of zero, so the utilization is unknown.
        let device = gpu.gpu_percent.filter(|percent| {
            let share = gpu.power_watts.zip(gpu.power_limit_watts);
            *percent > 0 || share.is_none_or(|(power, limit)| power < limit * POWER_AT_WORK)
        });
        // The driver may attribute the work of an MPS client to the MPS server, so a zero for the client proves
        // nothing.
        let process = row.sm_percent.filter(|_| row.kind != ProcessType::Mps);
        match (process, device) {
            (Some(_), _) => Self::NotUsed(NoUseSource::Process),
            (None, Some(0)) => Self::NotUsed(NoUseSource::Device),
            (None, Some(_)) => Self::DeviceUsed,
            (None, None) => Self::Unknown,
        }
    }
}

/// Returns whether a GPU was used although no process sample explains it. In this case, process samples are missing
/// or late, so zeros prove nothing. On a GPU with a desktop, a few percent are ignored, because a compositor's
/// samples round them to 0.
pub(super) fn is_unexplained(gpu: &Gpu, rows: &[GpuProcess]) -> bool {
    let is_desktop = |row: &GpuProcess| {
        use ProcessType::{ComputeGraphics, Graphics};
        matches!(row.kind, Graphics | ComputeGraphics)
    };
    let noise = || match rows.iter().any(is_desktop) {
        true => DESKTOP_PERCENT,
        false => 0,
    };
    gpu.gpu_percent.is_some_and(|percent| percent > 0 && percent > noise()) && !is_used(gpu, rows)
}

/// Returns whether a video engine of a GPU was used although no process sample explains it. Any process on the GPU
/// may have used the engine.
pub(super) fn is_video_unexplained(gpu: &Gpu, rows: &[GpuProcess]) -> bool {
    let is_busy = |percent: Option<u32>| percent.is_some_and(|percent| percent > 0);
    let is_explained =
        |engine: fn(&GpuProcess) -> Option<u32>| rows.iter().any(|row| is_busy(engine(row)));
    let is_unlisted_engine = is_busy(gpu.jpeg_percent) || is_busy(gpu.optical_flow_percent);
    (is_busy(gpu.encoder_percent) && !is_explained(|row| row.encoder_percent))
        || (is_busy(gpu.decoder_percent) && !is_explained(|row| row.decoder_percent))
        || (is_unlisted_engine && !is_used(gpu, rows))
}

pub(super) fn is_used(gpu: &Gpu, rows: &[GpuProcess]) -> bool {
    rows.iter().any(|row| Use::from_row(gpu, row) == Use::Used)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RowContext {
    pub(super) device: usize,
    /// Whether the list was also read in the previous snapshot.
    pub(super) was_listed: bool,
    /// Whether the GPU was used without a process sample that explains it.
    pub(super) is_unexplained: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Began {
    /// The run began after observed use, or with a row that had just appeared, so it is not longer than observed.
    Witnessed,
    /// The run began after the GPU was used, but the driver did not report by which process.
    AfterDeviceUse,
    /// The run began with the history or after a gap, so it may be longer than observed.
    Unwitnessed,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnusedRun {
    pub since: Time,
    pub until: Time,
    pub began: Began,
    pub samples: u64,
    /// Number of samples in which only the whole GPU's utilization shows that the process did not use it.
    pub by_device: u64,
    /// Number of samples in which the GPU was used without a process sample that explains it.
    pub unexplained: u64,
    /// Seconds before `since` that are covered by the first sample.
    pub seconds_before: f64,
    covered: i64,
}

impl UnusedRun {
    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    /// Returns whether unexplained use is too frequent to be a coincidence, so that the driver's figures cannot be
    /// trusted.
    pub fn is_unexplained(&self) -> bool {
        self.unexplained.saturating_mul(EXPLAINED_TO_UNEXPLAINED) > self.samples
    }

    /// Returns the share of the run that samples cover, from 0 to 1.
    pub fn coverage(&self) -> f64 {
        match self.until - self.since {
            0 => 1.0,
            length => self.covered as f64 / length as f64,
        }
    }
}

#[derive(Clone, Debug)]
pub struct RowHistory {
    device: u32,
    gpu_instance: Option<u32>,
    compute_instance: Option<u32>,
    kind: ProcessType,
    used: Option<(u64, Time)>,
    growth: Growth,
    /// Memory, in bytes, after the last change of at least [`MOVEMENT_BYTES`], or the first known amount if there was
    /// no such change. `moved_at` is the time of the last such change that gpumem did not request.
    settled: Option<u64>,
    pub moved_at: Option<Time>,
    last_use: Use,
    known_at: Time,
    /// How the current or next run begins.
    pub before: Began,
    run: Option<UnusedRun>,
    /// Length, in seconds, of the longest run that ended because the GPU was used.
    pub longest_pause: f64,
    /// How many times the process used the GPU again after a pause.
    pub resumed: u32,
    pub has_been_used: bool,
    /// CPU time of the process, in seconds, at the end of the run.
    cpu_at_until: Option<f64>,
    first_seen: Time,
    last_seen: Time,
}

impl RowHistory {
    pub(super) fn new(device: usize, row: &GpuProcess, time: Time, is_witnessed: bool) -> Self {
        Self {
            device: u32::try_from(device).unwrap_or(u32::MAX),
            gpu_instance: row.gpu_instance_id,
            compute_instance: row.compute_instance_id,
            kind: row.kind,
            used: None,
            growth: Growth::default(),
            settled: None,
            moved_at: None,
            last_use: Use::Unknown,
            known_at: time,
            before: if is_witnessed { Began::Witnessed } else { Began::Unwitnessed },
            run: None,
            longest_pause: 0.0,
            resumed: 0,
            has_been_used: false,
            cpu_at_until: None,
            first_seen: time,
            last_seen: time,
        }
    }

    pub(super) fn is_for(&self, device: usize, row: &GpuProcess) -> bool {
        self.device as usize == device
            && self.gpu_instance == row.gpu_instance_id
            && self.compute_instance == row.compute_instance_id
    }

    pub(super) fn observe(
        &mut self,
        gpu: &Gpu,
        row: &GpuProcess,
        sample: SampleTime,
        cpu_total: Option<f64>,
        (is_unexplained, asked): (bool, Option<&AskedRelease>),
    ) {
        let previous = self.last_seen;
        self.last_seen = sample.time;
        self.kind = row.kind;
        self.growth.observe(sample.time, row.used_bytes, sample.allowed_gap);
        match (row.used_bytes, self.used) {
            (Some(bytes), _) => self.used = Some((bytes, sample.time)),
            (None, Some((_, reported_at))) if sample.time - reported_at > sample.allowed_gap => {
                self.used = None;
            }
            (None, _) => {}
        }
        if let Some(bytes) = row.used_bytes {
            let is_asked =
                asked.is_some_and(|asked| asked.overlaps(previous, sample.time, RELEASED_SECONDS));
            self.note_movement(bytes, sample.time, is_asked);
        }
        self.last_use = Use::from_row(gpu, row);
        match self.last_use {
            Use::Used => {
                let paused = self.run.map_or(0.0, |run| run.seconds());
                self.resumed = self.resumed.saturating_add(u32::from(paused > 0.0));
                self.has_been_used = true;
                self.longest_pause = self.longest_pause.max(paused);
                self.end(Began::Witnessed, sample.time);
            }
            Use::DeviceUsed => self.end(Began::AfterDeviceUse, sample.time),
            Use::Unknown => self.let_pass(sample, cpu_total),
            Use::NotUsed(source) => {
                self.let_pass(sample, cpu_total);
                self.extend(sample, source, cpu_total, gpu.sampled_seconds);
                if let Some(run) = &mut self.run {
                    run.unexplained += u64::from(is_unexplained);
                }
            }
        }
    }

    /// Compares the process's memory with its last settled size and, if it has changed by at least
    /// [`MOVEMENT_BYTES`], records the new size. The time of the change is recorded too, unless the change is a drop
    /// that gpumem requested.
    fn note_movement(&mut self, bytes: u64, time: Time, is_asked: bool) {
        let settled = *self.settled.get_or_insert(bytes);
        if settled.abs_diff(bytes) >= MOVEMENT_BYTES {
            self.settled = Some(bytes);
            if !(is_asked && bytes < settled) {
                self.moved_at = Some(time);
            }
        }
    }

    pub(super) fn pass(&mut self, sample: SampleTime, cpu_total: Option<f64>) {
        self.last_use = Use::Unknown;
        self.let_pass(sample, cpu_total);
    }

    fn end(&mut self, before: Began, known_at: Time) {
        self.run = None;
        self.before = before;
        self.known_at = known_at;
    }

    /// Ends the run if its last sample is older than the allowed gap, unless the process has hardly used the CPU since.
    fn let_pass(&mut self, sample: SampleTime, cpu_total: Option<f64>) {
        let gap = sample.time - self.known_at;
        let is_bridged = self.run.is_some()
            && gap < BRIDGED_GAP_MILLISECONDS
            && self.cpu_was_still(gap, cpu_total);
        if gap > sample.allowed_gap && !is_bridged {
            self.end(Began::Unwitnessed, self.known_at);
        }
    }

    fn extend(
        &mut self,
        sample: SampleTime,
        source: NoUseSource,
        cpu_total: Option<f64>,
        sampled_seconds: Option<f64>,
    ) {
        let by_device = u64::from(source == NoUseSource::Device);
        match self.run {
            None => {
                self.run = Some(UnusedRun {
                    since: sample.time,
                    until: sample.time,
                    began: self.before,
                    samples: 1,
                    by_device,
                    unexplained: 0,
                    seconds_before: sampled_seconds.filter(|_| by_device == 0).unwrap_or(0.0),
                    covered: 0,
                });
            }
            Some(run) => {
                let gap = sample.time - run.until;
                // A sample covers one interval. The rest of the gap is covered only if the CPU time has hardly changed.
                let is_vouched = if gap > sample.interval + sample.interval / 2 {
                    self.cpu_was_still(gap, cpu_total)
                } else {
                    self.cpu_used_since(cpu_total).is_some_and(|used| {
                        used <= TICK_OF_CPU + CPU_OF_NO_BURST * gap as f64 / 1000.0
                    })
                };
                let covered = if is_vouched { gap } else { sample.sampled(gap, sampled_seconds) };
                self.run = Some(UnusedRun {
                    until: sample.time,
                    samples: run.samples + 1,
                    by_device: run.by_device + by_device,
                    covered: run.covered + covered,
                    ..run
                });
            }
        }
        self.known_at = sample.time;
        self.cpu_at_until = cpu_total;
    }

    /// Returns whether the process is known to have used no more than a trace of CPU since the last sample of the run.
    fn cpu_was_still(&self, gap: i64, cpu_total: Option<f64>) -> bool {
        let trace = TICKS_OF_CPU + TRACE_OF_CPU * gap as f64 / 1000.0;
        self.cpu_used_since(cpu_total).is_some_and(|used| used <= trace)
    }

    fn cpu_used_since(&self, cpu_total: Option<f64>) -> Option<f64> {
        let used = cpu_total? - self.cpu_at_until?;
        (used >= 0.0).then_some(used)
    }

    pub(super) fn device(&self) -> usize {
        self.device as usize
    }

    pub fn is_of_instance(&self) -> bool {
        self.gpu_instance.is_some()
    }

    /// Returns the type of the process list that last contained the row.
    pub fn kind(&self) -> ProcessType {
        self.kind
    }

    /// Returns the memory that the driver last reported, or `None` if it reports none.
    pub fn used_bytes(&self) -> Option<u64> {
        self.used.map(|(bytes, _)| bytes)
    }

    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    pub fn last_use(&self) -> Use {
        self.last_use
    }

    /// Returns the current run, or `None` if the process uses the GPU or that is unknown.
    pub fn run(&self) -> Option<&UnusedRun> {
        self.run.as_ref()
    }

    pub fn first_seen(&self) -> Time {
        self.first_seen
    }

    pub fn last_seen(&self) -> Time {
        self.last_seen
    }
}
