//! Memory that varies without a leak.

use super::*;

pub const FAMILIES: &[Family] = &[
    family("warmup_steps", "The allocator rises in steps, then stays flat.", |s| {
        s.minutes(40.0, 70.0);
        let (base, rise) = (random_part(s, 0.05, 0.15), random_part(s, 0.2, 0.6));
        let (steps, warm) = (s.random.range(3.0, 9.0).floor(), s.random.range(240.0, 640.0));
        add_varying(s, move |t, _| base + rise * (t / warm * steps).floor().min(steps) / steps);
    }),
    family("warmup_exponential", "It rises ever more slowly towards a level.", |s| {
        s.minutes(50.0, 80.0);
        let (base, rise) = (random_part(s, 0.05, 0.15), random_part(s, 0.2, 0.6));
        let tau = s.random.range(60.0, 200.0);
        add_varying(s, move |t, _| base + rise * (1.0 - (-t / tau).exp()));
    }),
    family("fills_then_plateau", "A cache fills evenly, and then stays full.", |s| {
        s.minutes(45.0, 80.0);
        let (base, rise) = (random_part(s, 0.05, 0.15), random_part(s, 0.2, 0.6));
        let full = s.at(0.2, 0.45);
        add_varying(s, move |t, _| base + rise * (t / full).min(1.0));
    }),
    family("sawtooth_equal_peaks", "Cycles of minutes with equal peaks.", |s| {
        s.minutes(40.0, 70.0);
        let (base, tooth) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.4));
        let period = s.random.range(120.0, 420.0);
        add_varying(s, move |t, _| base + tooth * (t % period) / period);
    }),
    family("sawtooth_long", "Equal cycles of a quarter to a third of an hour.", |s| {
        s.minutes(60.0, 90.0);
        let (base, tooth) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.4));
        // The recording ends during a ramp, after at least two complete cycles.
        let period = s.end() / s.random.range(2.4, 3.9);
        add_varying(s, move |t, _| base + tooth * ((t % period) / period * 12.0).floor() / 12.0);
    }),
    family("sawtooth_with_rests", "Training ramps up; evaluation stays low.", |s| {
        s.minutes(60.0, 80.0);
        let (base, tooth) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.4));
        let period = s.end() / s.random.range(2.3, 4.8);
        add_varying(s, move |t, _| {
            let phase = (t % period) / period;
            base + tooth * if phase < 0.65 { phase / 0.65 } else { 0.0 }
        });
    }),
    family("evaluation_peaks", "Evaluation takes GiB for a minute, every ten minutes.", |s| {
        s.minutes(40.0, 70.0);
        let (base, peak) = (random_part(s, 0.2, 0.5), random_part(s, 0.05, 0.3));
        let every = s.random.range(300.0, 700.0);
        add_varying(s, move |t, _| base + if t % every > every - 65.0 { peak } else { 0.0 });
    }),
    family("batch_changes", "The batch size changes twice; in between, memory is flat.", |s| {
        s.minutes(45.0, 80.0);
        let (base, step) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.25));
        let (first, second) = (s.at(0.15, 0.3), s.at(0.4, 0.55));
        add_varying(s, move |t, _| base + step * (f64::from(t > first) + f64::from(t > second)));
    }),
    family("batch_grows_late", "One jump to a larger batch, minutes before the end.", |s| {
        s.minutes(40.0, 70.0);
        let (base, step, at) =
            (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.3), s.before_end(120.0, 700.0));
        add_varying(s, move |t, _| base + if t > at { step } else { 0.0 });
    }),
    family("dynamic_shapes", "Every batch has other shapes, so that memory varies widely.", |s| {
        let (base, spread) = (random_part(s, 0.1, 0.2), random_part(s, 0.2, 0.5));
        add_varying(s, move |_, random| base + spread * random.range(0.0, 1.0));
    }),
    family("random_walk_within_bounds", "An inference cache follows its traffic.", |s| {
        s.minutes(40.0, 70.0);
        let (base, spread) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.3));
        let (a, b) = (s.random.range(300.0, 700.0), s.random.range(90.0, 250.0));
        add_varying(s, move |t, random| {
            base + spread * (0.5 + 0.3 * (t / a * TAU).sin() + 0.15 * (t / b * TAU).sin())
                + random.noise(spread * 0.02)
        });
    }),
    family("kv_cache_fills", "A server's KV cache fills to its cap within the first half.", |s| {
        s.minutes(45.0, 80.0);
        let words = "python -m sglang.launch_server --model-path m --port 30000";
        let process = s.server(words, Some("sglang"));
        let (base, cache, full) =
            (random_part(s, 0.2, 0.4), random_part(s, 0.2, 0.4), s.at(0.15, 0.45));
        s.add(process, move |t, random| {
            let load = random.range(10.0, 80.0);
            working((base + cache * (t / full).min(1.0)) as u64 / MIB * MIB).sm(load).cpu(60.0)
        });
    }),
    family("load_then_drop", "Loading takes twice the memory; half of it is freed.", |s| {
        let (level, extra, at) =
            (random_part(s, 0.2, 0.4), random_part(s, 0.2, 0.4), s.at(0.1, 0.3));
        add_varying(
            s,
            move |t, _| if t < at { (level + extra) * (t / at).max(0.2) } else { level },
        );
    }),
    family("allocated_and_freed", "A hump in the middle, then the initial level again.", |s| {
        s.minutes(40.0, 70.0);
        let (base, hump, end) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.4), s.end());
        add_varying(s, move |t, _| base + hump * (1.0 - ((t / end - 0.45) / 0.3).powi(2)).max(0.0));
    }),
    family("small_growth", "Several processes grow too little to report.", |s| {
        s.minutes(40.0, 60.0);
        let end = s.end();
        for _ in 0..3 {
            let (process, base) = (s.trainer(), s.gib(1.5, 3.0));
            let growth = s.random.range(40.0, 190.0) * MIB as f64;
            s.add(process, move |t, _| {
                working((base as f64 + growth * t / end) as u64 / (2 * MIB) * (2 * MIB)).sm(40.0)
            });
        }
    }),
    family("preallocated_and_busy", "TensorFlow took 95 % at first, and works.", |s| {
        let (mut process, bytes) = (s.trainer(), s.share(0.90, 0.95));
        process.framework = Some("tensorflow".into());
        s.add(process, move |_, _| working(bytes).sm(80.0));
    }),
    family("restarts_bigger", "It is restarted, each time with more memory.", |s| {
        s.minutes(45.0, 60.0);
        let base = s.gib(2.0, 3.0);
        let period = s.end() / 5.0;
        for run in 0..5u32 {
            let begin = f64::from(run) * period;
            let process = s.trainer();
            let process = s.started_at(process, begin);
            let bytes = base + u64::from(run) * GIB;
            s.add(process, during(begin..begin + period, working(bytes), gone()));
        }
    }),
    family("hyperparameter_search", "No trial is larger than the first.", |s| {
        s.minutes(50.0, 80.0);
        let (base, spread) = (random_part(s, 0.1, 0.2), random_part(s, 0.2, 0.5));
        let trial = s.random.range(240.0, 480.0);
        let sizes: Vec<f64> = (0..32).map(|_| s.random.range(0.1, 0.9)).collect();
        add_varying(s, move |t, _| {
            let number = (t / trial) as usize;
            base + spread * if number == 0 { 1.0 } else { sizes[number % 32] }
        });
    }),
    family("grew_and_went_idle", "It grew while it worked, and keeps its memory.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, stop) = (s.trainer(), s.gib(4.0, 10.0), s.long_idle());
        let pid = s.add(process, move |t, _| {
            if t < stop {
                working((bytes as f64 * (0.3 + 0.7 * t / stop)) as u64)
            } else {
                resting(bytes)
            }
        });
        s.expect_finding("idle", pid, &["leak"]);
    }),
    family("grew_and_was_freed", "It grew for most of the time, then freed everything.", |s| {
        s.minutes(50.0, 80.0);
        let (base, rise, at) =
            (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.4), s.before_end(400.0, 900.0));
        add_varying(s, move |t, _| base + if t < at { rise * t / at } else { 0.0 });
    }),
    family("leaker_that_left", "It grew until it exited.", |s| {
        s.minutes(50.0, 80.0);
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 12.0), s.before_end(100.0, 900.0));
        s.add(process, move |t, _| {
            if t < at { working((bytes as f64 * (0.2 + 0.8 * t / at)) as u64) } else { gone() }
        });
    }),
];
