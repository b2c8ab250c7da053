//! `gpumem ps` for people: a table of GPUs, and one of who holds their memory.

use std::cmp::{Ordering, Reverse};
use std::fmt::Write as _;

use super::escape::{command_line, escape};
use super::style::Style;
use super::table::{Align, Table};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process, Snapshot};
use crate::units::{Bytes, MIB, Span};

/// Below this, memory that no listed process accounts for is context and rounding (captures of
/// drivers 590 to 610 show up to 259 MiB on a desktop).
const WORTH_MENTIONING_BYTES: u64 = 512 * MIB;

/// How the process table is ordered. Largest first, but for `Gpu`, `Pid`, `User` and `Command`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
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

struct Row<'a> {
    gpu: &'a Gpu,
    on_gpu: &'a GpuProcess,
    process: Option<&'a Process>,
}

/// The two tables, cut to `width` columns where one is given.
pub fn write(snapshot: &Snapshot, sort: Sort, width: Option<usize>, style: Style) -> String {
    let mut out = gpus(snapshot, width, style);
    let mut rows: Vec<Row<'_>> = snapshot
        .gpus
        .iter()
        .flat_map(|gpu| {
            gpu.processes
                .iter()
                .flatten()
                .map(move |on_gpu| (gpu, on_gpu))
        })
        .map(|(gpu, on_gpu)| Row {
            gpu,
            on_gpu,
            process: snapshot.process(on_gpu.pid),
        })
        .collect();
    rows.sort_by(|a, b| order(a, b, sort));
    out.push('\n');
    if rows.is_empty() {
        out.push_str("No process holds GPU memory.\n");
    } else {
        out.push_str(&processes(&rows, snapshot, width, style));
    }
    for gpu in &snapshot.gpus {
        let Some((memory, held)) = gpu.memory.zip(gpu.process_bytes()) else {
            continue;
        };
        // Memory info v1 counts what the driver reserves as used, and does not say how much it is.
        if memory.reserved_bytes.is_none() {
            continue;
        }
        let unattributed = memory.used_bytes.saturating_sub(held);
        if unattributed >= WORTH_MENTIONING_BYTES {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "GPU {}: {} are in use by no process that NVML lists.",
                gpu.index,
                Bytes(unattributed)
            );
        }
    }
    out
}

fn gpus(snapshot: &Snapshot, width: Option<usize>, style: Style) -> String {
    if snapshot.gpus.is_empty() {
        return "The driver reports no GPU.\n".to_owned();
    }
    let mut table = Table::new(&[
        ("GPU", Align::Right),
        ("NAME", Align::Left),
        ("USED", Align::Right),
        ("TOTAL", Align::Right),
        ("FULL", Align::Right),
        ("UTIL", Align::Right),
        ("TEMP", Align::Right),
        ("POWER", Align::Right),
        ("LIMIT", Align::Right),
        ("STATE", Align::Left),
        ("", Align::Left),
    ]);
    for gpu in &snapshot.gpus {
        let memory = gpu.memory;
        let note = match (gpu.stale_seconds, &gpu.processes) {
            (Some(age), _) => format!("stale: {} old", Span::from_seconds(age)),
            (None, None) => "not readable".to_owned(),
            (None, Some(_)) => String::new(),
        };
        table.row(vec![
            gpu.index.to_string(),
            gpu.name
                .as_deref()
                .map_or_else(unknown, |name| escape(name).into_owned()),
            memory.map_or_else(unknown, |memory| Bytes(memory.used_bytes).to_string()),
            memory.map_or_else(unknown, |memory| Bytes(memory.total_bytes).to_string()),
            memory
                .filter(|memory| memory.total_bytes > 0)
                .map_or_else(unknown, |memory| {
                    percent((memory.used_bytes as f64 / memory.total_bytes as f64 * 100.0).round())
                }),
            gpu.gpu_percent.map_or_else(unknown, percent),
            gpu.temperature_celsius
                .map_or_else(unknown, |celsius| format!("{celsius} °C")),
            gpu.power_watts
                .map_or_else(unknown, |watts| format!("{watts:.0} W")),
            gpu.power_limit_watts
                .map_or_else(unknown, |watts| format!("{watts:.0} W")),
            gpu.performance_state
                .map_or_else(unknown, |state| format!("P{state}")),
            note,
        ]);
    }
    table.render(width, |text| style.heading(text))
}

