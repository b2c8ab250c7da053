//! Finds values for an argument in the argument's definition, in the configuration, and in one sample of this machine
//! or a recording. If the driver or the recording cannot be read, no processes, GPUs or users are listed.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory as _;
use clap::builder::PossibleValue;

use super::cursor::Cursor;
use crate::cli::args::{Cli, Recorded};
use crate::cli::selection::current_user;
use crate::cli::{config, live, recorded, session};
use crate::model::field::{self, Field, GroupName};
use crate::model::row::{ProcessRow, notebook, places};
use crate::model::totals::{Total, totals};
use crate::model::{Kind, Process, Snapshot, Time};
use crate::reclaim::Signal;
use crate::report::escape::program;
use crate::rules::RuleSet;
use crate::units::Bytes;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OfferedValue {
    /// The value without quotes, which the completion script adds.
    pub(super) value: String,
    pub(super) description: String,
}

impl OfferedValue {
    pub(super) fn new(value: impl ToString, description: impl ToString) -> Self {
        Self { value: value.to_string(), description: description.to_string() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ValueKind {
    Pids,
    Gpus,
    Users,
    Targets,
    Rules,
    Signals,
    Commands,
}

/// Returns the kind of an argument's values. Returns `None` if clap knows the values, or if the values cannot be
/// listed, for example because they are times.
fn value_kind(command: &str, id: &str) -> Option<ValueKind> {
    Some(match (command, id) {
        (_, "pid") => ValueKind::Pids,
        (_, "gpu") => ValueKind::Gpus,
        (_, "user") => ValueKind::Users,
        (_, "target") => ValueKind::Targets,
        ("rules", "name") => ValueKind::Rules,
        (_, "signal") => ValueKind::Signals,
        ("man", "command") => ValueKind::Commands,
        _ => return None,
    })
}

/// Returns candidates for the value at the cursor. Each includes the part of the word before the value.
pub(super) fn find(cursor: &Cursor) -> Vec<OfferedValue> {
    let mut found = match value_kind(&cursor.command, cursor.id()) {
        None => defined(cursor),
        Some(kind) => values(kind, cursor),
    };
    let mut unique = HashSet::new();
    found.retain(|candidate| unique.insert(candidate.value.clone()));
    found.iter_mut().for_each(|candidate| candidate.value.insert_str(0, &cursor.head));
    found
}

fn defined(cursor: &Cursor) -> Vec<OfferedValue> {
    let mut words = cursor.argument.get_possible_values();
    words.retain(|word| !word.is_hide_set());
    let offered = |word: &PossibleValue| {
        let help = word.get_help().map(ToString::to_string);
        OfferedValue::new(word.get_name(), help.unwrap_or_default())
    };
    words.iter().map(offered).collect()
}

fn values(kind: ValueKind, cursor: &Cursor) -> Vec<OfferedValue> {
    match kind {
        ValueKind::Pids | ValueKind::Targets => {
            let snapshot = sample(cursor);
            let mut found = pids(&snapshot, kind == ValueKind::Pids);
            if kind == ValueKind::Targets {
                found.extend(gpus(&snapshot, &cursor.typed, "gpu:"));
                found.extend(notebooks(&snapshot));
            }
            let typed = cursor.values(cursor.id());
            found.retain(|candidate| !typed.contains(&&*candidate.value));
            found
        }
        ValueKind::Gpus => gpus(&sample(cursor), &cursor.typed, ""),
        ValueKind::Users => users(&sample(cursor)),
        ValueKind::Rules => rules(cursor),
        ValueKind::Signals => Signal::ASKED
            .iter()
            .map(|signal| OfferedValue::new(signal.name().trim_start_matches("SIG"), ""))
            .collect(),
        ValueKind::Commands => Cli::command()
            .get_subcommands()
            .map(|command| {
                let about = command.get_about().map(ToString::to_string);
                OfferedValue::new(command.get_name(), about.unwrap_or_default())
            })
            .collect(),
    }
}

/// Returns one sample of this machine or the last snapshot of the recording. On failure, returns an empty snapshot.
fn sample(cursor: &Cursor) -> Snapshot {
    let source = Recorded {
        // Standard input belongs to the shell, so completion cannot read a recording from it.
        replay: cursor.value("replay").filter(|path| *path != "-").map(PathBuf::from),
        demo: cursor.is_set("demo"),
    };
    let mut last = None;
    match recorded(&source) {
        // Ignore the error: the snapshots before a damaged line are enough.
        Ok(Some(mut replay)) => drop(session::play(&mut replay, |snapshot| {
            last = Some(snapshot);
            ControlFlow::Continue(())
        })),
        // Completion must not load the library in `--nvml-library` before the user presses Enter.
        Ok(None) if cursor.value("nvml_library").is_none() => {
            let live = live(&super::global_options(cursor), Duration::from_secs(1));
            last = live.ok().map(|mut live| live.sample());
        }
        _ => {}
    }
    last.unwrap_or_else(|| Snapshot::new(Time::default()))
}

/// Returns the rows of processes that could be identified.
fn rows(snapshot: &Snapshot) -> Vec<ProcessRow<'_>> {
    let places = places(snapshot, &[]).into_iter();
    places
        .map(|place| ProcessRow::new(snapshot, &[], place))
        .filter(|row| row.process.is_ok())
        .collect()
}

fn command_line(process: &Process) -> String {
    program(process.command.as_deref(), process.comm.as_deref()).unwrap_or_default()
}

#[derive(Default)]
struct OnGpus<'a> {
    row: Option<ProcessRow<'a>>,
    bytes: Option<u64>,
    gpus: Vec<String>,
}

/// Lists processes with user, memory, GPUs and command. If `is_listed` is set, omits processes that NVML does not list.
/// The caller's processes come first. In both groups, the processes with the most memory come first.
fn pids(snapshot: &Snapshot, is_listed: bool) -> Vec<OfferedValue> {
    let mut found: BTreeMap<u32, OnGpus<'_>> = BTreeMap::new();
    for row in rows(snapshot) {
        let Some(pid) = row.pid().filter(|_| row.is_listed() || !is_listed) else {
            continue;
        };
        let on = found.entry(pid).or_default();
        if let Some(bytes) = row.used_bytes() {
            on.bytes = Some(on.bytes.unwrap_or_default().saturating_add(bytes));
        }
        on.gpus.extend(row.gpu.map(|gpu| gpu.index.to_string()));
        on.row.get_or_insert(row);
    }
    let me = current_user();
    let mut found: Vec<(u32, OnGpus<'_>)> = found.into_iter().collect();
    found.sort_by_key(|(_, on)| {
        let is_mine = on.row.and_then(|row| row.is_of(&me)) == Some(true);
        (!is_mine, std::cmp::Reverse(on.bytes))
    });
    let candidate = |(pid, on): (u32, OnGpus<'_>)| {
        let row = on.row?;
        let mut words = vec![Field::User.text(&row).unwrap_or_else(|| field::UNKNOWN.to_owned())];
        words.extend(on.bytes.map(|bytes| Bytes(bytes).to_string()));
        if !on.gpus.is_empty() {
            words.push(format!("GPU {}", on.gpus.join(",")));
        }
        words.push(command_line(row.process.ok()?));
        Some(OfferedValue::new(pid, words.join("  ")))
    };
    found.into_iter().filter_map(candidate).collect()
}

/// Lists the indices of GPUs. If the typed text looks like a UUID, lists the UUIDs of GPUs and MIG devices instead.
fn gpus(snapshot: &Snapshot, typed: &str, before_index: &str) -> Vec<OfferedValue> {
    let mut found = Vec::new();
    for gpu in &snapshot.gpus {
        let name = gpu.name.as_deref().unwrap_or("GPU");
        let free = gpu.memory.map(|memory| {
            let (free, total) = (Bytes(memory.free_bytes), Bytes(memory.total_bytes));
            format!("  {free} of {total} free")
        });
        let description = format!("{name}{}", free.unwrap_or_default());
        if !typed.starts_with(['G', 'M']) {
            let index = format!("{before_index}{}", gpu.index);
            found.push(OfferedValue::new(index, description));
            continue;
        }
        let description = format!("GPU {}  {description}", gpu.index);
        found.extend(gpu.uuid.iter().map(|uuid| OfferedValue::new(uuid, &description)));
        for part in &gpu.mig_devices {
            let description = format!("{} of GPU {}", part.name_on(gpu.index), gpu.index);
            found.extend(part.uuid.iter().map(|uuid| OfferedValue::new(uuid, &description)));
        }
    }
    found
}

fn users(snapshot: &Snapshot) -> Vec<OfferedValue> {
    let mut rows = rows(snapshot);
    rows.retain(ProcessRow::is_listed);
    let offered = |total: Total| {
        let GroupName::Named(user) = total.group else { return None };
        let many = if total.processes == 1 { "process" } else { "processes" };
        let held = total.used_bytes.map(|bytes| format!("  {}", Bytes(bytes)));
        let held = held.unwrap_or_default();
        Some(OfferedValue::new(user, format!("{} {many}{held}", total.processes)))
    };
    totals(&rows, Field::User, |_| false).into_iter().filter_map(offered).collect()
}

fn notebooks(snapshot: &Snapshot) -> Vec<OfferedValue> {
    let rows = rows(snapshot);
    let processes = rows.iter().filter_map(|row| row.process.ok());
    let named = processes
        .filter_map(|process| Some(OfferedValue::new(notebook(process)?, command_line(process))));
    named.collect()
}

/// Lists the enabled and disabled rules, and the kinds of rules. If the configuration is invalid, lists the built-in
/// rules.
fn rules(cursor: &Cursor) -> Vec<OfferedValue> {
    let config = config::load(&super::global_options(cursor));
    let set = config.map_or_else(|_| RuleSet::default(), |config| config.rules);
    let rules = set.rules().iter();
    let rules = rules.map(|rule| OfferedValue::new(&rule.name, rule.made_of.meaning));
    let kinds = Kind::ALL.iter();
    rules.chain(kinds.map(|kind| OfferedValue::new(kind.name(), "rules of this kind"))).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Command, ValueHint};

    use super::*;

    /// Arguments whose values cannot be listed, such as sizes and times.
    const NOT_OFFERED: &str = "nvml_timeout window interval max_used max_peak at asked gpus max_unattributed timeout wait \
        wait_free grace idle_for speed size keys duration history_span listen serve store_age \
        store_size framework terms";

    #[test]
    fn every_argument_has_candidates_or_is_listed_as_without() {
        fn check(command: &Command) {
            for argument in command.get_arguments() {
                let id = argument.get_id().as_str();
                let is_known = !argument.get_action().takes_values()
                    || argument.get_value_hint() != ValueHint::Unknown
                    || !argument.get_possible_values().is_empty()
                    || value_kind(command.get_name(), id).is_some();
                assert_ne!(
                    is_known,
                    NOT_OFFERED.split(' ').any(|other| other == id),
                    "{} {id}: give it values in `value_kind`, or list it here",
                    command.get_name()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
