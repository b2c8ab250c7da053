//! Keeps the process tree of the machine, and measures the activity of each watched process's family, which consists
//! of its descendants and the other members of its process group.
//!
//! Some processes only wait for their children (rollouts, loaders, compilers) or for the other end of a pipe
//! (`prep.py | infer.py`). The work of the family is therefore attributed to the process. A shell with job control
//! starts each pipeline in a separate group, whereas a script and all processes that it starts usually form one
//! group. A process gets a new parent only when its parent exits. `holders` lists /proc every five seconds. After a
//! listing, this module reads the `stat` file of each unwatched process that is new or whose parent has exited. In each
//! sample, it reads the `stat` file of each family member that is not watched. The I/O of the family is read twice a
//! minute.
//!
//! The CPU time of an exited child is added to fields 16 and 17 in the `stat` file of the process that reaped the
//! child. If the parent ignores SIGCHLD, no process reaps the child, and the kernel drops the time. The value in the
//! last sample is used then.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet};

use crate::host::owner::above::STEP_DAEMON;
use crate::host::proc::folder::{Folder, ProcEntry};
use crate::host::proc::processes::hundredths;
use crate::host::proc::stat::{STAT_BYTES, Stat, Ticks, parse_stat};
use crate::host::proc::usage::{IO_BYTES, parse_io};
use crate::model::Process;
use crate::model::process::Descendants;

const MAX_DESCENDANTS: usize = 4096;

/// Maximum number of members read from a process group. Members with low pids come first. Without this limit, summing
/// the families of a thousand watched processes in a group would take quadratic time.
const MAX_PER_GROUP: usize = 64;

const MAX_ANCESTORS: usize = 16;

const IO_NS: u64 = 30_000_000_000;

