//! A way: a signal that the process has announced, by `GPUMEM_RELEASE_SIGNAL` in its environment, and has a
//! handler for when it is sent.
//!
//! Both, or no signal: without a handler SIGUSR1, SIGUSR2 and SIGHUP end a process. The environment is that
//! of the program that it runs now; the handlers are read from `/proc/PID/status` with the process held by a
//! pidfd, as the last thing before the signal goes through that pidfd.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AnnouncedSignal, ReleaseAnswer, ReleaseOptions, ReleaseReport};
use crate::host::{Roots, read_guarded, read_host, read_signal_masks};
use crate::model::{Process, Snapshot};
use crate::reclaim::policy::Signal;
use crate::reclaim::process_control::{
    Approved, Handle, NotOpened, NotSent, PidfdControl, ProcessControl as _,
};

/// The variable by which a process announces its signal.
pub const VARIABLE: &str = "GPUMEM_RELEASE_SIGNAL";
/// Those that are sent: what a program uses for its own ends.
const SIGNALS: [Signal; 3] = [Signal::Usr1, Signal::Usr2, Signal::Hup];

/// What a process announces; `None` where that is nothing.
fn announced(environment: &BTreeMap<Arc<str>, Arc<str>>) -> Option<Result<Signal, String>> {
    let value = environment.get(VARIABLE)?;
    let signal = value.parse().ok().filter(|it| SIGNALS.contains(it));
    Some(signal.ok_or_else(|| {
        format!(
            "it announces {VARIABLE}={value}, which gpumem does not send; use USR1, USR2 or HUP"
        )
    }))
}

/// The way, where the snapshot shows that it is there; `None` where the process announces nothing.
pub fn find(process: &Process, _: &Snapshot) -> Option<Result<AnnouncedSignal, String>> {
    let signal = announced(process.environment.as_deref()?)?;
    let (pid, start_ticks) = (process.pid, process.start_ticks?);
    Some(signal.map(|signal| AnnouncedSignal { pid, start_ticks, signal }))
}

/// Whether the signal could be sent now.
pub fn probe(roots: &Roots, way: &AnnouncedSignal, _: &ReleaseOptions) -> ReleaseAnswer {
    match hold(roots, way) {
        Ok(_) => {
            let why = format!("it announces {} and has a handler for it", way.signal);
            ReleaseAnswer::Done(ReleaseReport { why: Some(why.into()), ..ReleaseReport::default() })
        }
        Err(answer) => answer,
    }
}

/// Sends it. What the process does then it does not say.
pub fn perform(roots: &Roots, way: &AnnouncedSignal, _: &ReleaseOptions) -> ReleaseAnswer {
    let (mut control, handle) = match hold(roots, way) {
        Ok(held) => held,
        Err(answer) => return answer,
    };
    // Once more, with nothing between it and the signal.
    if let Err(why) = handles(roots, way) {
        return ReleaseAnswer::Refused(why);
    }
    match control.signal(handle, way.signal) {
        Ok(()) => ReleaseAnswer::Done(ReleaseReport::default()),
        Err(NotSent::Gone) => ReleaseAnswer::NoWayIn("it has exited".to_owned()),
        Err(error) => ReleaseAnswer::Refused(error.to_string()),
    }
}

/// The process, held, if it is who is meant, announces the signal and has a handler for it.
fn hold(roots: &Roots, way: &AnnouncedSignal) -> Result<(PidfdControl, Handle), ReleaseAnswer> {
    let gone = || ReleaseAnswer::NoWayIn("it has exited".to_owned());
    let pid = way.pid;
    let facts = read_guarded(roots, pid).ok().flatten().ok_or_else(gone)?;
    let Some(uid) = facts.uid else {
        return Err(ReleaseAnswer::NoWayIn("its owner is not known; run as root".to_owned()));
    };
    let mut control = PidfdControl::new(roots.clone());
    let who =
        Approved { pid, start_ticks: way.start_ticks, uid, boot_id: read_host(roots).boot_id };
    let handle = control.open(&who).map_err(|error| match error {
        NotOpened::Gone(_) => gone(),
        error => ReleaseAnswer::NoWayIn(error.to_string()),
    })?;
    // Read while it is held: it may have executed another program since the plan.
    let facts = control.read_guarded(pid).ok_or_else(gone)?;
    let announced = facts.environment.as_deref().and_then(announced);
    match announced {
        Some(Ok(signal)) if signal == way.signal => {}
        Some(Err(why)) => return Err(ReleaseAnswer::Refused(why)),
        Some(Ok(_)) | None => {
            let why = format!(
                "it does not announce {} ({VARIABLE}) any more; make a new plan",
                way.signal
            );
            return Err(ReleaseAnswer::Refused(why));
        }
    }
    if facts.state == Some('T') {
        let why = "it is stopped and handles no signal; continue it first (kill -CONT)".to_owned();
        return Err(ReleaseAnswer::Busy(why));
    }
    handles(roots, way).map_err(ReleaseAnswer::Refused)?;
    if control.has_exited(handle) {
        return Err(gone());
    }
    Ok((control, handle))
}

/// Whether the process has a handler for the signal, and lets it in.
fn handles(roots: &Roots, way: &AnnouncedSignal) -> Result<(), String> {
    let signal = way.signal;
    let Some(masks) = read_signal_masks(roots, way.pid) else {
        return Err(format!("whether it has a handler for {signal} is not known; run as root"));
    };
    let number = signal.number();
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
        Some(found.map(|way| way.signal))
    }

    #[test]
    fn only_signals_of_a_programs_own_are_announced() {
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
    fn who_is_another_by_now_is_not_touched() {
        let way = AnnouncedSignal { pid: std::process::id(), start_ticks: 1, signal: Signal::Usr1 };
        let options = ReleaseOptions {
            collects: true,
            references: false,
            is_named: true,
            wait_ms: 1000,
            pci_bus_ids: Vec::new(),
        };
        // It would end this process.
        let answer = perform(&Roots::default(), &way, &options);
        assert!(matches!(answer, ReleaseAnswer::NoWayIn(_)), "{answer:?}");
    }
}
