//! Who is never touched, and why. Pure: what is to be known is read by [`crate::host`] and given.
//!
//! The same questions are asked when a plan is made and again at the deed. Programs are matched by the
//! file that they run, where that is root's, whole names only; a part of a name is somebody else's. What is not known
//! protects from a rule; from a person who names a process only what is known does, and what cannot be
//! told of any process that may be signalled.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::Policy;
use super::target::listed;
use crate::host::{Guarded, Ourselves};
use crate::model::keep::KeptBy;
use crate::model::program::never_killed;
use crate::model::snapshot::Parent;
use crate::model::snapshot::{PidNamespace, ProcessType};
use crate::model::{Process, Snapshot, Time};

/// What the out-of-memory killer is told of a process that it must never touch.
const NEVER: i32 = -1000;

/// Why a process is not killed.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Protection {
    /// The first process, or the first of the kernel's.
    Init,
    /// A thread of the kernel's own.
    KernelThread,
    /// gpumem itself.
    Ourselves,
    /// gpumem was started by it, or by what it started.
    Ancestor,
    /// It leads gpumem's own session.
    SessionLeader,
    /// On the list of programs that are never killed.
    Program {
        /// By this name.
        name: Arc<str>,
    },
    /// The machine's owner has exempted it from the out-of-memory killer.
    OomProtected,
    /// It draws and does not compute.
    Graphics,
    /// It is another user's.
    OtherUser {
        /// Whose.
        uid: u32,
    },
    /// It is another user's, and gpumem may not signal it.
    NotPermitted {
        /// Whose.
        uid: u32,
    },
    /// The pids are not the host's: NVML's number may be a stranger's.
    OtherNamespace,
    /// Its owner keeps it.
    KeptByOwner {
        /// Until when; `None` where that is not limited.
        until: Option<Time>,
    },
    /// The configuration keeps it.
    KeptByConfiguration {
        /// As it says.
        why: Arc<str>,
        /// Until when; `None` where that is not limited.
        until: Option<Time>,
    },
    /// It serves, and waits for requests.
    Server,
    /// Who it is is not certain.
    Unresolved,
    /// Its number is another process's now.
    Replaced,
    /// Something that would protect it is not known.
    Unknown {
        /// What.
        what: Arc<str>,
    },
    /// A scheduler, a service manager or a container runtime owns it.
    Owned {
        /// What to type.
        command: Arc<str>,
    },
    /// Its descendants hold a GPU and are not in the plan: killing it may kill them.
    Descendants {
        /// Which.
        pids: Vec<u32>,
    },
    /// The kernel cannot hold on to a process, so that its number could become another's on the way.
    NoPidfd,
    /// It could not be held on to.
    NotHeld {
        /// What the kernel said.
        error: Arc<str>,
    },
}

