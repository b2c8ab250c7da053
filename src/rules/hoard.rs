//! `hoard`: a process reserved nearly a whole GPU when it started, and uses little of it.
//!
//! Frameworks that allocate in advance (TensorFlow, JAX) take what there is, however small the model: the
//! number that NVML shows says nothing of what is needed, and no other process can use the GPU. It is told by
//! what it holds, which has not changed since its first minutes, and by how little the process computes
//! and moves. An inference server does this by design, and is exempt, and so are graphics and the
//! instances of MIG. One that is not used at all is `idle` too, and this stays as evidence.
//!
//! That it was there from the start has to be seen, unless the framework is one that never allocates
//! otherwise. It begins below the settings, and ends when the use is a quarter above them.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::undecided_reason::UndecidedReason;
use super::{server, subject};
use crate::advice;
use crate::history::{Plateau, ProcessHistory, RowHistory};
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Action, Finding, FindingGpu, Kind, Pending, Severity};
use crate::model::snapshot::ProcessType;
use crate::model::{Process, Time};
use crate::units::{Bytes, Percent, Span};

/// What was reserved later than this after the start was not reserved at the start.
const FIRST_SECONDS: f64 = 600.0;
/// The share of the samples of which the use has to be known.
const LEAST_KNOWN: f64 = 0.9;
/// Fewer samples are a coincidence.
const LEAST_SAMPLES: u64 = 3;
/// Frameworks that reserve in advance unless they are told not to.
const IN_ADVANCE: &[&str] = &["tensorflow", "jax"];

/// Evidence that memory was reserved rather than needed.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HoardEvidence {
    /// What the process held when it had settled after its start, in bytes.
    pub first_bytes: u64,
    /// Its share of the GPU's memory, 0 to 1.
    #[schemars(range(min = 0))]
    pub share: f64,
    /// Mean memory traffic of the process, else of the GPU. Percent, 0 to 100.
    pub memory_percent_mean: Option<f64>,
    /// Mean use of the SMs by the process, else of the GPU. Percent, 0 to 100.
    pub sm_percent_mean: Option<f64>,
    /// Samples that were judged.
    pub samples: u64,
}

impl KindEvidence for HoardEvidence {
    fn words(&self) -> String {
        let mut words = format!(
            "{:.0}% of the GPU from its start ({})",
            self.share * 100.0,
            Bytes(self.first_bytes)
        );
        if let Some(sm) = self.sm_percent_mean {
            let _ = write!(words, ", SM {sm:.0}%");
        }
        if let Some(memory) = self.memory_percent_mean {
            let _ = write!(words, ", memory traffic {memory:.0}%");
        }
        let _ = write!(words, " in {}", samples(self.samples));
        words
    }
}

/// What the rule is tuned by.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct HoardSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// Less than this, in percent of the GPU's memory, is ignored (50 to 100).
    pub min_memory_share: Percent,
    /// With this mean use of its cores or its memory, or more, the GPU is used.
    pub max_use_percent: Percent,
    /// How long it has to be so.
    pub duration: Span,
    /// How bad a finding is: info, warning or critical.
    pub severity: Severity,
}

impl Default for HoardSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            min_memory_share: Percent(70.0),
            max_use_percent: Percent(20.0),
            duration: Span::from_seconds(1800.0),
            severity: Severity::Info,
        }
    }
}

impl RuleKind for HoardSettings {
    const KIND: Kind = Kind::Hoard;
    const MEANING: &'static str =
        "a process reserved nearly a whole GPU when it started and uses little of it";
    type Evidence = HoardEvidence;

    fn contradiction(&self) -> Option<String> {
        if !(50.0..=100.0).contains(&self.min_memory_share.0) {
            return Some(format!(
                "min_memory_share is {}, and nearly a whole GPU is from 50 to 100; write a number \
                 between them",
                self.min_memory_share.0
            ));
        }
        (self.max_use_percent.0 > 100.0).then(|| {
            format!(
                "max_use_percent is {}, and no use is above 100; write 100 or less",
                self.max_use_percent.0
            )
        })
    }

    fn process(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        process: &Process,
        known: &ProcessHistory,
        verdicts: &mut RuleOutput,
    ) {
        // Nearly every process ends here: less than half a GPU is never nearly all of it.
        if !known.rows_summary().holds_half {
            return;
        }
        let mut found: Vec<Hoard> = Vec::new();
        for row in known.rows() {
            let total = seen.history.device_of(row).total_bytes();
            let (Some(held), Some(total)) = (row.used_bytes(), total) else {
                continue;
            };
            if held < total / 2 {
                continue;
            }
            let Some(plateau) = row.plateau().filter(|_| !is_exempt(row)) else {
                continue;
            };
            let share = plateau.least_bytes as f64 / total as f64;
            let Some(settings) = rule.settings_for(&seen.scope_of(process, row)) else {
                continue;
            };
            let judged =
                Judged { rule, seen, process, known, row, plateau, settings: &settings, share };
            found.extend(judged.answer(verdicts));
        }
        if let Some(finding) = finding(rule, process, found) {
            verdicts.find(finding);
        }
    }
}

fn is_exempt(row: &RowHistory) -> bool {
    row.kind() == ProcessType::Graphics || row.is_of_instance()
}

/// A GPU that a process hoards.
struct Hoard {
    gpu: FindingGpu,
    severity: Severity,
    evidence: HoardEvidence,
    since: Time,
    until: Time,
}

