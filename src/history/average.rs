//! A running mean of known values; the values themselves are not kept.

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Average {
    sum: f64,
    count: u64,
}

impl Average {
    /// Adds a sample; unknown ones do not count.
    pub(super) fn push(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    /// Adds all of another's samples.
    pub(super) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// `None` if nothing is known.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// The number of known samples.
    pub fn count(&self) -> u64 {
        self.count
    }
}
