//! The usual time between two snapshots: the median of the last few, so that neither a late snapshot nor an
//! extra one moves it.

/// How many times the median is taken of.
const KEPT: usize = 15;
/// The longest interval in milliseconds; rarer samples must not make a gap of hours usual.
const LONGEST_MILLISECONDS: i64 = 600_000;

/// A running median.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    recent: [i64; KEPT],
    count: usize,
    median: i64,
}

impl Interval {
    /// Takes in the milliseconds between two snapshots.
    pub(super) fn push(&mut self, milliseconds: i64) {
        self.recent[self.count % KEPT] = milliseconds.clamp(1, LONGEST_MILLISECONDS);
        // Beyond twice the size only the position in the ring matters.
        self.count = if self.count + 1 == 2 * KEPT { KEPT } else { self.count + 1 };
        let mut sorted = self.recent;
        let known = &mut sorted[..self.count.min(KEPT)];
        known.sort_unstable();
        self.median = known[known.len() / 2];
    }

    /// The median in milliseconds; 0 before there is one.
    pub(super) fn milliseconds(&self) -> i64 {
        self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_samples_do_not_change_the_usual_interval() {
        let mut interval = Interval::default();
        assert_eq!(interval.milliseconds(), 0);
        for round in 0..100 {
            interval.push(if round % 4 == 3 { 90_000 } else { 10_000 });
        }
        assert_eq!(interval.milliseconds(), 10_000);
        for _ in 0..8 {
            interval.push(1_000);
        }
        assert_eq!(interval.milliseconds(), 1_000, "a new pace is taken on");
    }

    #[test]
    fn a_gap_of_hours_is_never_usual() {
        let mut interval = Interval::default();
        interval.push(3 * 3_600_000);
        assert_eq!(interval.milliseconds(), LONGEST_MILLISECONDS);
        interval.push(i64::MIN);
        interval.push(i64::MIN);
        assert_eq!(interval.milliseconds(), 1);
    }
}
