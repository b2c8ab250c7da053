//! How much the samples do not show of valleys.

/// How far the samples may miss the bottom of a valley: by as much as is gained or lost from one sample
/// to the next at it. Where teeth and samples beat, the least of each tooth creeps up without any growth,
/// and never by more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grain {
    before: Option<u32>,
    /// What was lost from the sample before to the last one.
    lost: u32,
    /// Mean over the last valleys.
    mean: u32,
}

impl Grain {
    pub(super) fn observe(&mut self, value: u32) {
        let Some(before) = self.before.replace(value) else {
            return;
        };
        let lost = std::mem::take(&mut self.lost);
        if value < before {
            self.lost = before - value;
        } else if lost > 0 {
            // A flat bottom is not missed.
            let side = lost.min(value - before);
            self.mean = if self.mean == 0 { side } else { self.mean - self.mean / 4 + side / 4 };
        }
    }

    /// After time in which nothing was seen.
    pub(super) fn interrupt(&mut self) {
        self.before = None;
    }

    pub(super) fn mean(&self) -> u32 {
        self.mean
    }
}
