//! Processes as Linux shows them, and signals to them.

use std::fs;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

/// Sends a signal; who has gone gets none.
pub fn send(to: u32, signal: Signal) {
    let _ = kill_process(pid(to), signal);
}

/// Kills a process group, whoever is left of it.
pub fn kill_group(leader: u32) {
    let _ = kill_process_group(pid(leader), Signal::KILL);
}

/// R, S, D, T, Z…; `None` where there is no such process.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process has not ended.
pub fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Whom any of a process's threads has started.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists =
        threads.map(|it| fs::read_to_string(it.path().join("children")).unwrap_or_default());
    let text: String = lists.collect();
    text.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        found.extend(children(pid));
        at += 1;
    }
    found
}

/// A process's argv, with blanks between; empty where there is none.
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
