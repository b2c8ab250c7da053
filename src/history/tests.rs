//! Tests runs, gaps and resets on simulated machines.

use super::row::{NoUseSource, UnusedRun};
use super::testing::{Scene, disorder};
use super::*;
use crate::model::GpuProcess;
use crate::model::snapshot::ProcessType;
use crate::model::testing::rounds;
use crate::units::{GIB, MIB};

const PID: u32 = 4242;

/// Returns a scene with a process that holds 20 GiB on GPU 0, observed for `seconds` with samples every 10 s.
fn watched(seconds: f64) -> (Scene, History) {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(PID, &[0], 20 * GIB);
    let mut history = History::default();
    play(&mut scene, &mut history, seconds);
    (scene, history)
}

fn play(scene: &mut Scene, history: &mut History, seconds: f64) {
    scene.play(seconds, |snapshot| {
        history.observe(snapshot);
    });
}

fn idle_seconds(scene: &mut Scene, history: &History) -> Option<f64> {
    let identity = scene.process(PID).identity();
    history.idle_since(identity, 0).map(|since| scene.now.time.seconds_since(since))
}

fn run<'a>(scene: &mut Scene, history: &'a History) -> &'a UnusedRun {
    let identity = scene.process(PID).identity();
    history.process(identity).unwrap().rows()[0].run().unwrap()
}

#[test]
fn a_run_begins_with_the_first_sample_without_use() {
    let (mut scene, mut history) = watched(100.0);
    assert_eq!(idle_seconds(&mut scene, &history), Some(100.0));
    assert_eq!(run(&mut scene, &history).began, Began::Unwitnessed);
    scene.row(0, PID).sm_percent = Some(3);
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), None);
    scene.row(0, PID).sm_percent = Some(0);
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), Some(0.0));
    history.observe(scene.step());
    let run = run(&mut scene, &history);
    assert_eq!((run.began, run.samples, run.seconds()), (Began::Witnessed, 2, 10.0));
    assert_eq!(history.span_seconds(), 130.0);
    assert_eq!(history.interval_seconds(), Some(10.0));
}

#[test]
fn every_engine_counts_as_use_and_an_mps_zero_proves_nothing() {
    let gpu = |percent| Gpu { gpu_percent: percent, ..Gpu::default() };
    // The driver reports 0 for every MPS client.
    let mps = GpuProcess { kind: ProcessType::Mps, sm_percent: Some(0), ..GpuProcess::default() };
    let row = |sm, memory, encoder, decoder| GpuProcess {
        sm_percent: sm,
        memory_percent: memory,
        encoder_percent: encoder,
        decoder_percent: decoder,
        ..GpuProcess::default()
    };
    for (row, device, expected) in [
        (row(Some(0), None, None, None), Some(90), Use::NotUsed(NoUseSource::Process)),
        (row(Some(0), Some(0), Some(0), Some(0)), None, Use::NotUsed(NoUseSource::Process)),
        (row(Some(1), None, None, None), None, Use::Used),
        (row(Some(0), Some(1), None, None), None, Use::Used),
        (row(Some(0), None, Some(1), None), None, Use::Used),
        (row(None, None, None, Some(1)), Some(0), Use::Used),
        (row(None, None, None, None), Some(0), Use::NotUsed(NoUseSource::Device)),
        (row(None, None, None, None), Some(1), Use::DeviceUsed),
        (row(None, None, None, None), None, Use::Unknown),
        (mps, Some(60), Use::DeviceUsed),
        (mps, Some(0), Use::NotUsed(NoUseSource::Device)),
        (mps, None, Use::Unknown),
    ] {
        assert_eq!(Use::from_row(&gpu(device), &row), expected, "{row:?} {device:?}");
    }
}

