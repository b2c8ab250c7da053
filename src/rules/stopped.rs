//! `stopped`: a process that holds memory on a GPU was stopped (`T`) by a signal or its terminal.
//!
//! Causes are Ctrl-Z, a background job that reads from the terminal, `kill -STOP`, and a frozen cgroup (`docker
//! pause`). All samples of the duration must show the state `T`. In any other state, the duration starts again.
//!
//! Never stopped: a process under a debugger (`t`), and a process that holds no memory on a GPU or uses it only for
//! graphics. The finding offers no action that ends the process, because the owner or a scheduler may resume it.
//! `gpumem reap` nevertheless includes the process by default.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{held_gpus, report_wait};
use super::rule::{FindingParts, ProcessInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::subject;
use crate::advice;
use crate::history::RowHistory;
use crate::model::Process;
use crate::model::finding::{Evidence, Kind, KindEvidence, samples};
use crate::model::snapshot::ProcessType;
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<StoppedEvidence>(
        Kind::Stopped,
        "a process that holds memory on a GPU has been stopped by a signal or a terminal",
        &[
            ("min_memory", "minimum memory of a job on a GPU (0: any)"),
            ("duration", "how long the process must be stopped"),
            SEVERITY,
        ],
        Settings { duration: seconds(120), ..Settings::NONE },
    )
};

/// Evidence that a process is stopped.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StoppedEvidence {
    /// Process state: `T`.
    pub state: char,
    /// Number of consecutive samples that show the condition.
    pub samples: u64,
    /// Controlling terminal, if there is one. Running `fg` in this terminal resumes the process.
    pub terminal: Option<Arc<str>>,
    /// Whether the process is frozen with its cgroup; /proc reports it as sleeping.
    #[serde(rename = "frozen")]
    pub is_frozen: bool,
}

impl KindEvidence for StoppedEvidence {
    fn words(&self) -> String {
        let cause = if self.is_frozen { "its cgroup is frozen" } else { "T: Ctrl-Z, SIGSTOP" };
        let mut words = format!("suspended ({cause}) in all {}", samples(self.samples));
        if let Some(terminal) = &self.terminal {
            let _ = write!(words, ", on {terminal}");
        }
        words
    }
}

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let Some(('T', streak)) = input.process_history.state() else {
        return;
    };
    // If the memory of a process is unknown, assume that it holds enough.
    let counts = |settings: &Settings, row: &RowHistory| {
        row.kind() != ProcessType::Graphics && input.holds_enough(row, settings) != Some(false)
    };
    let Some((settings, gpus)) = held_gpus(input, counts) else {
        return;
    };
    let needed = settings.duration.seconds();
    if streak.seconds() < needed {
        report_wait((input.rule_input, input.process.pid), gpus[0].index, &streak, needed, output);
        let began = (streak.since, streak.began);
        output.add_candidate(input.candidate(gpus, began, streak.samples, needed));
        return;
    }
    let message = format!(
        "{} has been stopped for {} and holds {}",
        input.name(),
        Span::from_seconds(streak.seconds()),
        subject::describe_memory(&gpus),
    );
    let terminal = input.process.terminal.clone();
    let is_frozen = input.process.frozen == Some(true);
    let evidence = StoppedEvidence { state: 'T', samples: streak.samples, terminal, is_frozen };
    let parts = FindingParts {
        severity: settings.severity,
        gpus,
        since: streak.since,
        until: streak.until,
        evidence: Evidence::new(evidence),
        message,
        advice: advice_lines(input.process),
    };
    output.findings.push(input.rule_input.finding(Some(input.process), parts));
}

