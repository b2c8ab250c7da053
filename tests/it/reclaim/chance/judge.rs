//! Checks that every process that received a signal was allowed to receive it, and that all other processes are
//! unchanged. The checks use only the plan, parents, birth times and open pidfds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gpumem::api::reclaim::{Outcome, Plan, Target};

use super::people::Population;
use super::trace::Call;
use super::truth::{Truth, lives, state};
use super::{Acted, Machine, TargetWork};

impl Machine {
    /// Checks the signals and the outcome of an action.
    pub(super) fn judge(&mut self, acted: &Acted, truth: &Truth, violations: &mut String) {
        let target = &acted.target;
        let planned: BTreeSet<i64> = target
            .members
            .iter()
            .chain(&target.launcher)
            .map(|member| i64::from(member.pid))
            .collect();
        // For each process, the time at which its pidfd was first opened.
        let mut opened: BTreeMap<i64, i64> = BTreeMap::new();
        for event in &acted.events {
            let mut report = |violation: &str| {
                let _ = writeln!(violations, "{violation}: {event:?}");
            };
            match &event.call {
                Call::Opened { pid } => {
                    opened.entry(*pid).or_insert(event.at);
                }
                Call::Sent { pid, signal } => {
                    self.sent += 1;
                    if !acted.signalled.contains(&(*pid, signal.clone())) {
                        report("the audit log does not contain it");
                    }
                    if planned.contains(pid) {
                        if let Some(other) = lost_by(*pid, &planned, target, truth) {
                            report(&format!("{other} is a rank of it and not in the plan"));
                        }
                        continue;
                    }
                    self.born_and_sent += 1;
                    if let Some(reason) = stranger(*pid, event.at, &planned, &opened, truth, acted)
                    {
                        report(&format!("{reason}, {:?}", truth.born.get(pid)));
                    }
                }
                Call::Mark(_) => {}
                Call::Other(_) => report("not through a pidfd"),
            }
        }
        self.targets += 1;
        if acted.outcome.is_success() {
            self.ended += 1;
        }
        let has_worked = acted.work == TargetWork::Own && target.is_found();
        if has_worked && acted.events.iter().any(|event| matches!(event.call, Call::Sent { .. })) {
            let _ = writeln!(
                violations,
                "signalled despite activity since the plan: {:?}",
                acted.outcome
            );
        }
        if !acted.is_free || (acted.work != TargetWork::None && target.is_found()) {
            return;
        }
        // If the outcome says that the target is gone, no member may be left.
        let is_gone = matches!(
            acted.outcome,
            Outcome::Freed { .. }
                | Outcome::AlreadyGone
                | Outcome::Respawned { .. }
                | Outcome::ExitedNotFreed { .. }
        );
        let members = target.members.iter().map(|member| i64::from(member.pid));
        let left: Vec<i64> = members.filter(lives).collect();
        if is_gone && !left.is_empty() {
            let _ = writeln!(violations, "{:?}, but {left:?} are alive", acted.outcome);
        }
        let is_allowed = is_gone || matches!(acted.outcome, Outcome::Protected { .. });
        if !is_allowed {
            let _ = writeln!(violations, "unexpected outcome: {:?}", acted.outcome);
        }
    }

    /// Checks that processes that received no signal are unchanged.
    pub(super) fn judge_others(
        &self,
        population: &Population,
        plan: &Plan,
        acts: &[Acted],
        violations: &mut String,
    ) {
        let sent: BTreeSet<i64> = acts
            .iter()
            .flat_map(|acted| &acted.events)
            .filter_map(|event| match &event.call {
                Call::Sent { pid, .. } => Some(*pid),
                _ => None,
            })
            .collect();
        let planned = |pid: i64| {
            plan.targets
                .iter()
                .flat_map(|target| target.members.iter().chain(&target.launcher))
                .any(|member| i64::from(member.pid) == pid)
        };
        let truth = self.truth();
        for (pid, born) in &truth.born {
            let must_live = population.stays.contains(&born.id);
            if !must_live || sent.contains(pid) || truth.ended_pids.contains(pid) {
                continue;
            }
            // The children of a killed process must also be alive.
            match state(*pid) {
                Some('Z') | None => {
                    let _ = writeln!(violations, "{pid} is gone: {born:?}");
                }
                Some('T') => {
                    let text = population.requests.join(" ");
                    let start = format!("(id={} ", born.id);
                    let words = text.split(&start).nth(1).unwrap_or_default();
                    let words = words.split(['(', ')']).next().unwrap_or_default();
                    if !words.contains("stop") {
                        let _ = writeln!(violations, "{pid} is stopped: {born:?}");
                    }
                }
                Some(_) => {}
            }
        }
        for (pid, signal) in &truth.sent {
            if !sent.contains(pid) {
                let is_planned = planned(*pid);
                let _ = writeln!(
                    violations,
                    "{pid} received {signal}, which strace did not report (planned: {is_planned}): {:?}",
                    truth.born.get(pid)
                );
            }
        }
    }
}

/// Returns why a process outside the plan must not receive a signal, or `None` if the signal is allowed.
fn stranger(
    pid: i64,
    sent: i64,
    planned: &BTreeSet<i64>,
    opened: &BTreeMap<i64, i64>,
    truth: &Truth,
    acted: &Acted,
) -> Option<&'static str> {
    // Returns the start time of the last step that began before a time.
    let step_at = |at: i64| acted.calls.iter().rev().find(|&&step| step <= at);
    let mut next = pid;
    while !planned.contains(&next) {
        let Some(born) = truth.born.get(&next) else {
            return Some("its parent is unknown");
        };
        if !born.has_gpu {
            return Some("it holds no GPU");
        }
        // Until the process executes its program, it has the environment of its parent.
        let executed = truth.executed.get(&next);
        if born.is_kept
            && executed.zip(step_at(sent)).is_some_and(|(executed, step)| executed < step)
        {
            return Some("it or its parent has a keep");
        }
        let Some(&held) = opened.get(&born.parent) else {
            return Some("its parent's pidfd was not open");
        };
        if born.at < held {
            return Some("it was born before its parent's pidfd was opened");
        }
        // When the step that opened this process's pidfd began, the parent must have been alive.
        let taken = opened.get(&next).copied().unwrap_or(i64::MAX);
        if let (Some(left), Some(step)) = (truth.left.get(&next), step_at(taken))
            && left < step
        {
            return Some("its parent had exited");
        }
        next = born.parent;
    }
    None
}

/// If the process is the target's launcher, returns a living rank that holds a GPU but is not in the plan. Such a
/// rank would end with the launcher.
fn lost_by(pid: i64, planned: &BTreeSet<i64>, target: &Target, truth: &Truth) -> Option<i64> {
    let launcher = target.launcher.as_ref()?;
    if i64::from(launcher.pid) != pid {
        return None;
    }
    let mut ranks = truth.born.iter().filter(|(_, born)| born.parent == pid);
    let is_lost = |rank: &i64| !planned.contains(rank) && lives(rank);
    ranks.find_map(|(rank, born)| (born.has_gpu && is_lost(rank)).then_some(*rank))
}
