//! Detects memory of a process on a GPU that grows without stopping, from its floor rather than its peaks.
//!
//! [`Growth`] is fed the bytes of one row and keeps a downsampled series: a few words while the memory is
//! constant, at most 72 buckets with lowest and highest value once it moves, each no wider than about a
//! twentieth of its age. The *floor* at an instant is the least that has been held since: it ignores peaks,
//! spikes and whatever was given back. A window, from a quarter of an hour to half a day, is cut into twelfths,
//! and the floor's rise in them has to be
//!
//! - spread: no twelfth counts for more than a quarter of the whole, so loading a model, another batch size, or
//!   up to three steps of any size count for nothing; the fewer twelfths rise, the longer the window has to be;
//! - lasting: the last third rises nearly as fast as the whole;
//! - new: most of it is above what was held for minutes before it;
//! - more than the samples may miss of a valley's depth (`series`);
//! - no slower: the twelfths' rises do not decline (`window`);
//! - no high-water mark and no filling cache: growth that never gives back rises evenly, or its steps come no
//!   more rarely than at first (`window`);
//! - no filling band: memory that goes up and down reaches higher peaks, and stays closer to a line than what
//!   comes and goes by chance (`window`).
//!
//! Growth once found is followed (`steady`). It stays found through a peak of some minutes and through
//! pauses like those before. It has stopped after five minutes (or longer than it ever paused) without a rise,
//! or if what goes up and down stays where it was; that withdraws the forecast, not the finding. It ends when
//! memory falls a tenth of it, and more than ever before, below what was held for ten minutes, or three quarters
//! of an hour after it stopped.
//!
//! On 300 new seeds of the scenarios' curves and of some harder ones, sampled every 1 to 60 s, this finds 6,283
//! of 6,300 leaks, half of them within 16 minutes, and none in 67 h of real device-level curves. Some innocent
//! growth is reported until it stops: a first slow climb of a quarter of an hour, be it a fill, the start of a
//! slow sawtooth, or the approach to a level that takes over an hour. Some leaks are missed: fewer than four
//! equal steps, a drip in a sawtooth for about six periods, what begins below a level that was held for minutes
//! before until it is above that, and, for an hour, random growth every few minutes, because a high-water mark
//! starts like that.
//!
//! [`crate::rules`] makes findings of it. Nothing here reads a clock.

mod series;
mod steady;
mod view;
mod window;

use crate::model::Time;
use series::{Bucket, GrowthSeries};
use steady::GrowthDetector;
pub use view::Trend;
use view::View;

/// Bytes in a unit, 64 KiB: 256 TiB fit into 32 bits.
const UNIT: u64 = 1 << 16;
/// The least rise of a floor that is examined: 64 MiB.
const LEAST_RISE: u32 = (64 << 20) / UNIT as u32;
/// The most buckets of a row: 1.4 KiB.
const MOST_BUCKETS: usize = 72;
/// The width of a bucket before it is merged, in seconds.
const BUCKET_SECONDS: u32 = 30;
/// The shortest window, in seconds.
const SHORTEST_SECONDS: u32 = 900;
/// The longest window, in seconds.
const LONGEST_SECONDS: u32 = 12 * 3600;
/// The difference between lowest and highest, below which memory is constant: 16 MiB.
const STILL: u32 = (16 << 20) / UNIT as u32;

/// The conditions of a leak.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// The least growth.
    pub bytes: u64,
    /// The least time of growth; at least a quarter of an hour, because less proves nothing.
    pub seconds: f64,
}

/// The result so far.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// It grows, by as much and for as long as required.
    Leak(Trend),
    /// It grows steadily, not yet by as much or for as long as required.
    Growing(Trend),
    /// It grew as required, and nothing has risen for a while.
    Stopped(Trend),
    /// It has risen, and was not observed for long enough.
    TooShort {
        /// The time observed.
        seconds: f64,
        /// The time required.
        needed: f64,
    },
    Not,
}

/// Series and detector for a row's memory.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    last: Option<Time>,
    /// Milliseconds observed up to the last sample.
    observed: i64,
    /// The whole history while it is constant.
    still: Option<Bucket>,
    moved: Option<Box<GrowthDetector>>,
}

impl Growth {
    /// Takes in the memory held at a time; `None` if unknown. More than `allowed_gap` milliseconds without a
    /// sample count as no time at all, so that what rose meanwhile is a single jump.
    pub fn observe(&mut self, time: Time, bytes: Option<u64>, allowed_gap: i64) {
        let Some(bytes) = bytes.filter(|_| self.last.is_none_or(|last| last < time)) else {
            return;
        };
        let passed = self.last.replace(time).map_or(0, |last| time - last);
        if passed <= allowed_gap {
            self.observed = self.observed.saturating_add(passed);
        }
        let sample = Bucket::of(
            u32::try_from(self.observed / 1000).unwrap_or(u32::MAX),
            u32::try_from(bytes / UNIT).unwrap_or(u32::MAX),
        );
        if let Some(detector) = &mut self.moved {
            detector.observe(sample, time);
            return;
        }
        let joined = self.still.map_or(sample, |mut still| {
            still.take_in(&sample);
            still
        });
        if joined.high - joined.low < STILL {
            self.still = Some(joined);
        } else if let Some(still) = self.still.take() {
            let mut detector = GrowthDetector::new(GrowthSeries::new(still, time));
            detector.observe(sample, time);
            self.moved = Some(Box::new(detector));
        }
    }

    /// Whether it has ever moved; otherwise there is no verdict to ask for.
    pub fn has_moved(&self) -> bool {
        self.moved.is_some()
    }

    /// The result so far; cheap, because `observe` computes it.
    pub fn verdict(&self, demand: &Demand) -> Verdict {
        let Some(detector) = &self.moved else {
            return Verdict::Not;
        };
        let needed = demand.seconds.max(f64::from(SHORTEST_SECONDS));
        match detector.steady {
            Some(steady) => {
                let (trend, has_stopped) = (steady.trend, steady.has_stopped());
                // A quarter of an hour of growth, not of growth and the silence after it.
                if trend.grown_bytes >= demand.bytes && trend.rising_seconds >= needed {
                    if has_stopped { Verdict::Stopped(trend) } else { Verdict::Leak(trend) }
                } else if has_stopped {
                    Verdict::Not
                } else {
                    Verdict::Growing(trend)
                }
            }
            None if f64::from(detector.series.now) < needed
                && View::of(&detector.series).risen(0) >= LEAST_RISE =>
            {
                Verdict::TooShort { seconds: f64::from(detector.series.now), needed }
            }
            None => Verdict::Not,
        }
    }
}

#[cfg(test)]
mod tests;
