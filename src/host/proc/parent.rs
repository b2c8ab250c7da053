//! Who started a process: its parent, as long as that has not merely adopted it.

use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;

use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::model::Process;
use crate::model::process::Parent;

/// The parents that were read in one sample: several processes have the same.
#[derive(Debug, Default)]
pub(in crate::host) struct Parents(HashMap<u32, Option<Arc<Parent>>>);

impl Parents {
    pub(in crate::host) fn begin(&mut self) {
        self.0.clear();
    }

    /// Notes who started a process, where that is still its parent and has not only adopted it. Who
    /// was seen to be its parent before stays noted: that is who started it.
    pub(in crate::host) fn note(
        &mut self,
        process: &mut Process,
        proc: &Path,
        content: &mut Vec<u8>,
    ) {
        let Some(ppid) = process.ppid else {
            return;
        };
        if process.parent_is_reaper != Some(false) {
            return;
        }
        let read = || read_parent(proc, ppid, content).map(Arc::new);
        let parent = self.0.entry(ppid).or_insert_with(read);
        // One that started later was given the number of a parent that has died meanwhile.
        let is_older = |parent: &&Arc<Parent>| parent.start_ticks <= process.start_ticks;
        if let Some(parent) = parent.as_ref().filter(is_older)
            && process.parent.as_ref() != Some(parent)
        {
            process.parent = Some(Arc::clone(parent));
        }
    }
}

/// What is known of the process with this pid, to name it as a parent. `None` where there is none,
/// or it is not in sight. `content` is what files are read into.
///
/// argv is left out where reading it might not return: see `entry`.
fn read_parent(proc: &Path, pid: u32, content: &mut Vec<u8>) -> Option<Parent> {
    let folder = Folder::open(proc, pid).ok()?;
    folder.read(c"stat", content, STAT_BYTES).ok()?;
    let stat = parse_stat(content)?;
    let has_memory = stat.state != 'D' && !stat.is_exiting && !stat.is_kernel_thread;
    let mut parent = Parent {
        pid,
        start_ticks: Some(stat.start_ticks),
        comm: Some(String::from_utf8_lossy(stat.comm).into()),
        command: None,
    };
    if has_memory {
        // One byte more than is kept tells whether there is more.
        let read = folder.read(c"cmdline", content, CMDLINE_BYTES + 1);
        parent.command = read.ok().and_then(|()| parse_cmdline(content));
    }
    Some(parent)
}
