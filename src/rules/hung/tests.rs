use super::*;
use crate::history::testing::Scene;
use crate::model::GpuProcess;
use crate::model::dice::Dice;
use crate::model::finding::Action;
use crate::model::snapshot::ProcessType;
use crate::rules::rule::Rule;
use crate::rules::testing::{Change, PID, engine_with_rule, reasons, unidentified, written};
use crate::rules::{Engine, RuleSet as AllSettings};
use crate::units::GIB;

const OTHER: u32 = 77;

/// Returns a scene in which `python train.py` works alone on GPU 0, at 340 W of 400 W and 40 % memory traffic,
/// sampled every 30 s.
fn scene() -> Scene {
    let mut scene = Scene::new(2, 30.0);
    scene.holder(PID, &[0], 20 * GIB);
    work(&mut scene, 0);
    scene
}

fn work(scene: &mut Scene, gpu: u32) {
    scene.draws(gpu, PID, 97, 340.0);
    let gpu = scene.gpu(gpu);
    gpu.memory_percent = Some(40);
    gpu.power_limit_watts = Some(400.0);
    gpu.sm_clock_mhz = Some(1650);
    gpu.temperature_celsius = Some(70);
}

fn hang(scene: &mut Scene, gpu: u32) {
    scene.draws(gpu, PID, 100, 90.0);
    let gpu = scene.gpu(gpu);
    gpu.memory_percent = Some(0);
    gpu.sm_clock_mhz = Some(1430);
    gpu.temperature_celsius = Some(40);
}

fn play(scene: &mut Scene, engine: &mut Engine, seconds: f64) {
    let end = scene.now.time.plus_seconds(seconds);
    while scene.now.time < end {
        engine.observe(scene.step());
    }
}

fn worked(seconds: f64) -> (Scene, Engine) {
    let mut scene = scene();
    let mut engine = engine_with_rule("hung");
    play(&mut scene, &mut engine, seconds);
    (scene, engine)
}

fn share(scene: &mut Scene, percent: Option<u32>) -> &mut GpuProcess {
    scene.holder(OTHER, &[0], GIB);
    let row = scene.row(0, OTHER);
    row.sm_percent = percent;
    row
}

fn slow(scene: &mut Scene, clock: Option<u32>, degrees: Option<u32>) {
    scene.gpu(0).sm_clock_mhz = clock;
    scene.gpu(0).temperature_celsius = degrees;
}

#[test]
fn a_hung_process_is_reported_after_the_duration() {
    let (mut scene, mut engine) = worked(1200.0);
    assert_eq!((engine.findings().len(), engine.pending().len()), (0, 0));
    hang(&mut scene, 0);
    let since = scene.now.time.plus_seconds(30.0);
    play(&mut scene, &mut engine, 600.0);
    assert_eq!(engine.findings(), []);
    let [pending] = engine.pending() else { panic!("{:?}", engine.pending()) };
    assert_eq!((pending.pid, pending.gpu, pending.since), (Some(PID), 0, since));
    assert_eq!(pending.due, since.plus_seconds(600.0));
    play(&mut scene, &mut engine, 30.0);
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    assert_eq!(&*finding.id, "hung:GPU-0:4242:424200");
    assert_eq!((finding.since, finding.duration_seconds), (since, 600.0));
    assert_eq!(
        (finding.severity, &*finding.actions, finding.memory_bytes),
        (Severity::Warning, &[Action::Notify][..], Some(20 * GIB))
    );
    assert_eq!(
        finding.evidence,
        Evidence::new(HungEvidence {
            gpu_percent_min: 100,
            power_watts_mean: 90.0,
            power_watts_before: Some(340.0),
            power_limit_watts: None,
            memory_percent_mean: Some(0.0),
            memory_percent_before: Some(40.0),
            samples: 21,
        })
    );
    assert!(finding.advice[0].contains("py-spy dump --pid 4242"));
    assert_eq!((engine.pending(), &*engine.undecided()), (&[][..], &[][..]));

    play(&mut scene, &mut engine, 7200.0);
    assert_eq!(engine.findings()[0].since, since);
    work(&mut scene, 0);
    engine.observe(scene.step());
    assert_eq!((engine.findings().len(), engine.resolved().len()), (0, 1));
}

#[test]
fn a_kernel_that_was_light_from_the_start_is_not_hung() {
    for (seconds_of_work, found) in [(0.0, 0), (60.0, 0), (300.0, 1)] {
        let (mut scene, mut engine) = worked(seconds_of_work);
        hang(&mut scene, 0);
        play(&mut scene, &mut engine, 7200.0);
        assert_eq!(engine.findings().len(), found, "{seconds_of_work}");
        assert_eq!(engine.undecided(), []);
    }
}

