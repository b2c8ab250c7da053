//! How a plan, its steps, what is done and what came of it are written for people. Pure.

use std::fmt::{self, Write as _};

use super::document::{Planned, Report, Status};
use crate::model::Kind;
use crate::reclaim::guard::Protection;
use crate::reclaim::ledger::{Deed, Failure};
use crate::reclaim::plan::Why;
use crate::reclaim::target::{Member, Reason, Step, Whom};
use crate::reclaim::{Outcome, Refused, Signal, Target};
use crate::report::escape::{escape, fit};
use crate::report::style::Style;
use crate::units::{Bytes, Span};

/// Columns of a command; the rest of it is in the JSON.
const NAME_COLUMNS: usize = 100;

/// The plan.
pub(in crate::cli) fn plan(report: &Report, style: Style) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_plan(&mut out, report, style);
    out
}

fn write_plan(out: &mut String, report: &Report, style: Style) -> fmt::Result {
    for Planned { target, .. } in &report.targets {
        write_target(out, target, style)?;
        writeln!(out)?;
    }
    for refused in &report.refused {
        writeln!(out, "{} {}", style.faint("left alone:"), refusal(refused))?;
    }
    for undecided in &report.undecided {
        let (rule, why) = (escape(&undecided.rule), escape(&undecided.reason));
        writeln!(out, "undecided: {rule}: {why}")?;
    }
    for error in &report.errors {
        let gpu = error.gpu.map(|gpu| format!("GPU {gpu}: "));
        let (call, why) = (escape(&error.call), escape(&error.error));
        writeln!(out, "error: {}{call}: {why}", gpu.unwrap_or_default())?;
    }
    let (advised, ended): (Vec<&Target>, Vec<&Target>) = report
        .targets
        .iter()
        .map(|it| &it.target)
        .partition(|target| target.is_advice());
    let mut words = vec![match (ended.len(), advised.len()) {
        (0, 0) => "nothing to end".to_owned(),
        (0, _) => "nothing for gpumem to end".to_owned(),
        (count, _) => format!("{count} to end, {} expected back", expected(&ended)),
    }];
    if !advised.is_empty() {
        words.push(format!("{} for others to end", advised.len()));
    }
    if !report.refused.is_empty() {
        words.push(format!("{} left alone", report.refused.len()));
    }
    writeln!(out, "{}", words.join(", "))
}

/// What targets should give back together, as far as it is known.
pub(super) fn expected(targets: &[&Target]) -> String {
    let known: u64 = targets.iter().filter_map(|target| target.bytes).sum();
    let unknown = targets.iter().filter(|it| it.bytes.is_none()).count();
    match (known, unknown) {
        (_, 0) => Bytes(known).to_string(),
        (0, _) => "memory that NVML does not tell".to_owned(),
        (_, _) => format!("{} or more", Bytes(known)),
    }
}

/// Who it is about, what should come back and from where, a line.
pub(in crate::cli) fn title(target: &Target, style: Style) -> String {
    let Some(leader) = lead(target) else {
        return String::new();
    };
    let pid = style.heading(&leader.pid.to_string());
    let mut gpus: Vec<u32> = target
        .members
        .iter()
        .flat_map(|member| member.gpus.iter().map(|gpu| gpu.index))
        .collect();
    gpus.sort_unstable();
    gpus.dedup();
    let on = match &gpus[..] {
        [] => String::new(),
        [gpu] => format!(" on GPU {gpu}"),
        gpus => format!(" on GPUs {}", numbers(gpus)),
    };
    let (owner, bytes) = (owner(leader), expected(&[target]));
    format!("{pid} {owner}: {bytes}{on}: {}", short(&leader.name))
}

fn write_target(out: &mut String, target: &Target, style: Style) -> fmt::Result {
    let Some(leader) = lead(target) else {
        return Ok(());
    };
    writeln!(out, "{}", title(target, style))?;
    let others: Vec<u32> = target
        .members
        .iter()
        .map(|member| member.pid)
        .filter(|&pid| pid != leader.pid)
        .collect();
    if !others.is_empty() {
        writeln!(out, "    with {}", numbers(&others))?;
    }
    if let Some(launcher) = &target.launcher {
        let name = short(&launcher.name);
        writeln!(out, "    started by {}: {name}", launcher.pid)?;
    }
    if !target.dead.is_empty() {
        writeln!(
            out,
            "    holding what {} took, dead since",
            numbers(&target.dead)
        )?;
    }
    match &target.reason {
        Reason::Named => writeln!(out, "    named")?,
        Reason::Found { findings } => {
            for found in findings {
                write!(out, "    {} since {}", found.kind, found.since)?;
                if *found.rule != *found.kind.name() {
                    write!(out, " (rule {})", escape(&found.rule))?;
                }
                writeln!(out, ": {}", escape(&found.message))?;
            }
        }
    }
    for (place, step) in target.steps.iter().enumerate() {
        writeln!(out, "    {}. {}", place + 1, in_words(step, target))?;
    }
    Ok(())
}

