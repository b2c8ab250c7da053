//! By how much a row's memory grew.

use crate::history::memory_series::{MemorySeries, seen_until};
use crate::model::Time;

/// The longest time that is shown of a row: 30 minutes, as the slowest of the rules needs about as much.
pub const WINDOW_SECONDS: f64 = 1800.0;

/// By how many bytes a course grew in the half hour before `end`; negative where it shrank, `None`
/// where nothing was seen in it.
pub fn growth_bytes(course: &MemorySeries, end: Time) -> Option<i64> {
    let past = seen_until(course.buckets(), end);
    let start = end.plus_seconds(-WINDOW_SECONDS);
    let buckets = &past[past.partition_point(|bucket| bucket.until < start)..];
    let (first, last) = (buckets.first()?, buckets.last()?);
    let grown = i128::from(last.last_bytes) - i128::from(first.last_bytes);
    i64::try_from(grown).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::memory_series::Courses;
    use crate::units::GIB;
    use crate::watch::sample;

    #[test]
    fn growth_is_from_the_first_to_the_last_of_half_an_hour() {
        let grown = |bytes: &[(f64, u64)]| {
            let mut snapshot = sample::snapshot(1, 1);
            let now = snapshot.time;
            let mut courses = Courses::default();
            for &(before, bytes) in bytes {
                snapshot.time = now.plus_seconds(-before);
                sample::entry(&mut snapshot, 0, 0).used_bytes = Some(bytes);
                courses.observe(&snapshot);
            }
            let gpu = &snapshot.gpus[0];
            let row = &gpu.processes.as_ref().unwrap()[0];
            growth_bytes(courses.row(snapshot.processes[0].identity(), gpu, row).unwrap(), now)
        };
        assert_eq!(grown(&[(9000.0, 40 * GIB), (80.0, GIB), (0.0, 9 * GIB)]), Some(8 * GIB as i64));
        assert_eq!(grown(&[(40.0, 40 * GIB), (0.0, GIB)]), Some(-39 * GIB as i64));
        assert_eq!(grown(&[(1.0, 0), (0.0, u64::MAX)]), None);
    }
}
