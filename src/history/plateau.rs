//! A time throughout which a process's memory is constant, and how much it used the GPU meanwhile.
//!
//! A framework that reserves a GPU's memory does so at once and never again; the plateau that follows tells
//! that from memory that was needed.

use super::SampleTime;
use super::average::Average;
use crate::model::{Gpu, GpuProcess, Time};

/// How much a plateau may vary, as a share of its highest value: libraries loaded later, a growing context.
const TOLERANCE: f64 = 0.04;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plateau {
    /// First sample.
    pub since: Time,
    /// Last sample.
    pub until: Time,
    pub least_bytes: u64,
    pub most_bytes: u64,
    pub samples: u64,
    /// The process's SM utilization; or the GPU's, which is no less, if the driver reports only that.
    pub sm_percent: Average,
    /// Memory utilization, likewise.
    pub memory_percent: Average,
}

impl Plateau {
    pub fn seconds(&self) -> f64 {
        self.until.seconds_since(self.since)
    }

    /// The plateau after a row of a GPU that answered: the same, a new one, or none if memory has been unknown
    /// for longer than a gap may be.
    pub(super) fn observe(
        known: Option<Self>,
        gpu: &Gpu,
        row: &GpuProcess,
        moment: SampleTime,
        is_unexplained: bool,
    ) -> Option<Self> {
        let known = known.filter(|plateau| moment.time - plateau.until <= moment.allowed_gap);
        let Some(bytes) = row.used_bytes else {
            return known;
        };
        let new = Self {
            since: moment.time,
            until: moment.time,
            least_bytes: bytes,
            most_bytes: bytes,
            samples: 0,
            sm_percent: Average::default(),
            memory_percent: Average::default(),
        };
        let mut plateau = known.map_or(new, |plateau| Self {
            least_bytes: plateau.least_bytes.min(bytes),
            most_bytes: plateau.most_bytes.max(bytes),
            until: moment.time,
            ..plateau
        });
        let spread = (plateau.most_bytes - plateau.least_bytes) as f64;
        if spread >= plateau.most_bytes as f64 * TOLERANCE && spread > 0.0 {
            plateau = new;
        }
        plateau.samples += 1;
        // If no process's sample explains the GPU's use, it may be this one's.
        let own = row.sm_percent.filter(|_| !is_unexplained);
        let sm = own.or(gpu.gpu_percent);
        let memory = row.memory_percent.or(gpu.memory_percent);
        plateau.sm_percent.push(sm.map(f64::from));
        plateau.memory_percent.push(memory.map(f64::from));
        Some(plateau)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::moment;
    use crate::units::MIB;

    fn of(samples: &[(i64, Option<u64>)]) -> Option<Plateau> {
        let mut plateau = None;
        for (seconds, bytes) in samples {
            let row = GpuProcess {
                used_bytes: bytes.map(|mebibytes| mebibytes * MIB),
                sm_percent: Some(30),
                ..GpuProcess::default()
            };
            let now = moment(*seconds);
            plateau = Plateau::observe(plateau, &Gpu::default(), &row, now, false);
        }
        plateau
    }

    #[test]
    fn a_change_of_memory_starts_a_new_plateau() {
        let length = |samples| of(samples).map(|plateau| (plateau.seconds(), plateau.samples));
        assert_eq!(length(&[(0, Some(1000)), (10, Some(1030))]), Some((10.0, 2)));
        assert_eq!(
            length(&[(0, Some(1000)), (10, Some(1030)), (20, Some(985))]),
            Some((0.0, 1)),
            "it creeps"
        );
        assert_eq!(length(&[(0, Some(0)), (10, Some(0))]), Some((10.0, 2)));
        assert_eq!(length(&[(0, Some(10)), (10, None), (60, Some(10))]), Some((60.0, 2)));
        assert_eq!(length(&[(0, Some(10)), (61, Some(10))]), Some((0.0, 1)));
        assert_eq!(length(&[(0, Some(10)), (61, None)]), None);
    }

    #[test]
    fn a_plateaus_use_is_averaged_over_known_samples() {
        let plateau = of(&[(0, Some(1)), (10, Some(1))]).unwrap();
        assert_eq!(plateau.sm_percent.mean(), Some(30.0));
        assert_eq!(plateau.memory_percent.mean(), None);
    }
}
