//! The samples that one can go back to, as they were judged; bounded in bytes.

/// Samples, oldest first.
#[derive(Debug, Default)]
pub struct Tape {}
