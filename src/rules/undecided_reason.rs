//! Reasons why a rule is undecided.

use std::sync::Arc;

use crate::model::Gpu;
use crate::model::finding::Undecided;
use crate::units::Span;

/// Maximum number of reasons listed per rule, so that the list stays readable.
const MOST_DOUBTS: usize = 32;

/// Reason why a rule is undecided. GPUs are identified by NVML index, times are in seconds, and shares range from 0
/// to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum UndecidedReason {
    ShortHistory {
        needed: f64,
        observed: f64,
    },
    /// The driver does not report which process uses the GPU.
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
    /// It is unknown whether the process's parent or group leader is gone.
    NoParentage {
        pid: u32,
    },
    /// Clients could connect to the process, but no connection was observed.
    MayServe {
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
    /// The process or a member of its family may also use a GPU whose process list could not be read.
    Elsewhere {
        pid: u32,
        gpu: u32,
    },
    /// The GPU was used, but the driver does not attribute the use to any process.
    Unexplained {
        gpu: u32,
    },
    /// A reading that the rule needs, such as `power` or `memory`, is missing for the GPU.
    NoReading {
        gpu: u32,
        quantity: &'static str,
    },
    NoNamespace,
}

impl UndecidedReason {
    /// Returns a reason if the GPU does not answer or its process list is unknown, otherwise `None`.
    pub fn for_unresponsive_gpu(gpu: &Gpu) -> Option<Self> {
        match (gpu.stale_seconds, &gpu.processes) {
            (Some(seconds), _) => {
                Some(Self::Stale { gpu: gpu.index, seconds: Span::from_seconds(seconds) })
            }
            (None, None) => Some(Self::NoList { gpu: gpu.index }),
            (None, Some(_)) => None,
        }
    }

    fn to_undecided(self, rule: &Arc<str>) -> Undecided {
        let (pid, gpu, reason) = match self {
            Self::ShortHistory { needed, observed } => {
                let wait = Span::from_seconds((needed - observed.floor()).max(1.0));
                let needed = Span::from_seconds(needed).exact();
                (None, None, format!("decided in {wait} (needs {needed} of history)"))
            }
            Self::NoUtilization { gpu } => {
                let reason = format!("the driver gives no per-process utilization on GPU {gpu}");
                (None, Some(gpu), reason)
            }
            Self::Gaps { gpu, covered, samples, least_covered, least_samples } => {
                let cover = if samples == 1 { "sample covers" } else { "samples cover" };
                let (covered, needed) = ((covered * 100.0).floor(), least_covered * 100.0);
                let reason = format!(
                    "{samples} {cover} {covered:.0} % of the time on GPU {gpu}, {needed:.0} % and \
                     {least_samples} samples are needed"
                );
                (None, Some(gpu), reason)
            }
            Self::NoCpu { pid } => {
                (Some(pid), None, format!("the CPU use of process {pid} is unknown"))
            }
            Self::NoParentage { pid } => {
                (Some(pid), None, format!("it is unknown whether process {pid} outlived its job"))
            }
            Self::MayServe { pid } => {
                let reason =
                    format!("it is unknown whether the listening process {pid} has clients");
                (Some(pid), None, reason)
            }
            Self::NoMemory { pid, gpu } => {
                let reason =
                    format!("the driver does not report the memory of process {pid} on GPU {gpu}");
                (Some(pid), Some(gpu), reason)
            }
            Self::Unresolved { pid, gpu } => {
                let reason =
                    format!("pid {pid} on GPU {gpu} cannot be matched to a process with certainty");
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
                let reason =
                    format!("GPU {gpu} was used, but the driver does not report by which process");
                (None, Some(gpu), reason)
            }
            Self::NoReading { gpu, quantity } => {
                (None, Some(gpu), format!("the {quantity} of GPU {gpu} is unknown"))
            }
            Self::NoNamespace => {
                (None, None, "it is unknown whether the pids are the host's".to_owned())
            }
        };
        Undecided { rule: Arc::clone(rule), pid, gpu, reason }
    }
}

#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<UndecidedReason>);

impl Doubts {
    pub(super) fn add(&mut self, doubt: UndecidedReason) {
        if let UndecidedReason::ShortHistory { needed, observed } = doubt {
            // Of the processes with the same required time, keep only the one that must wait longest.
            let same = self.0.iter_mut().find_map(|doubt| match doubt {
                UndecidedReason::ShortHistory { needed: for_one, observed }
                    if *for_one == needed =>
                {
                    Some(observed)
                }
                _ => None,
            });
            if let Some(shortest) = same {
                *shortest = shortest.min(observed);
                return;
            }
        }
        if self.0.len() < MOST_DOUBTS && !self.0.contains(&doubt) {
            self.0.push(doubt);
        }
    }

    pub(super) fn to_undecided(&self, rule: &Arc<str>) -> impl Iterator<Item = Undecided> {
        self.0.iter().map(|doubt| doubt.to_undecided(rule))
    }
}