#[test]
fn a_spinning_orphan_is_reported() {
    fn changed(change: impl Fn(&mut Scene)) -> Vec<(Severity, f64)> {
        let mut scene = scene();
        scene.now.processes.clear();
        scene.rows(0).clear();
        scene.orphan(PID, &[0], 20 * GIB);
        hang(&mut scene, 0);
        change(&mut scene);
        let mut engine = engine_with_rule("hung");
        play(&mut scene, &mut engine, 900.0);
        engine
            .findings()
            .iter()
            .map(|finding| (finding.severity, finding.duration_seconds))
            .collect()
    }
    assert_eq!(changed(|_| ()), [(Severity::Info, 870.0)]);
    // Another orphan that spins on the GPU does not matter.
    assert_eq!(changed(|scene| _ = share(scene, Some(50))), [(Severity::Info, 870.0)]);
    // A rank of the same job spins on another GPU.
    let two_ranks = |scene: &mut Scene| {
        scene.orphan(OTHER, &[1], 20 * GIB);
        scene.process(OTHER).process_group = scene.process(PID).process_group;
        scene.now.gpus[1] =
            Gpu { index: 1, uuid: Some("GPU-1".into()), ..scene.now.gpus[0].clone() };
        scene.rows(1).iter_mut().for_each(|row| row.pid = OTHER);
    };
    assert_eq!(changed(two_ranks), [(Severity::Info, 870.0); 2]);
    let innocents: [fn(&mut Scene); 6] = [
        |scene| scene.process(PID).group_leader_alive = Some(true),
        |scene| scene.gpu(0).power_watts = Some(180.0),
        |scene| scene.gpu(0).power_limit_watts = None,
        |scene| scene.gpu(0).memory_percent = Some(9),
        |scene| scene.gpu(0).gpu_percent = Some(70),
        |scene| {
            share(scene, Some(50));
            scene.row(0, PID).sm_percent = Some(0);
        },
    ];
    for (case, innocent) in innocents.into_iter().enumerate() {
        assert_eq!(changed(innocent), [], "{case}");
    }
}

#[test]
fn returning_lighter_work_is_not_hung() {
    let (mut scene, mut engine) = worked(600.0);
    scene.gpu(0).memory_percent = None;
    for _ in 0..6 {
        scene.draws(0, PID, 100, 100.0);
        play(&mut scene, &mut engine, 540.0);
        work(&mut scene, 0);
        play(&mut scene, &mut engine, 540.0);
    }
    // By now, the mean power during work is about 230 W, and 100 W is more than 40 % of that.
    hang(&mut scene, 0);
    scene.draws(0, PID, 100, 100.0);
    play(&mut scene, &mut engine, 3600.0);
    assert_eq!(engine.findings(), []);
}

