//! A sheet to write on: labels in a column, text beside them broken at a width, and never wider.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::text::PageStyle;
use crate::model::Time;
use crate::report::escape::escape;

/// Where the text beside a label begins.
const MARGIN: usize = 10;
/// Text beside a label is not shown at more length than this many lines.
const MOST_BESIDE: usize = 4;
/// An item of a list, which may be a sentence with names that a process chose, neither.
const MOST_LINES: usize = 8;

/// The page as far as it is written.
#[derive(Debug)]
pub(super) struct PageText {
    out: String,
    pub(super) look: PageStyle,
}

impl PageText {
    pub(super) fn new(look: PageStyle) -> Self {
        Self {
            out: String::new(),
            look,
        }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    /// Columns of the text beside a label.
    pub(super) fn room(&self) -> usize {
        self.look.width.saturating_sub(MARGIN)
    }

    /// The page's title.
    pub(super) fn title(&mut self, text: &str) {
        for line in wrap(&escape(text), self.look.width, MOST_BESIDE) {
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
        for (at, line) in wrap(&escape(text), self.room(), MOST_BESIDE)
            .iter()
            .enumerate()
        {
            let label = if at == 0 { label } else { "" };
            self.beside(label, line);
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
        let first = self.look.width.saturating_sub(INDENT + columns);
        let others = self.look.width.saturating_sub(hang);
        let lines = wrap_with(&escape(text), first, others, MOST_LINES);
        for (at, line) in lines.iter().enumerate() {
            if at == 0 {
                self.put(&format!("{:INDENT$}{mark}{line}", ""));
            } else {
                self.put(&format!("{:hang$}{line}", ""));
            }
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

/// Breaks text into at most so many lines of at most `width` columns: between words, and within one
/// that is longer. The last line ends with a mark where there were more.
pub(super) fn wrap(text: &str, width: usize, most_lines: usize) -> Vec<String> {
    wrap_with(text, width, width, most_lines)
}

/// As [`wrap`], where the first line is of another width than the others.
pub(in crate::report) fn wrap_with(
    text: &str,
    first: usize,
    others: usize,
    most_lines: usize,
) -> Vec<String> {
    // Characters without any width could be without number.
    let most = most_lines * first.max(others).max(8) * 4;
    let mut lines = vec![String::new()];
    let mut used = 0;
    let (first, others) = (first.max(8), others.max(8));
    let mut taken = 0;
    for word in words(text, others) {
        let limit = if lines.len() == 1 { first } else { others };
        let space = usize::from(used > 0);
        let width = word.width();
        let breaks = used > 0 && used + space + width > limit;
        if breaks {
            lines.push(String::new());
            used = 0;
        } else if space > 0 {
            push(&mut lines, ' ');
            used += 1;
        }
        for c in word.chars() {
            taken += 1;
            if taken > most {
                return cut(lines, others, most_lines);
            }
            let limit = if lines.len() == 1 { first } else { others };
            let width = c.width().unwrap_or(0);
            if used + width > limit {
                lines.push(String::new());
                used = 0;
            }
            push(&mut lines, c);
            used += width;
        }
        if lines.len() > most_lines {
            return cut(lines, others, most_lines);
        }
    }
    lines
}

/// The words of a text; what stands in backquotes is to be typed, and is one word where it fits into a
/// line.
fn words(text: &str, width: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(' ');
        let plain = rest.find(' ').unwrap_or(rest.len());
        let end = match rest[..plain].find('`') {
            Some(open) => {
                let quoted = rest[open + 1..].find('`').map(|close| open + 1 + close + 1);
                let after =
                    quoted.map(|end| end + rest[end..].find(' ').unwrap_or(rest.len() - end));
                after
                    .filter(|&end| end <= 4 * width && rest[..end].width() <= width)
                    .unwrap_or(plain)
            }
            None => plain,
        };
        let (word, more) = rest.split_at(end);
        rest = more;
        (!word.is_empty()).then_some(word)
    })
}

fn push(lines: &mut [String], c: char) {
    if let Some(line) = lines.last_mut() {
        line.push(c);
    }
}

/// Leaves as many lines as are shown, the last one with a mark that there were more.
fn cut(mut lines: Vec<String>, width: usize, most_lines: usize) -> Vec<String> {
    lines.truncate(most_lines);
    if let Some(last) = lines.last_mut() {
        let fitted = crate::report::escape::fit(last, width.saturating_sub(1)).into_owned();
        *last = fitted.trim_end_matches('…').to_owned() + "…";
    }
    lines
}

/// An instant for people, to the second.
pub(super) fn instant(time: Time) -> String {
    let text = time.to_string();
    match text.split_once('T') {
        Some((date, clock)) if clock.len() >= 8 && clock.is_char_boundary(8) => {
            format!("{date} {} UTC", &clock[..8])
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words_and_long_words_within() {
        assert_eq!(wrap("one two three", 9, MOST_LINES), ["one two", "three"]);
        assert_eq!(wrap("", 9, MOST_LINES), [""]);
        assert_eq!(
            wrap("a /very/long/path/x", 10, MOST_LINES),
            ["a", "/very/long", "/path/x"]
        );
        let command = "as root, `fuser -v /dev/nvidia0` lists them";
        assert_eq!(
            wrap(command, 24, MOST_LINES),
            ["as root,", "`fuser -v /dev/nvidia0`", "lists them"]
        );
        assert_eq!(
            wrap(command, 12, MOST_LINES),
            ["as root,", "`fuser -v", "/dev/nvidia0", "` lists them"]
        );
        assert_eq!(wrap("a lone ` quote", 8, MOST_LINES), ["a lone `", "quote"]);
        for line in wrap(&"日本語 ".repeat(40), 11, MOST_LINES) {
            assert!(line.width() <= 11, "{line:?}");
        }
    }

    #[test]
    fn text_without_end_or_width_is_bounded() {
        for hostile in [
            "x".repeat(1 << 20),
            "\u{301}".repeat(1 << 20),
            "a ".repeat(1 << 20),
        ] {
            let lines = wrap(&hostile, 70, MOST_LINES);
            assert!(lines.len() <= MOST_LINES, "{}", lines.len());
            assert!(lines.iter().map(String::len).sum::<usize>() < 10_000);
            assert!(lines.iter().all(|line| line.width() <= 70));
            assert!(lines.last().unwrap().ends_with('…'));
        }
    }

    #[test]
    fn an_instant_is_shown_to_the_second() {
        let time = Time::from_unix_milliseconds(1_763_706_000_123);
        assert_eq!(instant(time), "2025-11-21 06:20:00 UTC");
    }
}
