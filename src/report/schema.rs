//! JSON Schemas (draft 2020-12) of the formats that gpumem writes.
//!
//! `tests/it/schema/derived.rs` derives the schemas from the serialized types; descriptions are the
//! doc comments of the types. The generated files in `schema/` are committed so that a format
//! change shows up in a review. `tests/it/schema.rs` checks that a schema contains exactly the
//! written fields and stays compatible with earlier versions.

/// `gpumem.check/1`, printed by `check --json`.
pub const CHECK: &str = include_str!("schema/check.json");
/// `gpumem.doctor/1`, printed by `doctor --json`.
pub const DOCTOR: &str = include_str!("schema/doctor.json");
/// `gpumem.explain/1`, printed by `explain --json`.
pub const EXPLAIN: &str = include_str!("schema/explain.json");
/// `gpumem.history/1`, printed by `reap --history --json`.
pub const HISTORY: &str = include_str!("schema/history.json");
/// `gpumem.hosts/1`, printed by `ps --json` and `check --json` for other machines.
pub const HOSTS: &str = include_str!("schema/hosts.json");
/// `gpumem.reap/1`, printed by `reap --json`.
pub const REAP: &str = include_str!("schema/reap.json");
/// `gpumem.release/1`, printed by `release --json`.
pub const RELEASE: &str = include_str!("schema/release.json");
/// `gpumem.run/1`, written by `run --report FILE.json`.
pub const RUN: &str = include_str!("schema/run.json");
/// `gpumem.totals/1`, printed by `ps --by --json`.
pub const TOTALS: &str = include_str!("schema/totals.json");
/// `gpumem.snapshot/1`, printed by `ps --json`, and each line of a recording.
pub const SNAPSHOT: &str = include_str!("schema/snapshot.json");
