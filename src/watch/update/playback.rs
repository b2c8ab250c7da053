//! Pausing, stepping back and forward, and changing the sampling interval or the playback speed.
//!
//! Samples are judged and added to the timeline when they arrive, even while the screen shows an earlier sample. If
//! the timeline does not reach back far enough, a recording is read again at full speed up to the target.

use std::sync::Arc;
use std::time::Duration;

use crate::model::time::{self, TypedTime};
use crate::model::{Snapshot, Time};
use crate::units::Span;
use crate::watch::Control;
use crate::watch::keys::KeyAction;
use crate::watch::state::playback::{SeekTarget, speed_text};
use crate::watch::state::timeline::FrameRef;
use crate::watch::state::{App, Effect, NOTHING_SEEN};
use crate::watch::view_model::{JudgedSample, idle_times};

const LEAP: f64 = 60.0;
/// Minimum time between two frames during a seek.
const PROGRESS: Duration = Duration::from_millis(100);

pub fn receive(app: &mut App, snapshot: Snapshot) -> Option<Effect> {
    if app.playback.rewinds > 0 {
        // The source sent the sample before it rewound the recording.
        return None;
    }
    app.playback.awaited = app.playback.interval;
    let was_behind = app.is_behind();
    let engine = &app.judged.engine;
    let idle_since =
        idle_times(&snapshot, |identity, gpu| engine.history().idle_since(identity, gpu));
    let sample = Arc::new(JudgedSample {
        snapshot,
        findings: engine.findings().to_vec(),
        undecided: engine.undecided(),
        suspects: engine.shared_suspects(),
        reclaimable: engine.reclaimable(),
        idle_since,
    });
    let frame = app.timeline.push(sample, app.setup.replay.is_none());
    match app.playback.seek_target {
        Some(seek_target) if seek_target.is_reached(frame) => {
            app.playback.seek_target = None;
            show(app, frame);
            // If the user has paused, the recording pauses after the sample.
            Some(Effect::Control(Control::Playing(!app.playback.is_paused)))
        }
        Some(_) => progress(app),
        // A live screen shows how far behind it is, so redraw it.
        None if app.playback.is_paused || was_behind => app.is_live().then_some(Effect::Draw),
        None => {
            show(app, frame);
            Some(Effect::Draw)
        }
    }
}

fn progress(app: &mut App) -> Option<Effect> {
    let now = app.judged.now();
    if now < app.playback.drawn + PROGRESS {
        return None;
    }
    app.playback.drawn = now;
    Some(Effect::Draw)
}

fn show(app: &mut App, frame: FrameRef) {
    if let Some(screenful) = app.timeline.screenful(frame.number) {
        app.playback.shown = Some(frame.number);
        app.show(screenful);
    }
}

pub fn rewound(app: &mut App) -> Option<Effect> {
    app.playback.rewinds = app.playback.rewinds.saturating_sub(1);
    app.end = None;
    app.playback.percent = None;
    app.judged.forget();
    app.timeline.clear();
    if app.playback.rewinds > 0 {
        return None;
    }
    // If the user has cancelled the seek in the meantime, show the first sample.
    let seek_target = *app.playback.seek_target.get_or_insert(SeekTarget::Next);
    Some(Effect::Control(seek_target.control()))
}

pub fn ended(app: &mut App) {
    if app.playback.rewinds > 0 {
        return;
    }
    match app.playback.seek_target.take() {
        None => return,
        Some(SeekTarget::Beginning) => note(app, "no other finding begins before the end"),
        Some(_) => {}
    }
    if let Some(newest) = app.timeline.newest() {
        show(app, newest);
    }
}

pub fn failed(app: &mut App) {
    app.playback.rewinds = 0;
    ended(app);
}

pub fn tick(app: &mut App) -> Option<Effect> {
    if !app.plays_timeline() {
        return None;
    }
    let now = app.judged.now();
    let shown = app.playback.shown?;
    let mut next = app.timeline.after(shown)?;
    let time = app.shown_time().unwrap_or(next.time);
    let clock = app.playback.play_from(time, now);
    let mut is_due = |frame: FrameRef| {
        let is_due = clock.wait(frame.time, now) == Some(Duration::ZERO);
        if is_due {
            clock.delivered(frame.time, now);
        }
        is_due
    };
    if !is_due(next) {
        return None;
    }
    // If several samples are due, show only the last.
    while let Some(after) = app.timeline.after(next.number).filter(|frame| is_due(*frame)) {
        next = after;
    }
    show(app, next);
    if app.is_behind() {
        Some(Effect::Draw)
    } else {
        // At the end of the timeline, the source continues.
        steer_source(app)
    }
}

