//! Text for the screen: widths, truncation, wrapping and commands.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::model::Time;
pub use crate::model::field::{NOT_AVAILABLE, UNKNOWN};
use crate::model::row::notebook;
use crate::model::snapshot::Process;
use crate::report::escape::{command_line, escape, without_folder};
use crate::watch::view_model::Subject;

/// Maximum length of a message, such as a finding's. Recordings can contain texts of any length.
pub const MESSAGE_CHARS: u16 = 1000;

/// Formats a time of day, such as `10:04:05 CET`.
pub fn clock(time: Time) -> String {
    let time = time.local();
    format!("{} {}", time.clock(), time.zone())
}

pub fn columns(text: &str) -> u16 {
    let columns = if is_plain(text) { text.len() } else { text.width() };
    u16::try_from(columns).unwrap_or(u16::MAX)
}

/// Returns whether every byte is a character of width 1. Almost every text is plain, and this check is much cheaper
/// than looking up the width of each character.
fn is_plain(text: &str) -> bool {
    text.bytes().all(is_plain_byte)
}

fn is_plain_byte(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Cuts untrusted text to `width` + 1 characters and escapes it. The extra character lets the caller mark the text as
/// truncated.
pub fn clean(text: &str, width: u16) -> Cow<'_, str> {
    escape(head(text, usize::from(width) + 1))
}

/// Returns the first `count` characters. When escaped, they fill at least `count` columns, unless they include
/// combining marks.
pub fn head(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or(text, |(at, _)| &text[..at])
}

/// Drops the first `count` columns of escaped text. Half of a wide character becomes a blank.
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

pub fn wrap(text: &str, width: u16, lines: usize) -> Vec<Cow<'_, str>> {
    let width = usize::from(width);
    crate::report::escape::wrap(text, (width, width), lines)
}

/// Minimum number of columns for a command after the evidence about an unlisted process.
const COMMAND_BESIDE: u16 = 16;

/// Formats the COMMAND column: role and command. For an unidentified process, formats the last known command, or the
/// reason.
pub fn row_command(subject: &Subject<'_>, width: u16) -> String {
    match subject.process {
        Ok(process) => format!("{}{}", row_role(subject, width), brief_command(process, width)),
        Err(reason) => match subject.ended {
            Some(ended) => format!("ended: {}", brief_command(&ended.as_named(), width)),
            None => format!("unresolved: {}", clean(reason, width)),
        },
    }
}

/// Formats a role that no other column shows: unlisted, parked, or part of the Multi-Process Service. For an unlisted
/// or parked process, the evidence replaces the role if there is room.
fn row_role(subject: &Subject<'_>, width: u16) -> String {
    if let Some(holding) = subject.holding() {
        let evidence = format!("[{}] ", clean(&holding, width));
        return match subject.process {
            _ if columns(&evidence) + COMMAND_BESIDE <= width => evidence,
            Ok(process) if process.parked().is_some() => "[parked] ".to_owned(),
            _ => "[unlisted] ".to_owned(),
        };
    }
    let role = subject.mps_role();
    role.map_or_else(String::new, |role| format!("[{role}] "))
}

pub fn whole_command(process: &Process, width: u16) -> String {
    written_command(process, width, |program| program)
}

/// Formats a command without the program's directory, which leaves more room for the arguments.
pub fn brief_command(process: &Process, width: u16) -> String {
    let has_arguments = process.command.as_ref().is_some_and(|command| command.len() > 1);
    written_command(process, width, |program| without_folder(program, has_arguments))
}

fn written_command(process: &Process, width: u16, program: impl Fn(&str) -> &str) -> String {
    if let Some(path) = notebook(process) {
        return clean(path, width).into_owned();
    }
    // Keep one column more than fits, so that the caller marks the text as truncated.
    let enough = usize::from(width) + 1;
    let mut length = 0;
    let mut words: Vec<&str> = Vec::new();
    for argument in process.command.iter().flat_map(|command| command.iter()) {
        if length > enough {
            break;
        }
        let argument = if words.is_empty() { program(argument) } else { argument };
        let word = head(argument, enough + 1 - length);
        length += word.chars().count() + 1;
        words.push(word);
    }
    if words.is_empty() {
        // Kernel threads and zombies have no command line. Brackets mark a name, as in `ps`.
        return process
            .comm
            .as_deref()
            .map_or_else(|| UNKNOWN.to_owned(), |comm| format!("[{}]", clean(comm, width)));
    }
    command_line(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_spaces_and_truncated() {
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

    fn process(command: &[&str]) -> Process {
        Process {
            command: Some(command.iter().map(|word| (*word).into()).collect()),
            ..Process::default()
        }
    }

    #[test]
    fn a_command_line_is_bounded_before_it_is_escaped() {
        let hostile = process(&[&"\x1b".repeat(4 << 20), "x"]);
        assert_eq!(whole_command(&hostile, 10), "\\e".repeat(12));
        assert_eq!(brief_command(&hostile, 10), "\\e".repeat(12));
        let zombie = Process { comm: Some("a)\n".into()), ..Process::default() };
        assert_eq!(whole_command(&zombie, 10), "[a)\\n]");
    }

    #[test]
    fn a_row_omits_only_the_folder_of_the_program() {
        for (command, expected) in [
            (&["/opt/a b/bin/python3", "/srv/x.py"][..], "python3 /srv/x.py"),
            (&["/usr/lib/Xorg vt1 -auth /run/x"], "'Xorg vt1 -auth /run/x'"),
            (&["./llama-server", "-m", "m.gguf"], "./llama-server -m m.gguf"),
            (&["ray::train /srv/a"], "'ray::train /srv/a'"),
            (&["/"], "/"),
            (&["/opt/bin/"], "/opt/bin/"),
            (&["/ x"], "'/ x'"),
            (&["", "/x"], "'' /x"),
        ] {
            assert_eq!(brief_command(&process(command), 80), expected);
        }
    }

    #[test]
    fn a_long_folder_leaves_room_for_the_arguments() {
        let folder = format!("/{}/python", "x".repeat(4000));
        let deep = process(&[&folder, "train.py"]);
        assert_eq!(brief_command(&deep, 20), "python train.py");
        assert!(whole_command(&deep, 20).starts_with("/xxx"));
    }
}
