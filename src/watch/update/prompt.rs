//! The prompt in the bottom line, for a filter, a search or a time.
//!
//! A filter applies while the user types. Its last term is ignored while the term is invalid. It is also ignored if no
//! row matches and it could be the start of a name such as `runtime`. If an earlier term is invalid, the last valid
//! filter stays active. As in htop, a search moves the selection as the user types, and F3 jumps to the next match.
//! Unlike in htop, Esc restores the previous selection.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::playback;
use crate::model::selector::{self, Selector};
use crate::watch::state::prompt::{CHARS_MAX, Prompt, Purpose};
use crate::watch::state::{App, Effect, Focus, Mode};

pub fn open(app: &mut App, purpose: Purpose) {
    let filter = app.table.choice.filter.as_ref().filter(|_| purpose == Purpose::Filter);
    let text = filter.map_or_else(String::new, Selector::to_string);
    if purpose == Purpose::Search {
        app.focus = Focus::Table;
    }
    let selected = app.table.selected_key().filter(|_| app.table.is_chosen());
    app.mode = Mode::Prompt(Prompt::new(purpose, text, selected));
}

pub fn on_key(app: &mut App, key: &KeyEvent) -> Option<Effect> {
    let Mode::Prompt(prompt) = &app.mode else {
        return None;
    };
    let mut prompt = prompt.clone();
    let control = match (key.code, key.modifiers - KeyModifiers::SHIFT) {
        (KeyCode::Char(c), KeyModifiers::CONTROL) => Some(c.to_ascii_lowercase()),
        (_, KeyModifiers::NONE) => None,
        _ => return None,
    };
    let length = prompt.text.len();
    match (control, key.code) {
        (Some('c'), _) | (None, KeyCode::Esc) => {
            app.mode = Mode::Main;
            cancel(&prompt, app);
            return Some(Effect::Draw);
        }
        (None, KeyCode::Enter) => return accept(prompt, app),
        (None, KeyCode::F(3)) if prompt.purpose == Purpose::Search => {
            // F3 with an empty prompt repeats the previous search.
            if prompt.text.is_empty() {
                prompt.text.clone_from(&app.searched);
                prompt.cursor = prompt.text.len();
            }
            let is_back = key.modifiers.contains(KeyModifiers::SHIFT);
            jump(&mut prompt, app, if is_back { -1 } else { 1 });
            app.mode = Mode::Prompt(prompt);
            return Some(Effect::Draw);
        }
        (control, code) => {
            if !prompt.edit(control, code) {
                return None;
            }
        }
    }
    if prompt.text.len() != length {
        apply(&mut prompt, app);
    }
    app.mode = Mode::Prompt(prompt);
    Some(Effect::Draw)
}

/// Inserts pasted text into the prompt. If no prompt is open, ignores the text, because its letters
/// must not act as keys.
pub fn on_paste(app: &mut App, text: &str) -> Option<Effect> {
    let Mode::Prompt(prompt) = &app.mode else {
        return app.refuse("pasted text does not act as keys; press / or F3 first");
    };
    let mut prompt = prompt.clone();
    // A line break must not submit the text, so control characters become blanks.
    let is_text = |c: char| if c.is_control() { ' ' } else { c };
    for c in text.trim().chars().take(CHARS_MAX).map(is_text) {
        prompt.edit(None, KeyCode::Char(c));
    }
    apply(&mut prompt, app);
    app.mode = Mode::Prompt(prompt);
    Some(Effect::Draw)
}

fn apply(prompt: &mut Prompt, app: &mut App) {
    prompt.error = None;
    match prompt.purpose {
        Purpose::Filter => {}
        Purpose::Search => return search(prompt, app),
        Purpose::Seek => return,
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

/// Selects the first match, starting at the row that was selected before the search.
fn search(prompt: &mut Prompt, app: &mut App) {
    restore_selection(prompt, app);
    if !prompt.text.trim().is_empty() {
        jump(prompt, app, 0);
    }
}

/// Selects the nearest match in the direction of `step`, starting `step` rows away from the selection. At the end of
/// the table, the search continues at the other end. If no row matches, the selection stays.
fn jump(prompt: &mut Prompt, app: &mut App, step: isize) {
    prompt.error = None;
    let selector = match Selector::parse(&prompt.text) {
        Ok(Some(selector)) => selector,
        Ok(None) => return,
        Err(error) => {
            prompt.error = Some(error.to_string());
            return;
        }
    };
    let direction = if step < 0 { -1 } else { 1 };
    let start = match app.table.selected() {
        Some(at) => at as isize + step,
        None => step.min(0),
    };
    let count = app.table.listing.lines.len() as isize;
    let me = &app.setup.me;
    let fits = |at: &usize| app.subject_at(*at).is_some_and(|subject| selector.fits(&subject, me));
    let mut lines = (0..count).map(|steps| (start + steps * direction).rem_euclid(count) as usize);
    match lines.find(fits) {
        Some(at) => app.select(at),
        None => prompt.error = Some("no row matches".to_owned()),
    }
}

fn restore_selection(prompt: &Prompt, app: &mut App) {
    if prompt.selected.is_none() {
        app.select(0);
        app.table.clear_chosen();
    } else {
        app.select_row(prompt.selected);
    }
}

fn reselect(prompt: &Prompt, app: &mut App) {
    let (Some(key), Some(screenful)) = (&prompt.selected, &app.screenful) else {
        return;
    };
    let at = app.table.listing.position(screenful, key);
    if let Some(at) = at.filter(|_| !app.table.is_chosen()) {
        app.select(at);
    }
}

fn cancel(prompt: &Prompt, app: &mut App) {
    if prompt.purpose == Purpose::Search {
        restore_selection(prompt, app);
    }
    if prompt.purpose == Purpose::Filter {
        // The text was a valid filter, so parsing cannot fail.
        let before = Selector::parse(&prompt.before).ok().flatten();
        app.choose(|choice| choice.filter = before);
        reselect(prompt, app);
    }
}

/// Accepts the text if it is valid. Otherwise, the prompt stays open and shows the error.
fn accept(mut prompt: Prompt, app: &mut App) -> Option<Effect> {
    let result = match prompt.purpose {
        Purpose::Seek if prompt.text.trim().is_empty() => Ok(None),
        Purpose::Seek => playback::seek(app, &prompt.text),
        purpose => Selector::parse(&prompt.text).map_err(|error| error.to_string()).map(|filter| {
            // A search has already moved the selection.
            if purpose == Purpose::Filter {
                app.choose(|choice| choice.filter = filter);
                reselect(&prompt, app);
            }
            None
        }),
    };
    match result {
        Ok(effect) => {
            app.mode = Mode::Main;
            if prompt.purpose == Purpose::Search {
                app.searched = prompt.text;
            }
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
