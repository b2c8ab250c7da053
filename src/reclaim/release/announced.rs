//! Asks a process to release memory with the signal that the process announces in `GPUMEM_RELEASE_SIGNAL`.
//!
//! The process must also have a handler, because SIGUSR1, SIGUSR2 and SIGHUP terminate a process without one. An
//! announcement alone can be inherited from a parent that runs another program. The handlers are read from
//! `/proc/PID/status` immediately before the signal is sent, while a pidfd for the process is open.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{NotReleased, ReleaseAnswer, ReleaseBy, ReleaseWay};
use crate::advice::recipe::ReleaseReport;
use crate::host::{Roots, read_guarded, read_host, read_signal_masks};
use crate::model::{Process, Snapshot};
use crate::reclaim::policy::Signal;
use crate::reclaim::process_control::{
    ApprovedProcess, Handle, NotOpened, NotSent, PidfdControl, ProcessControl as _,
};

/// Environment variable in which a process announces its release signal.
pub const VARIABLE: &str = "GPUMEM_RELEASE_SIGNAL";
/// Signals that can be announced. Programs commonly define their own handlers for them.
const SIGNALS: [Signal; 3] = [Signal::Usr1, Signal::Usr2, Signal::Hup];

fn announced(environment: &BTreeMap<Arc<str>, Arc<str>>) -> Option<Result<Signal, String>> {
    let value = environment.get(VARIABLE)?;
    let signal = value.parse().ok().filter(|signal| SIGNALS.contains(signal));
    Some(signal.ok_or_else(|| {
        format!(
            "it announces {VARIABLE}={value}, which gpumem does not send; use USR1, USR2 or HUP"
        )
    }))
}

/// Returns the release request for a process whose environment in the snapshot announces a signal, or the reason why
/// the announced signal is not supported.
pub(super) fn find(process: &Process, _: &Snapshot) -> Option<Result<ReleaseWay, String>> {
    let signal = announced(process.environment.as_deref()?)?;
    let (pid, start_ticks) = (process.pid, process.start_ticks?);
    let way = |signal| ReleaseWay { pid, start_ticks, by: ReleaseBy::Signal { signal } };
    Some(signal.map(way))
}

/// If `is_deed` is set, sends the signal. Otherwise, only checks that the process can be asked. The process does not
/// report the effect of the signal.
pub(super) fn ask(roots: &Roots, way: &ReleaseWay, signal: Signal, is_deed: bool) -> ReleaseAnswer {
    let (mut control, handle) = hold(roots, way, signal)?;
    if !is_deed {
        let why = format!("it announces {signal} and has a handler for it");
        return Ok(ReleaseReport { why: Some(why.into()), ..ReleaseReport::default() });
    }
    // Check again, because the process may have removed its handler since.
    handles(roots, way.pid, signal).map_err(NotReleased::Refused)?;
    match control.signal(handle, signal) {
        Ok(()) => Ok(ReleaseReport::default()),
        Err(NotSent::Gone) => Err(gone()),
        Err(error) => Err(NotReleased::Refused(error.to_string())),
    }
}

fn gone() -> NotReleased {
    NotReleased::NoWayIn("it has exited".to_owned())
}

/// Opens the process and checks its identity, announcement and handler.
fn hold(
    roots: &Roots,
    way: &ReleaseWay,
    signal: Signal,
) -> Result<(PidfdControl, Handle), NotReleased> {
    let pid = way.pid;
    let facts = read_guarded(roots, pid).ok().flatten().ok_or_else(gone)?;
    let Some(uid) = facts.uid else {
        return Err(NotReleased::NoWayIn("its owner is unknown; run gpumem as root".to_owned()));
    };
    let mut control = PidfdControl::new(roots.clone());
    let approved = ApprovedProcess {
        pid,
        start_ticks: way.start_ticks,
        uid,
        boot_id: read_host(roots).boot_id,
    };
    let handle = control.open(&approved).map_err(|error| match error {
        NotOpened::Gone(_) => gone(),
        error => NotReleased::NoWayIn(error.to_string()),
    })?;
    // Read the facts again while the pidfd is open. The process may have executed another program since the plan was
    // made.
    let facts = control.read_guarded(pid).ok_or_else(gone)?;
    let announced = facts.environment.as_deref().and_then(announced);
    match announced {
        Some(Ok(now)) if now == signal => {}
        Some(Err(why)) => return Err(NotReleased::Refused(why)),
        Some(Ok(_)) | None => {
            return Err(NotReleased::Refused(format!(
                "it does not announce {signal} ({VARIABLE}) any more; make a new plan"
            )));
        }
    }
    if facts.state == Some('T') {
        let why = "it is stopped and handles no signal; continue it first (kill -CONT)".to_owned();
        return Err(NotReleased::Busy(why));
    }
    handles(roots, pid, signal).map_err(NotReleased::Refused)?;
    if control.has_exited(handle) {
        return Err(gone());
    }
    Ok((control, handle))
}

/// Returns an error if the process has no handler for the signal or blocks it.
fn handles(roots: &Roots, pid: u32, signal: Signal) -> Result<(), String> {
    let Some(masks) = read_signal_masks(roots, pid) else {
        return Err(format!(
            "unknown whether it has a handler for {signal}; run gpumem as root to find out"
        ));
    };
    let number = signal.kernel().as_raw().cast_unsigned();
    if !masks.catches(number) {
        return Err(format!(
            "it announces {signal} ({VARIABLE}) but has no handler for it, so the signal would kill it; nothing was \
             sent; install the handler (gpumem explain --snippet)"
        ));
    }
    match masks.blocks(number) {
        true => Err(format!("it blocks {signal} now; nothing was sent; try again later")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: Option<&str>) -> Option<Result<Signal, String>> {
        let variables = value.map(|value| (Arc::from(VARIABLE), Arc::from(value)));
        let process = Process {
            pid: 7,
            start_ticks: Some(70),
            environment: Some(Arc::new(variables.into_iter().collect())),
            ..Process::default()
        };
        let found = find(&process, &Snapshot::new(crate::model::Time::default()))?;
        Some(found.map(|way| match way.by {
            ReleaseBy::Signal { signal } => signal,
            other => panic!("{other:?}"),
        }))
    }

    #[test]
    fn only_user_defined_signals_are_accepted() {
        assert_eq!(found(None), None);
        for (value, signal) in
            [("USR1", Signal::Usr1), ("SIGUSR2", Signal::Usr2), ("hup", Signal::Hup)]
        {
            assert_eq!(found(Some(value)), Some(Ok(signal)), "{value}");
        }
        for value in ["", "TERM", "KILL", "INT", "QUIT", "12", "STOP", "USR3", "\u{1b}[31m"] {
            assert!(matches!(found(Some(value)), Some(Err(_))), "{value}");
        }
    }

    #[test]
    fn an_unknown_environment_announces_no_signal() {
        let process = Process { pid: 7, start_ticks: Some(70), ..Process::default() };
        let snapshot = Snapshot::new(crate::model::Time::default());
        assert_eq!(find(&process, &snapshot), None);
    }

    #[test]
    fn a_reused_pid_is_not_signalled() {
        let signal = Signal::Usr1;
        let by = ReleaseBy::Signal { signal };
        let way = ReleaseWay { pid: std::process::id(), start_ticks: 1, by };
        // This process has no handler for the signal, so the signal would terminate the test.
        let answer = ask(&Roots::default(), &way, signal, true);
        assert!(matches!(answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    }
}