#[derive(Debug)]
pub(in crate::host) struct Tree {
    ticks_per_second: u64,
    own_pid: u32,
    nodes: HashMap<u32, Node>,
    children: HashMap<u32, Vec<u32>>,
    groups: HashMap<u32, Vec<u32>>,
    used: HashMap<u32, Ticks>,
    sums: HashMap<u32, Sum>,
    sampled_ns: Option<u64>,
    io_sampled_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct Node {
    pub inode: u64,
    pub start_ticks: u64,
    pub ppid: Option<u32>,
    process_group: Option<u32>,
    pub is_kernel: bool,
    /// Values at `updated_ns`, the time at which the tree was updated with the node. They can change later.
    pub program: ProgramState,
    pub updated_ns: u64,
}

impl Node {
    pub(in crate::host) fn from_stat(inode: u64, stat: &Stat<'_>) -> Self {
        Self {
            inode,
            start_ticks: stat.start_ticks,
            ppid: stat.ppid,
            process_group: stat.process_group,
            is_kernel: stat.is_kernel_thread,
            program: ProgramState::from_stat(stat),
            updated_ns: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct WatchedUsage {
    pub(in crate::host) node: Node,
    pub ticks: Ticks,
    /// Bytes read and written according to `/proc/PID/io`, and when it was read.
    pub io_bytes: Option<u64>,
    pub io_read_ns: u64,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct ProgramState {
    /// Start address of the stack, which is different for each executed program, or 0 if it is hidden.
    pub start_stack: u64,
    pub has_memory: bool,
    pub is_step_daemon: bool,
}

impl ProgramState {
    pub(in crate::host) fn from_stat(stat: &Stat<'_>) -> Self {
        Self {
            start_stack: stat.start_stack,
            has_memory: stat.has_memory(),
            is_step_daemon: stat.comm == STEP_DAEMON.as_bytes(),
        }
    }
}

#[derive(Debug)]
struct Sum {
    start_ticks: u64,
    /// The process itself, its descendants, and the other members of its process group, in this order.
    family: Vec<u32>,
    ticks: u64,
    /// CPU time of exited members that was already counted, but was not yet included in the values of the processes
    /// that reap them. If a parent is read immediately before its child exits, the parent's next value includes this
    /// time.
    owed_ticks: u64,
    result: Arc<Descendants>,
}

impl Tree {
    pub(in crate::host) fn new() -> Self {
        Self {
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            own_pid: std::process::id(),
            nodes: HashMap::new(),
            children: HashMap::new(),
            groups: HashMap::new(),
            used: HashMap::new(),
            sums: HashMap::new(),
            sampled_ns: None,
            io_sampled_ns: None,
        }
    }

    /// Updates the tree from a listing of /proc. The nodes of processes that `watched` knows are not read again.
    pub(in crate::host) fn update(
        &mut self,
        proc: &Folder,
        listing: &[ProcEntry],
        watched: impl Fn(u32) -> Option<WatchedUsage>,
        now_ns: u64,
    ) {
        let old_nodes = std::mem::take(&mut self.nodes);
        let is_same = |pid: u32| {
            let node = old_nodes.get(&pid);
            let listed = node.map(|node| ProcEntry { pid, inode: node.inode });
            listed.is_some_and(|listed| listing.binary_search(&listed).is_ok())
        };
        let mut content = [0; STAT_BYTES];
        for &ProcEntry { pid, inode } in listing {
            let old_node = old_nodes.get(&pid).filter(|_| is_same(pid)).copied();
            // When a process exits, its children get a new parent, so their `stat` files are read again.
            let node = old_node.filter(|node| node.ppid.is_none_or(is_same)).or_else(|| {
                let known = watched(pid).map(|watched| watched.node);
                let node = known.filter(|known| known.inode == inode).or_else(|| {
                    let stat = read_stat(proc, pid, &mut content)?;
                    Some(Node::from_stat(inode, &stat))
                });
                node.map(|node| Node { updated_ns: now_ns, ..node })
            });
            self.nodes.extend(node.map(|node| (pid, node)));
        }
        self.children.clear();
        self.groups.clear();
        for (&pid, node) in self.nodes.iter().filter(|(_, node)| !node.is_kernel) {
            let memberships =
                [(&mut self.children, node.ppid), (&mut self.groups, node.process_group)];
            for (members, group) in memberships {
                members.entry(group.unwrap_or(0)).or_default().push(pid);
            }
        }
        for members in self.groups.values_mut() {
            members.sort_unstable();
            members.truncate(MAX_PER_GROUP);
        }
    }

    pub(in crate::host) fn nodes(&self) -> &HashMap<u32, Node> {
        &self.nodes
    }

    pub(in crate::host) fn is_current(&self, node: &Node) -> bool {
        self.sampled_ns == Some(node.updated_ns)
    }

    pub(in crate::host) fn knows(&self, process: &Process) -> bool {
        let node = self.nodes.get(&process.pid);
        node.is_some_and(|node| process.start_ticks == Some(node.start_ticks))
    }

    /// Returns the descendants of a process, or only a part of them if there are more than [`MAX_DESCENDANTS`].
    /// Parents precede their children.
    pub(in crate::host) fn descendants(&self, pid: u32) -> Vec<u32> {
        let mut descendants: Vec<u32> = Vec::new();
        if !self.children.contains_key(&pid) {
            return descendants;
        }
        // If pids have been reused, a process can appear to be its own ancestor.
        let mut visited = HashSet::from_iter([pid]);
        let mut next = Some(pid);
        let mut at = 0;
        while let Some(parent) = next {
            let children = self.children.get(&parent).into_iter().flatten().copied();
            descendants.extend(children.filter(|&child| visited.insert(child)));
            next = descendants.get(at).copied().filter(|_| descendants.len() < MAX_DESCENDANTS);
            at += 1;
        }
        descendants
    }

    /// Returns up to [`MAX_ANCESTORS`] ancestors of a process, nearest first. Process 1 is omitted.
    pub(in crate::host) fn ancestors(&self, pid: u32) -> Vec<u32> {
        let parent = |pid: u32| self.nodes.get(&pid)?.ppid.filter(|&ppid| ppid > 1);
        std::iter::successors(parent(pid), |&pid| parent(pid)).take(MAX_ANCESTORS).collect()
    }

    /// Fills in the activity of the family of each process. It is unknown if /proc cannot be read or was never listed.
    pub(in crate::host) fn fill(
        &mut self,
        proc: Option<&Folder>,
        processes: &mut [Process],
        watched: impl Fn(u32) -> Option<WatchedUsage>,
        now_ns: u64,
    ) {
        let last_ns = self.sampled_ns.replace(now_ns);
        let elapsed_ns = last_ns.map(|last_ns| now_ns.saturating_sub(last_ns));
        let is_watched: HashSet<u32> = processes
            .iter()
            .filter(|process| process.start_ticks.is_some())
            .map(|process| process.pid)
            .collect();
        let mut content = [0; STAT_BYTES];
        let mut used: HashMap<u32, Ticks> = HashMap::new();
        let mut families: Vec<(&mut Process, u64, Vec<u32>, usize)> = Vec::new();
        let is_io_due = self.io_sampled_ns.is_none_or(|at| now_ns.saturating_sub(at) >= IO_NS);
        let mut io_bytes: HashMap<u32, u64> = HashMap::new();
        let mut read_groups: HashSet<u32> = HashSet::default();
        for process in processes {
            let Some(start_ticks) = process.start_ticks else {
                continue;
            };
            process.descendants = Some(Arc::default());
            let Some(proc) = proc.filter(|_| self.knows(process)) else {
                continue;
            };
            let mut family = vec![process.pid];
            family.extend(self.descendants(process.pid));
            let count = family.len() - 1;
            let group = process.process_group.and_then(|group| self.groups.get(&group));
            let descendants = family.clone();
            // gpumem's work must not be attributed to a script that started gpumem.
            let is_other = |pid: &&u32| !descendants.contains(pid) && **pid != self.own_pid;
            let other_members = group.into_iter().flatten().filter(is_other);
            family.extend(other_members);
            // The other members of a group are read only for the first watched process of the group.
            let is_read = process.process_group.is_some_and(|group| !read_groups.insert(group));
            let unread = if is_read { &family[..=count] } else { &family[..] };
            for &pid in unread {
                let known = watched(pid).filter(|_| is_watched.contains(&pid));
                if !used.contains_key(&pid) {
                    let mut read =
                        || read_stat(proc, pid, &mut content).map(|stat| Ticks::from_stat(&stat));
                    let ticks = known.map(|known| known.ticks);
                    used.extend(ticks.or_else(&mut read).map(|ticks| (pid, ticks)));
                }
                let is_others = pid != process.pid || family.len() > count + 1;
                if is_io_due && is_others && !io_bytes.contains_key(&pid) {
                    // Files that were read since the last sample are not read again.
                    let is_current = |known: &WatchedUsage| Some(known.io_read_ns) > last_ns;
                    let known = known.filter(is_current).and_then(|known| known.io_bytes);
                    let bytes = known.or_else(|| read_io(proc, pid));
                    io_bytes.extend(bytes.map(|bytes| (pid, bytes)));
                }
            }
            families.push((process, start_ticks, family, count));
        }
        if is_io_due {
            self.io_sampled_ns = Some(now_ns);
        }
        let changes = self.changes(&used);
        let mut old_sums = std::mem::take(&mut self.sums);
        for (process, start_ticks, family, count) in families {
            let old_sum =
                old_sums.remove(&process.pid).filter(|sum| sum.start_ticks == start_ticks);
            let (ticks, owed_ticks) = self.newly_used(old_sum.as_ref(), &family, &used, &changes);
            let total = old_sum.as_ref().map_or(0, |sum| sum.ticks).saturating_add(ticks);
            let seconds = |ticks: u64| ticks as f64 / self.ticks_per_second as f64;
            let elapsed_ns = old_sum.as_ref().and(elapsed_ns).filter(|&ns| ns > 0);
            let other_members = || family.iter().skip(1);
            let io_sum = || other_members().filter_map(|pid| io_bytes.get(pid)).sum();
            let io_sum = is_io_due.then(io_sum);
            let descendants = other_members().take(count).copied();
            let mut listed: Vec<u32> = descendants.filter(|pid| is_watched.contains(pid)).collect();
            listed.sort_unstable();
            let result = Descendants {
                count: u32::try_from(count).ok(),
                cpu_percent: elapsed_ns
                    .map(|ns| hundredths(100.0 * seconds(ticks) / (ns as f64 / 1e9))),
                cpu_seconds: Some(hundredths(seconds(total))),
                io_bytes: io_sum.or(old_sum.as_ref().and_then(|sum| sum.result.io_bytes)),
                listed,
            };
            let unchanged = old_sum.map(|sum| sum.result).filter(|last| **last == result);
            let result = unchanged.unwrap_or_else(|| Arc::new(result));
            process.descendants = Some(Arc::clone(&result));
            let sum = Sum { start_ticks, family, ticks: total, owed_ticks, result };
            self.sums.insert(process.pid, sum);
        }
        self.used = used;
    }

    fn changes(&self, current: &HashMap<u32, Ticks>) -> Changes {
        let used = current.iter().filter_map(|(&pid, used)| {
            let last = self.used.get(&pid).filter(|last| last.start == used.start);
            let difference = ticks_since(used, last);
            (difference != (0, 0)).then_some((pid, difference))
        });
        let is_same = |pid: &u32, last: &Ticks| {
            current.get(pid).is_some_and(|ticks| ticks.start == last.start)
        };
        let ended = self.used.iter().filter(|(pid, last)| !is_same(pid, last));
        Changes { used: used.collect(), ended: ended.map(|(&pid, &last)| (pid, last)).collect() }
    }

    /// Returns the CPU time that the family and its exited children have used since the last sample, and the new
    /// `owed_ticks`. In the first sample, the CPU time is the total since the processes started.
    fn newly_used(
        &self,
        last: Option<&Sum>,
        family: &[u32],
        current: &HashMap<u32, Ticks>,
        changes: &Changes,
    ) -> (u64, u64) {
        let (mut own_ticks, mut reaped_ticks, mut ended_ticks) = (0u64, 0u64, 0u64);
        for (at, pid) in family.iter().enumerate() {
            let difference = match last {
                Some(_) if changes.used.is_empty() => break,
                Some(_) => changes.used.get(pid).copied(),
                None => current.get(pid).map(|used| ticks_since(used, None)),
            };
            let (new_own, new_reaped) = difference.unwrap_or_default();
            if at > 0 {
                own_ticks = own_ticks.saturating_add(new_own);
            }
            reaped_ticks = reaped_ticks.saturating_add(new_reaped);
        }
        let last_sum = last.filter(|_| !changes.ended.is_empty());
        for pid in last_sum.iter().flat_map(|sum| sum.family.iter().skip(1)) {
            // A process that has left the family still runs, so its time has not been added to another process.
            let has_left = |used: &Ticks| {
                let node = self.nodes.get(pid).filter(|node| node.start_ticks == used.start);
                node.is_some() && !family.contains(pid)
            };
            if let Some(used) = changes.ended.get(pid).filter(|used| !has_left(used)) {
                ended_ticks =
                    ended_ticks.saturating_add(used.own_ticks.saturating_add(used.reaped_ticks));
            }
        }
        let counted = ended_ticks.saturating_add(last.map_or(0, |sum| sum.owed_ticks));
        let ticks = own_ticks.saturating_add(reaped_ticks.saturating_sub(counted));
        (ticks, ended_ticks.saturating_sub(reaped_ticks))
    }
}

struct Changes {
    /// CPU time of each process, and of its reaped children, since the last sample.
    used: HashMap<u32, (u64, u64)>,
    /// CPU time, at the last sample, of processes that have exited since.
    ended: HashMap<u32, Ticks>,
}

fn ticks_since(used: &Ticks, last: Option<&Ticks>) -> (u64, u64) {
    let last = last.copied().unwrap_or_default();
    (
        used.own_ticks.saturating_sub(last.own_ticks),
        used.reaped_ticks.saturating_sub(last.reaped_ticks),
    )
}

pub(in crate::host) fn read_stat<'a>(
    proc: &Folder,
    pid: u32,
    content: &'a mut [u8; STAT_BYTES],
) -> Option<Stat<'a>> {
    let length = proc.file_of(pid, "stat", content).ok()?;
    parse_stat(&content[..length]).filter(|stat| !stat.is_released)
}

fn read_io(proc: &Folder, pid: u32) -> Option<u64> {
    let mut content = [0; IO_BYTES];
    let length = proc.file_of(pid, "io", &mut content).ok()?;
    parse_io(&content[..length])
}

#[cfg(test)]
mod tests;
