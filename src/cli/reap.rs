//! `gpumem reap`, `gpumem kill` and `gpumem release`: make a plan, ask for confirmation, act, and report the freed
//! memory.
//!
//! `observe` reads the arguments, and samples the machine or reads a recording. `execute` asks the user and carries out
//! the plan. `unattended` runs the service. [`crate::reclaim`] decides which processes to end or to ask, and is the
//! only code that signals them.

pub(super) mod execute;
pub(super) mod observe;
mod unattended;

use self::execute::confirmed;
pub(super) use self::execute::tools_here;
use self::observe::Observation;
use super::args::{Global, HowToKill, Kill, ReapArgs, ReleaseArgs};
use super::exit::Exit;
use super::{print, signals, store, style, terminal_width, unreadable, warn};
use crate::model::Snapshot;
use crate::model::json::document;
use crate::reclaim::ledger::{self, PastAct};
use crate::reclaim::park::check_parks;
use crate::reclaim::release::{PlannedTarget, ReleaseOptions, probe_targets};
use crate::reclaim::{Guard, Target};
use crate::report::escape::escape;
use crate::report::reap::{self as text, ReapHistory, ReapReport, ReapStatus, SCHEMA};
use crate::report::refusal::{RefusalPlace, RefusalReader};
use crate::report::table::{Align, Table};
use crate::units::Span;

pub(super) fn kill(args: Kill, global: &Global) -> anyhow::Result<Exit> {
    let args = ReapArgs { how: args.how, ..ReapArgs::named(args.targets)? };
    run_at(RefusalPlace::Kill, &args, global)
}

pub(super) fn release(args: ReleaseArgs, global: &Global) -> anyhow::Result<Exit> {
    let milliseconds = |span: Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
    let release = ReleaseOptions {
        collects: !args.no_gc,
        references: args.references,
        is_named: true,
        insists: args.force,
        wait_ms: milliseconds(args.wait),
        idle_ms: milliseconds(args.idle_for),
        pci_bus_ids: Vec::new(),
    };
    let args = ReapArgs {
        json: args.json,
        how: HowToKill { all_users: args.all_users, kept: args.kept, ..HowToKill::default() },
        release: Some(release),
        ..ReapArgs::named(args.targets)?
    };
    run_at(RefusalPlace::Release, &args, global)
}

pub(super) fn run(args: &ReapArgs, global: &Global) -> anyhow::Result<Exit> {
    if args.watch {
        return unattended::run(args, global);
    }
    if args.history {
        return show_history(args.json, global);
    }
    run_at(RefusalPlace::Reap, args, global)
}

pub(super) fn run_at(
    place: RefusalPlace,
    args: &ReapArgs,
    global: &Global,
) -> anyhow::Result<Exit> {
    let mut report = ReapReport { schema: SCHEMA, ..ReapReport::default() };
    let executed = plan_and_act(place, args, global, &mut report);
    if let Err(error) = &executed {
        report.fail(&format!("{error:#}"));
    }
    report.freed_bytes = report.freed_bytes.map(|_| report.freed());
    if args.json {
        print(&document(&report)?)?;
    }
    let (execution, is_refused) = executed?;
    if !args.json && report.freed_bytes.is_some() && !report.targets.is_empty() {
        print(&text::total(&report))?;
    }
    if let Execution::Interrupted(signal) = execution {
        // Die from the signal, so that a script that runs gpumem ends as well.
        signals::end_as_by(signal)?;
    }
    Ok(match report.status {
        // `kill` fails if nothing was sent, unless `--dry-run` was given.
        ReapStatus::Planned
            if is_refused
                || execution == Execution::Declined
                || (place == RefusalPlace::Kill && !args.dry_run) =>
        {
            Exit::Findings
        }
        ReapStatus::Planned | ReapStatus::Done => Exit::Clean,
        ReapStatus::Incomplete | ReapStatus::Interrupted => Exit::Findings,
        ReapStatus::Error => Exit::CannotMeasure,
    })
}

