//! Decides which processes are protected, and why. [`crate::host`] reads the facts from /proc.
//!
//! The same checks run when the plan is made and again before each action. An unknown fact protects every process that
//! a rule found. It protects a process that a person named only if every user can normally read the fact, such as the
//! owner or `oom_score_adj`.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::Policy;
use super::target::listed;
use crate::host::{Guarded, Ourselves};
use crate::model::keep::{Exempt, KeptBy};
use crate::model::process::ParkState;
use crate::model::program::never_killed;
use crate::model::snapshot::{Parent, PidNamespace, ProcessType};
use crate::model::{GpuProcess, Process, Snapshot, Time};
use crate::rules::serves;

/// Value of `oom_score_adj` that exempts a process from the OOM killer (proc(5)).
const NEVER: i32 = -1000;

/// Reason not to kill a process.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Protection {
    /// The machine's init process, or the kernel's first thread.
    Init,
    /// A kernel thread.
    KernelThread,
    /// gpumem itself, an ancestor of gpumem, or the leader of gpumem's session.
    Ancestor,
    /// The process is exempt.
    Kept {
        /// What exempts it.
        kept_by: KeptBy,
    },
    /// The administrator has exempted the process from the OOM killer.
    OomProtected,
    /// The process only uses graphics.
    Graphics,
    /// The process belongs to another user and `--all-users` is not given, or the process is a launcher whose workers
    /// belong to another user.
    OtherUser {
        /// User ID of the owner.
        uid: u32,
    },
    /// The process belongs to another user, and gpumem has no permission to signal other users' processes.
    NotPermitted {
        /// User ID of the owner.
        uid: u32,
    },
    /// gpumem does not run in the host's PID namespace, so the PID that NVML reports may belong to an unrelated
    /// process.
    OtherNamespace,
    /// The process's identity is uncertain.
    Unresolved,
    /// The PID now belongs to another process.
    Replaced,
    /// A fact that could protect the process is unknown.
    Unknown {
        /// The unknown fact.
        what: Arc<str>,
    },
    /// A scheduler, a service manager or a container runtime owns the process.
    Owned {
        /// Command to use instead.
        command: Arc<str>,
    },
    /// A park or unpark of the process is not complete.
    Moving {
        /// State of the process.
        state: ParkState,
    },
    /// Descendants of the process hold a GPU but are not in the plan. Killing the process may also kill them.
    Descendants {
        /// PIDs of the descendants.
        pids: Vec<u32>,
    },
    /// No pidfd is available, so the PID could be reused before a signal arrives.
    NoPidfd,
    /// The pidfd of the process could not be opened.
    NotHeld {
        /// The kernel's error.
        error: Arc<str>,
    },
}

