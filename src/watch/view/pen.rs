//! Writing a line of the screen from left to right.
//!
//! A pen cannot leave its line: what does not fit is cut by terminal columns, and cells that lie
//! outside the screen are not written. Text that a process chose goes through [`clean`] first.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::report::escape::{escape, fit};

/// Writes on one line.
pub struct Pen<'a> {
    buffer: &'a mut Buffer,
    x: u16,
    y: u16,
    end: u16,
}

impl<'a> Pen<'a> {
    /// A pen at the left end of line `line` of `area`.
    pub fn new(buffer: &'a mut Buffer, area: Rect, line: u16) -> Self {
        let area = area.intersection(buffer.area);
        Self {
            buffer,
            x: area.x,
            y: area.y.saturating_add(line),
            end: if line < area.height {
                area.right()
            } else {
                area.x
            },
        }
    }

    /// Columns left on the line.
    pub fn room(&self) -> u16 {
        self.end.saturating_sub(self.x)
    }

    /// Leaves `columns` blank.
    pub fn skip(&mut self, columns: u16) -> &mut Self {
        self.x = self.x.saturating_add(columns).min(self.end);
        self
    }

    /// Writes `text`, cut with `…` at the end of the line.
    pub fn text(&mut self, text: &str, style: Style) -> &mut Self {
        let room = self.room();
        if text.len() <= usize::from(room) && is_plain(text) {
            for at in 0..text.len() {
                self.buffer[(self.x, self.y)]
                    .set_symbol(&text[at..=at])
                    .set_style(style);
                self.x += 1;
            }
        } else if room > 0 {
            let text = fit(text, usize::from(room));
            let end = self
                .buffer
                .set_stringn(self.x, self.y, text, usize::from(room), style);
            self.x = end.0;
        }
        self
    }

    /// Writes `text` at the left of the next `width` columns.
    pub fn left(&mut self, text: &str, width: u16, style: Style) -> &mut Self {
        let after = self.x.saturating_add(width).min(self.end);
        self.within(after, |pen| pen.text(text, style));
        self.x = after;
        self
    }

    /// Writes `text` at the right of the next `width` columns.
    pub fn right(&mut self, text: &str, width: u16, style: Style) -> &mut Self {
        let blank = width.saturating_sub(columns(text));
        self.skip(blank).left(text, width - blank, style)
    }

    /// Writes `text` at the end of the line, if it has room beside what is there.
    pub fn at_end(&mut self, text: &str, style: Style) -> &mut Self {
        let width = columns(text);
        if width < self.room() {
            self.x = self.end - width;
            self.text(text, style);
        }
        self
    }

    /// Writes `symbol` so many times.
    pub fn fill(&mut self, symbol: &str, times: u16, style: Style) -> &mut Self {
        for _ in 0..times.min(self.room()) {
            self.buffer[(self.x, self.y)]
                .set_symbol(symbol)
                .set_style(style);
            self.x += 1;
        }
        self
    }

    fn within(&mut self, end: u16, write: impl FnOnce(&mut Self) -> &mut Self) {
        let line_end = std::mem::replace(&mut self.end, end);
        write(self);
        self.end = line_end;
    }
}

/// Terminal columns that `text` takes.
pub fn columns(text: &str) -> u16 {
    let columns = if is_plain(text) {
        text.len()
    } else {
        text.width()
    };
    u16::try_from(columns).unwrap_or(u16::MAX)
}

/// Whether every byte is a character of one column, as of nearly all text. Asking that costs a small part
/// of dividing text into what stands in one cell.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Text that a process chose, made harmless; no more of it than `width` columns could show.
pub fn clean(text: &str, width: u16) -> Cow<'_, str> {
    escape(head(text, usize::from(width) + 1))
}

/// The first `count` characters. An escape is never shorter than what it stands for, so these are
/// enough for as many columns, but for marks that take none.
pub fn head(text: &str, count: usize) -> &str {
    text.char_indices()
        .nth(count)
        .map_or(text, |(at, _)| &text[..at])
}

/// What is left of escaped text that is scrolled `count` columns to the left; a character that is cut in
/// half is a blank.
pub fn scrolled(text: &str, count: u16) -> Cow<'_, str> {
    let mut gone = 0;
    for (at, c) in text.char_indices() {
        let width = c.width().unwrap_or(0);
        if gone >= usize::from(count) && width > 0 {
            let rest = &text[at..];
            return match gone - usize::from(count) {
                0 => Cow::Borrowed(rest),
                half => Cow::Owned(format!("{}{rest}", " ".repeat(half))),
            };
        }
        gone += width;
    }
    Cow::Borrowed("")
}

/// Breaks `text` into at most `lines` lines of `width` columns, at spaces where there are any; what
/// is left over is cut with `…`.
pub fn wrap(text: &str, width: u16, lines: usize) -> Vec<Cow<'_, str>> {
    let width = usize::from(width);
    let mut out = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() && out.len() < lines {
        if out.len() + 1 == lines || rest.width() <= width {
            out.push(fit(rest, width));
            break;
        }
        let cut = break_at(rest, width);
        if cut == 0 {
            // Not even one character has room.
            break;
        }
        out.push(Cow::Borrowed(rest[..cut].trim_end()));
        rest = rest[cut..].trim_start();
    }
    out
}

/// The byte at which a line of `width` columns ends: after its last space, or where it is full.
fn break_at(text: &str, width: usize) -> usize {
    let mut used = 0;
    let mut space = None;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if c == ' ' {
            space = Some(at + 1);
        }
        if used > width {
            return space.unwrap_or(at);
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pen_stays_on_its_line_and_wide_characters_in_their_column() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        Pen::new(&mut buffer, Rect::new(2, 0, 6, 1), 0)
            .left("日本語", 4, Style::new())
            .right("1234", 3, Style::new());
        Pen::new(&mut buffer, Rect::new(2, 0, 6, 1), 1).text("below", Style::new());
        Pen::new(&mut buffer, Rect::new(50, 50, 6, 1), 0).text("beyond", Style::new());
        let mut expected = Buffer::empty(Rect::new(0, 0, 10, 2));
        expected.set_string(2, 0, "日…", Style::new());
        expected.set_string(6, 0, "1…", Style::new());
        assert_eq!(buffer, expected);
    }

    #[test]
    fn text_is_wrapped_at_spaces_and_the_rest_is_cut() {
        assert_eq!(wrap("one two three", 8, 5), ["one two", "three"]);
        assert_eq!(wrap("one two three", 8, 1), ["one two…"]);
        assert_eq!(wrap("abcdefghij", 4, 3), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("日本語", 1, 9), [""; 0]);
        assert_eq!(wrap("  ", 8, 2), [""; 0]);
    }

    #[test]
    fn text_is_scrolled_by_columns() {
        for (count, rest) in [
            (0, "a日e\u{301}b"),
            (1, "日e\u{301}b"),
            (2, " e\u{301}b"),
            (4, "b"),
            (9, ""),
        ] {
            assert_eq!(scrolled("a日e\u{301}b", count), rest, "{count}");
        }
    }

    #[test]
    fn hostile_text_is_escaped_and_bounded() {
        assert_eq!(clean("a\x1b[2Jb", 80), "a\\e[2Jb");
        assert_eq!(clean(&"x".repeat(1 << 20), 10).len(), 11);
    }
}
