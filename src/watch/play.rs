//! Time on the screen: standing still, going back and forth, and how fast samples come.
//!
//! Every sample is judged and put on the [`tape`](super::tape) when it comes, shown or not. What is shown is
//! the newest one, or one that a person went back to. Where the tape does not reach, a recording is begun
//! again and passed over at full speed until the goal.
//!
//! Pure: what the source has to do comes back as a [`Control`]. How a time is typed is in [`moment`],
//! how fast samples come in `pace.rs`.

use std::time::Duration;

use super::app::{App, Effect, NOTHING_SEEN};
use super::keys::Action;
use super::picture::Picture;
use super::tape::Mark;
use crate::model::{Snapshot, Time};

pub mod moment;
mod pace;

pub use super::Control;
use moment::Moment;
use pace::faster;
pub use pace::speed_text;

/// A leap, in seconds.
const LEAP: f64 = 60.0;
/// While samples are passed over, how far that is is drawn so often.
const PROGRESS: Duration = Duration::from_millis(100);
/// A gap in a recording is not waited for longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// No silence is an alarm before this.
const LEAST_SILENCE: Duration = Duration::from_secs(3);

/// Whether the screen stands still, and how fast time goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Play {
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
    goal: Option<Goal>,
    /// How often the recording was told to begin again and has not yet.
    rewinds: u32,
    /// The sample that is shown, by its number on the tape.
    shown: Option<u64>,
    /// When the next sample of the tape is due, where the tape is what plays.
    cue: Option<Duration>,
    /// The interval that the sample which is awaited may take.
    awaited: Duration,
    /// When it was last drawn how far it is.
    drawn: Duration,
}

/// Where samples are passed over to.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Goal {
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

impl Goal {
    fn is_reached(self, mark: Mark) -> bool {
        match self {
            Self::Next => true,
            Self::Time(time) => mark.time >= time,
            Self::Leap(time, from) => mark.time >= time || mark.time < from,
            Self::Number(number) => mark.number >= number,
            Self::Beginning => mark.has_beginning,
            Self::End => false,
        }
    }

    /// What the source has to do for it, from where it is.
    fn control(self) -> Control {
        match self {
            Self::Next => Control::Step,
            Self::Time(time) | Self::Leap(time, _) => Control::SeekTo(time),
            Self::Number(_) | Self::Beginning | Self::End => Control::Run,
        }
    }
}

impl Play {
    /// Goes on, at this interval.
    pub fn new(interval: Duration) -> Self {
        Self {
            is_paused: false,
            interval,
            speed: 1.0,
            can_rewind: true,
            percent: None,
            goal: None,
            rewinds: 0,
            shown: None,
            cue: None,
            awaited: interval,
            drawn: Duration::ZERO,
        }
    }

    /// Whether samples are passed over on the way to what was asked for.
    pub fn is_seeking(&self) -> bool {
        self.rewinds > 0 || !matches!(self.goal, None | Some(Goal::Next))
    }

    /// A sample that is older than this, and still the newest, is an alarm.
    pub fn patience(&self) -> Duration {
        LEAST_SILENCE.max(self.awaited.max(self.interval).saturating_mul(3))
    }

    /// A sample's age is told from this many whole seconds on: by then another one should have come.
    pub fn told_age_seconds(&self) -> u64 {
        let told = self.awaited.max(self.interval) + Duration::from_secs(1);
        told.as_secs() + u64::from(told.subsec_nanos() > 0)
    }
}

/// Seconds from the sample that is shown to the newest one; `None` where it is the newest.
pub fn behind_seconds(app: &App) -> Option<f64> {
    let newest = app.tape.newest()?;
    let shown = app.picture.as_ref()?.snapshot.time;
    is_behind(app).then(|| newest.time.seconds_since(shown).max(0.0))
}

/// Whether the end of a recording is what is shown.
pub fn is_at_end(app: &App) -> bool {
    app.end.is_some() && !is_behind(app)
}

/// Whether a newer sample than the one that is shown is there.
fn is_behind(app: &App) -> bool {
    match (app.play.shown, app.tape.newest()) {
        (Some(shown), Some(newest)) => shown < newest.number,
        _ => false,
    }
}

fn is_live(app: &App) -> bool {
    app.setup.replay.is_none()
}

/// When [`tick`] has something to do, as time since the start of the screen.
pub fn next_tick(app: &App) -> Option<Duration> {
    plays_tape(app).then(|| app.play.cue.unwrap_or_default())
}

