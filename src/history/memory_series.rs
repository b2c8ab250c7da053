//! How memory moved: a series of what each process held on each GPU, and of what each GPU had in use,
//! and how much each used or was used, for charts and for a page about one of them.
//!
//! Beside [`History`], which rules ask and which keeps less of more: a series is at
//! most [`MOST_BUCKETS`] stretches of time with what was held at least and at most in them, fewer where
//! there are many processes, and the stretches grow with the time that it covers. What stays level is one
//! stretch, however long: most rows hold the same for hours, and are drawn every second. It judges no process
//! and asks no clock.

use foldhash::HashMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::interval::Interval;
use super::{Average, History};
use crate::model::{Gpu, GpuProcess, Identity, Snapshot, Start, Time};

/// Stretches kept of one series: wider than any terminal's chart.
pub const MOST_BUCKETS: usize = 240;
/// Stretches kept of no process's series fewer than these, however many there are.
const LEAST_BUCKETS: usize = 60;
/// Stretches that the series of all processes share: where there are many, each is coarser.
const SHARED_BUCKETS: usize = 64 * 1024;
/// Series kept; of a machine with more rows at once some have none.
const MOST_COURSES: usize = 4096;
/// The width of a stretch once every sample has none of its own any more.
const FIRST_WIDTH_MILLISECONDS: i64 = 1000;
/// A sample tells of the time after it, as far as to the next one, but of no more than this, which the
/// rules bridge, too, or than three times the usual distance of two samples.
const VOUCHED_MILLISECONDS: i64 = 60_000;

/// What was held in a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct MemoryBucket {
    /// The first sample in it.
    pub since: Time,
    /// The last one.
    pub until: Time,
    /// The least.
    pub low_bytes: u64,
    /// The most.
    pub high_bytes: u64,
    /// At the last sample.
    pub last_bytes: u64,
    /// Of how many milliseconds after it the last sample tells.
    #[serde(skip)]
    pub vouched: i64,
}

/// How much a GPU was used in a stretch of time, by all or by one process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// The first sample in it.
    pub since: Time,
    /// The last one.
    pub until: Time,
    /// Mean utilization; never without a sample.
    pub percent: Average,
    /// Of how many milliseconds after it the last sample tells.
    pub vouched: i64,
    /// All its samples told the same.
    is_level: bool,
}

/// What a series is made of: what was seen in a stretch of time.
pub trait SeriesBucket {
    /// The first sample in it.
    fn since(&self) -> Time;
    /// The last one.
    fn until(&self) -> Time;
    /// The most, to be drawn: of memory in bytes, of use the mean in percent.
    fn most(&self) -> f64;
    /// At its last sample, likewise.
    fn last(&self) -> f64;
    /// Of how many milliseconds after it the last sample tells.
    fn vouched(&mut self) -> &mut i64;
    /// Whether the one that follows tells the same, and both tell nothing else.
    fn is_level_with(&self, later: &Self) -> bool;
    /// Takes in the one that follows.
    fn join(&mut self, later: &Self);
    /// Whether its last sample tells of the time up to the next one, or to the end of what is looked at.
    fn is_seen_until(&self, next: Time) -> bool;
}

/// The stretches that had begun by `end`: where a screen is paused, or shows the past, more is known by now.
pub fn seen_until<S: SeriesBucket>(stretches: &[S], end: Time) -> &[S] {
    if stretches.last().is_none_or(|last| last.since() <= end) {
        return stretches;
    }
    &stretches[..stretches.partition_point(|stretch| stretch.since() <= end)]
}

/// Stretches of time, oldest first, and what each may span.
#[derive(Clone, PartialEq, Debug)]
struct Downsampled<S> {
    stretches: Vec<S>,
    width: i64,
}

impl<S> Default for Downsampled<S> {
    fn default() -> Self {
        Self { stretches: Vec::new(), width: 0 }
    }
}

impl<S: SeriesBucket> Downsampled<S> {
    /// Adds the sample that follows, and keeps at most so many stretches.
    fn push(&mut self, mut next: S, most: usize) {
        if let Some(last) = self.stretches.last_mut() {
            // How far apart samples are is only known with this one.
            *last.vouched() = *next.vouched();
            let is_level = last.is_seen_until(next.since()) && last.is_level_with(&next);
            if is_level || next.until() - last.since() < self.width {
                last.join(&next);
                return;
            }
        }
        if self.stretches.len() >= most {
            self.widen(most);
        }
        self.stretches.push(next);
    }

