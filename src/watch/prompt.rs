//! What is typed at the bottom of the screen: a filter, or a time to go to.
//!
//! A line editor with the keys of readline. A filter holds while it is typed, without its last term where
//! that makes no sense yet, or is the beginning of a term's name and fits no row. Where what is before
//! it makes none either, the last filter that did stays in force.
//! Pure; how it looks is in `view/prompt.rs`.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unicode_width::UnicodeWidthChar;

use super::app::{App, Effect, Mode};
use super::picture::RowKey;
use super::play;
use crate::model::selector::{self, Selector};

/// Characters that can be typed; a paste of more is cut.
const MOST_CHARS: usize = 1000;
/// Former lines that can be called back.
const MOST_FORMER: usize = 50;

/// A line that is being typed, and what for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prompt {
    /// What for.
    pub purpose: Purpose,
    /// What was typed.
    pub text: String,
    /// The byte before which the next character goes.
    pub cursor: usize,
    /// Why it makes no sense as it is.
    pub error: Option<String>,
    /// The filter that was in force before, as text.
    before: String,
    /// The row that was selected before.
    selected: Option<RowKey>,
    /// Which of the former lines is shown, counted from the newest; 0 is what was typed itself.
    recalled: usize,
    /// What was typed itself, while a former line is shown.
    own: String,
}

/// What is typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A filter, which holds while it is typed.
    Filter,
    /// A time to go to.
    Seek,
}

/// The lines that were typed before, by purpose, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Former {
    filters: Vec<String>,
    times: Vec<String>,
}

impl Former {
    fn of(&self, purpose: Purpose) -> &[String] {
        match purpose {
            Purpose::Filter => &self.filters,
            Purpose::Seek => &self.times,
        }
    }

    fn add(&mut self, purpose: Purpose, text: &str) {
        let lines = match purpose {
            Purpose::Filter => &mut self.filters,
            Purpose::Seek => &mut self.times,
        };
        if text.trim().is_empty() {
            return;
        }
        lines.retain(|line| line != text);
        lines.push(text.to_owned());
        if lines.len() > MOST_FORMER {
            lines.remove(0);
        }
    }
}

/// Has a filter typed, or the one in force changed.
pub fn open_filter(app: &mut App) {
    let before = app
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
    app.mode = Mode::Prompt(Prompt {
        purpose,
        cursor: text.len(),
        error: None,
        before: text.clone(),
        selected: app.subject().map(|subject| subject.row.key),
        recalled: 0,
        own: String::new(),
        text,
    });
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
            prompt.cancel(app);
            return Some(Effect::Draw);
        }
        (None, KeyCode::Enter) => return prompt.accept(app),
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
        prompt.apply(app);
    }
    app.mode = Mode::Prompt(prompt);
    Some(Effect::Draw)
}

impl Prompt {
    /// Moves the cursor or changes the text; whether the key is one that does.
    fn edit(&mut self, control: Option<char>, code: KeyCode) -> bool {
        match (control, code) {
            (None, KeyCode::Char(c)) => {
                if c.is_control() {
                    return false;
                }
                if self.text.chars().count() < MOST_CHARS {
                    self.text.insert(self.cursor, c);
                    self.cursor += c.len_utf8();
                }
            }
            (None, KeyCode::Backspace) | (Some('h'), _) => self.remove(self.left()..self.cursor),
            (None, KeyCode::Delete) | (Some('d'), _) => self.remove(self.cursor..self.right()),
            (Some('u'), _) => self.remove(0..self.cursor),
            (Some('k'), _) => self.remove(self.cursor..self.text.len()),
            (Some('w'), _) => self.remove(self.word()..self.cursor),
            (None, KeyCode::Left) | (Some('b'), _) => self.cursor = self.left(),
            (None, KeyCode::Right) | (Some('f'), _) => self.cursor = self.right(),
            (None, KeyCode::Home) | (Some('a'), _) => self.cursor = 0,
            (None, KeyCode::End) | (Some('e'), _) => self.cursor = self.text.len(),
            _ => return false,
        }
        true
    }

