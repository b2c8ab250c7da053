//! Detects memory on a GPU that grows without stopping, from its floor and not from its peaks.
//!
//! [`Growth`] receives the bytes of one row and keeps a downsampled series: a few words while memory is constant,
//! otherwise at most 72 buckets with lowest and highest value. The width of a bucket is at most about a twentieth of
//! its age. The *floor* at a time is the least memory held from then on. The floor ignores peaks, spikes and memory
//! that was freed. The detector divides a window of 15 minutes to 12 hours into twelfths. The rise of the floor must be
//!
//! - spread: no twelfth contributes more than a quarter of the total. This excludes loading a model, another batch
//!   size, and up to three steps of any size. The fewer twelfths rise, the longer the window must be;
//! - lasting: the last third rises nearly as fast as the whole;
//! - new: most of the rise is above the level held for minutes before;
//! - larger than the depth of the valleys that samples may miss (`series`);
//! - not slowing: the rises of the twelfths do not decline (`window`);
//! - not a high-water mark or a filling cache: growth without frees is even, or its steps do not become rarer
//!   (`window`);
//! - not a band that fills up: memory that goes up and down reaches higher peaks, and is closer to a line than random
//!   variation (`window`).
//!
//! `steady` follows growth after its detection. Neither a peak of a few minutes nor a pause as long as earlier ones
//! ends the growth. Growth has stopped after five minutes without a rise (or after longer than any earlier pause), or
//! if memory that goes up and down remains at its level. A stop withdraws the forecast but not the finding.
//!
//! Growth ends when memory falls below the level held for ten minutes, and below its maximum by a tenth of the growth
//! and twice the deepest earlier fall. It also ends three quarters of an hour after it stopped.
//!
//! In tests with 300 new seeds of the scenarios' curves and some harder ones, sampled every 1 to 60 s, the detector
//! finds 6,283 of 6,300 leaks, half of them within 16 minutes. It finds none in 67 h of real curves of whole GPUs.
//!
//! Some harmless growth is reported until it stops: a first slow climb of a quarter of an hour, such as an initial
//! fill, the start of a slow sawtooth, or an approach to a level that takes over an hour.
//!
//! Some leaks are missed: fewer than four equal steps; a slow leak in a sawtooth, for about six periods; growth below a
//! level that was held for minutes before, until memory exceeds that level. Random growth every few minutes is missed
//! for an hour, because a high-water mark starts in the same way.
//!
//! [`crate::rules`] turns the result into findings. This module reads no clock.

mod series;
mod steady;
mod view;
mod window;

use crate::model::Time;
use series::{Bucket, GrowthSeries};
use steady::GrowthDetector;
pub use view::Trend;
use view::View;

/// Number of bytes in a unit: 64 KiB, so that 256 TiB fit into 32 bits.
const UNIT: u64 = 1 << 16;
/// Minimum rise of a floor that is examined: 64 MiB.
const LEAST_RISE: u32 = (64 << 20) / UNIT as u32;
/// Maximum number of buckets per row, which take 1.4 KiB.
const MOST_BUCKETS: usize = 72;
/// Width in seconds of a bucket before it is merged.
const BUCKET_SECONDS: u32 = 30;
const SHORTEST_SECONDS: u32 = 900;
const LONGEST_SECONDS: u32 = 12 * 3600;
/// Memory is constant while its highest and lowest values differ by less than this: 16 MiB.
const STILL: u32 = (16 << 20) / UNIT as u32;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    pub bytes: u64,
    /// Minimum duration of growth in seconds. Values below a quarter of an hour have no effect.
    pub seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    Leak(Trend),
    /// Steady growth that is not large or long enough yet.
    Growing(Trend),
    /// Growth that was large and long enough, but has stopped.
    Stopped(Trend),
    /// Memory has risen, but was not observed for long enough.
    TooShort {
        seconds: f64,
        needed: f64,
    },
    Not,
}

#[derive(Clone, Debug, Default)]
pub struct Growth {
    last: Option<Time>,
    /// Milliseconds observed up to the last sample.
    observed: i64,
    still: Option<Bucket>,
    moved: Option<Box<GrowthDetector>>,
}

impl Growth {
    /// Adds the memory at `time`, which is `None` if unknown. A gap of more than `allowed_gap` milliseconds has no
    /// length in the series, so a rise in the gap is a single jump.
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

    /// Returns whether the memory has ever changed. If not, there is no verdict.
    pub fn has_moved(&self) -> bool {
        self.moved.is_some()
    }

    /// Returns the result computed by the last call of [`Self::observe`].
    pub fn verdict(&self, demand: &Demand) -> Verdict {
        let Some(detector) = &self.moved else {
            return Verdict::Not;
        };
        let needed = demand.seconds.max(f64::from(SHORTEST_SECONDS));
        match detector.steady {
            Some(steady) => {
                let (trend, has_stopped) = (steady.trend, steady.has_stopped());
                // The time after the last rise does not count.
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
