//! How a row's memory moved, in a few cells, and by how much it grew.
//!
//! Pure. All rows share one axis, which ends with the sample that is shown: what came after it is not
//! shown, and a time that no one saw is blank. Each row has a scale of its own, from the least that it
//! held: what it holds is beside it, so that what the cells tell is whether it climbs. What stays
//! level is as high as the share of the GPU that it holds; at the bottom it would look like nothing.

use crate::history::memory_series::{Gaps, MemoryBucket, MemorySeries, seen_until};
use crate::model::Time;

/// The longest time that is shown: 30 minutes, as the slowest of the rules needs about as much.
const WINDOW_SECONDS: f64 = 1800.0;
/// How many heights there are.
const STEPS: u64 = 7;
/// A change by less than this part of what is held does not fill the scale: noise is no mountain.
const LEAST_SPAN_DIVISOR: u64 = 4;

/// The time axis of a column of outlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    start: Time,
    end: Time,
    cells: u16,
}

impl Axis {
    /// An axis of `cells` that ends at `end` and begins with what was seen first, or half an hour
    /// before its end; a cell is at least a second.
    pub fn new(first: Option<Time>, end: Time, cells: u16) -> Self {
        let earliest = end.plus_seconds(-WINDOW_SECONDS);
        let latest = end.plus_seconds(-f64::from(cells));
        let start = first.unwrap_or(end).max(earliest).min(latest);
        Self { start, end, cells }
    }

    /// The heights of a course, 0 to 6; `None` where no one saw it.
    pub fn heights(self, course: &MemorySeries) -> Vec<Option<u8>> {
        let mut most: Vec<Option<u64>> = vec![None; usize::from(self.cells)];
        let mut cells =
            AxisCells::new(i64::from(self.cells.max(1)), (self.end - self.start).max(1));
        let past = seen_until(course.buckets(), self.end);
        let mut gaps = Gaps::new(past);
        // The last sample before the axis may tell of its beginning.
        let first = first_from(past, self.start);
        let buckets = &past[first.saturating_sub(1)..];
        for (at, bucket) in buckets.iter().enumerate() {
            let next = buckets.get(at + 1).map_or(self.end, |next| next.since);
            let until = match gaps.is_seen_between(bucket.until, next) {
                true => next,
                false => bucket.until,
            };
            if until < self.start {
                continue;
            }
            // The cell that begins where a stretch ends is not of it.
            let first = cells.at(bucket.since - self.start);
            let last = cells.at(until - self.start - 1).max(first);
            for cell in most.get_mut(first..=last).unwrap_or_default() {
                *cell = Some(bucket.high_bytes).max(*cell);
            }
        }
        let known = || most.iter().flatten().copied();
        let (Some(low), Some(high)) = (known().min(), known().max()) else {
            return vec![None; most.len()];
        };
        let span = (high - low).max(high / LEAST_SPAN_DIVISOR).max(1);
        most.iter()
            .map(|bytes| {
                let above = u128::from((*bytes)? - low);
                let step = above * u128::from(STEPS) / u128::from(span);
                Some(step.min(u128::from(STEPS - 1)) as u8)
            })
            .collect()
    }
}

/// The cells of an axis by milliseconds into it. Each visible row asks twice for each of some hundred stretches,
/// which come in order: the last answer mostly holds again, and is not divided for.
struct AxisCells {
    count: i64,
    length: i64,
    cell: i64,
    /// The milliseconds that are in that cell: from the first to before the second.
    holds: (i64, i64),
}

impl AxisCells {
    fn new(count: i64, length: i64) -> Self {
        Self { count, length, cell: 0, holds: (0, 0) }
    }

    fn at(&mut self, milliseconds: i64) -> usize {
        let at = milliseconds.clamp(0, self.length - 1);
        if !(self.holds.0..self.holds.1).contains(&at) {
            // In 64 bits: an axis is half an hour long, or as many seconds as it has cells.
            self.cell = at * self.count / self.length;
            let begin = |cell: i64| (cell * self.length + self.count - 1) / self.count;
            self.holds = (begin(self.cell), begin(self.cell + 1));
        }
        self.cell as usize
    }
}

/// The height of what stays level at so many percent of the memory there is.
pub fn level_height(percent: f64) -> u8 {
    let step = percent.clamp(0.0, 100.0) / 100.0 * STEPS as f64;
    (step as u8).min(STEPS as u8 - 1)
}

/// By how many bytes a course grew in the half hour before `end`; negative where it shrank, `None`
/// where nothing was seen in it.
pub fn growth_bytes(course: &MemorySeries, end: Time) -> Option<i64> {
    let past = seen_until(course.buckets(), end);
    let buckets = &past[first_from(past, end.plus_seconds(-WINDOW_SECONDS))..];
    let (first, last) = (buckets.first()?, buckets.last()?);
    let grown = i128::from(last.last_bytes) - i128::from(first.last_bytes);
    i64::try_from(grown).ok()
}

