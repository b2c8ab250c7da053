//! A yes to the plan that is shown: what takes one, for how long it can be taken back, and what voids it.
//!
//! Only a person who sees the plan, and all of the countdown, lets it begin.

use std::time::Duration;

use super::{OLD, begin, is_in_sight, request_plan};
use crate::units::Span;
use crate::watch::keys::KeyAction;
use crate::watch::state::dialog::{Button, Countdown};
use crate::watch::state::{App, Effect};

/// How long a yes can be taken back.
pub const UNDO: Duration = Duration::from_secs(3);
/// A second yes sends at once, but not within so much of another one: a key that is held down says yes
/// again and again.
const HELD_DOWN: Duration = Duration::from_secs(1);
/// A countdown that is late by so much was not seen to its end: gpumem was stopped, or the terminal stood
/// still.
const LATE: Duration = Duration::from_secs(3);

/// Takes a yes back where it can still be taken back; says why, if only to who looks later.
fn undo(app: &mut App, why: &str) -> Option<Effect> {
    let dialog = app.reaping.dialog.as_mut()?;
    dialog.countdown.take()?;
    dialog.button = Button::Cancel;
    dialog.note = Some(format!("undone: {why}"));
    Some(Effect::Draw)
}

/// The screen has changed: a yes that can be taken back has to be seen.
pub fn on_screen_change(app: &mut App) {
    if !is_in_sight(app) {
        undo(app, "the plan was no longer on screen; nothing was sent");
    }
}

/// gpumem is about to be stopped, and time will be missing.
pub fn on_suspend(app: &mut App) {
    undo(app, "gpumem was suspended; nothing was sent");
}

/// Time has passed.
pub(super) fn tick(app: &mut App) -> Option<Effect> {
    let now = app.judged.now();
    let is_in_sight = is_in_sight(app);
    let countdown = app.reaping.dialog.as_mut()?.countdown.as_mut()?;
    if countdown.ends.is_none() || std::mem::take(&mut countdown.has_yes) {
        countdown.quiet_since = now;
    }
    let ends = *countdown.ends.get_or_insert(now + UNDO);
    if !is_in_sight {
        undo(app, "the plan was not on screen; nothing was sent")
    } else if now >= ends + LATE {
        undo(app, "the screen was not updated meanwhile; nothing was sent")
    } else if now >= ends {
        begin(app)
    } else {
        Some(Effect::Draw)
    }
}

/// A yes. It counts where there is a plan, and it has been seen.
pub(super) fn confirm(app: &mut App) -> Option<Effect> {
    let only_plans = !app.is_live();
    let has_ended = app.end.is_some();
    let old = app.plan_age_seconds().filter(|age| *age >= OLD);
    let dialog = app.reaping.dialog.as_mut()?;
    if dialog.proposal().is_none() || !dialog.is_drawn {
        return None;
    }
    if let Some(age) = old {
        let age = Span::from_seconds(age);
        let effect = request_plan(app);
        if let Some(dialog) = &mut app.reaping.dialog {
            let note = format!("nothing was sent: that plan was {age} old; this is a new one");
            dialog.note = Some(note);
        }
        return effect;
    }
    if only_plans {
        dialog.note = Some("nothing was sent: it is a recording".to_owned());
    } else if dialog.ends() == 0 {
        let what = match dialog.options.release {
            true => "no process here can be asked to release memory",
            false => "there is nothing for gpumem to kill",
        };
        dialog.note = Some(format!("nothing was sent: {what}"));
    } else if has_ended {
        dialog.note = Some("nothing was sent: no more samples come".to_owned());
    } else {
        dialog.note = None;
        dialog.countdown =
            Some(Countdown { ends: None, has_yes: false, quiet_since: Duration::ZERO });
    }
    Some(Effect::Draw)
}

/// Takes a key while it counts.
pub(super) fn on_key(app: &mut App, action: KeyAction) -> Option<Effect> {
    let now = app.judged.now();
    let dialog = app.reaping.dialog.as_mut()?;
    let countdown = dialog.countdown.as_mut()?;
    match action {
        KeyAction::Confirm | KeyAction::Open => {
            countdown.ends?;
            let is_quiet = !countdown.has_yes && now >= countdown.quiet_since + HELD_DOWN;
            if is_quiet && dialog.is_drawn {
                return begin(app);
            }
            countdown.has_yes = true;
            None
        }
        KeyAction::Undo | KeyAction::Back => undo(app, "nothing was sent"),
        _ => None,
    }
}
