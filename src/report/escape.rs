//! Makes text that a process chose harmless for a terminal.
//!
//! argv, names, paths and notebook names may hold escape sequences, newlines, and characters that
//! reorder or hide what follows. Each is shown as `\n`, `\e`, `\u{…}`; nothing is dropped, so that
//! two different names never look the same.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::model::json::is_hostile;

pub use super::wrap::fit;

/// Escapes what a terminal would act on: control characters (C0, C1, DEL) and the invisible ones of
/// [`is_hostile`].
pub fn escape(text: &str) -> Cow<'_, str> {
    // Nearly all text is plain, and a look at bytes says so soonest.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain || !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{1b}' => out.push_str("\\e"),
            c if is_hostile(c) => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A command line as a person would read it: arguments joined by spaces, those that hold a space or
/// nothing in quotes, all of it escaped.
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

/// A program without its folder. What stands alone may be a title that the process gave itself, of
/// several words: only the first is a path.
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

/// What runs: its command line, or else the kernel's short name of it in brackets; escaped.
pub fn program<S: AsRef<str>>(command: Option<&[S]>, comm: Option<&str>) -> Option<String> {
    command.map(command_line).or_else(|| comm.map(|comm| format!("[{}]", escape(comm))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_passes() {
        assert_eq!(escape("plain — ünïcode 日本"), "plain — ünïcode 日本");
        assert_eq!(
            escape("a\x1b[31mred\nb\u{202e}c\u{9b}0m\x7f"),
            "a\\e[31mred\\nb\\u{202e}c\\u{9b}0m\\u{7f}"
        );
        assert_eq!(escape("❤\u{fe0f} 👍\u{1f3fd} \u{2067}x"), "❤\\u{fe0f} 👍\\u{1f3fd} \\u{2067}x");
    }

    #[test]
    fn a_command_line_shows_where_arguments_end() {
        assert_eq!(
            command_line(&["python", "my file.py", "", "--x=\n"]),
            "python 'my file.py' '' --x=\\n"
        );
        assert_eq!(command_line::<&str>(&[]), "");
    }
}
