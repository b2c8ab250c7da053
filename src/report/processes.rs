//! `gpumem ps` for people: the tables of GPUs, and one of who holds their memory.
//!
//! A process that holds a GPU's device file and is not listed by NVML is a row with that as its
//! evidence and no bytes. It is what was seen, and no accusation.

use std::cmp::{Ordering, Reverse};
use std::fmt::Write as _;

use super::escape::{command_line, escape, fit};
use super::gpus::{self, NOT_AVAILABLE, UNKNOWN};
use super::style::Style;
use super::table::{Align, Table};
use crate::model::snapshot::{LastKnown, ProcessType};
use crate::model::{Gpu, GpuProcess, Process, Snapshot};
use crate::units::{Bytes, Span};

/// Columns of an owner on a terminal, at most: a daemon's long name must not push others out.
const OWNER_MAX: usize = 12;
/// Columns of a place, at most; on a narrow terminal, and elsewhere.
const PLACE_MAX_NARROW: usize = 16;
const PLACE_MAX: usize = 32;
/// Columns of a terminal that is not narrow.
const WIDE: usize = 120;

/// How the process table is ordered. Largest first, but for `Gpu`, `Pid`, `User` and `Command`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProcessOrder {
    /// By GPU, then by GPU memory.
    #[default]
    Gpu,
    /// By GPU memory.
    Memory,
    /// By process id.
    Pid,
    /// By owner.
    User,
    /// By SM utilization.
    Sm,
    /// By total CPU time.
    CpuTime,
    /// By resident host memory.
    HostMemory,
    /// By time since start.
    Runtime,
    /// By command line.
    Command,
}

struct ProcessLine<'a> {
    /// Where it is, or would be by its files.
    gpu: Option<&'a Gpu>,
    /// The GPUs whose files it holds, where it is listed on none.
    held: String,
    on_gpu: Option<&'a GpuProcess>,
    process: Option<&'a Process>,
}

impl ProcessLine<'_> {
    fn pid(&self) -> u32 {
        let own = self.process.map(|process| process.pid);
        self.on_gpu.map(|row| row.pid).or(own).unwrap_or(0)
    }

    fn used_bytes(&self) -> Option<u64> {
        self.on_gpu?.used_bytes
    }
}

/// How `ps` is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessesOptions {
    /// The order of the process table.
    pub sort: ProcessOrder,
    /// Columns of the terminal; `None` cuts nothing.
    pub width: Option<usize>,
    /// Its colours.
    pub style: Style,
    /// Whether the processes are everybody's; of some only, they say nothing of where the rest of the
    /// memory is.
    pub everyone: bool,
}

/// The GPUs, their processes, where the memory is, and what cannot be told.
pub fn write(snapshot: &Snapshot, options: ProcessesOptions) -> String {
    let ProcessesOptions { width, style, .. } = options;
    let mut out = gpus::table(snapshot, width, style);
    let mut rows: Vec<ProcessLine<'_>> = listed(snapshot).chain(unlisted(snapshot)).collect();
    rows.sort_by(|a, b| order(a, b, options.sort));
    out.push('\n');
    if rows.is_empty() {
        out.push_str(&unknown_user(snapshot));
    } else {
        out.push_str(&processes(&rows, snapshot, width, style));
    }
    if options.everyone {
        out.push_str(&gpus::balances(snapshot, width, style));
    }
    let notes = gpus::notes(snapshot, options.everyone);
    if !notes.is_empty() {
        out.push('\n');
        out.push_str(&notes);
    }
    out
}

fn listed(snapshot: &Snapshot) -> impl Iterator<Item = ProcessLine<'_>> {
    let on_gpus = snapshot.gpus.iter().flat_map(|gpu| {
        let rows = gpu.processes.iter().flatten();
        rows.map(move |on_gpu| (gpu, on_gpu))
    });
    on_gpus.map(|(gpu, on_gpu)| ProcessLine {
        gpu: Some(gpu),
        held: String::new(),
        on_gpu: Some(on_gpu),
        process: snapshot.process(on_gpu.pid),
    })
}

fn unlisted(snapshot: &Snapshot) -> impl Iterator<Item = ProcessLine<'_>> {
    snapshot.unlisted_holders().map(|process| {
        let mut held = snapshot
            .gpus
            .iter()
            .filter(|gpu| gpu.is_open_in(process) == Some(true));
        ProcessLine {
            gpu: held.next(),
            held: snapshot.held_gpus(process),
            on_gpu: None,
            process: Some(process),
        }
    })
}

