//! Time series for charts and pages: the memory of each process on a GPU, the memory of each GPU, and utilization.
//!
//! Rules use [`History`], which keeps more facts in less detail. A series has at most [`MOST_BUCKETS`] buckets with
//! their lowest and highest values, and fewer if there are many processes. Buckets become wider as the history grows. A
//! period of constant values is a single bucket, because most rows are constant for hours and are drawn every second.

use foldhash::HashMap;

use super::sample_time::Interval;
use super::{Average, History};
use crate::model::{Gpu, GpuProcess, Identity, Snapshot, Start, Time};

/// Maximum number of buckets in a series, which is more than any chart has columns.
pub const MOST_BUCKETS: usize = 240;
/// Minimum number of buckets in the series of a process, however many processes there are.
const LEAST_BUCKETS: usize = 60;
/// Number of buckets for the series of all processes together. The more processes there are, the coarser each series
/// is.
const SHARED_BUCKETS: usize = 64 * 1024;
/// Maximum number of series. Additional rows have none.
const MAX_SERIES: usize = 4096;
/// Width, in milliseconds, of a bucket after the first merge.
const FIRST_WIDTH_MILLISECONDS: i64 = 1000;
/// Time, in milliseconds, for which a sample is valid, unless three usual intervals are longer. Rules use the same
/// limits.
const VOUCHED_MILLISECONDS: i64 = 60_000;

/// Samples of a period. The values are memory sizes in bytes or utilization in percent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bucket {
    pub since: Time,
    pub until: Time,
    pub low: u64,
    pub high: u64,
    pub last: u64,
    sum: f64,
    samples: u32,
    /// Time, in milliseconds, for which the last sample is valid.
    pub vouched: i64,
}

impl Bucket {
    pub fn new(time: Time, value: u64, vouched: i64) -> Self {
        Self {
            since: time,
            until: time,
            low: value,
            high: value,
            last: value,
            sum: value as f64,
            samples: 1,
            vouched,
        }
    }

    pub fn mean(&self) -> f64 {
        self.sum / f64::from(self.samples.max(1))
    }

    /// Returns whether the last sample is valid until `next`, which is the time of the next sample or the end of the
    /// view.
    pub fn is_seen_until(&self, next: Time) -> bool {
        next - self.until <= self.vouched
    }

    fn is_level_with(&self, later: &Self) -> bool {
        [self.low, self.high, later.low, later.high].iter().all(|value| *value == self.low)
    }

    fn join(&mut self, later: &Self) {
        self.until = later.until;
        self.low = self.low.min(later.low);
        self.high = self.high.max(later.high);
        self.last = later.last;
        self.sum += later.sum;
        self.samples = self.samples.saturating_add(later.samples);
        self.vouched = later.vouched;
    }
}

/// Returns the buckets that begin at or before `end`. A paused screen, or one that shows the past, must not show
/// later buckets.
pub fn seen_until(buckets: &[Bucket], end: Time) -> &[Bucket] {
    if buckets.last().is_none_or(|last| last.since <= end) {
        return buckets;
    }
    &buckets[..buckets.partition_point(|bucket| bucket.since <= end)]
}

/// Buckets, oldest first, and the maximum width of a bucket. A bucket of constant values can be wider.
#[derive(Clone, PartialEq, Debug, Default)]
struct Downsampled {
    buckets: Vec<Bucket>,
    width: i64,
}

impl Downsampled {
    fn push(&mut self, next: Bucket, most: usize) {
        if let Some(last) = self.buckets.last_mut() {
            // The distance between two samples is known only when the second one arrives.
            last.vouched = next.vouched;
            let is_level = last.is_seen_until(next.since) && last.is_level_with(&next);
            if is_level || next.until - last.since < self.width {
                last.join(&next);
                return;
            }
        }
        if self.buckets.len() >= most {
            self.widen(most);
        }
        self.buckets.push(next);
    }