/// Whether what plays is the tape, on the way from where a person went back to to where the source is.
fn plays_tape(app: &App) -> bool {
    let play = &app.play;
    !is_live(app) && !play.is_paused && !play.is_seeking() && is_behind(app)
}

/// Takes in a sample that the engine has judged.
pub fn take(app: &mut App, snapshot: Snapshot) -> Option<Effect> {
    if app.play.rewinds > 0 {
        // It was on its way when the recording was told to begin again.
        return None;
    }
    app.play.awaited = app.play.interval;
    let was_behind = is_behind(app);
    let history = app.engine.history();
    let mark = app.tape.push(
        &snapshot,
        app.engine.findings(),
        app.engine.undecided(),
        |identity, gpu| history.idle_since(identity, gpu),
        app.setup.replay.is_none(),
    );
    match app.play.goal {
        Some(goal) if goal.is_reached(mark) => {
            app.play.goal = None;
            show_newest(app, snapshot, mark);
            // A sample that was let through while a screen stands still does not set it going.
            Some(Effect::Control(Control::Playing(!app.play.is_paused)))
        }
        Some(_) => progress(app),
        // Of this machine it is told how far behind the screen is, and that grows.
        None if app.play.is_paused || was_behind => is_live(app).then_some(Effect::Draw),
        None => {
            show_newest(app, snapshot, mark);
            Some(Effect::Draw)
        }
    }
}

/// Has it drawn from time to time how far the passing is.
fn progress(app: &mut App) -> Option<Effect> {
    let now = app.now();
    if now < app.play.drawn + PROGRESS {
        return None;
    }
    app.play.drawn = now;
    Some(Effect::Draw)
}

fn show_newest(app: &mut App, snapshot: Snapshot, mark: Mark) {
    let history = app.engine.history();
    let picture = Picture::new(
        snapshot,
        app.engine.findings().to_vec(),
        app.engine.undecided(),
        |identity, gpu| history.idle_since(identity, gpu),
    );
    app.play.shown = Some(mark.number);
    app.show(picture);
}

/// Shows a sample of the tape.
fn show(app: &mut App, mark: Mark) {
    if let Some(picture) = app.tape.picture(mark.number) {
        app.play.shown = Some(mark.number);
        app.show(picture);
    }
}

/// Forgets what was seen: the recording begins again.
pub fn rewound(app: &mut App) -> Option<Effect> {
    app.play.rewinds = app.play.rewinds.saturating_sub(1);
    app.end = None;
    app.play.percent = None;
    app.forget();
    app.tape.clear();
    if app.play.rewinds > 0 {
        return None;
    }
    // Who gave the goal up on the way sees the beginning.
    let goal = *app.play.goal.get_or_insert(Goal::Next);
    Some(Effect::Control(goal.control()))
}

/// No more samples come.
pub fn ended(app: &mut App) {
    if app.play.rewinds > 0 {
        return;
    }
    match app.play.goal.take() {
        None => return,
        Some(Goal::Beginning) => note(app, "no other finding begins before the end"),
        Some(_) => {}
    }
    if let Some(newest) = app.tape.newest() {
        show(app, newest);
    }
}

/// Nothing can come any more.
pub fn failed(app: &mut App) {
    app.play.rewinds = 0;
    ended(app);
}

/// Plays the tape on, where that is what plays and its next sample is due.
pub fn tick(app: &mut App) -> Option<Effect> {
    if !plays_tape(app) {
        return None;
    }
    let now = app.now();
    let shown = app.play.shown?;
    let mut next = app.tape.after(shown)?;
    let Some(mut cue) = app.play.cue else {
        let time = shown_time(app).unwrap_or(next.time);
        app.play.cue = Some(now + gap(time, next.time, app.play.speed));
        return None;
    };
    if now < cue {
        return None;
    }
    // All that are due by now; only the last of them is seen.
    while let Some(after) = app.tape.after(next.number) {
        cue += gap(next.time, after.time, app.play.speed);
        if now < cue {
            break;
        }
        next = after;
    }
    app.play.cue = Some(cue);
    show(app, next);
    if is_behind(app) {
        Some(Effect::Draw)
    } else {
        // The source takes over.
        stand(app)
    }
}

/// How long to wait between two samples of a recording.
fn gap(from: Time, to: Time, speed: f64) -> Duration {
    let seconds = to.seconds_since(from).max(0.0) / speed;
    Duration::try_from_secs_f64(seconds).map_or(LONGEST_WAIT, |it| it.min(LONGEST_WAIT))
}

