//! Why a rule could not decide, each reason once.

use std::sync::Arc;

use crate::model::Gpu;
use crate::model::finding::Undecided;
use crate::units::Span;

/// More reasons than this are not listed: a person reads them.
const MOST_DOUBTS: usize = 32;

/// Why a rule could not be decided.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum UndecidedReason {
    /// The history is shorter than what the rule asks for; seconds.
    ShortHistory {
        /// What it asks for.
        needed: f64,
        /// What there is.
        seen: f64,
    },
    /// The driver does not tell which process used the GPU.
    NoUtilization {
        /// NVML's index.
        gpu: u32,
    },
    /// Samples are missing.
    Gaps {
        /// NVML's index.
        gpu: u32,
        /// The share of the time that samples cover, 0 to 1.
        covered: f64,
        /// How many there are.
        samples: u64,
        /// The least share that the rule asks for.
        least_covered: f64,
        /// The fewest samples that it asks for.
        least_samples: u64,
    },
    /// The CPU use of a process is not known.
    NoCpu {
        /// The process.
        pid: u32,
    },
    /// What a process reads, writes and sends is not known.
    NoIo {
        /// The process.
        pid: u32,
    },
    /// What a notebook's kernel does is not known.
    NoKernelState {
        /// The process.
        pid: u32,
    },
    /// Whether the job that started a process is gone is not known.
    NoParentage {
        /// The process.
        pid: u32,
    },
    /// What a process holds is not known.
    NoMemory {
        /// The process.
        pid: u32,
        /// NVML's index.
        gpu: u32,
    },
    /// Who a process is cannot be told for certain.
    Unresolved {
        /// The process.
        pid: u32,
        /// NVML's index.
        gpu: u32,
    },
    /// A GPU does not answer.
    Stale {
        /// NVML's index.
        gpu: u32,
        /// For how long.
        seconds: Span,
    },
    /// The process list of a GPU could not be read.
    NoList {
        /// NVML's index.
        gpu: u32,
    },
    /// A process, or one of its family, may be on a GPU whose process list could not be read.
    Elsewhere {
        /// The process.
        pid: u32,
        /// NVML's index of the GPU.
        gpu: u32,
    },
    /// The GPU was used, and the driver's samples put that down to none of its processes.
    Unexplained {
        /// NVML's index.
        gpu: u32,
    },
    /// A reading of a GPU that the rule rests on is missing.
    NoReading {
        /// NVML's index.
        gpu: u32,
        /// What is missing: `power`, `memory`.
        what: &'static str,
    },
    /// Whether the pids are the host's own.
    NoNamespace,
    /// What a process held when it started was not sampled.
    StartUnseen {
        /// The process.
        pid: u32,
    },
}

impl UndecidedReason {
    /// Of a GPU that does not answer, or whose process list could not be read; `None` of any other.
    pub fn of_silent(gpu: &Gpu) -> Option<Self> {
        match (gpu.stale_seconds, &gpu.processes) {
            (Some(seconds), _) => {
                Some(Self::Stale { gpu: gpu.index, seconds: Span::from_seconds(seconds) })
            }
            (None, None) => Some(Self::NoList { gpu: gpu.index }),
            (None, Some(_)) => None,
        }
    }

    /// The process that it is about.
    fn pid(self) -> Option<u32> {
        match self {
            Self::NoCpu { pid }
            | Self::NoIo { pid }
            | Self::NoKernelState { pid }
            | Self::NoParentage { pid }
            | Self::NoMemory { pid, .. }
            | Self::Unresolved { pid, .. }
            | Self::Elsewhere { pid, .. }
            | Self::StartUnseen { pid } => Some(pid),
            Self::ShortHistory { .. }
            | Self::NoUtilization { .. }
            | Self::Gaps { .. }
            | Self::Stale { .. }
            | Self::NoList { .. }
            | Self::Unexplained { .. }
            | Self::NoReading { .. }
            | Self::NoNamespace => None,
        }
    }

