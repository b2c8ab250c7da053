//! Random growth: requests, caches, and bands that memory drifts through.

use super::{BASE, Dice, assert_never, play};

/// Random times, with this mean number of minutes in between.
fn by_chance(seed: u64, mean: f64) -> impl FnMut() -> f64 {
    let (mut dice, mut at) = (Dice(seed * 0x9e37_79b9 + 1), 0.0);
    move || {
        at -= mean * (1.0 - dice.share()).ln();
        at
    }
}

#[test]
fn a_cache_that_fills_by_chance_is_no_leak_and_requests_that_leak_are() {
    for seed in 1..=20 {
        // Keys by Zipf's law, the common ones first.
        let (mut dice, mut next) = (Dice(seed * 77), by_chance(seed, 0.04));
        let (mut known, mut at) = ([false; 120], next());
        let cache = play(30.0, 180.0, |t| {
            while at <= t {
                known[(120f64.powf(dice.share()) - 1.0) as usize] = true;
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
        let (mut dice, mut next) = (Dice(seed * 77), by_chance(seed, 0.4));
        let (mut ends, mut at) = (Vec::new(), next());
        let played = play(30.0, 300.0, |t| {
            while at <= t {
                ends.push(at - 6.0 * (1.0 - dice.share()).ln());
                at = next();
            }
            ends.retain(|end| *end > t);
            // They arrive during the first quarter of an hour.
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

#[test]
fn requests_that_leak_are_one_leak_however_they_come() {
    let mut anew = 0;
    for seed in 1..=40 {
        let (mut dice, mut next) = (Dice(seed * 77), by_chance(seed, 0.6));
        let (mut going, mut at, mut kept) = (Vec::new(), next(), 0.0);
        let played = play(30.0, 180.0, |t| {
            while at <= t {
                kept += 90.0 * dice.share();
                going.push(at - 0.6 * (1.0 - dice.share()).ln());
                at = next();
            }
            going.retain(|end| *end > t);
            BASE + kept + 400.0 * going.len() as f64
        });
        assert!(!played.words.is_empty(), "seed {seed}");
        anew += (played.words.len() - 1) / 2;
    }
    // It was 31 times when each end was one.
    assert!(anew <= 2, "{anew} times found anew in 40 runs");
}

#[test]
fn a_pause_longer_than_all_before_takes_back_the_forecast_and_not_the_finding() {
    for interval in [10.0, 30.0, 60.0] {
        // Requests for six minutes and none for four, once none for twenty.
        let played = play(interval, 180.0, |t| {
            let active = |t: f64| (t / 10.0).floor() * 6.0 + (t % 10.0).min(6.0);
            let before = t.min(84.0);
            BASE + 60.0 * (active(before) + active((t - 110.0).max(0.0)))
        });
        assert_eq!(
            played.words.len(),
            1,
            "every {interval} s: {:?} {:?}",
            played.words,
            played.turns
        );
        let [_, stops, goes_on] = played.turns[..] else {
            panic!("every {interval} s: {:?}", played.turns);
        };
        assert!((88.0..=97.0).contains(&stops), "{stops}");
        assert!((110.0..=125.0).contains(&goes_on), "{goes_on}");
    }
}
