//! The history of a GPU: power, free memory and unattributed memory.

use std::sync::Arc;

use super::power::{LowPowerPhase, PowerHistory, SoleProcess, Work, is_spinning};
use super::streak::{Clause, Streak};
use super::{SampleTime, row};
use crate::model::{Gpu, GpuProcess, Identity, Time};

/// Time, in milliseconds, for which a process sample explains the use of the GPU. The driver takes about seven
/// process samples per second, each of a single process.
const EXPLAINED_MILLISECONDS: i64 = 2_000;

#[derive(Clone, Debug)]
pub struct Device {
    uuid: Option<Arc<str>>,
    index: u32,
    listed_at: Option<Time>,
    /// The last reported total memory, or 0 if none was reported.
    total_bytes: u64,
    power: PowerHistory,
    /// When a process was last shown to use the GPU.
    used_at: Option<Time>,
    unused: Clause,
    spinning: Clause,
    unattributed: Floors,
    /// Fill level of the memory, expressed as `u64::MAX` minus the free bytes.
    filled: Floors,
}

impl Device {
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            listed_at: None,
            total_bytes: 0,
            power: PowerHistory::default(),
            used_at: None,
            unused: Clause::default(),
            spinning: Clause::default(),
            unattributed: Floors::default(),
            filled: Floors::default(),
        }
    }

    /// Returns whether this is the history of `gpu`. Compares UUIDs or, if both are unknown, indices. After a reboot,
    /// a GPU can have a different index.
    pub(super) fn is_for(&self, gpu: &Gpu) -> bool {
        match (&self.uuid, &gpu.uuid) {
            (Some(mine), Some(other)) => mine == other,
            (None, None) => self.index == gpu.index,
            _ => false,
        }
    }

    /// Adds a snapshot. `is_listed` tells whether the process list was read, and `alone` is the process that works on
    /// the GPU if there is only one.
    pub(super) fn observe(
        &mut self,
        gpu: &Gpu,
        sample: SampleTime,
        is_listed: bool,
        alone: Option<SoleProcess>,
    ) {
        self.index = gpu.index;
        if is_listed {
            self.listed_at = Some(sample.time);
        }
        self.power.observe(gpu, alone, sample);
        self.spinning.observe(is_spinning(gpu), sample);
        // The values of a GPU that does not answer are stale.
        let memory = gpu.memory.filter(|_| gpu.stale_seconds.is_none());
        self.total_bytes = memory.map_or(self.total_bytes, |memory| memory.total_bytes);
        // Memory shared by several processes is counted for each of them, so the difference can be negative.
        let unattributed = memory
            .zip(gpu.process_bytes())
            .map(|(memory, listed)| memory.used_bytes.saturating_sub(listed));
        self.unattributed.observe(unattributed, sample);
        let filled = memory.map(|memory| u64::MAX - memory.free_bytes);
        self.filled.observe(filled, sample);
    }

    /// Returns whether the GPU was used without a recent process sample that explains it. SM use by a process does
    /// not explain the use of a video engine.
    pub(super) fn is_unexplained(&mut self, gpu: &Gpu, rows: &[GpuProcess], time: Time) -> bool {
        let is_video_unexplained = row::is_video_unexplained(gpu, rows);
        if row::is_used(gpu, rows) {
            self.used_at = Some(time);
            return is_video_unexplained;
        }
        let is_recent = |used_at: Time| time - used_at <= EXPLAINED_MILLISECONDS;
        is_video_unexplained
            || (row::is_unexplained(gpu, rows) && !self.used_at.is_some_and(is_recent))
    }

    pub(super) fn observe_unused(&mut self, is_unused: Option<bool>, sample: SampleTime) {
        self.unused.observe(is_unused, sample);
    }

    /// Returns the current period in which the GPU was unused. It is recorded only while GPUs are allocated to jobs
    /// or containers.
    pub fn unused(&self) -> Option<&Streak> {
        self.unused.streak()
    }

    /// Returns the current period in which the GPU was fully utilized although it did almost no work.
    pub fn spinning(&self) -> Option<&Streak> {
        self.spinning.streak()
    }

    pub fn uuid(&self) -> Option<&Arc<str>> {
        self.uuid.as_ref()
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn listed_at(&self) -> Option<Time> {
        self.listed_at
    }

    pub fn total_bytes(&self) -> Option<u64> {
        (self.total_bytes > 0).then_some(self.total_bytes)
    }

    /// Returns the current period in which at least `least_bytes` were unattributed.
    pub fn unattributed(&self, least_bytes: u64) -> Option<HighStretch> {
        self.unattributed.at_least(least_bytes)
    }

    /// Returns the current period in which less than `free_bytes` were free.
    pub fn fuller_than(&self, free_bytes: u64) -> Option<HighStretch> {
        let most_free = free_bytes.checked_sub(1)?;
        self.filled.at_least(u64::MAX - most_free)
    }

    pub fn low_power_phase(&self) -> Option<&LowPowerPhase> {
        self.power.low_power_phase()
    }

    /// Returns the GPU's values while this process worked on it alone, or `None` if the process was not observed for
    /// long enough.
    pub fn work(&self, process: Identity) -> Option<&Work> {
        self.power.work(process)
    }

    /// Returns whether the power is known. A few samples without a reading are tolerated.
    pub fn is_power_known(&self) -> bool {
        self.power.is_read()
    }

    pub fn alone(&self) -> Option<Identity> {
        self.power.alone()
    }
}

