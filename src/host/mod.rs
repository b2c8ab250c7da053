//! What Linux knows of a process, and of the machine it runs on.
//!
//! [`Processes`] is the table that a live source keeps between samples: asked for some pids, it
//! answers with a [`Process`](crate::model::Process) for each, filled as far as /proc tells.
//! [`Holders`] tells it which ones to ask for besides those that NVML lists: it looks at the descriptors
//! of all processes for GPU device files. The other files hold one fact each: functions named `parse_*` are
//! pure and take bytes, those named `read_*` do the reading. [`read_host`] and [`read_clocks`] are about
//! the machine.
//!
//! Everything is rooted at a path ([`Roots`]), so that a test points it at a folder of its own. No
//! function here signals, prints or asks a clock on its own, and none waits, but for the names of
//! containers (`names`) and for [`Holders::refresh`] of one who asks, a moment each
//! (`deadline::ANSWER_TIME`), for users' files and servers (`jupyter`) and for interpreters (`python`, the one that writes to
//! a process), on a thread that may hang. Nothing here knows of GPUs
//! beyond the names of their device files. What a process says of itself (argv, names, paths) is bounded
//! in length and made valid UTF-8 here, and escaped where it is shown; secrets in argv are left out.

use std::path::PathBuf;

use rustix::io::Errno;

mod above;
mod available_memory;
mod cgroup;
mod cmdline;
mod descendants;
mod device_files;
mod entry;
mod environ;
mod environment;
mod folder;
mod framework;
mod gpu_files;
mod guarded;
mod holders;
pub mod http;
mod io_counters;
pub mod jupyter;
mod kernel_module;
mod machine;
mod mapped;
mod mapped_devices;
mod mounts;
mod mps;
mod names;
mod notebook;
mod opened_process;
mod ownership;
mod parent;
mod pci;
mod place;
mod platform;
mod processes;
pub mod python;
mod reaper;
mod relatives;
mod reservations;
mod rights;
mod secrets;
mod small_file;
mod sockets;
mod stat;
mod status;
mod users;
mod visit;

pub use available_memory::read_available_memory;
pub use cmdline::parse_cmdline;
pub use device_files::{DeviceFile, read_device_files};
pub use environ::carries_variable;
pub use environment::read_environment;
pub use framework::{has_version_metadata, read_version};
pub use guarded::{
    Guarded, ListedProcess, Ourselves, read_all, read_guarded, read_ourselves, read_signal_masks,
    read_wait_channel,
};
pub use holders::Holders;
pub use kernel_module::{KernelModule, read_kernel_module};
pub use machine::{Clocks, read_boot_time, read_clocks, read_host, read_time};
pub use mapped::read_own_mapped_file;
pub use mounts::{Cgroups, Hidepid, read_is_initial_cgroup_namespace, read_mounts};
pub use mps::{MpsDaemons, read_mps_daemons};
pub use notebook::parse_kernel;
pub use ownership::{NotOurs, has_more_rights, prove_directory_ours, prove_leaf_ours, prove_ours};
pub use pci::{PciGpu, read_pci_gpus};
pub use platform::{Platform, read_platform};
pub use processes::{Processes, raise_open_file_limit};
pub use reservations::Reservations;
pub use rights::{
    OpenFileLimit, Rights, Visibility, give_up_reading, has_gained_ids, has_gained_rights,
    open_file_limit, read_ptrace_scope, read_rights, try_pidfd,
};
pub use stat::read_start_ticks;

/// Where the kernel's folders are, and the machine's own files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roots {
    /// Where proc is mounted.
    pub proc: PathBuf,
    /// Where device files are.
    pub dev: PathBuf,
    /// Where the files of container runtimes are, `/var/lib/docker` and others.
    pub root: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), dev: "/dev".into(), root: "/".into() }
    }
}

/// What kept a process from being read. That it does not exist is no error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel refused, or had no descriptor left.
    #[error("cannot read {}: {errno}{}", path.display(), remedy(*errno))]
    Read { path: PathBuf, errno: Errno },
    /// The content is not what Linux writes.
    #[error("{} is not what Linux writes; is this path a proc file system?", path.display())]
    Malformed { path: PathBuf },
    /// Absent from a proc file system that hides the processes of others.
    #[error(
        "{} is absent, and this proc file system hides other users' processes; run as root, or mount it without hidepid",
        path.display()
    )]
    Hidden { path: PathBuf },
}

/// What to do next about an error of the kernel's.
fn remedy(errno: Errno) -> &'static str {
    if errno == Errno::ACCESS || errno == Errno::PERM {
        "; run as root or as the process's owner"
    } else if folder::is_out_of_descriptors(errno) {
        "; raise the limit on open files (ulimit -n)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let path = PathBuf::from("/proc/70");
        let read = |errno| HostError::Read { path: path.clone(), errno };
        for (error, parts) in [
            (read(Errno::ACCESS), ["/proc/70", "run as root"]),
            (read(Errno::MFILE), ["/proc/70", "ulimit -n"]),
            (HostError::Malformed { path: path.clone() }, ["/proc/70", "proc file system"]),
            (HostError::Hidden { path: path.clone() }, ["/proc/70", "hidepid"]),
        ] {
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            assert!(!text.ends_with('.'), "{text}");
        }
    }
}