/// Why there is no row.
fn unknown_user(snapshot: &Snapshot) -> String {
    let unread = snapshot.gpus.iter().filter(|gpu| gpu.processes.is_none());
    let unread: Vec<String> = unread.map(|gpu| gpu.index.to_string()).collect();
    if unread.is_empty() {
        "No process holds GPU memory.\n".to_owned()
    } else {
        format!(
            "The processes could not be listed: GPU {}.\n",
            unread.join(", ")
        )
    }
}

fn processes(
    rows: &[ProcessLine<'_>],
    snapshot: &Snapshot,
    width: Option<usize>,
    style: Style,
) -> String {
    let mut table = Table::new(&[
        ("GPU", Align::Right),
        ("PID", Align::Right),
        ("USER", Align::Left),
        ("MEMORY", Align::Right),
        ("SM", Align::Right),
        ("CPU TIME", Align::Right),
        ("HOST MEM", Align::Right),
        ("STATE", Align::Left),
        ("RUNTIME", Align::Right),
        ("FRAMEWORK", Align::Left),
        ("WHERE", Align::Left),
        ("COMMAND", Align::Left),
    ])
    .giving_way(&[
        "HOST MEM",
        "CPU TIME",
        "FRAMEWORK",
        "RUNTIME",
        "WHERE",
        "SM",
        "STATE",
    ]);
    let place_max = match width {
        Some(0..WIDE) => PLACE_MAX_NARROW,
        _ => PLACE_MAX,
    };
    for row in rows {
        let process = row.process;
        let known = |value: Option<String>| value.unwrap_or_else(unknown);
        table.row(vec![
            instance(row),
            process.map_or_else(|| row.pid().to_string(), Process::pid_text),
            known(process.and_then(owner).map(|owner| match width {
                Some(_) => fit(&owner, OWNER_MAX).into_owned(),
                None => owner,
            })),
            memory(row),
            known(row.on_gpu.and_then(|it| it.sm_percent).map(percent)),
            known(process.and_then(|process| process.cpu_seconds).map(span)),
            known(
                process
                    .and_then(|process| process.rss_bytes)
                    .map(|b| Bytes(b).to_string()),
            ),
            known(process.and_then(|process| process.state).map(state)),
            known(
                process
                    .and_then(|process| runtime(process, snapshot))
                    .map(span),
            ),
            process
                .and_then(Process::framework_text)
                .map_or_else(String::new, |text| escape(&text).into_owned()),
            process
                .and_then(Process::place)
                .map_or_else(String::new, |place| {
                    fit(&escape(&place), place_max).into_owned()
                }),
            what(row, snapshot),
        ]);
    }
    table.render(width, |text| style.heading(text))
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

fn memory(row: &ProcessLine<'_>) -> String {
    let is_never_told = row
        .gpu
        .is_some_and(|gpu| gpu.process_memory_unavailable.is_some());
    match (row.used_bytes(), row.on_gpu) {
        (Some(bytes), _) => Bytes(bytes).to_string(),
        (None, Some(_)) if is_never_told => NOT_AVAILABLE.to_owned(),
        (None, _) => unknown(),
    }
}

fn percent(number: impl std::fmt::Display) -> String {
    format!("{number}%")
}

fn span(seconds: f64) -> String {
    Span::from_seconds(seconds).to_string()
}

fn instance(row: &ProcessLine<'_>) -> String {
    match (row.gpu, row.on_gpu) {
        (Some(gpu), Some(on_gpu)) => {
            gpu.part_name(on_gpu.gpu_instance_id, on_gpu.compute_instance_id)
        }
        _ if row.held.is_empty() => unknown(),
        _ => row.held.clone(),
    }
}

fn owner(process: &Process) -> Option<String> {
    let ended = process.ended().and_then(|ended| ended.user.as_ref());
    match (process.user.as_ref().or(ended), process.uid) {
        (Some(user), _) => Some(escape(user).into_owned()),
        (None, Some(uid)) => Some(uid.to_string()),
        (None, None) => None,
    }
}

fn state(letter: char) -> String {
    match letter {
        'R' => "running".to_owned(),
        'S' => "sleeping".to_owned(),
        'D' => "in I/O".to_owned(),
        'T' => "stopped".to_owned(),
        't' => "traced".to_owned(),
        'Z' => "zombie".to_owned(),
        'I' => "idle".to_owned(),
        'X' => "dead".to_owned(),
        other => escape(&other.to_string()).into_owned(),
    }
}

fn runtime(process: &Process, snapshot: &Snapshot) -> Option<f64> {
    process
        .start_time
        .map(|start| snapshot.time.seconds_since(start))
}

/// What a process was that has ended.
fn what_ended(ended: &LastKnown) -> String {
    match (&ended.command, &ended.comm) {
        (Some(command), _) => command_line(command),
        (None, Some(comm)) => format!("[{}]", escape(comm)),
        (None, None) => "not known".to_owned(),
    }
}

/// What the process is, in the words that tell a person most.
fn what(row: &ProcessLine<'_>, snapshot: &Snapshot) -> String {
    let Some(process) = row.process else {
        return "(not looked up)".to_owned();
    };
    if let Some(reason) = &process.unresolved {
        return format!("(not resolved: {})", escape(reason));
    }
    if !process.identity().is_certain() {
        return match process.ended() {
            Some(ended) => format!("(ended: {})", what_ended(ended)),
            None => "(no such process)".to_owned(),
        };
    }
    let mut words = String::new();
    if row.on_gpu.is_none() {
        let _ = write!(words, "[{}] ", escape(&snapshot.holding(process)));
    }
    if row
        .on_gpu
        .is_some_and(|row| row.kind == ProcessType::Graphics)
    {
        words.push_str("[graphics] ");
    }
    if let Some(role) = process.mps_role(row.on_gpu) {
        let _ = write!(words, "[{role}] ");
    }
    if let Some(jupyter) = &process.jupyter {
        let name = jupyter
            .notebook_path
            .as_deref()
            .or(jupyter.kernel_id.as_deref());
        let worker = match process.kernel_forked_from() {
            Some(_) => "worker of ",
            None => "",
        };
        let name = escape(name.unwrap_or("kernel"));
        let _ = write!(words, "[{worker}notebook {name}] ");
    }
    match (&process.command, &process.comm, &process.executable) {
        (Some(command), _, _) => words.push_str(&command_line(command)),
        (None, Some(comm), _) => {
            let _ = write!(words, "[{}]", escape(comm));
        }
        (None, None, Some(executable)) => words.push_str(&escape(executable)),
        (None, None, None) => words.push('-'),
    }
    words
}

fn order(a: &ProcessLine<'_>, b: &ProcessLine<'_>, sort: ProcessOrder) -> Ordering {
    let by_memory = |row: &ProcessLine<'_>| Reverse(row.used_bytes());
    // Whoever is listed on no GPU comes last.
    let by_gpu = |row: &ProcessLine<'_>| {
        let part = row
            .on_gpu
            .and_then(|row| row.gpu_instance_id.zip(row.compute_instance_id));
        let gpu = row.gpu.map_or(u32::MAX, |gpu| gpu.index);
        (row.on_gpu.is_none(), gpu, part)
    };
    let number = |value: Option<f64>| Reverse((value.unwrap_or(-1.0) * 1000.0) as i64);
    let first = match sort {
        ProcessOrder::Gpu => Ordering::Equal,
        ProcessOrder::Memory => by_memory(a).cmp(&by_memory(b)),
        ProcessOrder::Pid => a.pid().cmp(&b.pid()),
        ProcessOrder::User => {
            let user = |row: &ProcessLine<'_>| row.process.and_then(owner);
            user(a).cmp(&user(b))
        }
        ProcessOrder::Sm => {
            let sm = |row: &ProcessLine<'_>| Reverse(row.on_gpu.and_then(|it| it.sm_percent));
            sm(a).cmp(&sm(b))
        }
        ProcessOrder::CpuTime => {
            let cpu = |row: &ProcessLine<'_>| number(row.process.and_then(|p| p.cpu_seconds));
            cpu(a).cmp(&cpu(b))
        }
        ProcessOrder::HostMemory => {
            let rss = |row: &ProcessLine<'_>| Reverse(row.process.and_then(|p| p.rss_bytes));
            rss(a).cmp(&rss(b))
        }
        ProcessOrder::Runtime => {
            // What started first has run longest; what is unknown comes last.
            let start = |row: &ProcessLine<'_>| {
                let start = row.process.and_then(|p| p.start_time);
                (start.is_none(), start)
            };
            start(a).cmp(&start(b))
        }
        ProcessOrder::Command => {
            let command = |row: &ProcessLine<'_>| row.process.and_then(|p| p.command.clone());
            command(a).cmp(&command(b))
        }
    };
    first
        .then_with(|| by_gpu(a).cmp(&by_gpu(b)))
        .then_with(|| by_memory(a).cmp(&by_memory(b)))
        .then_with(|| a.pid().cmp(&b.pid()))
}

#[cfg(test)]
mod tests;
