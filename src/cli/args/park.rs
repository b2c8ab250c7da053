//! Arguments of `gpumem park` and `gpumem unpark`.

use clap::Args;

use super::EXIT_CODES_OF_PARK;
use crate::units::Span;

/// Move a process's GPU memory to host memory and keep the process (experimental)
///
/// The process keeps running, with all of its state. Its next CUDA call waits until `gpumem unpark` has moved the memory
/// back to the same GPU. gpumem uses the checkpoint functions of driver 570 or newer. It prints a plan with the reasons
/// why a process cannot be parked, and asks for confirmation unless --yes is given. Success means that NVML shows the
/// memory as free.
///
/// A process is parked only if gpumem can show that it is idle, alone in its job and no server, that host memory is
/// sufficient, and that the driver supports its memory. The memory is lost if the machine restarts, the driver is
/// reloaded or the process ends. The operation runs in a helper process, which finishes even if gpumem is interrupted.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PARK)]
pub struct ParkArgs {
    /// A PID, a notebook's path or a finding's id
    ///
    /// For a notebook, the end of its path or the id of its kernel is enough.
    #[arg(value_name = "TARGET", required_unless_present = "list")]
    pub target: Vec<String>,

    /// List the parked processes, since when, how much, and whether there is room to restore them
    #[arg(long, conflicts_with_all = ["target", "yes", "dry_run", "all_users", "kept"])]
    pub list: bool,

    /// Carry out the plan without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print the plan without asking
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Include other users' processes
    #[arg(long)]
    pub all_users: bool,

    /// Include processes that GPUMEM_KEEP or the configuration protects
    #[arg(long)]
    pub kept: bool,
}

/// Move the memory of parked processes back to their GPUs (experimental)
///
/// Also unlocks a process whose park was interrupted. gpumem restores a process only if enough memory is free on the
/// same GPU, because a restore that fails for lack of memory cannot be repeated. Success means that NVML shows the memory
/// of the process again.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PARK)]
pub struct UnparkArgs {
    /// A PID or a notebook's path as in `gpumem park --list`, or all
    #[arg(value_name = "TARGET", required_unless_present = "watch")]
    pub target: Vec<String>,

    /// Run until a signal, and restore each parked notebook when it runs a cell
    ///
    /// If too little memory is free, prints who holds it, and waits. gpumem cannot tell that another process needs the
    /// GPU. `gpumem reap --watch` does the same.
    #[arg(long, conflicts_with_all = ["target", "wait_free"])]
    pub watch: bool,

    /// Wait until enough memory is free, at most for this time
    #[arg(long, value_name = "DURATION")]
    pub wait_free: Option<Span>,
}
