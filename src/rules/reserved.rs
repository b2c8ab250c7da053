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
use serde::Serialize;

use super::rule::{RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, Told, seconds};
use super::subject;
use crate::advice;
use crate::history::{Device, Streak};
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{FindingGpu, Kind, Severity};
use crate::model::reservation::Reservation;
use crate::model::snapshot::PidNamespace;
use crate::model::{Gpu, Process, Time};
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    gpu,
    ..RuleKind::new::<ReservedEvidence>(
        Kind::Reserved,
        "a Slurm job or a container was given a GPU and runs nothing on it",
        &[("duration", "how long no process may have been on the GPU"), SEVERITY],
        Settings { duration: seconds(1800), severity: Severity::Info, ..Settings::NONE },
    )
};

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

fn gpu(seen: RuleInput<'_>, gpu: &Gpu, device: &Device, verdicts: &mut RuleOutput) {
    let reservations = seen.snapshot.reservations.as_deref().unwrap_or_default();
    let is_host = seen.snapshot.host.pid_namespace == Some(PidNamespace::Host);
    if reservations.is_empty() || !is_host || gpu.is_divided() || gpu.is_unified() {
        return;
    }
    let gpus = &seen.snapshot.gpus;
    let names = |it: &&Reservation| {
        let mut places = it.places(gpus).into_iter();
        places.any(|place| gpus[place].index == gpu.index)
    };
    // Of several, the one that was given it first.
    let holder = reservations
        .iter()
        .filter(names)
        .filter_map(|it| Some((it.since?, it)))
        .min_by_key(|(since, it)| (*since, it.pid));
    let (Some((given, holder)), Some(unused)) = (holder, device.unused()) else {
        return;
    };
    let Some(settings) = seen.settings_on(None, gpu) else {
        return;
    };
    let needed = settings.duration.seconds();
    if !lasts(unused, given, needed) {
        seen.expect_on(gpu, unused.since.max(given), needed, verdicts);
        return;
    }
    // One finding for all of its unused GPUs, at the first of them.
    let unused: Vec<(&Gpu, &Streak)> = holder
        .places(gpus)
        .into_iter()
        .filter_map(|place| {
            let gpu = &gpus[place];
            let unused = seen.history.device(gpu)?.unused()?;
            (!gpu.is_divided() && lasts(unused, given, needed)).then_some((gpu, unused))
        })
        .collect();
    if unused.first().is_some_and(|(first, _)| first.index == gpu.index) {
        verdicts.find(seen.finding(None, told(settings.severity, holder, given, &unused)));
    }
}

/// Whether a GPU was unused for long enough since it was given.
fn lasts(unused: &Streak, given: Time, needed: f64) -> bool {
    unused.until.seconds_since(unused.since.max(given)) >= needed
        && unused.samples >= LEAST_SAMPLES
        && unused.seconds() <= unused.samples as f64 * SPARSEST_SECONDS
}

fn told(severity: Severity, holder: &Reservation, given: Time, unused: &[(&Gpu, &Streak)]) -> Told {
    let since = unused.iter().map(|(_, it)| it.since.max(given)).max().unwrap_or(given);
    let until = unused.iter().map(|(_, it)| it.until).min().unwrap_or(since);
    let samples = unused.iter().map(|(_, it)| it.samples).min().unwrap_or_default();
    let (name, line) = described(holder);
    let of = holder.user.as_ref().map_or_else(String::new, |user| format!(" of {user}"));
    let on = |(gpu, _): &(&Gpu, &Streak)| FindingGpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        used_bytes: None,
    };
    let gpus: Vec<FindingGpu> = unused.iter().map(on).collect();
    let (them, are) = if gpus.len() == 1 { ("it", "is") } else { ("them", "are") };
    let message = format!(
        "{name}{of} holds {} and has run nothing on {them} for {}",
        subject::gpus(&gpus),
        Span::from_seconds(until.seconds_since(since)),
    );
    let asks = format!("ask its owner whether {them} {are} still needed");
    Told {
        severity,
        gpus,
        since,
        until,
        evidence: Evidence::new(ReservedEvidence {
            holder: name.into(),
            user: holder.user.clone(),
            pid: holder.pid,
            variable: holder.variable.clone(),
            devices: holder.devices.to_vec(),
            given_at: given,
            samples,
        }),
        message,
        advice: [asks].into_iter().chain(line).collect(),
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
