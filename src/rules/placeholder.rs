//! `placeholder`: a program occupies a GPU to keep other users off it.
//!
//! Programs published for this purpose are recognised by name (`model::names`). The program must hold GPU
//! memory and have run for the duration, so that short burn-in tests are not reported.
//!
//! Only the owner knows whether the GPU is still needed, so gpumem ends a placeholder only if the user requests this
//! kind. `reclaim::select` also requires this for findings of other kinds on a placeholder.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{
    FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds,
};
use super::subject;
use crate::advice;
use crate::history::RowHistory;
use crate::model::finding::{Evidence, FindingGpu, Kind, KindEvidence};
use crate::model::snapshot::ProcessType;
use crate::units::{Bytes, GIB, Span};

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<PlaceholderEvidence>(
        Kind::Placeholder,
        "a program reserves a GPU and does no work on it",
        &[
            ("min_memory", "minimum memory on a GPU"),
            ("duration", "how long the program must have run"),
            SEVERITY,
        ],
        Settings { min_memory: Bytes(GIB), duration: seconds(3600), ..Settings::NONE },
    )
};

const ADVICE: &str = "it holds a GPU and does no work on it; ask its owner what it is reserved for";

/// Evidence that a process only reserves a GPU.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlaceholderEvidence {
    /// Name of the placeholder program that the process runs.
    pub program: Arc<str>,
}

impl KindEvidence for PlaceholderEvidence {
    fn words(&self) -> String {
        format!("runs {}, which occupies GPUs", self.program)
    }
}

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let Some(program) = input.process_history.names().placeholder else {
        return;
    };
    let now = input.rule_input.snapshot.time;
    let mut gpus: Vec<FindingGpu> = Vec::new();
    let mut severity = None;
    // Assume that a placeholder has held its memory since the process started.
    let began = input.process.start_time.filter(|start| *start <= now);
    let first_seen = || input.process_history.rows().iter().map(RowHistory::first_seen).min();
    let Some(since) = began.or_else(first_seen) else {
        return;
    };
    // `ProcessInput::is_active` ignores findings that began before the history. This finding usually begins when the
    // process starts.
    let RuleInput { active, rule, .. } = input.rule_input;
    let is_active = active.of_process(&rule.name, input.process.identity()).is_some();
    for row in input.process_history.rows() {
        let Some(settings) = input.settings(row) else {
            continue;
        };
        let least = settings.min_memory.0;
        let least = if is_active { least - least / 4 } else { least };
        let is_enough = |bytes: u64| bytes >= least;
        if row.kind() == ProcessType::Graphics || !row.used_bytes().is_some_and(is_enough) {
            continue;
        }
        let (gpu, needed) = (input.finding_gpu(row), settings.duration.seconds());
        if now < since.plus_seconds(needed) {
            input.add_pending(gpu.index, since, needed, output);
            continue;
        }
        severity = severity.max(Some(settings.severity));
        gpus.push(gpu);
    }
    let Some(severity) = severity else {
        return;
    };
    let gpus = subject::merge_rows(gpus.into_iter());
    let message = format!(
        "{} holds {} and has run for {}: {program} occupies GPUs without doing any work",
        input.name(),
        subject::describe_memory(&gpus),
        Span::from_seconds(now.seconds_since(since)),
    );
    let evidence = Evidence::new(PlaceholderEvidence { program: program.into() });
    let advice = advice(input);
    let parts = FindingParts { severity, gpus, since, until: now, evidence, message, advice };
    output.findings.push(input.rule_input.finding(Some(input.process), parts));
}

