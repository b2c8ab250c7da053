//! `reserved`: a GPU is allocated to a Slurm job or container that runs nothing on it.
//!
//! The GPU must have been unused ([`Snapshot::is_unused`](crate::model::Snapshot::is_unused)) for the whole duration,
//! which starts no earlier than the job. The mean interval between samples must not exceed 75 s. A job that has just
//! begun, a job between two steps, and an interactive shell that used its GPU recently are therefore not reported.
//!
//! Reservations are read from the environments of processes ([`Reservation`]). `all` and `none` in a variable reserve
//! nothing. If it is unknown which GPU is reserved, there is no finding.
//!
//! The rule does not apply under MIG, where parts of a GPU are allocated, or in a container, where not all processes
//! on a GPU are visible. No action ends the job, because only its owner knows what it waits for. A snapshot without
//! `reservations` produces no finding, and the rule is not undecided either.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::subject;
use crate::advice;
use crate::history::{Device, Streak};
use crate::model::finding::{Evidence, FindingGpu, Kind, KindEvidence, Severity, samples};
use crate::model::reservation::Reservation;
use crate::model::snapshot::PidNamespace;
use crate::model::{Gpu, Process, Time};
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    gpu,
    ..RuleKind::new::<ReservedEvidence>(
        Kind::Reserved,
        "a Slurm job or a container was allocated a GPU and runs nothing on it",
        &[("duration", "how long the GPU must have been unused"), SEVERITY],
        Settings { duration: seconds(1800), severity: Severity::Info, ..Settings::NONE },
    )
};

/// Maximum mean interval between samples, in seconds: one sample per minute, with some samples late or lost.
const SPARSEST_SECONDS: f64 = 75.0;
/// Minimum number of samples. Few samples can show the condition by chance.
const LEAST_SAMPLES: u64 = 10;

/// Evidence that a GPU is allocated to a job or container that runs nothing on it.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ReservedEvidence {
    /// Description of the job, pod or container.
    pub holder: Arc<str>,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// PID of the process whose environment shows the allocation.
    pub pid: u32,
    /// Environment variable that names the GPUs.
    pub variable: Arc<str>,
    /// All GPUs of the allocation, as written in the variable.
    pub devices: Vec<Arc<str>>,
    /// Start time of the process with the PID `pid`. The allocation is at least as old.
    pub given_at: Time,
    /// Number of samples in which all GPUs of the finding were unused.
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

fn gpu(input: RuleInput<'_>, gpu: &Gpu, device: &Device, output: &mut RuleOutput) {
    let reservations = input.snapshot.reservations.as_deref().unwrap_or_default();
    let is_host = input.snapshot.host.pid_namespace == Some(PidNamespace::Host);
    if reservations.is_empty() || !is_host || gpu.is_divided() || gpu.is_unified() {
        return;
    }
    let gpus = &input.snapshot.gpus;
    let names = |reservation: &&Reservation| {
        let mut indices = reservation.gpu_indices(gpus).into_iter();
        indices.any(|index| gpus[index].index == gpu.index)
    };
    // If several jobs reserve the GPU, report the earliest reservation.
    let holder = reservations
        .iter()
        .filter(names)
        .filter_map(|reservation| Some((reservation.since?, reservation)))
        .min_by_key(|(since, reservation)| (*since, reservation.pid));
    let (Some((allocated_at, holder)), Some(unused)) = (holder, device.unused()) else {
        return;
    };
    let Some(settings) = input.settings_on(None, gpu) else {
        return;
    };
    let needed = settings.duration.seconds();
    if !is_unused_long_enough(unused, allocated_at, needed) {
        input.add_pending_on(gpu, unused.since.max(allocated_at), needed, output);
        return;
    }
    // A single finding covers all unused GPUs of the holder and is reported with the first of them.
    let unused: Vec<(&Gpu, &Streak)> = holder
        .gpu_indices(gpus)
        .into_iter()
        .filter_map(|index| {
            let gpu = &gpus[index];
            let unused = input.history.device(gpu)?.unused()?;
            (!gpu.is_divided() && is_unused_long_enough(unused, allocated_at, needed))
                .then_some((gpu, unused))
        })
        .collect();
    if unused.first().is_some_and(|(first, _)| first.index == gpu.index) {
        output.findings.push(
            input.finding(None, finding_parts(settings.severity, holder, allocated_at, &unused)),
        );
    }
}