// Rules ask for the current period in which a number has been at least N, with a different N for each rule and GPU.
// `Floors` answers this for any N. A floor is a time and the lowest value since then, so earlier floors are lower.
// The period for N starts at the first floor that is at least N.

/// Maximum number of floors. If there are more, the floor whose neighbours are closest to each other is removed. For
/// some values, the reported period is then too short, but it is never too long.
const MOST_FLOORS: usize = 32;

/// A period in which a number was never below the requested value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HighStretch {
    pub since: Time,
    pub until: Time,
    pub samples: u64,
}

impl HighStretch {
    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }
}

#[derive(Clone, Debug, Default)]
struct Floors {
    /// Floors, sorted by time and therefore also by value.
    floors: Vec<HighFloor>,
    until: Option<Time>,
    samples: u64,
}

#[derive(Clone, Copy, Debug)]
struct HighFloor {
    since: Time,
    least: u64,
    before: u64,
}

impl Floors {
    /// Adds a number. `None` adds nothing. If more than the allowed gap has passed since the last number, the history
    /// starts over.
    pub(super) fn observe(&mut self, value: Option<u64>, sample: SampleTime) {
        if self.until.is_some_and(|until| sample.time - until > sample.allowed_gap) {
            *self = Self::default();
        }
        let Some(least) = value else {
            return;
        };
        let mut floor = HighFloor { since: sample.time, least, before: self.samples };
        while let Some(higher) = self.floors.pop_if(|floor| floor.least >= least) {
            floor = HighFloor { least, ..higher };
        }
        self.floors.push(floor);
        self.samples += 1;
        self.until = Some(sample.time);
        if self.floors.len() > MOST_FLOORS {
            let crowded = self
                .floors
                .windows(3)
                .enumerate()
                .min_by_key(|(_, floors)| floors[2].since - floors[0].since);
            if let Some((before, _)) = crowded {
                self.floors.remove(before + 1);
            }
        }
    }