fn advice(input: ProcessInput<'_>) -> Vec<String> {
    [ADVICE.to_owned()].into_iter().chain(advice::steps(input.process)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::{Action, Severity};
    use crate::model::process::Parent;
    use crate::rules::testing::{
        Case, Found, Nothing, PID, assert_clean, check_cases, count, evidence_json, judge, only,
    };

    fn words(command: &str) -> Arc<[Arc<str>]> {
        command.split(' ').map(Arc::from).collect()
    }

    fn scene(command: &str, age: f64) -> Scene {
        let mut scene = Scene::new(2, 10.0);
        scene.holder(PID, &[0], 40 * GIB);
        scene.memory(0, 40 * GIB, 80 * GIB);
        scene.process(PID).command = Some(words(command));
        scene.process(PID).start_time = Some(scene.now.time.plus_seconds(-age));
        scene.draws(0, PID, 60, 300.0);
        scene
    }

    const HOUR: f64 = 3600.0;

    #[test]
    fn placeholders_are_matched_by_whole_name() {
        for (command, program) in [
            ("/v/bin/python /v/bin/keep-gpu --gpu-ids 0 --vram 1GiB", "keep-gpu"),
            ("python -m keep_gpu.cli --interval 60", "keep-gpu"),
            ("python -u -m keep_gpu.mcp.server --mode http", "keep-gpu"),
            ("/usr/local/bin/doma launch", "doma"),
            ("python /v/bin/occgpu -p 0.9 -n 4", "occgpu"),
            ("python -m occupiedgpus.core --gpu-ids 0", "occupiedgpus"),
            ("./gpu_burn -m 90% 86400", "gpu-burn"),
            ("python /v/bin/gpu-burn run --util 60", "gpu-burn"),
            ("python -m gpu_burn run", "gpu-burn"),
        ] {
            let engine = judge(&mut scene(command, 3.0 * HOUR), 20.0);
            let finding = only(&engine, Kind::Placeholder);
            assert_eq!(finding.severity, Severity::Warning, "{command}");
            assert_eq!(finding.actions, [Action::Notify], "{command}");
            assert_eq!(evidence_json(finding)["program"], program, "{command}");
        }
    }

    #[test]
    fn similar_names_are_not_placeholders() {
        for command in [
            // Names of placeholders in arguments, in paths and as parts of longer names, and users' scripts.
            "python train.py --callback keep-gpu",
            "python train_gpu_burn.py",
            "python keep_gpu.py",
            "python doma.py",
            "python -m doma.cli",
            "python -m mydoma",
            "python -c keep-gpu",
            "bash run_keep-gpu.sh",
            "python gpu_burn_in_model.py",
            "/home/doma/bin/train",
            "python /home/keep-gpu/train.py",
            "python -m keep_gpu_train.cli",
            "vllm serve keep-gpu",
        ] {
            assert_clean(&judge(&mut scene(command, 3.0 * HOUR), 60.0), Kind::Placeholder);
        }
    }

    #[test]
    fn a_short_burn_in_test_is_not_a_placeholder() {
        let mut scene = scene("/opt/gpu_burn 3000", 60.0);
        let mut engine = judge(&mut scene, HOUR - 120.0);
        assert_eq!(count(&engine, Kind::Placeholder), 0);
        assert_eq!(engine.pending()[0].kind, Kind::Placeholder);
        scene.play(120.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Placeholder), 1);
        for (bytes, found) in [(GIB / 4 * 3, 1), (GIB / 2, 0), (GIB / 4 * 3, 0)] {
            scene.row(0, PID).used_bytes = Some(bytes);
            engine.observe(scene.step());
            assert_eq!(count(&engine, Kind::Placeholder), found, "{bytes}");
        }
    }

    #[test]
    fn a_placeholders_worker_is_a_placeholder() {
        let mut scene = scene("x", 2.0 * HOUR);
        let code = "from multiprocessing.spawn import spawn_main; spawn_main()";
        let process = scene.process(PID);
        process.command = Some(["python3", "-c", code].map(Arc::from).into());
        process.parent = Some(Arc::new(Parent {
            pid: 1,
            command: Some(words("python -m gpu_burn run")),
            ..Parent::default()
        }));
        assert_eq!(count(&judge(&mut scene, 20.0), Kind::Placeholder), 1);
        scene.process(PID).command = Some(words("python train.py"));
        assert_eq!(count(&judge(&mut scene, 20.0), Kind::Placeholder), 0);
    }

    #[test]
    fn a_placeholder_needs_known_memory() {
        let cases: &[Case] = &[
            ("exactly the minimum", Found, |scene| scene.row(0, PID).used_bytes = Some(GIB)),
            ("below the minimum", Nothing, |scene| scene.row(0, PID).used_bytes = Some(GIB - 1)),
            ("unknown", Nothing, |scene| scene.row(0, PID).used_bytes = None),
            ("graphics", Nothing, |scene| scene.row(0, PID).kind = ProcessType::Graphics),
            ("command unknown", Nothing, |scene| scene.process(PID).command = None),
        ];
        check_cases(Kind::Placeholder, || scene("doma", 2.0 * HOUR), 20.0, cases);
    }

    #[test]
    fn an_unknown_start_time_falls_back_to_the_first_sample() {
        let mut unknown = scene("doma", 0.0);
        unknown.process(PID).start_time = None;
        let mut engine = judge(&mut unknown, HOUR - 10.0);
        assert_eq!(count(&engine, Kind::Placeholder), 0);
        engine.observe(unknown.step());
        assert_eq!(count(&engine, Kind::Placeholder), 1);
        // A start time in the future means that the clock was set back.
        let future = judge(&mut scene("doma", -HOUR), 60.0);
        assert_eq!(count(&future, Kind::Placeholder), 0);
    }
}
