//! What is typed at the bottom of the screen: a filter, or a time to go to.
//!
//! The line editor is in `state/prompt.rs`. A filter holds while it is typed, without its last term where
//! that makes no sense yet, or is the beginning of a term's name and fits no row. Where what is before
//! it makes none either, the last filter that did stays in force.
//! Pure; how it looks is in `view/prompt.rs`.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::playback;
use crate::model::selector::{self, Selector};
use crate::watch::state::prompt::{Prompt, Purpose};
use crate::watch::state::{App, Effect, Mode};

/// Has a filter typed, or the one in force changed.
pub fn open_filter(app: &mut App) {
    let before = app
        .table
        .choice
        .filter
        .as_ref()
        .map_or_else(String::new, Selector::to_string);
    open(app, Purpose::Filter, before);
}

/// Has a time typed.
pub fn open_seek(app: &mut App) {
    open(app, Purpose::Seek, String::new());
}

fn open(app: &mut App, purpose: Purpose, text: String) {
    let selected = app.subject().map(|subject| subject.row.key);
    app.mode = Mode::Prompt(Prompt::new(purpose, text, selected));
}

/// Takes a key into what is typed.
pub fn on_key(app: &mut App, key: &KeyEvent) -> Option<Effect> {
    // Taken out, so that the line and what it acts on can be changed side by side.
    let Mode::Prompt(mut prompt) = std::mem::replace(&mut app.mode, Mode::Main) else {
        return None;
    };
    let control = match (key.code, key.modifiers - KeyModifiers::SHIFT) {
        (KeyCode::Char(c), KeyModifiers::CONTROL) => Some(c.to_ascii_lowercase()),
        (_, KeyModifiers::NONE) => None,
        _ => {
            app.mode = Mode::Prompt(prompt);
            return None;
        }
    };
    let was = prompt.text.len();
    let mut is_changed = false;
    match (control, key.code) {
        (Some('c'), _) | (None, KeyCode::Esc) => {
            cancel(&prompt, app);
            return Some(Effect::Draw);
        }
        (None, KeyCode::Enter) => return accept(prompt, app),
        (None, KeyCode::Up) => is_changed = prompt.recall(&app.former, 1),
        (None, KeyCode::Down) => is_changed = prompt.recall(&app.former, -1),
        (control, code) => {
            if !prompt.edit(control, code) {
                app.mode = Mode::Prompt(prompt);
                return None;
            }
        }
    }
    if is_changed || prompt.text.len() != was {
        apply(&mut prompt, app);
    }
    app.mode = Mode::Prompt(prompt);
    Some(Effect::Draw)
}

/// Puts what is typed into force, as far as it makes sense.
fn apply(prompt: &mut Prompt, app: &mut App) {
    prompt.error = None;
    if prompt.purpose == Purpose::Seek {
        return;
    }
    let is_whole = match Selector::parse(&prompt.text) {
        Ok(filter) => {
            app.choose(|choice| choice.filter = filter);
            !app.table.listing.lines.is_empty() || !selector::is_begun(&prompt.text)
        }
        Err(error) => {
            prompt.error = Some(error.to_string());
            false
        }
    };
    if !is_whole && let Ok(filter) = Selector::parse(selector::without_last(&prompt.text)) {
        app.choose(|choice| choice.filter = filter);
    }
    reselect(prompt, app);
}

/// Selects again what was selected before, where it is shown again.
fn reselect(prompt: &Prompt, app: &mut App) {
    let (Some(key), Some(screenful)) = (&prompt.selected, &app.screenful) else {
        return;
    };
    let at = app.table.listing.position(screenful, key);
    if let Some(at) = at.filter(|_| app.table.selected().is_none()) {
        app.select(at);
    }
}

/// Leaves everything as it was before.
fn cancel(prompt: &Prompt, app: &mut App) {
    if prompt.purpose == Purpose::Filter {
        // It was made by a filter, and so it makes one.
        let before = Selector::parse(&prompt.before).ok().flatten();
        app.choose(|choice| choice.filter = before);
        reselect(prompt, app);
    }
}

/// Takes what was typed, if it makes sense; stays open with the reason where it makes none.
fn accept(mut prompt: Prompt, app: &mut App) -> Option<Effect> {
    let done = match prompt.purpose {
        Purpose::Filter => Selector::parse(&prompt.text)
            .map_err(|error| error.to_string())
            .map(|filter| {
                app.choose(|choice| choice.filter = filter);
                reselect(&prompt, app);
                None
            }),
        Purpose::Seek if prompt.text.trim().is_empty() => Ok(None),
        Purpose::Seek => playback::seek(app, &prompt.text),
    };
    match done {
        Ok(effect) => {
            app.former.add(prompt.purpose, &prompt.text);
            effect.or(Some(Effect::Draw))
        }
        Err(error) => {
            prompt.error = Some(error);
            app.mode = Mode::Prompt(prompt);
            Some(Effect::Draw)
        }
    }
}

#[cfg(test)]
mod tests;
