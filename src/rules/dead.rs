//! `dead`: NVML lists a pid whose process no longer runs.
//!
//! Either the process is defunct (`Z`, `X`), or /proc does not list the pid. Another holder keeps the memory: a
//! worker forked from the process that has its device files open, or the driver. Several consecutive samples must
//! show the condition, over longer than a process takes to exit.
//!
//! Never dead:
//!
//! - a pid missing from /proc, if pids are not the host's, because the process may be in another namespace; if that
//!   is unknown, the rule is undecided;
//! - a pid that may have been reused, because its first owner may be in another namespace;
//! - a pid about which the snapshot contains no facts;
//! - a process of which only the first thread has ended (`Z` with other threads), because its threads may be
//!   working;
//! - a process that leaves NVML's list as it exits.
//!
//! No process can be ended, so the rule only reports.

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
use crate::model::finding::{Evidence, FindingGpu, Kind, KindEvidence, Severity, samples};
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

/// A single sample may show a process that is exiting.
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

/// The GPUs that list a pid without a process, and since when. `None` if an earlier row reported them all.
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
    if state.is_some() {
        advice.push(format!(
            "a defunct process disappears when {} reaps it or exits; in a container, restarting \
            that ends both",
            process.parent_words()
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::Action;
    use crate::model::snapshot::LastKnown;
    use crate::rules::Engine;
    use crate::rules::testing::{
        Case, Found, Nothing, PID, Unsure, assert_clean, count, each, facts, judge, only,
    };
    use crate::units::GIB;

    /// `python train.py` on these GPUs, on the host.
    fn alive(gpus: &[u32]) -> Scene {
        let mut scene = Scene::new(2, 10.0);
        scene.now.host.pid_namespace = Some(PidNamespace::Host);
        scene.holder(PID, gpus, 20 * GIB);
        scene
    }

    /// The same a minute later, with the pid missing from /proc.
    fn gone(gpus: &[u32], seconds: f64) -> (Scene, Engine) {
        let mut scene = alive(gpus);
        let mut engine = judge(&mut scene, 60.0);
        vanish(&mut scene);
        scene.step();
        scene.play(seconds, |snapshot| engine.observe(snapshot));
        (scene, engine)
    }

    fn vanish(scene: &mut Scene) {
        *scene.process(PID) = Process { pid: PID, ..Process::default() };
    }

    fn zombie(scene: &mut Scene, threads: Option<u32>) {
        let process = scene.process(PID);
        (process.state, process.threads) = (Some('Z'), threads);
    }

    #[test]
    fn a_pid_that_does_not_exist_is_found_after_the_duration() {
        let (mut scene, mut engine) = gone(&[0], 20.0);
        assert_clean(&engine, Kind::Dead);
        assert_eq!(engine.pending()[0].kind, Kind::Dead);
        let since = scene.now.time.plus_seconds(-20.0);
        engine.observe(scene.step());
        let finding = only(&engine, Kind::Dead);
        assert_eq!(&*finding.id, "dead:GPU-0:4242:");
        assert_eq!(finding.severity, Severity::Critical);
        assert_eq!((finding.since, finding.duration_seconds), (since, 30.0));
        assert_eq!(finding.memory_bytes, Some(20 * GIB));
        assert_eq!(finding.process.as_ref().unwrap().start_time, None);
        assert_eq!(finding.evidence, Evidence::new(DeadEvidence { state: None, samples: 4 }));
        assert_eq!(finding.actions, [Action::Notify]);
    }

    #[test]
    fn an_ended_process_keeps_its_names() {
        let (mut scene, mut engine) = gone(&[0], 20.0);
        scene.process(PID).last_known = Some(Arc::new(LastKnown {
            user: Some("root".into()),
            comm: Some("python3".into()),
            command: Some(["/usr/bin/python3", "pretrain.py"].map(Arc::from).into()),
            ..LastKnown::default()
        }));
        engine.observe(scene.step());
        let finding = only(&engine, Kind::Dead);
        assert!(finding.message.starts_with("python3 pretrain.py (4242)"), "{}", finding.message);
        let about = finding.process.as_ref().unwrap();
        assert_eq!(about.user.as_deref(), Some("root"));
        assert_eq!(about.command.as_ref().unwrap().len(), 2);
        assert!(!about.identity.is_certain() && about.start_ticks.is_none());
        assert_eq!(finding.actions, [Action::Notify]);
        // A name counts for nothing if the process is unresolved.
        scene.process(PID).unresolved = Some("a stranger".into());
        assert_eq!(scene.process(PID).ended(), None);
    }

    #[test]
    fn a_zombie_is_found_and_its_parent_named() {
        for state in ['Z', 'X'] {
            let mut scene = alive(&[0]);
            let mut engine = judge(&mut scene, 60.0);
            scene.process(PID).state = Some(state);
            scene.process(PID).ppid = Some(77);
            scene.step();
            scene.play(20.0, |snapshot| engine.observe(snapshot));
            assert_clean(&engine, Kind::Dead);
            engine.observe(scene.step());
            let finding = only(&engine, Kind::Dead);
            assert!(finding.message.starts_with("python train.py (4242) is defunct"));
            assert!(finding.advice[0].contains("its parent (77)"));
            assert_eq!(finding.actions, [Action::Notify]);
        }
    }

    #[test]
    fn a_process_that_leaves_the_list_in_time_is_not_dead() {
        let (mut scene, mut engine) = gone(&[0], 20.0);
        scene.rows(0).clear();
        scene.now.processes.clear();
        scene.play(60.0, |snapshot| engine.observe(snapshot));
        assert_clean(&engine, Kind::Dead);

        let mut scene = alive(&[0]);
        zombie(&mut scene, None);
        let mut engine = judge(&mut scene, 20.0);
        scene.rows(0).clear();
        scene.play(60.0, |snapshot| engine.observe(snapshot));
        assert_clean(&engine, Kind::Dead);
    }

    #[test]
    fn only_a_process_known_to_have_ended_is_dead() {
        let cases: &[Case] = &[
            ("no process of that number", Found, vanish),
            ("of a container", Nothing, |it| {
                vanish(it);
                it.now.host.pid_namespace = Some(PidNamespace::Container);
            }),
            ("whose pids", Unsure("GPU 0 lists pid 4242, whose process is not certain"), |it| {
                vanish(it);
                it.now.host.pid_namespace = None;
            }),
            ("not believed", Nothing, |it| {
                vanish(it);
                it.process(PID).unresolved = Some("started after".into());
            }),
            ("not looked up", Nothing, |it| it.now.processes.clear()),
            ("asleep, its start not known", Nothing, |it| {
                vanish(it);
                it.process(PID).state = Some('S');
            }),
            // A zombie is dead in any namespace.
            ("a zombie, its start not known", Found, |it| {
                vanish(it);
                it.process(PID).state = Some('Z');
                it.now.host.pid_namespace = None;
            }),
            ("only its first thread has ended", Nothing, |it| zombie(it, Some(2))),
            ("its last thread has ended", Found, |it| zombie(it, Some(1))),
            ("threads not told", Found, |it| zombie(it, None)),
            ("runs", Nothing, |it| it.process(PID).state = Some('R')),
            ("sleeps", Nothing, |it| it.process(PID).state = Some('S')),
            ("waits for a disk", Nothing, |it| it.process(PID).state = Some('D')),
            ("stopped", Nothing, |it| it.process(PID).state = Some('T')),
            ("in a debugger", Nothing, |it| it.process(PID).state = Some('t')),
            ("idle in the kernel", Nothing, |it| it.process(PID).state = Some('I')),
        ];
        each(Kind::Dead, || alive(&[0]), 300.0, cases);
    }

    #[test]
    fn a_new_process_of_the_number_ends_the_unlisted_pid() {
        let (mut scene, mut engine) = gone(&[0], 60.0);
        scene.now.processes.clear();
        scene.rows(0).clear();
        scene.holder(PID, &[0], GIB);
        engine.observe(scene.step());
        assert_clean(&engine, Kind::Dead);
        vanish(&mut scene);
        scene.step();
        scene.play(20.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Dead), 0, "its clock starts afresh");
    }

    #[test]
    fn one_finding_for_a_pid_over_all_its_gpus_and_instances() {
        let (mut scene, _) = gone(&[0, 1], 0.0);
        let mut instance = *scene.row(0, PID);
        scene.row(0, PID).gpu_instance_id = Some(1);
        instance.gpu_instance_id = Some(2);
        scene.rows(0).push(instance);
        let engine = judge(&mut scene, 60.0);
        let finding = only(&engine, Kind::Dead);
        let held: Vec<_> = finding.gpus.iter().map(|gpu| gpu.used_bytes).collect();
        assert_eq!(held, [Some(40 * GIB), Some(20 * GIB)]);
        assert_eq!(finding.memory_bytes, Some(60 * GIB));
        assert_eq!(facts(finding)["samples"], 7);
    }

    #[test]
    fn one_late_sample_is_not_enough() {
        let mut scene = alive(&[0]);
        let mut engine = judge(&mut scene, 60.0);
        vanish(&mut scene);
        engine.observe(scene.pass(300.0));
        assert_eq!(count(&engine, Kind::Dead), 0);
        engine.observe(scene.pass(10.0));
        assert_eq!(count(&engine, Kind::Dead), 0);
        engine.observe(scene.pass(20.0));
        assert_eq!(count(&engine, Kind::Dead), 1);
    }
}
