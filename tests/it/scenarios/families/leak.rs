//! Memory that grows and does not level off.

use gpumem::api::model::ProcessType;

use super::super::doing::{Doing, working};
use super::super::random::Random;
use super::super::stage::{GIB, MIB, Stage};
use super::{Family, family};

/// A trainer whose memory follows a curve over time, in the steps that the driver allocates.
fn grows(s: &mut Stage, mut curve: impl FnMut(f64, &mut Random) -> f64 + 'static) -> u32 {
    let process = s.trainer();
    let level = s.random.range(65.0, 93.0);
    let pid = s.act(process, move |t, random| at_work(curve(t, random), level));
    s.accuse("leak", pid, &[]);
    s.labels.onset = Some(0.0);
    pid
}

/// At work with so many bytes.
fn at_work(bytes: f64, level: f64) -> Doing {
    working(bytes.max(0.0) as u64 / (2 * MIB) * (2 * MIB)).sm(level)
}

/// What the memory begins with, and what it grows by until the end: neither more than fits.
fn room(s: &mut Stage) -> (f64, f64) {
    let total = s.machine.model.total_bytes as f64;
    let base = total * s.random.range(0.08, 0.3);
    (base, total * s.random.range(0.12, 0.5))
}

pub const FAMILIES: &[Family] = &[
    family("leak_linear", "Memory grows by the same amount every minute.", |s| {
        s.minutes(40.0, 80.0);
        let (base, growth) = room(s);
        let end = s.end();
        grows(s, move |t, _| base + growth * t / end);
    }),
    family("leak_by_epochs", "Each epoch leaves a little more behind than the last.", |s| {
        s.minutes(50.0, 85.0);
        let (base, growth) = room(s);
        let epoch = s.random.range(150.0, 330.0);
        let epochs = s.end() / epoch;
        grows(s, move |t, _| base + growth * (t / epoch).floor() / epochs);
    }),
    family(
        "leak_in_a_sawtooth",
        "The cache is emptied every few minutes, to a higher floor each time.",
        |s| {
            s.minutes(50.0, 80.0);
            let (base, growth) = room(s);
            let (end, period) = (s.end(), s.random.range(150.0, 320.0));
            let tooth = growth * s.random.range(0.15, 0.3);
            grows(s, move |t, _| base + growth * t / end + tooth * (t % period) / period);
        },
    ),
    family(
        "leak_under_noise",
        "Shapes vary from step to step, and all of it drifts upwards.",
        |s| {
            s.minutes(50.0, 80.0);
            let (base, growth) = room(s);
            let end = s.end();
            let spread = growth * 0.04;
            grows(s, move |t, random| base + growth * t / end + random.noise(spread));
        },
    ),
    family("leak_slow", "A few MiB a minute, for a long time.", |s| {
        s.minutes(60.0, 90.0);
        let (base, _) = room(s);
        let per_minute = s.random.range(8.0, 16.0) * MIB as f64;
        grows(s, move |t, _| base + per_minute * t / 60.0);
    }),
    family("leak_accelerating", "The more it holds the faster it grows.", |s| {
        s.minutes(45.0, 80.0);
        let (base, growth) = room(s);
        let end = s.end();
        grows(s, move |t, _| base + growth * (0.4 * t / end + 0.6 * (t / end) * (t / end)));
    }),
    family("leak_late", "Flat for a long while, then it grows.", |s| {
        s.minutes(60.0, 90.0);
        let (base, growth) = room(s);
        let (begin, end) = (s.at(0.3, 0.5), s.end());
        grows(s, move |t, _| base + growth * ((t - begin) / (end - begin)).max(0.0));
        s.labels.onset = Some(begin);
    }),
    family("leak_after_a_level_shift", "The batch size changes once; the leak goes on.", |s| {
        s.minutes(50.0, 80.0);
        let (base, growth) = room(s);
        let (shift, end) = (s.at(0.15, 0.3), s.end());
        let step = base * s.random.range(0.3, 0.6);
        grows(s, move |t, _| {
            let level = if t < shift { 0.0 } else { step };
            base + level + 0.7 * growth * t / end
        });
    }),
    family("leak_on_one_of_two", "Two processes share the GPU, and one of them leaks.", |s| {
        s.minutes(40.0, 80.0);
        let (base, growth) = room(s);
        let end = s.end();
        grows(s, move |t, _| base + growth * t / end);
        let (other, held) = (s.trainer(), s.share(0.05, 0.12));
        s.act(other, move |_, random| working(held + random.whole(0, 20) * 2 * MIB).sm(50.0));
    }),
    family("leak_to_the_brim", "It will be out of memory within minutes.", |s| {
        s.minutes(40.0, 60.0);
        s.labels.severity = None;
        let total = s.machine.model.total_bytes as f64;
        let (base, end) = (total * 0.3, s.end());
        let growth = total * s.random.range(0.62, 0.64);
        grows(s, move |t, _| base + growth * t / end);
    }),
    family("leak_on_two_gpus", "A data-parallel process leaks on both of its GPUs.", |s| {
        s.minutes(40.0, 80.0);
        s.gpus(2);
        let (base, growth) = room(s);
        let (process, end) = (s.trainer(), s.end());
        let pid = s.act_on(process, &[0, 1], ProcessType::Compute, move |t, _| {
            at_work(base + growth * t / end, 88.0)
        });
        s.accuse("leak", pid, &[]);
    }),
    family(
        "leak_in_segments",
        "A caching allocator takes a segment of 20 MiB whenever the last is full.",
        |s| {
            s.minutes(60.0, 90.0);
            let (base, _) = room(s);
            let segment = 20.0 * MIB as f64;
            let per_minute = s.random.range(12.0, 40.0) * MIB as f64;
            grows(s, move |t, _| base + (per_minute * t / 60.0 / segment).floor() * segment);
        },
    ),
    family(
        "leak_under_peaks",
        "Evaluation takes GiB for a minute; the floor between rises.",
        |s| {
            s.minutes(50.0, 85.0);
            let (base, growth) = room(s);
            let (end, every) = (s.end(), s.random.range(300.0, 600.0));
            let peak = s.random.range(1.0, 3.0) * GIB as f64;
            grows(s, move |t, _| {
                let evaluates = t % every > every - 70.0;
                base + growth * t / end + if evaluates { peak } else { 0.0 }
            });
        },
    ),
    family(
        "leak_after_warming_up",
        "The allocator warms up for minutes, levels off, and the leak shows.",
        |s| {
            s.minutes(60.0, 90.0);
            let (base, growth) = room(s);
            let end = s.end();
            grows(s, move |t, _| base * (1.0 - 0.7 * (-t / 150.0).exp()) + growth * t / end);
        },
    ),
    family(
        "leak_without_utilization",
        "The driver does not tell processes apart; memory tells enough.",
        |s| {
            s.minutes(40.0, 80.0);
            s.machine.has_process_use = false;
            let (base, growth) = room(s);
            let end = s.end();
            grows(s, move |t, _| base + growth * t / end);
        },
    ),
];