/// A process on a GPU of which it may hold nearly all.
struct Judged<'a> {
    rule: &'a ConfiguredRule<HoardSettings>,
    seen: RuleInput<'a>,
    process: &'a Process,
    known: &'a ProcessHistory,
    row: &'a RowHistory,
    plateau: &'a Plateau,
    settings: &'a HoardSettings,
    share: f64,
}

impl Judged<'_> {
    fn answer(&self, verdicts: &mut RuleOutput) -> Option<Hoard> {
        let (plateau, settings) = (self.plateau, self.settings);
        let gpu = self.seen.history.gpu_index(self.row);
        if self.share < settings.min_memory_share.0 / 100.0 {
            return None;
        }
        let is_active = self
            .seen
            .active_finding(self.rule.name(), self.process.identity())
            .is_some_and(|finding| finding.gpus.iter().any(|on| on.index == gpu));
        let bound = settings.max_use_percent.0 * if is_active { 1.25 } else { 1.0 };
        let (sm, memory) = (plateau.sm_percent.mean(), plateau.memory_percent.mean());
        let most = sm.into_iter().chain(memory).reduce(f64::max);
        if most.is_some_and(|percent| percent >= bound)
            || server::is_server(self.process, self.known, self.seen.snapshot)
        {
            return None;
        }
        let from_start = self.is_from_start();
        if from_start == Some(false) {
            return None;
        }
        let seconds = settings.duration.seconds();
        if plateau.seconds() < seconds || plateau.samples < LEAST_SAMPLES {
            if sm.is_some() && from_start.is_some() {
                let pending = Pending {
                    rule: self.rule.name().clone(),
                    kind: Kind::Hoard,
                    pid: Some(self.process.pid),
                    gpu,
                    since: plateau.since,
                    due: plateau.since.plus_seconds(seconds),
                };
                self.seen.expect(pending, verdicts);
            }
            return None;
        }
        if (plateau.sm_percent.count() as f64) < plateau.samples as f64 * LEAST_KNOWN {
            verdicts.doubt(UndecidedReason::NoUtilization { gpu });
            return None;
        }
        if from_start.is_none() {
            verdicts.doubt(UndecidedReason::StartUnseen { pid: self.process.pid });
            return None;
        }
        Some(Hoard {
            gpu: FindingGpu {
                index: gpu,
                uuid: self.seen.history.gpu_uuid(self.row).cloned(),
                used_bytes: self.row.used_bytes(),
            },
            severity: settings.severity,
            evidence: HoardEvidence {
                first_bytes: plateau.least_bytes,
                share: self.share,
                memory_percent_mean: memory,
                sm_percent_mean: sm,
                samples: plateau.samples,
            },
            since: plateau.since,
            until: plateau.until,
        })
    }

    /// Whether it holds this from its start; `None` where that was not seen.
    fn is_from_start(&self) -> Option<bool> {
        let is_soon_after = |start| self.plateau.since.seconds_since(start) <= FIRST_SECONDS;
        let framework = self.process.framework.as_deref();
        if framework.is_some_and(|name| IN_ADVANCE.contains(&name)) {
            return Some(true);
        }
        let began_on_gpu = self.row.first_seen();
        if Some(began_on_gpu) > self.seen.history.first_time() {
            return Some(is_soon_after(began_on_gpu));
        }
        match self.process.start_time {
            Some(start) if is_soon_after(start) => Some(true),
            // It changed before our eyes.
            _ if self.plateau.since > began_on_gpu => Some(false),
            _ => None,
        }
    }
}

/// Makes one finding of the GPUs that a process hoards.
fn finding(
    rule: &ConfiguredRule<HoardSettings>,
    process: &Process,
    mut found: Vec<Hoard>,
) -> Option<Finding> {
    found.sort_by_key(|hoard| hoard.gpu.index);
    let severity = found.iter().map(|hoard| hoard.severity).max()?;
    let since = found.iter().map(|hoard| hoard.since).max()?;
    let until = found.iter().map(|hoard| hoard.until).max()?;
    // The numbers of the GPU that is used most.
    let sm = |hoard: &&Hoard| hoard.evidence.sm_percent_mean.unwrap_or_default();
    let evidence = found.iter().max_by(|a, b| sm(a).total_cmp(&sm(b)))?;
    let evidence = evidence.evidence.clone();
    let gpus: Vec<FindingGpu> = found.into_iter().map(|hoard| hoard.gpu).collect();
    let bytes = gpus.iter().try_fold(0u64, |sum, gpu| Some(sum.saturating_add(gpu.used_bytes?)));
    let duration_seconds = until.seconds_since(since);
    let message = format!(
        "{} ({}) reserved {:.0}% of {} when it started and has used {:.0}% of its time there in {}",
        subject::name(process),
        process.pid,
        evidence.share * 100.0,
        subject::gpus(&gpus),
        evidence.sm_percent_mean.unwrap_or_default(),
        Span::from_seconds(duration_seconds),
    );
    Some(Finding {
        id: subject::id(rule.name(), &gpus, process),
        rule: rule.name().clone(),
        kind: Kind::Hoard,
        severity,
        since,
        duration_seconds,
        resolved_at: None,
        gpus,
        process: Some(subject::process(process)),
        memory_bytes: bytes,
        evidence: Evidence::new(evidence),
        message,
        advice: advice::at_start(process)
            .map(|line| line.text.to_owned())
            .into_iter()
            .chain(advice::steps(process))
            .collect(),
        actions: vec![Action::Notify],
        commands: Vec::new(),
        also: Vec::new(),
        kept_by: None,
        skipped: None,
    })
}

#[cfg(test)]
mod tests;
