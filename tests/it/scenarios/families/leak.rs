//! Memory that grows without limit.

use super::*;

/// Adds a trainer that leaks. Its memory follows a curve, rounded to the driver's allocation size.
fn grows(s: &mut Stage, mut curve: impl FnMut(f64, &mut Random) -> f64 + 'static) -> u32 {
    let process = s.trainer();
    let level = s.random.range(65.0, 93.0);
    let pid = s.add(process, move |t, random| works_with(curve(t, random), level));
    s.expect_finding("leak", pid, &[]);
    s.labels.onset = Some(0.0);
    pid
}

/// Adds a trainer that leaks the same amount every minute.
fn grows_evenly(s: &mut Stage) {
    s.minutes(40.0, 80.0);
    let ((base, growth), end) = (random_sizes(s), s.end());
    grows(s, move |t, _| base + growth * t / end);
}

/// Returns work with `bytes` of memory, rounded to the driver's allocation size.
fn works_with(bytes: f64, level: f64) -> Activity {
    working(bytes.max(0.0) as u64 / (2 * MIB) * (2 * MIB)).sm(level)
}

/// Picks an initial size and a growth that fit on the GPU together.
fn random_sizes(s: &mut Stage) -> (f64, f64) {
    let total = s.machine.model.total_bytes as f64;
    let base = total * s.random.range(0.08, 0.3);
    (base, total * s.random.range(0.12, 0.5))
}

pub const FAMILIES: &[Family] = &[
    family("leak_linear", "Memory grows by the same amount every minute.", |s| {
        grows_evenly(s);
    }),
    family("leak_by_epochs", "Each epoch leaves a little memory allocated.", |s| {
        s.minutes(50.0, 85.0);
        let (base, growth) = random_sizes(s);
        let epoch = s.random.range(150.0, 330.0);
        let epochs = s.end() / epoch;
        grows(s, move |t, _| base + growth * (t / epoch).floor() / epochs);
    }),
    family("leak_in_a_sawtooth", "A cache is emptied, each time to a higher floor.", |s| {
        s.minutes(50.0, 80.0);
        let (base, growth) = random_sizes(s);
        let (end, period) = (s.end(), s.random.range(150.0, 320.0));
        let tooth = growth * s.random.range(0.15, 0.3);
        grows(s, move |t, _| base + growth * t / end + tooth * (t % period) / period);
    }),
    family("leak_under_noise", "Shapes vary from step to step, with an upward drift.", |s| {
        s.minutes(50.0, 80.0);
        let ((base, growth), end) = (random_sizes(s), s.end());
        let spread = growth * 0.04;
        grows(s, move |t, random| base + growth * t / end + random.noise(spread));
    }),
    family("leak_slow", "A few MiB per minute, for a long time.", |s| {
        s.minutes(60.0, 90.0);
        let (base, _) = random_sizes(s);
        let per_minute = s.random.range(8.0, 16.0) * MIB as f64;
        grows(s, move |t, _| base + per_minute * t / 60.0);
    }),
    family("leak_accelerating", "The more memory it holds, the faster it grows.", |s| {
        s.minutes(45.0, 80.0);
        let ((base, growth), end) = (random_sizes(s), s.end());
        grows(s, move |t, _| base + growth * (0.4 * t / end + 0.6 * (t / end) * (t / end)));
    }),
    family("leak_late", "Flat for a long time, then it grows.", |s| {
        s.minutes(60.0, 90.0);
        let (base, growth) = random_sizes(s);
        let (begin, end) = (s.at(0.3, 0.5), s.end());
        grows(s, move |t, _| base + growth * ((t - begin) / (end - begin)).max(0.0));
        s.labels.onset = Some(begin);
    }),
    family("leak_after_a_level_shift", "The batch size changes once; the leak continues.", |s| {
        s.minutes(50.0, 80.0);
        let (base, growth) = random_sizes(s);
        let (shift, end) = (s.at(0.15, 0.3), s.end());
        let step = base * s.random.range(0.3, 0.6);
        grows(s, move |t, _| {
            let level = if t < shift { 0.0 } else { step };
            base + level + 0.7 * growth * t / end
        });
    }),
    family("leak_on_one_of_two", "Two processes share the GPU, and one of them leaks.", |s| {
        grows_evenly(s);
        let (other, held) = (s.trainer(), s.share(0.05, 0.12));
        s.add(other, move |_, random| working(held + random.whole(0, 20) * 2 * MIB).sm(50.0));
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
        let (base, growth) = random_sizes(s);
        let (process, end) = (s.trainer(), s.end());
        let pid = s.add_on(process, &[0, 1], move |t, _| works_with(base + growth * t / end, 88.0));
        s.expect_finding("leak", pid, &[]);
    }),
    family("leak_in_segments", "A caching allocator takes segments of 20 MiB.", |s| {
        s.minutes(60.0, 90.0);
        let (base, _) = random_sizes(s);
        let segment = 20.0 * MIB as f64;
        let per_minute = s.random.range(12.0, 40.0) * MIB as f64;
        grows(s, move |t, _| base + (per_minute * t / 60.0 / segment).floor() * segment);
    }),
    family("leak_under_peaks", "Evaluation takes GiB; the floor in between rises.", |s| {
        s.minutes(50.0, 85.0);
        let (base, growth) = random_sizes(s);
        let (end, every) = (s.end(), s.random.range(300.0, 600.0));
        let peak = s.random.range(1.0, 3.0) * GIB as f64;
        grows(s, move |t, _| {
            let evaluates = t % every > every - 70.0;
            base + growth * t / end + if evaluates { peak } else { 0.0 }
        });
    }),
    family("leak_after_warming_up", "The allocator warms up; the leak continues.", |s| {
        s.minutes(60.0, 90.0);
        let ((base, growth), end) = (random_sizes(s), s.end());
        grows(s, move |t, _| base * (1.0 - 0.7 * (-t / 150.0).exp()) + growth * t / end);
    }),
    family("leak_without_utilization", "The memory curve alone is enough.", |s| {
        s.machine.has_process_use = false;
        grows_evenly(s);
    }),
];
