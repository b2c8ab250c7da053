//! Reclaims GPU memory: plans, carries plans out, and verifies the result.
//!
//! [`mod@plan`] creates targets ([`target`]) with their steps, and refusals with reasons, from findings or from
//! process names. It is pure. So are [`guard`] (protected processes), [`policy`] (the request), and [`prepare`]
//! (except for plans of this machine). [`mod@recheck`] (whether a finding still holds) and [`verify`] (freed
//! memory, according to NVML) are pure as well. [`executor`] carries out a plan for every caller, and [`act`]
//! carries out one target. Only [`process_control`] touches processes, through pidfds and never by number. Each way
//! of reclaiming is a file in [`step`]. [`ledger`] is written before each action. The executor's lock excludes a
//! second reaper, and [`warnings`] records warnings before unattended acts.
//!
//! [`scheduler`] decides which unattended actions are due, and [`worker`] plans and acts for the screen. Nothing
//! here prints or calls NVML.

pub mod act;
pub mod commands;
pub mod executor;
pub mod guard;
mod handles;
mod launcher;
pub mod ledger;
pub mod past_reclaim;
pub mod past_release;
pub mod plan;
pub mod policy;
pub mod prepare;
pub mod process_control;
pub mod recheck;
pub mod release;
mod respawn;
pub mod scheduler;
mod select;
pub mod step;
pub mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod verify;
pub mod warnings;
pub mod worker;

pub use act::{Act, ActProgress, Recheck, StepInput};
pub use executor::{Executor, FreshSample, Observer, SampleSource, Tools};
pub use guard::{Guard, Protection};
pub use ledger::Ledger;
pub use past_reclaim::ReclaimLog;
pub use past_release::ReleaseLog;
pub use plan::{Plan, Refused, plan};
pub use policy::{FindingSelector, Policy, Signal, Targets};
pub use process_control::{PidfdControl, ProcessControl};
pub use select::called;
pub use step::{ask_server, perform_requests};
pub use target::Target;
pub use verify::Outcome;
pub use warnings::Warnings;