    fn at_least(&self, least: u64) -> Option<HighStretch> {
        let at = self.floors.partition_point(|floor| floor.least < least);
        let floor = self.floors.get(at)?;
        Some(HighStretch {
            since: floor.since,
            until: self.until?,
            samples: self.samples - floor.before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::history::testing::{Scene, sample_at as at};
    use crate::units::GIB;

    fn watched(change: impl Fn(&mut Scene, usize)) -> (Scene, History) {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(7, &[0], 20 * GIB);
        scene.memory(0, 30 * GIB, 80 * GIB);
        let mut history = History::default();
        for step in 0..20 {
            change(&mut scene, step);
            history.observe(scene.step());
        }
        (scene, history)
    }

    #[test]
    fn memory_without_a_holder_and_a_full_gpu_are_timed_by_threshold() {
        let (scene, history) = watched(|_, _| {});
        let device = history.device(&scene.now.gpus[0]).unwrap();
        let stretch = device.unattributed(10 * GIB).unwrap();
        assert_eq!((stretch.samples, stretch.seconds()), (20, 190.0));
        assert_eq!(device.unattributed(10 * GIB + 1), None);
        assert_eq!(device.total_bytes(), Some(80 * GIB));
        assert_eq!(device.fuller_than(50 * GIB), None);
        assert_eq!(device.fuller_than(50 * GIB + 1).unwrap().samples, 20);
        assert_eq!(device.fuller_than(0), None);
        assert!(device.fuller_than(u64::MAX).is_some());
    }

    #[test]
    fn values_of_a_silent_gpu_are_ignored() {
        let (scene, history) = watched(|scene, step| {
            scene.gpu(0).stale_seconds = (step >= 10).then_some(5.0);
        });
        let device = history.device(&scene.now.gpus[0]).unwrap();
        assert_eq!(device.unattributed(GIB), None);
        assert_eq!(device.fuller_than(u64::MAX), None);
    }

    #[test]
    fn power_is_attributed_to_the_only_working_process() {
        let (mut scene, mut history) = watched(|scene, _| scene.draws(0, 7, 97, 300.0));
        let worker = scene.process(7).identity();
        let device = history.device(&scene.now.gpus[0]).unwrap();
        assert_eq!((device.alone(), device.low_power_phase()), (Some(worker), None));
        assert_eq!(device.work(worker).unwrap().load.power.mean(), Some(300.0));
        scene.draws(0, 7, 99, 60.0);
        history.observe(scene.step());
        history.observe(scene.step());
        let device = history.device(&scene.now.gpus[0]).unwrap();
        let phase = device.low_power_phase().unwrap();
        assert_eq!((phase.process, phase.samples, phase.seconds()), (worker, 2, 10.0));
        assert_eq!(device.work(worker).unwrap().load.power.mean(), Some(300.0));
    }

    fn floors_of(values: &[Option<u64>]) -> Floors {
        let mut floors = Floors::default();
        for (step, value) in values.iter().enumerate() {
            floors.observe(*value, at(step as i64 * 10));
        }
        floors
    }

    fn since(floors: &Floors, least: u64) -> Option<(i64, u64)> {
        floors.at_least(least).map(|stretch| (stretch.since - at(0).time, stretch.samples))
    }

    #[test]
    fn each_threshold_has_its_own_start() {
        let floors = floors_of(&[Some(5), Some(1), Some(7), Some(9), Some(8), Some(8)]);
        assert_eq!(since(&floors, 0), Some((0, 6)));
        assert_eq!(since(&floors, 1), Some((0, 6)));
        assert_eq!(since(&floors, 2), Some((20_000, 4)));
        assert_eq!(since(&floors, 7), Some((20_000, 4)));
        assert_eq!(since(&floors, 8), Some((30_000, 3)));
        assert_eq!(since(&floors, 9), None);
    }

    #[test]
    fn unknown_samples_change_nothing_within_the_allowed_gap() {
        let unknown = |count: usize| {
            let mut values = vec![Some(5)];
            values.extend(vec![None; count]);
            values.push(Some(5));
            since(&floors_of(&values), 5)
        };
        assert_eq!(unknown(5), Some((0, 2)));
        assert_eq!(unknown(6), Some((70_000, 1)));
        assert_eq!(since(&floors_of(&[Some(5), None, None]), 5), Some((0, 1)));
        let mut lost = floors_of(&[Some(5)]);
        lost.observe(None, at(61));
        assert_eq!(since(&lost, 0), None);
    }

    #[test]
    fn floors_are_bounded_and_never_report_too_long_a_period() {
        let mut floors = Floors::default();
        for step in 0..10_000 {
            floors.observe(Some(step as u64), at(step * 10));
        }
        assert_eq!(floors.floors.len(), MOST_FLOORS);
        for least in (0..10_000).step_by(97) {
            let stretch = floors.at_least(least).unwrap();
            let true_since = at(least as i64 * 10).time;
            assert!(stretch.since >= true_since, "{least}");
            assert!(stretch.since - true_since <= 10_000 * 10_000 / 8, "{least}");
        }
    }
}
