//! Resumes the processes that an interrupted act has left stopped, by the ledger.
//!
//! Earlier versions stopped a family before they killed it, and one that was killed between the two left
//! it so; `act` stops none. Whoever takes the lock next resumes it: no other reaper acts by this ledger then. It is sent SIGCONT
//! only where it is still the very process, and still stopped; where it goes on already the ledger is
//! told, so that a later stop is not taken for ours.

use std::sync::Arc;

use super::ledger::{
    Deed, Failure, LedgerEntry, LedgerError, LedgerEvent, LedgerProcess, LedgerSink, LedgerSummary,
    PastAct,
};
use super::policy::Signal;
use super::process_control::{Approved, Handle, ProcessControl};
use super::target::Reason;
use crate::host::Guarded;
use crate::model::{Kind, Time};

/// Resumes the processes that an earlier act has left stopped, and returns them. The caller has the lock.
///
/// # Errors
///
/// Where the ledger cannot be written; the action was not carried out.
pub fn resume(
    past: &LedgerSummary,
    now: Time,
    control: &mut dyn ProcessControl,
    record: &mut dyn LedgerSink,
) -> Result<Vec<LedgerProcess>, LedgerError> {
    let left = left_stopped(past);
    let mut resumed = Vec::new();
    for act in &past.acts {
        let boot_id = act.target.as_ref().and_then(|it| it.boot_id.clone());
        let (mut stopped, mut others) = (Vec::new(), Vec::new());
        for &(_, process) in left.iter().filter(|(it, _)| it.id == act.id) {
            match open(process, boot_id.clone(), control) {
                Some((handle, 'T')) => stopped.push((handle, process)),
                Some(_) => others.push(process),
                None => {}
            }
        }
        if stopped.is_empty() && others.is_empty() {
            continue;
        }
        let processes = stopped.iter().map(|(_, it)| *it).chain(others.clone());
        let deed = Deed::Signal { signals: vec![Signal::Cont], processes: processes.collect() };
        let mut note =
            |event| record.write(&LedgerEntry { time: now, act: Arc::clone(&act.id), event });
        note(LedgerEvent::Intended(deed.clone()))?;
        let failure =
            |process: LedgerProcess, error: String| Failure { pid: Some(process.pid), error };
        let mut failures: Vec<Failure> = others
            .into_iter()
            .map(|it| failure(it, "it is not stopped any more".to_owned()))
            .collect();
        for (handle, process) in stopped {
            match control.signal(handle, Signal::Cont) {
                Ok(()) => resumed.push(process),
                Err(error) => failures.push(failure(process, error.to_string())),
            }
        }
        note(LedgerEvent::Done { deed, failures })?;
    }
    Ok(resumed)
}

/// Takes hold of a process, if it is still there; and its state.
fn open(
    process: LedgerProcess,
    boot_id: Option<Arc<str>>,
    control: &mut dyn ProcessControl,
) -> Option<(Handle, char)> {
    let is_it = |it: &Guarded| it.start_ticks == process.start_ticks;
    let uid = control.read_guarded(process.pid).filter(is_it)?.uid?;
    let who = Approved { pid: process.pid, start_ticks: process.start_ticks, uid, boot_id };
    let handle = control.open(&who).ok()?;
    let state = control.read_guarded(process.pid).filter(is_it)?.state?;
    // It has not exited: what was read by its number was its own.
    (!control.has_exited(handle)).then_some((handle, state))
}

/// Processes that acts have stopped, by the ledger, and neither killed nor resumed since.
fn left_stopped(past: &LedgerSummary) -> Vec<(&PastAct, LedgerProcess)> {
    let mut left: Vec<(&PastAct, LedgerProcess)> = Vec::new();
    for act in &past.acts {
        for past in &act.deeds {
            let Deed::Signal { signals, processes } = &past.deed else {
                continue;
            };
            let has = |signal| signals.contains(&signal);
            for process in processes {
                // Where there is no word of what came of it, it may have been done or not.
                let failures = past.failures.as_ref();
                let is_done =
                    failures.is_some_and(|it| it.iter().all(|it| it.pid != Some(process.pid)));
                let is_over = (has(Signal::Kill) && is_done)
                    || (has(Signal::Cont) && past.failures.is_some());
                if is_over {
                    left.retain(|(_, it)| it != process);
                } else if has(Signal::Stop)
                    && !was_stopped(act, *process)
                    && left.iter().all(|(_, it)| it != process)
                {
                    left.push((act, *process));
                }
            }
        }
    }
    left
}

