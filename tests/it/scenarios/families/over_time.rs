//! Memory over a longer time: growth that stops, rare new maxima, a full GPU, and growth in steps.

use super::*;

/// Sets a long recording. Picks the time at which the growth stops, near the middle.
fn stops(s: &mut Stage) -> f64 {
    s.minutes(90.0, 170.0);
    s.at(0.4, 0.6)
}

pub const FAMILIES: &[Family] = &[
    family("leak_that_stopped", "It leaked for an hour, and was flat for as long.", |s| {
        let (stop, base, growth) = (stops(s), random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.5));
        let pid = add_varying(s, move |t, _| base + growth * (t / stop).min(1.0));
        tolerate(s, pid, stop);
    }),
    family("leak_that_stopped_under_peaks", "It leaked, then stopped; peaks remain.", |s| {
        let (stop, base, growth) = (stops(s), random_part(s, 0.1, 0.3), random_part(s, 0.2, 0.4));
        let (every, peak) = (s.random.range(300.0, 600.0), random_part(s, 0.03, 0.1));
        let pid = add_varying(s, move |t, _| {
            let evaluates = t % every > every - 70.0;
            base + growth * (t / stop).min(1.0) + if evaluates { peak } else { 0.0 }
        });
        tolerate(s, pid, stop);
    }),
    family("leak_given_back", "It grew for an hour, then freed a fifth of that.", |s| {
        let (stop, base, growth) = (stops(s), random_part(s, 0.1, 0.3), random_part(s, 0.2, 0.5));
        let pid = add_varying(s, move |t, _| base + growth * if t < stop { t / stop } else { 0.8 });
        // Until a few minutes without growth have passed, the decrease looks like the end of a temporary peak.
        tolerate(s, pid, stop - 300.0);
    }),
    family("alloc_high_water", "The allocator's maximum rises ever more rarely.", |s| {
        s.minutes(340.0, 390.0);
        s.every(60.0);
        let (base, step) = (random_part(s, 0.2, 0.4), random_part(s, 0.008, 0.025));
        let rate = s.random.range(3.0, 8.0);
        let (mut more, mut before) = (0.0, 0.0);
        add_varying(s, move |t, random| {
            let age = |t: f64| (t / 60.0 + 2.0).ln();
            if random.chance(1.0 - (-rate * (age(t) - age(before))).exp()) {
                more += step * random.range(0.3, 1.7);
            }
            before = t;
            base * (t / 90.0).min(1.0) + more
        });
    }),
    family("pinned_card", "The card is full up to the last GiB or two for hours.", |s| {
        s.minutes(280.0, 320.0);
        s.every(60.0);
        s.is_lonely = true;
        let total = s.machine.model.total_bytes as f64;
        let (top, band) = (total * 0.985, total * s.random.range(0.015, 0.03));
        let fills = s.end() * s.random.range(0.3, 0.9);
        add_varying(s, move |t, random| {
            let floor = 0.9 * (t / fills).min(1.0);
            top - band * (1.0 - floor) * random.range(0.0, 1.0)
        });
    }),
    family("leak_in_large_steps", "Each long epoch leaves GiB allocated.", |s| {
        s.minutes(150.0, 190.0);
        s.every(60.0);
        let epoch = s.random.range(600.0, 1000.0);
        let room = random_part(s, 0.7, 0.75) / (s.end() / epoch).ceil();
        let step = room.max(1.1 * GIB as f64);
        let base = random_part(s, 0.05, 0.06);
        let total = s.machine.model.total_bytes as f64 * 0.97;
        let pid = add_varying(s, move |t, _| (base + step * (t / epoch).floor()).min(total));
        tolerate(s, pid, s.end());
        s.allow(pid, &["leak"]);
    }),
    family("leak_by_requests", "Each random request leaves a little memory.", |s| {
        s.minutes(150.0, 200.0);
        s.every(60.0);
        let base = random_part(s, 0.1, 0.3);
        let (gap, each) = (s.random.range(40.0, 120.0), random_part(s, 0.001, 0.002));
        let (mut more, mut next) = (0.0, 0.0);
        let pid = add_varying(s, move |t, random| {
            while t >= next {
                more += each * random.range(0.5, 1.5);
                next -= gap * random.range(1e-9, 1.0).ln();
            }
            base + more
        });
        s.expect_finding("leak", pid, &[]);
        // At first, random growth looks like rare new maxima.
        s.labels.onset = Some(1200.0);
    }),
];
