//! `dead`: NVML lists a pid whose process no longer runs.
//!
//! The process is a zombie (`Z`, `X`), or /proc does not list the pid. Something that outlived the process keeps the
//! memory allocated, such as the driver or a forked worker that inherited the device files. The condition must last
//! longer than a process takes to exit.
//!
//! Never dead:
//!
//! - a pid missing from /proc, if gpumem runs outside the host's pid namespace. If gpumem's own namespace is unknown,
//!   the rule is undecided;
//! - a pid that may belong to a living process: the kernel may have reused the pid, or NVML may mean a process in
//!   another namespace;
//! - a pid without an entry in the snapshot;
//! - a process whose first thread has exited (`Z`) while other threads remain.
//!
//! The only action is to notify the owner, because a dead process cannot be ended.

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{held_gpus, is_listed, report_wait};
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
            (
                "duration",
                "how long the process must be dead; exiting processes stay listed for a while",
            ),
            SEVERITY,
        ],
        Settings { duration: seconds(30), severity: Severity::Critical, ..Settings::NONE },
    )
};

/// Minimum number of samples. In a single sample, the process may just be exiting.
const LEAST_SAMPLES: u64 = 2;

/// Evidence that NVML lists a process that is defunct or does not exist.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct DeadEvidence {
    /// Process state in /proc, `Z` or `X`; `null` if /proc does not list the PID.
    pub state: Option<char>,
    /// Number of consecutive samples that show the condition.
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

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let Some((state @ ('Z' | 'X'), streak)) = input.process_history.state() else {
        return;
    };
    if let Some((settings, gpus)) = held_gpus(input, |_, row| is_listed(input, row)) {
        Death {
            input: input.rule_input,
            process: input.process,
            settings,
            gpus,
            state: Some(state),
            streak,
        }
        .judge(output);
    }
}

fn unresolved_row(
    input: RuleInput<'_>,
    gpu: &Gpu,
    row: &GpuProcess,
    process: Option<&Process>,
    output: &mut RuleOutput,
) {
    let (Some(unlisted), Some(process)) = (input.history.unlisted_pid(gpu, row.pid), process)
    else {
        return;
    };
    let scope_input =
        ScopeInput { held_bytes: row.used_bytes, ..input.scope_on(Some(process), gpu) };
    let Some(settings) = input.rule.settings_for(&scope_input) else {
        return;
    };
    if unlisted.state.is_none() {
        match input.snapshot.host.pid_namespace {
            Some(PidNamespace::Host) => {}
            Some(PidNamespace::Container) => return,
            None => {
                output.add_doubt(UndecidedReason::Unresolved { pid: row.pid, gpu: gpu.index });
                return;
            }
        }
    }
    if let Some((gpus, unlisted)) = collect_unlisted_gpus(input, gpu, row, *unlisted) {
        let (state, streak) = (unlisted.state, unlisted.streak);
        Death { input, process, settings, gpus, state, streak }.judge(output);
    }
}

/// Returns every GPU that lists the pid of `row`, and the streak that began first on any of them. Returns `None` if
/// `row` is not the first row with this pid, so that each pid is reported only once.
fn collect_unlisted_gpus(
    input: RuleInput<'_>,
    gpu: &Gpu,
    row: &GpuProcess,
    unlisted: UnlistedPid,
) -> Option<(Vec<FindingGpu>, UnlistedPid)> {
    let mut earliest = unlisted;
    let mut gpus = Vec::new();
    for other in input.snapshot.gpus.iter() {
        let rows = other.processes.as_deref().unwrap_or_default();
        for listed in rows.iter().filter(|listed| listed.pid == row.pid) {
            let Some(other_unlisted) = input.history.unlisted_pid(other, row.pid) else {
                continue;
            };
            if gpus.is_empty() && !(std::ptr::eq(other, gpu) && std::ptr::eq(listed, row)) {
                return None;
            }
            if other_unlisted.streak.since < earliest.streak.since {
                earliest = *other_unlisted;
            }
            gpus.push(subject::finding_gpu(other, listed.used_bytes));
        }
    }
    (!gpus.is_empty()).then(|| (subject::merge_rows(gpus.into_iter()), earliest))
}

struct Death<'a> {
    input: RuleInput<'a>,
    process: &'a Process,
    settings: Settings,
    gpus: Vec<FindingGpu>,
    state: Option<char>,
    streak: Streak,
}

