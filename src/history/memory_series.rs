//! How memory moved: a series of what each process held on each GPU, and of what each GPU had in use,
//! and how much each used or was used, for charts and for a page about one of them.
//!
//! Beside [`History`], which rules ask and which keeps less of more: a series is at
//! most [`MOST_BUCKETS`] stretches of time with what was held at least and at most in them, fewer where
//! there are many processes, and the stretches grow with the time that it covers. It judges no process and
//! asks no clock.

use std::collections::HashMap;

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

/// What was held in a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
}

/// What a series is made of.
trait SeriesBucket {
    fn since(&self) -> Time;
    fn until(&self) -> Time;
    /// Takes in the stretch that follows.
    fn join(&mut self, later: &Self);
}

/// Stretches of time, oldest first, and what each may span.
#[derive(Clone, Debug)]
struct Downsampled<S> {
    stretches: Vec<S>,
    width: i64,
}

impl<S> Default for Downsampled<S> {
    fn default() -> Self {
        Self {
            stretches: Vec::new(),
            width: 0,
        }
    }
}

impl<S: SeriesBucket> Downsampled<S> {
    /// Adds what follows, and keeps at most so many stretches.
    fn push(&mut self, next: S, most: usize) {
        if let Some(last) = self.stretches.last_mut()
            && next.until() - last.since() < self.width
        {
            last.join(&next);
            return;
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

    fn join(&mut self, later: &Self) {
        self.until = later.until;
        self.low_bytes = self.low_bytes.min(later.low_bytes);
        self.high_bytes = self.high_bytes.max(later.high_bytes);
        self.last_bytes = later.last_bytes;
    }
}

impl SeriesBucket for Load {
    fn since(&self) -> Time {
        self.since
    }

    fn until(&self) -> Time {
        self.until
    }

    fn join(&mut self, later: &Self) {
        self.until = later.until;
        self.percent.add(later.percent);
    }
}

/// The series of one row, or of one GPU.
#[derive(Clone, Debug, Default)]
pub struct MemorySeries {
    held: Downsampled<MemoryBucket>,
    used: Downsampled<Load>,
    samples: u64,
    percent: Average,
    last_seen: Option<Time>,
}

impl MemorySeries {
    fn observe(&mut self, time: Time, bytes: Option<u64>, percent: Option<u32>, most: usize) {
        self.last_seen = Some(time);
        self.percent.push(percent.map(f64::from));
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
        };
        self.held.push(bucket, most);
    }

    fn observe_use(&mut self, time: Time, percent: u32, most: usize) {
        let mut average = Average::default();
        average.push(Some(f64::from(percent)));
        let load = Load {
            since: time,
            until: time,
            percent: average,
        };
        self.used.push(load, most);
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
        for gpu in snapshot.gpus.iter().filter(|it| it.stale_seconds.is_none()) {
            if self.gpus.len() < MOST_COURSES || self.gpus.contains_key(&gpu.index) {
                let used = gpu.memory.map(|memory| memory.used_bytes);
                let course = self.gpus.entry(gpu.index).or_default();
                course.observe(time, used, gpu.gpu_percent, MOST_BUCKETS);
                if let Some(percent) = gpu.gpu_percent {
                    course.observe_use(time, percent, MOST_BUCKETS);
                }
            }
            for row in gpu.processes.iter().flatten() {
                let key = SeriesKey::of(identity_of(&who, row.pid), gpu, row);
                if self.rows.len() >= MOST_COURSES && !self.rows.contains_key(&key) {
                    // Of those that are gone, only that they were there is missed.
                    self.rows.retain(|_, course| course.last_seen == Some(time));
                }
                if self.rows.len() < MOST_COURSES || self.rows.contains_key(&key) {
                    let course = self.rows.entry(key).or_default();
                    course.observe(time, row.used_bytes, row.sm_percent, most);
                    if let Some(percent) = row.sm_percent {
                        course.observe_use(time, percent, most);
                    }
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
        of_pid
            .filter_map(|(key, course)| Some((course.last_seen?, key.gpu)))
            .max()
    }
}

/// Which process a pid is, by the snapshot.
fn identity_of(who: &HashMap<u32, Identity>, pid: u32) -> Identity {
    who.get(&pid).copied().unwrap_or(Identity {
        pid,
        start: Start::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::Scene;
    use crate::units::GIB;

    fn series(values: impl IntoIterator<Item = (i64, u64)>) -> MemorySeries {
        let mut course = MemorySeries::default();
        for (seconds, bytes) in values {
            let time = Time::from_unix_milliseconds(seconds * 1000);
            course.observe(time, Some(bytes), None, MOST_BUCKETS);
        }
        course
    }

    #[test]
    fn a_series_is_bounded_and_keeps_every_peak_and_the_ends() {
        let bytes = |second: i64| if second == 7777 { 9 * GIB } else { 2 * GIB };
        let course = series((0..20_000).map(|second| (second, bytes(second))));
        let buckets = course.buckets();
        assert!(buckets.len() <= MOST_BUCKETS && buckets.len() >= MOST_BUCKETS / 4);
        assert_eq!(course.samples(), 20_000);
        assert_eq!(buckets[0].since.unix_seconds(), 0);
        assert_eq!(buckets[buckets.len() - 1].until.unix_seconds(), 19_999);
        let peak: Vec<_> = buckets.iter().filter(|b| b.high_bytes > 2 * GIB).collect();
        assert_eq!(peak.len(), 1);
        assert!(peak[0].since.unix_seconds() <= 7777 && 7777 <= peak[0].until.unix_seconds());
        assert!(buckets.windows(2).all(|two| two[0].until < two[1].since));
    }

    #[test]
    fn many_outlines_are_coarser_and_keep_every_peak() {
        let all_series = |processes: u32| {
            let mut scene = Scene::new(1, 1.0);
            for pid in 1..=processes {
                scene.holder(pid, &[0], GIB);
            }
            let mut courses = Courses::default();
            for second in 0..200 {
                scene.row(0, 1).used_bytes = Some(if second == 77 { 3 } else { 1 } * GIB);
                courses.observe(scene.step());
            }
            courses
        };
        let total = |courses: &Courses| {
            let rows = courses.rows.values();
            rows.map(|course| course.buckets().len()).sum::<usize>()
        };
        let few = all_series(10);
        assert!(total(&few) > 10 * MOST_BUCKETS / 4);
        let many = all_series(600);
        assert!(total(&many) <= SHARED_BUCKETS && total(&many) >= 600 * LEAST_BUCKETS / 4);
        let highest = |courses: &Courses| {
            let buckets = courses.rows.values().flat_map(MemorySeries::buckets);
            buckets.map(|bucket| bucket.high_bytes).max()
        };
        assert_eq!([highest(&few), highest(&many)], [Some(3 * GIB); 2]);
    }

    #[test]
    fn a_gap_stays_a_gap_while_there_is_room() {
        let course = series([(0, 1), (1, 2), (5000, 3)]);
        let buckets = course.buckets().windows(2);
        let gaps: Vec<i64> = buckets.map(|two| two[1].since - two[0].until).collect();
        assert_eq!(gaps, [1000, 4_999_000]);
    }

    #[test]
    fn how_much_a_gpu_was_used_is_outlined_as_well_and_bounded() {
        let mut scene = Scene::new(1, 1.0);
        scene.holder(7, &[0], GIB);
        let mut courses = Courses::default();
        for second in 0..1000 {
            scene.gpu(0).gpu_percent = (second % 4 > 0).then_some(30 + second % 4 * 10);
            courses.observe(scene.step());
        }
        let now = scene.step();
        let course = courses.gpu(&now.gpus[0]).unwrap();
        let loads = course.loads();
        assert!(loads.len() <= MOST_BUCKETS && loads.len() >= MOST_BUCKETS / 4);
        assert!(loads.windows(2).all(|two| two[0].until < two[1].since));
        let samples: u64 = loads.iter().map(|load| load.percent.count()).sum();
        assert_eq!(samples, 750, "what is not told is no sample");
        let row = &now.gpus[0].processes.as_ref().unwrap()[0];
        let row = courses.row(now.processes[0].identity(), &now.gpus[0], row);
        let of_process = row.unwrap().loads();
        assert!(!of_process.is_empty() && of_process.len() <= MOST_BUCKETS);
    }

    #[test]
    fn a_number_that_was_handed_out_again_starts_a_new_outline() {
        let mut scene = Scene::new(1, 1.0);
        scene.holder(7, &[0], GIB);
        let mut courses = Courses::default();
        courses.observe(scene.step());
        scene.process(7).start_ticks = Some(99);
        let now = scene.step();
        courses.observe(now);
        let (gpu, who) = (&now.gpus[0], now.processes[0].identity());
        let row = &gpu.processes.as_ref().unwrap()[0];
        assert_eq!(courses.row(who, gpu, row).unwrap().samples(), 1);
        assert_eq!(courses.last_on_gpu(7), Some((now.time, 0)));
        assert_eq!(courses.last_on_gpu(8), None);
    }

    #[test]
    fn an_unknown_value_is_no_sample_and_a_silent_gpu_no_news() {
        let mut scene = Scene::new(1, 1.0);
        scene.holder(7, &[0], GIB);
        scene.row(0, 7).used_bytes = None;
        let mut courses = Courses::default();
        courses.observe(scene.step());
        scene.gpu(0).stale_seconds = Some(3.0);
        scene.row(0, 7).used_bytes = Some(GIB);
        let now = scene.step();
        courses.observe(now);
        let (gpu, who) = (&now.gpus[0], now.processes[0].identity());
        let course = courses.row(who, gpu, &gpu.processes.as_ref().unwrap()[0]);
        assert_eq!(course.unwrap().samples(), 0);
        assert!(course.unwrap().last_seen() < Some(now.time));
    }

    #[test]
    fn it_begins_anew_where_the_history_does_and_passes_over_what_the_history_does() {
        let mut scene = Scene::new(1, 1.0);
        scene.memory(0, GIB, 80 * GIB);
        let (mut history, mut courses) = (History::default(), Courses::default());
        let mut see = |snapshot: &Snapshot| {
            history.observe(snapshot);
            courses.follow(&history, snapshot);
            let course = courses.gpu(&snapshot.gpus[0]);
            course.map(MemorySeries::samples)
        };
        let early = scene.step().clone();
        see(&early);
        assert_eq!(see(scene.step()), Some(2));
        assert_eq!(see(&early), Some(2), "its clock is behind");
        let mut next = scene.step().clone();
        next.host.boot_id = Some("another boot".into());
        assert_eq!(see(&next), Some(1));
    }
}