    /// Joins neighbours until half of the room is free, or as much as the gaps between them allow.
    fn widen(&mut self, most: usize) {
        while self.stretches.len() > most / 2 {
            self.width = FIRST_WIDTH_MILLISECONDS.max(self.width.saturating_mul(2));
            let mut joined: Vec<S> = Vec::with_capacity(most.min(self.stretches.len()));
            for next in self.stretches.drain(..) {
                match joined.last_mut() {
                    Some(last) if next.until() - last.since() < self.width => last.join(&next),
                    _ => joined.push(next),
                }
            }
            self.stretches = joined;
        }
    }
}

impl SeriesBucket for MemoryBucket {
    fn since(&self) -> Time {
        self.since
    }

    fn until(&self) -> Time {
        self.until
    }

    fn most(&self) -> f64 {
        self.high_bytes as f64
    }

    fn last(&self) -> f64 {
        self.last_bytes as f64
    }

    fn vouched(&mut self) -> &mut i64 {
        &mut self.vouched
    }

    fn is_seen_until(&self, next: Time) -> bool {
        next - self.until <= self.vouched
    }

    fn is_level_with(&self, later: &Self) -> bool {
        let own = [self.low_bytes, self.high_bytes];
        own == [later.low_bytes; 2] && later.low_bytes == later.high_bytes
    }

    fn join(&mut self, later: &Self) {
        self.until = later.until;
        self.low_bytes = self.low_bytes.min(later.low_bytes);
        self.high_bytes = self.high_bytes.max(later.high_bytes);
        self.last_bytes = later.last_bytes;
        self.vouched = later.vouched;
    }
}

impl SeriesBucket for Load {
    fn since(&self) -> Time {
        self.since
    }

    fn until(&self) -> Time {
        self.until
    }

    fn most(&self) -> f64 {
        self.percent.mean().unwrap_or(0.0)
    }

    fn last(&self) -> f64 {
        self.most()
    }

    fn vouched(&mut self) -> &mut i64 {
        &mut self.vouched
    }

    fn is_seen_until(&self, next: Time) -> bool {
        next - self.until <= self.vouched
    }

    fn is_level_with(&self, later: &Self) -> bool {
        self.is_level && later.is_level && self.percent.mean() == later.percent.mean()
    }

    fn join(&mut self, later: &Self) {
        self.is_level = self.is_level_with(later);
        self.until = later.until;
        self.percent.add(later.percent);
        self.vouched = later.vouched;
    }
}

/// When a sample was taken, of how many milliseconds after it it tells, and how many stretches are kept.
#[derive(Clone, Copy, Debug)]
struct SeriesSample {
    time: Time,
    vouched: i64,
    most: usize,
}

/// The series of one row, or of one GPU.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MemorySeries {
    held: Downsampled<MemoryBucket>,
    used: Downsampled<Load>,
    samples: u64,
    percent: Average,
    last_seen: Option<Time>,
}

impl MemorySeries {
    /// The series of what samples told of something else that has bytes and percents, oldest first.
    pub fn of(samples: impl Iterator<Item = (Time, Option<u64>, Option<u32>)>) -> Self {
        let mut series = Self::default();
        for (time, bytes, percent) in samples {
            let apart = series.last_seen.map_or(0, |last| time - last);
            let vouched = apart.saturating_mul(3).max(VOUCHED_MILLISECONDS);
            series.observe(SeriesSample { time, vouched, most: MOST_BUCKETS }, bytes, percent);
        }
        series
    }

    fn observe(&mut self, sample: SeriesSample, bytes: Option<u64>, percent: Option<u32>) {
        let SeriesSample { time, vouched, most } = sample;
        self.last_seen = Some(time);
        self.percent.push(percent.map(f64::from));
        if let Some(percent) = percent {
            let mut average = Average::default();
            average.push(Some(f64::from(percent)));
            let load = Load { since: time, until: time, percent: average, vouched, is_level: true };
            self.used.push(load, most);
        }
        let Some(bytes) = bytes else {
            return;
        };
        self.samples += 1;
        let bucket = MemoryBucket {
            since: time,
            until: time,
            low_bytes: bytes,
            high_bytes: bytes,
            last_bytes: bytes,
            vouched,
        };
        self.held.push(bucket, most);
    }

    /// The series, oldest first; empty where it was never told what is held.
    pub fn buckets(&self) -> &[MemoryBucket] {
        &self.held.stretches
    }

    /// How much a GPU was used, or by a process (SM), oldest first; empty where that was never told.
    pub fn loads(&self) -> &[Load] {
        &self.used.stretches
    }

