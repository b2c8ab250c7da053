//! The nouns of gpumem: plain data with serde, no I/O and no clock.
//!
//! [`snapshot`] is what was observed at one instant and is the format of `ps --json`, `record` and
//! `--replay`; [`finding`] is what the rules concluded from it, and
//! [`evidence`] what that rests on, [`suspect`] what they cannot prove yet,
//! [`reclaimable`] what both come to; [`identity`] says when two
//! observations are of the same process, [`family`] which processes belong together; [`time`] is an
//! instant as all of them write it, [`local_time`] as people read it; [`balance`] is where a GPU's memory is, [`device_file`] how it is
//! held, [`json`] how all of them are written, [`keep`] what keeps a process, [`label`] how every view names what it shows, [`pool`]
//! which workers are started again, [`release`] what a process reports of memory it gave back, [`reservation`] which GPUs jobs and containers were given, [`row`] a
//! process on a GPU, [`field`] what can be known of one and [`selector`] the language in which it is asked, [`mod@totals`] what groups of them hold,
//! [`processes_by_pid`] finds many of them, [`process_name`] what it is called, [`program`] what it is by its program's name, [`server_name`] whether that is a server's, [`name_facts`] all that names tell at once, [`names`] the lists of them, [`shared`] whether what is shared is the same, [`mod@unit`] what a
//! systemd unit is to the processes in it, [`unread`] who may be where that is not known.

pub mod balance;
pub mod device_file;
#[cfg(test)]
pub mod dice;
pub mod escape;
pub mod evidence;
pub mod family;
pub mod field;
pub mod finding;
pub mod identity;
pub mod json;
pub mod keep;
pub mod label;
pub mod local_time;
pub mod name_facts;
pub mod names;
mod placeholder;
pub mod pool;
pub mod process;
pub mod process_name;
pub mod processes_by_pid;
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

pub use finding::{Finding, Kind, Severity};
pub use identity::{Identity, Start};
pub use process::Process;
pub use reclaimable::Reclaimable;
pub use selector::Selector;
pub use snapshot::{Gpu, GpuProcess, Snapshot};
pub use suspect::Suspect;
pub use time::Time;
pub use unread::Unread;
