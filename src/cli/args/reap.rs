//! Arguments of `gpumem reap`, `gpumem kill` and `gpumem release`.

use std::net::SocketAddr;

use clap::Args;

use super::{EXIT_CODES_OF_REAP, Recorded, StoreArgs, Stored, Where};
use crate::cli::UsageError;
use crate::cli::args::EXIT_CODES_OF_RELEASE;
use crate::cli::explain::TypedTarget;
use crate::model::Kind;
use crate::reclaim::Signal;
use crate::reclaim::release::ReleaseOptions;
use crate::units::Span;

/// Free unneeded GPU memory: show a plan, kill processes, and verify that the memory was freed
///
/// Prints a plan that lists the processes to kill, the reasons, the steps, and the memory that should be
/// freed, followed by skipped processes and the reasons. Only these processes are signalled, and children
/// that they start in the meantime and that use a GPU. Other processes of the same session, process group
/// or job are not signalled. Without --yes, nothing is changed; on a terminal, gpumem asks, and exits with
/// 1 if the answer is no. With --yes, exactly that plan is carried out. If a named target is refused, or
/// its owner must kill it, the exit code is 1, even in a dry run.
///
/// Before each signal, gpumem checks again the identity of the process, what protects it, and whether the
/// rule still matches. A process is skipped if it, a descendant or a helper has been active since the plan
/// was made. If a process is still active after SIGTERM, SIGKILL is delayed by up to 10 minutes, because
/// the process may be saving a checkpoint. A target is done when NVML shows its memory as free, and no
/// process has taken it again within 5 seconds.
///
/// By default, the targets are your own processes that a rule reports as idle, orphaned or stopped.
/// Findings of hung, leak, placeholder and server-idle are included only with --kind. With --pid, the
/// targets are the named processes, with or without a finding, as for `gpumem kill`. gpumem never kills
/// system and shared services (init, sshd, display servers, schedulers, container runtimes, the driver's
/// daemons and others), the processes that started gpumem, or processes that are protected by their owner
/// (GPUMEM_KEEP=2026-12-01 in the environment) or by the configuration (`[[keep]]`).
///
/// An idle process, such as a notebook's kernel, is first asked to release memory, as `gpumem release`
/// does, and killed only if the rule still matches afterwards. A process reported by a rule with action =
/// "release" is only asked.
///
/// Targets are killed one at a time, largest first. Only --watch pauses after each one and limits their
/// number (`[reap]` in the configuration). Every action is written to the audit log before it is carried
/// out: /var/lib/gpumem/reap.jsonl for root, ~/.local/state/gpumem/reap.jsonl for other users. --history
/// shows the log.
#[derive(Args, Debug, Default)]
#[command(after_help = EXIT_CODES_OF_REAP, mut_arg("store", |store| store.requires("watch")))]
pub struct ReapArgs {
    /// Target these processes, with or without a finding
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,

    /// Named targets of `gpumem kill` and `gpumem release` other than pids.
    #[arg(skip)]
    pub(in crate::cli) words: Vec<String>,

    /// For `gpumem release`: only ask the targets to release memory.
    #[arg(skip)]
    pub(in crate::cli) release: Option<ReleaseOptions>,

    /// Only processes that hold memory on these GPUs, by index or UUID (or its beginning)
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Only processes of these users, by name or uid; requires --all-users for others
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Further selection.
    #[command(flatten)]
    pub terms: Where,

    /// Only findings of these kinds, even if disabled [default: orphan, stopped, idle]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<Kind>,

    /// Carry out the plan without asking
    #[arg(short, long, conflicts_with_all = ["dry_run", "history", "replay", "demo"])]
    pub yes: bool,

    /// Print the plan without asking
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// How targets are killed.
    #[command(flatten)]
    pub how: HowToKill,

    /// Include inference servers
    #[arg(long)]
    pub servers: bool,

    /// Print the plan and its outcome as JSON (gpumem.reap/1), without asking
    #[arg(long)]
    pub json: bool,

