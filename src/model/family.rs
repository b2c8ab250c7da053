//! Families: which processes belong together, who launched them, and how they hang together.
//!
//! A family may be ended as a whole, so that what is joined here must be one job. A common parent,
//! login, terminal, container or notebook server is not enough: two programs typed into one shell are
//! two families, and two notebook kernels always are. Each [`Tie`] says what joined a family; where
//! the evidence fits two jobs at once it joins nothing. Only processes that a snapshot has are
//! members; one that is unresolved belongs to no family.
//!
//! Pure: nothing here reads, signals or decides; whoever ends a family shows it first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::process::{Parent, Process};
use super::snapshot::Snapshot;

mod joining;

use joining::{Joining, is_dead};

/// What joins the members of a family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tie {
    /// One process group: one command line of a shell, or one script.
    ProcessGroup,
    /// One session, whose leader is a member.
    Session,
    /// One Slurm step, or the service or container whose first process is a member.
    Cgroup,
    /// Ranks of one run: torchrun, DeepSpeed, MPI, a Slurm step, a Ray job.
    Run,
    /// One member started another.
    Parent,
    /// Holders of device files of a GPU on which a dead member is still listed.
    GpuFiles,
}

impl Tie {
    /// What joins them, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::ProcessGroup => "one process group",
            Self::Session => "one session",
            Self::Cgroup => "one job, service or container",
            Self::Run => "ranks of one run",
            Self::Parent => "one started the other",
            Self::GpuFiles => "they hold the GPU of one that died",
        }
    }
}

/// Processes that belong together; one that belongs to no other is a family of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// `family:PID`, of its oldest member; stays the same while that one is listed, dead or alive.
    pub id: Arc<str>,
    /// The pids of its members, in ascending order. The dead one whose memory the others hold is
    /// among them.
    pub members: Vec<u32>,
    /// What joins them; empty where there is but one.
    pub ties: BTreeSet<Tie>,
    /// Who started it, where that is known and is one process that is not a member.
    pub launcher: Option<Arc<Parent>>,
    /// The name of the user whose processes they are.
    pub user: Option<Arc<str>>,
}

/// A line of a family's tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The member.
    pub pid: u32,
    /// 0 at a root, one more for each generation.
    pub depth: usize,
}

/// The families of a snapshot, by their ids' pids. Each process is in one at most; those that are
/// unresolved are in none.
pub fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut joining = Joining::new(snapshot);
    joining.join_groups();
    joining.join_sessions();
    joining.join_children();
    joining.join_the_dead();
    // The rest compares jobs with jobs: a rank's data loaders have its rank, too.
    joining.join_runs();
    joining.join_cgroups();
    joining.finish()
}

/// The family that a process is in.
pub fn member(families: &[Family], pid: u32) -> Option<&Family> {
    families.iter().find(|family| family.members.binary_search(&pid).is_ok())
}

impl Family {
    /// Its members as a tree: whoever started another comes before it. A dead member comes before
    /// those that carry its number as their group or session.
    pub fn tree(&self, snapshot: &Snapshot) -> Vec<Branch> {
        self.tree_of(|pid| snapshot.process(pid))
    }

    /// As [`tree`](Self::tree), for whoever has the snapshot's processes by pid: to search it for each
    /// of a thousand members takes as long as all else of a table.
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
        let mut seen = BTreeSet::new();
        // Those that a recording made each other's parents have no root; they follow as roots.
        let rest = members.iter().map(|&(pid, _)| pid);
        for root in roots.iter().map(|&(_, pid)| pid).chain(rest) {
            let mut due = vec![(root, 0)];
            while let Some((pid, depth)) = due.pop() {
                if !seen.insert(pid) {
                    continue;
                }
                tree.push(Branch { pid, depth });
                let below = children.get(&pid).into_iter().flatten().rev();
                due.extend(below.map(|&(_, child)| (child, depth + 1)));
            }
        }
        tree
    }

    /// The member that a member is shown under.
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
