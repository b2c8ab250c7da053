//! What may be typed to `gpumem reap` and `gpumem kill`.

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

/// Free unneeded GPU memory: show a plan, kill what it names, verify that the memory was freed
///
/// Prints a plan: which processes it would kill, why, by which steps, how much memory should be freed,
/// and what it skips and why. Signals go to these processes, and to children that they start meanwhile
/// and that hold a GPU; never to processes that only share a session, a process group or a job with
/// them. Without --yes it changes nothing; on a terminal it asks, and exits with 1 if the answer is no.
/// --yes carries out exactly that plan. If a named target is refused, or is not gpumem's to kill, it
/// exits with 1, in a dry run too. Before each signal it checks again the process's identity, what
/// protects it, and whether the rule still holds; a process that has worked since the plan was made, or
/// whose descendants or helpers have, is skipped. While one that was told to end still works, SIGKILL
/// waits for up to 10 minutes, because it may be saving a checkpoint. A target is done when NVML shows
/// its memory as free and nothing has taken it again within 5 seconds.
///
/// By default it targets your own processes that a rule reports as idle, orphaned or stopped; hung,
/// leak, placeholder and server-idle only with --kind. With --pid it targets the processes that you
/// name, with or without a finding, as `gpumem kill` does. Never terminated: system and shared services
/// (init, sshd, display servers, schedulers, container runtimes, the driver's daemons and so on), the
/// processes that started gpumem, and what the owner (GPUMEM_KEEP=2026-12-01 in its environment) or the
/// configuration (`[[keep]]`) keeps.
///
/// A process that a rule reports as idle, such as a notebook's kernel, is first asked to release
/// memory, as `gpumem release` does, and killed only if the rule still holds afterwards. A process that
/// a rule with action = "release" reports is only asked.
///
/// Targets are killed one at a time, most memory first; only --watch pauses after each one and limits
/// their number (`[reap]` in the configuration). Every act is written to the audit log before it is
/// done: /var/lib/gpumem/reap.jsonl for root, ~/.local/state/gpumem/reap.jsonl for other users;
/// --history shows it.
#[derive(Args, Debug, Default)]
#[command(after_help = EXIT_CODES_OF_REAP, mut_arg("store", |store| store.requires("watch")))]
pub struct ReapArgs {
    /// Target these processes, with or without a finding
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,

    /// Targets of any kind, as given to `gpumem kill` and `gpumem release`.
    #[arg(skip)]
    pub(in crate::cli) words: Vec<String>,

    /// Only ask the targets to release memory, for `gpumem release`.
    #[arg(skip)]
    pub(in crate::cli) release: Option<ReleaseOptions>,

    /// Only processes that hold memory on these GPUs, by index or UUID (or its beginning)
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Only processes of these users, by name or uid; other users' need --all-users
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Further selection.
    #[command(flatten)]
    pub terms: Where,

    /// Only findings of these kinds, even of disabled rules [default: orphan, stopped, idle]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<Kind>,

    /// Carry the plan out without asking
    #[arg(short, long, conflicts_with_all = ["dry_run", "history", "replay", "demo"])]
    pub yes: bool,

    /// Print the plan and do not ask
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// How targets are killed.
    #[command(flatten)]
    pub how: HowToKill,

    /// Include inference servers
    #[arg(long)]
    pub servers: bool,

    /// Print the plan and its outcome as one JSON document (gpumem.reap/1); does not ask
    #[arg(long)]
    pub json: bool,

    /// Show past acts, from the audit log; with --json as gpumem.history/1
    #[arg(
        long,
        conflicts_with_all = ["pid", "gpu", "user", "terms", "kind", "replay", "demo", "window"]
    )]
    pub history: bool,

    /// Run as a daemon: notify owners of findings, and terminate processes found by rules with action =
    /// "reap" after warning their owners
    ///
    /// The service unit is packaging/gpumem-reap.service. SIGHUP reloads the configuration. `gpumem man
    /// reap` describes how and when owners are warned.
    #[arg(
        long,
        conflicts_with_all = ["pid", "gpu", "user", "terms", "kind", "yes", "dry_run", "servers", "json", "history", "window", "replay", "demo"]
    )]
    pub watch: bool,

    /// The store that the daemon keeps.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Also serve what the daemon sees on this address, as `gpumem serve --listen` does
    #[arg(long, value_name = "ADDRESS", value_parser = super::address, requires = "watch")]
    pub serve: Option<SocketAddr>,

    /// How long to sample this machine before the plan [default: 30s, or 2s while `gpumem record --store`
    /// runs, or if processes are named]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from; for a recording there is only a plan.
    #[command(flatten)]
    pub recorded: Recorded,
}

