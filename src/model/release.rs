//! What a process reports after it has given memory back: its own numbers, which prove nothing; that it helped
//! is what NVML sees. The ways to ask for it are `reclaim::release`, what is asked is `advice::recipe`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;

/// What a process says after it; its own numbers, which prove nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseReport {
    /// In use by live objects.
    pub live_bytes: Option<u64>,
    /// Still kept by allocators.
    pub cached_bytes_left: Option<u64>,
    /// Why more did not come back. Holds words of the process: escape it for a terminal.
    pub why: Option<Arc<str>>,
    /// What wakes it again.
    pub wake: Option<Arc<str>>,
    /// What holds memory, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
    /// From when to when a kernel was asked: its server takes that for activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<(Time, Time)>,
}

/// What keeps memory in use.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Reference {
    /// Its name in the notebook, `Out[7]`, or `last traceback`. Chosen by the user: escape it.
    pub name: Arc<str>,
    /// How much.
    pub bytes: u64,
}