    /// The GPU that it is about, by NVML's index.
    fn gpu(self) -> Option<u32> {
        match self {
            Self::NoUtilization { gpu }
            | Self::Gaps { gpu, .. }
            | Self::NoMemory { gpu, .. }
            | Self::Unresolved { gpu, .. }
            | Self::Stale { gpu, .. }
            | Self::NoList { gpu }
            | Self::Elsewhere { gpu, .. }
            | Self::Unexplained { gpu }
            | Self::NoReading { gpu, .. } => Some(gpu),
            Self::ShortHistory { .. }
            | Self::NoCpu { .. }
            | Self::NoIo { .. }
            | Self::NoKernelState { .. }
            | Self::NoParentage { .. }
            | Self::NoNamespace
            | Self::StartUnseen { .. } => None,
        }
    }

    fn reason(self) -> String {
        match self {
            Self::ShortHistory { needed, seen } => {
                let wait = Span::from_seconds((needed - seen.floor()).max(1.0));
                let needed = Span::from_seconds(needed).exact();
                format!("can tell in {wait}: it needs {needed} of history")
            }
            Self::NoUtilization { gpu } => {
                format!("the driver gives no per-process utilization on GPU {gpu}")
            }
            Self::Gaps { gpu, covered, samples, least_covered, least_samples } => format!(
                "{samples} {} {:.0} % of the time on GPU {gpu}, {:.0} % and \
                 {least_samples} samples are needed",
                match samples {
                    1 => "sample covers",
                    _ => "samples cover",
                },
                (covered * 100.0).floor(),
                least_covered * 100.0
            ),
            Self::NoIo { pid } => {
                format!("what process {pid} reads, writes and sends is not known")
            }
            Self::NoCpu { pid } => format!("the CPU use of process {pid} is not known"),
            Self::NoKernelState { pid } => {
                format!(
                    "what the notebook's kernel {pid} does is not known: its server does not report it"
                )
            }
            Self::NoParentage { pid } => {
                format!("whether process {pid} outlived its job is not known")
            }
            Self::NoMemory { pid, gpu } => {
                format!("the driver does not report the memory of process {pid} on GPU {gpu}")
            }
            Self::Unresolved { pid, gpu } => {
                format!("GPU {gpu} lists pid {pid}, whose process is not certain")
            }
            Self::Stale { gpu, seconds } => format!("GPU {gpu} has not answered for {seconds}"),
            Self::NoList { gpu } => format!("the process list of GPU {gpu} could not be read"),
            Self::Elsewhere { pid, gpu } => format!(
                "process {pid}, or one of its family, may be on GPU {gpu}, whose process list could not \
                 be read"
            ),
            Self::Unexplained { gpu } => format!(
                "GPU {gpu} was used, and the driver does not report by which of its processes"
            ),
            Self::NoReading { gpu, what } => format!("the {what} of GPU {gpu} is not known"),
            Self::NoNamespace => "whether the pids are the host's own is not known".to_owned(),
            Self::StartUnseen { pid } => {
                format!("what process {pid} held when it started was not sampled")
            }
        }
    }
}

/// The reasons why a rule is undecided, each once.
#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<UndecidedReason>);

impl Doubts {
    pub(super) fn add(&mut self, doubt: UndecidedReason) {
        if let UndecidedReason::ShortHistory { needed, seen } = doubt {
            // Of several that are too young, the youngest says how long it takes.
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

    /// What the rule of this name could not decide, and why.
    pub(super) fn name(&self, rule: &Arc<str>) -> impl Iterator<Item = Undecided> {
        self.0.iter().map(|doubt| Undecided {
            rule: Arc::clone(rule),
            pid: doubt.pid(),
            gpu: doubt.gpu(),
            reason: doubt.reason(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_is_not_several() {
        let of = |samples| {
            let gaps = UndecidedReason::Gaps {
                gpu: 0,
                covered: 0.25,
                samples,
                least_covered: 0.75,
                least_samples: 3,
            };
            gaps.reason()
        };
        assert!(of(1).starts_with("1 sample covers 25 % of the time"));
        assert!(of(2).starts_with("2 samples cover 25 % of the time"));
    }
}
