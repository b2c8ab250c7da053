//! Whether whoever was sent something may be sent it, and the others live as before. It knows neither
//! sessions nor groups nor names: only the plan, who was born of whom and when, and who was held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gpumem::api::reclaim::{Outcome, Plan, Target};

use super::people::Population;
use super::trace::Call;
use super::truth::{Truth, lives, state};
use super::{Acted, Machine, TargetWork};

impl Machine {
    /// Whether what an act has sent was sent to whom it may be.
    pub(super) fn judge(&mut self, acted: &Acted, truth: &Truth, violations: &mut String) {
        let target = &acted.target;
        let planned: BTreeSet<i64> = target
            .members
            .iter()
            .chain(&target.launcher)
            .map(|member| i64::from(member.pid))
            .collect();
        // When each was first taken hold of.
        let mut opened: BTreeMap<i64, i64> = BTreeMap::new();
        for event in &acted.events {
            let mut report = |what: &str| {
                let _ = writeln!(violations, "{what}: {event:?}");
            };
            match &event.call {
                Call::Opened { pid } => {
                    opened.entry(*pid).or_insert(event.at);
                }
                Call::Sent { pid, signal } => {
                    self.sent += 1;
                    if !acted.signalled.contains(&(*pid, signal.clone())) {
                        report("the ledger does not tell of it");
                    }
                    if planned.contains(pid) {
                        if let Some(other) = lost_by(*pid, &planned, target, truth) {
                            report(&format!("{other} is a rank of it, and not in the plan"));
                        }
                        continue;
                    }
                    self.born_and_sent += 1;
                    if let Some(why) = stranger(*pid, event.at, &planned, &opened, truth, acted) {
                        report(&format!("{why}, {:?}", truth.born.get(pid)));
                    }
                }
                Call::Mark(_) => {}
                Call::Other(_) => report("not through what holds a process"),
            }
        }
        self.targets += 1;
        if acted.outcome.is_success() {
            self.ended += 1;
        }
        let has_worked = acted.work == TargetWork::Own && target.is_found();
        if has_worked && acted.events.iter().any(|it| matches!(it.call, Call::Sent { .. })) {
            let _ = writeln!(violations, "it has worked since the plan: {:?}", acted.outcome);
        }
        if !acted.is_free || (acted.work != TargetWork::None && target.is_found()) {
            return;
        }
        // The guilty are gone, where that is what the outcome says.
        let is_gone = matches!(
            acted.outcome,
            Outcome::Freed { .. }
                | Outcome::AlreadyGone
                | Outcome::Respawned { .. }
                | Outcome::ExitedNotFreed { .. }
        );
        let members = target.members.iter().map(|it| i64::from(it.pid));
        let left: Vec<i64> = members.filter(lives).collect();
        if is_gone && !left.is_empty() {
            let _ = writeln!(violations, "{:?}, and {left:?} live on", acted.outcome);
        }
        let may_be = is_gone || matches!(acted.outcome, Outcome::Protected { .. });
        if !may_be {
            let _ = writeln!(violations, "nothing forbade it, and: {:?}", acted.outcome);
        }
    }

    /// Those to whom nothing was sent live as before.
    pub(super) fn judge_the_others(
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
            let is_here = population.stays.contains(&born.id);
            if !is_here || sent.contains(pid) || truth.ended_pids.contains(pid) {
                continue;
            }
            // A child of what was killed lives on, too.
            match state(*pid) {
                Some('Z') | None => {
                    let _ = writeln!(violations, "{pid} is gone: {born:?}");
                }
                Some('T') => {
                    let text = population.requests.join(" ");
                    let own = format!("(id={} ", born.id);
                    let words = text.split(&own).nth(1).unwrap_or_default();
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
                    "{pid} heard {signal}, unseen (planned: {is_planned}): {:?}",
                    truth.born.get(pid)
                );
            }
        }
    }
}

/// Why nothing may be sent to a process that was not in the plan.
fn stranger(
    pid: i64,
    sent: i64,
    planned: &BTreeSet<i64>,
    opened: &BTreeMap<i64, i64>,
    truth: &Truth,
    acted: &Acted,
) -> Option<&'static str> {
    // When the call began in which something was done.
    let call = |at: i64| acted.calls.iter().rev().find(|&&call| call <= at);
    let mut next = pid;
    while !planned.contains(&next) {
        let Some(born) = truth.born.get(&next) else {
            return Some("nobody knows it");
        };
        if !born.has_gpu {
            return Some("it holds no GPU");
        }
        // Until it has executed itself it has its parent's environment, and one that was ended before had no other.
        let own = truth.executed.get(&next);
        if born.is_kept && own.zip(call(sent)).is_some_and(|(own, call)| own < call) {
            return Some("it, or who started it, is kept");
        }
        let Some(&held) = opened.get(&born.of) else {
            return Some("who started it was not held");
        };
        if born.at < held {
            return Some("it was there before");
        }
        // The call in which it was taken hold of had begun when its parent was gone.
        let taken = opened.get(&next).copied().unwrap_or(i64::MAX);
        if let (Some(left), Some(call)) = (truth.left.get(&next), call(taken))
            && left < call
        {
            return Some("its parent was gone");
        }
        next = born.of;
    }
    None
}

/// A living rank that holds a GPU, is not in the plan, and would be ended with its launcher.
fn lost_by(pid: i64, planned: &BTreeSet<i64>, target: &Target, truth: &Truth) -> Option<i64> {
    let launcher = target.launcher.as_ref()?;
    if i64::from(launcher.pid) != pid {
        return None;
    }
    let mut ranks = truth.born.iter().filter(|(_, born)| born.of == pid);
    let is_lost = |it: &i64| !planned.contains(it) && lives(it);
    ranks.find_map(|(rank, born)| (born.has_gpu && is_lost(rank)).then_some(*rank))
}
