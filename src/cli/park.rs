//! `gpumem park` and `gpumem unpark`: move the GPU memory of processes to host memory and back.
//!
//! `park` makes a plan, checks each target, asks for confirmation, and carries out the plan like `gpumem release`.
//! [`crate::reclaim::park`] decides whether a process can be parked, and performs each operation in a helper process.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::args::{Global, HowToKill, NamedTargets, ParkArgs, ReapArgs, Stored, UnparkArgs, Where};
use super::exit::{Exit, UsageError};
use super::reap::execute::{self, confirmed};
use super::reap::observe::Observation;
use super::{config, live, nvml_options, print, signals, store, style, warn};
use crate::host::{Roots, Users, has_gained_rights, read_clocks, read_rights, read_total_memory};
use crate::model::process::ParkState;
use crate::model::{Identity, Snapshot};
use crate::reclaim::park::check::ParkCheck;
use crate::reclaim::park::journal::ParkRecord;
use crate::reclaim::park::{
    ParkAnswer, ParkOperation, ParkRequest, ParkSettings, find_room, patience, probe, read_records,
};
use crate::reclaim::{Outcome, Target};
use crate::report::escape::escape;
use crate::report::reap as text;
use crate::report::refusal::{RefusalPlace, RefusalReader, refusal};
use crate::source::Source as _;
use crate::source::live::Live;
use crate::units::{Bytes, Span};

/// Interval between checks of the free memory.
const LOOK: Duration = Duration::from_secs(1);
const MOST_WAIT: Duration = Duration::from_secs(30 * 86_400);
/// Interval between checks of the parked notebooks.
const WATCH: Duration = Duration::from_secs(2);
/// Drivers on which the checks of `tests/gpu` have passed.
const VERIFIED: &[&str] = &[];

/// Installs the settings that parking needs. If there is no state directory, no command parks.
pub(super) fn install(global: &Global) {
    // Ignore an invalid configuration here. A command that acts loads it again and reports the error.
    let park = config::load(global).map(|config| config.park);
    let facts = (store::park_states(), nvml_options(global), park);
    if let (Some(states), Ok(options), Ok(park)) = facts {
        let settings = ParkSettings {
            states,
            nvml_library: options.library,
            nvml_timeout: options.timeout,
            most_bytes: park.most_memory.in_bytes(read_total_memory(&Roots::default())),
        };
        settings.install();
    }
}

fn settings(global: &Global) -> anyhow::Result<&'static ParkSettings> {
    if has_gained_rights() {
        let why =
            "gpumem with file capabilities does not park; run it as the process's owner or as root";
        return Err(UsageError(why.to_owned()).into());
    }
    // If no settings are installed, one of these calls fails with the reason.
    store::state()?;
    nvml_options(global)?;
    config::load(global)?;
    ParkSettings::current()
        .ok_or_else(|| UsageError("there is no state directory".to_owned()).into())
}

pub(super) fn run(args: &ParkArgs, global: &Global) -> anyhow::Result<Exit> {
    let settings = settings(global)?;
    if args.list {
        return list(settings, global);
    }
    let targets = NamedTargets {
        target: args.target.clone(),
        terms: Where::default(),
        yes: args.yes,
        dry_run: args.dry_run,
        stored: Stored::default(),
    };
    let asked = ReapArgs {
        how: HowToKill { all_users: args.all_users, kept: args.kept, ..HowToKill::default() },
        parks: true,
        ..ReapArgs::named(targets)?
    };
    let observation = Observation::new(&asked, global)?;
    let (plan, guard) = observation.plan(&asked)?;
    warn_of_experiment(&observation.snapshot);
    let records: Vec<ParkRecord> = read_records(settings)
        .into_iter()
        .map(|record| record.corrected(&observation.snapshot))
        .collect();
    let reader = RefusalReader::new(RefusalPlace::Release);
    let mut out = String::new();
    let mut is_complete = plan.refused.is_empty() && !plan.targets.is_empty();
    let mut targets: Vec<Target> = Vec::new();
    for target in plan.targets {
        let obstacles = obstacles(&target, &observation.snapshot, &records, settings);
        out.push_str(&format!("{}\n", text::title(&target, style(global.color))));
        if obstacles.is_empty() {
            let steps = target
                .steps
                .iter()
                .map(|step| format!("    {}\n", escape(&step.describe(&target))));
            out.extend(steps);
            targets.push(target);
        } else {
            is_complete = false;
            let reasons =
                obstacles.iter().map(|why| format!("    cannot be parked: {}\n", escape(why)));
            out.extend(reasons);
        }
    }
    out.extend(
        plan.refused.iter().map(|refused| format!("skipped: {}\n", refusal(refused, reader))),
    );
    print(&out)?;
    let Observation { live: Some(mut live), mut engine, snapshot, .. } = observation else {
        return Ok(Exit::Findings);
    };
    if targets.is_empty() {
        return Ok(Exit::Findings);
    }
    if !args.yes {
        if args.dry_run || !execute::can_ask() {
            warn("dry run; add --yes to carry it out");
            return Ok(if is_complete && args.dry_run { Exit::Clean } else { Exit::Findings });
        }
        let question = format!("Park {}?", text::count(&targets.iter().collect::<Vec<_>>()));
        if !confirmed(&question, &mut live, &mut engine)? {
            return Ok(Exit::Findings);
        }
    }
    let leaders: Vec<u32> = targets.iter().map(|target| target.leader).collect();
    let interrupted =
        execute::carry_out((live, engine, snapshot), guard, targets, |index, outcome| {
            is_complete &= matches!(outcome, Outcome::Parked { .. });
            let pid = leaders.get(index).copied().unwrap_or_default();
            print(&format!("{pid}: {}\n", escape(&outcome.to_string())))
        })?;
    if let Some((signal, words)) = interrupted {
        warn(&format!("{words}; the helper finishes: see gpumem park --list"));
        signals::end_as_by(signal)?;
        is_complete = false;
    }
    Ok(if is_complete { Exit::Clean } else { Exit::Findings })
}