impl From<KeptBy> for Protection {
    fn from(kept_by: KeptBy) -> Self {
        match kept_by {
            KeptBy::Owner { until } => Self::KeptByOwner { until },
            KeptBy::Configuration { reason: why, until } => {
                Self::KeptByConfiguration { why, until }
            }
            KeptBy::Program { name } => Self::Program { name },
            KeptBy::Server => Self::Server,
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Init => f.write_str("it is the machine's init"),
            Self::KernelThread => f.write_str("it is the kernel's own"),
            Self::Ourselves => f.write_str("it is gpumem itself"),
            Self::Ancestor => f.write_str("gpumem was started by it"),
            Self::SessionLeader => f.write_str("it leads gpumem's own session"),
            Self::Program { name } => KeptBy::Program { name: Arc::clone(name) }.fmt(f),
            Self::OomProtected => {
                f.write_str("its oom_score_adj is -1000: it is exempt from being killed")
            }
            Self::Graphics => f.write_str("it is graphics-only"),
            Self::OtherUser { uid } => write!(f, "it belongs to uid {uid}"),
            Self::NotPermitted { uid } => {
                write!(f, "it belongs to uid {uid}, and gpumem may not signal it")
            }
            Self::OtherNamespace => f.write_str(
                "pids here are not the host's, and NVML's may be; run gpumem on the host",
            ),
            Self::KeptByOwner { until } => KeptBy::Owner { until: *until }.fmt(f),
            Self::KeptByConfiguration { why, until } => {
                let reason = Arc::clone(why);
                let until = *until;
                KeptBy::Configuration { reason, until }.fmt(f)
            }
            Self::Server => KeptBy::Server.fmt(f),
            Self::Unresolved => f.write_str("its identity is not certain"),
            Self::Replaced => f.write_str("its pid belongs to another process now"),
            Self::Unknown { what } => write!(f, "{what} is not known"),
            Self::Owned { command } => {
                write!(f, "it is not gpumem's to kill: {command}")
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

/// Whether a process was named by a person or found by a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A person named it.
    Named,
    /// A rule found it.
    Rule,
}

/// What decides who is touched: the policy, and who asks.
#[derive(Clone, Debug)]
pub struct Guard {
    /// What may be done.
    pub policy: Policy,
    /// Who does it.
    pub ourselves: Ourselves,
}

impl Guard {
    /// The same for who lives on: to be asked harms no inference server.
    pub fn for_release(&self) -> Self {
        let mut guard = self.clone();
        guard.policy.servers = true;
        guard
    }

    /// Why a process is not touched, by what Linux tells of it now; `None` where nothing speaks
    /// against it. `known_executable` is what it ran when it still told.
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
        if pid == ourselves.pid {
            return Some(Protection::Ourselves);
        }
        if ourselves.ancestors.contains(&pid) {
            return Some(Protection::Ancestor);
        }
        if ourselves.session == Some(pid) {
            return Some(Protection::SessionLeader);
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
            return Some(Protection::from(KeptBy::Program { name: name.into() }));
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

    /// Why a process is not touched, by what was observed of it; `None` where nothing speaks against
    /// it.
    pub fn by_sight(
        &self,
        call: Call,
        process: &Process,
        snapshot: &Snapshot,
    ) -> Option<Protection> {
        if process.unresolved.is_some() || process.start_ticks.is_none() {
            return Some(Protection::Unresolved);
        }
        let host = Some(PidNamespace::Host);
        let is_host = snapshot.host.pid_namespace == host && self.ourselves.pid_namespace == host;
        // Its own open GPU proves that this process holds one, whatever NVML's number means.
        if !is_host && (call == Call::Rule || !holds_gpu(process)) {
            return Some(Protection::OtherNamespace);
        }
        if !self.policy.graphics && only_draws(process, snapshot) {
            return Some(Protection::Graphics);
        }
        if call == Call::Rule && !self.policy.servers && (self.policy.serves)(process, snapshot) {
            return Some(Protection::from(KeptBy::Server));
        }
        if call == Call::Named && self.policy.even_kept {
            return None;
        }
        self.kept(call, process, snapshot.time)
    }

    /// Why the launcher of a run is not touched, by what its owner and the configuration keep.
    pub fn keeps_launcher(
        &self,
        call: Call,
        parent: &Parent,
        facts: &Guarded,
        now: Time,
    ) -> Option<Protection> {
        if call == Call::Named && self.policy.even_kept {
            return None;
        }
        let launcher = Process {
            pid: parent.pid,
            start_ticks: parent.start_ticks,
            environment: facts.environment.clone(),
            ..Process::default()
        };
        self.kept(call, &launcher, now)
    }

    fn kept(&self, call: Call, process: &Process, now: Time) -> Option<Protection> {
        let identity = process.identity();
        let mut exempt = self.policy.kept.iter();
        let exempt = exempt.find(|it| it.is_from_all(identity, now));
        if let Some(exempt) = exempt {
            return Some(Protection::from(KeptBy::Configuration {
                reason: Arc::clone(&exempt.reason),
                until: exempt.until,
            }));
        }
        if process.environment.is_none() {
            return (call == Call::Rule).then(|| Protection::Unknown {
                what: "whether its owner keeps it (its environment)".into(),
            });
        }
        process.kept_by_owner(now).map(Protection::from)
    }
}

/// Whether a process has a GPU itself open, not only what controls the driver.
pub(super) fn holds_gpu(process: &Process) -> bool {
    let files = process.gpu_files.as_deref().unwrap_or_default();
    files.iter().any(|path| is_gpu_open(path))
}

/// Whether a device file is that of a GPU, not of what controls the driver.
pub(super) fn is_gpu_open(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let number = name.strip_prefix("nvidia");
    number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || matches!(name, "dxg" | "nvmap")
}

/// Whether NVML lists a process, and only for drawing, or for what this version does not know.
fn only_draws(process: &Process, snapshot: &Snapshot) -> bool {
    let rows = || {
        let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
        rows.flatten().filter(|row| row.pid == process.pid)
    };
    let draws = |kind| matches!(kind, ProcessType::Graphics | ProcessType::Other);
    rows().next().is_some() && rows().all(|row| draws(row.kind))
}

#[cfg(test)]
mod tests;
