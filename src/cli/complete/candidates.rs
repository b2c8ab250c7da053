//! Finds values for an argument in the argument's definition, in the configuration, and in one sample of this machine
//! or a recording. If the driver or the recording cannot be read, no processes, GPUs or users are listed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use super::Sources;
use super::cursor::Cursor;
use crate::cli::selection::current_user;
use crate::cli::{config, live, man, recorded, session};
use crate::model::field::{self, Field};
use crate::model::row::{ProcessRow, notebook, places};
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

/// Returns the kind of an argument's values. Returns `None` if clap knows the values, or if they cannot be listed,
/// such as times.
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

/// Returns the candidates for the value that is being typed, with the typed part before the value.
pub(super) fn find(cursor: &Cursor) -> Vec<OfferedValue> {
    let before = &cursor.head;
    let found = match value_kind(&cursor.command, cursor.id()) {
        None => defined(cursor),
        Some(kind) => values(kind, cursor),
    };
    let mut unique = HashSet::new();
    found
        .into_iter()
        .filter(|candidate| unique.insert(candidate.value.clone()))
        .map(|candidate| OfferedValue {
            value: format!("{before}{}", candidate.value),
            ..candidate
        })
        .collect()
}

fn defined(cursor: &Cursor) -> Vec<OfferedValue> {
    let words = cursor.argument.get_possible_values().into_iter();
    words
        .filter(|word| !word.is_hide_set())
        .map(|word| {
            let help = word.get_help().map(ToString::to_string);
            OfferedValue::new(word.get_name(), help.unwrap_or_default())
        })
        .collect()
}

fn values(kind: ValueKind, cursor: &Cursor) -> Vec<OfferedValue> {
    let sources = Sources::from_cursor(cursor);
    let observed = || sample_or_empty(&sources);
    match kind {
        ValueKind::Pids | ValueKind::Targets => {
            let typed = cursor.values(cursor.id());
            let mut found = match kind {
                ValueKind::Pids => pids(&observed(), true),
                _ => targets(&observed(), &cursor.typed),
            };
            found.retain(|candidate| !typed.contains(&&*candidate.value));
            found
        }
        ValueKind::Gpus => gpus(&observed(), &cursor.typed, ""),
        ValueKind::Users => users(&observed()),
        ValueKind::Rules => rules(&sources, cursor.command == "rules"),
        ValueKind::Signals => Signal::ASKED
            .iter()
            .map(|signal| OfferedValue::new(signal.name().trim_start_matches("SIG"), ""))
            .collect(),
        ValueKind::Commands => man::commands()
            .into_iter()
            .map(|(name, about)| OfferedValue::new(name, about))
            .collect(),
    }
}

/// Returns one sample of this machine or the last snapshot of the recording. On failure, returns an empty snapshot.
fn sample_or_empty(sources: &Sources) -> Snapshot {
    observe(sources).unwrap_or_else(|| Snapshot::new(Time::default()))
}

fn observe(sources: &Sources) -> Option<Snapshot> {
    let mut last = None;
    match recorded(&sources.recorded).ok()? {
        Some(mut replay) => session::play(&mut replay, |snapshot| {
            last = Some(snapshot);
            ControlFlow::Continue(())
        })
        .ok()?,
        None if sources.names_library => {}
        None => last = Some(live(&sources.global, Duration::from_secs(1)).ok()?.sample()),
    }
    last
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

/// Lists processes with user, memory, GPUs and command. If `is_listed` is set, omits those that NVML does not list.
/// The caller's processes come first; within both groups, those with the most memory do.
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

/// Lists the indices of GPUs, or the UUIDs of GPUs and MIG devices if the typed text begins like a UUID.
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

/// Lists the users of processes on GPUs, with the number and memory of their processes.
fn users(snapshot: &Snapshot) -> Vec<OfferedValue> {
    let mut found: BTreeMap<String, (BTreeSet<u32>, Option<u64>)> = BTreeMap::new();
    for row in rows(snapshot).iter().filter(|row| row.is_listed()) {
        let Some((user, pid)) = Field::User.text(row).zip(row.pid()) else {
            continue;
        };
        let (pids, bytes) = found.entry(user).or_default();
        pids.insert(pid);
        if let Some(more) = row.used_bytes() {
            *bytes = Some(bytes.unwrap_or_default().saturating_add(more));
        }
    }
    let candidate = |(user, (pids, bytes)): (String, (BTreeSet<u32>, Option<u64>))| {
        let many = if pids.len() == 1 { "process" } else { "processes" };
        let held = bytes.map(|bytes| format!("  {}", Bytes(bytes)));
        OfferedValue::new(user, format!("{} {many}{}", pids.len(), held.unwrap_or_default()))
    };
    found.into_iter().map(candidate).collect()
}

fn targets(snapshot: &Snapshot, typed: &str) -> Vec<OfferedValue> {
    let mut found = pids(snapshot, false);
    found.extend(gpus(snapshot, typed, "gpu:"));
    found.extend(notebooks(snapshot));
    found
}

fn notebooks(snapshot: &Snapshot) -> Vec<OfferedValue> {
    let rows = rows(snapshot);
    let processes = rows.iter().filter_map(|row| row.process.ok());
    let named = processes
        .filter_map(|process| Some(OfferedValue::new(notebook(process)?, command_line(process))));
    named.collect()
}

/// Lists the enabled and disabled rules, and the kinds of rules if requested. If the configuration is invalid, lists
/// the built-in rules.
fn rules(sources: &Sources, with_kinds: bool) -> Vec<OfferedValue> {
    let set =
        config::load(&sources.global).map_or_else(|_| RuleSet::default(), |config| config.rules);
    let rules = set.rules().iter();
    let mut found: Vec<_> =
        rules.map(|rule| OfferedValue::new(&rule.name, rule.made_of.meaning)).collect();
    if with_kinds {
        let kinds = Kind::ALL.iter();
        found.extend(kinds.map(|kind| OfferedValue::new(kind.name(), "rules of this kind")));
    }
    found
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _, ValueHint};

    use super::*;
    use crate::cli::args::Cli;

    /// Arguments whose values cannot be listed, such as sizes and times.
    const NOT_OFFERED: &[&str] = &[
        "nvml_timeout",
        "window",
        "interval",
        "max_used",
        "max_peak",
        "at",
        "asked",
        "gpus",
        "max_unattributed",
        "timeout",
        "wait",
        "wait_free",
        "grace",
        "idle_for",
        "speed",
        "size",
        "keys",
        "duration",
        "history_span",
        "listen",
        "serve",
        "store_age",
        "store_size",
        "framework",
        "terms",
    ];

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
                    NOT_OFFERED.contains(&id),
                    "{} {id}: give it values in `value_kind`, or list it here",
                    command.get_name()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
