//! Formats results as text, tables, JSON documents and other output formats.
//!
//! - [`processes`] and [`totals`] format `gpumem ps`, and `gpus` formats its GPU tables.
//! - [`check`] formats the verdict as text and JSON, and [`ci`] formats the verdict for CI servers.
//! - [`reap`] formats plans and their results, and [`refusal`] explains why gpumem skips a process.
//! - [`run`] formats the report of `gpumem run`.
//! - [`explain`] formats the page about a process or GPU, and [`environment`] the variables of a process.
//! - [`doctor`] formats the checks of this machine, and [`metrics`] the page for Prometheus.
//! - [`table`] aligns columns, and [`escape`] escapes untrusted text.

pub mod check;
pub mod ci;
pub mod doctor;
pub mod environment;
pub mod escape;
pub mod explain;
pub mod gpus;
pub mod metrics;
pub mod processes;
pub mod reap;
pub mod refusal;
pub mod run;
pub mod style;
pub mod table;
pub mod totals;

/// JSON Schemas (draft 2020-12) of the formats that gpumem writes: name, meaning and text.
///
/// `tests/it/schema/derived.rs` derives the schemas from the serialized types; descriptions are the doc comments of the
/// types. The generated files in `schema/` are committed so that a format change shows up in a review.
pub const SCHEMAS: [(&str, &str, &str); 9] = [
    ("check", "Output of check --json (gpumem.check/1)", include_str!("schema/check.json")),
    ("doctor", "Output of doctor --json (gpumem.doctor/1)", include_str!("schema/doctor.json")),
    ("explain", "Output of explain --json (gpumem.explain/1)", include_str!("schema/explain.json")),
    (
        "history",
        "Output of reap --history --json (gpumem.history/1)",
        include_str!("schema/history.json"),
    ),
    (
        "hosts",
        "Output of ps --json and check --json for other machines (gpumem.hosts/1)",
        include_str!("schema/hosts.json"),
    ),
    (
        "reap",
        "Output of reap --json and release --json (gpumem.reap/1)",
        include_str!("schema/reap.json"),
    ),
    ("run", "Output of run --report FILE.json (gpumem.run/1)", include_str!("schema/run.json")),
    (
        "snapshot",
        "Output of ps --json, and each line of a recording (gpumem.snapshot/1)",
        include_str!("schema/snapshot.json"),
    ),
    ("totals", "Output of ps --by --json (gpumem.totals/1)", include_str!("schema/totals.json")),
];
