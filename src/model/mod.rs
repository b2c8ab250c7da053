//! The nouns of gpumem: plain data with serde, no I/O and no clock.
//!
//! What is observed: [`snapshot`] is one instant, and the format of `ps --json`, `record` and `--replay`;
//! [`mod@process`] is one process in it, [`identity`] tells when two observations are of the same process,
//! [`compute_device`] is what a program can be given, [`reservation`] which GPUs jobs and containers were given, [`release`] is a process's report about memory it
//! gave back.
//!
//! What is concluded: [`finding`] and its evidence, [`suspect`] without proof yet, [`reclaimable`] the sum
//! of both, [`family`] which processes belong together, [`keep`] what keeps a process, [`balance`] where a
//! GPU's memory is, [`unread`] who may be on an unreadable GPU, [`waste`] what findings have cost.
//!
//! What is shown and selected: [`row`] is a process on a GPU, [`field`] what can be known of it, [`selector`]
//! the language that asks, [`mod@totals`] the sums of groups; [`label`] and [`process_name`]
//! are texts for people, [`time`], [`mod@escape`] and [`json`] the written forms.
//!
//! What names tell: [`names`] are the lists, [`name_facts`] everything at once; [`program`], [`server_name`],
//! [`owners`], [`pool`], [`placeholder`] and [`mod@unit`] interpret one each.
//!
//! Helpers: [`device_file`], [`shared`].

pub mod balance;
pub mod compute_device;
pub mod device_file;
#[cfg(test)]
pub mod dice;
pub mod escape;
pub mod family;
pub mod field;
pub mod finding;
pub mod identity;
pub mod json;
pub mod keep;
pub mod label;
pub mod name_facts;
pub mod names;
pub mod owners;
mod placeholder;
pub mod pool;
pub mod process;
pub mod process_name;
pub mod program;
pub mod reclaimable;
pub mod release;
pub mod reservation;
pub mod row;
pub mod selector;
pub mod server_name;
pub mod shared;
pub mod snapshot;
pub mod suspect;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
pub mod totals;
pub mod unit;
pub mod unread;
pub mod waste;

pub use compute_device::ComputeDevice;
pub use finding::{Finding, Kind, Severity};
pub use identity::{Identity, Start};
pub use process::Process;
pub use reclaimable::Reclaimable;
pub use selector::Selector;
pub use snapshot::{Gpu, GpuProcess, Snapshot};
pub use suspect::Suspect;
pub use time::Time;
pub use unread::Unread;
