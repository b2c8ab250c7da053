//! A process's own report about memory that it freed. `reclaim::release` sends the requests, and `advice::recipe`
//! contains the code that runs in a kernel.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;

/// Report of a process after a request to release memory. The process can forge the figures, so they prove nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseReport {
    /// Bytes in use by live objects.
    pub live_bytes: Option<u64>,
    /// Bytes still cached by allocators.
    pub cached_bytes_left: Option<u64>,
    /// Why no more memory was released. Contains text from the process: escape it for a terminal.
    pub why: Option<Arc<str>>,
    /// What makes the process load its data again: a command, or an event such as the next request.
    pub wake: Option<Arc<str>>,
    /// Objects that hold memory, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
    /// Start and end of the request to a kernel, because the kernel's server counts the request as activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<(Time, Time)>,
}

/// An object that keeps memory in use.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Reference {
    /// Name of the object in the notebook: `Out[7]`, or `last traceback`. Chosen by the user: escape it for a terminal.
    pub name: Arc<str>,
    /// Memory that the object keeps in use, in bytes.
    pub bytes: u64,
}
