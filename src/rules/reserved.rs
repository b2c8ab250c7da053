//! `reserved`: a Slurm job or a container was given a GPU and runs nothing on it.
//!
//! Reported for as long as the GPU is unused ([`Snapshot::is_unused`](crate::model::Snapshot::is_unused)):
//! one that another works on is not kept from anybody. It takes the duration without any use, since the job
//! began, in samples about a minute apart or less, so that a job that has just begun, one between two steps and a
//! shell in which the GPU was used a while ago are none. What was given is known by the environment of its
//! processes, as far as that may be read and names GPUs one by one
//! ([`Reservation`]): `all` and `none` are no claim, and where
//! it is not known which GPU is meant, there is no finding.
//!
//! Not under MIG, where parts are given; not in a container, which does not see who is on a GPU. Nothing is
//! offered that would end it: only its owner knows what it waits for. Snapshots without the field say nothing,
//! and leave nothing undecided.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{ConfiguredRule, RuleInput, RuleKind, RuleOutput};
use super::subject;
use super::unattributed::{is_shared_out, is_unified};
use crate::advice;
use crate::history::{Device, Streak};
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Action, Finding, FindingGpu, Kind, Pending, Severity};
use crate::model::reservation::Reservation;
use crate::model::snapshot::PidNamespace;
use crate::model::{Gpu, Process, Time};
use crate::units::Span;

/// Samples farther apart than this on the mean, in seconds, may have missed a use: one a minute, of which
/// some are late or lost.
const SPARSEST_SECONDS: f64 = 75.0;
/// A coincidence has fewer samples.
const LEAST_SAMPLES: u64 = 10;

/// What says that a GPU was given to somebody who runs nothing on it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ReservedEvidence {
    /// The job, pod or container, in words.
    pub holder: Arc<str>,
    /// Its owner's name.
    pub user: Option<Arc<str>>,
    /// The process whose environment says so.
    pub pid: u32,
    /// The variable that names the GPUs.
    pub variable: Arc<str>,
    /// All of its GPUs, as the variable names them.
    pub devices: Vec<Arc<str>>,
    /// When that process started: since then at least the GPUs are its own.
    pub given_at: Time,
    /// Samples in which all of them were unused.
    pub samples: u64,
}

impl KindEvidence for ReservedEvidence {
    fn words(&self) -> String {
        format!(
            "{}={} in process {}; no process on it in {}",
            self.variable,
            self.devices.join(","),
            self.pid,
            samples(self.samples)
        )
    }
}

/// What the rule is tuned by.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ReservedSettings {
    /// Whether the rule is run.
    pub enabled: bool,
    /// How long no process may have been on the GPU.
    pub duration: Span,
    /// How bad a finding is: info, warning or critical.
    pub severity: Severity,
}

impl Default for ReservedSettings {
    fn default() -> Self {
        Self { enabled: true, duration: Span::from_seconds(1800.0), severity: Severity::Info }
    }
}

impl RuleKind for ReservedSettings {
    const KIND: Kind = Kind::Reserved;
    const MEANING: &'static str =
        "a Slurm job or a container was given a GPU and runs nothing on it";
    type Evidence = ReservedEvidence;

    fn gpu(
        rule: &ConfiguredRule<Self>,
        seen: RuleInput<'_>,
        gpu: &Gpu,
        device: &Device,
        verdicts: &mut RuleOutput,
    ) {
        let Some(reservations) = seen.snapshot.reservations.as_deref() else {
            return;
        };
        if reservations.is_empty()
            || seen.snapshot.host.pid_namespace != Some(PidNamespace::Host)
            || is_shared_out(gpu)
            || is_unified(gpu)
        {
            return;
        }
        // Of several, the one that was given it first.
        let holder = reservations
            .iter()
            .filter(|it| names(it, seen, gpu))
            .filter_map(|it| Some((it.since?, it)))
            .min_by_key(|(since, it)| (*since, it.pid));
        let (Some((given, holder)), Some(unused)) = (holder, device.unused()) else {
            return;
        };
        let Some(settings) = rule.settings_for(&seen.scope_on(None, gpu)) else {
            return;
        };
        let needed = settings.duration.seconds();
        let since = unused.since.max(given);
        if !lasts(unused, given, needed) {
            let pending = Pending {
                rule: rule.name().clone(),
                kind: Kind::Reserved,
                pid: None,
                gpu: gpu.index,
                since,
                due: since.plus_seconds(needed),
            };
            seen.expect(pending, verdicts);
            return;
        }
        // One finding for all of its unused GPUs, at the first of them.
        let gpus: Vec<(&Gpu, &Streak)> = holder
            .places(&seen.snapshot.gpus)
            .into_iter()
            .filter_map(|place| {
                let gpu = &seen.snapshot.gpus[place];
                let unused = seen.history.device(gpu)?.unused()?;
                let counts = !is_shared_out(gpu) && lasts(unused, given, needed);
                counts.then_some((gpu, unused))
            })
            .collect();
        if gpus.first().is_none_or(|(first, _)| first.index != gpu.index) {
            return;
        }
        verdicts.find(finding(rule, settings.severity, holder, given, &gpus));
    }
}