#[test]
fn every_condition_is_required() {
    let cases: &[(&str, usize, Change)] = &[
        ("hung", 1, |_| ()),
        ("another process had the pid before", 0, |scene| scene.process(PID).start_ticks = Some(1)),
        ("134 W of 340", 1, |scene| scene.draws(0, PID, 100, 134.0)),
        ("138 W of 340", 0, |scene| scene.draws(0, PID, 100, 138.0)),
        ("95 % of use", 1, |scene| scene.draws(0, PID, 95, 90.0)),
        ("94 % of use", 0, |scene| scene.draws(0, PID, 94, 90.0)),
        ("80 % of use", 0, |scene| scene.draws(0, PID, 80, 90.0)),
        ("little memory traffic", 1, |scene| scene.gpu(0).memory_percent = Some(12)),
        ("half of the memory traffic", 0, |scene| scene.gpu(0).memory_percent = Some(20)),
        ("memory traffic unknown", 1, |scene| scene.gpu(0).memory_percent = None),
        // A power limit below the former power can explain the lower power.
        ("100 W allowed", 0, |scene| scene.gpu(0).power_limit_watts = Some(100.0)),
        ("140 W allowed", 0, |scene| scene.gpu(0).power_limit_watts = Some(140.0)),
        ("300 W allowed", 1, |scene| scene.gpu(0).power_limit_watts = Some(300.0)),
        ("limit unknown", 1, |scene| scene.gpu(0).power_limit_watts = None),
        ("1200 MHz and hot", 0, |scene| slow(scene, Some(1200), Some(90))),
        ("hot", 0, |scene| slow(scene, None, Some(90))),
        ("1600 MHz and hot", 1, |scene| slow(scene, Some(1600), Some(90))),
        ("600 MHz", 0, |scene| slow(scene, Some(600), Some(60))),
        ("clock and temperature unknown", 1, |scene| slow(scene, None, None)),
        ("another process is idle", 1, |scene| _ = share(scene, Some(0))),
        ("another process works", 0, |scene| _ = share(scene, Some(30))),
        ("another process may work", 0, |scene| _ = share(scene, None)),
        // A desktop that uses only a few percent of the GPU does not matter.
        ("a desktop", 1, |scene| share(scene, None).kind = ProcessType::Graphics),
        ("a desktop draws", 1, |scene| share(scene, Some(5)).kind = ProcessType::Graphics),
        ("a game", 0, |scene| share(scene, Some(40)).kind = ProcessType::Graphics),
        ("the server of MPS", 0, |scene| {
            scene.process(PID).command = Some(["/usr/bin/nvidia-cuda-mps-server".into()].into());
        }),
        ("a client of MPS", 0, |scene| {
            share(scene, Some(0)).kind = ProcessType::Mps;
        }),
        ("start unknown", 0, unidentified),
        ("an unknown pid works", 0, |scene| {
            let row = GpuProcess { pid: 999, sm_percent: Some(90), ..GpuProcess::default() };
            scene.rows(0).push(row);
        }),
    ];
    for (case, found, change) in cases {
        let (mut scene, mut engine) = worked(1200.0);
        hang(&mut scene, 0);
        change(&mut scene);
        play(&mut scene, &mut engine, 1200.0);
        assert_eq!((engine.findings().len(), engine.undecided().len()), (*found, 0), "{case}");
    }
}

#[test]
fn a_light_process_left_alone_on_a_gpu_is_not_hung() {
    let mut scene = scene();
    scene.holder(OTHER, &[0], GIB);
    scene.row(0, OTHER).sm_percent = Some(60);
    let mut engine = engine_with_rule("hung");
    play(&mut scene, &mut engine, 1800.0);
    scene.now.processes.retain(|process| process.pid != OTHER);
    scene.rows(0).retain(|row| row.pid != OTHER);
    hang(&mut scene, 0);
    play(&mut scene, &mut engine, 3600.0);
    assert_eq!((engine.findings(), &*engine.undecided()), (&[][..], &[][..]));
}

#[test]
fn the_only_listed_process_is_judged_by_device_utilization() {
    for is_alone in [true, false] {
        let mut scene = scene();
        if !is_alone {
            share(&mut scene, None);
        }
        let mut engine = engine_with_rule("hung");
        for change in [work, hang] {
            change(&mut scene, 0);
            for row in scene.rows(0) {
                (row.sm_percent, row.memory_percent) = (None, None);
            }
            play(&mut scene, &mut engine, 1200.0);
        }
        assert_eq!(engine.findings().len(), usize::from(is_alone));
    }
}

#[test]
fn one_finding_covers_all_gpus_of_a_hung_process() {
    let mut scene = Scene::new(3, 30.0);
    scene.holder(PID, &[2, 0, 1], 20 * GIB);
    (0..3).for_each(|gpu| work(&mut scene, gpu));
    let mut engine = engine_with_rule("hung");
    play(&mut scene, &mut engine, 600.0);
    hang(&mut scene, 0);
    hang(&mut scene, 2);
    play(&mut scene, &mut engine, 660.0);
    let [finding] = engine.findings() else { panic!("{:?}", engine.findings()) };
    let indices: Vec<u32> = finding.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!((indices, finding.memory_bytes), (vec![0, 2], Some(40 * GIB)));
}

