//! Reads Linux's data about processes and the machine.
//!
//! | module | content |
//! |---|---|
//! | `proc` | a process, from /proc: [`Processes`] is the table that a live source keeps between samples; `visit` reads the files of one process; `tree` contains parents and descendants; other modules parse individual files |
//! | `gpu` | device files and the processes that hold them ([`Holders`]), the kernel module, MPS, PCI |
//! | `owner` | the owner of a process: cgroup, container, pod, Slurm job, unit, user, reservation |
//! | `machine` | clocks, load, memory, mounts, rights, ownership of paths, output files |
//! | [`jupyter`] | notebook servers and kernels |
//! | [`http`] | requests to servers, over verified connections |
//! | `secrets` | masks secrets in arguments and environment variables |
//!
//! `parse_*` functions take bytes and perform no I/O. `read_*` functions take the paths of the file systems
//! ([`Roots`]), which tests replace. This module prints nothing and does not depend on NVML. Reads that can block
//! forever (of process memory, container names, users' files and servers) run in a thread or child process that can be
//! abandoned (`deadline`). This module limits the length of text from processes and converts the text to valid UTF-8.
//! Display code escapes control characters.

use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;

pub mod http;
pub mod jupyter;
mod secrets;
#[cfg(test)]
pub(crate) mod testing;

mod gpu {
    pub(super) mod claim_queue;
    pub(super) mod claims;
    pub(super) mod driver;
    pub(super) mod gpu_files;
    pub(super) mod holders;
}

mod machine {
    pub(super) mod clocks;
    pub(super) mod load;
    pub(super) mod mounts;
    pub(super) mod output_file;
    pub(super) mod ownership;
    pub(super) mod rights;
}

mod owner {
    pub(super) mod above;
    pub(super) mod cgroup;
    pub(super) mod names;
    pub(super) mod place;
    pub(super) mod reservations;
}

mod proc {
    pub(super) mod cmdline;
    pub(super) mod environ;
    pub(super) mod folder;
    pub(super) mod framework;
    pub(super) mod guarded;
    pub(super) mod memory_reader;
    pub(super) mod notebook;
    pub(super) mod opened_process;
    pub(super) mod processes;
    pub(super) mod relatives;
    pub(super) mod sockets;
    pub(super) mod stat;
    pub(super) mod status;
    pub(super) mod traffic;
    pub(super) mod tree;
    pub(super) mod usage;
    pub(super) mod visit;
}

use crate::units::system_message;
pub use gpu::claims::{CannotClaim, Claims, find_heirs, is_claim_folder_valid};
pub use gpu::driver::{
    KernelModule, MpsDaemons, PciGpu, read_driver_gpus, read_kernel_module, read_mps_daemons,
    read_own_mapped_file, read_pci_gpus,
};
pub use gpu::gpu_files::{DeviceFile, read_device_files};
pub use gpu::holders::Holders;
pub use machine::clocks::{
    Clocks, Platform, read_boot_time, read_clocks, read_host, read_platform, read_time,
};
pub use machine::load::{
    CpuTicks, read_available_memory, read_certain_memory, read_load, read_total_memory,
};
pub use machine::mounts::{Cgroups, Hidepid, read_is_initial_cgroup_namespace, read_mounts};
pub use machine::output_file::{OutputFile, open_output, replace_file};
pub use machine::ownership::{
    NotOurs, has_more_rights, prove_directory_ours, prove_leaf_ours, prove_ours,
};
pub use machine::rights::{
    Rights, Visibility, give_up_reading, has_gained_ids, has_gained_rights, read_rights, try_pidfd,
};
pub use owner::names::{Users, is_unknown_user};
pub use owner::reservations::Reservations;
pub use proc::cmdline::parse_cmdline;
pub use proc::environ::read_environment;
pub use proc::guarded::{
    Guarded, ListedProcess, Ourselves, descends_from, read_all, read_checkpoint_facts,
    read_guarded, read_ourselves, read_signal_masks, read_state, read_wait_channel,
};
pub use proc::memory_reader::{read_memory_by_child, serves_memory};
pub use proc::notebook::parse_kernel;
pub use proc::processes::Processes;
pub use proc::stat::read_start_ticks;
pub use proc::usage::{JobUsage, JobWork, UsageReader};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roots {
    pub proc: PathBuf,
    pub dev: PathBuf,
    /// Root directory. Container runtimes' files are in folders below it, such as `var/lib/docker`.
    pub root: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), dev: "/dev".into(), root: "/".into() }
    }
}

/// Reason why a process could not be read. A process that has exited is not an error, unless /proc hides processes, so
/// that it cannot be distinguished from a hidden process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot read {}: {}{}", path.display(), system_message(errno), remedy(*errno))]
    Read { path: PathBuf, errno: Errno },
    #[error("{} is not in Linux's format; check that this path is a proc file system", path.display())]
    Malformed { path: PathBuf },
    #[error(
        "{} is absent, and this proc file system hides other users' processes; seeing them \
        requires root, or a mount without hidepid",
        path.display()
    )]
    Hidden { path: PathBuf },
}

fn parse_number<T: FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the start of a text, at most `limit` bytes long and cut between characters.
fn truncate(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

fn remedy(errno: Errno) -> &'static str {
    if errno == Errno::ACCESS || errno == Errno::PERM {
        "; that requires root or the process's owner"
    } else if proc::folder::is_out_of_descriptors(errno) {
        "; raise the limit on open files (ulimit -n)"
    } else {
        ""
    }
}
