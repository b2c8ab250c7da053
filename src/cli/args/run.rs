//! Arguments of `gpumem run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use crate::units::{Amount, Bytes, Span};

const EXIT_CODES: &str = "\
Exit codes:
  that of COMMAND (128+N for signal N, 127 not found, 126 not executable), or
  1  --max-peak or --fail-on failed, a report not written, or GPUs not free
  2  wrong usage or configuration
  3  could not measure: no driver, or --max-peak or --fail-on is unknown";

/// Run a command, and report its GPU use, leaks, and processes left behind
///
/// COMMAND runs as it would without gpumem, with the same terminal, standard input and output,
/// environment, process group, signals and exit code. Meanwhile, gpumem samples the memory of COMMAND and
/// its descendants on every GPU, including descendants that detach from it. When COMMAND exits, gpumem
/// prints three lines on standard error. Processes that still hold GPU memory five seconds later are
/// listed with the command that frees it. gpumem itself kills nothing.
///
/// If COMMAND fails, the report shows for each GPU the sample with the least free memory, the memory of
/// other processes in that sample, and how much of it was unused. Processes that a daemon starts for
/// COMMAND (a container, a Slurm step, a systemd unit) are not its descendants.
///
/// If COMMAND succeeds, the exit code is 1 if --max-peak or --fail-on failed or a report could not be
/// written, and 3 if --max-peak or --fail-on could not be measured. If the GPUs are not free in
/// time (1), or there is no driver (3), COMMAND is not started.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// Wait for this many GPUs, and set CUDA_VISIBLE_DEVICES to them
    ///
    /// GPUs with the most free memory are chosen first. A GPU is not free if it is claimed, is drained,
    /// needs a reset, or is closed by its compute mode. If CUDA_VISIBLE_DEVICES is set, its order is kept.
    /// Without --wait-free, a GPU that another user's process uses is not free, unless --allow-others is
    /// given. --wait-free or --claim without a number of GPUs means one GPU. On a GPU in MIG mode, one MIG device
    /// can be chosen, if no other GPU is requested and --claim is not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "gpu")]
    pub gpus: Option<u32>,

    /// Wait for all of these GPUs, by index or UUID (or its beginning), in this order
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Wait until this much memory is free on each GPU, as in `check --wait-free`
    #[arg(long, value_name = "SIZE")]
    pub wait_free: Option<Bytes>,

    /// Without --wait-free, also choose GPUs that other users' processes use
    #[arg(long, conflicts_with = "wait_free")]
    pub allow_others: bool,

    /// How long to wait; then exit with 1 without starting COMMAND
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub timeout: Span,

    /// Reserve the GPUs against other `gpumem run`s until COMMAND exits; first come, first served
    #[arg(long)]
    pub claim: bool,

    /// Exit with 1 if COMMAND and its descendants hold more than this on a GPU
    ///
    /// A size (20GiB) or a share of the GPU's memory (90%).
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_peak: Option<Amount>,

    /// Exit with 1 on a leak, or if memory is still held five seconds after the exit
    ///
    /// A leak takes at least 15 minutes to detect. In a shorter run, `leak` is undecided: neither passed
    /// nor failed.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub fail_on: Vec<RunFailure>,

    /// Exit with 1 if --fail-on leak is undecided after a short run, or any assertion without a driver
    #[arg(long)]
    pub fail_on_undecided: bool,

    /// Write a report: FILE.json (gpumem.run/1), FILE.xml (JUnit) or FILE.md
    ///
    /// FILE is replaced at the start, so that no older report remains if COMMAND cannot be started. If FILE is $GITHUB_STEP_SUMMARY, Markdown is appended to it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Vec<PathBuf>,

    /// Maximum time between samples [default: 1s, or the configuration's]
    ///
    /// The first samples are 20ms apart, for short commands.
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Run COMMAND even without a driver; --max-peak and --fail-on are then undecided
    #[arg(long)]
    pub allow_no_gpu: bool,

    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,

    /// The command to run, and its arguments
    #[arg(
        value_name = "COMMAND",
        value_hint = ValueHint::CommandWithArguments,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    pub command: Vec<OsString>,
}

/// A reason to fail a successful run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RunFailure {
    /// The rule `leak` found a leak
    Leak,
    /// A process still held memory five seconds after the exit
    Held,
}
