//! What may be typed to `gpumem release`.

use clap::Args;

use super::{EXIT_CODES, Stored, Where};
use crate::units::Span;

/// Have processes release GPU memory that they do not need, without ending them, and verify that it came back
///
/// Finds how each process can be asked: an inference server unloads its models, a Jupyter kernel, or a
/// CPython of 3.14 or later, empties the caches of its frameworks, and a process that announces a signal
/// (GPUMEM_RELEASE_SIGNAL) is sent it. The process lives on: variables, sessions and listeners stay. One that
/// is busy is left alone. Prints a plan with what was proved of each, and asks, unless --yes is given.
///
/// Released is what NVML shows: what the process holds less than before, at the least of three samples in the
/// 5 seconds after it was done. Less than 16 MiB is nothing to release. The last line says how to wake what
/// does not wake by itself. A process is not asked again within 60 seconds. Where there is no way in, it says
/// why, and what to do instead, and exits with 1.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct ReleaseArgs {
    /// A PID, a notebook's path or the end of it, a kernel's id, a finding's id, or the name of an inference
    /// server
    #[arg(value_name = "TARGET", required = true)]
    pub target: Vec<String>,

    /// What else has to be so of them; what does not fit is left alone.
    #[command(flatten)]
    pub terms: Where,

    /// Do not ask
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan and do not ask
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// How long each may take
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub wait: Span,

    /// Do not collect garbage first, which runs finalizers of the program's objects
    #[arg(long)]
    pub no_gc: bool,

    /// Name what still holds memory: the largest tensors by name and size, never their values
    #[arg(long)]
    pub references: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Print the plan and its outcome as one JSON document (gpumem.release/1); does not ask
    #[arg(long)]
    pub json: bool,

    /// Whether the stored history counts; it is read where a finding is named.
    #[command(flatten)]
    pub stored: Stored,
}
