//! `gpumem complete -- WORDS…`: what could follow on a command line, asked by the completion scripts.
//!
//! It is not in the help: the scripts in `completions/` ask it when Tab is pressed, with the words up to the
//! cursor. Options, commands and files are in the scripts themselves; here are the values that only gpumem
//! knows: processes, GPUs, users, notebooks, rules. `cursor` finds which argument is being typed, `candidates`
//! what there is to type for it.
//!
//! It prints a line for each candidate: the value, a tab, what it is. Exit code 0 is "these, and no others";
//! 1 is "ask the script". It never writes to standard error, and never takes longer than [`PATIENCE`]: what
//! is not known by then is not offered. It escapes whatever a process chose, and quotes nothing: each shell
//! does that for itself.

mod candidates;
mod cursor;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use self::candidates::OfferedValue;
use self::cursor::Cursor;
use super::args::{Color, Global, Recorded, Shell};
use super::exit::Exit;
use super::mind_rights;
use super::output::print;
use crate::deadline::Task;
use crate::model::json::is_hostile;
use crate::report::escape::{escape, fit};
use crate::units::Span;

/// How long to wait for a machine, because a person is waiting for the completion. A requested
/// recording is always read to its end.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_FOR_RECORDING: Duration = Duration::from_secs(15);
/// A healthy GPU answers in milliseconds.
const NVML_TIMEOUT: Duration = Duration::from_millis(500);
/// The most columns of a description.
const DESCRIPTION_MAX: usize = 100;
/// The longest value, in bytes: longer ones are not meant for people.
const VALUE_MAX: usize = 512;

/// A shell's completion script: a generated file, which `tests/it/generate.rs` renders.
pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../completions/gpumem.bash"),
        Shell::Zsh => include_str!("../../completions/_gpumem"),
        Shell::Fish => include_str!("../../completions/gpumem.fish"),
    }
}

/// The words to complete, if a completion script started gpumem.
pub(super) fn requested(
    mut arguments: impl Iterator<Item = OsString>,
) -> Option<impl Iterator<Item = OsString>> {
    let is_asked = arguments.nth(1)? == "complete" && arguments.next()? == "--";
    is_asked.then_some(arguments)
}

/// The options on the line that select the source of snapshots and the rules.
#[derive(Clone, Debug)]
struct Sources {
    global: Global,
    recorded: Recorded,
    /// Whether a library was named: it is not loaded before Enter is pressed.
    names_library: bool,
}

impl Sources {
    fn of(cursor: &Cursor) -> Self {
        let path = |id: &str| cursor.value(id).map(PathBuf::from);
        Self {
            global: Global {
                nvml_library: None,
                nvml_timeout: Span(NVML_TIMEOUT),
                config: path("config"),
                color: Color::Never,
                utc: false,
                store_dir: path("store_dir"),
            },
            recorded: Recorded {
                // Standard input is the shell's.
                replay: path("replay").filter(|path| path.as_os_str() != "-"),
                demo: cursor.is_set("demo"),
            },
            names_library: cursor.value("nvml_library").is_some(),
        }
    }
}

/// Prints the candidates for the last of these words.
pub(super) fn run(words: impl Iterator<Item = OsString>) -> Exit {
    if mind_rights(None).is_err() {
        return Exit::Findings;
    }
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let Some(cursor) = cursor::find(&words) else {
        return Exit::Findings;
    };
    if cursor.is_of_files() {
        return Exit::Findings;
    }
    // A GPU, a file system or a recording that does not answer keeps the thread, and not the prompt.
    let is_recorded = cursor.is_set("demo") || cursor.value("replay").is_some();
    let patience = match is_recorded {
        true => PATIENCE_FOR_RECORDING,
        false => PATIENCE,
    };
    let look = Task::start("complete", move || candidates::of(&cursor));
    let found = look.ok().and_then(|task| task.wait(patience).ok());
    let lines: String = found.unwrap_or_default().iter().filter_map(line).collect();
    // A shell that has gone away does not want them any more.
    let _ = print(&lines);
    Exit::Clean
}

/// The line for a candidate; `None` if its value cannot be typed literally, or would be taken for an
/// option.
fn line(candidate: &OfferedValue) -> Option<String> {
    let OfferedValue { value, description } = candidate;
    let is_typed = !value.is_empty()
        && value.len() <= VALUE_MAX
        && !value.starts_with('-')
        && !value.chars().any(is_hostile);
    let description = escape(description);
    let description = fit(&description, DESCRIPTION_MAX);
    is_typed.then(|| format!("{value}\t{description}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(value: &str, description: &str) -> OfferedValue {
        OfferedValue::new(value, description)
    }

    #[test]
    fn a_candidate_is_one_line_whatever_a_process_is_called() {
        let hostile = "$(touch x)\n9999\tb;'\"`\u{1b}[31m\u{202e}";
        let line = line(&candidate("42", hostile)).unwrap();
        assert_eq!(line, "42\t$(touch x)\\n9999\\tb;'\"`\\e[31m\\u{202e}\n");
        for value in ["", "-rf", "a\nb", "a\tb", "\u{1b}[31m", "\u{202e}x"] {
            assert_eq!(super::line(&candidate(value, "")), None, "{value:?}");
        }
        let long = "x".repeat(1000);
        assert!(super::line(&candidate("42", &long)).unwrap().len() < 120);
        assert_eq!(super::line(&candidate(&long, "")), None);
    }

    #[test]
    fn only_a_script_asks() {
        let asked = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            requested(words.into_iter()).map(Iterator::count)
        };
        assert_eq!(asked(&["gpumem", "complete", "--", "gpumem", ""]), Some(2));
        assert_eq!(asked(&["gpumem", "complete"]), None);
        assert_eq!(asked(&["gpumem", "complete", "bash"]), None);
        assert_eq!(asked(&["gpumem", "completions", "--", ""]), None);
        assert_eq!(asked(&["gpumem"]), None);
        assert_eq!(asked(&[]), None);
    }
}
