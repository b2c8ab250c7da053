//! Finds the successor of an ended process, which its parent, notebook server, service or container started.
//!
//! Candidates are processes that did not exist before the first signal. A candidate with the ended process's
//! command is its successor. With another command it must be listed by NVML on one of the target's GPUs, and
//! started by the same parent, service or container. A successor is not in the plan, so it is never signalled.
//!
//! A process with the same user and command that allocates memory on one of the target's GPUs counts, wherever it
//! runs. It may have forked on SIGTERM, or restarted itself in a session of its own.
//!
//! An orphan's adoptive parent also adopts unrelated processes. Among its children only those of the same user
//! count, in their own session or in the ended process's session. Leftovers of an ended login are in that login's
//! session.

use std::sync::Arc;

use super::process_control::ProcessControl;
use super::target::Target;
use crate::host::{Guarded, ListedProcess, parse_kernel};
use crate::model::{Gpu, Process, Snapshot};

/// The relations of a process before it was ended.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FormerPlace {
    ppid: Option<u32>,
    /// Its parent only adopted it, so that parent's other children are no successors.
    is_orphan: bool,
    session: Option<u32>,
    uid: Option<u32>,
    /// The parent itself held a GPU.
    parent_holds: bool,
    command: Option<Arc<[Arc<str>]>>,
    /// The command belongs to one notebook kernel, whatever its parent. A server may use a different wrapper each
    /// time.
    is_kernel: bool,
    manager: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub(super) struct Respawn {
    places: Vec<FormerPlace>,
}

impl Respawn {
    /// Records the relations of a living member.
    pub fn expect(&mut self, pid: u32, facts: &Guarded, snapshot: &Snapshot) {
        let shown = snapshot.process(pid);
        let shown = shown.filter(|it| it.start_ticks == Some(facts.start_ticks));
        let is_orphan = shown.is_none_or(|it| it.parent_is_reaper != Some(false));
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

    /// Finds a member's successor among the new processes.
    pub fn find(
        &self,
        target: &Target,
        new: &[&ListedProcess],
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Option<u32> {
        let is_taking = |pid: u32| {
            let is_theirs = |gpu: &&Gpu| {
                let mut on = target.members.iter().flat_map(|member| &member.gpus);
                on.any(|on| on.index == gpu.index)
            };
            let gpus = snapshot.gpus.iter().filter(is_theirs);
            let mut rows = gpus.flat_map(|gpu| &gpu.processes).flatten();
            rows.any(|row| row.pid == pid)
        };
        for it in new {
            let is_sibling = |place: &&FormerPlace| place.ppid.is_some() && place.ppid == it.ppid;
            let shown = snapshot.process(it.pid);
            let shown = shown.filter(|shown| shown.start_ticks == Some(it.start_ticks));
            let manager = shown.and_then(manager);
            let is_managed = |place: &&FormerPlace| manager.is_some() && place.manager == manager;
            let kernels = || self.places.iter().filter(|place| place.is_kernel);
            let siblings = || self.places.iter().filter(is_sibling);
            let takes = shown.is_some() && is_taking(it.pid);
            if !takes
                && siblings().next().is_none()
                && kernels().next().is_none()
                && !self.places.iter().any(|place| is_managed(&place))
            {
                continue;
            }
            let facts = control.read_guarded(it.pid);
            let Some(facts) = facts.filter(|facts| facts.start_ticks == it.start_ticks) else {
                continue;
            };
            let is_same =
                |place: &&FormerPlace| place.command.is_some() && place.command == facts.command;
            let started_it = |place: &&FormerPlace| {
                !place.is_orphan
                    || place.uid == facts.uid
                        && (facts.session == Some(it.pid) || facts.session == place.session)
            };
            let siblings_like_it = siblings().filter(started_it);
            let movers = self.places.iter().filter(|it| takes && it.uid == facts.uid);
            if siblings_like_it.chain(kernels()).chain(movers).any(|it| is_same(&it)) {
                return Some(it.pid);
            }
            let has_place = siblings().any(|place| !place.is_orphan)
                || self.places.iter().any(|place| is_managed(&place));
            if has_place && takes {
                return Some(it.pid);
            }
        }
        // A supervisor may allocate the memory itself.
        let supervisors = self.places.iter().filter(|it| !it.is_orphan && !it.parent_holds);
        let mut supervisors = supervisors.filter_map(|place| place.ppid);
        supervisors.find(|&ppid| is_taking(ppid))
    }
}

/// The service or container that restarts a process.
fn manager(process: &Process) -> Option<Arc<str>> {
    let container = process.container.as_deref().and_then(|it| it.id.clone());
    let unit = process.systemd_unit.as_ref();
    let is_service = |unit: &&Arc<str>| unit.ends_with(".service") && !unit.starts_with("user@");
    container.or_else(|| unit.filter(is_service).cloned())
}

fn is_listed(pid: u32, snapshot: &Snapshot) -> bool {
    let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
    rows.flatten().any(|row| row.pid == pid)
}
