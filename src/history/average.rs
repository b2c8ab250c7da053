//! The mean of what is known of a number, without keeping the numbers.

/// A running mean.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Average {
    sum: f64,
    count: u64,
}

impl Average {
    /// Takes in a sample; what is not known does not count.
    pub(super) fn push(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    /// Takes in all that another one took in.
    pub(super) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// `None` where nothing is known.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// How many samples are known.
    pub fn count(&self) -> u64 {
        self.count
    }
}
