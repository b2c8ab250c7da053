//! Finds who started a process: its parent, unless that has only adopted it.

use std::path::Path;
use std::sync::Arc;

use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::folder::Folder;
use crate::host::proc::reaper::adopts;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::model::Process;
use crate::model::process::Parent;
use crate::model::server_name::is_worker_command;

/// What was read of a parent, for its children.
#[derive(Clone, Debug)]
pub(in crate::host) struct ReadParent {
    /// Whether it adopts orphans.
    pub adopts: Option<bool>,
    /// Set unless it adopts orphans, and so may not have started them.
    parent: Option<Arc<Parent>>,
}

impl ReadParent {
    pub(in crate::host) fn read(pid: u32, proc: &Path, content: &mut Vec<u8>) -> Self {
        Self {
            adopts: adopts(pid, proc, content),
            parent: read_parent(proc, pid, content).map(Arc::new),
        }
    }

    /// Records the parent as starter, unless it adopts orphans. A recorded starter stays after the parent has
    /// changed.
    pub(in crate::host) fn note(&self, process: &mut Process) {
        let is_starter = process.parent_is_reaper == Some(false);
        // A parent that started later has the reused pid of the real one.
        let parent = self.parent.as_ref().filter(|it| it.start_ticks <= process.start_ticks);
        if let Some(parent) = parent.filter(|_| is_starter)
            && process.parent.as_deref() != Some(&**parent)
        {
            process.parent = Some(Arc::clone(parent));
        }
    }
}

/// Describes the process with this pid as a parent. `None` if it does not exist or is not visible. `content` is
/// a buffer.
///
/// argv is left out if reading it might block; see `entry`.
fn read_parent(proc: &Path, pid: u32, content: &mut Vec<u8>) -> Option<Parent> {
    let folder = Folder::open(proc, pid).ok()?;
    folder.read(c"stat", content, STAT_BYTES).ok()?;
    let stat = parse_stat(content)?;
    let (has_memory, stat_ppid) = (stat.has_memory(), stat.ppid);
    let mut parent = Parent {
        pid,
        start_ticks: Some(stat.start_ticks),
        comm: Some(String::from_utf8_lossy(stat.comm).into()),
        command: None,
        ppid: None,
        parent_is_reaper: None,
    };
    if has_memory {
        // One byte more than is kept shows whether there is more.
        let read = folder.read(c"cmdline", content, CMDLINE_BYTES + 1);
        parent.command = read.ok().and_then(|()| parse_cmdline(content));
    }
    // The parent is an engine and itself a server's worker: engine and workers are orphaned together.
    if let Some(command) = &parent.command
        && is_worker_command(command)
    {
        parent.ppid = stat_ppid;
        parent.parent_is_reaper = stat_ppid.and_then(|pid| adopts(pid, proc, content));
    }
    Some(parent)
}
