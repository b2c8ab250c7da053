//! What is left of a process whose first thread has ended: /proc shows its files and memory through another thread,
//! in `/proc/PID/task/TID`, which has what the process's own folder has (proc_pid_task(5)).

use std::ffi::CString;

use rustix::fs::{Mode, OFlags, openat};

use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, Stat, parse_stat};

/// So many threads are looked at.
const MOST: usize = 1024;

/// A thread that has not ended.
#[derive(Debug)]
pub(in crate::host) struct LeftThread {
    pub folder: Folder,
    /// Its stat file.
    pub content: Vec<u8>,
}

/// A thread that goes on in a process whose first one has ended: one that a signal reaches, if there is any. `None`
/// where the first thread lives or there is no other. `stat` was read through `process`.
pub(in crate::host) fn left_thread(process: &Folder, stat: &Stat<'_>) -> Option<LeftThread> {
    if stat.state != 'Z' || stat.threads.is_none_or(|count| count < 2) {
        return None;
    }
    let tasks = process.folder(c"task").ok()?;
    let mut names: Vec<CString> = Vec::new();
    let listed = tasks.names(|name| {
        names.push(name.to_owned());
        names.len() < MOST
    });
    listed.ok()?;
    let mut left = None;
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
            Some('D') => left = Some(LeftThread { folder, content }),
            Some(_) => return Some(LeftThread { folder, content }),
        }
    }
    left
}