fn processes(rows: &[Row<'_>], snapshot: &Snapshot, width: Option<usize>, style: Style) -> String {
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
        ("COMMAND", Align::Left),
    ]);
    for row in rows {
        let process = row.process;
        let known = |value: Option<String>| value.unwrap_or_else(unknown);
        table.row(vec![
            instance(row),
            row.on_gpu.pid.to_string(),
            known(process.and_then(owner)),
            known(row.on_gpu.used_bytes.map(|bytes| Bytes(bytes).to_string())),
            known(row.on_gpu.sm_percent.map(percent)),
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
                .and_then(|process| process.framework.as_deref())
                .map_or_else(String::new, |name| escape(name).into_owned()),
            what(row.on_gpu, process),
        ]);
    }
    table.render(width, |text| style.heading(text))
}

fn unknown() -> String {
    "-".to_owned()
}

fn percent(number: impl std::fmt::Display) -> String {
    format!("{number}%")
}

fn span(seconds: f64) -> String {
    Span::from_seconds(seconds).to_string()
}

fn instance(row: &Row<'_>) -> String {
    match row.on_gpu.gpu_instance_id {
        Some(id) => format!("{}/{id}", row.gpu.index),
        None => row.gpu.index.to_string(),
    }
}

fn owner(process: &Process) -> Option<String> {
    match (&process.user, process.uid) {
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

/// What the process is, in the words that tell a person most.
fn what(on_gpu: &GpuProcess, process: Option<&Process>) -> String {
    let Some(process) = process else {
        return "(not looked up)".to_owned();
    };
    if let Some(reason) = &process.unresolved {
        return format!("(not resolved: {})", escape(reason));
    }
    if !process.identity().is_certain() {
        return "(no such process)".to_owned();
    }
    let mut words = String::new();
    if on_gpu.kind == ProcessType::Graphics {
        words.push_str("[graphics] ");
    }
    if let Some(jupyter) = &process.jupyter {
        let name = jupyter
            .notebook_path
            .as_deref()
            .or(jupyter.kernel_id.as_deref());
        let _ = write!(words, "[notebook {}] ", escape(name.unwrap_or("kernel")));
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

fn order(a: &Row<'_>, b: &Row<'_>, sort: Sort) -> Ordering {
    let by_memory = |row: &Row<'_>| Reverse(row.on_gpu.used_bytes);
    let number = |value: Option<f64>| Reverse((value.unwrap_or(-1.0) * 1000.0) as i64);
    let first = match sort {
        Sort::Gpu => Ordering::Equal,
        Sort::Memory => by_memory(a).cmp(&by_memory(b)),
        Sort::Pid => a.on_gpu.pid.cmp(&b.on_gpu.pid),
        Sort::User => {
            let user = |row: &Row<'_>| row.process.and_then(owner);
            user(a).cmp(&user(b))
        }
        Sort::Sm => Reverse(a.on_gpu.sm_percent).cmp(&Reverse(b.on_gpu.sm_percent)),
        Sort::CpuTime => {
            let cpu = |row: &Row<'_>| number(row.process.and_then(|p| p.cpu_seconds));
            cpu(a).cmp(&cpu(b))
        }
        Sort::HostMemory => {
            let rss = |row: &Row<'_>| Reverse(row.process.and_then(|p| p.rss_bytes));
            rss(a).cmp(&rss(b))
        }
        Sort::Runtime => {
            // What started first has run longest; what is unknown comes last.
            let start = |row: &Row<'_>| {
                let start = row.process.and_then(|p| p.start_time);
                (start.is_none(), start)
            };
            start(a).cmp(&start(b))
        }
        Sort::Command => {
            let command = |row: &Row<'_>| row.process.and_then(|p| p.command.clone());
            command(a).cmp(&command(b))
        }
    };
    first
        .then_with(|| a.gpu.index.cmp(&b.gpu.index))
        .then_with(|| by_memory(a).cmp(&by_memory(b)))
        .then_with(|| a.on_gpu.pid.cmp(&b.on_gpu.pid))
}
