//! The formats that gpumem writes, as JSON Schema (draft 2020-12), derived from the types that are written.
//!
//! A field's meaning is its type's documentation. The files beside this one are generated from the types
//! and committed, so that a change of a format shows: `tests/it/schema/derived.rs` knows which type is which
//! format and derives its schema, and `tests/it/schema.rs` proves that they name exactly the fields that are
//! written, and that they promise all that was ever promised.

/// `gpumem.check/1`: what `check --json` prints.
pub const CHECK: &str = include_str!("schema/check.json");
/// `gpumem.doctor/1`: what `doctor --json` prints.
pub const DOCTOR: &str = include_str!("schema/doctor.json");
/// `gpumem.explain/1`: what `explain --json` prints.
pub const EXPLAIN: &str = include_str!("schema/explain.json");
/// `gpumem.history/1`: what `reap --history --json` prints.
pub const HISTORY: &str = include_str!("schema/history.json");
/// `gpumem.hosts/1`: what `ps --json` and `check --json` print of other machines.
pub const HOSTS: &str = include_str!("schema/hosts.json");
/// `gpumem.reap/1`: what `reap --json` prints.
pub const REAP: &str = include_str!("schema/reap.json");
/// `gpumem.release/1`: what `release --json` prints.
pub const RELEASE: &str = include_str!("schema/release.json");
/// `gpumem.run/1`: what `run --report FILE.json` writes.
pub const RUN: &str = include_str!("schema/run.json");
/// `gpumem.totals/1`: what `ps --by --json` prints.
pub const TOTALS: &str = include_str!("schema/totals.json");
/// `gpumem.snapshot/1`: what `ps --json` prints, and each line of a recording.
pub const SNAPSHOT: &str = include_str!("schema/snapshot.json");
