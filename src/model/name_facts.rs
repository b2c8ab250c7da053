//! Facts that follow from a process's names alone.
//!
//! In every sample, each process's names would have to be compared with hundreds of entries. Callers therefore cache
//! these facts for as long as the names stay the same.

use super::Process;
use super::names::Hypervisor;
use super::pool::Pool;
use super::program::never_killed;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NameFacts {
    pub is_display: bool,
    pub hypervisor: Option<&'static Hypervisor>,
    pub is_kernel: bool,
    pub is_worker_of_a_server: bool,
    pub looks_like_a_server: bool,
    /// Whether [`Process::mps_role`] returns a role even without NVML's list.
    pub has_mps_role: bool,
    /// Whether [`never_killed`] lists the program's name, regardless of who owns the program file.
    pub is_never_killed: bool,
    pub placeholder: Option<&'static str>,
    pub pool: Option<&'static Pool>,
}

impl NameFacts {
    pub fn new(process: &Process) -> Self {
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