    fn remove(&mut self, range: std::ops::Range<usize>) {
        self.cursor = range.start;
        self.text.replace_range(range, "");
    }

    /// Where the character before the cursor begins; marks that stand on it belong to it.
    fn left(&self) -> usize {
        let before = self.text[..self.cursor].char_indices().rev();
        let mut wide = before.filter(|(_, c)| !is_mark(*c)).map(|(at, _)| at);
        wide.next().unwrap_or(0)
    }

    /// Where the character after the cursor ends, with the marks that stand on it.
    fn right(&self) -> usize {
        let after = self.text[self.cursor..].char_indices().skip(1);
        let mut wide = after.filter(|(_, c)| !is_mark(*c)).map(|(at, _)| at);
        wide.next()
            .map_or(self.text.len(), |length| self.cursor + length)
    }

    /// Where the word before the cursor begins.
    fn word(&self) -> usize {
        let before = self.text[..self.cursor].trim_end();
        let blank = before.char_indices().rev().find(|(_, c)| c.is_whitespace());
        blank.map_or(0, |(at, c)| at + c.len_utf8())
    }

    /// Shows a former line, `steps` further back; whether the text is another one now.
    fn recall(&mut self, former: &Former, steps: isize) -> bool {
        let lines = former.of(self.purpose);
        let to = self.recalled.saturating_add_signed(steps).min(lines.len());
        if to == self.recalled {
            return false;
        }
        if self.recalled == 0 {
            self.own = std::mem::take(&mut self.text);
        }
        self.recalled = to;
        self.text = match to {
            0 => std::mem::take(&mut self.own),
            back => lines[lines.len() - back].clone(),
        };
        self.cursor = self.text.len();
        true
    }

    /// Puts what is typed into force, as far as it makes sense.
    fn apply(&mut self, app: &mut App) {
        self.error = None;
        if self.purpose == Purpose::Seek {
            return;
        }
        let is_whole = match Selector::parse(&self.text) {
            Ok(filter) => {
                app.choose(|choice| choice.filter = filter);
                !app.listing.lines.is_empty() || !selector::is_begun(&self.text)
            }
            Err(error) => {
                self.error = Some(error.to_string());
                false
            }
        };
        if !is_whole && let Ok(filter) = Selector::parse(selector::without_last(&self.text)) {
            app.choose(|choice| choice.filter = filter);
        }
        self.reselect(app);
    }

    /// Selects again what was selected before, where it is shown again.
    fn reselect(&self, app: &mut App) {
        let (Some(key), Some(picture)) = (&self.selected, &app.picture) else {
            return;
        };
        let at = app.listing.position(picture, key);
        if let Some(at) = at.filter(|_| app.selected().is_none()) {
            app.select(at);
        }
    }

    /// Leaves everything as it was before.
    fn cancel(self, app: &mut App) {
        if self.purpose == Purpose::Filter {
            // It was made by a filter, and so it makes one.
            let before = Selector::parse(&self.before).ok().flatten();
            app.choose(|choice| choice.filter = before);
            self.reselect(app);
        }
    }

    /// Takes what was typed, if it makes sense; stays open with the reason where it makes none.
    fn accept(mut self, app: &mut App) -> Option<Effect> {
        let done = match self.purpose {
            Purpose::Filter => Selector::parse(&self.text)
                .map_err(|error| error.to_string())
                .map(|filter| {
                    app.choose(|choice| choice.filter = filter);
                    self.reselect(app);
                    None
                }),
            Purpose::Seek if self.text.trim().is_empty() => Ok(None),
            Purpose::Seek => play::seek(app, &self.text),
        };
        match done {
            Ok(effect) => {
                app.former.add(self.purpose, &self.text);
                effect.or(Some(Effect::Draw))
            }
            Err(error) => {
                self.error = Some(error);
                app.mode = Mode::Prompt(self);
                Some(Effect::Draw)
            }
        }
    }
}

/// Whether a character takes no column of its own.
fn is_mark(c: char) -> bool {
    c.width().unwrap_or(0) == 0
}

#[cfg(test)]
mod tests;
