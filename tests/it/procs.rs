//! Helpers that read /proc and send signals.

use std::fs;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

/// Sends a signal, unless the process has exited.
pub fn send(to: u32, signal: Signal) {
    let _ = kill_process(pid(to), signal);
}

pub fn kill_group(leader: u32) {
    let _ = kill_process_group(pid(leader), Signal::KILL);
}

/// Returns the state letter from /proc, or `None` if the process does not exist.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns whether a process exists and is not a zombie.
pub fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Returns the children of all threads of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let text: String = lists.collect();
    text.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut index = 0;
    while let Some(&pid) = found.get(index) {
        found.extend(children(pid));
        index += 1;
    }
    found
}

/// Returns the command line with spaces between the arguments, or an empty string if it cannot be read.
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