    /// Show past actions from the audit log; with --json as gpumem.history/1
    #[arg(
        long,
        conflicts_with_all = ["pid", "gpu", "user", "terms", "kind", "replay", "demo", "window"]
    )]
    pub history: bool,

    /// Run as a daemon: notify owners, and carry out the actions of rules
    ///
    /// Processes found by rules with action = "reap" are killed after their owners were warned; see
    /// UNATTENDED. The service unit is packaging/gpumem-reap.service. SIGHUP reloads the configuration.
    #[arg(
        long,
        conflicts_with_all = ["pid", "gpu", "user", "terms", "kind", "yes", "dry_run", "servers", "json", "history", "window", "replay", "demo"]
    )]
    pub watch: bool,

    /// The store that the daemon writes.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Also serve metrics on this address, as `gpumem serve --listen` does
    #[arg(long, value_name = "ADDRESS", value_parser = super::address, requires = "watch")]
    pub serve: Option<SocketAddr>,

    /// Sampling time before the plan [default: 30s; 2s for named targets or with a stored history]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Whether to use the stored history.
    #[command(flatten)]
    pub stored: Stored,

    /// The source of snapshots. For a recording, only a plan is made.
    #[command(flatten)]
    pub recorded: Recorded,
}

/// How targets are killed, and which ones are allowed.
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
    /// Otherwise, the plan shows the owner's command to run.
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

impl ReapArgs {
    /// Adds the targets of a command. Fails if one is invalid.
    pub(in crate::cli) fn with_targets(self, targets: &[String]) -> Result<Self, UsageError> {
        let mut named = self;
        for typed in targets {
            match TypedTarget::parse(typed)? {
                TypedTarget::Pid(pid) => named.pid.push(pid),
                TypedTarget::Gpu(_) | TypedTarget::Name(_) => named.words.push(typed.clone()),
            }
        }
        Ok(named)
    }
}

/// Kill processes that hold GPU memory, and verify that the memory was freed
///
/// Shows the plan that `gpumem reap` makes for the named targets, and asks unless --yes is given. The
/// exit code is 1 if a named process is not killed, for example because the answer is no.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_REAP)]
pub struct Kill {
    /// A PID, a notebook's path, a GPU (gpu:0, gpu:2-4, GPU-…), a finding's id or a server (vllm)
    ///
    /// A GPU stands for all processes on it. The end of a notebook's path and the id of its kernel also
    /// work. PID@TICKS@BOOT_ID also gives the start time, in clock ticks since that boot, so that a reused
    /// PID does not match.
    #[arg(value_name = "TARGET", required = true)]
    pub target: Vec<String>,

    /// Further selection; processes that do not match are skipped.
    #[command(flatten)]
    pub terms: Where,

    /// Carry out the plan without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan without asking
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// How targets are killed.
    #[command(flatten)]
    pub how: HowToKill,

    /// Whether to use the stored history. It is read only if a finding is named.
    #[command(flatten)]
    pub stored: Stored,
}

fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a pid; `gpumem ps` lists them"))
}

/// Ask processes to release unneeded GPU memory and keep running, and verify that it was freed
///
/// An inference server unloads its models, a Jupyter kernel empties the caches of its frameworks, and a
/// process that announces a signal (GPUMEM_RELEASE_SIGNAL) receives that signal. The process keeps
/// running, with its variables, sessions and listeners. Busy processes are skipped. gpumem prints a plan
/// with the facts that it verified about each process, and asks unless --yes is given.
///
/// Memory counts as released if the process holds at least 16 MiB less than before in each of three NVML
/// samples in the following 5 seconds. The last line of the output says how to reload the models, if the
/// next request does not. A process is not asked again within 60 seconds. If a process cannot be asked,
/// the plan gives the reason and an alternative, and the exit code is 1.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_RELEASE)]
pub struct ReleaseArgs {
    /// A PID, a notebook's path, a GPU (gpu:0, gpu:2-4, GPU-…), a finding's id or a server (vllm)
    ///
    /// A GPU stands for all processes on it. The end of a notebook's path and the id of its kernel also
    /// work.
    #[arg(value_name = "TARGET", required = true)]
    pub target: Vec<String>,

    /// Further selection; processes that do not match are skipped.
    #[command(flatten)]
    pub terms: Where,

    /// Carry out the plan without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan without asking
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Time limit for each process
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub wait: Span,

    /// How long an inference server must have been idle before it is asked to unload
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub idle_for: Span,

    /// Ask a server (vLLM) even if host memory may be too small for its weights
    #[arg(long)]
    pub force: bool,

    /// Do not run Python's garbage collector first, which runs the objects' finalizers
    #[arg(long)]
    pub no_gc: bool,

    /// List the largest tensors that still hold memory, by name and size, never their values
    #[arg(long)]
    pub references: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Include processes that GPUMEM_KEEP or the configuration protects
    #[arg(long)]
    pub kept: bool,

    /// Print the plan and its outcome as JSON (gpumem.release/1), without asking
    #[arg(long)]
    pub json: bool,

    /// Whether to use the stored history. It is read only if a finding is named.
    #[command(flatten)]
    pub stored: Stored,
}
