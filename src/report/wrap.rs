//! Breaking text into lines of a width.
//!
//! Not a crate's: a command in backquotes is not broken where it fits, text without end or without any
//! width is bounded, and what is cut ends with a mark.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Breaks text into at most so many lines of at most `width` columns: between words, and within one
/// that is longer. The last line ends with a mark where there were more.
pub(super) fn wrap(text: &str, width: usize, most_lines: usize) -> Vec<String> {
    wrap_with(text, width, width, most_lines)
}

/// As [`wrap`], where the first line is of another width than the others.
pub(super) fn wrap_with(text: &str, first: usize, others: usize, most_lines: usize) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_LINES: usize = 8;

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
}
