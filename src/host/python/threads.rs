//! What the threads of a process do: which of them runs, or has run since the last look.

use std::collections::HashMap;

use super::super::proc::folder::Folder;
use super::super::proc::stat::{STAT_BYTES, parse_stat};
use super::super::proc::status::parse_status;

/// More threads than this are not looked at.
const MOST_THREADS: usize = 4096;
const STATUS_BYTES: usize = 16 << 10;

/// A thread, as the kernel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadActivity {
    /// R S D T t Z X.
    pub state: char,
    /// CPU time used, in clock ticks.
    cpu_ticks: u64,
    /// How often it gave the CPU up, or was taken off it.
    switches: u64,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
}

impl ThreadActivity {
    /// Whether it runs, or has run since it was `before`.
    pub fn has_run_since(&self, before: &Self) -> bool {
        self.state == 'R' || (self.cpu_ticks, self.switches) != (before.cpu_ticks, before.switches)
    }
}

/// The threads of a process by their numbers in its own pid namespace.
pub type ThreadActivities = HashMap<u32, ThreadActivity>;

/// Looks at the threads of a process; those that end meanwhile are left out.
pub fn read_tasks(process: &Folder) -> ThreadActivities {
    let Ok(folder) = process.folder(c"task") else {
        return ThreadActivities::new();
    };
    let mut numbers: Vec<u32> = Vec::new();
    let listed = folder.names(|name| {
        numbers.extend(name.to_str().ok().and_then(|name| name.parse::<u32>().ok()));
        numbers.len() < MOST_THREADS
    });
    if listed.is_err() {
        return ThreadActivities::new();
    }
    let mut content = Vec::new();
    let tasks = numbers.into_iter().filter_map(|number| {
        let mut read = |name: &str, limit| {
            let path = std::ffi::CString::new(format!("{number}/{name}")).ok()?;
            folder.read(&path, &mut content, limit).ok()?;
            Some(content.clone())
        };
        let stat = read("stat", STAT_BYTES)?;
        let stat = parse_stat(&stat).filter(|stat| !stat.is_released)?;
        let status = read("status", STATUS_BYTES)?;
        let task = ThreadActivity {
            state: stat.state,
            cpu_ticks: stat.cpu_ticks,
            switches: switches(&status),
            start_ticks: stat.start_ticks,
        };
        let inner = parse_status(&status).innermost_pid;
        Some((inner.unwrap_or(number), task))
    });
    tasks.collect()
}

/// `voluntary_ctxt_switches` and `nonvoluntary_ctxt_switches`.
fn switches(status: &[u8]) -> u64 {
    let lines = status.split(|&byte| byte == b'\n');
    let counts = lines.filter_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let (name, count) = line.split_once(":\t")?;
        name.ends_with("voluntary_ctxt_switches").then(|| count.parse::<u64>().ok())?
    });
    counts.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_runs_and_one_that_sleeps_does_not() {
        use std::sync::mpsc::channel;
        let (number_sender, number) = channel();
        let (end, ended) = channel::<()>();
        let sleeper = std::thread::spawn(move || {
            number_sender.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        let number = number.recv().unwrap().as_raw_nonzero().get() as u32;
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let folder = Folder::own("/proc".as_ref()).unwrap();
        let asleep = || {
            let tasks = read_tasks(&folder);
            tasks.get(&number).copied().filter(|task| task.state == 'S')
        };
        let first = std::iter::repeat_with(asleep).flatten().next().unwrap();
        assert!(!asleep().unwrap().has_run_since(&first));
        let mine = read_tasks(&folder)[&own];
        assert!(mine.has_run_since(&mine), "it runs");
        drop(end);
        sleeper.join().unwrap();
    }

    #[test]
    fn switches_of_both_kinds_count() {
        let status = b"Name:\tx\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(status), 42);
        assert_eq!(switches(b"voluntary_ctxt_switches:\tx\n\xff"), 0);
    }
}
