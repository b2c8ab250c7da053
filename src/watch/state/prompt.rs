//! What is being typed at the bottom of the screen: a line editor with the keys of readline.

use crossterm::event::KeyCode;
use unicode_width::UnicodeWidthChar;

use crate::watch::view_model::RowKey;

/// Characters that can be typed; a paste of more is cut.
pub const MOST_CHARS: usize = 1000;
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
    pub before: String,
    /// The row that was selected before.
    pub selected: Option<RowKey>,
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
    /// What the selection jumps to, while it is typed.
    Search,
    /// A time to go to.
    Seek,
}

/// The lines that were typed before, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Former(Vec<(Purpose, String)>);

impl Former {
    /// The lines of this purpose.
    fn of(&self, purpose: Purpose) -> Vec<&str> {
        let lines = self.0.iter().filter(|line| line.0 == purpose);
        lines.map(|line| line.1.as_str()).collect()
    }

    /// Remembers a line; it is the newest then.
    pub fn add(&mut self, purpose: Purpose, text: &str) {
        let line = (purpose, text.to_owned());
        if text.trim().is_empty() {
            return;
        }
        self.0.retain(|former| *former != line);
        self.0.push(line);
        if self.0.len() > MOST_FORMER {
            self.0.remove(0);
        }
    }
}

impl Prompt {
    /// Begins with this text, while this row is selected.
    pub fn new(purpose: Purpose, text: String, selected: Option<RowKey>) -> Self {
        Self {
            purpose,
            cursor: text.len(),
            error: None,
            before: text.clone(),
            selected,
            recalled: 0,
            own: String::new(),
            text,
        }
    }

    /// Moves the cursor or changes the text; whether the key is one that does.
    pub fn edit(&mut self, control: Option<char>, code: KeyCode) -> bool {
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

    /// Where the character before the cursor begins; marks that are on it belong to it.
    fn left(&self) -> usize {
        let before = self.text[..self.cursor].char_indices().rev();
        let mut wide = before.filter(|(_, c)| !is_mark(*c)).map(|(at, _)| at);
        wide.next().unwrap_or(0)
    }

    /// Where the character after the cursor ends, with the marks that are on it.
    fn right(&self) -> usize {
        let after = self.text[self.cursor..].char_indices().skip(1);
        let mut wide = after.filter(|(_, c)| !is_mark(*c)).map(|(at, _)| at);
        wide.next().map_or(self.text.len(), |length| self.cursor + length)
    }

    /// Where the word before the cursor begins.
    fn word(&self) -> usize {
        let before = self.text[..self.cursor].trim_end();
        let blank = before.char_indices().rev().find(|(_, c)| c.is_whitespace());
        blank.map_or(0, |(at, c)| at + c.len_utf8())
    }

    /// Shows a former line, `steps` further back; whether the text is another one now.
    pub fn recall(&mut self, former: &Former, steps: isize) -> bool {
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
            back => lines[lines.len() - back].to_owned(),
        };
        self.cursor = self.text.len();
        true
    }
}

/// Whether a character takes no column of its own.
fn is_mark(c: char) -> bool {
    c.width().unwrap_or(0) == 0
}
