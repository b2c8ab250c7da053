//! The line editor at the bottom of the screen, with readline's keys.

use crossterm::event::KeyCode;
use unicode_width::UnicodeWidthChar;

use crate::watch::view_model::RowKey;

/// Maximum number of characters in the input. Longer pastes are truncated.
pub const CHARS_MAX: usize = 1000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prompt {
    pub purpose: Purpose,
    pub text: String,
    pub cursor: usize,
    pub error: Option<String>,
    /// The initial text: the active filter in a filter prompt, and otherwise empty.
    pub before: String,
    /// The row that was selected when the prompt was opened.
    pub selected: Option<RowKey>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    Filter,
    Search,
    Seek,
}

impl Prompt {
    pub fn new(purpose: Purpose, text: String, selected: Option<RowKey>) -> Self {
        Self { purpose, cursor: text.len(), error: None, before: text.clone(), selected, text }
    }

    /// Moves the cursor or changes the text. Returns false for other keys.
    pub fn edit(&mut self, control: Option<char>, code: KeyCode) -> bool {
        match (control, code) {
            (None, KeyCode::Char(c)) => {
                if c.is_control() {
                    return false;
                }
                if self.text.chars().count() < CHARS_MAX {
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

    /// Returns the start of the character before the cursor, including its combining marks.
    fn left(&self) -> usize {
        let before = self.text[..self.cursor].char_indices().rev();
        let mut wide = before.filter(|(_, c)| !is_mark(*c)).map(|(at, _)| at);
        wide.next().unwrap_or(0)
    }

    /// Returns the end of the character after the cursor, including combining marks.
    fn right(&self) -> usize {
        let after = self.text[self.cursor..].char_indices().skip(1);
        let mut wide = after.filter(|(_, c)| !is_mark(*c)).map(|(at, _)| at);
        wide.next().map_or(self.text.len(), |length| self.cursor + length)
    }

    fn word(&self) -> usize {
        let before = self.text[..self.cursor].trim_end();
        let blank = before.char_indices().rev().find(|(_, c)| c.is_whitespace());
        blank.map_or(0, |(at, c)| at + c.len_utf8())
    }
}

/// Returns whether a character has no width, such as a combining mark.
fn is_mark(c: char) -> bool {
    c.width().unwrap_or(0) == 0
}
