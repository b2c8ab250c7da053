//! gpumem: see who is using GPU memory, whether they still need it, and reclaim it.
//!
//! `ARCHITECTURE.md` describes the modules, the flow of data and the invariants. The crate exports
//! [`main`] and, for integration tests and benchmarks, [`api`].

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
