//! Why a rule is undecided.

use std::sync::Arc;

use crate::model::Gpu;
use crate::model::finding::Undecided;
use crate::units::Span;

/// How many reasons are listed; people read the list.
const MOST_DOUBTS: usize = 32;

/// Why a rule is undecided. GPUs are NVML's indexes, times are in seconds, shares from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum UndecidedReason {
    ShortHistory {
        needed: f64,
        seen: f64,
    },
    /// The driver does not report which process used the GPU.
    NoUtilization {
        gpu: u32,
    },
    Gaps {
        gpu: u32,
        covered: f64,
        samples: u64,
        least_covered: f64,
        least_samples: u64,
    },
    NoCpu {
        pid: u32,
    },
    /// Whether the job that started a process is gone is unknown.
    NoParentage {
        pid: u32,
    },
    NoMemory {
        pid: u32,
        gpu: u32,
    },
    Unresolved {
        pid: u32,
        gpu: u32,
    },
    Stale {
        gpu: u32,
        seconds: Span,
    },
    NoList {
        gpu: u32,
    },
    /// A process, or a member of its family, may be on a GPU whose process list could not be read.
    Elsewhere {
        pid: u32,
        gpu: u32,
    },
    /// The GPU was used, but the driver's samples attribute the use to no process.
    Unexplained {
        gpu: u32,
    },
    /// A GPU reading that the rule needs is missing: `power`, `memory`.
    NoReading {
        gpu: u32,
        what: &'static str,
    },
    /// Whether pids are the host's own is unknown.
    NoNamespace,
}

impl UndecidedReason {
    /// The reason for a GPU that does not answer or whose process list could not be read; otherwise `None`.
    pub fn of_silent(gpu: &Gpu) -> Option<Self> {
        match (gpu.stale_seconds, &gpu.processes) {
            (Some(seconds), _) => {
                Some(Self::Stale { gpu: gpu.index, seconds: Span::from_seconds(seconds) })
            }
            (None, None) => Some(Self::NoList { gpu: gpu.index }),
            (None, Some(_)) => None,
        }
    }

    fn of_rule(self, rule: &Arc<str>) -> Undecided {
        let (pid, gpu, reason) = match self {
            Self::ShortHistory { needed, seen } => {
                let wait = Span::from_seconds((needed - seen.floor()).max(1.0));
                let needed = Span::from_seconds(needed).exact();
                (None, None, format!("decided in {wait} (needs {needed} of history)"))
            }
            Self::NoUtilization { gpu } => {
                let reason = format!("the driver gives no per-process utilization on GPU {gpu}");
                (None, Some(gpu), reason)
            }
            Self::Gaps { gpu, covered, samples, least_covered, least_samples } => {
                let cover = if samples == 1 { "sample covers" } else { "samples cover" };
                let (covered, least) = ((covered * 100.0).floor(), least_covered * 100.0);
                let reason = format!(
                    "{samples} {cover} {covered:.0} % of the time on GPU {gpu}, {least:.0} % and \
                     {least_samples} samples are needed"
                );
                (None, Some(gpu), reason)
            }
            Self::NoCpu { pid } => {
                (Some(pid), None, format!("the CPU use of process {pid} is not known"))
            }
            Self::NoParentage { pid } => {
                (Some(pid), None, format!("whether process {pid} outlived its job is not known"))
            }
            Self::NoMemory { pid, gpu } => {
                let reason =
                    format!("the driver does not report the memory of process {pid} on GPU {gpu}");
                (Some(pid), Some(gpu), reason)
            }
            Self::Unresolved { pid, gpu } => {
                let reason = format!("GPU {gpu} lists pid {pid}, whose process is not certain");
                (Some(pid), Some(gpu), reason)
            }
            Self::Stale { gpu, seconds } => {
                (None, Some(gpu), format!("GPU {gpu} has not answered for {seconds}"))
            }
            Self::NoList { gpu } => {
                (None, Some(gpu), format!("the process list of GPU {gpu} could not be read"))
            }
            Self::Elsewhere { pid, gpu } => {
                let reason = format!(
                    "process {pid}, or one of its family, may be on GPU {gpu}, whose process list \
                     could not be read"
                );
                (Some(pid), Some(gpu), reason)
            }
            Self::Unexplained { gpu } => {
                let reason = format!(
                    "GPU {gpu} was used, and the driver does not report by which of its processes"
                );
                (None, Some(gpu), reason)
            }
            Self::NoReading { gpu, what } => {
                (None, Some(gpu), format!("the {what} of GPU {gpu} is not known"))
            }
            Self::NoNamespace => {
                (None, None, "whether the pids are the host's own is not known".to_owned())
            }
        };
        Undecided { rule: Arc::clone(rule), pid, gpu, reason }
    }
}

#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<UndecidedReason>);

impl Doubts {
    pub(super) fn add(&mut self, doubt: UndecidedReason) {
        if let UndecidedReason::ShortHistory { needed, seen } = doubt {
            // If several histories are too short, report the longest wait.
            let same = self.0.iter_mut().find_map(|known| match known {
                UndecidedReason::ShortHistory { needed: for_one, seen } if *for_one == needed => {
                    Some(seen)
                }
                _ => None,
            });
            if let Some(least) = same {
                *least = least.min(seen);
                return;
            }
        }
        if self.0.len() < MOST_DOUBTS && !self.0.contains(&doubt) {
            self.0.push(doubt);
        }
    }

    pub(super) fn name(&self, rule: &Arc<str>) -> impl Iterator<Item = Undecided> {
        self.0.iter().map(|doubt| doubt.of_rule(rule))
    }
}
