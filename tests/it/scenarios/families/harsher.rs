//! Memory that is hard to judge at every moment: what settles over hours, high waters of long tails, bands that
//! were filled before, caches and requests; and leaks that stop under what goes up and down.

use std::f64::consts::TAU;

use super::super::random::Random;
use super::{Family, family, moves, part, tolerate};

/// A number of the standard normal distribution.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * random.range(1e-12, 1.0).ln()).sqrt();
    radius * (TAU * random.range(0.0, 1.0)).cos()
}

pub const FAMILIES: &[Family] = &[
    family(
        "leak_that_stopped_in_a_sawtooth",
        "It leaked, and stopped; the cache is still emptied every few minutes.",
        |s| {
            s.minutes(110.0, 160.0);
            s.every(20.0);
            let (stop, base, growth) = (s.at(0.4, 0.55), part(s, 0.1, 0.3), part(s, 0.12, 0.4));
            let tooth = growth * s.random.range(0.15, 0.3);
            let period = s.random.range(150.0, 320.0);
            let pid = moves(s, move |t, _| {
                base + growth * (t / stop).min(1.0) + tooth * (t % period) / period
            });
            tolerate(s, pid, stop);
        },
    ),
    family(
        "leak_that_stopped_under_noise",
        "It drifted upwards, and stopped; shapes still vary from step to step.",
        |s| {
            s.minutes(110.0, 160.0);
            s.every(20.0);
            let (stop, base, growth) = (s.at(0.4, 0.55), part(s, 0.1, 0.3), part(s, 0.12, 0.4));
            let spread = growth * 0.04;
            let pid = moves(s, move |t, random| {
                base + growth * (t / stop).min(1.0) + random.noise(spread)
            });
            tolerate(s, pid, stop);
        },
    ),
    family(
        "high_water_of_long_tails",
        "A few sequences are many times as long as most: records come for hours, ever rarer.",
        |s| {
            s.minutes(340.0, 390.0);
            s.every(60.0);
            let (base, unit) = (part(s, 0.15, 0.3), part(s, 0.004, 0.012));
            let (sigma, batches) = (s.random.range(0.6, 1.1), s.random.whole(1, 20));
            let most = part(s, 0.3, 0.6);
            let mut longest = 0.0f64;
            moves(s, move |_, random| {
                for _ in 0..batches {
                    longest = longest.max((sigma * normal(random)).exp());
                }
                base + (unit * longest).min(most)
            });
        },
    ),
    family(
        "settles_slowly",
        "It approaches a level over hours, as fragmentation and lazy caches do.",
        |s| {
            s.minutes(300.0, 380.0);
            s.every(60.0);
            let (base, rise) = (part(s, 0.1, 0.2), part(s, 0.05, 0.5));
            let tau = 60.0 * (20f64.ln() + s.random.range(0.0, 1.0) * 9f64.ln()).exp();
            let pid = moves(s, move |t, _| base + rise * (1.0 - (-t / tau).exp()));
            // For half of that time nobody can tell it from a leak.
            tolerate(s, pid, tau / 2.0);
        },
    ),
    family(
        "drifts_within_a_band",
        "It filled a band at first, came down, and drifts through it for hours.",
        |s| {
            s.minutes(300.0, 380.0);
            s.every(60.0);
            let (base, band) = (part(s, 0.1, 0.4), part(s, 0.05, 0.4));
            let (first, slow) = (s.random.range(480.0, 1200.0), s.random.range(3000.0, 9000.0));
            let (phase, noise) = (s.random.range(0.0, 1.0), s.random.range(0.0, 0.03));
            moves(s, move |t, random| {
                let drift = 0.45 + 0.4 * ((t / slow + phase) * TAU).sin();
                let share = if t < first { 1.0 } else { drift };
                base + band * (share * (t / 120.0).min(1.0) + random.noise(noise))
            });
        },
    ),
    family(
        "cache_fills_to_a_limit",
        "A cache takes what comes until it is as large as it may be.",
        |s| {
            s.minutes(150.0, 200.0);
            s.every(30.0);
            let (base, limit) = (part(s, 0.1, 0.3), part(s, 0.1, 0.5));
            let full = s.random.range(900.0, 3600.0);
            let rough = s.random.range(0.0, 0.03);
            let pid = moves(s, move |t, random| {
                let filled = t / full + random.range(-rough, rough) * f64::from(t < full);
                base + limit * filled.clamp(0.0, 1.0)
            });
            tolerate(s, pid, full);
        },
    ),
    family(
        "requests_come_and_go",
        "Each request takes memory for minutes; as many come as go.",
        |s| {
            s.minutes(240.0, 300.0);
            s.every(30.0);
            let (base, all) = (part(s, 0.1, 0.3), part(s, 0.05, 0.3));
            let (lasts, usual) = (s.random.range(60.0, 600.0), s.random.range(4.0, 60.0));
            let mut ends: Vec<f64> =
                (0..usual as usize).map(|_| s.random.range(0.0, lasts)).collect();
            let mut next = 0.0;
            moves(s, move |t, random| {
                while next <= t {
                    ends.push(next - lasts * random.range(1e-9, 1.0).ln());
                    next -= lasts / usual * random.range(1e-9, 1.0).ln();
                }
                ends.retain(|end| *end > t);
                base + all * ends.len() as f64 / (2.0 * usual)
            });
        },
    ),
    family(
        "requests_fill_a_cache",
        "A cache keeps an entry for each key; the common keys come first, and no more fit in the end.",
        |s| {
            s.minutes(240.0, 300.0);
            s.every(30.0);
            let (base, size) = (part(s, 0.1, 0.3), part(s, 0.05, 0.3));
            let (keys, gap) = (s.random.range(60.0, 200.0), s.random.range(1.0, 4.0));
            let mut known = vec![false; keys as usize];
            let mut next = 0.0;
            let pid = moves(s, move |t, random| {
                while next <= t {
                    let rank = (keys.powf(random.range(0.0, 1.0)) - 1.0) as usize;
                    known[rank.min(keys as usize - 1)] = true;
                    next -= gap * random.range(1e-9, 1.0).ln();
                }
                let held = known.iter().filter(|known| **known).count();
                base + size * held as f64 / keys
            });
            tolerate(s, pid, 0.0);
        },
    ),
    family(
        "leak_by_random_requests",
        "Requests come at random, and some of them leave a little behind for ever.",
        |s| {
            s.minutes(150.0, 200.0);
            s.every(30.0);
            let (base, all) = (part(s, 0.1, 0.3), part(s, 0.2, 0.5));
            let (gap, lasts) = (s.random.range(10.0, 60.0), s.random.range(5.0, 60.0));
            let (end, each) = (s.end(), part(s, 0.002, 0.01));
            let mut going: Vec<f64> = Vec::new();
            let (mut next, mut kept) = (0.0, 0.0);
            let pid = moves(s, move |t, random| {
                while next <= t {
                    kept += all * gap / end * random.range(0.2, 1.8);
                    going.push(next - lasts * random.range(1e-9, 1.0).ln());
                    next -= gap * random.range(1e-9, 1.0).ln();
                }
                going.retain(|until| *until > t);
                base + kept + each * going.len() as f64
            });
            s.accuse("leak", pid, &[]);
            s.labels.onset = Some(0.0);
        },
    ),
    family(
        "grows_by_logarithm",
        "It grows by as much in each doubling of its age: no card is filled by that.",
        |s| {
            s.minutes(300.0, 380.0);
            s.every(60.0);
            let (base, growth) = (part(s, 0.1, 0.3), part(s, 0.1, 0.3));
            let (young, end) = (s.random.range(60.0, 400.0), s.end());
            let pid = moves(s, move |t, _| {
                base + growth * (1.0 + t / young).ln() / (1.0 + end / young).ln()
            });
            tolerate(s, pid, 1200.0);
        },
    ),
    family(
        "grows_by_root",
        "It grows ever more slowly, as the square root of its age, and fills the card within the day.",
        |s| {
            s.minutes(300.0, 380.0);
            s.every(60.0);
            let (base, fills) = (part(s, 0.1, 0.3), s.random.range(10.0, 18.0) * 3600.0);
            let (power, room) = (s.random.range(0.45, 0.6), part(s, 1.0, 1.0) - base);
            moves(s, move |t, _| base + room * (t / fills).powf(power));
        },
    ),
];
