//! A notebook cell that runs forever and does nothing.
//!
//! While its server reports a kernel as busy, a cell runs, and only its author knows what it waits for: that
//! protects the notebook. But a cell that only sleeps would protect it all night, against every policy. So it
//! protects for `max_busy` without a sign of work: no output (the server's last activity), no use of any GPU,
//! no CPU use by the kernel or its descendants. If one of these is unknown, the rule is undecided; if the
//! server does not say since when the kernel is busy, the cell protects.

use crate::history::{History, ProcessHistory, Use};
use crate::model::snapshot::ProcessType;
use crate::model::{Process, Time};
use crate::rules::lasting::OLDEST_CPU_SECONDS;
use crate::rules::rule::Settings;
use crate::rules::undecided_reason::UndecidedReason;

/// The most CPU, in percent of a core, that a waiting kernel uses: a heartbeat, a thread that saves.
const TRACE_OF_CPU_PERCENT: f64 = 2.0;
/// The same for an active finding, higher so that it does not flicker.
const TRACE_TO_STAY_PERCENT: f64 = 4.0;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Cell {
    None,
    /// It works, or has not been without a sign of work for long enough.
    Runs,
    /// It may do nothing, for all that is known.
    Unknown(UndecidedReason),
    /// It has run without a sign of work since then.
    Sleeps {
        /// The last output, GPU use or CPU use.
        since: Time,
    },
}

/// Whether a server reports the kernel as busy.
pub(super) fn is_busy(process: &Process) -> bool {
    let kernel = process.jupyter.as_deref();
    kernel.and_then(|kernel| kernel.execution_state.as_deref()) == Some("busy")
}

/// What the cell does at `now`; `holds` if its process has an active finding.
pub(super) fn of(
    (history, now): (&History, Time),
    process: &Process,
    known: &ProcessHistory,
    settings: &Settings,
    holds: impl FnOnce() -> bool,
) -> Cell {
    if !is_busy(process) {
        return Cell::None;
    }
    let needed = settings.max_busy.seconds();
    let Some(mut since) = process.last_activity() else {
        return Cell::Runs;
    };
    if now.seconds_since(since) < needed {
        return Cell::Runs;
    }
    let mut doubt = None;
    for row in known.rows() {
        match (row.kind(), row.run(), row.last_use()) {
            (ProcessType::Graphics, ..) => {}
            (_, Some(run), _) => since = since.max(run.since),
            (_, None, Use::Used) => return Cell::Runs,
            (_, None, _) => {
                doubt = Some(UndecidedReason::NoUtilization { gpu: history.gpu_index(row) });
            }
        }
    }
    let trace = if holds() { TRACE_TO_STAY_PERCENT } else { TRACE_OF_CPU_PERCENT };
    let cpu = known.cpu();
    match cpu.quiet_since(trace) {
        Some(quiet) if is_recent(cpu.known_at(), now) => since = since.max(quiet),
        _ => {
            doubt = Some(UndecidedReason::NoCpu { pid: process.pid });
        }
    }
    // Known work is work, whatever else is unknown.
    match doubt {
        _ if now.seconds_since(since) < needed => Cell::Runs,
        Some(doubt) => Cell::Unknown(doubt),
        None => Cell::Sleeps { since },
    }
}

fn is_recent(known_at: Option<Time>, now: Time) -> bool {
    known_at.is_some_and(|at| now.seconds_since(at) <= OLDEST_CPU_SECONDS)
}

#[cfg(test)]
mod tests;
