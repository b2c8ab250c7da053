//! State of playback: pause, speed and seek target.

use std::time::Duration;

use super::timeline::FrameRef;
use crate::model::Time;
use crate::watch::{Control, PlaybackClock};

/// Minimum age of the newest sample for an alarm.
const ALARM_AGE_MIN: Duration = Duration::from_secs(3);

#[derive(Clone, PartialEq, Debug)]
pub struct Playback {
    pub is_paused: bool,
    pub interval: Duration,
    /// Playback speed of a recording, relative to the recorded speed.
    pub speed: f64,
    pub can_rewind: bool,
    /// Percentage of the recording that has been read, if known.
    pub percent: Option<u8>,
    pub seek_target: Option<SeekTarget>,
    /// Number of requested rewinds that the source has not completed.
    pub rewinds: u32,
    pub shown: Option<u64>,
    /// Clock that plays the timeline. If `None`, the next tick starts a new clock.
    pub clock: Option<PlaybackClock>,
    /// Expected time from the last sample to the next.
    pub awaited: Duration,
    pub drawn: Duration,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SeekTarget {
    Next,
    Time(Time),
    /// `Leap(to, from)` is reached at the first sample at or after `to`. A sample before `from` also ends the leap:
    /// the clock was set back.
    Leap(Time, Time),
    Number(u64),
    /// The next sample with a new finding.
    Beginning,
    End,
}

impl SeekTarget {
    pub fn is_reached(self, frame: FrameRef) -> bool {
        match self {
            Self::Next => true,
            Self::Time(time) => frame.time >= time,
            Self::Leap(time, from) => frame.time >= time || frame.time < from,
            Self::Number(number) => frame.number >= number,
            Self::Beginning => frame.has_beginning,
            Self::End => false,
        }
    }

    pub fn control(self) -> Control {
        match self {
            Self::Next => Control::Step,
            Self::Time(time) | Self::Leap(time, _) => Control::SeekTo(time),
            Self::Number(_) | Self::Beginning | Self::End => Control::Run,
        }
    }
}

impl Playback {
    pub fn new(interval: Duration) -> Self {
        Self {
            is_paused: false,
            interval,
            speed: 1.0,
            can_rewind: true,
            percent: None,
            seek_target: None,
            rewinds: 0,
            shown: None,
            clock: None,
            awaited: interval,
            drawn: Duration::ZERO,
        }
    }

    /// Returns the clock of the timeline. A new clock starts at `now` with the sample of time `shown`.
    pub(in crate::watch) fn play_from(&mut self, shown: Time, now: Duration) -> &mut PlaybackClock {
        let speed = self.speed;
        self.clock.get_or_insert_with(|| {
            let mut clock = PlaybackClock::default().at_speed(speed);
            clock.delivered(shown, now);
            clock
        })
    }

    pub fn is_seeking(&self) -> bool {
        self.rewinds > 0 || !matches!(self.seek_target, None | Some(SeekTarget::Next))
    }

    /// Returns the age above which the newest sample raises an alarm.
    pub fn alarm_age(&self) -> Duration {
        ALARM_AGE_MIN.max(self.awaited.max(self.interval).saturating_mul(3))
    }

    /// Returns the age in seconds at or above which the newest sample's age is shown, because the next sample is late.
    pub fn late_from_seconds(&self) -> u64 {
        let late = self.awaited.max(self.interval) + Duration::from_secs(1);
        late.as_secs() + u64::from(late.subsec_nanos() > 0)
    }
}

/// Formats a speed, such as `4x`, `1/8x` or `1.5x`.
pub fn speed_text(speed: f64) -> String {
    let inverse = 1.0 / speed;
    if speed < 1.0 && (inverse - inverse.round()).abs() < 1e-9 {
        format!("1/{inverse:.0}x")
    } else {
        format!("{}x", (speed * 100.0).round() / 100.0)
    }
}
