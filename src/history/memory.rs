//! What a process has held on a GPU, for charts: lowest, highest and last of each stretch of time.
//!
//! At most 64 stretches. When they are full, pairs are merged and each is twice as long, up to half an
//! hour; from then on the oldest go. So a minute is seen second by second, and a day still is a picture.

use std::collections::VecDeque;

use crate::model::Time;

/// How many stretches are kept.
const POINTS: usize = 64;
/// A stretch grows up to this length.
const LONGEST_MILLISECONDS: i64 = 1_800_000;
/// Bytes are kept in pages, so that a point takes half the memory.
const PAGE: u64 = 4096;

/// What was held in one stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPoint {
    /// When the stretch began.
    pub time: Time,
    /// The lowest, in whole pages of 4 KiB.
    pub min_bytes: u64,
    /// The highest.
    pub max_bytes: u64,
    /// The last.
    pub last_bytes: u64,
}

/// A bounded chart.
#[derive(Clone, Debug)]
pub struct Memory {
    spacing: i64,
    points: VecDeque<Point>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    time: Time,
    min: u32,
    max: u32,
    last: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            spacing: 1_000,
            points: VecDeque::new(),
        }
    }
}

impl Memory {
    pub(super) fn push(&mut self, time: Time, bytes: u64) {
        let pages = u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
        if let Some(point) = self.points.back_mut()
            && time - point.time < self.spacing
        {
            point.min = point.min.min(pages);
            point.max = point.max.max(pages);
            point.last = pages;
            return;
        }
        if self.points.len() == POINTS {
            if self.spacing < LONGEST_MILLISECONDS {
                self.merge_pairs();
            } else {
                self.points.pop_front();
            }
        }
        self.points.push_back(Point {
            time,
            min: pages,
            max: pages,
            last: pages,
        });
    }

    fn merge_pairs(&mut self) {
        self.spacing *= 2;
        let mut merged: VecDeque<Point> = VecDeque::with_capacity(POINTS);
        for point in self.points.drain(..) {
            match merged.back_mut() {
                Some(before) if point.time - before.time < self.spacing => {
                    before.min = before.min.min(point.min);
                    before.max = before.max.max(point.max);
                    before.last = point.last;
                }
                _ => merged.push_back(point),
            }
        }
        // Samples rarer than the stretches are long leave nothing to merge.
        if merged.len() == POINTS && self.spacing >= LONGEST_MILLISECONDS {
            merged.pop_front();
        }
        self.points = merged;
        if self.points.len() == POINTS {
            self.merge_pairs();
        }
    }

    /// The stretches, oldest first.
    pub fn points(&self) -> impl Iterator<Item = MemoryPoint> {
        self.points.iter().map(|point| MemoryPoint {
            time: point.time,
            min_bytes: u64::from(point.min) * PAGE,
            max_bytes: u64::from(point.max) * PAGE,
            last_bytes: u64::from(point.last) * PAGE,
        })
    }
}

#[cfg(test)]
impl Memory {
    /// Bytes held on the heap, by capacity.
    pub(super) fn size(&self) -> usize {
        self.points.capacity() * size_of::<Point>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    fn at(seconds: i64) -> Time {
        Time::from_unix_milliseconds(1_700_000_000_000 + seconds * 1000)
    }

    #[test]
    fn a_minute_is_kept_second_by_second() {
        let mut memory = Memory::default();
        for second in 0..60 {
            memory.push(at(second), second as u64 * MIB);
        }
        let points: Vec<_> = memory.points().collect();
        assert_eq!(points.len(), 60);
        assert_eq!((points[7].time, points[7].last_bytes), (at(7), 7 * MIB));
    }

    #[test]
    fn a_spike_is_never_lost_and_the_size_is_bounded() {
        for step in [1, 30, 7_200] {
            let mut memory = Memory::default();
            for sample in 0..20_000 {
                memory.push(
                    at(sample * step),
                    if sample == 19_990 { 900 * MIB } else { MIB },
                );
                assert!(memory.points.len() <= POINTS && memory.points.capacity() <= POINTS);
            }
            let points: Vec<_> = memory.points().collect();
            assert!(points.len() >= POINTS / 4, "{}", points.len());
            assert!(points.is_sorted_by_key(|point| point.time));
            assert_eq!(
                points.iter().map(|point| point.max_bytes).max(),
                Some(900 * MIB)
            );
            assert!(
                points
                    .iter()
                    .all(|point| point.min_bytes == MIB || step == 7_200)
            );
            assert_eq!(points.last().unwrap().last_bytes, MIB);
        }
    }
}
