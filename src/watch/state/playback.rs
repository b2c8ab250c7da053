//! Whether the screen is paused, how fast time goes, and where it is going to.

use std::time::Duration;

use super::timeline::FrameRef;
use crate::model::Time;
use crate::watch::{Control, PlaybackClock, PlaybackPace};

/// No silence is an alarm before this.
const LEAST_SILENCE: Duration = Duration::from_secs(3);

/// Whether the screen is paused, and how fast time goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Playback {
    /// Whether newer samples are not shown.
    pub is_paused: bool,
    /// The time from one sample to the next; a sample older than three of them is an alarm.
    pub interval: Duration,
    /// How many times as fast as it was made a recording plays.
    pub speed: f64,
    /// Whether a recording can be begun again.
    pub can_rewind: bool,
    /// How much of a recording has been read; `None` where that is not known.
    pub percent: Option<u8>,
    /// Where samples are passed over to.
    pub seek_target: Option<SeekTarget>,
    /// How often the recording was told to begin again and has not yet.
    pub rewinds: u32,
    /// The sample that is shown, by its number on the timeline.
    pub shown: Option<u64>,
    /// When samples of the timeline are due, where the timeline is what plays; `None` until its first tick.
    pub clock: Option<PlaybackClock>,
    /// The interval that the sample which is awaited may take.
    pub awaited: Duration,
    /// When it was last drawn how far it is.
    pub drawn: Duration,
}

/// Where samples are passed over to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SeekTarget {
    /// The next sample, whichever it is.
    Next,
    /// The first that is not before this time.
    Time(Time),
    /// The first that is not before this time, or before that one: the clock was set back.
    Leap(Time, Time),
    /// The sample of this number.
    Number(u64),
    /// Where a finding begins.
    Beginning,
    /// The last sample.
    End,
}

impl SeekTarget {
    /// Whether this sample is where to stop.
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

    /// What the source has to do for it, from where it is.
    pub fn control(self) -> Control {
        match self {
            Self::Next => Control::Step,
            Self::Time(time) | Self::Leap(time, _) => Control::SeekTo(time),
            Self::Number(_) | Self::Beginning | Self::End => Control::Run,
        }
    }
}

impl Playback {
    /// Goes on, at this interval.
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

    /// The clock that plays the timeline; it begins `now`, where the sample of this time is shown.
    pub(in crate::watch) fn play_from(&mut self, shown: Time, now: Duration) -> &mut PlaybackClock {
        let pace = PlaybackPace::Speed(self.speed);
        self.clock.get_or_insert_with(|| {
            let mut clock = PlaybackClock::new(pace);
            clock.delivered(shown, now);
            clock
        })
    }

    /// Whether samples are passed over on the way to what was asked for.
    pub fn is_seeking(&self) -> bool {
        self.rewinds > 0 || !matches!(self.seek_target, None | Some(SeekTarget::Next))
    }

    /// A sample that is older than this, and still the newest, is an alarm.
    pub fn patience(&self) -> Duration {
        LEAST_SILENCE.max(self.awaited.max(self.interval).saturating_mul(3))
    }

    /// A sample's age is told from this many whole seconds on: by then another one should have come.
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
        // As short as it is exact.
        format!("{}x", (speed * 100.0).round() / 100.0)
    }
}