/// What was said of a target, in a word.
pub(super) fn why(target: &Target) -> String {
    match &target.reason {
        Reason::Named => "named".to_owned(),
        Reason::Found { findings } => {
            let mut kinds: Vec<&str> = findings.iter().map(|it| it.kind.name()).collect();
            kinds.dedup();
            kinds.join(", ")
        }
    }
}

/// The member that is named for all.
pub(super) fn lead(target: &Target) -> Option<&Member> {
    let leader = target.members.iter().find(|it| it.pid == target.leader);
    leader.or(target.members.first())
}

pub(super) fn owner(member: &Member) -> String {
    match &member.user {
        Some(user) => escape(user).into_owned(),
        None => format!("uid {}", member.uid),
    }
}

fn short(name: &str) -> String {
    fit(&escape(name), NAME_COLUMNS).into_owned()
}

fn numbers(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// A step, in words.
fn in_words(step: &Step, target: &Target) -> String {
    let wait = |seconds: f64| Span::from_seconds(seconds);
    match step {
        Step::ShutKernel {
            kernel,
            grace_seconds,
        } => {
            let server = escape(&kernel.server_url);
            let id = escape(&kernel.id);
            let wait = wait(*grace_seconds);
            format!("ask the notebook server {server} to shut kernel {id} down; wait {wait}")
        }
        Step::TerminateClient {
            pids,
            grace_seconds,
            ..
        } => {
            let (pids, wait) = (numbers(pids), wait(*grace_seconds));
            format!("ask the MPS control daemon to part with {pids}; wait {wait}")
        }
        Step::Signal {
            signal,
            whom,
            grace_seconds,
        } => {
            let whom = match whom {
                Whom::Launcher => target.launcher.as_ref().map_or_else(
                    || "its launcher".to_owned(),
                    |launcher| format!("{}, its launcher", launcher.pid),
                ),
                Whom::Leader => target.leader.to_string(),
                Whom::Family => {
                    let pids: Vec<u32> = target.members.iter().map(|it| it.pid).collect();
                    numbers(&pids)
                }
            };
            // Who is stopped hears nothing else before it goes on.
            let is_stopped = match &target.reason {
                Reason::Found { findings } => findings.iter().any(|it| it.kind == Kind::Stopped),
                Reason::Named => false,
            };
            let resumes = match is_stopped && *signal != Signal::Kill {
                true => " and SIGCONT",
                false => "",
            };
            format!("{signal}{resumes} to {whom}; wait {}", wait(*grace_seconds))
        }
        Step::Advise { command } => format!(
            "not gpumem's to end: {}; --direct signals it all the same",
            escape(command)
        ),
    }
}

/// Who is left alone, and why.
fn refusal(refused: &Refused) -> String {
    let mut words = Vec::new();
    if let Some(pid) = refused.pid {
        let mut who = pid.to_string();
        if let Some(user) = &refused.user {
            who = format!("{who} {}", escape(user));
        }
        if let Some(name) = &refused.name {
            who = format!("{who} ({})", short(name));
        }
        words.push(who);
    }
    words.extend(refused.kind.map(|kind| kind.to_string()));
    words.push(match &refused.why {
        // Whom it is about stands before it.
        Why::Protected { pid, protection } if Some(*pid) == refused.pid => {
            escape(&protection.to_string()).into_owned()
        }
        why => escape(&why.to_string()).into_owned(),
    });
    words.join(": ")
}

/// What is about to be done, in words.
pub(in crate::cli) fn deed(deed: &Deed) -> String {
    match deed {
        Deed::Signal { signals, processes } => {
            let signals: Vec<&str> = signals.iter().map(|signal| signal.name()).collect();
            let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
            format!("{} to {}", signals.join(" and "), numbers(&pids))
        }
        Deed::ShutKernel { kernel_id } => {
            format!(
                "asking its server to shut kernel {} down",
                escape(kernel_id)
            )
        }
        Deed::TerminateClient { pids } => {
            format!(
                "asking the MPS control daemon to part with {}",
                numbers(pids)
            )
        }
    }
}

/// What of it was not done.
pub(in crate::cli) fn failures(failures: &[Failure]) -> String {
    let words: Vec<String> = failures
        .iter()
        .map(|failure| match failure.pid {
            Some(pid) => format!("not to {pid}: {}", escape(&failure.error)),
            None => format!("in vain: {}", escape(&failure.error)),
        })
        .collect();
    words.join("; ")
}

/// What a target came to, a line.
pub(in crate::cli) fn outcome(target: &Target, outcome: &Outcome) -> String {
    let words = match outcome {
        Outcome::Protected {
            why: Protection::Owned { command },
        } => format!("not touched: end it with: {command}; --direct signals it all the same"),
        outcome => outcome.to_string(),
    };
    format!("{}: {}\n", target.leader, escape(&words))
}

/// What all of it came to, a line.
pub(super) fn total(report: &Report) -> String {
    let freed = Bytes(report.freed());
    let (ended, all) = (report.ended(), report.targets.len());
    let interrupted = match report.status {
        Status::Interrupted => "; interrupted",
        _ => "",
    };
    format!("{freed} back from {ended} of {all}{interrupted}\n")
}

#[cfg(test)]
mod tests;
