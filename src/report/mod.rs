//! Formats results as text, tables, JSON documents and other output formats.
//!
//! - [`processes`]: `gpumem ps` as text, with the GPU tables of `gpus`; [`totals`]: its totals
//! - [`check`]: the verdict as text and JSON; [`junit`] and [`github`]: for CI servers
//! - [`reap`] and [`release`]: plans and their results; [`refusal`]: why something is skipped
//! - [`explain`]: the page about a process or GPU; [`environment`]: the variables of a process
//! - [`doctor`]: what works on this machine; [`metrics`]: for Prometheus
//! - [`table`]: aligns columns; [`escape`]: escapes untrusted text; [`schema`]: the JSON Schema of each document

pub mod check;
pub mod doctor;
pub mod environment;
pub mod escape;
pub mod explain;
pub mod github;
mod gpus;
pub mod hosts;
pub mod junit;
pub mod metrics;
pub mod processes;
pub mod reap;
pub mod refusal;
pub mod release;
pub mod run;
pub mod schema;
pub mod style;
pub mod table;
pub mod totals;
