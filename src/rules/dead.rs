//! `dead`: NVML lists a pid whose process no longer runs.
//!
//! Either the process is defunct (`Z`, `X`), or /proc does not know the pid. Something else holds the memory
//! listed for it: a worker forked from it that keeps its device files open, or the driver. Several samples in a
//! row have to show it, over longer than a process takes to exit.
//!
//! Never dead:
//!
//! - a pid that /proc does not know, if pids are not the host's, because it may be another namespace's; if that
//!   is unknown, the rule is undecided;
//! - a pid whose process was found and not believed: it may have been reused, and its first owner may be
//!   anywhere;
//! - a pid that the snapshot says nothing about;
//! - a process of which only the first thread has ended (`Z` with other threads): it may be at work, and what
//!   its threads do is unknown;
//! - a process that leaves NVML's list as it exits.
//!
//! There is nothing to end, so it is only reported.

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{held, is_listed, wait};
use super::rule::{
    FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds,
};
use super::scope::ScopeInput;
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{Streak, UnlistedPid};
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{FindingGpu, Kind, Severity};
use crate::model::snapshot::PidNamespace;
use crate::model::{Gpu, GpuProcess, Process};
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    process,
    unresolved_row,
    ..RuleKind::new::<DeadEvidence>(
        Kind::Dead,
        "the driver lists a process that is defunct or does not exist",
        &[
            ("duration", "how long it has to be dead; an exiting process stays listed for a while"),
            SEVERITY,
        ],
        Settings { duration: seconds(30), severity: Severity::Critical, ..Settings::NONE },
    )
};

/// One sample may catch a process as it exits.
const LEAST_SAMPLES: u64 = 2;

/// Evidence that NVML lists a process that is defunct or does not exist.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct DeadEvidence {
    /// Process state as in /proc, `Z` or `X`; `null` if /proc does not list the PID.
    pub state: Option<char>,
    /// Number of consecutive samples in which the condition held.
    pub samples: u64,
}

impl KindEvidence for DeadEvidence {
    fn words(&self) -> String {
        match self.state {
            Some(state) => format!("state {state} in {}", samples(self.samples)),
            None => format!("not in /proc in {}", samples(self.samples)),
        }
    }
}

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let Some((state @ ('Z' | 'X'), streak)) = it.known.state() else {
        return;
    };
    if let Some((settings, gpus)) = held(it, |_, row| is_listed(it, row)) {
        Death { seen: it.seen, process: it.process, settings, gpus, state: Some(state), streak }
            .judge(verdicts);
    }
}

fn unresolved_row(
    seen: RuleInput<'_>,
    gpu: &Gpu,
    row: &GpuProcess,
    process: Option<&Process>,
    verdicts: &mut RuleOutput,
) {
    let (Some(unlisted), Some(process)) = (seen.history.unlisted_pid(gpu, row.pid), process) else {
        return;
    };
    let scope_input =
        ScopeInput { held_bytes: row.used_bytes, ..seen.scope_on(Some(process), gpu) };
    let Some(settings) = seen.rule.settings_for(&scope_input) else {
        return;
    };
    if unlisted.state.is_none() {
        match seen.snapshot.host.pid_namespace {
            Some(PidNamespace::Host) => {}
            Some(PidNamespace::Container) => return,
            None => {
                verdicts.doubt(UndecidedReason::Unresolved { pid: row.pid, gpu: gpu.index });
                return;
            }
        }
    }
    if let Some((gpus, unlisted)) = everywhere(seen, gpu, row, *unlisted) {
        let (state, streak) = (unlisted.state, unlisted.streak);
        Death { seen, process, settings, gpus, state, streak }.judge(verdicts);
    }
}

/// The GPUs that list a pid without a process, and for how long the first of them has; `None` if an earlier row
/// reported them all.
fn everywhere(
    seen: RuleInput<'_>,
    gpu: &Gpu,
    row: &GpuProcess,
    unlisted: UnlistedPid,
) -> Option<(Vec<FindingGpu>, UnlistedPid)> {
    let mut longest = unlisted;
    let mut gpus = Vec::new();
    for other in seen.snapshot.gpus.iter() {
        let rows = other.processes.as_deref().unwrap_or_default();
        for listed in rows.iter().filter(|listed| listed.pid == row.pid) {
            let Some(known) = seen.history.unlisted_pid(other, row.pid) else {
                continue;
            };
            if gpus.is_empty() && !(std::ptr::eq(other, gpu) && std::ptr::eq(listed, row)) {
                return None;
            }
            if known.streak.since < longest.streak.since {
                longest = *known;
            }
            gpus.push(FindingGpu {
                index: other.index,
                uuid: other.uuid.clone(),
                used_bytes: listed.used_bytes,
            });
        }
    }
    (!gpus.is_empty()).then(|| (subject::by_gpu(gpus.into_iter()), longest))
}

struct Death<'a> {
    seen: RuleInput<'a>,
    process: &'a Process,
    settings: Settings,
    gpus: Vec<FindingGpu>,
    state: Option<char>,
    streak: Streak,
}

impl Death<'_> {
    fn judge(self, verdicts: &mut RuleOutput) {
        let Self { seen, process, settings, gpus, state, streak } = self;
        let needed = settings.duration.seconds();
        if streak.seconds() < needed || streak.samples < LEAST_SAMPLES {
            wait((seen, process.pid), gpus[0].index, &streak, needed, verdicts);
            return;
        }
        let (held, span) = (subject::held(&gpus), Span::from_seconds(streak.seconds()));
        let name = format!("{} ({})", super::name_of(process), process.pid);
        let message = match state {
            Some(_) => format!("{name} is defunct and is still listed with {held} after {span}"),
            None => {
                let whose = match process.ended() {
                    Some(_) => name,
                    None => format!("process {}", process.pid),
                };
                format!("{whose} no longer exists and is still listed with {held} after {span}")
            }
        };
        let parts = FindingParts {
            severity: settings.severity,
            advice: advice(process, state, &gpus),
            gpus,
            since: streak.since,
            until: streak.until,
            evidence: Evidence::new(DeadEvidence { state, samples: streak.samples }),
            message,
        };
        verdicts.find(seen.finding(Some(process), parts));
    }
}

fn advice(process: &Process, state: Option<char>, gpus: &[FindingGpu]) -> Vec<String> {
    let mut advice = Vec::new();
    if let (Some(_), Some(parent)) = (state, process.ppid) {
        advice.push(format!(
            "a defunct process disappears when its parent ({parent}) reaps it or exits; if it \
            still has threads, the driver is still closing its files"
        ));
    }
    advice.push(
        "see who still holds it: `fuser -v /dev/nvidia*` as root; kill the workers that it left behind"
            .to_owned(),
    );
    for gpu in gpus {
        advice.push(format!(
            "once no process uses GPU {0}: `nvidia-smi --gpu-reset -i {0}`",
            gpu.index
        ));
    }
    advice
}

#[cfg(test)]
mod tests;
