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
/// COMMAND runs as it would without gpumem, with the same terminal, standard input and output, process group, signals
/// and exit code. Its environment changes only if gpumem chooses GPUs, which sets CUDA_VISIBLE_DEVICES. Meanwhile,
/// gpumem samples the memory of COMMAND and its descendants on every GPU. Descendants that detach from COMMAND are
/// included. When COMMAND exits, gpumem prints three lines on standard
/// error. Processes that still hold GPU memory five seconds later are listed with the command that frees it. gpumem
/// itself does not kill anything.
///
/// If COMMAND fails, the report shows for each GPU the sample with the least free memory, how much memory other
/// processes held at that time, and how much of it was unused. Processes that a daemon starts for COMMAND (a
/// container, a Slurm step, a systemd unit) do not count as descendants.
///
/// If COMMAND succeeds, the exit code is 1 if --max-peak or --fail-on failed or a report could not be written, and 3
/// if --max-peak or --fail-on could not be measured. If the GPUs do not become free in time (exit code 1), or if
/// there is no driver (3), COMMAND is not started.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// Wait for this number of GPUs, and set CUDA_VISIBLE_DEVICES to them
    ///
    /// GPUs with the most free memory are chosen first. A GPU is not free if it is claimed, is drained, needs a
    /// reset, or is closed by its compute mode. If CUDA_VISIBLE_DEVICES is set, its order is kept. Without
    /// --wait-free, a GPU is not free either if another user's process uses it, unless --allow-others is given.
    /// --wait-free or --claim without a number of GPUs means one GPU. A MIG device can be chosen only if one GPU is
    /// requested and --claim is not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "gpu")]
    pub gpus: Option<u32>,

    /// Wait for all of these GPUs, by index, UUID, UUID prefix or device file, and use them in this order
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Wait until this much memory is free on each GPU, as in `check --wait-free`
    #[arg(long, value_name = "SIZE")]
    pub wait_free: Option<Bytes>,

    /// Without --wait-free, also choose GPUs in use by other users' processes
    #[arg(long, conflicts_with = "wait_free")]
    pub allow_others: bool,

    /// How long to wait before exiting with 1 without starting COMMAND
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub timeout: Span,

    /// Reserve the GPUs against other `gpumem run`s until COMMAND exits (first come, first served)
    ///
    /// A `gpumem run` inside COMMAND chooses among these GPUs only.
    #[arg(long)]
    pub claim: bool,

    /// Exit with 1 if COMMAND and its descendants hold more memory than this on a GPU
    ///
    /// Accepts a size (20GiB) or a share of the GPU's memory (90%).
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_peak: Option<Amount>,

    /// Exit with 1 on a leak, or if memory is still held five seconds after the exit
    ///
    /// A leak takes at least 15 minutes to detect. In a shorter run, `leak` is undecided and neither passes nor
    /// fails.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub fail_on: Vec<RunFailure>,

    /// Exit with 1 if an assertion is undecided: `leak` after a short run, or any without a driver
    #[arg(long)]
    pub fail_on_undecided: bool,

    /// Write a report: FILE.json (gpumem.run/1) or FILE.xml (JUnit)
    ///
    /// FILE is replaced immediately, so that no old report remains.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Vec<PathBuf>,

    /// Maximum time between samples [default: 1s, or as configured]
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

/// Reason to fail a run although COMMAND succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RunFailure {
    /// The rule `leak` found a leak
    Leak,
    /// A process still held memory five seconds after the exit
    Held,
}
