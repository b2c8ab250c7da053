//! SIGINT and SIGTERM while sampling or waiting: what is known so far is said, then the signal ends
//! the program as it would have.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

use super::gate::Gate;
use crate::cli::exit::Exit;
use crate::cli::{print, warn};

/// From now on, a signal ends the check with a report of what is known: a JSON document or a line.
pub(super) fn report_on_signal(
    gate: &Arc<Mutex<Gate>>,
    json: bool,
    quiet: bool,
) -> anyhow::Result<()> {
    let cannot = "cannot catch signals";
    for signal in [SIGINT, SIGTERM] {
        // The second one ends it at once, also where a full pipe takes no report.
        let again = Arc::new(AtomicBool::new(false));
        flag::register_conditional_default(signal, Arc::clone(&again)).context(cannot)?;
        flag::register(signal, again).context(cannot)?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context(cannot)?;
    let gate = Arc::clone(gate);
    let report = move || {
        for signal in signals.forever() {
            let gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
            // The verdict is being printed, whole; it is the program's last deed.
            if gate.is_concluded() {
                continue;
            }
            let name = low_level::signal_name(signal).unwrap_or("a signal");
            let why = format!("interrupted by {name} before the verdict");
            if json {
                // There is nobody left to tell that standard output is closed.
                let _ = gate
                    .report(Some(&why))
                    .to_json()
                    .map_err(Into::into)
                    .and_then(|json| print(&json));
            }
            if !quiet {
                warn(&why);
            }
            let _ = low_level::emulate_default_handler(signal);
            std::process::exit(i32::from(Exit::CannotMeasure.code()));
        }
    };
    let spawned = thread::Builder::new()
        .name("signals".to_owned())
        .spawn(report);
    spawned
        .map(drop)
        .context("cannot start a thread for signals")
}
