//! How often this machine is sampled, and how fast a recording plays: a step faster or slower.

use std::time::Duration;

use crate::units::Span;
use crate::watch::Control;
use crate::watch::state::playback::speed_text;
use crate::watch::state::{App, Effect};

/// Intervals that a key steps through.
const INTERVALS: [Duration; 9] = [
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];
/// The slowest and the fastest that a recording is played by keys.
const SPEEDS: (f64, f64) = (1.0 / 8.0, 1024.0);

/// Samples this machine more often or less, or plays a recording faster or slower.
pub(super) fn faster(app: &mut App, is_faster: bool) -> Option<Effect> {
    let play = &mut app.playback;
    if app.setup.replay.is_none() {
        let interval = play.interval;
        let next = if is_faster {
            INTERVALS.iter().rev().find(|it| **it < interval)
        } else {
            INTERVALS.iter().find(|it| **it > interval)
        };
        let Some(&next) = next else {
            let text = format!("a sample every {} is as far as it goes", Span(interval));
            return app.refuse(&text);
        };
        // The sample that is awaited may still take as long as it was to.
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
    // Where the timeline plays, its next sample is due by the new speed.
    play.clock = None;
    Some(Effect::Control(Control::Speed(next)))
}