fn is_unused_long_enough(unused: &Streak, allocated_at: Time, needed: f64) -> bool {
    unused.until.seconds_since(unused.since.max(allocated_at)) >= needed
        && unused.samples >= LEAST_SAMPLES
        && unused.seconds() <= unused.samples as f64 * SPARSEST_SECONDS
}

fn finding_parts(
    severity: Severity,
    holder: &Reservation,
    allocated_at: Time,
    unused: &[(&Gpu, &Streak)],
) -> FindingParts {
    let since = unused
        .iter()
        .map(|(_, streak)| streak.since.max(allocated_at))
        .max()
        .unwrap_or(allocated_at);
    let until = unused.iter().map(|(_, streak)| streak.until).min().unwrap_or(since);
    let samples = unused.iter().map(|(_, streak)| streak.samples).min().unwrap_or_default();
    let (name, line) = described(holder);
    let of_user = holder.user.as_ref().map_or_else(String::new, |user| format!(" of {user}"));
    let gpus: Vec<FindingGpu> =
        unused.iter().map(|(gpu, _)| subject::finding_gpu(gpu, None)).collect();
    let (pronoun, verb) = if gpus.len() == 1 { ("it", "is") } else { ("them", "are") };
    let message = format!(
        "{name}{of_user} holds {} and has run nothing on {pronoun} for {}",
        subject::gpus(&gpus),
        Span::from_seconds(until.seconds_since(since)),
    );
    let question = format!("ask its owner whether {pronoun} {verb} still needed");
    FindingParts {
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
            given_at: allocated_at,
            samples,
        }),
        message,
        advice: [question].into_iter().chain(line).collect(),
    }
}

