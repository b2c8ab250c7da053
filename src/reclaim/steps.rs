//! How a target is ended: the steps, gentlest first, by what owns its processes. Pure.
//!
//! Whoever would start a process again is asked first: the notebook server, the launcher of a
//! distributed run, and where a scheduler, a service manager, a container runtime or a pool of workers owns
//! it, that one, by a command that is only named.

use std::sync::Arc;

use super::guard::Guard;
use super::policy::Signal;
use super::target::{Kernel, Member, Step, Whom};
use crate::advice;
use crate::model::snapshot::{Jupyter, Parent, ProcessType};
use crate::model::{Process, Snapshot};

/// What a process may take to end itself, in seconds (as earlyoom has it).
const GRACE_SECONDS: f64 = 10.0;
/// torchrun and DeepSpeed wait 30 s for their workers before they kill them (torch:
/// `distributed/elastic/multiprocessing/api.py`).
const LAUNCHER_SECONDS: f64 = 35.0;
/// A notebook server goes from interrupt to SIGKILL within 5 s (`jupyter_client`:
/// `KernelManager.shutdown_wait_time`); that it has not answered is known within 9 s (`server`).
const KERNEL_SECONDS: f64 = 10.0;
/// What a client of the Multi-Process Service may take to part from its server: more than its control
/// daemon has for one command (`mps`), or a client would be signalled while it is being parted with.
const CLIENT_SECONDS: f64 = 5.0;
/// What the kernel may take to end what was killed.
const KILL_SECONDS: f64 = 5.0;
/// A notebook server looks after its kernels every 3 s (`jupyter_client`: `KernelRestarter.time_to_dead`
/// and `poll_interval`), torchrun more often.
const RESPAWN_SECONDS: f64 = 6.0;

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

/// Whose steps they are.
pub(super) struct Whose<'a> {
    pub guard: &'a Guard,
    pub processes: &'a [&'a Process],
    pub launcher: Option<&'a Member>,
    pub leader: u32,
    pub snapshot: &'a Snapshot,
    /// All of the family.
    pub is_whole: bool,
}

/// The steps, and how long to look out for one that is started in the place of what they end.
pub(super) struct Way {
    pub steps: Vec<Step>,
    pub respawn_seconds: f64,
}

/// How a target is ended.
pub(super) fn way(whose: &Whose<'_>) -> Way {
    let policy = &whose.guard.policy;
    // What a kernel has forked looks like it, and is younger.
    let kernels = whose.processes.iter().filter_map(|process| kernel(process));
    let kernel = kernels.min_by_key(|kernel| (kernel.start_ticks, kernel.pid));
    let owner = whose.processes.iter().find_map(|it| advice::owner(it));
    if let Some(kernel) = kernel
        && !(policy.direct && policy.signal.is_some())
    {
        let grace_seconds = KERNEL_SECONDS;
        let mut steps = vec![Step::ShutKernel {
            kernel,
            grace_seconds,
        }];
        steps.extend(signals(whose));
        return Way {
            steps,
            respawn_seconds: RESPAWN_SECONDS,
        };
    }
    // Merely ended, a kernel is started again by its server, and the notebook's state is lost for nothing.
    let restarts = whose
        .processes
        .iter()
        .filter_map(|it| it.jupyter.as_deref());
    let restarts = restarts
        .filter(|it| it.may_be_restarted())
        .map(through_server)
        .next();
    let owned = owner.as_ref().map(|owner| Arc::from(owner.way()));
    let pooled = whose
        .processes
        .iter()
        .find_map(|it| pooled(it, whose.processes));
    if let Some(command) = owned.or(restarts).or(pooled)
        && !policy.direct
    {
        return Way {
            steps: vec![Step::Advise { command }],
            respawn_seconds: 0.0,
        };
    }
    let is_notebook = whose.processes.iter().any(|process| is_notebook(process));
    let is_pooled = whose
        .processes
        .iter()
        .any(|it| it.is_restarted_by_its_pool());
    let is_restarted = is_notebook || is_pooled || owner.is_some() || !whose.is_whole;
    Way {
        steps: signals(whose),
        respawn_seconds: if is_restarted { RESPAWN_SECONDS } else { 0.0 },
    }
}

/// What to type for a worker that its pool starts again, where the pool is not ended with it.
fn pooled(process: &Process, processes: &[&Process]) -> Option<Arc<str>> {
    let pool = process
        .pool()
        .filter(|_| process.is_restarted_by_its_pool())?;
    let is_parent = |it: &&Process| process.ppid == Some(it.pid);
    if processes.iter().any(is_parent) {
        return None;
    }
    let (by, words) = (pool.restarted_by, pool.words);
    let does = match pool.keeps_the_idle {
        true => "keeps it for the next task",
        false => "would start it again",
    };
    Some(format!("{by} {does}: {words}").into())
}