fn warn_of_experiment(snapshot: &Snapshot) {
    let version = snapshot.driver.version.as_deref().unwrap_or("unknown");
    if !VERIFIED.contains(&version) {
        warn(&format!("parking is experimental, and was not verified with driver {version}"));
    }
}

fn obstacles(
    target: &Target,
    snapshot: &Snapshot,
    records: &[ParkRecord],
    settings: &ParkSettings,
) -> Vec<String> {
    let check = ParkCheck {
        roots: &Roots::default(),
        snapshot,
        pid: target.leader,
        records,
        most_bytes: settings.most_bytes,
        is_ending: false,
    };
    let mut obstacles = check.obstacles();
    if obstacles.is_empty() {
        obstacles.extend(probe(target));
    }
    obstacles
}

fn list(settings: &ParkSettings, global: &Global) -> anyhow::Result<Exit> {
    let mut records = read_records(settings);
    records.retain(|record| record.state != ParkState::Running);
    let live = (!records.is_empty()).then(|| live(global, LOOK));
    let snapshot = live.and_then(Result::ok).map(|mut live| live.sample());
    if let Some(snapshot) = &snapshot {
        records = records.into_iter().map(|record| record.corrected(snapshot)).collect();
        records.retain(|record| record.state != ParkState::Running);
    }
    if records.is_empty() {
        print("no process is parked\n")?;
        return Ok(Exit::Clean);
    }
    let mut users = Users::default();
    for record in &records {
        let user = users.name(record.process.uid, read_clocks().boottime_ns);
        let user = user.map_or_else(|| record.process.uid.to_string(), |user| user.to_string());
        print(&format!("{}\n", line(record, &user, snapshot.as_ref())))?;
    }
    Ok(Exit::Clean)
}

fn line(record: &ParkRecord, user: &str, snapshot: Option<&Snapshot>) -> String {
    let process = &record.process;
    let name = escape(process.notebook.as_deref().unwrap_or(&process.name));
    let gpus: Vec<String> = process.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let bytes = Bytes(process.bytes());
    let state = match record.state {
        ParkState::Parked => format!("parked {bytes} of GPU {}", gpus.join(", ")),
        ParkState::Locked => "locked: its CUDA calls wait; gpumem unpark unlocks it".to_owned(),
        ParkState::Lost => "its CUDA state is lost; end it".to_owned(),
        ParkState::InProgress => format!("the helper ({}) is at work", record.helper),
        ParkState::Unknown => "its state is unknown; the driver does not report it".to_owned(),
        ParkState::Running => "runs".to_owned(),
    };
    let room = match (record.state, snapshot.map(|snapshot| find_room(&process.gpus, snapshot))) {
        (ParkState::Parked, Some(Ok(_))) => "; there is room to restore it".to_owned(),
        (ParkState::Parked, Some(Err(answer))) => format!("; no room: {}", escape(&answer.words())),
        _ => String::new(),
    };
    let failure = record.failure.as_deref().map(|why| format!(" ({})", escape(why)));
    let (pid, since, user) = (process.pid, record.since.local(), escape(user));
    format!("{pid} {user} {name}: {state} since {since}{}{room}", failure.unwrap_or_default())
}