fn advice_lines(process: &Process) -> Vec<String> {
    let pid = process.pid;
    if let Some(line) = advice::thaw(process) {
        return vec![line];
    }
    // In a container or unit, the owner's command sends SIGTERM, which a stopped process handles only after SIGCONT.
    let is_job = process.slurm.as_deref().is_some_and(|job| job.over != Some(true));
    let owner = advice::owner(process).filter(|owner| is_job || owner.is_asked_first);
    let end = owner.map_or_else(
        || format!("or kill it: `kill -TERM {pid}; kill -CONT {pid}` (a stopped process handles SIGTERM only after SIGCONT)"),
        |owner| owner.line,
    );
    vec![advice::continue_line(process), end]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::{Action, Severity};
    use crate::model::json::is_hostile;
    use crate::model::snapshot::{Jupyter, Slurm};
    use crate::rules::testing::{
        Found, Nothing, PID, assert_clean, check_cases, count, cpu_unknown, judge, judge_with,
        only, unidentified, written,
    };
    use crate::units::{Bytes, GIB};

    /// Returns a scene with `python train.py`, which holds 1 GiB and is stopped in every sample.
    fn all_along() -> Scene {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], GIB);
        scene.process(PID).state = Some('T');
        scene
    }

    /// Plays a minute in which `python train.py` runs on GPU 0, stops the process, and plays `seconds` more, sampled
    /// every 10 s.
    fn stopped(seconds: f64) -> (Scene, crate::rules::Engine) {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], 20 * GIB);
        scene.process(PID).terminal = Some("pts/3".into());
        let mut engine = judge(&mut scene, 60.0);
        scene.process(PID).state = Some('T');
        scene.step();
        scene.play(seconds, |snapshot| engine.observe(snapshot));
        (scene, engine)
    }

    #[test]
    fn a_stopped_process_is_reported_after_the_duration() {
        let (mut scene, mut engine) = stopped(110.0);
        assert_clean(&engine, Kind::Stopped);
        assert_eq!(engine.pending()[0].kind, Kind::Stopped);
        engine.observe(scene.step());
        let finding = only(&engine, Kind::Stopped);
        assert_eq!(finding.severity, Severity::Warning);
        assert_eq!(finding.duration_seconds, 120.0);
        assert_eq!(
            finding.evidence,
            Evidence::new(StoppedEvidence {
                state: 'T',
                samples: 13,
                terminal: Some("pts/3".into()),
                is_frozen: false
            })
        );
        assert_eq!(finding.actions, [Action::Notify]);
        assert!(finding.advice[0].contains("fg") && finding.advice[1].contains("kill -CONT 4242"));
        assert_eq!(engine.pending(), []);
    }

    #[test]
    fn a_frozen_cgroup_is_stopped_and_not_idle() {
        let mut scene = Scene::new(1, 10.0);
        scene.holder(PID, &[0], 20 * GIB);
        let process = scene.process(PID);
        (process.frozen, process.cgroup) =
            (Some(true), Some("/system.slice/docker-a.scope".into()));
        let engine = judge(&mut scene, 1_200.0);
        let finding = only(&engine, Kind::Stopped);
        assert_eq!(finding.actions, [Action::Notify]);
        assert!(
            finding.advice[0].starts_with("thaw it") && finding.advice.len() == 1,
            "{finding:?}"
        );
        assert_eq!(count(&engine, Kind::Idle), 0);
    }

    #[test]
    fn one_running_sample_resolves_the_finding() {
        let (mut scene, mut engine) = stopped(300.0);
        scene.process(PID).state = Some('S');
        engine.observe(scene.step());
        assert_clean(&engine, Kind::Stopped);
        assert!(engine.resolved()[0].resolved_at.is_some());
        scene.process(PID).state = Some('T');
        scene.step();
        scene.play(110.0, |snapshot| engine.observe(snapshot));
        assert_clean(&engine, Kind::Stopped);
    }

    #[test]
    fn a_gap_restarts_the_duration_unless_cpu_time_is_known() {
        for (cpu_known, found) in [(true, 1), (false, 0)] {
            let (mut scene, mut engine) = stopped(100.0);
            if !cpu_known {
                cpu_unknown(&mut scene);
            }
            engine.observe(scene.pass(300.0));
            assert_eq!(count(&engine, Kind::Stopped), found, "{cpu_known}");
        }
    }

    #[test]
    fn a_debugged_or_memoryless_process_is_not_stopped() {
        check_cases(
            Kind::Stopped,
            all_along,
            200.0,
            &[
                ("stopped", Found, |_| ()),
                ("in a debugger", Nothing, |scene| scene.process(PID).state = Some('t')),
                ("asleep", Nothing, |scene| scene.process(PID).state = Some('S')),
                ("state unknown", Nothing, |scene| scene.process(PID).state = None),
                ("no memory", Nothing, |scene| scene.row(0, PID).used_bytes = Some(0)),
                ("a byte", Found, |scene| scene.row(0, PID).used_bytes = Some(1)),
                ("memory unknown", Found, |scene| scene.row(0, PID).used_bytes = None),
                ("graphics", Nothing, |scene| scene.row(0, PID).kind = ProcessType::Graphics),
                ("on no GPU", Nothing, |scene| scene.rows(0).clear()),
                ("no identity", Nothing, unidentified),
            ],
        );
    }

    #[test]
    fn settings_and_slurm_change_the_finding() {
        let mut scene = all_along();
        scene.process(PID).slurm =
            Some(Arc::new(Slurm { job_id: Some("77".into()), ..Slurm::default() }));
        let min_memory = written(Bytes(2 * GIB));
        let engine = judge_with("stopped", "min_memory", min_memory, &mut scene, 200.0);
        assert_clean(&engine, Kind::Stopped);
        let long = written(Span::from_seconds(600.0));
        let engine = judge_with("stopped", "duration", long, &mut scene, 200.0);
        assert_eq!(count(&engine, Kind::Stopped), 0);
        let engine = judge(&mut scene, 200.0);
        let advice = &only(&engine, Kind::Stopped).advice;
        assert!(advice[0].contains("scontrol resume 77"), "{advice:?}");
    }

    /// Emails and logs do not escape messages again.
    #[test]
    fn messages_contain_no_control_characters() {
        const NAME: &str = "a\n\r\t\u{1b}[2J\u{7f}\u{85}\u{9b}\u{202e}train.py";
        let changes: [fn(&mut Process); 3] = [
            |process| process.command = Some([NAME.into(), "x".into()].into()),
            |process| (process.command, process.comm) = (None, Some(NAME.into())),
            |process| {
                let notebook_path = Some(NAME.into());
                process.jupyter = Some(Arc::new(Jupyter { notebook_path, ..Jupyter::default() }));
            },
        ];
        for change in changes {
            let mut scene = all_along();
            change(scene.process(PID));
            let mut engine = judge(&mut scene, 30.0);
            let suspected = engine.suspects()[0].message.clone();
            scene.play(120.0, |snapshot| engine.observe(snapshot));
            for message in [&*only(&engine, Kind::Stopped).message, &*suspected] {
                assert!(!message.contains(is_hostile), "{message:?}");
            }
        }
    }
}
