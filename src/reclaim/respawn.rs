//! Finds the process that replaced an ended process: its successor. A parent, notebook server, service or container
//! may have started the successor. Successors are never signalled, because they are not part of the plan.
//!
//! A supervisor that allocates the memory itself counts as the successor. Otherwise, only processes that did not exist
//! before the first action can be successors. A new process is a successor if
//!
//! - it has the same command, and either the same parent or a command that identifies a particular notebook kernel;
//! - it has the same command and user, and NVML lists it on one of the target's GPUs. Its parent does not matter,
//!   because the ended process may have forked on SIGTERM or restarted itself in a new session; or
//! - it has a different command but the same parent, service or container, and NVML lists it on one of the target's
//!   GPUs.
//!
//! A parent that only adopts orphans can have unrelated children. A child of such a parent must have the same command
//! and user. It must also lead a session, or be in the session of the ended process. Leftovers of a login are in the
//! session of the login instead.

use std::sync::Arc;

use super::process_control::ProcessControl;
use super::target::Target;
use crate::host::{Guarded, ListedProcess, parse_kernel};
use crate::model::{Gpu, Process, Snapshot};

#[derive(Debug)]
struct FormerPlace {
    facts: Guarded,
    /// Whether the parent only adopted the process, or may have. The parent's other children must then meet stricter
    /// conditions.
    is_orphan: bool,
    parent_holds: bool,
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
    pub fn expect(&mut self, pid: u32, facts: Guarded, snapshot: &Snapshot) {
        let shown = snapshot.same_process(pid, facts.start_ticks);
        let kernel = facts.command.as_deref().and_then(parse_kernel);
        self.places.push(FormerPlace {
            is_orphan: shown.is_none_or(|process| process.parent_is_reaper != Some(false)),
            parent_holds: facts.ppid.is_some_and(|ppid| snapshot.rows_of(ppid).next().is_some()),
            is_kernel: kernel.is_some_and(|kernel| kernel.kernel_id.is_some()),
            manager: shown.and_then(manager),
            facts,
        });
    }

    pub fn find(
        &self,
        target: &Target,
        new: &[&ListedProcess],
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Option<u32> {
        let is_theirs = |gpu: &&Gpu| {
            let mut member_gpus = target.members.iter().flat_map(|member| &member.gpus);
            member_gpus.any(|member_gpu| member_gpu.index == gpu.index)
        };
        let is_taking = |pid: u32| {
            let gpus = snapshot.gpus.iter().filter(is_theirs);
            gpus.flat_map(|gpu| gpu.processes.iter().flatten()).any(|row| row.pid == pid)
        };
        let is_successor = |candidate: &ListedProcess, control: &mut dyn ProcessControl| {
            let shown = snapshot.same_process(candidate.pid, candidate.start_ticks);
            let manager = shown.and_then(manager);
            let is_managed = |former: &FormerPlace| manager.is_some() && former.manager == manager;
            let is_sibling = |former: &FormerPlace| {
                former.facts.ppid.is_some() && former.facts.ppid == candidate.ppid
            };
            let allocates = shown.is_some() && is_taking(candidate.pid);
            // Reading the facts of every new process would be slow.
            let may_succeed = |former: &FormerPlace| {
                allocates || former.is_kernel || is_sibling(former) || is_managed(former)
            };
            if !self.places.iter().any(may_succeed) {
                return false;
            }
            let facts = control.read_guarded(candidate.pid);
            let Some(facts) = facts.filter(|facts| facts.start_ticks == candidate.start_ticks)
            else {
                return false;
            };
            self.places.iter().any(|former| {
                let (was, is_sibling) = (&former.facts, is_sibling(former));
                let has_command = was.command.is_some() && was.command == facts.command;
                let has_uid = was.uid == facts.uid;
                let has_session =
                    facts.session == Some(candidate.pid) || facts.session == was.session;
                let started_again = former.is_kernel
                    || allocates && has_uid
                    || is_sibling && (!former.is_orphan || has_uid && has_session);
                let took_place = is_sibling && !former.is_orphan || is_managed(former);
                has_command && started_again || allocates && took_place
            })
        };
        if let Some(candidate) = new.iter().find(|candidate| is_successor(candidate, &mut *control))
        {
            return Some(candidate.pid);
        }
        // A supervisor can allocate the memory itself.
        let supervisors =
            self.places.iter().filter(|former| !former.is_orphan && !former.parent_holds);
        let mut supervisors = supervisors.filter_map(|former| former.facts.ppid);
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
