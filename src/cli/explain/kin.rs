//! What belongs together with a process, and who started it.

use crate::model::family::{self, Tie};
use crate::model::{Process, Snapshot};
use crate::report::explain::Kin;

use super::subject::holder;

/// The other members of its family.
pub(super) fn of(process: &Process, snapshot: &Snapshot) -> Kin {
    let families = family::families(snapshot);
    let Some(family) = family::member(&families, process.pid) else {
        return Kin {
            launcher: process.parent.clone(),
            ..Kin::default()
        };
    };
    let others = family.members.iter().filter(|pid| **pid != process.pid);
    Kin {
        ties: family
            .ties
            .iter()
            .map(|tie| words(*tie).to_owned())
            .collect(),
        launcher: family.launcher.clone(),
        members: others.map(|&pid| holder(pid, snapshot)).collect(),
    }
}

fn words(tie: Tie) -> &'static str {
    match tie {
        Tie::ProcessGroup => "one process group",
        Tie::Session => "one session",
        Tie::Cgroup => "one job, service or container",
        Tie::Run => "ranks of one run",
        Tie::Parent => "one started the other",
        Tie::GpuFiles => "they hold the GPU of one that died",
    }
}