/// Makes the plan, and carries it out if the user agrees. Also returns whether a named target was refused.
fn plan_and_act(
    place: RefusalPlace,
    args: &ReapArgs,
    global: &Global,
    report: &mut ReapReport,
) -> anyhow::Result<(Execution, bool)> {
    let reader = RefusalReader::new(place);
    let observation = Observation::new(args, global)?;
    let (mut plan, guard) = observation.plan(args)?;
    if observation.live.is_some() && check_parks(&mut plan, &observation.snapshot) > 0 {
        let version = observation.snapshot.driver.version.as_deref().unwrap_or("unknown");
        warn(&format!("parking is experimental, and was not verified with driver {version}"));
    }
    let errors = observation.snapshot.errors.clone();
    *report = ReapReport::new(plan, observation.undecided.clone(), errors);
    report.is_replay = observation.live.is_none();
    if args.release.is_some() {
        probe_targets(&mut report.targets);
    }
    if !args.json {
        let style = style(global.color);
        print(&match args.release {
            Some(_) => text::release_plan(report, &observation.snapshot, style, reader),
            None => text::plan(report, style, reader),
        })?;
    }
    if observation.is_named() {
        let members = report.targets.iter().flat_map(|planned| &planned.target.members);
        for pid in members.map(|member| member.pid) {
            let process = observation.snapshot.process(pid);
            if process.is_some_and(|process| process.environment.is_none()) {
                warn(&format!(
                    "{pid}: it is unknown whether the owner protects it (GPUMEM_KEEP): its environment cannot \
                    be read, or was overwritten"
                ));
            }
        }
    }
    // If there are no targets but a GPU is unreadable, the report must not say "nothing to do".
    let is_blind = report.targets.is_empty() && is_unreadable(args, &observation.snapshot);
    // A refusal makes the result incomplete, even if the rest of the plan is carried out.
    let is_refused = (observation.is_named() && !report.refused.is_empty())
        || report.targets.iter().any(|planned| planned.target.is_advice() || !planned.is_due())
        // `kill`, `release` and `park` fail without a target, for example if `--where` excluded all named processes.
        || (place != RefusalPlace::Reap && report.targets.is_empty());
    let execution = carry_out(args, reader, observation, guard, report)?;
    if is_refused && report.status == ReapStatus::Done {
        report.status = ReapStatus::Incomplete;
    }
    if is_blind && !is_refused {
        const BLIND: &str = "a GPU cannot be read, and there is nothing to kill on the others";
        report.fail(BLIND);
        warn(BLIND);
    }
    Ok((execution, is_refused))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Execution {
    PlanOnly,
    Declined,
    Complete,
    /// The number of the signal that interrupted the plan.
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
    let due = report.due();
    if !args.yes {
        let mine: Vec<&Target> = due.iter().filter(|target| !target.is_advice()).collect();
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
    if due.is_empty() {
        report.status = ReapStatus::Done;
        return Ok(Execution::Complete);
    }
    let mut planned: Vec<&mut PlannedTarget> =
        report.targets.iter_mut().filter(|planned| planned.is_due()).collect();
    let observed = (live, engine, snapshot);
    let interrupted = execute::carry_out(observed, guard, due, |index, outcome| {
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
        return Ok(Execution::Interrupted(signal));
    }
    report.status = match report.ended() == report.targets.len() {
        true => ReapStatus::Done,
        false => ReapStatus::Incomplete,
    };
    Ok(Execution::Complete)
}

fn is_unreadable(args: &ReapArgs, snapshot: &Snapshot) -> bool {
    let mut asked = snapshot.clone();
    observe::selection(args).retain_gpus(&mut asked);
    unreadable(&asked)
}

fn show_history(json: bool, global: &Global) -> anyhow::Result<Exit> {
    let path = store::state()?.join(ledger::FILE_NAME);
    let past = ledger::read(&path, ledger::MOST_READ_BYTES)?;
    let name = path.display().to_string();
    let history = ReapHistory::new(name.as_str().into(), past);
    if json {
        print(&document(&history)?)?;
        return Ok(Exit::Clean);
    }
    if history.is_cut {
        warn(&format!("{name} is long; only its end is shown"));
    }
    if history.unread_lines > 0 {
        let count = history.unread_lines;
        warn(&format!("{name}: {count} damaged lines were skipped"));
    }
    if history.acts.is_empty() {
        print(&format!("no actions so far ({})\n", escape(&name)))?;
    } else {
        let columns =
            ["TIME", "BY", "PID", "USER", "WHY", "SENT", "OUTCOME"].map(|title| match title {
                "PID" => (title, Align::Right),
                _ => (title, Align::Left),
            });
        let mut table = Table::new(&columns);
        history.acts.iter().for_each(|act| table.row(history_row(act)));
        let style = style(global.color);
        print(&table.render(terminal_width(), |heading| style.heading(heading)))?;
    }
    Ok(Exit::Clean)
}

fn history_row(act: &PastAct) -> Vec<String> {
    let unknown = || "-".to_owned();
    let target = act.target.as_deref();
    let lead = target.and_then(text::lead);
    let by = act.actor.as_ref().map(|actor| match (&actor.sudo_user, &actor.user) {
        (Some(user), _) => format!("{} (sudo)", escape(user)),
        (None, Some(user)) => escape(user).into_owned(),
        (None, None) => actor.uid.to_string(),
    });
    let sent: Vec<String> = act
        .deeds
        .iter()
        .map(|sent| {
            let words = text::deed(&sent.deed);
            match &sent.failures {
                Some(failures) if failures.is_empty() => words,
                Some(failures) => format!("{words} ({})", text::failures(failures)),
                None => format!("{words} (perhaps)"),
            }
        })
        .collect();
    let outcome = act.outcome.as_ref().map(ToString::to_string);
    vec![
        act.time.local().to_string(),
        by.unwrap_or_else(unknown),
        lead.map_or_else(unknown, |process| process.pid.to_string()),
        lead.map_or_else(unknown, text::owner),
        target.map_or_else(unknown, text::why),
        match sent.is_empty() {
            true => "nothing".to_owned(),
            false => sent.join(", "),
        },
        match outcome {
            Some(outcome) => escape(&outcome).into_owned(),
            None => "unknown: gpumem exited first".to_owned(),
        },
    ]
}
