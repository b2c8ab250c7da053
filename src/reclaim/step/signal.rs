//! The steps that send signals to the launcher, the leader or the whole family, and then give the recipients time to
//! exit. SIGKILL is sent last.

use super::{FamilyInput, StepContext, StepEffect, StepState};
use crate::model;
use crate::reclaim::guard::Protection;
use crate::reclaim::handles::HeldProcess;
use crate::reclaim::launcher::is_launcher_command;
use crate::reclaim::ledger::{Failure, LedgerError, LedgerEvent};
use crate::reclaim::policy::Signal;
use crate::reclaim::process_control::NotSent;
use crate::reclaim::target::{Deed, Recipients, Step, Target, listed};
use crate::reclaim::verify::Outcome;

/// Default time, in seconds, to exit, as in Kubernetes. Many programs write a checkpoint before they exit.
const GRACE_SECONDS: f64 = 30.0;
/// Time, in seconds, for a launcher to exit. torchrun and DeepSpeed wait 30 s before they kill their workers (torch:
/// `distributed/elastic/multiprocessing/api.py`).
const LAUNCHER_SECONDS: f64 = 35.0;
/// Time, in seconds, for a killed process to disappear.
const KILL_SECONDS: f64 = 5.0;

pub(super) fn plan(candidate: &FamilyInput<'_>) -> Vec<Step> {
    let policy = &candidate.guard.policy;
    let first = policy.signal.unwrap_or(Signal::Term);
    let configured = policy.grace.map(|grace| grace.as_secs_f64());
    let ask = |recipients, usual: f64| Step::Signal {
        signal: first,
        recipients,
        grace_seconds: configured.unwrap_or(usual),
    };
    let kill =
        |recipients| Step::Signal { signal: Signal::Kill, recipients, grace_seconds: KILL_SECONDS };
    let mut steps = Vec::new();
    let is_asked = first != Signal::Kill;
    let processes = candidate.processes.iter();
    if candidate.target.launcher.is_some() {
        if is_asked {
            steps.push(ask(Recipients::Launcher, LAUNCHER_SECONDS));
            steps.push(ask(Recipients::Family, GRACE_SECONDS));
        }
        steps.push(kill(Recipients::Launcher));
    } else if is_asked {
        let is_child = |process: &&model::Process| process.ppid == Some(candidate.target.leader);
        if processes.clone().any(is_child) {
            let is_launcher = processes
                .filter(|process| process.pid == candidate.target.leader)
                .any(|process| is_launcher_command(process.command.as_deref()));
            let usual = if is_launcher { LAUNCHER_SECONDS } else { GRACE_SECONDS };
            steps.push(ask(Recipients::Leader, usual));
        }
        steps.push(ask(Recipients::Family, GRACE_SECONDS));
    }
    steps.push(kill(Recipients::Family));
    steps
}

/// Returns whether stopped processes also need SIGCONT in order to handle the signal.
fn resumes(signal: Signal) -> bool {
    !matches!(signal, Signal::Kill | Signal::Stop | Signal::Cont)
}

pub(super) fn describe(signal: Signal, recipients: Recipients, target: &Target) -> String {
    let members = target.members.iter();
    let (recipients, any_stopped) = match recipients {
        Recipients::Launcher => target.launcher.as_ref().map_or_else(
            || ("its launcher".to_owned(), false),
            |launcher| (format!("{}, its launcher", launcher.pid), launcher.is_stopped),
        ),
        Recipients::Leader => {
            let mut leader = members.filter(|member| member.pid == target.leader);
            (target.leader.to_string(), leader.any(|member| member.is_stopped))
        }
        Recipients::Family => (
            listed(members.clone().map(|member| &member.pid)),
            members.clone().any(|member| member.is_stopped),
        ),
    };
    let and = if any_stopped && resumes(signal) { " and SIGCONT" } else { "" };
    format!("{signal}{and} to {recipients}")
}

/// Sends a signal to the recipients, youngest first. Stopped recipients that need SIGCONT to handle the signal get both
/// signals after the others.
///
/// Processes are not stopped before they are killed. If the leader of a process group ended while other members were
/// stopped, the kernel would send SIGHUP to the whole group (`kill_orphaned_pgrp` in `kernel/exit.c`).
pub(super) fn send(
    signal: Signal,
    state: &mut StepState,
    context: &mut StepContext<'_>,
    recipients: &[HeldProcess],
) -> Result<StepEffect, LedgerError> {
    let (mut moving, mut stopped) = (Vec::new(), Vec::new());
    for held in recipients.iter().rev() {
        let sent = (held.process(), signal);
        if signal != Signal::Kill && state.signalled.contains(&sent) {
            continue;
        }
        state.signalled.push(sent);
        let facts = context.control.read_guarded(held.pid);
        let is_stopped =
            facts.is_some_and(|facts| facts.start_ticks == held.start_ticks && facts.is_stopped());
        match resumes(signal) && is_stopped {
            true => stopped.push(held),
            false => moving.push(held),
        }
    }
    // A kernel that received a signal may be restarted by its server.
    state.is_shut = false;
    let mut ends = None;
    for (signals, batch) in [(&[signal][..], moving), (&[signal, Signal::Cont][..], stopped)] {
        if batch.is_empty() {
            continue;
        }
        state.has_continued |= signals.contains(&Signal::Cont);
        let deed = Deed::Signal {
            signals: signals.to_vec(),
            processes: batch.iter().map(|held| held.process()).collect(),
        };
        state.note(LedgerEvent::Intended(deed.clone()), context)?;
        let mut failures = Vec::new();
        for held in batch {
            // After a failure, the process gets no more signals.
            let control = &mut *context.control;
            let sent = signals.iter().try_for_each(|&signal| control.signal(held.handle, signal));
            if let Err(error) = sent {
                failures.push(Failure { pid: Some(held.pid), error: error.to_string() });
                ends = ends.or(outcome_of(error));
            }
        }
        state.note(LedgerEvent::Done { deed, failures }, context)?;
    }
    Ok(ends.map_or(StepEffect::Pending, StepEffect::Ends))
}

/// Returns the outcome if sending a signal failed. The act continues if the process is gone.
fn outcome_of(error: NotSent) -> Option<Outcome> {
    match error {
        NotSent::Gone => None,
        NotSent::NotPermitted => Some(Outcome::NotPermitted),
        NotSent::Failed(error) => {
            Some(Outcome::Protected { why: Protection::NotHeld { error: error.into() } })
        }
    }
}
