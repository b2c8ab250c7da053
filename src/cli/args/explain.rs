//! What may be typed to `gpumem explain`.

use clap::Args;

use super::{EXIT_CODES, Recorded, Stored};
use crate::units::{Bytes, Span};

/// Explain one process, GPU or finding: whose, since when, why, and what to do
///
/// Shows what it is, whose and since when, how its memory changed, its findings with their evidence,
/// what holds it, and what would free the memory, gentlest first. If `gpumem record --store` is
/// running,
/// its history is used; otherwise a short sample is, and the page lists what that cannot show. With
/// --replay or --demo it describes the recording's end.
///
/// With --oom it explains a moment at which a GPU had no memory left.
///
/// With --framework it explains how a framework takes memory, what returns it and what does not; no GPU
/// is needed for that. With --snippet it prints code for a program of one's own that gives memory back when
/// asked.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Explain {
    /// A PID, a notebook's path or the end of it, a kernel's id, a GPU (gpu:0, GPU-…, MIG-…), a finding's id, which
    /// check --json prints, or the beginning of one that no other has, or the name of an inference server (vllm)
    #[arg(
        value_name = "TARGET",
        required_unless_present_any = ["framework", "snippet", "oom"],
        conflicts_with_all = ["framework", "oom"]
    )]
    pub target: Option<String>,

    /// Explain a framework; without NAME, list those that are known
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = "list",
        conflicts_with_all = ["window", "replay", "demo", "no_store"]
    )]
    pub framework: Option<String>,

    /// Print a signal handler in Python, to paste into a program, by which it gives cached memory back when `gpumem
    /// release` asks; for PyTorch, TensorFlow, JAX and CuPy. With --framework tensorflow: training in a child process
    /// that saves and ends when asked, as TensorFlow's own pool is returned with its process only
    #[arg(long, conflicts_with_all = ["target", "json", "window", "replay", "demo"])]
    pub snippet: bool,

    /// Explain why a GPU had no memory left: who held it, which of it was unused, and what would have sufficed
    #[arg(long, conflicts_with_all = ["framework", "snippet", "window"])]
    pub oom: bool,

    /// With --oom, when that was: 10:04, 2026-11-21 10:04:30 or, on this machine, -5m [default: now, or the recording's
    /// end]
    ///
    /// What is told is of the last sample until then: in a recording, or in the history that `gpumem record --store`
    /// keeps.
    #[arg(long, value_name = "TIME", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"], allow_hyphen_values = true)]
    pub at: Option<String>,

    /// With --oom, the GPU, by index or UUID [default: the one with the least memory free]
    #[arg(long, value_name = "GPU", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub gpu: Option<String>,

    /// With --oom, how much was asked for, as the program's message says
    #[arg(long, value_name = "SIZE", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub asked: Option<Bytes>,

    /// Print the page as JSON (gpumem.explain/1)
    #[arg(long)]
    pub json: bool,

    /// How long to sample this machine first; use of CPU and GPU over time is known only with a window or a
    /// stored history [default: a single sample; for a finding until it is found, 2s at most]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Whether the stored history counts.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,
}