impl Protection {
    pub(super) fn of_exemption(exemption: &Exempt) -> Self {
        let reason = Arc::clone(&exemption.reason);
        Self::Kept { kept_by: KeptBy::Configuration { reason, until: exemption.until } }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Init => f.write_str("it is the machine's init"),
            Self::KernelThread => f.write_str("it is a kernel thread"),
            Self::Ancestor => f.write_str("it is gpumem, started gpumem, or leads its session"),
            Self::Kept { kept_by } => kept_by.fmt(f),
            Self::OomProtected => {
                f.write_str("its oom_score_adj is -1000: it is exempt from being killed")
            }
            Self::Graphics => f.write_str("it is graphics-only"),
            Self::OtherUser { uid } => write!(f, "owned by uid {uid}"),
            Self::NotPermitted { uid } => {
                write!(f, "owned by uid {uid}, and gpumem may not signal it")
            }
            Self::OtherNamespace => f.write_str(
                "pids here are not the host's, but NVML's may be; run gpumem on the host",
            ),
            Self::Unresolved => f.write_str("its identity is not certain"),
            Self::Replaced => f.write_str("its pid belongs to another process now"),
            Self::Unknown { what } => write!(f, "{what} is not known"),
            Self::Owned { command } => {
                write!(f, "it is not gpumem's to kill: {command}")
            }
            Self::Moving { state: ParkState::InProgress } => {
                f.write_str("a helper is parking or restoring it; try again when it has finished")
            }
            Self::Moving { .. } => {
                f.write_str("a park of it was interrupted; run gpumem unpark first")
            }
            Self::Descendants { pids } => {
                let pids = listed(pids);
                write!(f, "killing it may kill {pids}, which hold a GPU and are not in the plan")
            }
            Self::NoPidfd => f.write_str(
                "pidfds are unavailable: they need Linux 5.3 and a seccomp profile that allows \
                pidfd_open",
            ),
            Self::NotHeld { error } => write!(f, "its pidfd could not be opened: {error}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Named,
    Rule,
}

#[derive(Clone, Debug)]
pub struct Guard {
    pub policy: Policy,
    pub ourselves: Ourselves,
}

impl Guard {
    /// Returns the guard for release requests. It allows inference servers, because a release does not harm them.
    pub fn for_release(&self) -> Self {
        let mut guard = self.clone();
        guard.policy.servers = true;
        guard
    }

    /// Returns why the current facts forbid signalling a process, or `None` if they allow it. `known_executable` is the
    /// last path of the process's program that could be read.
    pub fn by_facts(
        &self,
        call: Call,
        pid: u32,
        facts: Option<&Guarded>,
        known_executable: Option<&str>,
    ) -> Option<Protection> {
        let ourselves = &self.ourselves;
        if pid <= 2 {
            return Some(Protection::Init);
        }
        let has_started_us = ourselves.ancestors.contains(&pid);
        if pid == ourselves.pid || has_started_us || ourselves.session == Some(pid) {
            return Some(Protection::Ancestor);
        }
        let unknown = |what: &str| Some(Protection::Unknown { what: what.into() });
        let Some(facts) = facts else {
            return unknown("whether it may be killed");
        };
        if facts.is_kernel_thread {
            return Some(Protection::KernelThread);
        }
        if facts.is_process == Some(false) {
            return Some(Protection::Replaced);
        }
        let executable = facts.executable.as_deref().or(known_executable);
        let (is_roots, comm) = (facts.executable_is_roots, facts.comm.as_deref());
        if let Some(name) = never_killed(executable, is_roots, comm, &self.policy.never) {
            return Some(Protection::Kept { kept_by: KeptBy::Program { name: name.into() } });
        }
        match facts.oom_score_adj {
            Some(NEVER) => return Some(Protection::OomProtected),
            None => return unknown("its oom_score_adj"),
            Some(_) => {}
        }
        let Some(uid) = facts.uid else {
            return unknown("its owner");
        };
        if uid != ourselves.uid {
            if !self.policy.all_users {
                return Some(Protection::OtherUser { uid });
            }
            if !ourselves.may_signal_others {
                return Some(Protection::NotPermitted { uid });
            }
        }
        if executable.is_none() && call == Call::Rule {
            return unknown("the program that it runs");
        }
        None
    }

    /// Returns why the snapshot forbids signalling a process, or `None` if it allows it.
    pub fn by_snapshot(
        &self,
        call: Call,
        process: &Process,
        snapshot: &Snapshot,
    ) -> Option<Protection> {
        if process.unresolved.is_some() || process.start_ticks.is_none() {
            return Some(Protection::Unresolved);
        }
        let state = process.park.as_ref().map(|mark| mark.state);
        if let Some(state @ (ParkState::Locked | ParkState::InProgress | ParkState::Unknown)) =
            state
            && !self.policy.parks
        {
            return Some(Protection::Moving { state });
        }
        let host = Some(PidNamespace::Host);
        let is_host = snapshot.host.pid_namespace == host && self.ourselves.pid_namespace == host;
        // In another pid namespace, NVML's pids can mean other processes. Only an open GPU device file then proves
        // that this process holds a GPU.
        let is_own = holds_gpu(process) || process.parked().is_some();
        if !is_host && (call == Call::Rule || !is_own) {
            return Some(Protection::OtherNamespace);
        }
        if !self.policy.graphics && is_graphics_only(process, snapshot) {
            return Some(Protection::Graphics);
        }
        if call == Call::Rule && !self.policy.servers && serves(process, snapshot) {
            return Some(Protection::Kept { kept_by: KeptBy::Server });
        }
        if call == Call::Named && self.policy.even_kept {
            return None;
        }
        self.find_keep(call, process, snapshot.time)
    }

    /// Returns the exemption of a run's launcher by its owner or the configuration, if any.
    pub fn keeps_launcher(
        &self,
        call: Call,
        parent: &Parent,
        facts: &Guarded,
        (start_time, now): (Option<Time>, Time),
    ) -> Option<Protection> {
        if call == Call::Named && self.policy.even_kept {
            return None;
        }
        let launcher = Process {
            pid: parent.pid,
            start_ticks: parent.start_ticks,
            start_time,
            environment: facts.environment.clone(),
            ..Process::default()
        };
        self.find_keep(call, &launcher, now)
    }

    fn find_keep(&self, call: Call, process: &Process, now: Time) -> Option<Protection> {
        let identity = process.identity();
        let mut exemption = self.policy.kept.iter();
        let exemption = exemption.find(|exemption| exemption.is_from_all(identity, now));
        if let Some(exemption) = exemption {
            return Some(Protection::of_exemption(exemption));
        }
        let longest = self.policy.longest_keep;
        if process.environment.is_none() && !process.is_past_keep_limit(now, longest) {
            return (call == Call::Rule).then(|| Protection::Unknown {
                what: "whether its owner keeps it (its environment)".into(),
            });
        }
        let kept_by = process.kept_by_owner(now, longest)?;
        Some(Protection::Kept { kept_by })
    }
}

/// Returns whether a process has the device file of a GPU open. The driver's control files are ignored.
pub(super) fn holds_gpu(process: &Process) -> bool {
    let files = process.gpu_files.as_deref().unwrap_or_default();
    files.iter().any(|path| is_gpu_open(path))
}

/// Returns whether a device file belongs to a GPU rather than to the driver's control interface.
pub(super) fn is_gpu_open(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let number = name.strip_prefix("nvidia");
    number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || matches!(name, "dxg" | "nvmap")
}

/// Returns whether NVML lists the process, and only with graphics or unknown types.
fn is_graphics_only(process: &Process, snapshot: &Snapshot) -> bool {
    let mut rows = snapshot.rows_of(process.pid).peekable();
    let draws = |row: &GpuProcess| matches!(row.kind, ProcessType::Graphics | ProcessType::Other);
    rows.peek().is_some() && rows.all(draws)
}

#[cfg(test)]
mod tests;
