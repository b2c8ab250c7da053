//! The page as it is written: labels in a column, text beside them broken at a width, and never wider.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use crate::report::escape::escape;
use crate::report::style::Style;
use crate::report::wrap::wrap;

/// Where the text beside a label begins.
const MARGIN: usize = 10;
/// Text beside a label is not shown at more length than this many lines.
const MOST_BESIDE: usize = 4;
/// However long a mark is, its text has this many columns.
const LEAST_ROOM: usize = 8;
/// An item of a list, which may be a sentence with names that a process chose, neither.
const MOST_LINES: usize = 8;

/// How a page looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageStyle {
    /// Columns.
    pub width: usize,
    /// Colour.
    pub style: Style,
    /// Charts of ASCII characters only.
    pub ascii: bool,
}

/// The page as far as it is written.
#[derive(Debug)]
pub(super) struct PageText {
    out: String,
    pub(super) look: PageStyle,
}

impl PageText {
    pub(super) fn new(look: PageStyle) -> Self {
        Self { out: String::new(), look }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    /// Columns of the text beside a label.
    pub(super) fn room(&self) -> usize {
        self.look.width.saturating_sub(MARGIN)
    }

    pub(super) fn title(&mut self, text: &str) {
        for line in wrap(&escape(text), (self.look.width, self.look.width), MOST_BESIDE) {
            self.put(&self.look.style.heading(&line));
        }
    }

    /// A section's heading, after an empty line.
    pub(super) fn section(&mut self, text: &str) {
        self.out.push('\n');
        self.put(&self.look.style.heading(text));
    }

    /// A label, and text beside it; without a label the text of the line before goes on.
    pub(super) fn entry(&mut self, label: &str, text: &str) {
        let text = escape(text);
        let mut lines = wrap(&text, (self.room(), self.room()), MOST_BESIDE).into_iter();
        self.beside(label, &lines.next().unwrap_or_default());
        for line in lines {
            self.beside("", &line);
        }
    }

    /// A line that is as wide as it may be, and escaped, beside a label.
    pub(super) fn beside(&mut self, label: &str, line: &str) {
        let padding = " ".repeat(MARGIN.saturating_sub(label.width()).max(1));
        let label = match label {
            "" => String::new(),
            label => self.look.style.heading(label),
        };
        self.put(&format!("{label}{padding}{line}"));
    }

    /// An item of a list: its mark, and text whose further lines stand below the first one's.
    pub(super) fn item(&mut self, mark: &str, text: &str) {
        self.marked(mark, mark.width(), text);
    }

    /// As [`PageText::item`], where the mark is coloured and so many columns wide.
    pub(super) fn marked(&mut self, mark: &str, columns: usize, text: &str) {
        const INDENT: usize = 2;
        let hang = INDENT + columns.min(8);
        let room = |before| self.look.width.saturating_sub(before).max(LEAST_ROOM);
        let text = escape(text);
        let lines = wrap(&text, (room(INDENT + columns), room(hang)), MOST_LINES);
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        self.put(&format!("{:INDENT$}{mark}{first}", ""));
        for line in lines {
            self.put(&format!("{:hang$}{line}", ""));
        }
    }

    /// A table that was rendered to fit.
    pub(super) fn table(&mut self, text: &str) {
        for line in text.lines() {
            self.put(line);
        }
    }

    fn put(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{}", line.trim_end());
    }
}
