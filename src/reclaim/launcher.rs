//! Finds the launcher of a distributed run and the leader of a family.
//!
//! If a rank exits, its launcher ends all ranks or restarts the missing one. A launcher is recognised by its name, or
//! because several of its children have rank numbers in their environment. Rank numbers also identify MPI's proxies,
//! whose names are not listed here.

use std::sync::Arc;

use super::target::TargetProcess;
use crate::model::program::{file_name, tool};
use crate::model::snapshot::Parent;
use crate::model::{Process, Snapshot};

/// Programs and Python modules that start the ranks of a run, and end the ranks when they exit.
const LAUNCHERS: &[&str] = &[
    "torchrun",
    "deepspeed",
    "accelerate",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "accelerate.commands.launch",
];

/// Environment variables that contain the number of a rank. Each launcher sets only some of them.
const RANKS: &[&str] =
    &["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"];

/// Shells, which are not launchers because they exit without ending the ranks.
const SHELLS: &[&str] = &["bash", "sh", "dash", "zsh", "fish", "ksh", "tcsh", "csh"];

/// Returns the leader of the members: the member with the most children among the processes. If there is a tie, the
/// member that leads the group or session of the most members, then the oldest.
pub(super) fn find_leader(members: &[TargetProcess], processes: &[&Process]) -> u32 {
    let children = |pid: u32| {
        let parents = processes.iter().filter(|process| process.ppid == Some(pid));
        parents.count()
    };
    let leads = |pid: u32| {
        let led = members
            .iter()
            .filter(|member| member.process_group == Some(pid) || member.session == Some(pid));
        led.count()
    };
    members
        .iter()
        // `max_by_key` returns the last maximum, so `rev` makes the oldest member win a tie.
        .rev()
        .max_by_key(|member| (children(member.pid), leads(member.pid)))
        .map_or(0, |member| member.pid)
}

/// Returns the launcher of a rank's run. Returns `None` if the process that started the rank is not its parent now,
/// or is not a launcher.
pub(super) fn find_launcher<'a>(rank: &'a Process, snapshot: &Snapshot) -> Option<&'a Arc<Parent>> {
    let parent = rank.parent.as_ref().filter(|parent| rank.ppid == Some(parent.pid))?;
    let is_launcher =
        || is_launcher_command(parent.command.as_deref()) || has_ranks(parent, rank, snapshot);
    is_launcher().then_some(parent)
}

/// Returns whether the parent has another child whose rank number differs from that of `rank` by one.
fn has_ranks(parent: &Parent, rank: &Process, snapshot: &Snapshot) -> bool {
    let program = parent.command.as_deref().and_then(<[_]>::first).or(parent.comm.as_ref());
    // Slurm's daemon starts ranks, but users may not signal it.
    if rank.slurm.is_some() || program.is_some_and(|program| is_shell(program)) {
        return false;
    }
    let number = |process: &Process, name: &str| -> Option<u32> {
        process.environment.as_deref()?.get(name)?.parse().ok()
    };
    let is_next = |other: &Process, name: &&&str| {
        let numbers = number(rank, name).zip(number(other, name));
        numbers.is_some_and(|(rank_number, other_number)| rank_number.abs_diff(other_number) == 1)
    };
    let mut siblings = snapshot.processes.iter().filter(|process| process.ppid == Some(parent.pid));
    siblings.any(|other| RANKS.iter().any(|name| is_next(other, &name)))
}

pub(super) fn is_launcher_command(command: Option<&[Arc<str>]>) -> bool {
    let command = command.unwrap_or_default();
    let Some(program) = command.first().filter(|program| !is_shell(program)) else {
        return false;
    };
    // `tool` returns the script that a launcher such as torchrun executes, not the launcher.
    LAUNCHERS.contains(&file_name(program))
        || tool(command).is_some_and(|(program, _)| LAUNCHERS.contains(&program))
}

fn is_shell(program: &str) -> bool {
    SHELLS.contains(&file_name(program).trim_start_matches('-'))
}