/// Where the first stretch is that had not ended before `start`.
fn first_from(buckets: &[MemoryBucket], start: Time) -> usize {
    match buckets.first() {
        Some(first) if first.until < start => {
            buckets.partition_point(|bucket| bucket.until < start)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::memory_series::Courses;
    use crate::units::{GIB, MIB};
    use crate::watch::sample;

    /// What is drawn of a row that held `bytes` so many seconds before now.
    fn drawn(bytes: &[(i64, u64)], cells: u16) -> (String, Option<i64>) {
        let mut snapshot = sample::snapshot(1, 1);
        let now = snapshot.time;
        let mut courses = Courses::default();
        for &(before, bytes) in bytes {
            snapshot.time = now.plus_seconds(-before as f64);
            sample::entry(&mut snapshot, 0, 0).used_bytes = Some(bytes);
            courses.observe(&snapshot);
        }
        let gpu = &snapshot.gpus[0];
        let row = &gpu.processes.as_ref().unwrap()[0];
        let course = courses.row(snapshot.processes[0].identity(), gpu, row).unwrap();
        let first = now.plus_seconds(-bytes[0].0 as f64);
        let heights = Axis::new(Some(first), now, cells).heights(course);
        let text =
            heights.iter().map(|height| height.map_or(' ', |it| char::from(b'0' + it))).collect();
        (text, growth_bytes(course, now))
    }

    #[test]
    fn what_climbs_is_seen_to_climb_and_what_stays_is_level() {
        let leak: Vec<_> = (0..=8).map(|at| (80 - at * 10, (8 + at as u64) * GIB)).collect();
        assert_eq!(drawn(&leak, 8), ("00123456".to_owned(), Some(8 * GIB as i64)));
        let level: Vec<_> = (0..9).map(|at| (80 - at * 10, 40 * GIB)).collect();
        assert_eq!(drawn(&level, 8), ("00000000".to_owned(), Some(0)));
        let noise: Vec<_> =
            (0..9).map(|at| (80 - at * 10, 40 * GIB + (at as u64 % 2) * 64 * MIB)).collect();
        assert_eq!(drawn(&noise, 8).0, "00000000");
        let freed = [(80, 40 * GIB), (40, 40 * GIB), (39, GIB), (0, GIB)];
        assert_eq!(drawn(&freed, 8), ("66666000".to_owned(), Some(-39 * GIB as i64)));
    }

    #[test]
    fn what_stays_level_is_as_high_as_its_share() {
        let heights = [0.0, 1.0, 12.5, 50.0, 92.0, 100.0, 250.0, -3.0, f64::NAN];
        assert_eq!(heights.map(level_height), [0, 0, 0, 3, 6, 6, 6, 0, 0]);
    }

    #[test]
    fn a_time_without_samples_is_blank() {
        let gap = [(800, GIB), (790, GIB), (100, GIB), (0, GIB)];
        assert_eq!(drawn(&gap, 8).0, "0      0");
        assert_eq!(drawn(&[(2, GIB), (0, GIB)], 8).0, "      00", "it grows from the right");
    }

    #[test]
    fn samples_that_are_usually_far_apart_leave_no_holes() {
        let rare: Vec<_> = (0..=6).map(|at| (1800 - at * 300, GIB)).collect();
        assert_eq!(drawn(&rare, 24).0, "0".repeat(24));
        let missed: Vec<_> = rare.iter().copied().filter(|it| it.0 != 900).collect();
        assert_eq!(drawn(&missed, 24).0, "0".repeat(24));
        // A cell is seventy seconds here.
        let rare = [11, 10, 9, 8, 7, 1, 0].map(|at| (at * 70, GIB));
        assert_eq!(drawn(&rare, 11).0, "00000     0");
    }

    #[test]
    fn the_last_sample_before_the_axis_gives_its_beginning() {
        let long: Vec<_> = (0..=7).map(|at| (3500 - at * 500, GIB)).collect();
        assert_eq!(drawn(&long, 9).0, "000000000");
        let gap = [(9000, GIB), (8990, GIB), (100, GIB), (0, GIB)];
        assert_eq!(drawn(&gap, 9).0, "        0", "but not of what is far");
    }

    #[test]
    fn no_number_overflows() {
        let wild = [(4, 0), (3, u64::MAX), (2, 0), (1, u64::MAX), (0, 1)];
        assert_eq!(drawn(&wild, 4), ("0606".to_owned(), Some(1)));
        assert_eq!(drawn(&[(1, 0), (0, u64::MAX)], 0).0, "");
        assert_eq!(drawn(&[(1, 0), (0, u64::MAX)], 1).1, None);
    }
}
