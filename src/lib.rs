//! gpumem: see who is using GPU memory, whether they still need it, and reclaim it.
//!
//! `ARCHITECTURE.md` at the repository's root describes the modules, the flow of data, the invariants, and what to
//! change when adding a feature. The crate exports only [`main`], and [`api`] for the integration tests and
//! benchmarks.

mod advice;
pub mod api;
mod cli;
mod config;
mod deadline;
mod explain;
mod history;
mod host;
mod model;
mod reclaim;
mod recording;
mod report;
mod rules;
mod source;
mod subprocess;
mod units;
mod watch;

pub use crate::cli::main;
