//! What may be typed to `gpumem explain`.

use clap::Args;

use super::{EXIT_CODES, Recorded, Stored};
use crate::units::{Bytes, Span};

/// Explain one process, GPU or finding: whose, since when, why, and what to do
///
/// Shows what the process or GPU is, its owner and start, how its memory changed, its findings with
/// their evidence, what holds it, and what would free the memory, gentlest first. If `gpumem record
/// --store` is running, its history is used; otherwise a short sample is, and the page lists what that
/// cannot show. With --replay or --demo it describes the end of the recording.
///
/// With --oom it explains a moment at which a GPU had no memory left.
///
/// With --framework it explains how a framework takes memory, what returns it and what does not; that
/// needs no GPU. With --snippet it prints code for your own program that releases memory when asked.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Explain {
    /// A PID, a notebook's path or the end of it, a kernel's id, a GPU (gpu:0, GPU-…, MIG-…), a
    /// finding's id as printed by check --json or the beginning of one if unambiguous, or the name of
    /// an inference server (vllm)
    #[arg(
        value_name = "TARGET",
        required_unless_present_any = ["framework", "snippet", "oom"],
        conflicts_with_all = ["framework", "oom"]
    )]
    pub target: Option<String>,

    /// Explain a framework; without NAME, list the known ones
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = "list",
        conflicts_with_all = ["window", "replay", "demo", "no_store"]
    )]
    pub framework: Option<String>,

    /// Print a signal handler in Python, to paste into a program, that releases cached memory when
    /// `gpumem release` asks; for PyTorch, TensorFlow, JAX and CuPy. With --framework tensorflow:
    /// training in a child process that saves and exits when asked, because TensorFlow's own pool is
    /// freed only when its process exits
    #[arg(long, conflicts_with_all = ["target", "json", "window", "replay", "demo"])]
    pub snippet: bool,

    /// Explain why a GPU had no memory left: who held it, how much of it was unused, and what would
    /// have been enough
    #[arg(long, conflicts_with_all = ["framework", "snippet", "window"])]
    pub oom: bool,

    /// With --oom, the time: 10:04, 2026-11-21 10:04:30 or, on this machine, -5m [default: now, or the
    /// recording's end]
    ///
    /// The page describes the last sample up to that time, in a recording or in the history that
    /// `gpumem record --store` keeps.
    #[arg(long, value_name = "TIME", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"], allow_hyphen_values = true)]
    pub at: Option<String>,

    /// With --oom, the GPU, by index or UUID [default: the one with the least memory free]
    #[arg(long, value_name = "GPU", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub gpu: Option<String>,

    /// With --oom, the size of the failed allocation, as in the program's message
    #[arg(long, value_name = "SIZE", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub asked: Option<Bytes>,

    /// Print the page as JSON (gpumem.explain/1)
    #[arg(long)]
    pub json: bool,

    /// How long to sample this machine first; CPU and GPU use over time is known only with a window or
    /// a stored history [default: a single sample; for a finding until it is found, at most 2s]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,
}
