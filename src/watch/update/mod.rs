//! Applies events to the state.
//!
//! [`update`] does not draw, read a clock or start work. Time arrives with the events, and requests
//! to the main loop are returned as [`Effect`]s.

pub mod findings;
pub mod gpus;
pub mod key;
pub mod mouse;
pub mod playback;
pub mod prompt;

use ratatui::layout::Rect;
use signal_hook::consts::{SIGCONT, SIGTSTP};

use super::state::{App, Effect, End, Event};
use super::{page, reaping};
use crate::reclaim::worker::ReclaimProgress;

pub fn update(app: &mut App, event: Event) -> Option<Effect> {
    let effect = handle(app, event);
    // The event may have changed the number of rows or the size of a panel.
    app.scroll();
    effect
}

fn handle(app: &mut App, event: Event) -> Option<Effect> {
    match event {
        Event::Key(key) => key::on_key(app, &key),
        Event::Paste(text) => prompt::on_paste(app, &text),
        Event::Mouse { now, event } => mouse::on_mouse(app, event, now),
        Event::Reclaim(ReclaimProgress::Environment { of, variables }) => {
            page::set_environment(app, of, variables)
        }
        Event::Reclaim(ReclaimProgress::Commands(steps)) => {
            app.next_commands.receive(steps);
            page::fill_in_commands(app);
            Some(Effect::Draw)
        }
        Event::Reclaim(progress) => reaping::on_progress(app, progress),
        Event::Resize(columns, rows) => {
            app.area = Rect::new(0, 0, columns, rows);
            page::lay_out(app);
            reaping::on_screen_change(app);
            Some(Effect::Repaint)
        }
        Event::Background(theme) => {
            app.theme = theme;
            Some(Effect::Draw)
        }
        Event::Snapshot { now, snapshot } => {
            app.judged.observe(now, &snapshot);
            let renewed = match app.playback.is_seeking() {
                true => None,
                false => page::renew(app, &snapshot),
            };
            let observed = reaping::on_snapshot(app, &snapshot);
            let is_first = app.screenful.is_none();
            let shown = playback::receive(app, *snapshot);
            if is_first {
                gpus::note_missing(app);
            }
            // Totals are computed from the table's rows, which have just changed.
            let renewed = renewed.or(page::renew_totals(app));
            either(either(observed, shown), renewed)
        }
        Event::SourceRewound => playback::rewound(app),
        Event::SourceRead(percent) => {
            app.playback.percent = Some(percent);
            None
        }
        Event::SourceEnded => {
            app.end = Some(End::Complete);
            playback::ended(app);
            Some(Effect::Draw)
        }
        Event::SourceFailed(error) if app.screenful.is_none() => Some(Effect::Fail(error)),
        Event::SourceFailed(error) => {
            app.end = Some(End::Failed(error));
            playback::failed(app);
            Some(Effect::Draw)
        }
        Event::SourceTrouble(trouble) => {
            app.trouble = trouble;
            Some(Effect::Draw)
        }
        Event::Tick { now } => {
            let before = app.late_seconds();
            app.judged.advance(now);
            let aged = (app.late_seconds() != before).then_some(Effect::Draw);
            let (reaped, played) = (reaping::tick(app), playback::tick(app));
            either(either(reaped, played), aged)
        }
        Event::Drawn => {
            reaping::drawn(app);
            None
        }
        Event::Signal(SIGTSTP) => {
            reaping::on_suspend(app);
            Some(Effect::Stop)
        }
        Event::Signal(SIGCONT) => Some(Effect::Resume),
        Event::Signal(signal) => Some(Effect::Die(signal)),
    }
}

/// Combines two effects of an event. Every effect includes drawing. A request to the worker takes precedence over a
/// playback control. Such a request belongs to a batch, and a batch runs only on a live machine, whose playback needs
/// no control.
fn either(first: Option<Effect>, second: Option<Effect>) -> Option<Effect> {
    match (first, second) {
        (None | Some(Effect::Draw), Some(more)) => Some(more),
        (first, None | Some(Effect::Draw)) => first,
        (Some(Effect::Control(_)), Some(request @ Effect::Reclaim(_)))
        | (Some(request @ Effect::Reclaim(_)), Some(Effect::Control(_))) => Some(request),
        (Some(first), Some(second)) => {
            debug_assert!(false, "two effects of one event: {first:?} and {second:?}");
            Some(first)
        }
    }
}

#[cfg(test)]
mod tests;