fn signals(whose: &Whose<'_>) -> Vec<Step> {
    let policy = &whose.guard.policy;
    let first = policy.signal.unwrap_or(Signal::Term);
    let own = policy.grace.map(|grace| grace.as_secs_f64());
    let ask = |whom, usual: f64| Step::Signal {
        signal: first,
        whom,
        grace_seconds: own.unwrap_or(usual),
    };
    let kill = |whom| Step::Signal {
        signal: Signal::Kill,
        whom,
        grace_seconds: KILL_SECONDS,
    };
    let mut steps = Vec::new();
    let clients: Vec<&Process> = whose
        .processes
        .iter()
        .copied()
        .filter(|process| is_client(process, whose.snapshot))
        .collect();
    if !clients.is_empty() {
        steps.push(Step::TerminateClient {
            pids: clients.iter().map(|process| process.pid).collect(),
            pipe_directory: clients.iter().find_map(|process| {
                let environment = process.environment.as_deref()?;
                environment.get("CUDA_MPS_PIPE_DIRECTORY").cloned()
            }),
            grace_seconds: CLIENT_SECONDS,
        });
    }
    let is_asked = first != Signal::Kill;
    if whose.launcher.is_some() {
        if is_asked {
            steps.push(ask(Whom::Launcher, LAUNCHER_SECONDS));
            steps.push(ask(Whom::Family, GRACE_SECONDS));
        }
        steps.push(kill(Whom::Launcher));
    } else if is_asked {
        let leads = |process: &&&Process| process.ppid == Some(whose.leader);
        if whose.processes.iter().filter(leads).count() > 0 {
            let is_launcher = whose
                .processes
                .iter()
                .find(|process| process.pid == whose.leader)
                .is_some_and(|process| launches(process.command.as_deref()));
            let usual = if is_launcher {
                LAUNCHER_SECONDS
            } else {
                GRACE_SECONDS
            };
            steps.push(ask(Whom::Leader, usual));
        }
        steps.push(ask(Whom::Family, GRACE_SECONDS));
    }
    steps.push(kill(Whom::Family));
    steps
}

/// The member that the others depend on: the parent of the most, else who leads their group or
/// session, else the oldest.
pub(super) fn leader(members: &[Member], processes: &[&Process]) -> u32 {
    let children = |pid: u32| {
        let parents = processes.iter().filter(|it| it.ppid == Some(pid));
        parents.count()
    };
    let leads = |pid: u32| {
        let led = members
            .iter()
            .filter(|it| it.process_group == Some(pid) || it.session == Some(pid));
        led.count()
    };
    members
        .iter()
        // Of several the first, which is the oldest.
        .rev()
        .max_by_key(|it| (children(it.pid), leads(it.pid)))
        .map_or(0, |it| it.pid)
}

/// The kernel at its server, where that can be asked.
fn kernel(process: &Process) -> Option<Kernel> {
    let jupyter = process.jupyter.as_deref()?;
    if jupyter.server_error.is_some() || process.has_lost_server() || !is_notebook(process) {
        return None;
    }
    Some(Kernel {
        id: jupyter.kernel_id.clone()?,
        pid: process.pid,
        start_ticks: process.start_ticks?,
        last_activity: jupyter.last_activity,
        server_url: jupyter.server_url.clone()?,
        server_pid: jupyter.server_pid,
        notebook: jupyter.notebook_path.clone(),
    })
}

/// What to do about a kernel whose server cannot be asked, and why it is not signalled.
fn through_server(kernel: &Jupyter) -> Arc<str> {
    let why = kernel.server_error.as_deref();
    let why = why.unwrap_or("it has not said what the kernel does");
    let would = match kernel.server_alive {
        Some(true) => "its server would start it again, and is not asked",
        _ => "its server may start it again",
    };
    let way = match kernel.application.as_deref() {
        Some("voila") => "close its dashboard, or stop Voilà",
        Some("kernelgateway") => "have the client of its gateway shut it down",
        Some("databricks") => "detach its notebook",
        _ => "shut the kernel down in its notebook",
    };
    format!("{way}; {would}: {why}").into()
}

/// Whether a kernel may be started again by what started it; a program that runs a notebook from end to
/// end does not do that.
fn is_notebook(process: &Process) -> bool {
    process.jupyter.as_deref().is_some_and(|jupyter| {
        let application = jupyter.application.as_deref();
        !jupyter.is_batch() && !matches!(application, Some("vscode" | "marimo" | "ipykernel"))
    })
}

fn is_client(process: &Process, snapshot: &Snapshot) -> bool {
    let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
    rows.flatten()
        .any(|row| row.pid == process.pid && row.kind == ProcessType::Mps)
}

/// Whether who started a family is the launcher of a run, and not a shell or a daemon.
pub(super) fn is_launcher(parent: &Parent) -> bool {
    launches(parent.command.as_deref())
}

/// Whether a command starts the ranks of a run: the program, or for an interpreter the script or the
/// module.
fn launches(command: Option<&[Arc<str>]>) -> bool {
    let base = |word: &Arc<str>| word.rsplit('/').next().unwrap_or(word).to_owned();
    let Some((program, arguments)) = command.and_then(<[_]>::split_first) else {
        return false;
    };
    let program = base(program);
    let is_python = program.strip_prefix("python").is_some_and(|rest| {
        rest.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
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

#[cfg(test)]
mod tests;
