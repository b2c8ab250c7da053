//! Arguments of `gpumem reap`, `gpumem kill` and `gpumem release`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::{EXIT_CODES_OF_REAP, Recorded, Selected, StoreArgs, Stored, Where};
use crate::cli::UsageError;
use crate::cli::args::EXIT_CODES_OF_RELEASE;
use crate::cli::explain::TypedTarget;
use crate::model::Kind;
use crate::reclaim::Signal;
use crate::reclaim::release::ReleaseOptions;
use crate::units::Span;

/// Free unneeded GPU memory: show a plan, kill processes, and verify that the memory was freed
///
/// Prints a plan that lists the processes to kill, with the reasons, the steps and the memory that should be freed,
/// and then the skipped processes, with the reasons. Only the listed processes are signalled, together with any
/// children that they have since started and that use a GPU. Other processes of the same session, process group or
/// job are not signalled. Without --yes, nothing is changed; on a terminal, gpumem asks, and exits with 1 if the
/// answer is no. With --yes, gpumem carries out exactly this plan. If a named target is refused or must be killed by
/// its owner, the exit code is 1, even in a dry run.
///
/// Before each signal, gpumem checks the process's identity, its protection and the rule again. It skips a process
/// that has been active since the plan was made, or that has an active descendant or helper. If a process is still
/// active after SIGTERM, SIGKILL is delayed by up to 10 minutes, because the process may be saving a checkpoint. A
/// target is done when NVML reports its memory as free and no process has allocated it again within 5 seconds.
///
/// By default, the targets are your own processes that a rule reports as idle, orphaned or stopped. Findings of the
/// rules hung, leak, placeholder and server-idle are included only with --kind. With --pid, the targets are the named
/// processes, with or without findings, as for `gpumem kill`. gpumem never kills system and shared services (init,
/// sshd, display servers, schedulers, container runtimes, the driver's daemons and others), the processes that
/// started gpumem, or processes that are protected by their owner (GPUMEM_KEEP=2026-12-01 in the environment) or by
/// the configuration (`[[keep]]`).
///
/// An idle process, such as a notebook's kernel, is first asked to release memory, as by `gpumem release`, and killed
/// only if the rule still matches afterwards. A process reported by a rule with action = "release" is only asked.
///
/// Targets are killed one at a time, largest first. With --watch, gpumem also pauses after each kill and limits the
/// number of kills (`[reap]` in the configuration). Every action is written to the audit log before it is carried
/// out: /var/lib/gpumem/reap.jsonl for root, ~/.local/state/gpumem/reap.jsonl for other users. --history shows the
/// log.
#[derive(Args, Debug, Default)]
#[command(after_help = EXIT_CODES_OF_REAP, mut_arg("store", |store| store.requires("watch")))]
pub struct ReapArgs {
    /// Target these processes, with or without findings
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,

    /// Targets of `gpumem kill` and `gpumem release` that are not given as PIDs.
    #[arg(skip)]
    pub(in crate::cli) words: Vec<String>,

    /// Set by `gpumem release`: targets are only asked to release memory, not killed.
    #[arg(skip)]
    pub(in crate::cli) release: Option<ReleaseOptions>,

    /// Set by `gpumem park`: targets are only parked, not killed.
    #[arg(skip)]
    pub(in crate::cli) parks: bool,

    #[command(flatten)]
    pub selected: Selected,

    /// Only findings of these kinds, even if disabled [default: orphan, stopped, idle]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<Kind>,

    /// Carry out the plan without asking
    #[arg(short, long, conflicts_with_all = ["dry_run", "history", "replay", "demo"])]
    pub yes: bool,

    /// Print the plan without asking
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub how: HowToKill,

    /// Include inference servers
    #[arg(long)]
    pub servers: bool,

    /// Print the plan and its outcome as JSON (gpumem.reap/1) without asking
    #[arg(long)]
    pub json: bool,

    /// Show past actions from the audit log (with --json, as gpumem.history/1)
    #[arg(
        long,
        conflicts_with_all = ["pid", "gpu", "user", "terms", "kind", "replay", "demo", "window"]
    )]
    pub history: bool,

    /// Run as a daemon: notify owners, and carry out the actions of rules
    ///
    /// Processes found by rules with action = "reap" are killed after their owners have been warned; see UNATTENDED.
    /// The systemd unit is packaging/gpumem-reap.service. SIGHUP reloads the configuration.
    #[arg(
        long,
        conflicts_with_all = ["pid", "gpu", "user", "terms", "kind", "yes", "dry_run", "servers", "json", "history", "window", "replay", "demo"]
    )]
    pub watch: bool,

    #[command(flatten)]
    pub store: StoreArgs,

    /// Also serve metrics on this address, as `gpumem serve --listen` does [default: as configured, with --store]
    #[arg(long, value_name = "ADDRESS", value_parser = super::address, requires = "watch")]
    pub serve: Option<SocketAddr>,

    /// Sampling time before the plan [default: 30s; 2s for named targets or with a stored history]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    #[command(flatten)]
    pub stored: Stored,

    /// Source of snapshots. For a recording, gpumem only prints a plan.
    #[command(flatten)]
    pub recorded: Recorded,
}

