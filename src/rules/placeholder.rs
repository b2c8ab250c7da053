//! `placeholder`: a program that holds a GPU to keep other processes off it, and does no work there.
//!
//! Programs published for this purpose are recognised by name (`Process::placeholder`). They are reported while
//! they hold GPU memory and once they have run for the duration, so that a burn-in test of some minutes is not.
//!
//! No action ends a placeholder: a person who needs the GPU should ask its owner. The same applies to other rules'
//! findings on it; see `reclaim::select`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, ProcessInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
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
            ("min_memory", "less memory than this on a GPU is ignored"),
            ("duration", "how long it has to run"),
            SEVERITY,
        ],
        Settings { min_memory: Bytes(GIB), duration: seconds(3600), ..Settings::NONE },
    )
};

/// Advice other than ending the process.
const ADVICE: &str = "it holds a GPU and does no work on it; ask its owner what it is reserved for";

/// Evidence that a process only reserves a GPU.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlaceholderEvidence {
    /// Known program that the process runs.
    pub program: Arc<str>,
}

impl KindEvidence for PlaceholderEvidence {
    fn words(&self) -> String {
        format!("runs {}, which occupies GPUs", self.program)
    }
}

/// Judges a known placeholder by how long it has run.
fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let Some(program) = it.known.names().placeholder else {
        return;
    };
    let now = it.seen.snapshot.time;
    let mut gpus: Vec<FindingGpu> = Vec::new();
    let mut severity = None;
    // A placeholder holds memory from its start, even before its memory was observed.
    let began = it.process.start_time.filter(|start| *start <= now);
    let first_seen = || it.known.rows().iter().map(RowHistory::first_seen).min();
    let Some(since) = began.or_else(first_seen) else {
        return;
    };
    for row in it.known.rows() {
        let Some(settings) = it.settings(row) else {
            continue;
        };
        let is_enough = |bytes: u64| bytes >= settings.min_memory.0;
        if row.kind() == ProcessType::Graphics || !row.used_bytes().is_some_and(is_enough) {
            continue;
        }
        let (gpu, needed) = (it.on(row), settings.duration.seconds());
        if now < since.plus_seconds(needed) {
            it.expect(gpu.index, since, needed, verdicts);
            continue;
        }
        severity = severity.max(Some(settings.severity));
        gpus.push(gpu);
    }
    let Some(severity) = severity else {
        return;
    };
    let gpus = subject::by_gpu(gpus.into_iter());
    let message = format!(
        "{} holds {} and has run for {}: {program} occupies GPUs without doing any work",
        it.name(),
        subject::held(&gpus),
        Span::from_seconds(now.seconds_since(since)),
    );
    let evidence = Evidence::new(PlaceholderEvidence { program: program.into() });
    let advice = advice(it);
    let parts = FindingParts { severity, gpus, since, until: now, evidence, message, advice };
    verdicts.find(it.seen.finding(Some(it.process), parts));
}

fn advice(it: ProcessInput<'_>) -> Vec<String> {
    [ADVICE.to_owned()].into_iter().chain(advice::steps(it.process)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::testing::Scene;
    use crate::model::finding::{Action, Severity};
    use crate::model::process::Parent;
    use crate::rules::testing::{
        Case, Found, Nothing, PID, assert_clean, count, each, facts, judge, only,
    };

    fn words(command: &str) -> Arc<[Arc<str>]> {
        command.split(' ').map(Arc::from).collect()
    }

    /// A process started `age` seconds ago that holds 40 GiB of 80 and keeps the GPU busy.
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
    fn known_placeholders_are_found_by_their_whole_name() {
        for (command, program) in [
            ("/v/bin/python /v/bin/keep-gpu --gpu-ids 0 --vram 1GiB", "keep-gpu"),
            ("python -m keep_gpu.cli --interval 60", "keep-gpu"),
            ("python -u -m keep_gpu.mcp.server --mode http", "keep-gpu"),
            ("/usr/local/bin/doma launch", "doma"),
            ("python /v/bin/nvertake --filled 0.95", "nvertake"),
            ("python -m nvertake.cli -d 1 -q --filled=0.9", "nvertake"),
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
            assert_eq!(facts(finding)["program"], program, "{command}");
        }
    }

    #[test]
    fn similar_names_are_no_placeholders() {
        for command in [
            // It starts other people's work.
            "python /v/bin/nvertake run train.py",
            "python /v/bin/nvertake --filled 0.95 run train.py --epochs 9",
            "python /v/bin/nvertake -f 0.9 exec torchrun train.py",
            "python /v/bin/nvertake --filled 0.9 --new-option 3",
            "python /v/bin/nvertake info",
            // A part of a name, a word among the arguments, a user's own script.
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
    fn a_short_burn_in_test_is_no_placeholder() {
        let mut scene = scene("/opt/gpu_burn 3000", 60.0);
        let mut engine = judge(&mut scene, HOUR - 120.0);
        assert_eq!(count(&engine, Kind::Placeholder), 0);
        assert_eq!(engine.pending()[0].kind, Kind::Placeholder);
        scene.play(120.0, |snapshot| engine.observe(snapshot));
        assert_eq!(count(&engine, Kind::Placeholder), 1);
        // The process ended, or freed its memory.
        scene.row(0, PID).used_bytes = Some(GIB / 2);
        engine.observe(scene.step());
        assert_eq!(count(&engine, Kind::Placeholder), 0);
    }

    #[test]
    fn a_placeholders_worker_is_one_too() {
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
    fn without_memory_or_with_unknown_memory_there_is_no_finding() {
        let cases: &[Case] = &[
            ("as much", Found, |it| it.row(0, PID).used_bytes = Some(GIB)),
            ("less", Nothing, |it| it.row(0, PID).used_bytes = Some(GIB - 1)),
            ("not told", Nothing, |it| it.row(0, PID).used_bytes = None),
            ("graphics", Nothing, |it| it.row(0, PID).kind = ProcessType::Graphics),
            ("command not told", Nothing, |it| it.process(PID).command = None),
        ];
        each(Kind::Placeholder, || scene("doma", 2.0 * HOUR), 20.0, cases);
    }

    #[test]
    fn without_a_start_time_the_first_sample_counts() {
        let mut unknown = scene("doma", 0.0);
        unknown.process(PID).start_time = None;
        let mut engine = judge(&mut unknown, HOUR - 10.0);
        assert_eq!(count(&engine, Kind::Placeholder), 0);
        engine.observe(unknown.step());
        assert_eq!(count(&engine, Kind::Placeholder), 1);
        // A start in the future means that the clock was set.
        let future = judge(&mut scene("doma", -HOUR), 60.0);
        assert_eq!(count(&future, Kind::Placeholder), 0);
    }
}
