//! Text on the screen: the sign for unknown values, widths, cutting and wrapping.
//!
//! Knows no terminal and no style; `view/line_writer.rs` writes.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::model::Time;
pub use crate::model::field::{NOT_AVAILABLE, UNKNOWN};
use crate::report::escape::escape;

/// A longer text of a finding is cut, whatever a rule or a recording put into it.
pub const MESSAGE_CHARS: u16 = 1000;

/// `10:04:05 CET`.
pub fn clock(time: Time) -> String {
    let time = time.local();
    format!("{} {}", time.clock(), time.zone())
}

pub fn columns(text: &str) -> u16 {
    let columns = if is_plain(text) { text.len() } else { text.width() };
    u16::try_from(columns).unwrap_or(u16::MAX)
}

/// Whether every byte is one character of one column, as in nearly all text. This check is much cheaper than splitting
/// text into graphemes.
fn is_plain(text: &str) -> bool {
    text.bytes().all(is_plain_byte)
}

fn is_plain_byte(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Text that a process chose, escaped, and cut to what `width` columns could show.
pub fn clean(text: &str, width: u16) -> Cow<'_, str> {
    escape(head(text, usize::from(width) + 1))
}

/// The first `count` characters. An escape is never shorter than the character it stands for, so they fill as many
/// columns, except for combining marks.
pub fn head(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or(text, |(at, _)| &text[..at])
}

/// Escaped text, scrolled `count` columns to the left; half of a wide character becomes a blank.
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

/// As [`report::wrap`](crate::report::escape::wrap), with all lines of one width.
pub fn wrap(text: &str, width: u16, lines: usize) -> Vec<Cow<'_, str>> {
    let width = usize::from(width);
    crate::report::escape::wrap(text, (width, width), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (count, rest) in
            [(0, "a日e\u{301}b"), (1, "日e\u{301}b"), (2, " e\u{301}b"), (4, "b"), (9, "")]
        {
            assert_eq!(scrolled("a日e\u{301}b", count), rest, "{count}");
        }
    }

    #[test]
    fn hostile_text_is_escaped_and_bounded() {
        assert_eq!(clean("a\x1b[2Jb", 80), "a\\e[2Jb");
        assert_eq!(clean(&"x".repeat(1 << 20), 10).len(), 11);
    }
}
