//! Detects notebook cells that have run for a long time without doing any work.
//!
//! A running cell protects its kernel, because only the author knows what the cell waits for. The protection ends
//! after `max_busy` without a sign of work, so that a sleeping cell does not hold memory all night. Signs of work are
//! output (which updates the server's last activity), GPU use, and CPU use by the kernel or its descendants. If GPU
//! or CPU use is unknown, the rule is undecided. If the last activity is unknown, the cell protects the kernel for as
//! long as it runs.

use crate::history::{History, ProcessHistory, Use};
use crate::model::snapshot::ProcessType;
use crate::model::{Process, Time};
use crate::rules::lasting::OLDEST_CPU_SECONDS;
use crate::rules::rule::Settings;
use crate::rules::undecided_reason::UndecidedReason;

/// Maximum CPU use, in percent of a core, of a waiting kernel. Heartbeats and autosaving cause some CPU use.
const TRACE_OF_CPU_PERCENT: f64 = 2.0;
/// Maximum CPU use, in percent of a core, that does not end an active finding. It is higher than
/// [`TRACE_OF_CPU_PERCENT`], so that the finding does not begin and end repeatedly.
const TRACE_TO_STAY_PERCENT: f64 = 4.0;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Cell {
    None,
    Runs,
    /// Whether the cell is idle depends on an unknown fact.
    Unknown(UndecidedReason),
    /// The cell has shown no sign of work for `max_busy`.
    Sleeps {
        since: Time,
    },
}

pub(super) fn is_busy(process: &Process) -> bool {
    let kernel = process.jupyter.as_deref();
    kernel.and_then(|kernel| kernel.execution_state.as_deref()) == Some("busy")
}

/// Judges the running cell at `now`. `is_active` returns whether the process has an active finding; it is called only
/// if needed.
pub(super) fn judge_cell(
    (history, now): (&History, Time),
    process: &Process,
    process_history: &ProcessHistory,
    settings: &Settings,
    is_active: impl FnOnce() -> bool,
) -> Cell {
    if !is_busy(process) {
        return Cell::None;
    }
    let needed = settings.max_busy.seconds();
    let Some(mut since) = process.last_activity() else {
        return Cell::Runs;
    };
    if now.seconds_since(since) < needed {
        return Cell::Runs;
    }
    let mut doubt = None;
    for row in process_history.rows() {
        match (row.kind(), row.run(), row.last_use()) {
            (ProcessType::Graphics, ..) => {}
            (_, Some(run), _) => since = since.max(run.since),
            (_, None, Use::Used) => return Cell::Runs,
            (_, None, _) => {
                doubt = Some(UndecidedReason::NoUtilization { gpu: history.gpu_index(row) });
            }
        }
    }
    let trace = if is_active() { TRACE_TO_STAY_PERCENT } else { TRACE_OF_CPU_PERCENT };
    let cpu = process_history.cpu();
    match cpu.quiet_since(trace) {
        Some(quiet) if is_recent(cpu.known_at(), now) => since = since.max(quiet),
        _ => {
            doubt = Some(UndecidedReason::NoCpu { pid: process.pid });
        }
    }
    // If the last known sign of work is recent, the cell is working, regardless of unknown facts.
    match doubt {
        _ if now.seconds_since(since) < needed => Cell::Runs,
        Some(doubt) => Cell::Unknown(doubt),
        None => Cell::Sleeps { since },
    }
}