/// Does what a key asks for.
pub fn act(app: &mut App, action: Action) -> Option<Effect> {
    if app.play.is_seeking() {
        return interrupt(app);
    }
    let shown = app.play.shown;
    match (action, shown) {
        (Action::Faster, _) => faster(app, true),
        (Action::Slower, _) => faster(app, false),
        (Action::Pause, _) => pause(app),
        (_, None) => app.refuse(NOTHING_SEEN),
        (Action::StepBack, Some(shown)) => {
            app.play.is_paused = true;
            match app.tape.before(shown) {
                Some(mark) => go(app, mark),
                None => older(app, Goal::Number(shown.saturating_sub(1))),
            }
        }
        (Action::StepOn, Some(shown)) => {
            app.play.is_paused = true;
            match app.tape.after(shown) {
                Some(mark) => go(app, mark),
                None => newer(app, Goal::Next),
            }
        }
        (Action::LeapBack, Some(shown)) => {
            let from = shown_time(app)?;
            let time = from.plus_seconds(-LEAP);
            let oldest = app.tape.oldest()?;
            match app.tape.leap_back(shown, from, time) {
                (Some(mark), is_it) if is_it || !can_rewind_before(app, oldest) => go(app, mark),
                _ => older(app, Goal::Time(time)),
            }
        }
        (Action::LeapOn, Some(shown)) => {
            let from = shown_time(app)?;
            let time = from.plus_seconds(LEAP);
            match app.tape.leap_on(shown, from, time) {
                Some(mark) => go(app, mark),
                None => newer(app, Goal::Leap(time, from)),
            }
        }
        (Action::NextFinding, Some(shown)) => {
            app.play.is_paused = true;
            match app.tape.beginning_after(shown) {
                Some(mark) => go(app, mark),
                None => newer(app, Goal::Beginning),
            }
        }
        (Action::PreviousFinding, Some(shown)) => {
            app.play.is_paused = true;
            match app.tape.beginning_before(shown) {
                None => {
                    note(app, "no other finding began before");
                    stand(app)
                }
                Some(number) => match app.tape.mark(number) {
                    Some(mark) => go(app, mark),
                    None => older(app, Goal::Number(number)),
                },
            }
        }
        (Action::Now, Some(_)) => now(app),
        _ => None,
    }
}

/// Goes to a time that was typed.
///
/// # Errors
///
/// Where the text is no time, or nothing of that time can be shown: why, in words.
pub fn seek(app: &mut App, text: &str) -> Result<Option<Effect>, String> {
    let shown = shown_time(app).ok_or(NOTHING_SEEN)?;
    let newest = app.tape.newest().map_or(shown, |mark| mark.time);
    let oldest = app.tape.oldest();
    let moment = moment::parse(text, shown, is_live(app).then_some(newest))?;
    app.note = None;
    let to = match moment {
        Moment::End if is_live(app) => return Ok(now(app)),
        Moment::End if app.end.is_some() => {
            return Ok(app.tape.newest().and_then(|mark| go(app, mark)));
        }
        Moment::End => return Ok(set_out(app, Goal::End)),
        Moment::Start => match oldest {
            Some(oldest) if !can_rewind_before(app, oldest) => {
                if oldest.number > 0 {
                    note(app, &oldest_why(app, oldest));
                }
                return Ok(go(app, oldest));
            }
            _ => return Ok(rewind(app, Goal::Number(0))),
        },
        Moment::At(time) => time,
    };
    if to > newest {
        if is_live(app) {
            return Err("that is yet to come; L goes to the newest sample".to_owned());
        }
        if app.end.is_some() {
            return Err(format!("the recording ends at {}", said(newest)));
        }
        return Ok(set_out(app, Goal::Time(to)));
    }
    match oldest.filter(|oldest| oldest.time > to) {
        None => Ok(app.tape.at(to).and_then(|mark| go(app, mark))),
        Some(oldest) if can_rewind_before(app, oldest) => Ok(rewind(app, Goal::Time(to))),
        Some(oldest) if oldest.number == 0 && !is_live(app) => Err(format!(
            "the recording begins at {}; type start to go there",
            said(oldest.time)
        )),
        Some(oldest) => Err(format!(
            "nothing before {} is kept; type start to go there",
            said(oldest.time)
        )),
    }
}

