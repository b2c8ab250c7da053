//! `gpumem complete -- WORDS…`: prints completion candidates for the scripts in `completions/`.
//!
//! The help does not list this command. The scripts complete options, commands and files without gpumem. For processes,
//! GPUs, users, notebooks and rules, a script runs this command with the words up to the cursor. `cursor` finds the
//! argument that is being typed, and `candidates` finds values for the argument.
//!
//! Each output line consists of a value, a tab and a description. With exit code 0, the list is complete. With exit
//! code 1, the script must find candidates itself. The command never writes to standard error, which would garble the
//! prompt. The scripts quote the values, because each shell has its own syntax.

mod candidates;
mod cursor;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use self::candidates::OfferedValue;
use self::cursor::Cursor;
use super::args::{Color, Global, Shell};
use super::check_privileges;
use super::exit::Exit;
use super::output::print;
use crate::deadline::Task;
use crate::model::json::is_hostile;
use crate::report::escape::{escape, fit};
use crate::units::Span;

/// Time limit for sampling this machine while the user waits for completions.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_FOR_RECORDING: Duration = Duration::from_secs(15);
/// Timeout of an NVML call. A healthy GPU answers in milliseconds.
const NVML_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum width of a description, in columns.
const DESCRIPTION_MAX: usize = 100;
/// Maximum length of a value in bytes. Longer values are omitted.
const VALUE_MAX: usize = 512;

/// Returns the completion script of a shell. `tests/it/generate.rs` generates the scripts.
pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../completions/gpumem.bash"),
        Shell::Zsh => include_str!("../../completions/_gpumem"),
        Shell::Fish => include_str!("../../completions/gpumem.fish"),
    }
}

pub(super) fn requested(
    mut arguments: impl Iterator<Item = OsString>,
) -> Option<impl Iterator<Item = OsString>> {
    let is_asked = arguments.nth(1)? == "complete" && arguments.next()? == "--";
    is_asked.then_some(arguments)
}

/// Returns the global options that completion uses.
fn global_options(cursor: &Cursor) -> Global {
    let path = |id: &str| cursor.value(id).map(PathBuf::from);
    Global {
        nvml_library: None,
        nvml_timeout: Span(NVML_TIMEOUT),
        config: path("config"),
        color: Color::Never,
        utc: false,
        store_dir: path("store_dir"),
    }
}

pub(super) fn run(words: impl Iterator<Item = OsString>) -> Exit {
    if check_privileges(None).is_err() {
        return Exit::Findings;
    }
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let Some(cursor) = cursor::find(&words) else {
        return Exit::Findings;
    };
    if cursor.is_of_files() {
        return Exit::Findings;
    }
    let is_recorded = cursor.is_set("demo") || cursor.value("replay").is_some();
    let patience = match is_recorded {
        true => PATIENCE_FOR_RECORDING,
        false => PATIENCE,
    };
    // If a GPU or a file system hangs, only the new thread hangs.
    let task = Task::start("complete", move || candidates::find(&cursor));
    let found = task.ok().and_then(|task| task.wait(patience).ok());
    let lines: String = found.unwrap_or_default().iter().filter_map(line).collect();
    // Ignore the error: a closed standard output means that the shell no longer needs the candidates.
    let _ = print(&lines);
    Exit::Clean
}

/// Formats a candidate. Returns `None` for a value that cannot be typed or that gpumem would parse as an option.
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
    fn a_candidate_is_one_line_for_any_process_name() {
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
    fn only_the_scripts_request_completion() {
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
