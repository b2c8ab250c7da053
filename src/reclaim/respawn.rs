//! Finds what takes the place of an ended process: what its parent, notebook server, service or container
//! starts again.
//!
//! It compares the processes from before the first signal with those that are new since. A new process with the
//! ended one's command is its successor. One with another command is, if NVML lists it on one of the target's
//! GPUs and the same parent, service or container started it. Nothing is sent to a successor, because it is in
//! no plan.
//!
//! So is a process of the same user with the ended one's command that takes memory on one of the target's GPUs,
//! wherever it is: a process that forks on SIGTERM, or restarts itself in its own session, leaves its place.
//!
//! An orphan's parent only adopted it, and adopts others: of those, only processes of the same user count, in
//! their own session or in that of the ended process. What an ended login left is in that login's session.

use std::sync::Arc;

use super::process_control::ProcessControl;
use super::target::Target;
use crate::host::{Guarded, ListedProcess, parse_kernel};
use crate::model::{Gpu, Process, Snapshot};

/// The place of a process before it was ended.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FormerPlace {
    ppid: Option<u32>,
    /// Its parent only adopted it; that parent's other children do not follow it.
    is_orphan: bool,
    session: Option<u32>,
    uid: Option<u32>,
    /// Its parent held a GPU by itself.
    parent_holds: bool,
    command: Option<Arc<[Arc<str>]>>,
    /// The command is that of one notebook kernel, regardless of its parent: a server may use a different wrapper
    /// each time.
    is_kernel: bool,
    /// Its service or container.
    manager: Option<Arc<str>>,
}

/// The places of a target's members.
#[derive(Debug, Default)]
pub(super) struct Respawn {
    places: Vec<FormerPlace>,
}

impl Respawn {
    /// Remembers the place of a living member.
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

    /// Finds the process that took a member's place, among those that are new since.
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
        // A supervisor may take the memory itself.
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
