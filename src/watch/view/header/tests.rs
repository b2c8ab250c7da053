//! Tests of the clock in the first line.

use super::*;
use crate::watch::sample;
use crate::watch::testing::{self, keys, screen_of, tick};
use crate::watch::theme::Theme;

fn app(samples: u64) -> App {
    let mut app = screen_of(None, 1, (80, 24));
    (0..samples).for_each(|second| show_sample(&mut app, second));
    app
}

fn show_sample(app: &mut App, second: u64) {
    testing::show_sample(app, second, sample::later(1, 1, second as f64));
}

#[track_caller]
fn assert_end(app: &App, expected: &str) {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 1));
    draw(app, Styles { theme: Theme::default(), has_color: false }, buffer.area, &mut buffer);
    let line = testing::lines(&buffer).concat();
    assert!(line.trim_end().ends_with(expected), "{line:?}");
}

#[test]
fn paused_late_and_silent_are_distinguished() {
    let mut app = app(3);
    assert_end(&app, " 10:04:07 UTC");
    tick(&mut app, 4_000);
    assert_end(&app, " 10:04:07, 2s ago");
    tick(&mut app, 9_000);
    assert_end(&app, " no answer for 7s");
    keys(&mut app, "p");
    assert_end(&app, "PAUSED, no answer for 7s");
    for second in 10..210 {
        show_sample(&mut app, second);
    }
    assert_end(&app, " behind, L: now");
}

#[test]
fn samples_without_any_gpu_raise_an_alarm() {
    let mut app = app(1);
    for (ages, end) in
        [([Some(12.5), None], " UTC"), ([Some(12.5), Some(70.0)], "no GPU answers for 12s")]
    {
        let mut snapshot = sample::later(2, 1, 30.0);
        for (gpu, age) in snapshot.gpus.iter_mut().zip(ages) {
            gpu.stale_seconds = age;
        }
        testing::show_sample(&mut app, 1, snapshot);
        assert_end(&app, end);
    }
}