/// Whether a process was stopped before the act by somebody else, and the act has not made it go on.
fn was_stopped(act: &PastAct, process: LedgerProcess) -> bool {
    let reason = act.target.as_ref().map(|it| &it.reason);
    let is_stopped = match reason {
        Some(Reason::Found { findings }) => {
            findings.iter().any(|it| it.kind == Kind::Stopped && it.pid == process.pid)
        }
        Some(Reason::Named) | None => false,
    };
    let has_continued = act.deeds.iter().any(|past| match &past.deed {
        Deed::Signal { signals, processes } => {
            signals.contains(&Signal::Cont) && processes.contains(&process)
        }
        _ => false,
    });
    is_stopped && !has_continued
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Actor, PastDeed};
    use super::super::target::Because;
    use super::super::testing::{
        BOOT, FakeControl, Pages, at, finding, gpu, naming, plan_of, process, snapshot,
    };
    use super::*;
    use crate::model::{self, Snapshot};
    use crate::units::GIB;

    fn seen(state: char) -> Snapshot {
        let python = model::Process { state: Some(state), ..process(70, "python train.py") };
        snapshot(at(0.0), &[python], vec![gpu(0, &[(70, GIB)], 0)])
    }

    /// An act upon process 70 with these deeds, and what became of them.
    fn past(seen: &Snapshot, deeds: &[(&[Signal], Option<&[Failure]>)]) -> LedgerSummary {
        let named = naming(&[70]);
        let victim = LedgerProcess { pid: 70, start_ticks: seen.processes[0].start_ticks.unwrap() };
        let deeds = deeds.iter().map(|(signals, failures)| PastDeed {
            ended: None,
            time: at(0.0),
            deed: Deed::Signal { signals: signals.to_vec(), processes: vec![victim] },
            failures: failures.map(<[_]>::to_vec),
        });
        LedgerSummary {
            acts: vec![PastAct {
                id: "a".into(),
                time: at(0.0),
                actor: Some(Actor::default()),
                target: Some(Box::new(plan_of(&[], seen, &named).targets.remove(0))),
                deeds: deeds.collect(),
                outcome: None,
            }],
            ..LedgerSummary::default()
        }
    }

    /// What is sent, and what the ledger is told.
    fn resumed(
        past: &LedgerSummary,
        control: &mut FakeControl,
    ) -> (Vec<(u32, Signal)>, Vec<LedgerEntry>) {
        let mut pages = Pages::default();
        resume(past, at(9.0), control, &mut pages).unwrap();
        (std::mem::take(&mut control.sent), pages.lines)
    }

    const KILLS: &[Signal] = &[Signal::Stop, Signal::Kill];
    const CONT: [(u32, Signal); 1] = [(70, Signal::Cont)];

    #[test]
    fn who_was_stopped_and_not_killed_goes_on_once() {
        let seen = seen('T');
        let mut past = past(&seen, &[(&[Signal::Term], Some(&[])), (KILLS, None)]);
        let mut control = FakeControl::of(&seen);
        let (sent, lines) = resumed(&past, &mut control);
        assert_eq!(sent, CONT);
        // What the ledger says now is the end of it, also where somebody stops it again.
        for line in lines {
            if let LedgerEvent::Done { deed, failures } = line.event {
                past.acts[0].deeds.push(PastDeed {
                    ended: None,
                    time: line.time,
                    deed,
                    failures: Some(failures),
                });
            }
        }
        assert_eq!(past.acts[0].deeds.len(), 3);
        assert_eq!(resumed(&past, &mut control), (vec![], vec![]));
    }

    #[test]
    fn who_goes_on_already_is_sent_nothing_and_the_ledger_knows() {
        let seen = seen('S');
        let past = past(&seen, &[(KILLS, None)]);
        let (sent, lines) = resumed(&past, &mut FakeControl::of(&seen));
        assert_eq!((sent, lines.len()), (vec![], 2));
        let LedgerEvent::Done { failures, .. } = &lines[1].event else {
            panic!("{lines:?}");
        };
        assert_eq!(failures[0].error, "it is not stopped any more");
    }

    #[test]
    fn another_process_and_another_boot_are_left_alone() {
        let seen = seen('T');
        let mut cut = past(&seen, &[(KILLS, None)]);
        let mut other = FakeControl::of(&seen);
        other.processes.get_mut(&70).unwrap().start_ticks += 1;
        assert_eq!(resumed(&cut, &mut other), (vec![], vec![]));
        assert_eq!(resumed(&cut, &mut FakeControl::default()), (vec![], vec![]));
        for boot_id in [None, Some(format!("not {BOOT}").into())] {
            cut.acts[0].target.as_mut().unwrap().boot_id = boot_id;
            let sent = resumed(&cut, &mut FakeControl::of(&seen));
            assert_eq!(sent, (vec![], vec![]));
        }
    }

    #[test]
    fn who_was_killed_or_never_stopped_or_stopped_by_others_is_left_alone() {
        let seen = seen('T');
        let refused = [Failure { pid: Some(70), error: "not permitted".to_owned() }];
        for deeds in [
            &[(KILLS, Some(&[][..]))][..],
            &[(&[Signal::Term][..], None)],
            &[(KILLS, None), (&[Signal::Cont], Some(&[]))],
            &[(KILLS, None), (&[Signal::Kill], Some(&[]))],
        ] {
            let (sent, _) = resumed(&past(&seen, deeds), &mut FakeControl::of(&seen));
            assert_eq!(sent, [], "{deeds:?}");
        }
        let kill_failed = past(&seen, &[(KILLS, Some(&refused))]);
        assert_eq!(resumed(&kill_failed, &mut FakeControl::of(&seen)).0, CONT);
        // Its owner had pressed Ctrl-Z long before.
        let mut found = past(&seen, &[(KILLS, None)]);
        let finding = finding(Kind::Stopped, &seen.processes[0]);
        found.acts[0].target.as_mut().unwrap().reason =
            Reason::Found { findings: vec![Because::of(&finding, 70)] };
        assert_eq!(resumed(&found, &mut FakeControl::of(&seen)).0, []);
    }

    #[test]
    fn without_a_ledger_nothing_is_sent() {
        let seen = seen('T');
        let past = past(&seen, &[(KILLS, None)]);
        let mut control = FakeControl::of(&seen);
        let mut full = Pages { room: 0, ..Pages::default() };
        resume(&past, at(9.0), &mut control, &mut full).unwrap_err();
        assert_eq!(control.sent, []);
    }
}
