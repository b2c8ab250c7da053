//! The data types of gpumem: plain data with serde, without I/O and without a clock.
//!
//! Observations: [`snapshot`] contains everything that was observed at one instant, and defines the format of `ps
//! --json`, `record` and `--replay`. [`mod@process`] is a process in a snapshot, and [`Identity`] identifies it
//! across snapshots. [`compute_device`] is a device that a program can use, and [`reservation`] contains the GPUs
//! allocated to a job or container.
//!
//! Conclusions: a [`finding`] is proven, a [`suspect`] is not proven yet, and [`reclaimable`] adds up both.
//! [`family`] groups related processes, and [`keep`] contains the reasons not to kill a process. [`balance`] splits a
//! GPU's memory by holder, [`unread`] finds processes that may be on an unreadable GPU, and [`waste`] adds up the
//! cost of findings.
//!
//! Display and selection: [`row`] is a process on a GPU, [`field`] is the table of facts about a row, [`selector`] is
//! the language that filters rows, and [`mod@totals`] adds up groups of rows. [`label`] and [`process_name`] format
//! names for people. [`time`], [`mod@escape`] and [`json`] define how values are written.
//!
//! Interpretation of names: [`names`] contains the lists, and combines the results. [`program`], [`server_name`],
//! [`owners`] and [`mod@unit`] each interpret one kind of name.
//!
//! Helper: [`device_file`].

pub mod balance;
pub mod compute_device;
pub mod device_file;
#[cfg(test)]
pub mod dice;
pub mod escape;
pub mod family;
pub mod field;
pub mod finding;
pub mod json;
pub mod keep;
pub mod label;
pub mod names;
pub mod owners;
pub mod process;
pub mod process_name;
pub mod program;
pub mod reclaimable;
pub mod reservation;
pub mod row;
pub mod selector;
pub mod server_name;
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
pub use process::{Identity, Process, Start};
pub use reclaimable::Reclaimable;
pub use selector::Selector;
pub use snapshot::{Gpu, GpuProcess, Snapshot};
pub use suspect::Suspect;
pub use time::Time;
pub use unread::Unread;