/// How targets are killed, and which ones may be.
#[derive(Args, Clone, Debug, Default)]
pub struct HowToKill {
    /// The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<Signal>,

    /// How long to wait for each signal before the next one [default: 30s, 35s for the launcher of a
    /// distributed run]
    #[arg(long, value_name = "DURATION")]
    pub grace: Option<Span>,

    /// Also signal what a scheduler, a service manager or a container runtime owns, instead of printing
    /// the command to run
    #[arg(long)]
    pub direct: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Include graphics-only processes
    #[arg(long)]
    pub graphics: bool,

    /// Include named processes that GPUMEM_KEEP or the configuration keeps
    #[arg(long)]
    pub kept: bool,
}

impl ReapArgs {
    /// The same about what was typed as targets of a command.
    ///
    /// # Errors
    ///
    /// One cannot be anything.
    pub(in crate::cli) fn of_targets(self, targets: &[String]) -> Result<Self, UsageError> {
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

/// Kill processes of yours that hold GPU memory, and verify that the memory was freed
///
/// Shows the plan that `gpumem reap` makes for the named targets, and asks, unless --yes is given. It
/// exits with 1 if a named process is not killed, even if only because the answer is no.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_REAP)]
pub struct Kill {
    /// A PID, a notebook's path or the end of it, a kernel's id, a finding's id, a GPU (gpu:0, gpu:2-4, GPU-…) for
    /// all that is on it, the name of an inference server (vllm), or PID@TICKS@BOOT_ID: that process or none
    #[arg(value_name = "TARGET", required = true)]
    pub target: Vec<String>,

    /// Further selection; what does not match is left alone.
    #[command(flatten)]
    pub terms: Where,

    /// Do not ask
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan and do not ask
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// How targets are killed.
    #[command(flatten)]
    pub how: HowToKill,

    /// Whether the stored history is used; it is read only if a finding is named.
    #[command(flatten)]
    pub stored: Stored,
}

/// A pid as it is typed.
fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is no pid; `gpumem ps` lists them"))
}

/// Have processes release GPU memory that they do not need, without killing them, and verify that it
/// was freed
///
/// Finds how each process can be asked: an inference server unloads its models; a Jupyter kernel
/// empties the caches of its frameworks; a process that announces a signal (GPUMEM_RELEASE_SIGNAL) is
/// sent that signal. The process keeps running, with its variables, sessions and listeners. A busy process
/// is skipped. Prints a plan with what was verified about each process, and asks, unless --yes is given.
///
/// Memory counts as released if NVML shows that the process holds at least 16 MiB less than before, in
/// each of three samples in the 5 seconds afterwards. The last line says how to reload what the next
/// request does not load by itself. A process is not asked again within 60 seconds. If there is no way
/// to ask a process, the plan says why and what to do instead, and the exit code is 1.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_RELEASE)]
pub struct ReleaseArgs {
    /// A PID, a notebook's path or the end of it, a kernel's id, a finding's id, a GPU (gpu:0, gpu:2-4, GPU-…) for
    /// all that is on it, or the name of an inference server (vllm)
    #[arg(value_name = "TARGET", required = true)]
    pub target: Vec<String>,

    /// Further selection; what does not match is skipped.
    #[command(flatten)]
    pub terms: Where,

    /// Do not ask
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan and do not ask
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Time limit for each process
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub wait: Span,

    /// How long an inference server must be seen without a request before it is asked to unload
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub idle_for: Span,

    /// Ask a server (vLLM) even if host memory may not hold its weights
    #[arg(long)]
    pub force: bool,

    /// Do not run Python's garbage collector first (it runs finalizers of the program's objects)
    #[arg(long)]
    pub no_gc: bool,

    /// List what still holds memory: the largest tensors by name and size, never their values
    #[arg(long)]
    pub references: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Include what GPUMEM_KEEP or the configuration keeps
    #[arg(long)]
    pub kept: bool,

    /// Print the plan and its outcome as one JSON document (gpumem.release/1); does not ask for confirmation
    #[arg(long)]
    pub json: bool,

    /// Whether the stored history is used; it is read only if a finding is named.
    #[command(flatten)]
    pub stored: Stored,
}
