//! `dead`: NVML lists a process that is none any more.
//!
//! Either it is defunct (`Z`, `X`), or /proc does not know its pid. Memory that is still booked on it is
//! held by somebody else: a worker that was forked from it and keeps its device files open, or the
//! driver. It is accused only when several samples in a row show it, over longer than a process takes to
//! exit.
//!
//! Never dead:
//!
//! - a pid that /proc does not know where the pids are not the host's, because the number is another
//!   namespace's; where that is not known it is undecided;
//! - a pid whose process was found and not believed: the number may be a stranger's by now, and who
//!   had it may be anywhere;
//! - a pid that the snapshot says nothing of;
//! - a process of which only the first thread has ended (`Z` with other threads): it may be at work, and
//!   what its threads do is not known;
//! - a process that leaves NVML's list as it exits.
//!
//! There is nothing to end: it is only told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lasting::{FindingText, ProcessFinding, held, is_listed, wait};
use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::scope::ScopeInput;
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::{ProcessHistory, RowHistory, Streak, UnlistedPid};
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Action, Finding, FindingGpu, Kind, Severity};
use crate::model::snapshot::PidNamespace;
use crate::model::{Gpu, GpuProcess, Process};
use crate::units::Span;

/// One sample may have been taken while it exited.
const LEAST_SAMPLES: u64 = 2;

/// Evidence that NVML lists a process that is none any more.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct DeadEvidence {
    /// `Z` or `X`, as in /proc; `null` where /proc does not know the pid.
    pub state: Option<char>,
    /// Samples in which it was so without a break.
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

/// What the rule is tuned by.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct DeadSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// How long it has to be dead; one that exits is listed for a while.
    pub duration: Span,
    /// How bad a finding is: info, warning or critical.
    pub severity: Severity,
}

impl Default for DeadSettings {
    fn default() -> Self {
        Self { enabled: true, duration: Span::from_seconds(30.0), severity: Severity::Critical }
    }
}

impl RuleKind for DeadSettings {
    const KIND: Kind = Kind::Dead;
    const MEANING: &'static str = "the driver lists a process that is defunct or does not exist";
    type Evidence = DeadEvidence;

    fn process(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    ) {
        let Some((state @ ('Z' | 'X'), streak)) = known.state() else {
            return;
        };
        if process.has_threads_left() {
            return;
        }
        let counts = |_: &Self, row: &RowHistory| is_listed(rule, seen, process, row);
        let Some(held) = held(rule, seen, process, known, |it| it.severity, counts) else {
            return;
        };
        let death = Death {
            rule,
            process,
            settings: held.settings,
            gpus: held.gpus,
            state: Some(state),
            streak,
        };
        death.judge(verdicts);
    }

    fn unresolved_row(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        gpu: &Gpu,
        row: &GpuProcess,
        process: Option<&Process>,
        verdicts: &mut RuleOutput,
    ) {
        let (Some(unlisted), Some(process)) = (seen.history.unlisted_pid(gpu, row.pid), process)
        else {
            return;
        };
        let scope_input =
            ScopeInput { held_bytes: row.used_bytes, ..seen.scope_on(Some(process), gpu) };
        let Some(settings) = rule.settings_for(&scope_input) else {
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
        let Some((gpus, unlisted)) = everywhere(seen, gpu, row, *unlisted) else {
            return;
        };
        let death = Death {
            rule,
            process,
            settings: settings.into_owned(),
            gpus,
            state: unlisted.state,
            streak: unlisted.streak,
        };
        death.judge(verdicts);
    }
}

/// The GPUs that list a pid without a process, and how long the longest of them has; `None` where an earlier row
/// has told it all.
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

/// A process that may be dead.
struct Death<'a> {
    rule: &'a ConfiguredRule<DeadSettings>,
    process: &'a Process,
    settings: DeadSettings,
    gpus: Vec<FindingGpu>,
    state: Option<char>,
    streak: Streak,
}

impl Death<'_> {
    fn judge(self, verdicts: &mut RuleOutput) {
        let needed = self.settings.duration.seconds();
        let streak = self.streak;
        if streak.seconds() < needed || streak.samples < LEAST_SAMPLES {
            let gpu = self.gpus[0].index;
            wait(self.rule, self.process, gpu, &streak, needed, verdicts);
            return;
        }
        verdicts.find(self.finding());
    }

    fn finding(self) -> Finding {
        let about = ProcessFinding {
            rule: self.rule,
            process: self.process,
            severity: self.settings.severity,
            gpus: self.gpus,
            since: self.streak.since,
            until: self.streak.until,
        };
        let held = subject::held(&about.gpus);
        let span = Span::from_seconds(about.seconds());
        let message = match self.state {
            Some(_) => {
                format!("{} is defunct and is still listed with {held} after {span}", about.name())
            }
            None => {
                let whose = match self.process.ended() {
                    Some(_) => about.name(),
                    None => format!("process {}", self.process.pid),
                };
                format!(
                    "{whose} does not exist any more and is still listed with {held} after {span}"
                )
            }
        };
        let advice = advice(self.process, self.state, &about.gpus);
        about.finding(FindingText {
            evidence: Evidence::new(DeadEvidence {
                state: self.state,
                samples: self.streak.samples,
            }),
            message,
            advice,
            actions: vec![Action::Notify],
        })
    }
}

fn advice(process: &Process, state: Option<char>, gpus: &[FindingGpu]) -> Vec<String> {
    let mut advice = Vec::new();
    if let (Some(_), Some(parent)) = (state, process.ppid) {
        advice.push(format!(
            "a defunct process goes when its parent ({parent}) reaps it or exits; where threads \
             of it live on, the driver is still closing its files"
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