pub fn act(app: &mut App, action: KeyAction) -> Option<Effect> {
    if app.playback.is_seeking() {
        return interrupt(app);
    }
    let shown = app.playback.shown;
    match (action, shown) {
        (KeyAction::Faster, _) => faster(app, true),
        (KeyAction::Slower, _) => faster(app, false),
        (KeyAction::Pause, _) => pause(app),
        (_, None) => app.refuse(NOTHING_SEEN),
        (KeyAction::StepBack, Some(shown)) => {
            app.playback.is_paused = true;
            let before = app.timeline.before(shown);
            older(app, before, SeekTarget::Number(shown.saturating_sub(1)))
        }
        (KeyAction::StepOn, Some(shown)) => {
            app.playback.is_paused = true;
            let after = app.timeline.after(shown);
            newer(app, after, SeekTarget::Next)
        }
        (KeyAction::LeapBack, Some(shown)) => {
            let from = app.shown_time()?;
            let time = from.plus_seconds(-LEAP);
            let oldest = app.timeline.oldest()?;
            let (frame, is_certain) = app.timeline.leap_back(shown, from, time);
            let frame = frame.filter(|_| is_certain || !can_rewind_before(app, oldest));
            older(app, frame, SeekTarget::Time(time))
        }
        (KeyAction::LeapOn, Some(shown)) => {
            let from = app.shown_time()?;
            let time = from.plus_seconds(LEAP);
            let frame = app.timeline.leap_on(shown, from, time);
            newer(app, frame, SeekTarget::Leap(time, from))
        }
        (KeyAction::NextFinding, Some(shown)) => {
            app.playback.is_paused = true;
            let next = app.timeline.beginning_after(shown);
            newer(app, next, SeekTarget::Beginning)
        }
        (KeyAction::PreviousFinding, Some(shown)) => {
            app.playback.is_paused = true;
            let Some(number) = app.timeline.beginning_before(shown) else {
                note(app, "no other finding began before");
                return steer_source(app);
            };
            let frame = app.timeline.frame(number);
            older(app, frame, SeekTarget::Number(number))
        }
        (KeyAction::Now, Some(_)) => now(app),
        _ => None,
    }
}

/// Seeks to a typed time.
///
/// # Errors
///
/// Returns a message if the text is not a time or the time cannot be shown.
pub fn seek(app: &mut App, text: &str) -> Result<Option<Effect>, String> {
    let shown = app.shown_time().ok_or(NOTHING_SEEN)?;
    let newest = app.timeline.newest().map_or(shown, |frame| frame.time);
    let oldest = app.timeline.oldest();
    let typed = time::parse_typed(text, shown, app.is_live().then_some(newest))?;
    app.note = None;
    let to = match typed {
        TypedTime::End if app.is_live() => return Ok(now(app)),
        TypedTime::End if app.end.is_some() => {
            return Ok(app.timeline.newest().and_then(|frame| go_to(app, frame)));
        }
        TypedTime::End => return Ok(seek_forward(app, SeekTarget::End)),
        TypedTime::Start => match oldest {
            Some(oldest) if !can_rewind_before(app, oldest) => {
                if oldest.number > 0 {
                    note(app, &oldest_reason(app, oldest));
                }
                return Ok(go_to(app, oldest));
            }
            _ => return Ok(rewind(app, SeekTarget::Number(0))),
        },
        TypedTime::At(time) => time,
    };
    if to > newest {
        if app.is_live() {
            return Err("that is in the future; L goes to the newest sample".to_owned());
        }
        if app.end.is_some() {
            return Err(format!("the recording ends at {}", time_text(newest)));
        }
        return Ok(seek_forward(app, SeekTarget::Time(to)));
    }
    match oldest.filter(|oldest| oldest.time > to) {
        None => Ok(app.timeline.frame_at(to).and_then(|frame| go_to(app, frame))),
        Some(oldest) if can_rewind_before(app, oldest) => Ok(rewind(app, SeekTarget::Time(to))),
        Some(oldest) if oldest.number == 0 && !app.is_live() => Err(format!(
            "the recording begins at {}; type start to go there",
            time_text(oldest.time)
        )),
        Some(oldest) => Err(format!(
            "nothing before {} is kept; type start to go there",
            time_text(oldest.time)
        )),
    }
}

pub fn interrupt(app: &mut App) -> Option<Effect> {
    app.playback.seek_target = None;
    app.playback.is_paused = true;
    if app.playback.rewinds == 0
        && let Some(newest) = app.timeline.newest()
    {
        show(app, newest);
    }
    Some(Effect::Control(Control::Playing(false)))
}

/// Pauses or resumes. A live screen resumes with the newest sample, and a recording resumes where it was paused.
fn pause(app: &mut App) -> Option<Effect> {
    if app.playback.is_paused && app.is_live() {
        return now(app);
    }
    if !app.is_live() && app.is_at_end() {
        return app.refuse("the recording has ended; [ goes back");
    }
    app.playback.is_paused = !app.playback.is_paused;
    steer_source(app)
}

fn now(app: &mut App) -> Option<Effect> {
    if app.is_live() {
        app.playback.is_paused = false;
    }
    if let Some(newest) = app.timeline.newest() {
        show(app, newest);
    }
    steer_source(app)
}

/// Shows a sample from the timeline. A live screen pauses.
fn go_to(app: &mut App, frame: FrameRef) -> Option<Effect> {
    app.playback.is_paused |= app.is_live();
    show(app, frame);
    steer_source(app)
}