impl Death<'_> {
    fn judge(self, output: &mut RuleOutput) {
        let Self { input, process, settings, gpus, state, streak } = self;
        let needed = settings.duration.seconds();
        if streak.seconds() < needed || streak.samples < LEAST_SAMPLES {
            report_wait((input, process.pid), gpus[0].index, &streak, needed, output);
            return;
        }
        let (memory, span) =
            (subject::describe_memory(&gpus), Span::from_seconds(streak.seconds()));
        let name = format!("{} ({})", super::name_of(process), process.pid);
        let message = match state {
            Some(_) => format!("{name} is defunct and is still listed with {memory} after {span}"),
            None => {
                let subject = match process.ended() {
                    Some(_) => name,
                    None => format!("process {}", process.pid),
                };
                format!("{subject} no longer exists and is still listed with {memory} after {span}")
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
        output.findings.push(input.finding(Some(process), parts));
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
        "find the processes that still hold it: `fuser -v /dev/nvidia*` as root; kill the workers that it left behind"
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
        Case, Found, Nothing, PID, Unsure, assert_clean, check_cases, count, evidence_json, judge,
        only,
    };
    use crate::units::GIB;

    fn alive(gpus: &[u32]) -> Scene {
        let mut scene = Scene::new(2, 10.0);
        scene.now.host.pid_namespace = Some(PidNamespace::Host);
        scene.holder(PID, gpus, 20 * GIB);
        scene
    }

    /// Plays [`alive`] for a minute, removes the pid from /proc, and plays `seconds` more.
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
    fn a_missing_pid_is_reported_after_the_duration() {
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
    fn an_exited_process_keeps_its_name() {
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
        let process = finding.process.as_ref().unwrap();
        assert_eq!(process.user.as_deref(), Some("root"));
        assert_eq!(process.command.as_ref().unwrap().len(), 2);
        assert!(!process.identity.is_certain() && process.start_ticks.is_none());
        assert_eq!(finding.actions, [Action::Notify]);
        // An unresolved entry can describe an unrelated process, so its name and command are ignored.
        scene.process(PID).unresolved = Some("a stranger".into());
        assert_eq!(scene.process(PID).ended(), None);
    }

    #[test]
    fn a_zombie_is_reported_with_its_parent() {
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
    fn a_process_that_leaves_the_list_is_not_dead() {
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
    fn only_a_process_known_to_have_exited_is_dead() {
        let cases: &[Case] = &[
            ("missing pid", Found, vanish),
            ("in a container", Nothing, |scene| {
                vanish(scene);
                scene.now.host.pid_namespace = Some(PidNamespace::Container);
            }),
            (
                "unknown pid namespace",
                Unsure("pid 4242 on GPU 0 cannot be matched to a process with certainty"),
                |scene| {
                    vanish(scene);
                    scene.now.host.pid_namespace = None;
                },
            ),
            ("unresolved", Nothing, |scene| {
                vanish(scene);
                scene.process(PID).unresolved = Some("started after".into());
            }),
            ("no entry", Nothing, |scene| scene.now.processes.clear()),
            ("asleep, start unknown", Nothing, |scene| {
                vanish(scene);
                scene.process(PID).state = Some('S');
            }),
            ("a zombie, start unknown", Found, |scene| {
                vanish(scene);
                scene.process(PID).state = Some('Z');
                scene.now.host.pid_namespace = None;
            }),
            ("its first thread has exited", Nothing, |scene| zombie(scene, Some(2))),
            ("all threads have exited", Found, |scene| zombie(scene, Some(1))),
            ("threads unknown", Found, |scene| zombie(scene, None)),
            ("runs", Nothing, |scene| scene.process(PID).state = Some('R')),
            ("sleeps", Nothing, |scene| scene.process(PID).state = Some('S')),
            ("waits for a disk", Nothing, |scene| scene.process(PID).state = Some('D')),
            ("stopped", Nothing, |scene| scene.process(PID).state = Some('T')),
            ("in a debugger", Nothing, |scene| scene.process(PID).state = Some('t')),
            ("idle in the kernel", Nothing, |scene| scene.process(PID).state = Some('I')),
        ];
        check_cases(Kind::Dead, || alive(&[0]), 300.0, cases);
    }

    #[test]
    fn pid_reuse_resolves_the_finding() {
        let (mut scene, mut engine) = gone(&[0], 60.0);
        scene.now.processes.clear();
        scene.rows(0).clear();
        scene.holder(PID, &[0], GIB);
        engine.observe(scene.step());
        assert_clean(&engine, Kind::Dead);
        vanish(&mut scene);
        scene.step();
        scene.play(20.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Dead), 0, "the duration restarts");
    }

    #[test]
    fn one_finding_covers_all_gpus_and_instances_of_a_pid() {
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
        assert_eq!(evidence_json(finding)["samples"], 7);
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
