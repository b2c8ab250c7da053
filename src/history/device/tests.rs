//! A GPU's reported memory, on hand-made scenes.

use crate::history::History;
use crate::history::testing::Scene;
use crate::units::GIB;

fn watched(change: impl Fn(&mut Scene, usize)) -> (Scene, History) {
    let mut scene = Scene::new(1, 10.0);
    scene.holder(7, &[0], 20 * GIB);
    scene.memory(0, 30 * GIB, 80 * GIB);
    let mut history = History::default();
    for step in 0..20 {
        change(&mut scene, step);
        history.observe(scene.step());
    }
    (scene, history)
}

#[test]
fn memory_without_a_holder_and_a_full_gpu_are_timed_by_threshold() {
    let (scene, history) = watched(|_, _| {});
    let device = history.device(&scene.now.gpus[0]).unwrap();
    let stretch = device.unattributed(10 * GIB).unwrap();
    assert_eq!((stretch.samples, stretch.seconds()), (20, 190.0));
    assert_eq!(device.unattributed(10 * GIB + 1), None);
    assert_eq!(device.total_bytes(), Some(80 * GIB));
    assert_eq!(device.fuller_than(50 * GIB), None);
    assert_eq!(device.fuller_than(50 * GIB + 1).unwrap().samples, 20);
    assert_eq!(device.fuller_than(0), None);
    assert!(device.fuller_than(u64::MAX).is_some());
}

#[test]
fn values_from_before_a_gpu_fell_silent_are_no_news() {
    let (scene, history) = watched(|scene, step| {
        scene.gpu(0).stale_seconds = (step >= 10).then_some(5.0);
    });
    let device = history.device(&scene.now.gpus[0]).unwrap();
    assert_eq!(device.unattributed(GIB), None);
    assert_eq!(device.fuller_than(u64::MAX), None);
}

#[test]
fn power_is_charged_to_the_only_process_at_work() {
    let (mut scene, mut history) = watched(|scene, _| scene.draws(0, 7, 97, 300.0));
    let who = scene.process(7).identity();
    let device = history.device(&scene.now.gpus[0]).unwrap();
    assert_eq!((device.alone(), device.low_power_phase()), (Some(who), None));
    assert_eq!(device.work(who).unwrap().power.mean(), Some(300.0));
    scene.draws(0, 7, 99, 60.0);
    history.observe(scene.step());
    history.observe(scene.step());
    let device = history.device(&scene.now.gpus[0]).unwrap();
    let phase = device.low_power_phase().unwrap();
    assert_eq!((phase.who, phase.samples, phase.seconds()), (who, 2, 10.0));
    assert_eq!(device.work(who).unwrap().power.mean(), Some(300.0));
}

#[test]
fn the_last_few_processes_that_were_alone_are_remembered() {
    let mut scene = Scene::new(1, 60.0);
    let mut history = History::default();
    for pid in 1..30 {
        scene.now.processes.clear();
        scene.rows(0).clear();
        scene.holder(pid, &[0], GIB);
        scene.draws(0, pid, 97, 300.0);
        scene.play(600.0, |snapshot| {
            history.observe(snapshot);
        });
        scene.step();
    }
    let device = history.device(&scene.now.gpus[0]).unwrap();
    let known = (1..30).filter(|pid| {
        let mut other = scene.clone();
        other.now.processes.clear();
        other.holder(*pid, &[], 0);
        device.work(other.process(*pid).identity()).is_some()
    });
    assert_eq!(known.collect::<Vec<_>>(), (22..30).collect::<Vec<_>>());
}
