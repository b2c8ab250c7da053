//! `stuck`: a process holds memory on a GPU and stays in uninterruptible sleep (`D`).
//!
//! The process waits inside the kernel, nearly always in a driver, and does not react to signals. In all samples of
//! the duration, it must be in `D`, and its CPU time must not advance. A process that reads a slow disk can be in `D`
//! in every sample, but its CPU time advances between samples. If the CPU time is unknown, more samples are required.
//!
//! If the first thread has exited (`Z`) and all other threads are in `D`, the process is treated as if it were in
//! `D`: the process was killed, but a waiting thread still holds all of its memory.
//!
//! Never stuck: a process that holds no memory on a GPU, is only briefly in `D`, or uses CPU time. No action ends a
//! stuck process, because it does not react to signals.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{held_gpus, report_wait};
use super::rule::{
    FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds,
};
use super::subject;
use crate::history::{Began, ProcessHistory, Streak};
use crate::model::Process;
use crate::model::finding::{Evidence, Kind, KindEvidence, Severity, samples};
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<StuckEvidence>(
        Kind::Stuck,
        "a process that holds memory on a GPU has been in uninterruptible sleep for the rule's duration",
        &[("duration", "how long the process must stay in uninterruptible sleep"), SEVERITY],
        Settings { duration: seconds(120), severity: Severity::Critical, ..Settings::NONE },
    )
};

/// Minimum number of samples if the CPU time did not advance.
const LEAST_SAMPLES: u64 = 3;
/// Minimum number of samples if the CPU time is unknown.
const LEAST_SAMPLES_WITHOUT_CPU: u64 = 5;
/// Time, in seconds, after which a process in uninterruptible sleep is assumed not to react to signals.
const BEYOND_SIGNALS_SECONDS: f64 = 120.0;

/// Evidence that a process is blocked in the kernel.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StuckEvidence {
    /// Process state in /proc: `D`.
    pub state: char,
    /// Whether the state is that of another thread because the first thread has exited.
    pub of_a_thread: bool,
    /// Kernel function in which the process waits, if known.
    pub wchan: Option<Arc<str>>,
    /// Number of consecutive samples that show the condition.
    pub samples: u64,
}

impl KindEvidence for StuckEvidence {
    fn words(&self) -> String {
        let wchan = self.wchan.as_ref().map_or_else(String::new, |wchan| format!(", in {wchan}"));
        format!("blocked in the kernel ({}{wchan}) in all {}", self.state, samples(self.samples))
    }
}

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let Some(('D', streak)) = input.process_history.state() else {
        return;
    };
    let Some((settings, gpus)) = held_gpus(input, |_, row| row.used_bytes() != Some(0)) else {
        return;
    };
    let streak = limit_to_unchanged_cpu_time(streak, input.process_history);
    let needed = settings.duration.seconds();
    let least_samples = match input.process_history.still_since() {
        Some(_) => LEAST_SAMPLES,
        None => LEAST_SAMPLES_WITHOUT_CPU,
    };
    if streak.seconds() < needed || streak.samples < least_samples {
        report_wait((input.rule_input, input.process.pid), gpus[0].index, &streak, needed, output);
        return;
    }
    let process = input.process;
    let of_a_thread = process.has_threads_left();
    let state = match of_a_thread {
        true => "has exited except for one thread, which has been",
        false => "has been",
    };
    let message = format!(
        "{} holds {} and {state} in uninterruptible sleep for {}: no signal reaches it",
        input.name(),
        subject::describe_memory(&gpus),
        Span::from_seconds(streak.seconds()),
    );
    let parts = FindingParts {
        severity: settings.severity,
        gpus,
        since: streak.since,
        until: streak.until,
        evidence: Evidence::new(StuckEvidence {
            state: 'D',
            of_a_thread,
            wchan: process.wchan.clone(),
            samples: streak.samples,
        }),
        message,
        advice: advice(process),
    };
    output.findings.push(input.rule_input.finding(Some(process), parts));
}

/// Shortens the streak to the time since the CPU time last advanced, if that is known and later.
fn limit_to_unchanged_cpu_time(streak: Streak, process_history: &ProcessHistory) -> Streak {
    match process_history.still_since() {
        // An advance in the first sample that shows `D` does not shorten the streak, because the process used that
        // CPU time earlier.
        Some(since) if since > streak.since => Streak { since, began: Began::Witnessed, ..streak },
        _ => streak,
    }
}

/// Returns whether no signal can end a process, because it is dead or has been in uninterruptible sleep for two
/// minutes.
pub(super) fn is_beyond_signals(input: RuleInput<'_>, process_history: &ProcessHistory) -> bool {
    process_history.state().is_some_and(|(state, streak)| match state {
        'Z' | 'X' => true,
        'D' => input.snapshot.time.seconds_since(streak.since) >= BEYOND_SIGNALS_SECONDS,
        _ => false,
    })
}

/// Advice for a process that waits in a kernel function, by the prefix of that function's name.
const WAITS: [(&str, &str); 4] =
    [("fuse_", FUSE), ("request_wait_answer", FUSE), ("nfs", NFS), ("rpc_", NFS)];

const FUSE: &str = "its file system's FUSE server does not answer: end that server, or abort its connection as root, \
    `echo 1 > /sys/fs/fuse/connections/N/abort` (N is the mount's minor device number in /proc/self/mountinfo)";
const NFS: &str =
    "its NFS server does not answer: restore it, or unmount by force as root, `umount -f MOUNT`";

