//! Writers: tables, JSON, escaping for terminals.
//!
//! Each takes what was observed or concluded and writes it out; none knows where it came from.
//! [`processes`] is `gpumem ps` for people, with the tables of `gpus` before its own, and [`totals`] its sums; [`check`]
//! the verdict for people and as JSON; [`reap`] and [`release`] plans and their results, and [`refusal`] why something is
//! skipped; [`explain`] the page about one process or GPU, and [`environment`] the variables of a process; [`doctor`]
//! what works on this machine. [`junit`] and [`github`] are for CI servers, [`metrics`] is for Prometheus. [`table`]
//! aligns columns by their width on a terminal, [`escape`] makes hostile text harmless, and [`schema`] has the JSON
//! Schema of each document.

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