/// Returns a description of the job or container, and the command that releases its GPUs, if there is one.
fn described(holder: &Reservation) -> (String, Option<String>) {
    let slurm = holder.slurm.as_deref().map(|slurm| {
        let mut job = slurm.clone();
        // The GPUs are allocated to the whole job, so the advice must not end only a step.
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::Action;
    use crate::model::process::{Container, Slurm};
    use crate::rules::testing::{
        Case, Found, Nothing, PID, assert_clean, check_cases, count, judge, only, reasons,
    };
    use crate::units::GIB;

    const MINUTE: f64 = 60.0;

    fn scene() -> Scene {
        every(10.0)
    }

    fn every(seconds: f64) -> Scene {
        let mut scene = Scene::new(2, seconds);
        scene.now.host.pid_namespace = Some(PidNamespace::Host);
        for index in 0..2 {
            scene.memory(index, GIB / 2, 80 * GIB);
        }
        scene
    }

    fn job(scene: &Scene, age: f64, devices: &[&str]) -> Reservation {
        Reservation {
            pid: 90,
            since: Some(scene.now.time.plus_seconds(-age)),
            user: Some("ann".into()),
            slurm: Some(Arc::new(Slurm {
                job_id: Some("812".into()),
                step_id: Some("batch".into()),
                ..Slurm::default()
            })),
            variable: "SLURM_JOB_GPUS".into(),
            devices: devices.iter().map(|device| Arc::from(*device)).collect(),
            ..Reservation::default()
        }
    }

    fn give(scene: &mut Scene, reservations: &[Reservation]) {
        scene.now.reservations = Some(reservations.into());
    }

    fn given() -> Scene {
        let mut scene = scene();
        let job = job(&scene, 3600.0, &["0", "1"]);
        give(&mut scene, &[job]);
        scene
    }

    #[test]
    fn an_unused_allocation_is_reported_after_the_duration() {
        let mut scene = given();
        let start = scene.now.time;
        let mut engine = judge(&mut scene, 29.0 * MINUTE);
        assert_eq!(count(&engine, Kind::Reserved), 0);
        assert_eq!(engine.pending()[0].kind, Kind::Reserved);
        assert_eq!(reasons(&engine, Kind::Reserved).len(), 1, "undecided");
        scene.play(2.0 * MINUTE, |snapshot| engine.observe(snapshot));
        let finding = only(&engine, Kind::Reserved);
        assert_eq!(finding.severity, Severity::Info);
        assert_eq!((finding.since, finding.process.as_ref()), (start, None));
        assert_eq!(
            finding.message,
            "Slurm job 812 of ann holds GPUs 0 and 1 and has run nothing on them for 31m 00s"
        );
        let quoted = format!("info: reserved: {}", finding.message);
        assert!(include_str!("../../man/gpumem-rules.1").contains(&quoted));
        assert!(finding.advice[1].contains("`scancel 812`"), "{:?}", finding.advice);
        assert_eq!(finding.actions, [Action::Notify]);
        assert_eq!(reasons(&engine, Kind::Reserved), [""; 0]);

        // When the job uses GPU 0, the finding covers only GPU 1. When the job also uses GPU 1, the finding ends.
        scene.holder(PID, &[0], 20 * GIB);
        engine.observe(scene.step());
        let finding = only(&engine, Kind::Reserved);
        assert!(finding.message.contains("holds GPU 1 and has run nothing on it"));
        scene.holder(PID + 1, &[1], 20 * GIB);
        engine.observe(scene.step());
        assert_clean(&engine, Kind::Reserved);
    }

    #[test]
    fn a_containers_duration_starts_with_the_container() {
        let mut scene = scene();
        let container = Reservation {
            slurm: None,
            container: Some(Arc::new(Container {
                runtime: Some("docker".into()),
                id: Some("0123456789ab".into()),
                name: Some("lab".into()),
                ..Container::default()
            })),
            variable: "NVIDIA_VISIBLE_DEVICES".into(),
            ..job(&scene, 0.0, &["1"])
        };
        give(&mut scene, &[]);
        let mut engine = judge(&mut scene, 60.0 * MINUTE);
        let container = Reservation { since: Some(scene.now.time), ..container };
        give(&mut scene, &[container]);
        scene.play(29.0 * MINUTE, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Reserved), 0, "the container has just started");
        scene.play(2.0 * MINUTE, |snapshot| engine.observe(snapshot));
        let finding = only(&engine, Kind::Reserved);
        assert!(finding.message.contains("lab"), "{}", finding.message);
        assert!(finding.message.contains("of ann holds GPU 1"), "{}", finding.message);
    }

    #[test]
    fn only_a_known_unused_reservation_is_reported() {
        let cases: &[Case] = &[
            ("given and unused", Found, |_| ()),
            ("another process uses it", Nothing, |scene| scene.holder(PID, &[0, 1], GIB)),
            ("the GPU is used", Nothing, |scene| {
                scene.now.gpus.iter_mut().for_each(|gpu| gpu.gpu_percent = Some(3));
            }),
            ("in a container", Nothing, |scene| {
                scene.now.host.pid_namespace = Some(PidNamespace::Container);
            }),
            ("unknown namespace", Nothing, |scene| scene.now.host.pid_namespace = None),
            ("no list", Nothing, |scene| {
                scene.now.gpus.iter_mut().for_each(|gpu| gpu.processes = None);
            }),
            ("under MIG", Nothing, |scene| {
                scene.now.gpus.iter_mut().for_each(|gpu| gpu.mig_mode = Some(true));
            }),
            ("an old recording", Nothing, |scene| scene.now.reservations = None),
            ("unknown start, or unknown devices", Nothing, |scene| {
                let unknown = Reservation { since: None, ..job(scene, 3600.0, &["0"]) };
                let other = job(scene, 3600.0, &["MIG-0", "7"]);
                give(scene, &[unknown, other]);
            }),
        ];
        check_cases(Kind::Reserved, given, 90.0 * MINUTE, cases);
    }

    #[test]
    fn occasional_gpu_use_prevents_a_finding() {
        let mut scene = given();
        let mut engine = judge(&mut scene, 10.0 * MINUTE);
        for _ in 0..6 {
            scene.holder(PID, &[0, 1], GIB);
            scene.play(30.0, |snapshot| engine.observe(snapshot));
            for index in 0..2 {
                scene.gpu(index).processes = Some(Vec::new());
            }
            scene.play(20.0 * MINUTE, |snapshot| engine.observe(snapshot));
            assert_eq!(count(&engine, Kind::Reserved), 0);
        }
    }

    #[test]
    fn a_few_late_or_lost_samples_are_tolerated() {
        let mut scene = every(MINUTE);
        let job = job(&scene, 3600.0, &["0", "1"]);
        give(&mut scene, &[job]);
        let mut engine = judge(&mut scene, 10.0 * MINUTE);
        for _ in 0..3 {
            scene.pass(2.0 * MINUTE);
            scene.play(10.0 * MINUTE, |snapshot| engine.observe(snapshot));
        }
        assert_eq!(count(&engine, Kind::Reserved), 1);
    }
}