fn names(reservation: &Reservation, seen: RuleInput<'_>, gpu: &Gpu) -> bool {
    let gpus = &seen.snapshot.gpus;
    let mut places = reservation.places(gpus).into_iter();
    places.any(|place| gpus[place].index == gpu.index)
}

/// Whether a GPU was unused for long enough since it was given.
fn lasts(unused: &Streak, given: Time, needed: f64) -> bool {
    unused.until.seconds_since(unused.since.max(given)) >= needed
        && unused.samples >= LEAST_SAMPLES
        && unused.seconds() <= unused.samples as f64 * SPARSEST_SECONDS
}

fn finding(
    rule: &ConfiguredRule<ReservedSettings>,
    severity: Severity,
    holder: &Reservation,
    given: Time,
    gpus: &[(&Gpu, &Streak)],
) -> Finding {
    let since = gpus.iter().map(|(_, unused)| unused.since.max(given)).max();
    let since = since.unwrap_or(given);
    let until = gpus.iter().map(|(_, unused)| unused.until).min();
    let duration_seconds = until.unwrap_or(since).seconds_since(since);
    let samples = gpus.iter().map(|(_, unused)| unused.samples).min();
    let (name, line) = described(holder);
    let of = match &holder.user {
        Some(user) => format!(" of {user}"),
        None => String::new(),
    };
    let named: Vec<FindingGpu> = gpus
        .iter()
        .map(|(gpu, _)| FindingGpu { index: gpu.index, uuid: gpu.uuid.clone(), used_bytes: None })
        .collect();
    let them = if named.len() == 1 { "it" } else { "them" };
    let message = format!(
        "{name}{of} holds {} and has run nothing on {them} for {}",
        subject::gpus(&named),
        Span::from_seconds(duration_seconds),
    );
    let asks = format!(
        "ask its owner whether {them} {} still needed",
        match named.len() {
            1 => "is",
            _ => "are",
        }
    );
    Finding {
        id: subject::id_on(rule.name(), gpus[0].0),
        rule: rule.name().clone(),
        kind: Kind::Reserved,
        severity,
        since,
        duration_seconds,
        resolved_at: None,
        gpus: named,
        process: None,
        memory_bytes: None,
        evidence: Evidence::new(ReservedEvidence {
            holder: name.into(),
            user: holder.user.clone(),
            pid: holder.pid,
            variable: holder.variable.clone(),
            devices: holder.devices.to_vec(),
            given_at: given,
            samples: samples.unwrap_or_default(),
        }),
        message,
        advice: std::iter::once(asks).chain(line).collect(),
        actions: vec![Action::Notify],
        commands: Vec::new(),
        also: Vec::new(),
        kept_by: None,
        skipped: None,
    }
}

/// What to call a job or a container, and what its owner would type to give its GPUs back.
fn described(holder: &Reservation) -> (String, Option<String>) {
    let slurm = holder.slurm.as_deref().map(|slurm| {
        let mut job = slurm.clone();
        // It is the job that has the GPUs, whichever step tells it.
        job.step_id = None;
        job.into()
    });
    let process = Process {
        pid: holder.pid,
        slurm,
        container: holder.container.clone(),
        kubernetes: holder.kubernetes.clone(),
        ..Process::default()
    };
    match advice::owner(&process) {
        Some(owner) => (owner.name, Some(owner.line)),
        None => (format!("the job of process {}", holder.pid), None),
    }
}

#[cfg(test)]
mod tests;
