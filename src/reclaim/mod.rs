//! Getting memory back: what to end and how, doing it, and proof that it helped.
//!
//! [`mod@plan`] makes of findings, or of what a person names, targets ([`target`]) with their steps and
//! refusals with their reasons; it is pure, and so are [`guard`] (who is never touched), [`policy`] (what is asked
//! for), [`by_snapshot`] (a plan by what a snapshot alone shows), [`mod@recheck`] (whether what a rule said is still so) and [`verify`] (what came back, as NVML sees it). [`executor`] carries a plan out, for whoever
//! asked, and [`act`] one target of it, one call at a time, driven by data; [`process_control`] is the only place that touches processes, through pidfds and never
//! through a number. Each way to get memory back is a file of [`step`].
//! [`ledger`] is written before anything is sent, [`lock`] holds off a second reaper, [`warnings`]
//! remember who was warned before an unattended act.
//!
//! Nothing here prints, asks a clock, knows NVML or judges: what rules find now is said with each sample.

pub mod act;
pub mod by_snapshot;
pub mod commands;
pub mod executor;
pub mod guard;
mod handles;
mod launcher;
pub mod ledger;
pub mod lock;
pub mod past_release;
pub mod plan;
pub mod policy;
pub mod process_control;
pub mod recheck;
pub mod release;
mod respawn;
mod select;
pub mod step;
pub mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod verify;
pub mod warnings;

pub use act::{Act, ActProgress, Recheck, StepInput};
pub use by_snapshot::plan_by_snapshot;
pub use executor::{Executor, JudgedSample, Observer, SampleSource, Tools};
pub use guard::{Guard, Protection};
pub use ledger::Ledger;
pub use past_release::ReleaseLog;
pub use plan::{Plan, Refused, plan};
pub use policy::{FindingSelector, Policy, Signal, Targets};
pub use process_control::{PidfdControl, ProcessControl};
pub use select::called;
pub use step::{ask_server, perform_requests};
pub use target::Target;
pub use verify::Outcome;
pub use warnings::Warnings;