fn advice(process: &Process) -> Vec<String> {
    let pid = process.pid;
    let wait_advice = process.wchan.as_deref().and_then(|wchan| {
        WAITS.iter().find(|(start, _)| wchan.starts_with(start)).map(|(_, line)| (*line).to_owned())
    });
    let threads = "list what its threads wait for, as root: ";
    let inspect = format!("{threads}`ps -L -o tid,stat,wchan:32,comm -p {pid}`");
    let signals =
        "a kill takes effect only when the kernel releases it; do not wait for it in a script";
    let driver = "look for driver errors: `dmesg | grep -i -e xid -e nvrm`; if it waits for a \
    file system (fuse, nfs), repair the server of that file system; if nothing else helps, reboot";
    let last = match &wait_advice {
        Some(_) => None,
        None => Some(driver.to_owned()),
    };
    [Some(wait_advice.unwrap_or(inspect)), Some(signals.to_owned()), last]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::Action;
    use crate::rules::Engine;
    use crate::rules::testing::{
        Found, Nothing, PID, assert_clean, check_cases, count, cpu_unknown, judge, only,
        unidentified,
    };
    use crate::units::GIB;

    /// Returns a scene with `python train.py`, which is in `D` in every sample.
    fn all_along(interval: f64) -> Scene {
        let mut scene = Scene::new(1, interval);
        scene.holder(PID, &[0], GIB);
        scene.process(PID).state = Some('D');
        scene
    }

    fn stuck(interval: f64, seconds: f64) -> (Scene, Engine) {
        let mut scene = Scene::new(1, interval);
        scene.holder(PID, &[0], 20 * GIB);
        let mut engine = judge(&mut scene, 60.0);
        scene.process(PID).state = Some('D');
        scene.step();
        scene.play(seconds, |snapshot| engine.observe(snapshot));
        (scene, engine)
    }

    #[test]
    fn a_stuck_process_is_reported_without_actions() {
        let (mut scene, mut engine) = stuck(10.0, 110.0);
        assert_clean(&engine, Kind::Stuck);
        assert_eq!(engine.pending()[0].kind, Kind::Stuck);
        engine.observe(scene.step());
        let finding = only(&engine, Kind::Stuck);
        assert_eq!(finding.severity, Severity::Critical);
        assert_eq!((finding.duration_seconds, finding.memory_bytes), (120.0, Some(20 * GIB)));
        assert_eq!(
            finding.evidence,
            Evidence::new(StuckEvidence {
                state: 'D',
                of_a_thread: false,
                wchan: None,
                samples: 13
            })
        );
        assert_eq!(finding.actions, [Action::Notify]);
    }

    #[test]
    fn a_process_whose_cpu_time_advances_is_not_stuck() {
        for (percent, found) in [(0.0, 1), (0.5, 1), (3.0, 0), (90.0, 0)] {
            let mut scene = all_along(60.0);
            scene.process(PID).cpu_percent = Some(percent);
            let engine = judge(&mut scene, 1_200.0);
            assert_eq!(count(&engine, Kind::Stuck), found, "{percent} %");
        }
        let mut scene = all_along(10.0);
        scene.process(PID).cpu_percent = Some(40.0);
        let mut engine = judge(&mut scene, 300.0);
        let stops = scene.now.time;
        scene.process(PID).cpu_percent = Some(0.0);
        scene.step();
        scene.play(200.0, |snapshot| engine.observe(snapshot));
        assert_eq!(only(&engine, Kind::Stuck).since, stops);
    }

    #[test]
    fn unknown_cpu_time_requires_more_samples() {
        for (interval, seconds, found) in
            [(60.0, 120.0, 0), (60.0, 180.0, 0), (60.0, 240.0, 1), (30.0, 120.0, 1)]
        {
            let mut scene = all_along(interval);
            cpu_unknown(&mut scene);
            let engine = judge(&mut scene, seconds);
            assert_eq!(count(&engine, Kind::Stuck), found, "{interval} {seconds}");
        }
    }

    #[test]
    fn only_identified_processes_with_memory_are_stuck() {
        check_cases(
            Kind::Stuck,
            || all_along(10.0),
            200.0,
            &[
                ("stuck", Found, |_| ()),
                ("memory unknown", Found, |scene| scene.row(0, PID).used_bytes = None),
                ("no memory", Nothing, |scene| scene.row(0, PID).used_bytes = Some(0)),
                ("on no GPU", Nothing, |scene| scene.rows(0).clear()),
                ("asleep", Nothing, |scene| scene.process(PID).state = Some('S')),
                ("no identity", Nothing, unidentified),
            ],
        );
    }

    #[test]
    fn other_threads_decide_after_the_first_one_exits() {
        for (left_thread_state, percent, found) in [
            (Some('D'), 0.0, 1),
            // If the states of the other threads are unknown, the CPU time decides.
            (None, 0.0, 1),
            // The main thread called `pthread_exit`, and the other threads continue to run.
            (Some('S'), 0.0, 0),
            (Some('R'), 90.0, 0),
            (None, 90.0, 0),
        ] {
            let mut scene = Scene::new(1, 10.0);
            scene.holder(PID, &[0], GIB);
            let process = scene.process(PID);
            (process.state, process.threads) = (Some('Z'), Some(2));
            (process.left_thread_state, process.wchan) =
                (left_thread_state, Some("request_wait_answer".into()));
            process.cpu_percent = Some(percent);
            let engine = judge(&mut scene, 200.0);
            assert_eq!(count(&engine, Kind::Stuck), found, "{left_thread_state:?} {percent} %");
            assert_eq!(count(&engine, Kind::Dead), 0, "{left_thread_state:?} {percent} %");
            if found == 1 {
                let finding = only(&engine, Kind::Stuck);
                assert!(finding.advice[0].contains("FUSE") && finding.actions == [Action::Notify]);
            }
        }
    }
}
