//! What may be typed to `gpumem run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use crate::units::{Amount, Bytes, Span};

const EXIT_CODES: &str = "\
Exit codes:
  those of COMMAND (128+N if signal N ended it, 127 if it is not found, 126 if it cannot be run);
  1  COMMAND succeeded, and --max-peak or --fail-on failed, or a report could not be written;
     or the GPUs were not free in time, and COMMAND was not started
  2  wrong usage or configuration
  3  could not measure: no driver, and COMMAND was not started; or COMMAND succeeded, and it is unknown whether
     --max-peak or --fail-on passed";

/// Run a command, and report its GPU use, whether it leaked, and what it left behind
///
/// COMMAND runs as it would without gpumem: the same terminal, standard input and output, environment,
/// process group, signals and exit code. Meanwhile gpumem samples what it and its descendants hold on
/// every GPU, including descendants that detach from it. At its end three lines on standard error
/// report its use; processes that still hold GPU memory five seconds later are listed with the command
/// that frees it. gpumem ends nothing itself.
///
/// If COMMAND fails, the report shows the least free memory of each GPU, what other processes held at
/// that time, and how much of it was unused. Processes that a daemon starts for COMMAND (a container, a
/// Slurm step, a systemd unit) are not among its descendants.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// Wait for this many GPUs, those with the most free memory first, and show COMMAND only these
    /// (CUDA_VISIBLE_DEVICES)
    ///
    /// A GPU that is claimed, drained, in need of a reset, or closed by its compute mode is not free. If
    /// CUDA_VISIBLE_DEVICES is set, its order is kept. --wait-free or --claim alone means one GPU.
    /// Of a GPU divided by MIG, one MIG device can be chosen, by itself and without --claim.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "gpu")]
    pub gpus: Option<u32>,

    /// Wait for these GPUs, all of them, in this order (index, UUID or its beginning)
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// A GPU counts as free with this much free memory, as for `check --wait-free`
    #[arg(long, value_name = "SIZE")]
    pub wait_free: Option<Bytes>,

    /// How long to wait; then exit with 1, and COMMAND is not started
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub timeout: Span,

    /// Claim the GPUs, so that no other `gpumem run` takes them until COMMAND has ended; first come,
    /// first served
    #[arg(long)]
    pub claim: bool,

    /// Exit with 1 if COMMAND and its descendants held more than this on a GPU
    ///
    /// A size (20GiB) or a share of the GPU's memory (90%).
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_peak: Option<Amount>,

    /// Exit with 1 if memory leaked, or is still held five seconds after the end
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub fail_on: Vec<RunFailure>,

    /// Write a report in the format of the file name extension: .json (gpumem.run/1), .xml (JUnit) or
    /// .md; the file $GITHUB_STEP_SUMMARY is appended to
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Vec<PathBuf>,

    /// The longest time between samples; the first ones are 50ms apart, for short commands [default:
    /// 1s, or the configuration's]
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Run COMMAND even if there is no driver, and say so
    #[arg(long)]
    pub allow_no_gpu: bool,

    /// Print nothing but errors
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

/// What fails a run, besides the command itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RunFailure {
    /// The memory of a process grew throughout, according to the rule `leak`
    Leak,
    /// A process still held memory five seconds after the end
    Held,
}
