//! Growth by chance: requests, caches, and bands that memory drifts through.

use super::{BASE, Random, assert_never, play};

/// Times at random, so many minutes between two on average.
fn by_chance(seed: u64, mean: f64) -> impl FnMut() -> f64 {
    let (mut random, mut at) = (Random(seed * 0x9e37_79b9 + 1), 0.0);
    move || {
        at -= mean * (1.0 - random.share()).ln();
        at
    }
}

#[test]
fn a_cache_that_fills_by_chance_is_no_leak_and_requests_that_leak_are() {
    for seed in 1..=20 {
        // Keys by Zipf's law, the common ones first.
        let (mut random, mut next) = (Random(seed * 77), by_chance(seed, 0.04));
        let (mut known, mut at) = ([false; 120], next());
        let cache = play(30.0, 180.0, |t| {
            while at <= t {
                known[(120f64.powf(random.share()) - 1.0) as usize] = true;
                at = next();
            }
            BASE + 60.0 * known.iter().filter(|known| **known).count() as f64
        });
        assert_eq!(cache.turns, [0.0; 0], "seed {seed}");

        let mut next = by_chance(seed, 1.2);
        let (mut at, mut requests) = (next(), 0.0);
        let leak = play(60.0, 120.0, |t| {
            while at <= t {
                requests += 1.0;
                at = next();
            }
            BASE + 60.0 * requests
        });
        let found = leak.turns.first().copied().unwrap_or(f64::INFINITY);
        assert!(found <= 90.0, "seed {seed}: {:?}", leak.turns);
    }
}

#[test]
fn requests_that_come_and_go_are_no_leak() {
    for seed in 1..=20 {
        let (mut random, mut next) = (Random(seed * 77), by_chance(seed, 0.4));
        let (mut ends, mut at) = (Vec::new(), next());
        let played = play(30.0, 300.0, |t| {
            while at <= t {
                ends.push(at - 6.0 * (1.0 - random.share()).ln());
                at = next();
            }
            ends.retain(|end| *end > t);
            // The first quarter of an hour is their coming.
            BASE + 400.0 * if t < 15.0 { 15.0 } else { ends.len() as f64 }
        });
        assert_eq!(played.turns, [0.0; 0], "seed {seed}");
    }
}

#[test]
fn a_band_that_was_filled_hours_ago_is_no_news() {
    for period in [50.0, 70.0, 90.0, 110.0, 140.0] {
        assert_never(380.0, |t| {
            let drift = 0.45 + 0.4 * (t / period * std::f64::consts::TAU).sin();
            BASE + 8000.0 * if t < 10.0 { 1.0 } else { drift }
        });
    }
}