pub(super) fn unpark(args: &UnparkArgs, global: &Global) -> anyhow::Result<Exit> {
    let settings = settings(global)?;
    if args.watch {
        return restore_busy(settings, global);
    }
    let records = read_records(settings);
    let mut chosen: BTreeMap<u32, ParkRecord> = BTreeMap::new();
    let mut is_complete = true;
    for word in &args.target {
        let found: Vec<&ParkRecord> = records
            .iter()
            .filter(|record| record.state != ParkState::Running && is_called(record, word))
            .collect();
        if found.is_empty() && word != "all" {
            is_complete = false;
            warn(&format!("{word} is not parked; `gpumem park --list` shows what is"));
        }
        chosen.extend(found.into_iter().map(|record| (record.process.pid, record.clone())));
    }
    if chosen.is_empty() && is_complete {
        print("no process is parked\n")?;
    }
    let deadline = args.wait_free.map(|Span(time)| Instant::now() + time.min(MOST_WAIT));
    let mut watched: Option<Live> = None;
    // Restore the process that was parked first.
    let mut chosen: Vec<ParkRecord> = chosen.into_values().collect();
    chosen.sort_by_key(|record| record.since);
    for record in chosen {
        let answer = loop {
            let answer = restore(&record);
            let is_late = deadline.is_none_or(|deadline| Instant::now() >= deadline);
            if !matches!(answer, ParkAnswer::NoRoom { .. }) || is_late {
                break answer;
            }
            // Check the free memory before starting a helper that would fail.
            let live = match &mut watched {
                Some(live) => live,
                None => watched.insert(live(global, LOOK)?),
            };
            loop {
                thread::sleep(LOOK);
                let is_late = deadline.is_none_or(|deadline| Instant::now() >= deadline);
                if is_late || find_room(&record.process.gpus, &live.sample()).is_ok() {
                    break;
                }
            }
        };
        is_complete &= matches!(answer, ParkAnswer::Running { .. });
        print(&format!("{}: {}\n", record.process.pid, escape(&answer.words())))?;
    }
    Ok(if is_complete { Exit::Clean } else { Exit::Findings })
}

/// Restores each parked notebook that runs a cell, until a signal ends gpumem. The CUDA calls of the cell block until
/// its notebook is restored.
fn restore_busy(settings: &ParkSettings, global: &Global) -> anyhow::Result<Exit> {
    let mut live = live(global, WATCH)?;
    // Busy notebooks for which a message was printed, and whether to retry.
    let mut told: Vec<(Identity, bool)> = Vec::new();
    while let Some(snapshot) = live.next()? {
        for record in settings.journals().read(&Roots::default()) {
            let identity = record.process.identity();
            let mut processes = snapshot.processes.iter();
            let process = processes.find(|process| process.identity() == identity);
            let jupyter = process.and_then(|process| process.jupyter.as_deref());
            let is_busy =
                jupyter.is_some_and(|jupyter| jupyter.execution_state.as_deref() == Some("busy"));
            if record.state != ParkState::Parked || !is_busy {
                told.retain(|(other, _)| *other != identity);
                continue;
            }
            let answer = match find_room(&record.process.gpus, &snapshot) {
                // After a failed restore, do not retry until the next cell.
                Ok(_) if told.contains(&(identity, false)) => continue,
                Ok(_) => restore(&record),
                Err(answer) => answer,
            };
            let may_repeat = matches!(answer, ParkAnswer::NoRoom { .. });
            let is_told = told.iter().any(|(other, _)| *other == identity);
            if !may_repeat || !is_told {
                let name = record.process.notebook.as_deref().unwrap_or(&record.process.name);
                warn(&format!("{} ({name}) runs a cell: {}", record.process.pid, answer.words()));
                told.push((identity, may_repeat));
            }
        }
    }
    Ok(Exit::Clean)
}

fn restore(record: &ParkRecord) -> ParkAnswer {
    let roots = Roots::default();
    let is_own = record.process.uid == rustix::process::geteuid().as_raw();
    if !is_own && read_rights(&roots.proc).can_trace != Some(true) {
        let why = "it belongs to another user; that requires root".to_owned();
        return ParkAnswer::Refused { why };
    }
    match ParkRequest::of_record(ParkOperation::Unpark, &record.process) {
        Some(request) => request.perform(patience(record.process.bytes())),
        None => {
            ParkAnswer::Refused { why: "it was parked before the machine restarted".to_owned() }
        }
    }
}

/// Returns whether a word matches the process: its pid, the end of its notebook's path, or `all`.
fn is_called(record: &ParkRecord, word: &str) -> bool {
    let is_end = |path: &str| {
        let rest = path.strip_suffix(word.trim_start_matches("./"));
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    };
    word == "all"
        || word == record.process.pid.to_string()
        || (!word.is_empty() && record.process.notebook.as_deref().is_some_and(is_end))
}
