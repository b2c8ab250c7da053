//! Groups related processes into families.
//!
//! A family can be killed as a whole, so it must be a single job. A common parent, login, terminal, container or
//! notebook server is not enough: two programs started from one shell are two families, and so are two notebook
//! kernels. Each [`Tie`] is a kind of evidence that processes belong together. Ambiguous evidence is ignored. All
//! members are processes in the snapshot. An unresolved process belongs to no family.
//!
//! This module does no I/O and sends no signals. Callers show a family before they kill it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::process::{Parent, Process};
use super::snapshot::Snapshot;

mod joining;

use joining::{Joining, is_dead};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tie {
    /// Same process group: the processes of one shell command line or one script.
    ProcessGroup,
    /// Same session, whose leader is a member.
    Session,
    /// Same Slurm step, or same service or container whose first process is a member.
    Cgroup,
    /// Ranks of the same run of torchrun, DeepSpeed, MPI, Slurm or Ray.
    Run,
    Parent,
    /// The members have the device file of a GPU open, and NVML still lists a dead member on that GPU.
    GpuFiles,
}

impl Tie {
    pub fn words(self) -> &'static str {
        match self {
            Self::ProcessGroup => "one process group",
            Self::Session => "one session",
            Self::Cgroup => "one job, service or container",
            Self::Run => "ranks of one run",
            Self::Parent => "one started the other",
            Self::GpuFiles => "they have the GPU of an exited member open",
        }
    }
}

/// Related processes, or a single process without relatives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// `family:PID` of the oldest member. The id stays the same as long as this process is listed, dead or alive.
    pub id: Arc<str>,
    /// Pids of the members, in ascending order. Includes dead processes that started other members.
    pub members: Vec<u32>,
    pub ties: BTreeSet<Tie>,
    /// The outside process that started this family, or `None` if it is unknown or ambiguous.
    pub launcher: Option<Arc<Parent>>,
    pub user: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    pub pid: u32,
    pub depth: usize,
}

/// Returns the families of a snapshot, sorted by the pids in their ids. Each process belongs to at most one family.
pub fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut joining = Joining::new(snapshot);
    joining.join_groups();
    joining.join_sessions();
    joining.join_children();
    joining.join_the_dead();
    // Join runs after the ties above, as whole jobs, because the data loaders of a rank inherit its environment.
    joining.join_runs();
    joining.join_cgroups();
    joining.finish()
}

pub fn member(families: &[Family], pid: u32) -> Option<&Family> {
    families.iter().find(|family| family.members.binary_search(&pid).is_ok())
}

impl Family {
    /// Returns the members as a tree, parents before their children. A member whose parent is not a member is placed
    /// below the dead leader of its group or session, if there is one.
    pub fn tree(&self, snapshot: &Snapshot) -> Vec<Branch> {
        self.tree_of(|pid| snapshot.process(pid))
    }

    /// Returns the same as [`tree`](Self::tree), but looks up processes with `find`. Searching the snapshot for each
    /// member would be slow for large families.
    pub fn tree_of<'a>(&self, find: impl Fn(u32) -> Option<&'a Process>) -> Vec<Branch> {
        let members: Vec<(u32, Option<&Process>)> =
            self.members.iter().map(|&pid| (pid, find(pid))).collect();
        let mut children: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
        let mut roots = Vec::new();
        for &(pid, process) in &members {
            let key = (process.and_then(|p| p.start_ticks).unwrap_or(0), pid);
            match process.and_then(|process| self.elder(process, &find)) {
                Some(elder) => children.entry(elder).or_default().push(key),
                None => roots.push(key),
            }
        }
        roots.sort_unstable();
        for siblings in children.values_mut() {
            siblings.sort_unstable();
        }
        let mut tree = Vec::with_capacity(members.len());
        let mut visited = BTreeSet::new();
        // In a recording, processes can be each other's parents. Such a cycle has no root, so each member that was
        // not visited is tried as a root.
        let rest = members.iter().map(|&(pid, _)| pid);
        for root in roots.iter().map(|&(_, pid)| pid).chain(rest) {
            let mut due = vec![(root, 0)];
            while let Some((pid, depth)) = due.pop() {
                if !visited.insert(pid) {
                    continue;
                }
                tree.push(Branch { pid, depth });
                let below = children.get(&pid).into_iter().flatten().rev();
                due.extend(below.map(|&(_, child)| (child, depth + 1)));
            }
        }
        tree
    }

    fn elder<'a>(
        &self,
        process: &Process,
        find: impl Fn(u32) -> Option<&'a Process>,
    ) -> Option<u32> {
        let is_other = |pid: &u32| *pid != process.pid && self.members.binary_search(pid).is_ok();
        let started_by = process.parent.as_deref().map(|parent| parent.pid);
        let dead = [process.process_group, process.session]
            .into_iter()
            .flatten()
            .find(|&pid| is_other(&pid) && find(pid).is_some_and(is_dead));
        started_by.filter(is_other).or(process.ppid.filter(is_other)).or(dead)
    }
}

#[cfg(test)]
mod tests;
