//! Faults: errors, delays and hangs of calls.

use serde::{Deserialize, Serialize};

/// A fault. If several faults match a call, they apply in order until the first error or hang.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// Exact name of a function, or `"*"` for all functions that take a device.
    pub function: String,
    /// Index of the GPU. By default, the fault applies to all GPUs and to calls without a GPU.
    pub gpu: Option<u32>,
    /// Return code. By default, the call continues after the delay.
    pub error: Option<u32>,
    /// Delay in milliseconds.
    pub delay_ms: u64,
    pub hang: bool,
    /// Number of matching calls before the first affected call.
    pub after_calls: u64,
    /// Number of affected calls. By default, all later calls are affected.
    pub times: Option<u64>,
}

impl Fault {
    /// Returns a fault that makes a function fail on every GPU.
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
