//! Which process descends from which, of all on the machine, and what the descendants of the watched ones
//! use of the CPU.
//!
//! A process that waits for its children's work (rollouts, loaders, compilers) does nothing itself; so what
//! they do counts with it. Who is whose child changes only when a process appears or a parent dies, and
//! `holders` lists /proc every five seconds anyway: at such a listing one stat file is read for each process
//! that is new or has lost its parent. A sample costs one stat file for each living descendant of a watched
//! process that is not watched itself: 5 µs, a millisecond for the loaders of a machine of eight GPUs.
//!
//! What a child used that has ended meanwhile is not lost: whoever waited for it has that time in its own
//! stat file (fields 16 and 17). Only where no process waits, because the parent ignores SIGCHLD, does the
//! kernel drop it; what was seen of such a child while it lived counts.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet};

use crate::host::gpu::mapped_devices::ProcEntry;
use crate::host::proc::folder::Folder;
use crate::host::proc::stat::{STAT_BYTES, Stat, parse_stat};
use crate::model::Process;
use crate::model::process::Descendants;

/// So many descendants of one process are looked at.
const MOST: usize = 4096;

/// So many generations are climbed.
const MOST_ANCESTORS: usize = 16;

/// Everybody, as parents and children.
#[derive(Debug)]
pub(in crate::host) struct Tree {
    ticks_per_second: u64,
    nodes: HashMap<u32, Node>,
    /// By parent, of those that are not the kernel's own.
    children: HashMap<u32, Vec<u32>>,
    /// What the watched processes and their descendants had used at the last look, by pid.
    used: HashMap<u32, Used>,
    /// By the watched process's pid.
    sums: HashMap<u32, Sum>,
    /// What was counted of those who have ended since the last look, by who waited for them.
    counted: HashMap<u32, u64>,
    /// As much of it as was not yet waited for.
    late: HashMap<u32, u64>,
    looked_ns: Option<u64>,
}

/// What of a process tells where it belongs.
#[derive(Clone, Copy, Debug)]
struct Node {
    inode: u64,
    start_ticks: u64,
    ppid: Option<u32>,
    is_kernel: bool,
}

/// What a process had used.
#[derive(Clone, Copy, Debug)]
struct Used {
    start_ticks: u64,
    ppid: Option<u32>,
    own_ticks: u64,
    waited_ticks: u64,
}

impl Used {
    fn new(stat: &Stat<'_>) -> Self {
        Self {
            start_ticks: stat.start_ticks,
            ppid: stat.ppid,
            own_ticks: stat.cpu_ticks,
            waited_ticks: stat.waited_ticks,
        }
    }
}

/// What the descendants of a process came to.
#[derive(Clone, Debug)]
struct Sum {
    start_ticks: u64,
    ticks: u64,
    result: Arc<Descendants>,
}

impl Tree {
    pub(in crate::host) fn new() -> Self {
        Self {
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            nodes: HashMap::new(),
            children: HashMap::new(),
            used: HashMap::new(),
            sums: HashMap::new(),
            counted: HashMap::new(),
            late: HashMap::new(),
            looked_ns: None,
        }
    }

    /// Takes in who is there now: `listing` is sorted by pid. `read` are those whose stat was read after the
    /// listing and need not be read again; nobody, where that is not known to be so.
    pub(in crate::host) fn update(
        &mut self,
        proc: &Folder,
        listing: &[ProcEntry],
        read: &[Process],
    ) {
        let read: HashMap<u32, &Process> = read.iter().map(|it| (it.pid, it)).collect();
        let mut before = std::mem::take(&mut self.nodes);
        let is_there = |pid: u32, node: &Node| {
            let at = listing.binary_search_by_key(&pid, |it| it.pid);
            at.is_ok_and(|at| listing[at].inode == node.inode)
        };
        // The children of those who are gone have another parent now.
        let gone: HashSet<u32> = before
            .iter()
            .filter(|(pid, node)| !is_there(**pid, node))
            .map(|(&pid, _)| pid)
            .collect();
        self.nodes.reserve(listing.len());
        let mut unread = Vec::new();
        for &listed in listing {
            let known = before.remove(&listed.pid).filter(|node| {
                node.inode == listed.inode && !node.ppid.is_some_and(|ppid| gone.contains(&ppid))
            });
            let node = known.or_else(|| {
                let process = read.get(&listed.pid)?;
                Some(Node {
                    inode: listed.inode,
                    start_ticks: process.start_ticks?,
                    ppid: process.ppid,
                    // These are never watched.
                    is_kernel: false,
                })
            });
            match node {
                Some(node) => drop(self.nodes.insert(listed.pid, node)),
                None => unread.push(listed),
            }
        }
        self.nodes.extend(read_nodes(proc, &unread));
        self.children.clear();
        for (&pid, node) in &self.nodes {
            if let Some(ppid) = node.ppid.filter(|_| !node.is_kernel) {
                self.children.entry(ppid).or_default().push(pid);
            }
        }
    }

