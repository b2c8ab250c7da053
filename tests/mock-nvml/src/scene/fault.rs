//! Faults: errors, delays and hangs of a driver's calls.

use serde::{Deserialize, Serialize};

/// A fault. The faults that match a call apply in order, each with its delay, up to the first error or hang.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// A symbol's exact name; `"*"` is every function that takes a device.
    pub function: String,
    /// The GPU's index; if absent, any GPU, and functions without a GPU.
    pub gpu: Option<u32>,
    /// The return code; if absent or 0, the call continues after its delay.
    pub error: Option<u32>,
    /// Milliseconds before the call returns.
    pub delay_ms: u64,
    pub hang: bool,
    /// Number of matching calls before the fault begins.
    pub after_calls: u64,
    /// Number of calls that it affects; all if absent.
    pub times: Option<u64>,
}

impl Fault {
    /// A function that fails on every GPU.
    pub fn error(function: impl Into<String>, code: u32) -> Self {
        Self { function: function.into(), error: Some(code), ..Self::default() }
    }

    pub fn delay(function: impl Into<String>, delay_ms: u64) -> Self {
        Self { function: function.into(), delay_ms, ..Self::default() }
    }

    pub fn hang(function: impl Into<String>) -> Self {
        Self { function: function.into(), hang: true, ..Self::default() }
    }

    #[must_use]
    pub fn on(mut self, gpu: u32) -> Self {
        self.gpu = Some(gpu);
        self
    }

    #[must_use]
    pub fn after(mut self, calls: u64) -> Self {
        self.after_calls = calls;
        self
    }

    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }
}
