//! What getting memory back has come to: sums that only grow.

use std::collections::BTreeMap;
use std::sync::Arc;

/// How memory was got back: `"release"`, `"unload"` or `"end"`.
pub type How = &'static str;

/// The sums so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Bytes that came back, by how and from whom.
    pub bytes: BTreeMap<(How, Arc<str>), u64>,
    /// Acts by how, and by what they came to.
    pub acts: BTreeMap<(How, Arc<str>), u64>,
}
