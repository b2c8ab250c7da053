//! The question before anything is sent.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::Context as _;
use rustix::termios::{QueueSelector, tcflush};

use crate::deadline::Task;

/// Whether a person can read the question and answer it.
pub(in crate::cli) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks; the answer comes later, from a thread of its own, so that the machine is watched meanwhile.
/// Only a yes is one.
///
/// # Errors
///
/// Where there can be no thread.
pub(in crate::cli) fn ask_yes_or_no(question: &str) -> anyhow::Result<Task<bool>> {
    // What was typed before the question does not answer it.
    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
    // A question that no one can read gets no yes.
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let read = move || {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if !matches!(read, Ok(1..)) {
            // The end of input leaves the cursor behind the question.
            let _ = writeln!(io::stderr());
        }
        read.is_ok() && is_yes(&line)
    };
    Task::start("asking", read).context("cannot start a thread to ask; use --yes")
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_one() {
        for line in ["y\n", "Y\n", " yes \r\n", "YES"] {
            assert!(is_yes(line), "{line:?}");
        }
        for line in ["", "\n", "n\n", "no\n", "yy\n", "yes please\n", "ja\n", "\u{1b}y\n"] {
            assert!(!is_yes(line), "{line:?}");
        }
    }
}
