//! Whether the screen is paused, the speed, and where it seeks to.

use std::time::Duration;

use super::timeline::FrameRef;
use crate::model::Time;
use crate::watch::{Control, PlaybackClock};

/// A sample is never late before this.
const LEAST_SILENCE: Duration = Duration::from_secs(3);

#[derive(Clone, PartialEq, Debug)]
pub struct Playback {
    /// Whether newer samples are not shown.
    pub is_paused: bool,
    /// The sampling interval; a newest sample older than three intervals raises an alarm.
    pub interval: Duration,
    /// The speed of a recording; 1 is the speed at which it was made.
    pub speed: f64,
    /// Whether a recording can be read again from the start.
    pub can_rewind: bool,
    /// How much of a recording has been read; `None` if unknown.
    pub percent: Option<u8>,
    pub seek_target: Option<SeekTarget>,
    /// How many rewinds were requested that the source has not done yet.
    pub rewinds: u32,
    /// The number of the shown sample on the timeline.
    pub shown: Option<u64>,
    /// When samples of the timeline are due, while the timeline plays; `None` until its first tick.
    pub clock: Option<PlaybackClock>,
    /// The interval that the next sample may take.
    pub awaited: Duration,
    /// When progress was last drawn.
    pub drawn: Duration,
}

/// Where a seek ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SeekTarget {
    /// The next sample.
    Next,
    /// The first sample at or after this time.
    Time(Time),
    /// The first sample at or after the first time, or before the second, because the clock was set back.
    Leap(Time, Time),
    /// The sample with this number.
    Number(u64),
    /// The next sample in which a finding begins.
    Beginning,
    /// The last sample.
    End,
}

impl SeekTarget {
    /// Whether the seek ends at this sample.
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

    /// What the source must do for it.
    pub fn control(self) -> Control {
        match self {
            Self::Next => Control::Step,
            Self::Time(time) | Self::Leap(time, _) => Control::SeekTo(time),
            Self::Number(_) | Self::Beginning | Self::End => Control::Run,
        }
    }
}

impl Playback {
    /// Not paused, with this interval.
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

    /// The clock that plays the timeline. If it is new, it starts `now` with the sample of time `shown`.
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

    /// The newest sample raises an alarm once it is older than this.
    pub fn patience(&self) -> Duration {
        LEAST_SILENCE.max(self.awaited.max(self.interval).saturating_mul(3))
    }

    /// The age is shown from this many whole seconds on, when the next sample should have come.
    pub fn late_from_seconds(&self) -> u64 {
        let late = self.awaited.max(self.interval) + Duration::from_secs(1);
        late.as_secs() + u64::from(late.subsec_nanos() > 0)
    }
}

/// `4x`, `1/8x`, `1.5x`.
pub fn speed_text(speed: f64) -> String {
    let inverse = 1.0 / speed;
    if speed < 1.0 && (inverse - inverse.round()).abs() < 1e-9 {
        format!("1/{inverse:.0}x")
    } else {
        // As short as possible without loss.
        format!("{}x", (speed * 100.0).round() / 100.0)
    }
}