    /// Whether nobody has been taken in.
    pub(in crate::host) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether this is one of the kernel's own; not known is no.
    pub(in crate::host) fn is_kernels(&self, listed: ProcEntry) -> bool {
        let node = self.nodes.get(&listed.pid);
        node.is_some_and(|node| node.is_kernel && node.inode == listed.inode)
    }

    /// Whether the process was there when /proc was last listed.
    pub(in crate::host) fn knows(&self, process: &Process) -> bool {
        let node = self.nodes.get(&process.pid);
        node.is_some_and(|node| process.start_ticks == Some(node.start_ticks))
    }

    /// The descendants of a process, its children first; bounded in number.
    pub(in crate::host) fn descendants(&self, pid: u32) -> Vec<u32> {
        let mut found: Vec<u32> = Vec::new();
        // No process is its own ancestor; where numbers were given anew since the listing it looks so.
        let mut seen = HashSet::from_iter([pid]);
        let mut next = Some(pid);
        let mut at = 0;
        while let Some(parent) = next {
            let children = self.children.get(&parent).into_iter().flatten().copied();
            found.extend(children.filter(|&child| seen.insert(child)));
            next = found.get(at).copied().filter(|_| found.len() < MOST);
            at += 1;
        }
        found
    }

    /// Its parent, that one's parent, and so on, below the first process; bounded in number.
    pub(in crate::host) fn ancestors(&self, pid: u32) -> Vec<u32> {
        let parent = |pid: u32| self.nodes.get(&pid)?.ppid.filter(|&ppid| ppid > 1);
        std::iter::successors(parent(pid), |&pid| parent(pid)).take(MOST_ANCESTORS).collect()
    }

    /// Tells each process what its descendants do. `watched` answers what a process with this pid had used
    /// itself and waited for at this sample, in clock ticks, where that has been read. All is left unknown
    /// where /proc cannot be read or was never listed.
    pub(in crate::host) fn fill(
        &mut self,
        proc: Option<&Folder>,
        processes: &mut [Process],
        watched: impl Fn(u32) -> Option<(u64, u64)>,
        now_ns: u64,
    ) {
        match proc.filter(|_| !self.nodes.is_empty()) {
            Some(proc) => self.sum(proc, processes, watched, now_ns),
            None => self.sums.clear(),
        }
        for process in processes.iter_mut() {
            let Some(start_ticks) = process.start_ticks else {
                continue;
            };
            let sum = self.sums.get(&process.pid);
            let sum = sum.filter(|sum| sum.start_ticks == start_ticks);
            process.descendants = Some(sum.map(|sum| Arc::clone(&sum.result)).unwrap_or_default());
        }
    }

    fn sum(
        &mut self,
        proc: &Folder,
        processes: &[Process],
        watched: impl Fn(u32) -> Option<(u64, u64)>,
        now_ns: u64,
    ) {
        let elapsed_ns = self.looked_ns.map(|then| now_ns.saturating_sub(then));
        self.looked_ns = Some(now_ns);
        let mut content = [0; STAT_BYTES];
        let mut used: HashMap<u32, Used> = HashMap::with_capacity(processes.len());
        for process in processes {
            if let (Some(start_ticks), Some((own_ticks, waited_ticks))) =
                (process.start_ticks, watched(process.pid))
            {
                used.insert(
                    process.pid,
                    Used { start_ticks, ppid: process.ppid, own_ticks, waited_ticks },
                );
            }
        }
        let is_watched: HashSet<u32> = used.keys().copied().collect();
        let mut families: Vec<(u32, u64, Vec<u32>)> = Vec::with_capacity(processes.len());
        for process in processes {
            let Some(start_ticks) = process.start_ticks.filter(|_| self.knows(process)) else {
                continue;
            };
            if !is_watched.contains(&process.pid) {
                continue;
            }
            let below = self.descendants(process.pid);
            for &pid in &below {
                if !used.contains_key(&pid)
                    && let Some(stat) = read_stat(proc, pid, &mut content)
                {
                    used.insert(pid, Used::new(&stat));
                }
            }
            families.push((process.pid, start_ticks, below));
        }
        self.settle(&used, &families);
        let mut sums = HashMap::with_capacity(families.len());
        for (pid, start_ticks, below) in families {
            let before = self.sums.get(&pid);
            let before = before.filter(|sum| sum.start_ticks == start_ticks);
            let ticks = match before {
                Some(_) => self.newly_used(pid, &below, &used),
                None => all_used(pid, &below, &used),
            };
            let total = before.map_or(0, |sum| sum.ticks).saturating_add(ticks);
            let seconds = |ticks: u64| ticks as f64 / self.ticks_per_second as f64;
            let percent = before.and(elapsed_ns).filter(|&ns| ns > 0);
            let listed = below.iter().copied().filter(|pid| is_watched.contains(pid));
            let mut listed: Vec<u32> = listed.collect();
            listed.sort_unstable();
            let summed = Descendants {
                count: u32::try_from(below.len()).ok(),
                cpu_percent: percent
                    .map(|ns| hundredths(100.0 * seconds(ticks) / (ns as f64 / 1e9))),
                cpu_seconds: Some(hundredths(seconds(total))),
                listed,
            };
            let summed = match before {
                Some(sum) if *sum.result == summed => Arc::clone(&sum.result),
                _ => Arc::new(summed),
            };
            let ticks = total;
            sums.insert(pid, Sum { start_ticks, ticks, result: summed });
        }
        self.used = used;
        self.sums = sums;
    }

