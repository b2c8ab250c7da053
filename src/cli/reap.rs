//! `gpumem reap` and `gpumem kill`: make a plan, ask for confirmation, act, and report the freed memory.
//!
//! `observe` reads the arguments, and samples the machine or reads a recording. `execute` asks the user and carries out
//! the plan. `history` shows past actions, and `unattended` runs the service. [`crate::reclaim`] decides which
//! processes to end, and is the only code that signals them.

pub(super) mod execute;
mod history;
pub(super) mod observe;
mod unattended;

use self::execute::confirmed;
use self::observe::Observation;
use super::args::{Global, Kill, ReapArgs};
use super::exit::Exit;
use super::{print, signals, style, unreadable, warn};
use crate::model::Snapshot;
use crate::model::json::document;
use crate::reclaim::{Guard, Target};
use crate::report::reap::{self as text, ReapReport, ReapStatus};
use crate::report::refusal::{RefusalPlace, RefusalReader};

pub(super) fn kill(args: Kill, global: &Global) -> anyhow::Result<Exit> {
    let asked = ReapArgs {
        terms: args.terms,
        yes: args.yes,
        dry_run: args.dry_run,
        how: args.how,
        stored: args.stored,
        ..ReapArgs::default()
    };
    let args = asked.with_targets(&args.target)?;
    run_at(RefusalPlace::Kill, &args, global)
}

pub(super) fn run(args: &ReapArgs, global: &Global) -> anyhow::Result<Exit> {
    if args.watch {
        return unattended::run(args, global);
    }
    if args.history {
        return history::run(args.json, global);
    }
    run_at(RefusalPlace::Reap, args, global)
}

fn run_at(place: RefusalPlace, args: &ReapArgs, global: &Global) -> anyhow::Result<Exit> {
    let reader = RefusalReader::new(place);
    let planned = Observation::new(args, global).and_then(|observation| {
        let (plan, guard) = observation.plan(args)?;
        Ok((observation, plan, guard))
    });
    let (observation, plan, guard) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            if args.json {
                print(&document(&ReapReport::failed(&format!("{error:#}")))?)?;
            }
            return Err(error);
        }
    };
    let errors = observation.snapshot.errors.clone();
    let mut report = ReapReport::new(plan, observation.undecided.clone(), errors);
    report.is_replay = observation.live.is_none();
    if !args.json {
        print(&text::plan(&report, style(global.color), reader))?;
    }
    if observation.is_named() {
        let members = report.targets.iter().flat_map(|planned| &planned.target.members);
        for pid in members.map(|member| member.pid) {
            if observation
                .snapshot
                .process(pid)
                .is_some_and(|process| process.environment.is_none())
            {
                warn(&format!(
                    "{pid}: it is unknown whether the owner protects it (GPUMEM_KEEP): its environment cannot \
                    be read, or was overwritten"
                ));
            }
        }
    }
    // Without targets, the report must not say "nothing to do" if a GPU is unreadable.
    let is_blind = report.targets.is_empty() && is_unreadable(args, &observation.snapshot);
    // A refusal makes the result incomplete, even if the rest of the plan is carried out.
    let is_refused = (observation.is_named() && !report.refused.is_empty())
        || report.targets.iter().any(|planned| planned.target.is_advice())
        // `kill` fails without a target, for example because `--where` excluded all named processes.
        || (place == RefusalPlace::Kill && report.targets.is_empty());
    let carried = match carry_out(args, reader, observation, guard, &mut report) {
        Ok(carried) => carried,
        Err(error) => {
            report.fail(&format!("{error:#}"));
            report.freed_bytes = Some(report.freed());
            if args.json {
                print(&document(&report)?)?;
            }
            return Err(error);
        }
    };
    if is_refused && report.status == ReapStatus::Done {
        report.status = ReapStatus::Incomplete;
    }
    if is_blind && !is_refused {
        const BLIND: &str = "a GPU cannot be read, and there is nothing to kill on the others";
        report.fail(BLIND);
        warn(BLIND);
    }
    if args.json {
        print(&document(&report)?)?;
    } else if report.freed_bytes.is_some() && !report.targets.is_empty() {
        print(&text::total(&report))?;
    }
    if let Execution::Interrupted(signal) = carried {
        // Die from the signal, so that a script that runs gpumem also ends.
        signals::end_as_by(signal)?;
    }
    Ok(match report.status {
        // `kill` fails if nothing was sent, unless `--dry-run` was given.
        ReapStatus::Planned
            if is_refused
                || carried == Execution::Declined
                || (place == RefusalPlace::Kill && !args.dry_run) =>
        {
            Exit::Findings
        }
        ReapStatus::Planned | ReapStatus::Done => Exit::Clean,
        ReapStatus::Incomplete | ReapStatus::Interrupted => Exit::Findings,
        ReapStatus::Error => Exit::CannotMeasure,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Execution {
    /// The plan was only shown.
    PlanOnly,
    /// The user did not confirm the plan.
    Declined,
    Complete,
    /// A signal with this number interrupted the plan.
    Interrupted(i32),
}

/// Carries out the plan if `--yes` was given or the user confirms, and adds the outcomes to the report.
fn carry_out(
    args: &ReapArgs,
    reader: RefusalReader,
    observation: Observation,
    guard: Guard,
    report: &mut ReapReport,
) -> anyhow::Result<Execution> {
    let Observation { live, mut engine, snapshot, .. } = observation;
    let Some(mut live) = live else {
        warn("plan only: a recording cannot be acted on");
        return Ok(Execution::PlanOnly);
    };
    let mine: Vec<&Target> = report
        .targets
        .iter()
        .map(|planned| &planned.target)
        .filter(|target| !target.is_advice())
        .collect();
    if !args.yes {
        if mine.is_empty() {
            return Ok(Execution::PlanOnly);
        }
        if args.dry_run || args.json || !execute::can_ask() {
            warn("dry run; add --yes to carry it out");
            return Ok(Execution::PlanOnly);
        }
        if !confirmed(&text::question(&mine), &mut live, &mut engine)? {
            return Ok(Execution::Declined);
        }
    }
    report.freed_bytes = Some(0);
    if report.targets.is_empty() {
        report.status = ReapStatus::Done;
        return Ok(Execution::Complete);
    }
    let targets: Vec<Target> =
        report.targets.iter().map(|planned| planned.target.clone()).collect();
    let planned = &mut report.targets;
    let observed = (live, engine, snapshot);
    let interrupted = execute::carry_out(observed, guard, targets, |index, outcome| {
        let Some(planned) = planned.get_mut(index) else { return Ok(()) };
        if !args.json {
            print(&text::outcome(&planned.target, &outcome, reader))?;
        }
        planned.outcome = Some(outcome);
        Ok(())
    })?;
    if let Some((signal, words)) = interrupted {
        warn(&words);
        report.status = ReapStatus::Interrupted;
        report.freed_bytes = Some(report.freed());
        return Ok(Execution::Interrupted(signal));
    }
    report.freed_bytes = Some(report.freed());
    report.status = match report.ended() == report.targets.len() {
        true => ReapStatus::Done,
        false => ReapStatus::Incomplete,
    };
    Ok(Execution::Complete)
}

/// Returns whether a selected GPU is unreadable.
fn is_unreadable(args: &ReapArgs, snapshot: &Snapshot) -> bool {
    let mut asked = snapshot.clone();
    observe::selection(args).retain_gpus(&mut asked);
    unreadable(&asked)
}
