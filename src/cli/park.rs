//! `gpumem park` and `gpumem unpark`: move the GPU memory of processes to host memory and back.
//!
//! `park` makes, shows and carries out a plan like `gpumem reap`. `unpark` restores processes in the journals.
//! [`restore_busy_notebooks`] is `unpark --watch`, which the unattended service also runs. [`crate::reclaim::park`]
//! decides whether a process can be parked, and performs each operation in a helper process.

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::{Duration, Instant};

use super::args::{Global, HowToKill, NamedTargets, ParkArgs, ReapArgs, Stored, UnparkArgs, Where};
use super::exit::{Exit, UsageError};
use super::{config, live, nvml_options, print, reap, store, warn};
use crate::host::{Roots, Users, has_gained_rights, read_clocks, read_rights, read_total_memory};
use crate::model::process::ParkState;
use crate::model::{Identity, Snapshot};
use crate::reclaim::park::journal::ParkRecord;
use crate::reclaim::park::{
    ParkAnswer, ParkOperation, ParkResult, ParkSettings, find_room, perform, read_records,
};
use crate::report::escape::escape;
use crate::report::refusal::RefusalPlace;
use crate::source::live::Live;
use crate::units::{Bytes, Span};

/// Interval between attempts to restore a process, and between checks of parked notebooks.
const INTERVAL: Duration = Duration::from_secs(2);
const MOST_WAIT: Duration = Duration::from_secs(30 * 86_400);