/// Ends a seek. A recording plays on if playback is not paused and the newest sample is shown; otherwise, it pauses.
fn steer_source(app: &mut App) -> Option<Effect> {
    app.playback.clock = None;
    if app.is_live() || app.end.is_some() {
        return Some(Effect::Draw);
    }
    app.playback.seek_target = None;
    let plays = !app.playback.is_paused && !app.is_behind();
    Some(Effect::Control(Control::Playing(plays)))
}

/// Shows a later sample from the timeline, or seeks beyond the timeline.
fn newer(app: &mut App, frame: Option<FrameRef>, seek_target: SeekTarget) -> Option<Effect> {
    if let Some(frame) = frame {
        return go_to(app, frame);
    }
    if !app.is_live() && app.end.is_none() {
        if app.playback.seek_target.is_some() {
            // Ignore the key while a step is pending.
            return Some(Effect::Draw);
        }
        return seek_forward(app, seek_target);
    }
    // A recording that is being rewound has no samples.
    let Some(newest) = app.timeline.newest() else {
        return Some(Effect::Draw);
    };
    match seek_target {
        SeekTarget::Beginning => note(app, "no other finding has begun since"),
        _ if app.is_live() => show(app, newest),
        _ => {
            note(app, "this is the end of the recording");
            show(app, newest);
        }
    }
    steer_source(app)
}

/// Shows an earlier sample from the timeline, or reads the recording again.
fn older(app: &mut App, frame: Option<FrameRef>, seek_target: SeekTarget) -> Option<Effect> {
    if let Some(frame) = frame {
        return go_to(app, frame);
    }
    let Some(oldest) = app.timeline.oldest() else {
        return Some(Effect::Draw);
    };
    if can_rewind_before(app, oldest) {
        return rewind(app, seek_target);
    }
    note(app, &oldest_reason(app, oldest));
    steer_source(app)
}

fn oldest_reason(app: &App, oldest: FrameRef) -> String {
    match &app.setup.replay {
        Some(_) if oldest.number == 0 => "this is the beginning of the recording".to_owned(),
        Some(name) => format!("nothing older is kept, and {name} cannot be read again"),
        None => "nothing older is kept".to_owned(),
    }
}

/// Returns whether reading the recording again can reach samples before `oldest`.
fn can_rewind_before(app: &App, oldest: FrameRef) -> bool {
    !app.is_live() && app.playback.can_rewind && oldest.number > 0
}

fn rewind(app: &mut App, seek_target: SeekTarget) -> Option<Effect> {
    app.playback.clock = None;
    app.playback.seek_target = Some(seek_target);
    if app.playback.rewinds > 0 {
        return Some(Effect::Draw);
    }
    app.playback.rewinds += 1;
    Some(Effect::Control(Control::Rewind))
}

fn seek_forward(app: &mut App, seek_target: SeekTarget) -> Option<Effect> {
    app.playback.clock = None;
    app.playback.seek_target = Some(seek_target);
    app.playback.drawn = app.judged.now();
    if app.playback.rewinds > 0 {
        return Some(Effect::Draw);
    }
    Some(Effect::Control(seek_target.control()))
}

pub fn note(app: &mut App, text: &str) {
    app.note = Some(text.to_owned());
}

/// Formats a time so that it can be typed, such as `2026-11-21 10:04:05`.
fn time_text(time: Time) -> String {
    let time = time.local();
    format!("{} {}", time.date(), time.clock())
}

/// Sampling intervals that the user can choose, in milliseconds.
const INTERVALS: [u64; 9] = [100, 250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
const SPEEDS: (f64, f64) = (1.0 / 8.0, 1024.0);

/// Changes the sampling interval or, for a recording, the playback speed.
fn faster(app: &mut App, is_faster: bool) -> Option<Effect> {
    let play = &mut app.playback;
    if app.setup.host.is_some() {
        return app
            .refuse("the sampling interval of a host is fixed; start gpumem with --interval");
    }
    if app.setup.replay.is_none() {
        let interval = play.interval;
        let mut intervals = INTERVALS.map(Duration::from_millis).into_iter();
        let next = match is_faster {
            true => intervals.rfind(|shorter| *shorter < interval),
            false => intervals.find(|longer| *longer > interval),
        };
        let Some(next) = next else {
            let text = format!("the interval {} is the limit", Span(interval));
            return app.refuse(&text);
        };
        // The next sample may still be due after the old interval.
        play.awaited = play.awaited.max(interval);
        play.interval = next;
        return Some(Effect::Control(Control::Interval(next)));
    }
    let (slowest, fastest) = SPEEDS;
    let next = if is_faster { play.speed * 2.0 } else { play.speed / 2.0 };
    if !(slowest..=fastest).contains(&next) {
        let text = format!("the speed {} is the limit", speed_text(play.speed));
        return app.refuse(&text);
    }
    play.speed = next;
    // Restart the clock, so that the next sample is due at the new speed.
    play.clock = None;
    Some(Effect::Control(Control::Speed(next)))
}

#[cfg(test)]
mod tests;
