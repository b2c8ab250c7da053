//! Memory curves that are difficult to judge: slow saturation, rare new maxima, ranges that were full before, caches,
//! requests, and leaks that stop under varying use.

use super::*;

/// Picks a random number from the standard normal distribution.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * random.range(1e-12, 1.0).ln()).sqrt();
    radius * (TAU * random.range(0.0, 1.0)).cos()
}

pub const FAMILIES: &[Family] = &[
    family("leak_that_stopped_in_a_sawtooth", "It leaked, then stopped; a cache varies.", |s| {
        s.minutes(110.0, 160.0);
        s.every(20.0);
        let (stop, base, growth) =
            (s.at(0.4, 0.55), random_part(s, 0.1, 0.3), random_part(s, 0.12, 0.4));
        let tooth = growth * s.random.range(0.15, 0.3);
        let period = s.random.range(150.0, 320.0);
        let pid = add_varying(s, move |t, _| {
            base + growth * (t / stop).min(1.0) + tooth * (t % period) / period
        });
        tolerate(s, pid, stop);
    }),
    family("leak_that_stopped_under_noise", "It leaked, then stopped; shapes vary.", |s| {
        s.minutes(110.0, 160.0);
        s.every(20.0);
        let (stop, base, growth) =
            (s.at(0.4, 0.55), random_part(s, 0.1, 0.3), random_part(s, 0.12, 0.4));
        let spread = growth * 0.04;
        let pid = add_varying(s, move |t, random| {
            base + growth * (t / stop).min(1.0) + random.noise(spread)
        });
        tolerate(s, pid, stop);
    }),
    family("high_water_of_long_tails", "Ever rarer, longer sequences set new maxima.", |s| {
        s.minutes(340.0, 390.0);
        s.every(60.0);
        let (base, unit) = (random_part(s, 0.15, 0.3), random_part(s, 0.004, 0.012));
        let (sigma, batches) = (s.random.range(0.6, 1.1), s.random.whole(1, 20));
        let limit = random_part(s, 0.3, 0.6);
        let mut longest = 0.0f64;
        add_varying(s, move |_, random| {
            for _ in 0..batches {
                longest = longest.max((sigma * normal(random)).exp());
            }
            base + (unit * longest).min(limit)
        });
    }),
    family("settles_slowly", "It approaches a level over hours, as with fragmentation.", |s| {
        s.minutes(300.0, 380.0);
        s.every(60.0);
        let (base, rise) = (random_part(s, 0.1, 0.2), random_part(s, 0.05, 0.5));
        let tau = 60.0 * (20f64.ln() + s.random.range(0.0, 1.0) * 9f64.ln()).exp();
        let pid = add_varying(s, move |t, _| base + rise * (1.0 - (-t / tau).exp()));
        // Until `tau / 2`, the curve cannot be distinguished from a leak.
        tolerate(s, pid, tau / 2.0);
    }),
    family("drifts_within_a_band", "It filled a band, and drifts within it for hours.", |s| {
        s.minutes(300.0, 380.0);
        s.every(60.0);
        let (base, band) = (random_part(s, 0.1, 0.4), random_part(s, 0.05, 0.4));
        let (first, slow) = (s.random.range(480.0, 1200.0), s.random.range(3000.0, 9000.0));
        let (phase, noise) = (s.random.range(0.0, 1.0), s.random.range(0.0, 0.03));
        add_varying(s, move |t, random| {
            let drift = 0.45 + 0.4 * ((t / slow + phase) * TAU).sin();
            let share = if t < first { 1.0 } else { drift };
            base + band * (share * (t / 120.0).min(1.0) + random.noise(noise))
        });
    }),
    family("cache_fills_to_a_limit", "A cache grows until it reaches its limit.", |s| {
        s.minutes(150.0, 200.0);
        s.every(30.0);
        let (base, limit) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.5));
        let full = s.random.range(900.0, 3600.0);
        let rough = s.random.range(0.0, 0.03);
        let pid = add_varying(s, move |t, random| {
            let filled = t / full + random.range(-rough, rough) * f64::from(t < full);
            base + limit * filled.clamp(0.0, 1.0)
        });
        tolerate(s, pid, full);
    }),
    family("requests_come_and_go", "Requests hold memory for minutes, and balance.", |s| {
        s.minutes(240.0, 300.0);
        s.every(30.0);
        let (base, all) = (random_part(s, 0.1, 0.3), random_part(s, 0.05, 0.3));
        let (lasts, usual) = (s.random.range(60.0, 600.0), s.random.range(4.0, 60.0));
        let mut ends: Vec<f64> = (0..usual as usize).map(|_| s.random.range(0.0, lasts)).collect();
        let mut next = 0.0;
        add_varying(s, move |t, random| {
            while next <= t {
                ends.push(next - lasts * random.range(1e-9, 1.0).ln());
                next -= lasts / usual * random.range(1e-9, 1.0).ln();
            }
            ends.retain(|end| *end > t);
            base + all * ends.len() as f64 / (2.0 * usual)
        });
    }),
    family("requests_fill_a_cache", "A cache keeps an entry per key until it is full.", |s| {
        s.minutes(240.0, 300.0);
        s.every(30.0);
        let (base, size) = (random_part(s, 0.1, 0.3), random_part(s, 0.05, 0.3));
        let (keys, gap) = (s.random.range(60.0, 200.0), s.random.range(1.0, 4.0));
        let mut cached = vec![false; keys as usize];
        let mut next = 0.0;
        let pid = add_varying(s, move |t, random| {
            while next <= t {
                let rank = (keys.powf(random.range(0.0, 1.0)) - 1.0) as usize;
                cached[rank.min(keys as usize - 1)] = true;
                next -= gap * random.range(1e-9, 1.0).ln();
            }
            let held = cached.iter().filter(|cached| **cached).count();
            base + size * held as f64 / keys
        });
        tolerate(s, pid, 0.0);
    }),
    family("leak_by_random_requests", "Some random requests leave memory allocated.", |s| {
        s.minutes(150.0, 200.0);
        s.every(30.0);
        let (base, all) = (random_part(s, 0.1, 0.3), random_part(s, 0.2, 0.5));
        let (gap, lasts) = (s.random.range(10.0, 60.0), s.random.range(5.0, 60.0));
        let (end, each) = (s.end(), random_part(s, 0.002, 0.01));
        let mut going: Vec<f64> = Vec::new();
        let (mut next, mut kept) = (0.0, 0.0);
        let pid = add_varying(s, move |t, random| {
            while next <= t {
                kept += all * gap / end * random.range(0.2, 1.8);
                going.push(next - lasts * random.range(1e-9, 1.0).ln());
                next -= gap * random.range(1e-9, 1.0).ln();
            }
            going.retain(|until| *until > t);
            base + kept + each * going.len() as f64
        });
        s.expect_finding("leak", pid, &[]);
        s.labels.onset = Some(0.0);
    }),
    family("grows_by_logarithm", "It grows as much with each doubling of its age.", |s| {
        s.minutes(300.0, 380.0);
        s.every(60.0);
        let (base, growth) = (random_part(s, 0.1, 0.3), random_part(s, 0.1, 0.3));
        let (young, end) = (s.random.range(60.0, 400.0), s.end());
        let pid = add_varying(s, move |t, _| {
            base + growth * (1.0 + t / young).ln() / (1.0 + end / young).ln()
        });
        tolerate(s, pid, 1200.0);
    }),
    family("grows_by_root", "It grows ever more slowly, and fills the card in a day.", |s| {
        s.minutes(300.0, 380.0);
        s.every(60.0);
        let (base, fills) = (random_part(s, 0.1, 0.3), s.random.range(10.0, 18.0) * 3600.0);
        let (power, room) = (s.random.range(0.45, 0.6), random_part(s, 1.0, 1.0) - base);
        add_varying(s, move |t, _| base + room * (t / fills).powf(power));
    }),
];