/// Installs the settings for parking. Installs nothing if the options or the configuration are invalid.
pub(super) fn install(global: &Global) {
    // Ignore errors here: a command that acts reads the configuration again, and reports its errors.
    if let (Ok(options), Ok(config)) = (nvml_options(global), config::load(global)) {
        let settings = ParkSettings {
            journals: store::park_journals(),
            nvml_library: options.library,
            nvml_timeout: options.timeout,
            most_bytes: config.park.most_memory.in_bytes(read_total_memory(&Roots::default())),
            check_interval: Duration::from_secs(1),
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
    // If `install` could not install the settings, one of these calls fails with the reason.
    store::state()?;
    nvml_options(global)?;
    config::load(global)?;
    ParkSettings::current()
        .ok_or_else(|| UsageError("there is no state directory".to_owned()).into())
}

pub(super) fn run(args: ParkArgs, global: &Global) -> anyhow::Result<Exit> {
    let settings = settings(global)?;
    if args.list {
        return list(settings, global);
    }
    let targets = NamedTargets {
        target: args.target,
        terms: Where::default(),
        yes: args.yes,
        dry_run: args.dry_run,
        stored: Stored::default(),
    };
    let args = ReapArgs {
        how: HowToKill { all_users: args.all_users, kept: args.kept, ..HowToKill::default() },
        parks: true,
        ..ReapArgs::named(targets)?
    };
    reap::run_at(RefusalPlace::Release, &args, global)
}

/// Prints a line for each parked process.
fn list(settings: &ParkSettings, global: &Global) -> anyhow::Result<Exit> {
    let is_parked = |record: &ParkRecord| record.state() != ParkState::Running;
    let mut records = read_records(settings);
    records.retain(is_parked);
    let live = (!records.is_empty()).then(|| live(global, INTERVAL));
    let snapshot = live.and_then(Result::ok).map(|mut live| live.sample());
    if let Some(snapshot) = &snapshot {
        records = records.into_iter().map(|record| record.corrected(snapshot)).collect();
        records.retain(is_parked);
    }
    if records.is_empty() {
        print("no process is parked\n")?;
    }
    let mut users = Users::default();
    for record in &records {
        let user = users.name(record.process.uid, read_clocks().boottime_ns);
        let user = user.map_or_else(|| record.process.uid.to_string(), |user| user.to_string());
        print(&format!("{}\n", escape(&line(record, &user, snapshot.as_ref()))))?;
    }
    Ok(Exit::Clean)
}

fn line(record: &ParkRecord, user: &str, snapshot: Option<&Snapshot>) -> String {
    let gpus: Vec<String> = record.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let state = match record.state() {
        ParkState::Parked => {
            format!("parked {} of GPU {}", Bytes(record.process.bytes), gpus.join(", "))
        }
        ParkState::Locked => "locked: its CUDA calls wait; gpumem unpark unlocks it".to_owned(),
        ParkState::Lost => "its CUDA state is lost; end it".to_owned(),
        ParkState::InProgress => format!("the helper ({}) is at work", record.helper.0),
        ParkState::Unknown => "its state is unknown; the driver does not report it".to_owned(),
        ParkState::Running => "runs".to_owned(),
    };
    let room = match (record.state(), snapshot.map(|snapshot| find_room(&record.gpus, snapshot))) {
        (ParkState::Parked, Some(Ok(_))) => "; there is room to restore it".to_owned(),
        (ParkState::Parked, Some(Err(why))) => format!("; no room: {why}"),
        _ => String::new(),
    };
    let failure = record.failure.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
    let (pid, since, name) = (record.process.pid, record.time.local(), name(record));
    format!("{pid} {user} {name}: {state} since {since}{failure}{room}")
}

fn name(record: &ParkRecord) -> &str {
    record.process.notebook.as_deref().unwrap_or(&record.process.name)
}

pub(super) fn unpark(args: &UnparkArgs, global: &Global) -> anyhow::Result<Exit> {
    let settings = settings(global)?;
    if args.watch {
        return restore_busy_notebooks(global, |_, _| {});
    }
    let records = read_records(settings);
    let mut chosen: BTreeMap<_, &ParkRecord> = BTreeMap::new();
    let mut is_complete = true;
    for word in &args.target {
        let is_chosen =
            |record: &&ParkRecord| record.state() != ParkState::Running && is_called(record, word);
        let before = chosen.len();
        // Restore the processes in the order in which they were parked.
        chosen.extend(records.iter().filter(is_chosen).map(|r| ((r.time, r.process.pid), r)));
        if chosen.len() == before && word != "all" {
            is_complete = false;
            warn(&format!("{word} is not parked; `gpumem park --list` shows what is"));
        }
    }
    if chosen.is_empty() && is_complete {
        print("no process is parked\n")?;
    }
    let deadline = args.wait_free.map(|Span(time)| Instant::now() + time.min(MOST_WAIT));
    for record in chosen.into_values() {
        let answer = loop {
            let answer = restore(record);
            let may_wait = deadline.is_some_and(|deadline| Instant::now() < deadline);
            if answer.result != ParkResult::NoRoom || !may_wait {
                break answer;
            }
            thread::sleep(INTERVAL);
        };
        is_complete &= answer.result == ParkResult::Running;
        print(&format!("{}: {}\n", record.process.pid, escape(&answer.text)))?;
    }
    Ok(if is_complete { Exit::Clean } else { Exit::Findings })
}

/// Restores parked notebooks that run a cell, until gpumem exits. The cell's CUDA calls wait meanwhile. Calls `no_room`
/// with the reason, once for each cell, if too little memory is free.
pub(super) fn restore_busy_notebooks(
    global: &Global,
    no_room: impl Fn(&ParkRecord, &str),
) -> anyhow::Result<Exit> {
    let mut source: Option<Live> = None;
    // The last result for each notebook that runs a cell.
    let mut results: HashMap<Identity, ParkResult> = HashMap::new();
    loop {
        let mut records = store::park_journals().read();
        records.retain(|record| record.state() == ParkState::Parked);
        if records.is_empty() {
            // Without a parked process, there is nothing to sample.
            source = None;
            results.clear();
            thread::sleep(INTERVAL);
            continue;
        }
        let snapshot = match &mut source {
            Some(live) => live.sample(),
            None => source.insert(live(global, INTERVAL)?).sample(),
        };
        for record in records {
            let identity = record.identity();
            let mut processes = snapshot.processes.iter();
            let process = processes.find(|process| process.identity() == identity);
            let jupyter = process.and_then(|process| process.jupyter.as_deref());
            let state = jupyter.and_then(|jupyter| jupyter.execution_state.as_deref());
            if state != Some("busy") {
                results.remove(&identity);
                continue;
            }
            let last = results.get(&identity).copied();
            let ParkAnswer { result, text: why, .. } =
                match (find_room(&record.gpus, &snapshot), last) {
                    (Ok(_), None | Some(ParkResult::NoRoom)) => restore(&record),
                    (Err(why), None) => ParkAnswer::new(ParkResult::NoRoom, why),
                    // There is still no room, or gpumem has already tried to restore the notebook for this cell.
                    _ => continue,
                };
            results.insert(identity, result);
            if last != Some(result) {
                warn(&format!("{} ({}) runs a cell: {why}", record.process.pid, name(&record)));
                if result == ParkResult::NoRoom {
                    no_room(&record, &why);
                }
            }
        }
        thread::sleep(INTERVAL);
    }
}

fn restore(record: &ParkRecord) -> ParkAnswer {
    let is_own = record.process.uid == rustix::process::geteuid().as_raw();
    if is_own || read_rights(&Roots::default().proc).can_trace == Some(true) {
        return perform(ParkOperation::Unpark, &record.process);
    }
    ParkAnswer::new(ParkResult::Refused, "it belongs to another user; that requires root")
}

/// Returns whether a word means the process: its pid, the end of its notebook's path, or `all`.
fn is_called(record: &ParkRecord, word: &str) -> bool {
    let is_end = |path: &str| {
        let rest = path.strip_suffix(word.trim_start_matches("./"));
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    };
    word == "all"
        || word == record.process.pid.to_string()
        || (!word.is_empty() && record.process.notebook.as_deref().is_some_and(is_end))
}