    /// How many samples told what is held.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Mean utilization; `None` where it was never told.
    pub fn percent_mean(&self) -> Option<f64> {
        self.percent.mean()
    }

    /// When it was last shown.
    pub fn last_seen(&self) -> Option<Time> {
        self.last_seen
    }
}

/// Which row of which process: under MIG a process may have several on one GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SeriesKey {
    who: Identity,
    gpu: u32,
    gpu_instance: Option<u32>,
    compute_instance: Option<u32>,
}

impl SeriesKey {
    fn of(who: Identity, gpu: &Gpu, row: &GpuProcess) -> Self {
        Self {
            who,
            gpu: gpu.index,
            gpu_instance: row.gpu_instance_id,
            compute_instance: row.compute_instance_id,
        }
    }
}

/// The series of every row and every GPU of one machine, in one boot.
#[derive(Clone, Debug, Default)]
pub struct Courses {
    rows: HashMap<SeriesKey, MemorySeries>,
    gpus: HashMap<u32, MemorySeries>,
    // When the history that they follow began.
    begun: Option<Time>,
    last: Option<Time>,
    interval: Interval,
}

impl Courses {
    /// Takes in a snapshot that `history` was given, unless it passed it over; begins anew where the
    /// history did.
    pub fn follow(&mut self, history: &History, snapshot: &Snapshot) {
        if history.last_time() != Some(snapshot.time) {
            return;
        }
        if history.first_time() != self.begun {
            self.forget();
            self.begun = history.first_time();
        }
        self.observe(snapshot);
    }

    /// Takes in the next snapshot. What a GPU that does not answer shows is no news.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        let who: HashMap<u32, Identity> = snapshot
            .processes
            .iter()
            .rev()
            .map(|process| (process.pid, process.identity()))
            .collect();
        let time = snapshot.time;
        let most = SHARED_BUCKETS / self.rows.len().max(1);
        let most = most.clamp(LEAST_BUCKETS, MOST_BUCKETS);
        if let Some(last) = self.last.replace(time) {
            self.interval.push(time - last);
        }
        let usual = self.interval.milliseconds();
        let vouched = VOUCHED_MILLISECONDS.max(usual.saturating_mul(3));
        for gpu in snapshot.gpus.iter().filter(|it| it.stale_seconds.is_none()) {
            if self.gpus.len() < MOST_COURSES || self.gpus.contains_key(&gpu.index) {
                let used = gpu.memory.map(|memory| memory.used_bytes);
                let course = self.gpus.entry(gpu.index).or_default();
                let sample = SeriesSample { time, vouched, most: MOST_BUCKETS };
                course.observe(sample, used, gpu.gpu_percent);
            }
            for row in gpu.processes.iter().flatten() {
                let key = SeriesKey::of(identity_of(&who, row.pid), gpu, row);
                if self.rows.len() >= MOST_COURSES && !self.rows.contains_key(&key) {
                    // Of those that are gone, only that they were there is missed.
                    self.rows.retain(|_, course| course.last_seen == Some(time));
                }
                if self.rows.len() < MOST_COURSES || self.rows.contains_key(&key) {
                    let course = self.rows.entry(key).or_default();
                    let sample = SeriesSample { time, vouched, most };
                    course.observe(sample, row.used_bytes, row.sm_percent);
                }
            }
        }
    }

    /// Forgets everything: what follows is another boot, or comes after a sleep.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// What a process held by one row; `None` where it was never seen.
    pub fn row(&self, who: Identity, gpu: &Gpu, row: &GpuProcess) -> Option<&MemorySeries> {
        self.rows.get(&SeriesKey::of(who, gpu, row))
    }

    /// What a GPU had in use.
    pub fn gpu(&self, gpu: &Gpu) -> Option<&MemorySeries> {
        self.gpus.get(&gpu.index)
    }

    /// When a process of this number was last on a GPU, and on which (NVML's index).
    pub fn last_on_gpu(&self, pid: u32) -> Option<(Time, u32)> {
        let of_pid = self.rows.iter().filter(|(key, _)| key.who.pid == pid);
        of_pid.filter_map(|(key, course)| Some((course.last_seen?, key.gpu))).max()
    }
}

/// Which process a pid is, by the snapshot.
fn identity_of(who: &HashMap<u32, Identity>, pid: u32) -> Identity {
    who.get(&pid).copied().unwrap_or(Identity { pid, start: Start::Unknown })
}

#[cfg(test)]
mod tests;
