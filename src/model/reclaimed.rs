//! Reclaim counters.

use std::collections::BTreeMap;
use std::sync::Arc;

/// How memory was reclaimed: `"release"`, `"unload"` or `"end"`.
pub type How = &'static str;

/// Counters since the start of the audit log. They never decrease.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Bytes freed, by method and user.
    pub bytes: BTreeMap<(How, Arc<str>), u64>,
    /// Actions, by method and outcome.
    pub acts: BTreeMap<(How, Arc<str>), u64>,
}
