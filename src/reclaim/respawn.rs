//! Finds the process that replaced an ended process: its successor. A parent, notebook server, service or container
//! may have started the successor. Successors are never signalled, because they are not part of the plan.
//!
//! Only processes that did not exist before the first signal can be successors. A new process is a successor if
//!
//! - it has the same command and the same parent, or the command identifies a particular notebook kernel;
//! - it has the same command and user, and NVML lists it on one of the target's GPUs. Its parent does not matter,
//!   because the ended process may have forked on SIGTERM or restarted itself in a new session; or
//! - it has a different command but the same parent, service or container, and NVML lists it on one of the target's
//!   GPUs.
//!
//! A parent that only adopts orphans can have unrelated children. A child of such a parent must have the same command
//! and user, and must lead a session or be in the session of the ended process. Leftovers of a login are in the
//! session of the login instead.

use std::sync::Arc;

use super::process_control::ProcessControl;
use super::target::Target;
use crate::host::{Guarded, ListedProcess, parse_kernel};
use crate::model::{Gpu, Process, Snapshot};

#[derive(Clone, PartialEq, Eq, Debug)]
struct FormerPlace {
    ppid: Option<u32>,
    /// Whether the parent only adopted the process. The parent's other children are not successors then.
    is_orphan: bool,
    session: Option<u32>,
    uid: Option<u32>,
    parent_holds: bool,
    command: Option<Arc<[Arc<str>]>>,
    /// Whether the command identifies a particular notebook kernel. A successor of such a kernel can have a different
    /// parent, because a server can use a new wrapper for each start.
    is_kernel: bool,
    manager: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub(super) struct Respawn {
    places: Vec<FormerPlace>,
}

impl Respawn {
    pub fn expect(&mut self, pid: u32, facts: &Guarded, snapshot: &Snapshot) {
        let shown = snapshot.process(pid);
        let shown = shown.filter(|process| process.start_ticks == Some(facts.start_ticks));
        let is_orphan = shown.is_none_or(|process| process.parent_is_reaper != Some(false));
        let kernel = facts.command.as_deref().and_then(parse_kernel);
        self.places.push(FormerPlace {
            ppid: facts.ppid,
            is_orphan,
            session: facts.session,
            uid: facts.uid,
            parent_holds: facts.ppid.is_some_and(|ppid| is_listed(ppid, snapshot)),
            command: facts.command.clone(),
            is_kernel: kernel.is_some_and(|kernel| kernel.kernel_id.is_some()),
            manager: shown.and_then(manager),
        });
    }

    pub fn find(
        &self,
        target: &Target,
        new: &[&ListedProcess],
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Option<u32> {
        let is_taking = |pid: u32| {
            let is_theirs = |gpu: &&Gpu| {
                let mut member_gpus = target.members.iter().flat_map(|member| &member.gpus);
                member_gpus.any(|member_gpu| member_gpu.index == gpu.index)
            };
            let gpus = snapshot.gpus.iter().filter(is_theirs);
            let mut rows = gpus.flat_map(|gpu| &gpu.processes).flatten();
            rows.any(|row| row.pid == pid)
        };
        for candidate in new {
            let is_sibling =
                |former: &&FormerPlace| former.ppid.is_some() && former.ppid == candidate.ppid;
            let shown = snapshot.process(candidate.pid);
            let shown = shown.filter(|shown| shown.start_ticks == Some(candidate.start_ticks));
            let manager = shown.and_then(manager);
            let is_managed = |former: &&FormerPlace| manager.is_some() && former.manager == manager;
            let kernels = || self.places.iter().filter(|former| former.is_kernel);
            let siblings = || self.places.iter().filter(is_sibling);
            let allocates = shown.is_some() && is_taking(candidate.pid);
            if !allocates
                && siblings().next().is_none()
                && kernels().next().is_none()
                && !self.places.iter().any(|former| is_managed(&former))
            {
                continue;
            }
            let facts = control.read_guarded(candidate.pid);
            let Some(facts) = facts.filter(|facts| facts.start_ticks == candidate.start_ticks)
            else {
                continue;
            };
            let is_same =
                |former: &&FormerPlace| former.command.is_some() && former.command == facts.command;
            let started_it = |former: &&FormerPlace| {
                !former.is_orphan
                    || former.uid == facts.uid
                        && (facts.session == Some(candidate.pid) || facts.session == former.session)
            };
            let siblings_like_it = siblings().filter(started_it);
            let restarted =
                self.places.iter().filter(|former| allocates && former.uid == facts.uid);
            if siblings_like_it.chain(kernels()).chain(restarted).any(|former| is_same(&former)) {
                return Some(candidate.pid);
            }
            let has_place = siblings().any(|former| !former.is_orphan)
                || self.places.iter().any(|former| is_managed(&former));
            if has_place && allocates {
                return Some(candidate.pid);
            }
        }
        // A supervisor can allocate the memory itself.
        let supervisors =
            self.places.iter().filter(|former| !former.is_orphan && !former.parent_holds);
        let mut supervisors = supervisors.filter_map(|former| former.ppid);
        supervisors.find(|&ppid| is_taking(ppid))
    }
}

/// Returns the container or service that may restart the process.
fn manager(process: &Process) -> Option<Arc<str>> {
    let container = process.container.as_deref().and_then(|container| container.id.clone());
    let unit = process.systemd_unit.as_ref();
    let is_service = |unit: &&Arc<str>| unit.ends_with(".service") && !unit.starts_with("user@");
    container.or_else(|| unit.filter(is_service).cloned())
}

fn is_listed(pid: u32, snapshot: &Snapshot) -> bool {
    let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
    rows.flatten().any(|row| row.pid == pid)
}
