//! Reclaims GPU memory: plans actions, carries them out, and verifies the result.
//!
//! [`mod@plan`] turns findings or named processes into targets ([`target`]) and refusals, as [`policy`] requests.
//! [`guard`] protects processes. [`prepare`] supplies plans and guards with facts from /proc or a snapshot.
//!
//! [`executor`] carries out a plan, and [`act`] carries out the steps for one target. [`step`] has one module for
//! each way to free memory. Only [`process_control`] signals processes, always through pidfds. [`ledger`] records
//! each action before it happens. [`mod@recheck`] checks whether a finding still holds, and [`verify`] checks whether
//! NVML shows the memory as freed.
//!
//! [`scheduler`] decides which unattended actions are due, and [`warnings`] stores the warnings that precede them.
//! [`worker`] makes and carries out plans for the screen. Except for the park helper, this module prints nothing and
//! does not call NVML.

pub mod act;
pub mod commands;
pub mod executor;
pub mod guard;
mod handles;
mod launcher;
pub mod ledger;
pub mod park;
pub mod past_acts;
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

pub use act::{Act, ActProgress};
pub use executor::{Executor, FreshSample, Observer, Tools};
pub use guard::Guard;
pub use ledger::Ledger;
pub use past_acts::{ReclaimLog, ReleaseLog};
pub use plan::{Plan, Refused, plan};
pub use policy::{FindingSelector, Policy, Signal, Targets};
pub use process_control::{PidfdControl, ProcessControl};
pub use recheck::Recheck;
pub use select::called;
pub use step::{StepInput, ask_server};
pub use target::Target;
pub use verify::Outcome;
pub use warnings::Warnings;
