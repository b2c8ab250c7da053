//! How much of valleys the samples miss.

/// How far samples may miss a valley's bottom: by what is gained or lost from one sample to the next around it.
/// If sawtooth and sampling beat, the observed minimum creeps up without growth, never by more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grain {
    before: Option<u32>,
    /// The loss from the sample before to the last one.
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

    pub(super) fn mean(&self) -> u32 {
        self.mean
    }
}
