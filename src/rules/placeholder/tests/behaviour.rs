//! Placeholders and other programs by their behaviour, evaluated at every moment and with seeds.

use super::*;
use crate::model::process::Descendants;
use crate::rules::testing::reasons;
use crate::rules::{Engine, RuleSet as AllSettings};

/// A process's behaviour: `change` gets the scene, the step and whether it is its time to use the GPU.
type Change = fn(&mut Scene, u64, bool);

/// The same numbers for the same seed.
fn random(seed: u64, step: u64, below: u64) -> u64 {
    let mut mixed =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ step.wrapping_mul(0xD1B5_4A32_D192_ED03);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 32)) % below
}

/// `python hold.py` holds 40 GiB, has no socket, does no I/O, and uses its GPU in one of `period` samples, 10 s
/// apart. Returns `true` for each moment with a finding.
fn play(period: u64, steps: u64, change: Change) -> (Vec<bool>, Engine) {
    let mut scene = scene("python hold.py", 20.0 * HOUR);
    scene.gpu(0).power_limit_watts = Some(700.0);
    let process = scene.process(PID);
    process.sockets = Some(0);
    process.io_bytes = Some(90_000);
    process.cpu_percent = Some(1.0);
    process.descendants = Some(Arc::new(Descendants {
        count: Some(0),
        cpu_percent: Some(0.0),
        cpu_seconds: Some(0.0),
        ..Descendants::default()
    }));
    let mut engine = Engine::new(AllSettings::default());
    let mut accused = Vec::new();
    for step in 0..steps {
        let is_on = step % period == 3;
        let (percent, watts) = if is_on { (60, 140.0) } else { (0, 80.0) };
        scene.draws(0, PID, percent, watts);
        change(&mut scene, step, is_on);
        engine.observe(scene.step());
        accused.push(count(&engine, Kind::Placeholder) > 0);
    }
    (accused, engine)
}

#[test]
fn bursts_by_the_clock_without_sockets_are_found_after_the_duration() {
    for period in [6, 7, 12, 30] {
        let (accused, engine) = play(period, 420, |_, _, _| {});
        let first = accused.iter().position(|it| *it).unwrap();
        assert!((360..=366).contains(&first), "{period}: {first}");
        assert!(accused[first..].iter().all(|it| *it), "{period}: it flickers");
        let finding = only(&engine, Kind::Placeholder);
        assert_eq!(finding.severity, Severity::Info);
        assert_eq!(finding.actions, [Action::Notify]);
    }
    let (_, engine) = play(6, 370, |_, _, _| {});
    assert_eq!(
        only(&engine, Kind::Placeholder).message,
        "python hold.py (4242) has held 40.0 GiB on GPU 0 for 1h 01m and used it only for a moment every \
         1m 00s, at 20% of its power or less, without reading or writing anything"
    );
}

#[test]
fn a_placeholder_that_works_is_none_any_more() {
    let (accused, _) = play(6, 500, |scene, step, _| {
        if step > 400 {
            scene.draws(0, PID, 90, 500.0);
        }
    });
    assert!(accused[399] && !accused[404..].iter().any(|it| *it));
}

#[test]
fn other_periodic_programs_are_no_placeholders() {
    let innocents: [(&str, Change); 14] = [
        ("a health check reports", |scene, _, is_on| {
            let io = &mut scene.process(PID).io_bytes;
            *io = io.map(|io| io + u64::from(is_on));
        }),
        ("a probe keeps a connection", |scene, _, _| scene.process(PID).sockets = Some(1)),
        ("a rank waits for the others", |scene, _, _| {
            let world = [("WORLD_SIZE".into(), "8".into())];
            scene.process(PID).environment = Some(Arc::new(world.into()));
        }),
        ("requests come as they come", |scene, step, _| {
            let is_on = random(7, step, 8) == 0;
            scene.draws(0, PID, if is_on { 60 } else { 0 }, 140.0);
        }),
        ("hourly inference", |scene, step, _| {
            let is_on = step % 360 == 5;
            scene.draws(0, PID, if is_on { 60 } else { 0 }, 140.0);
        }),
        ("training in short steps", |scene, step, _| {
            scene.draws(0, PID, 40 + (step % 7) as u32, 300.0);
        }),
        ("full power in each burst", |scene, _, is_on| {
            scene.draws(0, PID, if is_on { 99 } else { 0 }, if is_on { 600.0 } else { 90.0 });
        }),
        ("memory comes and goes", |scene, step, _| {
            scene.row(0, PID).used_bytes = Some((30 + step / 60 % 2 * 9) * GIB);
        }),
        ("the CPU works", |scene, _, _| scene.process(PID).cpu_percent = Some(90.0)),
        ("children work", |scene, _, _| {
            let below = scene.process(PID).descendants.as_deref().cloned().unwrap();
            let below = Descendants { count: Some(2), ..below };
            scene.process(PID).descendants = Some(Arc::new(below));
        }),
        ("a server that listens", |scene, _, _| {
            scene.process(PID).command = Some(words("vllm serve m"));
            scene.process(PID).listening = Some(true);
        }),
        ("a notebook", |scene, _, _| scene.process(PID).jupyter = Some(Arc::default())),
        ("a desktop's helper", |scene, _, _| scene.row(0, PID).kind = ProcessType::Graphics),
        ("little memory", |scene, _, _| scene.row(0, PID).used_bytes = Some(GIB / 2)),
    ];
    for (who, change) in innocents {
        for period in [6, 11] {
            let (accused, _) = play(period, 500, change);
            assert!(!accused.iter().any(|it| *it), "{who}, {period}");
        }
    }
}

#[test]
fn irregular_periods_are_no_placeholder() {
    for seed in 1..=20 {
        let mut scene = scene("python hold.py", 20.0 * HOUR);
        scene.gpu(0).power_limit_watts = Some(700.0);
        let process = scene.process(PID);
        (process.sockets, process.io_bytes) = (Some(0), Some(1));
        process.descendants =
            Some(Arc::new(Descendants { count: Some(0), ..Descendants::default() }));
        let mut engine = Engine::new(AllSettings::default());
        let mut due = 5;
        for step in 0..600 {
            let is_on = step == due;
            if is_on {
                due += 8 + random(seed, step, 8);
            }
            scene.draws(0, PID, if is_on { 50 } else { 0 }, 120.0);
            engine.observe(scene.step());
            assert_eq!(count(&engine, Kind::Placeholder), 0, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn unknown_facts_give_no_finding_and_mostly_leave_it_undecided() {
    let cases: [(&str, Option<&str>, Change); 6] = [
        ("files", Some("reads, writes and sends"), |it, _, _| it.process(PID).io_bytes = None),
        ("sockets", Some("reads, writes and sends"), |it, _, _| it.process(PID).sockets = None),
        ("power limit", Some("power"), |it, _, _| it.gpu(0).power_limit_watts = None),
        ("use", None, |it, _, _| it.row(0, PID).sm_percent = None),
        ("memory", None, |it, _, _| it.row(0, PID).used_bytes = None),
        ("children", None, |it, _, _| it.process(PID).descendants = None),
    ];
    for (what, reason, change) in cases {
        let (accused, engine) = play(6, 420, change);
        assert!(!accused.iter().any(|it| *it), "{what}");
        let reasons = reasons(&engine, Kind::Placeholder);
        if let Some(reason) = reason {
            assert!(reasons.len() == 1 && reasons[0].contains(reason), "{what}: {reasons:?}");
        }
    }
}