/// Stops the passing where it is.
pub fn interrupt(app: &mut App) -> Option<Effect> {
    app.play.goal = None;
    app.play.is_paused = true;
    if app.play.rewinds == 0
        && let Some(newest) = app.tape.newest()
    {
        show(app, newest);
    }
    Some(Effect::Control(Control::Playing(false)))
}

/// Holds the screen still, or goes on: on this machine with what is now, in a recording from where it is.
fn pause(app: &mut App) -> Option<Effect> {
    if app.play.is_paused && is_live(app) {
        return now(app);
    }
    if !is_live(app) && is_at_end(app) {
        return app.refuse("the recording has ended; [ goes back");
    }
    app.play.is_paused = !app.play.is_paused;
    stand(app)
}

/// Shows the newest sample; on this machine, goes on from there.
fn now(app: &mut App) -> Option<Effect> {
    if is_live(app) {
        app.play.is_paused = false;
    }
    let newest = app.tape.newest()?;
    show(app, newest);
    stand(app)
}

/// Goes to a sample of the tape; there the screen of this machine stands still.
fn go(app: &mut App, mark: Mark) -> Option<Effect> {
    app.play.is_paused |= is_live(app);
    show(app, mark);
    stand(app)
}

/// Has the source do what fits with what is shown now.
fn stand(app: &mut App) -> Option<Effect> {
    app.play.cue = None;
    if is_live(app) || app.end.is_some() {
        return Some(Effect::Draw);
    }
    // A step that is under way is not waited for any more.
    app.play.goal = None;
    let plays = !app.play.is_paused && !is_behind(app);
    Some(Effect::Control(Control::Playing(plays)))
}

/// Goes beyond the tape's end, where there is something.
fn newer(app: &mut App, goal: Goal) -> Option<Effect> {
    if !is_live(app) && app.end.is_none() {
        if app.play.goal.is_some() {
            // One step at a time; that the screen stands still now is seen at once.
            return Some(Effect::Draw);
        }
        return set_out(app, goal);
    }
    let newest = app.tape.newest()?;
    match goal {
        Goal::Beginning => note(app, "no other finding has begun since"),
        _ if is_live(app) => show(app, newest),
        _ => {
            note(app, "this is the end of the recording");
            show(app, newest);
        }
    }
    stand(app)
}

/// Goes beyond the tape's beginning, where there is something and it can be had again.
fn older(app: &mut App, goal: Goal) -> Option<Effect> {
    let oldest = app.tape.oldest()?;
    if can_rewind_before(app, oldest) {
        return rewind(app, goal);
    }
    note(app, &oldest_why(app, oldest));
    stand(app)
}

/// Why nothing before the oldest sample on the tape can be shown.
fn oldest_why(app: &App, oldest: Mark) -> String {
    match &app.setup.replay {
        Some(_) if oldest.number == 0 => "this is the beginning of the recording".to_owned(),
        Some(name) => format!("nothing older is kept, and {name} cannot be read again"),
        None => "nothing older is kept".to_owned(),
    }
}

/// Whether something lies before this sample, the oldest on the tape, and can be read again.
fn can_rewind_before(app: &App, oldest: Mark) -> bool {
    !is_live(app) && app.play.can_rewind && oldest.number > 0
}

/// Has the recording begin again, and go on to `goal`.
fn rewind(app: &mut App, goal: Goal) -> Option<Effect> {
    app.play.cue = None;
    app.play.goal = Some(goal);
    if app.play.rewinds > 0 {
        return Some(Effect::Draw);
    }
    app.play.rewinds += 1;
    Some(Effect::Control(Control::Rewind))
}

/// Passes over samples from where the source is to `goal`.
fn set_out(app: &mut App, goal: Goal) -> Option<Effect> {
    app.play.cue = None;
    app.play.goal = Some(goal);
    app.play.drawn = app.now();
    if app.play.rewinds > 0 {
        return Some(Effect::Draw);
    }
    Some(Effect::Control(goal.control()))
}

/// Says something in the bottom line, until the next key.
pub fn note(app: &mut App, text: &str) {
    app.note = Some(text.to_owned());
}

fn shown_time(app: &App) -> Option<Time> {
    Some(app.picture.as_ref()?.snapshot.time)
}

/// `2026-11-21 10:04:05`.
fn said(time: Time) -> String {
    let text = time.to_string();
    let text = text.split('.').next().unwrap_or(&text);
    text.replacen('T', " ", 1)
}

#[cfg(test)]
mod tests;
