//! Finds the argument that is being typed.
//!
//! A marker is appended to the last word, and clap parses the words without checking values. The argument whose value
//! ends with the marker is being typed.

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command, CommandFactory as _, ValueHint};

use crate::cli::args::Cli;

/// Marks the cursor. NUL cannot occur in a program argument.
const MARK: char = '\0';

#[derive(Debug)]
pub(super) struct Cursor {
    /// The subcommand, for example `kill` or `config check`.
    pub(super) command: String,
    pub(super) argument: Arg,
    /// The part of the word before the value, for example the earlier values of a list.
    pub(super) head: String,
    pub(super) typed: String,
    matches: ArgMatches,
}

impl Cursor {
    pub(super) fn id(&self) -> &str {
        self.argument.get_id().as_str()
    }

    /// Returns whether the shell completes the value as a file, command or host name.
    pub(super) fn is_of_files(&self) -> bool {
        self.argument.get_value_hint() != ValueHint::Unknown
    }

    pub(super) fn value(&self, id: &str) -> Option<&str> {
        self.values(id).last().copied()
    }

    pub(super) fn values(&self, id: &str) -> Vec<&str> {
        let raw = self.matches.try_get_raw(id).ok().flatten();
        raw.into_iter()
            .flatten()
            .filter_map(|value| value.to_str())
            .filter(|value| !value.ends_with(MARK))
            .collect()
    }

    pub(super) fn is_set(&self, id: &str) -> bool {
        matches!(self.matches.try_get_one::<bool>(id), Ok(Some(true)))
    }
}

/// Finds the argument whose value is the last of `words`. The first of `words` is the program. Returns `None` if the
/// last word is an option or a subcommand, or if the words are invalid.
pub(super) fn find(words: &[String]) -> Option<Cursor> {
    let (last, before) = words.split_last()?;
    let last = unquoted(last);
    let mut line: Vec<String> = before.iter().map(|word| unquoted(word)).collect();
    line.push(format!("{last}{MARK}"));
    let defined = Cli::command();
    let matches = lenient(defined.clone()).ignore_errors(true).try_get_matches_from(line).ok()?;
    let (mut command, mut matches, mut names) = (&defined, &matches, Vec::new());
    while let Some((name, inner)) = matches.subcommand() {
        command = command.find_subcommand(name)?;
        matches = inner;
        names.push(name);
    }
    // clap does not list global arguments in the definition of a subcommand.
    let arguments = command.get_arguments().chain(defined.get_arguments());
    let (argument, typed) = arguments
        .filter(|argument| takes_values(argument))
        .find_map(|argument| Some((argument, marked(matches, argument)?)))?;
    let word = match argument.get_long() {
        Some(long) => last.strip_prefix(&format!("--{long}=")).unwrap_or(&last).to_owned(),
        None => last,
    };
    Some(Cursor {
        command: names.join(" "),
        argument: argument.clone(),
        head: word.strip_suffix(&typed)?.to_owned(),
        typed,
        matches: matches.clone(),
    })
}

fn marked(matches: &ArgMatches, argument: &Arg) -> Option<String> {
    let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten()?;
    let mut values = values.filter_map(|value| value.to_str());
    values.find_map(|value| value.strip_suffix(MARK).map(str::to_owned))
}

fn takes_values(argument: &Arg) -> bool {
    argument.get_action().takes_values()
}

fn lenient(command: Command) -> Command {
    let accept_any_value = |argument: Arg| match takes_values(&argument) {
        true => argument.value_parser(ValueParser::os_string()),
        false => argument,
    };
    command.mut_args(accept_any_value).mut_subcommands(lenient)
}

/// Removes quotes and backslashes as a shell does, but expands nothing. Accepts an unclosed quote.
fn unquoted(word: &str) -> String {
    let mut plain = String::with_capacity(word.len());
    let mut quote = None;
    let mut chars = word.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => plain.extend(chars.next()),
            _ => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(words: &[&str]) -> Option<(String, String, String, String)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let cursor = find(&words)?;
        let id = cursor.id().to_owned();
        Some((cursor.command, id, cursor.head, cursor.typed))
    }

    #[test]
    fn the_argument_at_the_cursor_is_found() {
        for (words, command, id, head, typed) in [
            (&["gpumem", "kill", ""][..], "kill", "target", "", ""),
            (&["gpumem", "kill", "42", "31"], "kill", "target", "", "31"),
            (&["gpumem", "kill", "--yes", ""], "kill", "target", "", ""),
            (&["gpumem", "kill", "--", ""], "kill", "target", "", ""),
            (&["/opt/gpumem", "ps", "--gpu", ""], "ps", "gpu", "", ""),
            (&["gpumem", "ps", "--gpu=0"], "ps", "gpu", "", "0"),
            (&["gpumem", "ps", "--gpu", "0,1,GPU-"], "ps", "gpu", "0,1,", "GPU-"),
            (&["gpumem", "ps", "--gpu=0,"], "ps", "gpu", "0,", ""),
            (&["gpumem", "explain", "gpu:"], "explain", "target", "", "gpu:"),
            (&["gpumem", "explain", "--framework", "py"], "explain", "framework", "", "py"),
            (&["gpumem", "--color", "never", "rules", "l"], "rules", "name", "", "l"),
            (&["gpumem", "reap", "--kind", "idle,or"], "reap", "kind", "idle,", "or"),
            (&["gpumem", "ps", "--where", "'user:ann g"], "ps", "terms", "", "user:ann g"),
            (&["gpumem", "ps", "--where", "user:ann\\ g"], "ps", "terms", "", "user:ann g"),
            (&["gpumem", "check", "--wait-free", "8GiB:"], "check", "wait_free", "", "8GiB:"),
            (&["gpumem", "config", "check", ""], "config check", "file", "", ""),
            (&["gpumem", "ps", "--color", ""], "ps", "color", "", ""),
        ] {
            let found = at(words).unwrap_or_else(|| panic!("{words:?}"));
            let expected = (command.to_owned(), id.to_owned(), head.to_owned(), typed.to_owned());
            assert_eq!(found, expected, "{words:?}");
        }
    }

    #[test]
    fn options_and_commands_are_left_to_the_scripts() {
        for words in [
            &["gpumem", ""][..],
            &["gpumem", "ki"],
            &["gpumem", "kill", "-"],
            &["gpumem", "kill", "--al"],
            &["gpumem", "ps", ""],
            &["gpumem", "nonsense", ""],
            &["gpumem", "kill", "--nonsense", "x", ""],
            &["gpumem", "kill", "--help", ""],
            &["gpumem"],
            &[],
        ] {
            assert_eq!(at(words), None, "{words:?}");
        }
    }

    #[test]
    fn other_arguments_on_the_line_are_parsed() {
        let words = ["gpumem", "--config", "my.toml", "kill", "--all-users", "7", "8", ""];
        let cursor = find(&words.map(str::to_owned)).unwrap();
        assert_eq!(cursor.value("config"), Some("my.toml"));
        assert_eq!(cursor.values("target"), ["7", "8"]);
        assert!(cursor.is_set("all_users") && !cursor.is_set("yes"));
        assert_eq!(cursor.value("no such argument"), None);
    }
}