#[test]
fn a_few_missing_samples_do_not_end_a_run() {
    for hide in [
        (|scene| scene.gpu(0).stale_seconds = Some(3.0)) as fn(&mut Scene),
        |scene| scene.gpu(0).processes = None,
        |scene| scene.rows(0).clear(),
        |scene| scene.row(0, PID).sm_percent = None,
        |scene| scene.now.gpus.clear(),
    ] {
        let (mut scene, mut history) = watched(100.0);
        // With so much CPU use, the process may have used the GPU between samples.
        scene.process(PID).cpu_percent = Some(15.0);
        scene.gpu(0).gpu_percent = None;
        let whole = scene.clone();
        for _ in 0..5 {
            scene.step();
            let mut broken = scene.clone();
            hide(&mut broken);
            history.observe(&broken.now);
        }
        scene.now.gpus.clone_from(&whole.now.gpus);
        history.observe(scene.step());
        assert_eq!(idle_seconds(&mut scene, &history), Some(160.0));
        let run = run(&mut scene, &history);
        assert_eq!(run.samples, 12);
        assert!((run.coverage() - 110.0 / 160.0).abs() < 1e-9, "{run:?}");
    }
}

#[test]
fn a_longer_gap_ends_a_run_unless_the_cpu_was_unused() {
    for (gap, cpu_percent, idle) in [
        (60.0, 15.0, 160.0),
        (70.0, 15.0, 0.0),
        (70.0, 1.0, 170.0),
        (590.0, 0.0, 690.0),
        (600.0, 0.0, 0.0),
    ] {
        let (mut scene, mut history) = watched(100.0);
        scene.process(PID).cpu_percent = Some(cpu_percent);
        history.observe(scene.pass(gap));
        assert_eq!(idle_seconds(&mut scene, &history), Some(idle), "{gap} s at {cpu_percent} %");
        assert_eq!(run(&mut scene, &history).began, Began::Unwitnessed);
    }
    // If the process used the GPU before the gap, it is unknown when the use ended.
    let (mut scene, mut history) = watched(100.0);
    scene.row(0, PID).sm_percent = Some(50);
    history.observe(scene.step());
    scene.row(0, PID).sm_percent = Some(0);
    history.observe(scene.pass(300.0));
    assert_eq!(run(&mut scene, &history).began, Began::Unwitnessed);
}

#[test]
fn a_process_with_a_reused_pid_starts_a_new_history() {
    let (mut scene, mut history) = watched(100.0);
    let before = scene.process(PID).identity();
    scene.process(PID).start_ticks = Some(1);
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), Some(0.0));
    assert!(history.process(before).is_none());
    assert_eq!(run(&mut scene, &history).began, Began::Witnessed);
}

#[test]
fn start_times_distinguish_processes_without_ticks() {
    let (mut scene, mut history) = watched(0.0);
    scene.process(PID).start_ticks = None;
    history.observe(scene.step());
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), Some(10.0));
    scene.process(PID).start_time = None;
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), None, "a pid alone does not identify a process");
}

#[test]
fn a_briefly_missing_process_is_kept_and_an_exited_one_is_not() {
    let (mut scene, mut history) = watched(100.0);
    let identity = scene.process(PID).identity();
    let whole = scene.now.clone();
    scene.now.processes.clear();
    scene.rows(0).clear();
    history.observe(scene.step());
    assert!(history.process(identity).is_some() && !history.may_be_hidden(identity));
    let mut back = whole.clone();
    back.time = scene.pass(10.0).time;
    history.observe(&back);
    scene.now.time = back.time;
    assert!(history.idle_since(identity, 0).is_some());
    for _ in 0..8 {
        history.observe(scene.step());
    }
    assert!(history.process(identity).is_none());
}

#[test]
fn a_gpu_that_does_not_answer_hides_its_processes() {
    let (mut scene, mut history) = watched(100.0);
    let identity = scene.process(PID).identity();
    scene.now.processes.clear();
    scene.gpu(0).processes = None;
    history.observe(scene.step());
    assert!(history.may_be_hidden(identity));
    for _ in 0..61 {
        history.observe(scene.step());
    }
    assert!(history.process(identity).is_none(), "not forever");
}

