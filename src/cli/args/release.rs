//! What may be typed to `gpumem release`.

use clap::Args;

use super::{EXIT_CODES_OF_RELEASE, Stored, Where};
use crate::units::Span;

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
