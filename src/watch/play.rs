//! Time on the screen: standing still, going back and forth, and how fast samples come.
//!
//! Pure: what the source has to do comes back as a [`Control`].

use std::time::Duration;

use super::app::{App, Effect};
use super::keys::Action;
use super::picture::Picture;
use crate::model::{Snapshot, Time};

/// What the source is asked to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Control {
    /// Sample this machine so often.
    Interval(Duration),
    /// Sample at once and more often for as long as something is being ended, or no longer.
    Hurry(bool),
    /// Play a recording so many times as fast as it was made.
    Speed(f64),
    /// Play a recording, or stand still.
    Playing(bool),
    /// The next sample of a recording that stands still.
    Step,
    /// Pass over all samples of a recording before this time, from its beginning where that is behind.
    SeekTo(Time),
    /// Pass over samples of a recording until told otherwise.
    Run,
}

/// Whether the screen stands still, and how fast time goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Play {
    /// Whether newer samples are not shown.
    pub is_paused: bool,
    /// The time from one sample to the next; a sample older than three of them is an alarm.
    pub interval: Duration,
    /// How many times as fast as it was made a recording plays.
    pub speed: f64,
}

impl Play {
    /// Goes on, at this interval.
    pub fn new(interval: Duration) -> Self {
        Self {
            is_paused: false,
            interval,
            speed: 1.0,
        }
    }
}

/// Takes in a sample that the engine has judged.
pub fn take(app: &mut App, snapshot: Snapshot, _is_passing: bool) -> Option<Effect> {
    let history = app.engine.history();
    let picture = Picture::new(
        snapshot,
        app.engine.findings().to_vec(),
        app.engine.undecided(),
        |identity, gpu| history.idle_since(identity, gpu),
    );
    app.show(picture);
    Some(Effect::Draw)
}

/// Forgets what was seen: the recording begins again.
pub fn rewind(_app: &mut App) {}

/// Goes to a time that was typed.
///
/// # Errors
///
/// Why it makes no sense, with what would.
pub fn seek(_app: &mut App, _text: &str) -> Result<Option<Effect>, String> {
    Ok(None)
}

/// Does what a key asks for.
pub fn act(_app: &mut App, _action: Action) -> Option<Effect> {
    None
}
