//! SIGINT and SIGTERM while sampling or waiting: what is known so far is said, then the signal ends
//! the program as it would have.

use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};

use super::verdict::CheckVerdict;
use crate::cli::args::CheckFormat;
use crate::cli::exit::Exit;
use crate::cli::{print, signals, warn};

/// From now on, a signal ends the check with a report of what is known so far: a document or a line.
pub(super) fn report_on_signal(
    verdict: &Arc<Mutex<CheckVerdict>>,
    format: CheckFormat,
    quiet: bool,
) -> anyhow::Result<()> {
    signals::end_on_second(&[SIGINT, SIGTERM])?;
    let verdict = Arc::clone(verdict);
    signals::on_thread(&[SIGINT, SIGTERM], move |signal| {
        let mut verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner);
        // The verdict is being printed, whole; it is the program's last deed.
        if verdict.is_concluded() {
            return true;
        }
        let why = format!("interrupted by {} before the verdict", signals::name(signal));
        // That standard output is closed cannot be reported.
        let _ = format.of(&verdict.report(Some(&why))).and_then(|document| print(&document));
        if !quiet {
            warn(&why);
        }
        let _ = signals::end_as_by(signal);
        std::process::exit(i32::from(Exit::CannotMeasure.code()));
    })
}
