//! Which programs launch the ranks of a distributed run, and who leads a family. Pure.

use std::sync::Arc;

use super::target::TargetProcess;
use crate::model::Process;
use crate::model::snapshot::Parent;

/// Programs, and modules of Python, that start the ranks of a run and end them when they are told to.
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

/// The member that the others depend on: the parent of the most, else who leads their group or
/// session, else the oldest.
pub(super) fn leader(members: &[TargetProcess], processes: &[&Process]) -> u32 {
    let children = |pid: u32| {
        let parents = processes.iter().filter(|it| it.ppid == Some(pid));
        parents.count()
    };
    let leads = |pid: u32| {
        let led =
            members.iter().filter(|it| it.process_group == Some(pid) || it.session == Some(pid));
        led.count()
    };
    members
        .iter()
        // Of several the first, which is the oldest.
        .rev()
        .max_by_key(|it| (children(it.pid), leads(it.pid)))
        .map_or(0, |it| it.pid)
}

/// Whether who started a family is the launcher of a run, and not a shell or a daemon.
pub(super) fn is_launcher(parent: &Parent) -> bool {
    launches(parent.command.as_deref())
}

/// Whether a command starts the ranks of a run: the program, or for an interpreter the script or the
/// module.
pub(super) fn launches(command: Option<&[Arc<str>]>) -> bool {
    let base = |word: &Arc<str>| word.rsplit('/').next().unwrap_or(word).to_owned();
    let Some((program, arguments)) = command.and_then(<[_]>::split_first) else {
        return false;
    };
    let program = base(program);
    let is_python = program
        .strip_prefix("python")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    if !is_python {
        return LAUNCHERS.contains(&&*program);
    }
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match &**word {
            "-m" => return words.next().is_some_and(|it| LAUNCHERS.contains(&&**it)),
            "-X" | "-W" => {
                words.next();
            }
            "-c" => return false,
            word if word.starts_with('-') => {}
            _ => return LAUNCHERS.contains(&&*base(word)),
        }
    }
    false
}
