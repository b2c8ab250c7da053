//! What is remembered from one run to the next: how the screen is arranged, never what it hides.

use serde::{Deserialize, Serialize};

/// How the screen was arranged, as it is written down.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Remembered {
    /// The title of the column that the table is sorted by.
    pub sort: Option<String>,
    /// Whether against the column's own direction.
    pub reversed: bool,
    /// Families as trees.
    pub tree: bool,
}
