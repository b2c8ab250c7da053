//! `gpumem release`: asks processes to free memory and keep running.
//!
//! The command makes a plan, probes each target without changes, asks for confirmation, carries out the plan, and
//! reports the freed memory. `release` and `reap` share the code for sampling, confirmation and execution.

use std::time::Duration;

use super::args::{Global, HowToKill, ReapArgs, ReleaseArgs};
use super::exit::{Exit, UsageError};
use super::reap::Execution;
use super::reap::execute::{self, confirmed};
use super::reap::observe::Observation;
use super::{print, signals, style, warn};
use crate::model::json::document;
use crate::reclaim::release::{ProbedTarget, ReleaseOptions, probe_targets};
use crate::reclaim::{Guard, Target};
use crate::report::reap::{self, ReapStatus};
use crate::report::refusal::{RefusalPlace, RefusalReader};
use crate::report::release::{self as text, ReleaseDocument};
use crate::units::Span;

const MOST_WAIT: Duration = Duration::from_secs(3600);
const MOST_IDLE: Duration = Duration::from_secs(3600);

pub(super) fn run(args: &ReleaseArgs, global: &Global) -> anyhow::Result<Exit> {
    match plan(args, global) {
        Ok((observation, guard, report)) => finish(args, global, observation, guard, report),
        Err(error) => {
            if args.json {
                print(&document(&ReleaseDocument::failed(&format!("{error:#}")))?)?;
            }
            Err(error)
        }
    }
}

fn reap_args(args: &ReleaseArgs) -> Result<ReapArgs, UsageError> {
    if args.wait.0.is_zero() || args.wait.0 > MOST_WAIT {
        let limit = Span(MOST_WAIT);
        return Err(UsageError(format!(
            "--wait must be longer than 0 and at most {limit}; write 30s"
        )));
    }
    if args.idle_for.0 > MOST_IDLE {
        let limit = Span(MOST_IDLE);
        return Err(UsageError(format!("--idle-for must be at most {limit}; write 1m")));
    }
    let asked = ReapArgs {
        terms: args.terms.clone(),
        how: HowToKill { all_users: args.all_users, kept: args.kept, ..HowToKill::default() },
        stored: args.stored,
        release: Some(ReleaseOptions {
            collects: !args.no_gc,
            references: args.references,
            is_named: true,
            insists: args.force,
            wait_ms: u64::try_from(args.wait.0.as_millis()).unwrap_or(u64::MAX),
            idle_ms: u64::try_from(args.idle_for.0.as_millis()).unwrap_or(u64::MAX),
            pci_bus_ids: Vec::new(),
        }),
        ..ReapArgs::default()
    };
    asked.with_targets(&args.target)
}

fn plan(
    args: &ReleaseArgs,
    global: &Global,
) -> anyhow::Result<(Observation, Guard, ReleaseDocument)> {
    let reap_args = reap_args(args)?;
    let observation = Observation::new(&reap_args, global)?;
    let (plan, guard) = observation.plan(&reap_args)?;
    let probed = probe_targets(plan.targets);
    let mut report = ReleaseDocument::new(plan.time, probed, plan.refused);
    report.errors = observation.snapshot.errors.clone();
    Ok((observation, guard, report))
}

fn finish(
    args: &ReleaseArgs,
    global: &Global,
    observation: Observation,
    guard: Guard,
    mut report: ReleaseDocument,
) -> anyhow::Result<Exit> {
    let reader = RefusalReader::new(RefusalPlace::Release);
    if !args.json {
        let style = style(global.color);
        print(&text::plan(&report, &observation.snapshot, style, reader))?;
    }
    let carried = match carry_out(args, observation, guard, &mut report) {
        Ok(carried) => carried,
        Err(error) => {
            report.fail(&format!("{error:#}"));
            report.released_bytes = Some(report.released());
            if args.json {
                print(&document(&report)?)?;
            }
            return Err(error);
        }
    };
    if args.json {
        print(&document(&report)?)?;
    }
    if let Execution::Interrupted(signal) = carried {
        // Die from the signal, so that a script that runs gpumem also ends.
        signals::end_as_by(signal)?;
    }
    let is_possible = report.refused.is_empty() && report.targets.iter().all(ProbedTarget::is_due);
    Ok(match (carried, report.status) {
        (Execution::PlanOnly, _) if is_possible && !report.targets.is_empty() => Exit::Clean,
        (_, ReapStatus::Done) => Exit::Clean,
        _ => Exit::Findings,
    })
}

/// Carries out the plan if `--yes` was given or the user confirms, and adds the outcomes to the report.
fn carry_out(
    args: &ReleaseArgs,
    observation: Observation,
    guard: Guard,
    report: &mut ReleaseDocument,
) -> anyhow::Result<Execution> {
    let Observation { live, mut engine, snapshot, .. } = observation;
    let due: Vec<Target> = text::due(report).into_iter().cloned().collect();
    let Some(mut live) = live.filter(|_| !due.is_empty()) else {
        if args.yes {
            report.status = ReapStatus::Incomplete;
            report.released_bytes = Some(0);
        }
        return Ok(Execution::PlanOnly);
    };
    if !args.yes {
        if args.dry_run || args.json || !execute::can_ask() {
            warn("dry run; add --yes to carry it out");
            return Ok(Execution::PlanOnly);
        }
        let count = reap::count(&due.iter().collect::<Vec<_>>());
        let question = format!("Ask {count} to release memory?");
        if !confirmed(&question, &mut live, &mut engine)? {
            return Ok(Execution::Declined);
        }
    }
    report.released_bytes = Some(0);
    let mut left: Vec<_> = report.targets.iter_mut().filter(|target| target.is_due()).collect();
    let observed = (live, engine, snapshot);
    let interrupted = execute::carry_out(observed, guard, due, |index, outcome| {
        let Some(planned) = left.get_mut(index) else { return Ok(()) };
        if !args.json {
            print(&text::outcome(planned.target.leader, &outcome))?;
        }
        planned.outcome = Some(outcome);
        Ok(())
    })?;
    report.released_bytes = Some(report.released());
    if let Some((signal, words)) = interrupted {
        warn(&words);
        report.status = ReapStatus::Interrupted;
        return Ok(Execution::Interrupted(signal));
    }
    report.status = match report.is_all() {
        true => ReapStatus::Done,
        false => ReapStatus::Incomplete,
    };
    Ok(Execution::Complete)
}