fn is_recent(known_at: Option<Time>, now: Time) -> bool {
    known_at.is_some_and(|at| now.seconds_since(at) <= OLDEST_CPU_SECONDS)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::history::testing::Scene;
    use crate::model::dice::Dice;
    use crate::model::finding::{Action, Kind};
    use crate::model::process::Descendants;
    use crate::model::snapshot::Jupyter;
    use crate::rules::testing::{
        Change, PID, cpu_unknown, engine_with_rule, evidence_json, reasons, written,
    };
    use crate::rules::{Engine, RuleSet as AllSettings};
    use crate::units::{GIB, Span};

    const HOUR: f64 = 3_600.0;

    /// Returns a scene with a busy notebook kernel that uses its GPU, sampled every 30 s.
    fn scene() -> Scene {
        let mut scene = Scene::new(2, 30.0);
        scene.holder(PID, &[0], 20 * GIB);
        scene.process(PID).cpu_percent = Some(120.0);
        scene.row(0, PID).sm_percent = Some(80);
        busy(&mut scene);
        scene
    }

    fn busy(scene: &mut Scene) {
        let now = scene.now.time;
        scene.process(PID).jupyter = Some(Arc::new(Jupyter {
            kernel_id: Some("k".into()),
            notebook_path: Some("night.ipynb".into()),
            execution_state: Some("busy".into()),
            last_activity: Some(now),
            ..Jupyter::default()
        }));
    }

    fn rest(scene: &mut Scene) {
        scene.process(PID).cpu_percent = Some(0.3);
        scene.row(0, PID).sm_percent = Some(0);
    }

    /// Plays `seconds`, calling `change` before each sample. Returns the times at which there was a finding.
    fn play_and_note_findings(
        engine: &mut Engine,
        scene: &mut Scene,
        seconds: f64,
        mut change: impl FnMut(&mut Scene, f64),
    ) -> Vec<f64> {
        let start = scene.now.time;
        let mut found_at = Vec::new();
        loop {
            let at = scene.now.time.seconds_since(start);
            if at >= seconds {
                return found_at;
            }
            change(scene, at);
            engine.observe(scene.step());
            if !engine.findings().is_empty() {
                found_at.push(scene.now.time.seconds_since(start));
            }
        }
    }

    /// Plays ten minutes of work, then ten hours in which the cell sleeps, with `change` before each sample. Returns
    /// the times at which there was a finding.
    fn night(change: impl FnMut(&mut Scene, f64)) -> (Vec<f64>, Engine) {
        let mut scene = scene();
        let mut engine = engine_with_rule("idle");
        assert_eq!(
            play_and_note_findings(&mut engine, &mut scene, 600.0, |scene, _| busy(scene)),
            [0.0; 0]
        );
        rest(&mut scene);
        let found_at = play_and_note_findings(&mut engine, &mut scene, 10.0 * HOUR, change);
        (found_at, engine)
    }

    #[test]
    fn a_sleeping_cell_is_idle_after_two_hours_without_flicker() {
        let (found_at, engine) = night(|_, _| {});
        let first = found_at[0];
        // The finding can begin up to seven minutes later, because the end of CPU use is detected with a delay.
        assert!((2.0 * HOUR..=2.0 * HOUR + 420.0).contains(&first), "{first}");
        let samples = ((10.0 * HOUR - first) / 30.0) as usize + 1;
        assert_eq!(found_at.len(), samples, "the finding flickered");
        let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
        assert_eq!(finding.actions, [Action::Notify]);
        assert_eq!(evidence_json(finding)["busy_seconds"], finding.duration_seconds);
        assert_eq!(engine.undecided(), []);
        assert_eq!(engine.pending(), []);
    }

    #[test]
    fn hourly_activity_protects_a_cell() {
        type Hourly = fn(&mut Scene, bool);
        let signs: [(&str, Hourly); 6] = [
            ("the server sees output", |scene, is_on| {
                if is_on {
                    busy(scene);
                }
            }),
            ("the kernel computes for half a minute", |scene, is_on| {
                scene.process(PID).cpu_percent = Some(if is_on { 100.0 } else { 0.3 });
            }),
            ("a child computes", |scene, is_on| {
                let process = scene.process(PID);
                let cpu_seconds =
                    process.descendants.as_deref().and_then(|descendants| descendants.cpu_seconds);
                process.descendants = Some(Arc::new(Descendants {
                    cpu_seconds: Some(cpu_seconds.unwrap_or(50.0) + if is_on { 30.0 } else { 0.0 }),
                    ..Descendants::default()
                }));
            }),
            ("the GPU is used", |scene, is_on| {
                scene.row(0, PID).sm_percent = Some(u32::from(is_on));
            }),
            ("another GPU is used", |scene, is_on| {
                if scene.rows(1).is_empty() {
                    let row = *scene.row(0, PID);
                    scene.rows(1).push(row);
                }
                scene.row(1, PID).sm_percent = Some(u32::from(is_on));
            }),
            ("the start of the cell is unknown", |scene, _| {
                let kernel = Arc::make_mut(scene.process(PID).jupyter.as_mut().unwrap());
                kernel.last_activity = None;
            }),
        ];
        for (sign, change) in signs {
            let (found_at, engine) = night(|scene, at| change(scene, at % HOUR < 30.0));
            assert_eq!(found_at, [0.0; 0], "{sign}");
            assert_eq!(engine.undecided(), [], "{sign}");
        }
    }

    #[test]
    fn unknown_facts_leave_a_cell_undecided() {
        let cases: [(&str, Change, &str); 3] = [
            ("CPU", cpu_unknown, "the CPU use of process 4242 is unknown"),
            (
                "the descendants' CPU",
                |scene| {
                    scene.process(PID).descendants = Some(Arc::new(Descendants::default()));
                },
                "the CPU use of process 4242 is unknown",
            ),
            (
                "GPU",
                |scene| {
                    scene.gpu(0).gpu_percent = None;
                    let row = scene.row(0, PID);
                    (row.sm_percent, row.memory_percent) = (None, None);
                },
                "the driver gives no per-process utilization on GPU 0",
            ),
        ];
        for (case, change, reason) in cases {
            let mut scene = scene();
            change(&mut scene);
            busy(&mut scene);
            rest(&mut scene);
            change(&mut scene);
            let mut engine = engine_with_rule("idle");
            let found_at = play_and_note_findings(&mut engine, &mut scene, 1.9 * HOUR, |_, _| {});
            assert_eq!(found_at, [0.0; 0], "{case}");
            assert_eq!(reasons(&engine, Kind::Idle), [""; 0], "{case}: protected");
            let found_at = play_and_note_findings(&mut engine, &mut scene, 5.0 * HOUR, |_, _| {});
            assert_eq!(found_at, [0.0; 0], "{case}");
            assert_eq!(reasons(&engine, Kind::Idle), [reason], "{case}");
        }
    }

    #[test]
    fn a_new_cell_in_an_idle_notebook_is_protected() {
        let mut scene = scene();
        let mut engine = engine_with_rule("idle");
        rest(&mut scene);
        let idle = |scene: &mut Scene, state: &str| {
            let now = scene.now.time;
            let kernel = scene.process(PID).jupyter.as_mut().unwrap();
            let kernel = Arc::make_mut(kernel);
            kernel.execution_state = Some(state.into());
            kernel.last_activity = Some(now);
        };
        idle(&mut scene, "idle");
        let found_at = play_and_note_findings(&mut engine, &mut scene, 5.0 * HOUR, |_, _| {});
        assert!(!found_at.is_empty());
        idle(&mut scene, "busy");
        let found_at = play_and_note_findings(&mut engine, &mut scene, 1.9 * HOUR, |_, _| {});
        assert_eq!(found_at, [0.0; 0]);
    }

    #[test]
    fn max_busy_limits_how_long_a_cell_is_protected() {
        let mut settings = AllSettings::default();
        settings.select(&["idle"]).unwrap();
        let half = written(Span::from_seconds(1_800.0));
        assert!(settings.rule_mut("idle").unwrap().set("max_busy", &half).is_ok());
        let mut engine = Engine::new(settings);
        let mut scene = scene();
        play_and_note_findings(&mut engine, &mut scene, 600.0, |scene, _| busy(scene));
        rest(&mut scene);
        let found_at = play_and_note_findings(&mut engine, &mut scene, HOUR, |_, _| {});
        assert!((1_800.0..=2_220.0).contains(&found_at[0]), "{found_at:?}");
    }

    #[test]
    fn lost_samples_and_heartbeats_do_not_affect_a_finding() {
        for seed in 1..=20 {
            let mut dice = Dice::new(seed);
            let mut scene = scene();
            let mut engine = engine_with_rule("idle");
            play_and_note_findings(&mut engine, &mut scene, 600.0, |scene, _| busy(scene));
            rest(&mut scene);
            let start = scene.now.time;
            let mut was_found = false;
            while scene.now.time.seconds_since(start) < 6.0 * HOUR {
                scene.process(PID).cpu_percent = Some(dice.roll(12) as f64 / 10.0);
                let lost = dice.roll(100) < 20;
                let snapshot = scene.step();
                if lost {
                    continue;
                }
                engine.observe(snapshot);
                let at = scene.now.time.seconds_since(start);
                let is_found = !engine.findings().is_empty();
                assert!(!is_found || at >= 2.0 * HOUR, "{seed}: found after {at} s");
                assert!(is_found || !was_found, "{seed}: flicker at {at} s");
                was_found = is_found;
            }
            assert!(was_found, "{seed}: never found");
        }
    }
}
