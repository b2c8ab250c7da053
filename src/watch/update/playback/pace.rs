//! The sampling interval of a live machine and the speed of a recording, changed step by step.

use std::time::Duration;

use crate::units::Span;
use crate::watch::Control;
use crate::watch::state::playback::speed_text;
use crate::watch::state::{App, Effect};

/// The intervals that keys step through, in milliseconds.
const INTERVALS: [u64; 9] = [100, 250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// The slowest and the fastest speed by keys.
const SPEEDS: (f64, f64) = (1.0 / 8.0, 1024.0);

/// Samples more or less often, or plays a recording faster or slower.
pub(super) fn faster(app: &mut App, is_faster: bool) -> Option<Effect> {
    let play = &mut app.playback;
    if app.setup.host.is_some() {
        return app
            .refuse("how often a host is sampled is said when gpumem is started: --interval");
    }
    if app.setup.replay.is_none() {
        let interval = play.interval;
        let mut intervals = INTERVALS.map(Duration::from_millis).into_iter();
        let next = match is_faster {
            true => intervals.rfind(|it| *it < interval),
            false => intervals.find(|it| *it > interval),
        };
        let Some(next) = next else {
            let text = format!("a sample every {} is as far as it goes", Span(interval));
            return app.refuse(&text);
        };
        // The next sample may still take the old interval.
        play.awaited = play.awaited.max(interval);
        play.interval = next;
        return Some(Effect::Control(Control::Interval(next)));
    }
    let (least, most) = SPEEDS;
    let next = if is_faster { play.speed * 2.0 } else { play.speed / 2.0 };
    if !(least..=most).contains(&next) {
        let text = format!("{} is as far as it goes", speed_text(play.speed));
        return app.refuse(&text);
    }
    play.speed = next;
    // If the timeline plays, its next sample is due by the new speed.
    play.clock = None;
    Some(Effect::Control(Control::Speed(next)))
}
