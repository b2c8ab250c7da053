//! Getting memory back: what to end and how, doing it, and proving that it helped.
//!
//! [`mod@plan`] makes targets ([`target`]) with their steps, and refusals with reasons, from findings or from
//! what a person names. It is pure, and so are [`guard`] (what is never touched), [`policy`] (what is asked
//! for), [`prepare`] (except for plans of this machine), [`mod@recheck`] (whether a finding still holds) and
//! [`verify`] (what came back, as NVML sees it). [`executor`] carries out a plan for every caller, and [`act`]
//! one target of it, driven by data; [`process_control`] is the only place that touches processes, through
//! pidfds and never by number. Each way of reclaiming is a file in [`step`]. [`ledger`] is written before
//! anything is sent, the executor's lock excludes a second reaper, and [`warnings`] remembers who was warned before an
//! unattended act.
//!
//! [`scheduler`] decides what is due unattended, and [`worker`] plans and acts for the screen.
//!
//! Nothing here prints or calls NVML; each sample brings the current findings.

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