    /// Finds out who has ended since the last look, and whose waited-for time has what was seen of them.
    fn settle(&mut self, now: &HashMap<u32, Used>, families: &[(u32, u64, Vec<u32>)]) {
        let is_same = |now: Option<&Used>, then: &Used| {
            now.is_some_and(|now| now.start_ticks == then.start_ticks)
        };
        let ended = self.used.iter().filter(|(pid, it)| !is_same(now.get(pid), it));
        let ended: Vec<(u32, Used)> = ended.map(|(&pid, it)| (pid, *it)).collect();
        let mut waited: HashMap<u32, u64> = HashMap::new();
        for (pid, it) in ended {
            // One that was adopted by somebody else is no descendant any more, and no process waited for it.
            let node = self.nodes.get(&pid);
            let has_left = node.is_some_and(|node| node.start_ticks == it.start_ticks)
                && !families.iter().any(|(_, _, below)| below.contains(&pid));
            if has_left {
                continue;
            }
            let mut heir = it.ppid;
            for _ in 0..MOST_ANCESTORS {
                let Some((pid, above)) = heir.and_then(|pid| Some((pid, self.used.get(&pid)?)))
                else {
                    break;
                };
                if is_same(now.get(&pid), above) {
                    let sum = waited.entry(pid).or_default();
                    *sum = sum.saturating_add(it.own_ticks.saturating_add(it.waited_ticks));
                    break;
                }
                heir = above.ppid;
            }
        }
        // One that ended while its parent had been read and it had not is in what that waits for next time.
        let late = std::mem::take(&mut self.late);
        self.counted = waited.clone();
        for (pid, ticks) in late {
            *self.counted.entry(pid).or_default() += ticks;
        }
        for (pid, ticks) in waited {
            if let (Some(now), Some(before)) = (now.get(&pid), self.used.get(&pid)) {
                let newly = now.waited_ticks.saturating_sub(before.waited_ticks);
                if newly < ticks {
                    self.late.insert(pid, ticks - newly);
                }
            }
        }
    }

    /// What the descendants of a process used since the last look, and what those of their children used
    /// that have ended since.
    fn newly_used(&self, root: u32, below: &[u32], now: &HashMap<u32, Used>) -> u64 {
        let mut ticks = 0u64;
        for &pid in below.iter().chain([&root]) {
            let Some(it) = now.get(&pid) else {
                continue;
            };
            let before = self.used.get(&pid);
            let before = before.filter(|before| before.start_ticks == it.start_ticks);
            if pid != root {
                let own_before = before.map_or(0, |it| it.own_ticks);
                ticks = ticks.saturating_add(it.own_ticks.saturating_sub(own_before));
            }
            // What was seen of those who have ended since was counted.
            let counted = self.counted.get(&pid).copied().unwrap_or_default();
            let waited_before = before.map_or(0, |it| it.waited_ticks).saturating_add(counted);
            ticks = ticks.saturating_add(it.waited_ticks.saturating_sub(waited_before));
        }
        ticks
    }
}

/// All that the descendants of a process have used, as far as it is still told.
fn all_used(root: u32, below: &[u32], now: &HashMap<u32, Used>) -> u64 {
    let of = |pid: &u32| {
        let used = now.get(pid);
        used.map_or(0, |it| it.own_ticks.saturating_add(it.waited_ticks))
    };
    let waited = now.get(&root).map_or(0, |it| it.waited_ticks);
    below.iter().map(of).fold(waited, u64::saturating_add)
}

/// Reads who these are.
fn read_nodes(proc: &Folder, listed: &[ProcEntry]) -> Vec<(u32, Node)> {
    let mut content = [0; STAT_BYTES];
    let mut node = |listed: &ProcEntry| {
        let stat = read_stat(proc, listed.pid, &mut content)?;
        let node = Node {
            inode: listed.inode,
            start_ticks: stat.start_ticks,
            ppid: stat.ppid,
            is_kernel: stat.is_kernel_thread,
        };
        Some((listed.pid, node))
    };
    listed.iter().filter_map(&mut node).collect()
}

/// The stat of the process that has a pid now; `None` where there is none.
fn read_stat<'a>(proc: &Folder, pid: u32, content: &'a mut [u8; STAT_BYTES]) -> Option<Stat<'a>> {
    let length = proc.stat_of(pid, content).ok()?;
    parse_stat(&content[..length]).filter(|stat| !stat.is_released)
}

fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests;