#[test]
fn a_suspend_a_reboot_another_host_or_clock_clears_the_history() {
    let (mut scene, mut history) = watched(100.0);
    scene.now.host.suspended_seconds = Some(7);
    history.observe(scene.step());
    scene.now.host.suspended_seconds = Some(8);
    history.observe(scene.step());
    assert_eq!(
        idle_seconds(&mut scene, &history),
        Some(120.0),
        "a rounding error is not a suspend"
    );
    scene.now.host.suspended_seconds = Some(5_000);
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), Some(0.0));
    assert_eq!(history.span_seconds(), 0.0);

    scene.now.host.boot_id = Some("boot-2".into());
    scene.now.host.suspended_seconds = Some(0);
    history.observe(scene.step());
    scene.now.host.hostname = Some("gpu2".into());
    history.observe(scene.step());
    history.observe(scene.step());
    history.observe(scene.pass(-45.0));
    for _ in 0..2 {
        history.observe(scene.step());
    }
    assert_eq!(idle_seconds(&mut scene, &history), Some(0.0));
    history.observe(scene.pass(3_600.0));
    let resets = history.resets();
    assert_eq!((resets.slept, resets.other_boot, resets.clock_went_back, resets.gap), (1, 2, 1, 1));
    assert_eq!(resets.last, Some((Reset::Gap, scene.now.time)));
}

#[test]
fn a_duplicate_adds_nothing() {
    let (mut scene, mut history) = watched(100.0);
    scene.row(0, PID).sm_percent = Some(99);
    assert!(!history.observe(&scene.now));
    assert_eq!(idle_seconds(&mut scene, &history), Some(100.0));
    assert_eq!(run(&mut scene, &history).samples, 11);
}

#[test]
fn an_out_of_order_snapshot_is_ignored() {
    let (mut scene, mut history) = watched(100.0);
    let mut late = scene.now.clone();
    late.time = late.time.plus_seconds(-5.0);
    late.gpus[0].processes.as_mut().unwrap()[0].sm_percent = Some(99);
    assert!(history.observe(scene.step()));
    for _ in 0..3 {
        assert!(!history.observe(&late));
        assert!(!history.observe(&late));
        assert!(history.observe(scene.step()), "the next snapshot is accepted");
    }
    assert_eq!(idle_seconds(&mut scene, &history), Some(140.0));
    assert_eq!((history.resets().strays, history.resets().clock_went_back), (6, 0));
}

#[test]
fn a_gpu_is_identified_by_uuid_at_any_index() {
    let mut scene = Scene::new(2, 10.0);
    scene.holder(PID, &[1], GIB);
    let mut history = History::default();
    play(&mut scene, &mut history, 50.0);
    scene.now.gpus.swap(0, 1);
    for (index, gpu) in scene.now.gpus.iter_mut().enumerate() {
        gpu.index = index as u32;
    }
    history.observe(scene.step());
    assert_eq!(idle_seconds(&mut scene, &history), Some(60.0));
}

#[test]
fn a_stop_and_its_end_are_recorded() {
    let (mut scene, mut history) = watched(50.0);
    scene.process(PID).state = Some('T');
    history.observe(scene.step());
    let stopped_at = scene.now.time;
    scene.process(PID).state = None;
    history.observe(scene.step());
    let identity = scene.process(PID).identity();
    let (state, streak) = history.process(identity).unwrap().state().unwrap();
    assert_eq!((state, streak.since, streak.samples), ('T', stopped_at, 1));
    scene.process(PID).state = Some('R');
    history.observe(scene.step());
    let process = history.process(identity).unwrap();
    assert_eq!(process.resumed_at(), Some(scene.now.time));
}

#[test]
fn memory_that_the_driver_omits_is_kept_for_a_minute() {
    let (mut scene, mut history) = watched(50.0);
    let identity = scene.process(PID).identity();
    scene.row(0, PID).used_bytes = None;
    let used = |history: &History| history.process(identity).unwrap().rows()[0].used_bytes();
    history.observe(scene.step());
    assert_eq!(used(&history), Some(20 * GIB));
    play(&mut scene, &mut history, 60.0);
    assert_eq!(used(&history), None);
}

/// Checks the limits on memory in the module's documentation, apart from the overhead of the allocator.
#[test]
fn a_thousand_processes_on_sixteen_gpus_stay_small() {
    let mut scene = Scene::new(16, 60.0);
    // To save time, play a tenth of the processes and multiply their size by ten.
    for pid in 1..=100 {
        scene.holder(pid, &[pid % 16], GIB + u64::from(pid) * MIB);
    }
    let mut history = History::default();
    // All rings are full after 26 hours.
    for _ in 0..26 * 60 {
        history.observe(scene.step());
    }
    let size = 10 * history.processes.values().map(|process| process.size()).sum::<usize>();
    assert!(size < 12 << 20, "{size} bytes");
    let per_row = size_of::<RowHistory>();
    assert!(per_row < 1024, "{per_row} bytes a row");
    // In the worst case, every process is on every GPU.
    assert!(size + 15_000 * per_row < 40 << 20);
}