    /// Merges neighbouring buckets into ever wider ones, until half of the space is free.
    fn widen(&mut self, most: usize) {
        while self.buckets.len() > most / 2 {
            self.width = FIRST_WIDTH_MILLISECONDS.max(self.width.saturating_mul(2));
            let mut joined: Vec<Bucket> = Vec::with_capacity(most.min(self.buckets.len()));
            for next in self.buckets.drain(..) {
                match joined.last_mut() {
                    Some(last) if next.until - last.since < self.width => last.join(&next),
                    _ => joined.push(next),
                }
            }
            self.buckets = joined;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct SeriesSample {
    time: Time,
    vouched: i64,
    most: usize,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct MemorySeries {
    held: Downsampled,
    used: Downsampled,
    samples: u64,
    percent: Average,
    last_seen: Option<Time>,
}

impl MemorySeries {
    /// Builds a series from samples of bytes and percent, oldest first.
    pub fn from_samples(samples: impl Iterator<Item = (Time, Option<u64>, Option<u32>)>) -> Self {
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
            self.used.push(Bucket::new(time, percent.into(), vouched), most);
        }
        if let Some(bytes) = bytes {
            self.samples += 1;
            self.held.push(Bucket::new(time, bytes, vouched), most);
        }
    }

    /// Returns the buckets of the memory, oldest first.
    pub fn buckets(&self) -> &[Bucket] {
        &self.held.buckets
    }

    /// Returns the buckets of the GPU's utilization or of the process's SM utilization, oldest first.
    pub fn loads(&self) -> &[Bucket] {
        &self.used.buckets
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn percent_mean(&self) -> Option<f64> {
        self.percent.mean()
    }

    pub fn last_seen(&self) -> Option<Time> {
        self.last_seen
    }
}

/// Identifies a row. Under MIG, a process can have several rows on one GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SeriesKey {
    identity: Identity,
    gpu: u32,
    gpu_instance: Option<u32>,
    compute_instance: Option<u32>,
}

impl SeriesKey {
    fn new(identity: Identity, gpu: &Gpu, row: &GpuProcess) -> Self {
        Self {
            identity,
            gpu: gpu.index,
            gpu_instance: row.gpu_instance_id,
            compute_instance: row.compute_instance_id,
        }
    }
}

/// The series of all rows and GPUs of one machine during one boot.
#[derive(Clone, Debug, Default)]
pub struct AllSeries {
    rows: HashMap<SeriesKey, MemorySeries>,
    gpus: HashMap<u32, MemorySeries>,
    // When the history began.
    begun: Option<Time>,
    last: Option<Time>,
    interval: Interval,
}

impl AllSeries {
    /// Adds a snapshot unless `history` rejected it. Discards all series if `history` has discarded its samples.
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

    /// Adds the next snapshot. GPUs that do not answer are skipped, because their values are stale.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        let identities: HashMap<u32, Identity> = snapshot
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
        for gpu in snapshot.gpus.iter().filter(|gpu| gpu.stale_seconds.is_none()) {
            if self.gpus.len() < MAX_SERIES || self.gpus.contains_key(&gpu.index) {
                let used = gpu.memory.map(|memory| memory.used_bytes);
                let series = self.gpus.entry(gpu.index).or_default();
                let sample = SeriesSample { time, vouched, most: MOST_BUCKETS };
                series.observe(sample, used, gpu.gpu_percent);
            }
            for row in gpu.processes.iter().flatten() {
                let key = SeriesKey::new(identity_of(&identities, row.pid), gpu, row);
                if self.rows.len() >= MAX_SERIES && !self.rows.contains_key(&key) {
                    // Remove the series of rows that are not in this snapshot.
                    self.rows.retain(|_, series| series.last_seen == Some(time));
                }
                if self.rows.len() < MAX_SERIES || self.rows.contains_key(&key) {
                    let series = self.rows.entry(key).or_default();
                    let sample = SeriesSample { time, vouched, most };
                    series.observe(sample, row.used_bytes, row.sm_percent);
                }
            }
        }
    }

    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the series of a process in a row, or `None` if there is none.
    pub fn row(&self, identity: Identity, gpu: &Gpu, row: &GpuProcess) -> Option<&MemorySeries> {
        self.rows.get(&SeriesKey::new(identity, gpu, row))
    }

    pub fn gpu(&self, gpu: &Gpu) -> Option<&MemorySeries> {
        self.gpus.get(&gpu.index)
    }

    /// Returns when a process with this pid was last on a GPU, and the NVML index of that GPU.
    pub fn last_on_gpu(&self, pid: u32) -> Option<(Time, u32)> {
        let of_pid = self.rows.iter().filter(|(key, _)| key.identity.pid == pid);
        of_pid.filter_map(|(key, series)| Some((series.last_seen?, key.gpu))).max()
    }
}

fn identity_of(identities: &HashMap<u32, Identity>, pid: u32) -> Identity {
    identities.get(&pid).copied().unwrap_or(Identity { pid, start: Start::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::Scene;
    use crate::units::GIB;

    fn series(values: impl IntoIterator<Item = (i64, u64)>) -> MemorySeries {
        let mut series = MemorySeries::default();
        for (seconds, bytes) in values {
            let time = Time::from_unix_milliseconds(seconds * 1000);
            let sample = SeriesSample { time, vouched: 60_000, most: MOST_BUCKETS };
            series.observe(sample, Some(bytes), None);
        }
        series
    }

    #[test]
    fn a_series_is_bounded_and_keeps_every_peak_and_the_ends() {
        let bytes = |second: i64| match second {
            7777 => 9 * GIB,
            second => GIB + (second as u64 % 2) * GIB,
        };
        let series = series((0..20_000).map(|second| (second, bytes(second))));
        let buckets = series.buckets();
        assert!(buckets.len() <= MOST_BUCKETS && buckets.len() >= MOST_BUCKETS / 4);
        assert_eq!(series.samples(), 20_000);
        assert_eq!(buckets[0].since.unix_seconds(), 0);
        assert_eq!(buckets[buckets.len() - 1].until.unix_seconds(), 19_999);
        let peak: Vec<_> = buckets.iter().filter(|b| b.high > 2 * GIB).collect();
        assert_eq!(peak.len(), 1);
        assert!(peak[0].since.unix_seconds() <= 7777 && 7777 <= peak[0].until.unix_seconds());
        assert!(buckets.windows(2).all(|two| two[0].until < two[1].since));
    }

    #[test]
    fn many_series_are_coarser_and_keep_every_peak() {
        let all_series = |processes: u32| {
            let mut scene = Scene::new(1, 1.0);
            for pid in 1..=processes {
                scene.holder(pid, &[0], GIB);
            }
            let mut all_series = AllSeries::default();
            for second in 0..200 {
                for pid in 1..=processes {
                    scene.row(0, pid).used_bytes = Some((1 + second % 2) * GIB);
                }
                if second == 77 {
                    scene.row(0, 1).used_bytes = Some(3 * GIB);
                }
                all_series.observe(scene.step());
            }
            all_series
        };
        let total = |all_series: &AllSeries| {
            let rows = all_series.rows.values();
            rows.map(|series| series.buckets().len()).sum::<usize>()
        };
        let few = all_series(10);
        assert!(total(&few) > 10 * MOST_BUCKETS / 4);
        let many = all_series(600);
        assert!(total(&many) <= SHARED_BUCKETS && total(&many) >= 600 * LEAST_BUCKETS / 4);
        let highest = |all_series: &AllSeries| {
            let buckets = all_series.rows.values().flat_map(MemorySeries::buckets);
            buckets.map(|bucket| bucket.high).max()
        };
        assert_eq!([highest(&few), highest(&many)], [Some(3 * GIB); 2]);
    }

    #[test]
    fn a_reused_pid_starts_a_new_series() {
        let mut scene = Scene::new(1, 1.0);
        scene.holder(7, &[0], GIB);
        let mut all_series = AllSeries::default();
        all_series.observe(scene.step());
        scene.process(7).start_ticks = Some(99);
        let now = scene.step();
        all_series.observe(now);
        let (gpu, identity) = (&now.gpus[0], now.processes[0].identity());
        let row = &gpu.processes.as_ref().unwrap()[0];
        assert_eq!(all_series.row(identity, gpu, row).unwrap().samples(), 1);
        assert_eq!(all_series.last_on_gpu(7), Some((now.time, 0)));
        assert_eq!(all_series.last_on_gpu(8), None);
    }

    #[test]
    fn unknown_values_and_silent_gpus_add_no_samples() {
        let mut scene = Scene::new(1, 1.0);
        scene.holder(7, &[0], GIB);
        scene.row(0, 7).used_bytes = None;
        let mut all_series = AllSeries::default();
        all_series.observe(scene.step());
        scene.gpu(0).stale_seconds = Some(3.0);
        scene.row(0, 7).used_bytes = Some(GIB);
        let now = scene.step();
        all_series.observe(now);
        let (gpu, identity) = (&now.gpus[0], now.processes[0].identity());
        let series = all_series.row(identity, gpu, &gpu.processes.as_ref().unwrap()[0]);
        assert_eq!(series.unwrap().samples(), 0);
        assert!(series.unwrap().last_seen() < Some(now.time));
    }

    #[test]
    fn series_restart_and_skip_snapshots_like_the_history() {
        let mut scene = Scene::new(1, 1.0);
        scene.memory(0, GIB, 80 * GIB);
        let (mut history, mut all_series) = (History::default(), AllSeries::default());
        let mut observe = |snapshot: &Snapshot| {
            history.observe(snapshot);
            all_series.follow(&history, snapshot);
            let series = all_series.gpu(&snapshot.gpus[0]);
            series.map(MemorySeries::samples)
        };
        let early = scene.step().clone();
        observe(&early);
        assert_eq!(observe(scene.step()), Some(2));
        assert_eq!(observe(&early), Some(2), "an earlier snapshot is ignored");
        let mut next = scene.step().clone();
        next.host.boot_id = Some("another boot".into());
        assert_eq!(observe(&next), Some(1));
    }
}
