//! What a process's names alone tell: program, title, starter.
//!
//! They are matched against hundreds of names, several times for every process in every sample, so callers
//! cache this while the names stay the same.

use super::Process;
use super::names::Hypervisor;
use super::pool::Pool;
use super::program::never_killed;

/// What command line, program file, short name, framework and the parent tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NameFacts {
    /// [`Process::is_display`].
    pub is_display: bool,
    /// [`Process::hypervisor`].
    pub hypervisor: Option<&'static Hypervisor>,
    /// [`Process::is_kernel`].
    pub is_kernel: bool,
    /// [`Process::is_worker_of_a_server`].
    pub is_worker_of_a_server: bool,
    /// [`Process::looks_like_a_server`].
    pub looks_like_a_server: bool,
    /// [`Process::mps_role`] of the process alone.
    pub has_mps_role: bool,
    /// Whether its program is on the list of [`never_killed`], regardless of the file's owner.
    pub is_never_killed: bool,
    /// [`Process::placeholder`].
    pub placeholder: Option<&'static str>,
    /// [`Process::pool`].
    pub pool: Option<&'static Pool>,
}

impl NameFacts {
    /// From the process's current names.
    pub fn of(process: &Process) -> Self {
        let (executable, comm) = (process.executable.as_deref(), process.comm.as_deref());
        Self {
            is_display: process.is_display(),
            hypervisor: process.hypervisor(),
            is_kernel: process.is_kernel(),
            is_worker_of_a_server: process.is_worker_of_a_server(),
            looks_like_a_server: process.looks_like_a_server(),
            has_mps_role: process.mps_role(None).is_some(),
            is_never_killed: never_killed(executable, None, comm, &[]).is_some(),
            placeholder: process.placeholder(),
            pool: process.pool(),
        }
    }
}
