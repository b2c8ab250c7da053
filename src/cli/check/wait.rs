//! `--wait-free`: is so much memory free yet? Pure: the snapshots bring their time.
//!
//! A GPU that is lost or stale has an unknown amount free, which is never enough. One that somebody has claimed is not
//! free to take, unless it was asked about by name.

use std::sync::Arc;

use crate::cli::args::WaitFree;
use crate::cli::selection::names;
use crate::model::{Gpu, Time};
use crate::report::check::WaitVerdict;
use crate::units::Span;

/// The requested memory, and the progress of the wait.
#[derive(Debug)]
pub(super) struct Wait {
    wants: Vec<Want>,
    timeout: Span,
    waited_seconds: f64,
    latest: Option<Time>,
}

#[derive(Debug)]
struct Want {
    wanted: WaitFree,
    /// The GPU that has the memory free, or that had the most free so far.
    nearest: Option<Nearest>,
    satisfied: bool,
}

#[derive(Clone, Debug)]
struct Nearest {
    gpu: u32,
    uuid: Option<Arc<str>>,
    free_bytes: u64,
    is_claimed: bool,
}

impl Wait {
    pub(super) fn new(wanted: &[WaitFree], timeout: Span) -> Self {
        let want =
            |wanted: &WaitFree| Want { wanted: wanted.clone(), nearest: None, satisfied: false };
        Self {
            wants: wanted.iter().map(want).collect(),
            timeout,
            waited_seconds: 0.0,
            latest: None,
        }
    }

    /// Whether a snapshot of this time comes after the timeout.
    pub(super) fn is_too_late(&self, time: Time) -> bool {
        self.waited_at(time) > self.timeout.seconds()
    }

    /// Time waited until `time`; a clock that went back adds nothing.
    fn waited_at(&self, time: Time) -> f64 {
        let step = self.latest.map_or(0.0, |latest| time.seconds_since(latest));
        self.waited_seconds + step.max(0.0)
    }

    /// Adds a sample of these GPUs.
    pub(super) fn observe(&mut self, time: Time, gpus: &[Gpu]) {
        self.waited_seconds = self.waited_at(time);
        self.latest = Some(time);
        for want in &mut self.wants {
            let most = want.candidates(gpus).filter_map(free).max_by_key(|near| {
                (!near.is_claimed, near.free_bytes, std::cmp::Reverse(near.gpu))
            });
            let is_named = want.wanted.gpu.is_some();
            want.satisfied = most.as_ref().is_some_and(|near| {
                near.free_bytes >= want.wanted.size.0 && (is_named || !near.is_claimed)
            });
            let best = want.nearest.as_ref().map(|near| near.free_bytes);
            if want.satisfied || most.as_ref().map(|near| near.free_bytes) > best {
                want.nearest = most;
            }
        }
    }

    /// Whether all requested memory is free at once.
    pub(super) fn is_satisfied(&self) -> bool {
        self.wants.iter().all(|want| want.satisfied)
    }

    /// Whether the free memory was never known for one of the requests, so that it cannot be called not
    /// free.
    pub(super) fn is_blind(&self) -> bool {
        self.wants.iter().any(|want| want.nearest.is_none())
    }

    /// The GPUs with the requested memory; for requests that are not satisfied, all candidates.
    pub(super) fn asked<'g>(&self, gpus: &'g [Gpu]) -> Vec<&'g Gpu> {
        let is_asked = |gpu: &&Gpu| {
            self.wants.iter().any(|want| match &want.nearest {
                Some(near) if want.satisfied => near.gpu == gpu.index,
                _ => want.candidates(gpus).any(|it| it.index == gpu.index),
            })
        };
        gpus.iter().filter(is_asked).collect()
    }

    /// The GPUs that were named.
    pub(super) fn named_gpus(&self) -> impl Iterator<Item = &str> {
        self.wants.iter().filter_map(|want| want.wanted.gpu.as_deref())
    }

    /// Why waiting cannot succeed: a GPU has less memory in total.
    pub(super) fn impossible(&self, gpus: &[Gpu]) -> Option<String> {
        let too_much = |want: &&Want| {
            let mut totals = want
                .candidates(gpus)
                .map(|gpu| gpu.memory.map(|memory| memory.total_bytes))
                .peekable();
            // An unknown total may be large enough.
            totals.peek().is_some()
                && totals.all(|total| total.is_some_and(|total| total < want.wanted.size.0))
        };
        let want = self.wants.iter().find(too_much)?;
        let whose = match &want.wanted.gpu {
            Some(gpu) => format!("{} does not have", label(gpu)),
            None => "no GPU has".to_owned(),
        };
        let size = want.wanted.size;
        Some(format!("{whose} {size} of memory: it cannot become free"))
    }

    pub(super) fn verdicts(&self) -> Vec<WaitVerdict> {
        let verdict = |want: &Want| WaitVerdict {
            named: want.wanted.gpu.clone(),
            gpu: want.nearest.as_ref().map(|near| near.gpu),
            uuid: want.nearest.as_ref().and_then(|near| near.uuid.clone()),
            free_bytes: want.nearest.as_ref().map(|near| near.free_bytes),
            wanted_bytes: want.wanted.size.0,
            satisfied: want.satisfied,
            waited_seconds: self.waited_seconds,
        };
        self.wants.iter().map(verdict).collect()
    }
}

impl std::fmt::Display for Wait {
    /// The requests, for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, want) in self.wants.iter().enumerate() {
            let and = if at == 0 { "" } else { " and " };
            write!(f, "{and}{} free on ", want.wanted.size)?;
            match &want.wanted.gpu {
                Some(gpu) => f.write_str(&label(gpu))?,
                None => f.write_str("any GPU")?,
            }
        }
        Ok(())
    }
}

impl Want {
    fn candidates<'a>(&'a self, gpus: &'a [Gpu]) -> impl Iterator<Item = &'a Gpu> {
        let wanted = self.wanted.gpu.as_deref();
        gpus.iter().filter(move |gpu| wanted.is_none_or(|wanted| names(wanted, gpu)))
    }
}

/// `GPU 1`; a UUID is used as it is.
fn label(gpu: &str) -> String {
    if gpu.starts_with(|c: char| c.is_ascii_digit()) {
        format!("GPU {gpu}")
    } else {
        gpu.to_owned()
    }
}

/// Free memory of a GPU, if known.
fn free(gpu: &Gpu) -> Option<Nearest> {
    let free_bytes = gpu.free_bytes().filter(|_| gpu.stale_seconds.is_none())?;
    let is_claimed = gpu.claim.is_some();
    Some(Nearest { gpu: gpu.index, uuid: gpu.uuid.clone(), free_bytes, is_claimed })
}

#[cfg(test)]
mod tests;