#[test]
fn a_few_missing_samples_are_tolerated_but_not_many() {
    let forget: [fn(&mut Scene); 4] = [
        |scene| scene.gpu(0).power_watts = None,
        |scene| scene.gpu(0).gpu_percent = None,
        |scene| scene.gpu(0).processes = None,
        |scene| scene.gpu(0).stale_seconds = Some(9.0),
    ];
    for forget in forget {
        for (missing, found) in [(1, 1), (4, 1), (12, 0), (40, 0)] {
            let (mut scene, mut engine) = worked(1200.0);
            hang(&mut scene, 0);
            play(&mut scene, &mut engine, 570.0);
            let saved_gpu = scene.now.gpus[0].clone();
            forget(&mut scene);
            play(&mut scene, &mut engine, f64::from(missing) * 30.0);
            scene.now.gpus[0] = saved_gpu;
            play(&mut scene, &mut engine, 90.0);
            assert_eq!(engine.findings().len(), found, "{missing}");
        }
    }
    let (mut scene, mut engine) = worked(1200.0);
    hang(&mut scene, 0);
    for sample in 0..60 {
        scene.gpu(0).power_watts = (sample % 2 == 0).then_some(90.0);
        engine.observe(scene.step());
    }
    assert_eq!(engine.findings(), []);
    assert!(
        reasons(&engine, Kind::Hung)[0].starts_with("30 samples cover 50 % of the time on GPU 0")
    );
}

#[test]
fn only_full_use_leaves_the_rule_undecided() {
    let (mut scene, mut engine) = worked(90.0);
    assert_eq!(reasons(&engine, Kind::Hung), ["decided in 12m 00s (needs 13m of history)"]);
    scene.draws(0, PID, 60, 200.0);
    engine.observe(scene.step());
    assert_eq!(reasons(&engine, Kind::Hung), [""; 0]);
    work(&mut scene, 0);
    scene.gpu(0).power_watts = None;
    engine.observe(scene.step());
    assert_eq!(
        reasons(&engine, Kind::Hung),
        ["decided in 11m 00s (needs 13m of history)"],
        "one sample changes nothing"
    );
    play(&mut scene, &mut engine, 120.0);
    assert_eq!(reasons(&engine, Kind::Hung), ["the power of GPU 0 is unknown"]);
    scene.rows(0).clear();
    engine.observe(scene.step());
    assert_eq!(reasons(&engine, Kind::Hung), [""; 0]);
}

#[test]
fn settings_out_of_range_are_rejected() {
    for (utilization, share, is_wrong) in [
        (95.0, 40.0, false),
        (90.0, 50.0, false),
        (89.0, 40.0, true),
        (101.0, 40.0, true),
        (95.0, 51.0, true),
    ] {
        let mut rule = Rule::new(&KIND);
        rule.settings.min_utilization = Percent(utilization);
        rule.settings.max_power_share = Percent(share);
        assert_eq!(rule.contradiction().is_some(), is_wrong, "{rule:?}");
    }
    let mut settings = AllSettings::default();
    settings.select(&["hung"]).unwrap();
    let rule = settings.rule_mut("hung").unwrap();
    rule.set("max_power_share", &written(Percent(20.0))).unwrap();
    let (mut scene, mut engine) = (scene(), Engine::new(settings));
    play(&mut scene, &mut engine, 600.0);
    hang(&mut scene, 0);
    play(&mut scene, &mut engine, 1200.0);
    assert_eq!(engine.findings(), []);
}

/// Plays `seconds` of a scene in which about `lost` percent of the samples, or only their power readings, are lost.
/// Returns the times at which there was a finding.
fn found_with_losses(
    (scene, engine): (&mut Scene, &mut Engine),
    (seconds, lost): (f64, u64),
    dice: &mut Dice,
    mut change: impl FnMut(&mut Scene, f64),
) -> Vec<f64> {
    let start = scene.now.time;
    let mut found = Vec::new();
    while scene.now.time.seconds_since(start) < seconds {
        let at = scene.now.time.seconds_since(start);
        change(scene, at);
        let mut snapshot = scene.step().clone();
        if dice.roll(100) < lost {
            if dice.roll(2) == 0 {
                continue;
            }
            snapshot.gpus[0].power_watts = None;
        }
        engine.observe(&snapshot);
        if !engine.findings().is_empty() {
            found.push(scene.now.time.seconds_since(start));
        }
    }
    found
}

#[test]
fn intermittent_work_is_not_hung_despite_lost_samples() {
    for lost in [0, 30, 60] {
        for seed in 1..=40 {
            let mut dice = Dice::new(seed);
            let (mut scene, mut engine) = worked(1200.0);
            let length = 120.0 + dice.roll(300) as f64;
            let light = 0.3 + dice.roll(50) as f64 / 100.0;
            let phases = |scene: &mut Scene, at: f64| {
                if at % length < length * light {
                    hang(scene, 0);
                } else {
                    work(scene, 0);
                }
            };
            let losses = (7_200.0, lost);
            let found = found_with_losses((&mut scene, &mut engine), losses, &mut dice, phases);
            assert_eq!(found, [0.0; 0], "{lost} of 100, seed {seed}");
        }
    }
}
