//! Finds a live thread of a process whose first thread has exited. The files and memory of the process are then
//! visible only in the folder `/proc/PID/task/TID` of another thread (proc_pid_task(5)).

use std::ffi::CString;

use rustix::fs::{Mode, OFlags, openat};

use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, Stat, parse_stat};

const MAX_THREADS: usize = 1024;

#[derive(Debug)]
pub(in crate::host) struct RemainingThread {
    pub folder: Folder,
    pub content: Vec<u8>,
}

/// Returns a live thread of a process whose first thread has exited, preferably one that is not in state D. Returns
/// `None` if the first thread is alive, if all threads have exited, or if the threads cannot be read. `stat` must
/// have been read through `process`.
pub(in crate::host) fn find_remaining_thread(
    process: &Folder,
    stat: &Stat<'_>,
) -> Option<RemainingThread> {
    if stat.state != 'Z' || stat.threads.is_none_or(|count| count < 2) {
        return None;
    }
    let tasks = process.folder(c"task").ok()?;
    let mut names: Vec<CString> = Vec::new();
    let listed = tasks.names(|name| {
        names.push(name.to_owned());
        names.len() < MAX_THREADS
    });
    listed.ok()?;
    let mut blocked = None;
    for name in names {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = openat(&tasks, &name, flags, Mode::empty()).map(Folder::from) else {
            continue;
        };
        let mut content = Vec::new();
        if folder.read(c"stat", &mut content, STAT_BYTES).is_err() {
            continue;
        }
        let state = parse_stat(&content).map(|stat| stat.state);
        match state {
            None | Some('Z' | 'X') => {}
            Some('D') => blocked = Some(RemainingThread { folder, content }),
            Some(_) => return Some(RemainingThread { folder, content }),
        }
    }
    blocked
}
