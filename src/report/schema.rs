//! The formats that gpumem writes, as JSON Schema (draft 2020-12).
//!
//! The files beside this one are written by hand, because what a field means stands in no type;
//! `tests/it/schema.rs` proves that they name exactly the fields that are written.

/// `gpumem.check/1`: what `check --json` prints.
pub const CHECK: &str = include_str!("schema/check.json");
/// `gpumem.doctor/1`: what `doctor --json` prints.
pub const DOCTOR: &str = include_str!("schema/doctor.json");
/// `gpumem.explain/1`: what `explain --json` prints.
pub const EXPLAIN: &str = include_str!("schema/explain.json");
/// `gpumem.history/1`: what `reap --history --json` prints.
pub const HISTORY: &str = include_str!("schema/history.json");
/// `gpumem.reap/1`: what `reap --json` prints.
pub const REAP: &str = include_str!("schema/reap.json");
/// `gpumem.snapshot/1`: what `ps --json` prints, and each line of a recording.
pub const SNAPSHOT: &str = include_str!("schema/snapshot.json");
