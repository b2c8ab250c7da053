//! Functions that make untrusted text safe for a terminal and fit it to a width.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

pub use crate::model::escape::escape;

/// Formats a command line. Empty arguments and arguments with a space are quoted.
pub fn command_line<S: AsRef<str>>(arguments: &[S]) -> String {
    let mut line = String::new();
    for argument in arguments {
        let argument = escape(argument.as_ref());
        if !line.is_empty() {
            line.push(' ');
        }
        if argument.is_empty() || argument.contains(' ') {
            line.push('\'');
            line.push_str(&argument);
            line.push('\'');
        } else {
            line.push_str(&argument);
        }
    }
    line
}

/// Strips the directory from a program's path. If a process has replaced its argv with a title of several words, only
/// the first word is treated as a path.
pub fn without_folder(program: &str, has_arguments: bool) -> &str {
    if !program.starts_with('/') {
        return program;
    }
    let path = match program.find(' ') {
        Some(end) if !has_arguments => &program[..end],
        _ => program,
    };
    match path.rfind('/') {
        Some(at) if at + 1 < path.len() => &program[at + 1..],
        _ => program,
    }
}

/// Returns the escaped command line of a process, or else its `comm` in brackets.
pub fn program<S: AsRef<str>>(command: Option<&[S]>, comm: Option<&str>) -> Option<String> {
    command.map(command_line).or_else(|| comm.map(|comm| format!("[{}]", escape(comm))))
}

// The functions below measure text in terminal columns and expect escaped text.

/// Truncates text to a number of columns. Truncated text ends with `…`.
pub fn fit(text: &str, columns: usize) -> Cow<'_, str> {
    if text.len() <= columns && text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let mut cut = 0;
    for (at, c) in text.char_indices() {
        let width = c.width().unwrap_or(0);
        if used + width > columns {
            let mut out = text[..cut].to_owned();
            if columns > 0 {
                out.push('…');
            }
            return Cow::Owned(out);
        }
        used += width;
        if used < columns {
            cut = at + c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// Wraps text into at most `lines_max` lines. The first line has at most `first` columns, and the other lines have at
/// most `others`.
///
/// Lines break between words. A word that is longer than a line is split. A command in backquotes is kept together if
/// it fits on a line, so that it can be copied. If text is omitted, the last line ends with `…`.
pub fn wrap(text: &str, (first, others): (usize, usize), lines_max: usize) -> Vec<Cow<'_, str>> {
    // Zero-width characters would otherwise make a line arbitrarily long in bytes.
    let chars_max = lines_max * first.max(others) * 4;
    let end = text.char_indices().nth(chars_max).map(|(at, _)| at);
    let mut rest = text[..end.unwrap_or(text.len())].trim_matches(' ');
    let mut lines: Vec<Cow<'_, str>> = Vec::new();
    while !rest.is_empty() && lines.len() < lines_max {
        let width = if lines.is_empty() { first } else { others };
        if lines.len() + 1 == lines_max {
            lines.push(fit(rest, width));
            break;
        }
        let end = line_end(rest, width, others);
        if end == 0 {
            break;
        }
        lines.push(Cow::Borrowed(rest[..end].trim_end_matches(' ')));
        rest = rest[end..].trim_start_matches(' ');
    }
    if let Some(last) = lines.last_mut().filter(|last| end.is_some() && !last.ends_with('…')) {
        *last = Cow::Owned(fit(&format!("{last}…"), others).into_owned());
    }
    lines
}

/// Returns the byte offset where a line of `width` columns ends: after the last word that fits, or inside the first
/// word if it does not fit. `full` is the width of the following lines.
fn line_end(text: &str, width: usize, full: usize) -> usize {
    let (mut used, mut end) = (0, 0);
    while let Some(length) = word(&text[end..], full) {
        used += text[end..end + length].width();
        if used > width {
            break;
        }
        end += length;
    }
    if end > 0 {
        return end;
    }
    let mut used = 0;
    let is_over = |&(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used > width
    };
    let over = text.char_indices().find(is_over);
    over.map_or(text.len(), |(at, _)| at)
}

/// Returns the length in bytes of the first word with its leading spaces, or `None` at the end. A command in
/// backquotes is one word if it fits in `width` columns.
fn word(text: &str, width: usize) -> Option<usize> {
    let word = text.trim_start_matches(' ');
    let plain = word.find(' ').unwrap_or(word.len());
    let quoted = || {
        let open = word[..plain].find('`')? + 1;
        let close = open + word[open..].find('`')? + 1;
        let end = close + word[close..].find(' ').unwrap_or(word.len() - close);
        (end <= 4 * width && word[..end].width() <= width).then_some(end)
    };
    let end = quoted().unwrap_or(plain);
    (end > 0).then_some(text.len() - word.len() + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_shows_where_arguments_end() {
        assert_eq!(
            command_line(&["python", "my file.py", "", "--x=\n"]),
            "python 'my file.py' '' --x=\\n"
        );
        assert_eq!(command_line::<&str>(&[]), "");
    }

    fn wrapped(text: &str, width: usize) -> Vec<Cow<'_, str>> {
        wrap(text, (width, width), 8)
    }

    #[test]
    fn a_command_in_backquotes_is_not_split_if_it_fits() {
        let command = "as root, `fuser -v /dev/nvidia0` lists them";
        assert_eq!(wrapped(command, 24), ["as root,", "`fuser -v /dev/nvidia0`", "lists them"]);
        assert_eq!(wrapped(command, 12), ["as root,", "`fuser -v", "/dev/nvidia0", "` lists them"]);
        assert_eq!(wrapped("a lone ` quote", 8), ["a lone `", "quote"]);
    }

    #[test]
    fn text_without_end_or_width_is_bounded() {
        for hostile in ["x".repeat(1 << 20), "\u{301}".repeat(1 << 20), "a ".repeat(1 << 20)] {
            let lines = wrapped(&hostile, 70);
            assert!(lines.len() <= 8, "{}", lines.len());
            assert!(lines.iter().map(|line| line.len()).sum::<usize>() < 10_000);
            assert!(lines.iter().all(|line| line.width() <= 70));
            assert!(lines.last().unwrap().ends_with('…'));
        }
    }
}