/// Options for how targets are killed, and for including targets that are normally excluded.
#[derive(Args, Clone, Debug, Default)]
pub struct HowToKill {
    /// First signal instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<Signal>,

    /// How long to wait between signals [default: 30s, or 35s for a distributed launcher]
    #[arg(long, value_name = "DURATION")]
    pub grace: Option<Span>,

    /// Also signal processes owned by a scheduler, service manager or container runtime
    ///
    /// Without this option, the plan shows the owner's command that ends the process.
    #[arg(long)]
    pub direct: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Include graphics-only processes
    #[arg(long)]
    pub graphics: bool,

    /// Include named processes that GPUMEM_KEEP or the configuration protects
    #[arg(long)]
    pub kept: bool,
}

/// Named targets of `gpumem kill` and `gpumem release`.
#[derive(Args, Debug)]
pub struct NamedTargets {
    /// A PID, a notebook's path, a GPU (gpu:0, gpu:2-4, GPU-…), a finding's id or a server (vllm)
    ///
    /// A GPU means all processes on it. For a notebook, the end of its path or the id of its kernel is enough.
    /// PID@TICKS@BOOT_ID includes the start time, in clock ticks since that boot, so that a reused PID does not
    /// match.
    #[arg(value_name = "TARGET", required = true)]
    pub target: Vec<String>,

    /// Terms that select among the targets. Processes that do not match are skipped.
    #[command(flatten)]
    pub terms: Where,

    /// Carry out the plan without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan without asking
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// The stored history is read only if a finding is named.
    #[command(flatten)]
    pub stored: Stored,
}

impl ReapArgs {
    /// Returns the arguments for named targets. Fails if a target is invalid.
    pub(in crate::cli) fn named(targets: NamedTargets) -> Result<Self, UsageError> {
        let NamedTargets { target, terms, yes, dry_run, stored } = targets;
        let selected = Selected { terms, ..Selected::default() };
        let mut named = Self { selected, yes, dry_run, stored, ..Self::default() };
        for typed in target {
            match TypedTarget::parse(&typed)? {
                TypedTarget::Pid(pid) => named.pid.push(pid),
                TypedTarget::Gpu(_) | TypedTarget::Name(_) => named.words.push(typed),
            }
        }
        Ok(named)
    }
}

/// Kill processes that hold GPU memory, and verify that the memory was freed
///
/// Shows the plan that `gpumem reap` makes for the named targets, and asks for confirmation unless --yes is given.
/// The exit code is 1 if a named process is not killed, for example because the user declines.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_REAP)]
pub struct Kill {
    #[command(flatten)]
    pub targets: NamedTargets,

    #[command(flatten)]
    pub how: HowToKill,
}

fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a pid; `gpumem ps` lists them"))
}

fn wait(text: &str) -> Result<Span, String> {
    match text.parse::<Span>() {
        Ok(Span(time)) if time.is_zero() || time > Duration::from_secs(3600) => {
            Err("must be longer than 0 and at most 1h, for example 30s".to_owned())
        }
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// Ask processes to release unneeded GPU memory and keep running, and verify that it was freed
///
/// An inference server unloads its models, a Jupyter kernel empties the caches of its frameworks, and a process that
/// announces a signal (GPUMEM_RELEASE_SIGNAL) receives that signal. The process keeps running, with its variables,
/// sessions and listeners. Busy processes are skipped. gpumem prints a plan with the facts that it has verified about
/// each process, and asks for confirmation unless --yes is given.
///
/// Memory counts as released if three NVML samples within the next 5 seconds all show that the process holds at least
/// 16 MiB less. If the next request does not reload the models, the last line of the output says how to do so. A
/// process is asked at most once in 60 seconds. If a process cannot be asked, the plan gives the reason and an
/// alternative, and the exit code is 1.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_RELEASE)]
pub struct ReleaseArgs {
    #[command(flatten)]
    pub targets: NamedTargets,

    /// How long to wait for each process (at most 1h)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = wait)]
    pub wait: Span,

    /// How long an inference server must have been idle before it is asked to unload
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub idle_for: Span,

    /// Ask a server (vLLM) even if its weights may not fit into host memory
    #[arg(long)]
    pub force: bool,

    /// Do not run Python's garbage collector first, because it would run finalizers
    #[arg(long)]
    pub no_gc: bool,

    /// List the largest tensors that still hold memory, by name and size but without values
    #[arg(long)]
    pub references: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Include processes that GPUMEM_KEEP or the configuration protects
    #[arg(long)]
    pub kept: bool,

    /// Print the plan and its outcome as JSON (gpumem.reap/1) without asking
    #[arg(long)]
    pub json: bool,
}