#[test]
fn unlisted_pids_are_bounded_and_forgotten_with_their_rows() {
    let mut scene = Scene::new(1, 10.0);
    for pid in 1..6_000 {
        scene.now.processes.push(Process { pid, ..Process::default() });
        scene.rows(0).push(GpuProcess { pid, ..GpuProcess::default() });
    }
    let mut history = History::default();
    play(&mut scene, &mut history, 30.0);
    assert_eq!(history.unlisted.len(), 4_096);
    let unlisted = history.unlisted_pid(&scene.now.gpus[0], 1).unwrap();
    assert_eq!((unlisted.streak.samples, unlisted.streak.seconds()), (4, 30.0));
    assert_eq!((unlisted.state, unlisted.streak.began), (None, Began::Unwitnessed));
    scene.rows(0).clear();
    scene.step();
    play(&mut scene, &mut history, 60.0);
    assert_eq!(history.unlisted.len(), 0);
}

#[test]
fn unchanged_cpu_seconds_are_timed_from_their_start() {
    let (mut scene, mut history) = watched(50.0);
    let identity = scene.process(PID).identity();
    let still = |history: &History| history.process(identity).unwrap().still_since();
    assert_eq!(still(&history), history.first_time());
    scene.process(PID).cpu_percent = Some(5.0);
    history.observe(scene.step());
    assert_eq!(still(&history), Some(scene.now.time));
    scene.process(PID).cpu_percent = Some(0.5);
    let since = scene.now.time;
    play(&mut scene, &mut history, 50.0);
    assert_eq!(still(&history), Some(since));
    scene.process(PID).cpu_seconds = None;
    scene.process(PID).cpu_percent = None;
    history.observe(scene.step());
    assert_eq!(still(&history), None);
}

#[test]
fn no_snapshot_order_or_missing_value_panics() {
    for seed in 1..=rounds(10) {
        let mut history = History::default();
        disorder(seed, 100, |snapshot| {
            history.observe(snapshot);
            for process in &snapshot.processes {
                let identity = process.identity();
                for gpu in 0..3 {
                    assert!(history.idle_since(identity, gpu) <= history.last_time());
                }
                let rows = history.process(identity).map_or(&[][..], ProcessHistory::rows);
                for run in rows.iter().filter_map(RowHistory::run) {
                    assert!((0.0..=1.0).contains(&run.coverage()), "{run:?}");
                    assert!(history.first_time() <= Some(run.since), "{run:?}");
                }
            }
        });
    }
}

#[test]
fn names_are_read_again_when_one_changes() {
    use crate::model::names::NameFacts;
    use crate::model::process::Parent;
    let changes: [fn(&mut Process); 9] = [
        |process| process.command = Some(["VLLM::EngineCore".into()].into()),
        |process| {
            let code = "from multiprocessing.spawn import x";
            process.command = Some(["python", "-c", code].map(Arc::from).into());
        },
        |process| {
            let command = Some(["/usr/bin/keep-gpu".into()].into());
            process.parent = Some(Arc::new(Parent { command, ..Parent::default() }));
        },
        |process| (process.command, process.parent) = (Some(["ray::IDLE".into()].into()), None),
        |process| process.parent_is_reaper = Some(true),
        |process| process.framework = Some("vllm".into()),
        |process| process.executable = Some("/usr/bin/Xorg".into()),
        |process| process.executable = None,
        |process| (process.command, process.comm) = (None, Some("nvidia-cuda-mps".into())),
    ];
    let (mut scene, mut history) = watched(0.0);
    for (step, change) in changes.into_iter().enumerate() {
        let process = scene.process(PID);
        let before = NameFacts::new(process);
        change(process);
        let (identity, facts) = (process.identity(), NameFacts::new(process));
        assert_ne!(facts, before, "{step}");
        for _ in 0..2 {
            history.observe(scene.step());
            assert_eq!(history.process(identity).unwrap().names(), &facts, "{step}");
        }
    }
}
