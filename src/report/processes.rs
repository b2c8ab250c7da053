//! `gpumem ps` as text: the GPU tables, and a table of the processes that hold GPU memory.
//!
//! A process that NVML does not list, but that has a GPU's device file open, has a row without a memory size.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt::Write as _;

use super::escape::{command_line, escape, fit, program, without_folder};
use super::gpus::{self, NOT_AVAILABLE, UNKNOWN};
use super::style::Style;
use super::table::{Align, Table};
use crate::model::field::{FIELDS, Field, FieldSpec, STAYS, SortValue};
use crate::model::row::{ProcessRow, places};
use crate::model::snapshot::{LastKnown, ProcessType};
use crate::model::{Finding, Identity, Snapshot, Suspect};
use crate::units::Bytes;

/// Maximum width of the USER column. Long names of daemon users would displace other columns.
const OWNER_MAX: usize = 12;
/// Maximum width of the PLACE column on terminals with fewer than [`WIDE`] columns.
const PLACE_MAX_NARROW: usize = 16;
const PLACE_MAX: usize = 32;
const WIDE: usize = 120;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessesOptions {
    /// The field to sort by, one of [`SORTED`](crate::model::field::SORTED).
    pub sort: Field,
    /// Terminal width in columns. `None` disables truncation.
    pub width: Option<usize>,
    pub style: Style,
    /// Whether the rows include all processes that hold memory.
    pub everyone: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct RuleResults<'a> {
    pub findings: &'a [Finding],
    pub suspects: &'a [Suspect],
    /// The line about reclaimable memory, if the amount is known.
    pub headline: Option<&'a str>,
}

pub fn write(snapshot: &Snapshot, results: RuleResults<'_>, options: ProcessesOptions) -> String {
    let ProcessesOptions { width, style, .. } = options;
    let table = gpus::table(snapshot, width, style);
    let suspects: HashMap<Identity, &Suspect> =
        results.suspects.iter().map(|suspect| (suspect.process.identity, suspect)).collect();
    let places = places(snapshot, results.findings).into_iter();
    let mut rows: Vec<ProcessRow<'_>> = places
        .map(|place| {
            let row = ProcessRow::new(snapshot, results.findings, place);
            row.suspected(|identity| suspects.get(&identity).copied())
        })
        .collect();
    rows.sort_by(|a, b| order(a, b, options.sort));
    let unused = rows.iter().filter(|row| row.is_unused()).max_by_key(|row| row.used_bytes());
    let free = gpus::free(snapshot, unused, width).map(|line| style.heading(&line));
    let headline = results.headline.map(str::to_owned);
    let mut out: String = [free, headline].into_iter().flatten().map(|line| line + "\n").collect();
    if !out.is_empty() {
        out.push('\n');
    }
    out.push_str(&table);
    out.push('\n');
    if rows.is_empty() {
        out.push_str(&no_rows(snapshot, options.everyone));
        out.push('\n');
    } else {
        out.push_str(&processes(&rows, snapshot, width, style));
    }
    let notes = gpus::notes(snapshot, options.everyone);
    if !notes.is_empty() {
        out.push('\n');
        out.push_str(&notes);
    }
    out
}

/// Explains why the process table is empty.
pub fn no_rows(snapshot: &Snapshot, everyone: bool) -> String {
    let unread = snapshot.gpus.iter().filter(|gpu| gpu.processes.is_none());
    let unread: Vec<String> = unread.map(|gpu| gpu.index.to_string()).collect();
    if !unread.is_empty() {
        return format!("The processes could not be listed: GPU {}.", unread.join(", "));
    }
    match snapshot.unlisted_bytes() {
        Some(bytes) if everyone => {
            format!("No process is listed, but {} of GPU memory is in use.", Bytes(bytes))
        }
        None if everyone => "No process holds GPU memory.".to_owned(),
        _ => "No process that holds GPU memory matches.".to_owned(),
    }
}

fn processes(
    rows: &[ProcessRow<'_>],
    snapshot: &Snapshot,
    width: Option<usize>,
    style: Style,
) -> String {
    let columns: Vec<&FieldSpec> = FIELDS.iter().filter(|column| column.gives_way > 0).collect();
    let headings: Vec<_> = columns
        .iter()
        .map(|column| match column.right {
            true => (column.title, Align::Right),
            false => (column.title, Align::Left),
        })
        .collect();
    let mut by_need = columns.clone();
    by_need.retain(|column| column.gives_way != STAYS);
    by_need.sort_by_key(|column| column.gives_way);
    let giving_way: Vec<&'static str> = by_need.iter().map(|column| column.title).collect();
    let mut table = Table::new(&headings).giving_way(&giving_way);
    for row in rows {
        let cells = columns.iter().map(|column| cell(column.field, row, snapshot, width));
        table.row(cells.collect());
    }
    table.render(width, |text| style.heading(text))
}

fn cell(field: Field, row: &ProcessRow<'_>, snapshot: &Snapshot, width: Option<usize>) -> String {
    let is_unavailable = || {
        let gpu = row.gpu.filter(|_| row.is_listed());
        gpu.is_some_and(|gpu| gpu.process_memory_unavailable.is_some())
    };
    let text = field.text(row).map(|text| escape(&text).into_owned());
    match (field, text) {
        (Field::Command, _) => describe(row, snapshot, width),
        (Field::User, Some(owner)) if width.is_some() => fit(&owner, OWNER_MAX).into_owned(),
        (Field::Place, Some(place)) => {
            let max = match width {
                Some(0..WIDE) => PLACE_MAX_NARROW,
                _ => PLACE_MAX,
            };
            fit(&place, max).into_owned()
        }
        (Field::Memory, None) if is_unavailable() => NOT_AVAILABLE.to_owned(),
        (_, Some(text)) => text,
        // Leave the cell empty, because a dash in almost every row would be noise.
        (Field::Framework | Field::Place | Field::Finding, None) => String::new(),
        (_, None) => UNKNOWN.to_owned(),
    }
}

fn describe_ended(ended: &LastKnown) -> String {
    let command = program(ended.command.as_deref(), ended.comm.as_deref());
    command.unwrap_or_else(|| "unknown".to_owned())
}

/// Describes a process in the last column. The most informative words come first, because the end may be truncated.
fn describe(row: &ProcessRow<'_>, snapshot: &Snapshot, width: Option<usize>) -> String {
    let Some(process) = row.pid().and_then(|pid| snapshot.process(pid)) else {
        return "(not looked up)".to_owned();
    };
    if let Some(reason) = &process.unresolved {
        return format!("(not resolved: {})", escape(reason));
    }
    if !process.identity().is_certain() {
        return match process.ended() {
            Some(ended) => format!("(ended: {})", describe_ended(ended)),
            None => "(no such process)".to_owned(),
        };
    }
    let mut words = String::new();
    if row.entry.is_none() {
        let _ = write!(words, "[{}] ", escape(&snapshot.holding(process)));
    }
    if row.entry.is_some_and(|row| row.kind == ProcessType::Graphics) {
        words.push_str("[graphics] ");
    }
    if let Some(role) = process.mps_role(row.entry) {
        let _ = write!(words, "[{role}] ");
    }
    if let Some(jupyter) = &process.jupyter {
        let name = jupyter.notebook_path.as_deref().or(jupyter.kernel_id.as_deref());
        let worker = match process.kernel_forked_from() {
            Some(_) => "worker of ",
            None => "",
        };
        let name = escape(name.unwrap_or("kernel"));
        if width.is_some_and(|width| width < WIDE) && jupyter.notebook_path.is_some() {
            return format!("{words}{worker}{name}");
        }
        let under_way = jupyter.under_way();
        let under_way = under_way.map_or_else(String::new, |words| format!(", {words}"));
        let _ = write!(words, "[{worker}notebook {name}{under_way}] ");
    }
    let command = process.command.as_deref();
    let short = command.filter(|_| width.is_some()).map(|command| {
        let mut words: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
        if let Some(program) = words.first_mut() {
            *program = without_folder(program, command.len() > 1);
        }
        command_line(&words)
    });
    let runs = short.or_else(|| program(command, process.comm.as_deref()));
    let executable = || escape(process.executable.as_deref().unwrap_or(UNKNOWN));
    words.push_str(&runs.unwrap_or_else(|| executable().into_owned()));
    words
}

fn order(a: &ProcessRow<'_>, b: &ProcessRow<'_>, sort: Field) -> Ordering {
    let by_gpu = |row: &ProcessRow<'_>| {
        let (gpu_instance, compute_instance) = row.instance();
        let gpu = row.gpu.map_or(u32::MAX, |gpu| gpu.index);
        (!row.is_listed(), gpu, gpu_instance.zip(compute_instance))
    };
    let by = |field: Field| {
        let value = |row| SortValue::new(field, row, None);
        value(a).compare(&value(b), field.spec().descending)
    };
    let first = match sort {
        Field::Gpu => Ordering::Equal,
        field => by(field),
    };
    first
        .then_with(|| by_gpu(a).cmp(&by_gpu(b)))
        .then_with(|| by(Field::Memory))
        .then_with(|| by(Field::Pid))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::snapshot::{Claim, Memory, PidNamespace};
    use crate::model::{Gpu, GpuProcess, Process};
    use crate::units::{GIB, MIB};

    fn memory(total_gib: u64, used_bytes: u64) -> Memory {
        let reserved = 512 * MIB;
        Memory {
            total_bytes: total_gib * GIB,
            reserved_bytes: Some(reserved),
            used_bytes,
            free_bytes: total_gib * GIB - reserved - used_bytes,
        }
    }

    fn row(pid: u32, used_bytes: Option<u64>) -> GpuProcess {
        GpuProcess { pid, used_bytes, ..GpuProcess::default() }
    }

    fn process(pid: u32, command: &str) -> Process {
        Process {
            pid,
            start_ticks: Some(7),
            user: Some("ann".into()),
            state: Some('S'),
            command: Some(command.split(' ').map(Arc::from).collect()),
            ..Process::default()
        }
    }

    fn gpu(index: u32, used_bytes: u64, rows: Vec<GpuProcess>) -> Gpu {
        Gpu {
            index,
            name: Some("NVIDIA H100 80GB HBM3".into()),
            minor_number: Some(index),
            memory: Some(memory(80, used_bytes)),
            processes: Some(rows),
            ..Gpu::default()
        }
    }

    fn snapshot(gpus: Vec<Gpu>, processes: Vec<Process>) -> Snapshot {
        Snapshot { gpus, processes, ..Snapshot::new("2026-11-21T10:04:05Z".parse().unwrap()) }
    }

    const OPTIONS: ProcessesOptions = ProcessesOptions {
        sort: Field::Gpu,
        width: None,
        style: Style { color: false },
        everyone: true,
    };

    fn text(snapshot: &Snapshot, width: Option<usize>) -> String {
        write(snapshot, RuleResults::default(), ProcessesOptions { width, ..OPTIONS })
    }

    fn below_gpus(snapshot: &Snapshot, width: Option<usize>) -> String {
        let text = text(snapshot, width);
        text.splitn(3, "\n\n").nth(2).unwrap().to_owned()
    }

    #[test]
    fn an_unlisted_holder_is_a_row_with_its_evidence() {
        let mut holder = process(900, "python worker.py");
        let files = ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia0"];
        holder.gpu_files = Some(files.iter().map(|&file| file.into()).collect());
        let mut snapshot = snapshot(
            vec![gpu(0, 20 * GIB, vec![row(800, Some(5 * GIB))]), gpu(1, 0, Vec::new())],
            vec![process(800, "python train.py"), holder],
        );
        snapshot.host.unread_processes = Some(312);
        assert_eq!(
            below_gpus(&snapshot, None),
            "GPU  PID  USER   MEMORY  SM%  CPU TIME  HOST MEM  STATE     RUNTIME  COMMAND
  0  800  ann   5.0 GiB    -         -         -  sleeping        -  python train.py
0-1  900  ann         -    -         -         -  sleeping        -  [holds /dev/nvidia1, /dev/nvidia0, not listed by NVML] python worker.py

GPU 0: 15.0 GiB is unattributed: no listed process holds it.
312 processes' files could not be read; only root on the host can see hidden holders.
"
        );
        // Memory can be called unattributed only if the table lists all processes.
        let options = ProcessesOptions { sort: Field::Pid, everyone: false, ..OPTIONS };
        let partial = write(&snapshot, RuleResults::default(), options);
        assert!(!partial.contains("unattributed"));
    }

    #[test]
    fn unknown_values_are_shown_as_unknown_not_zero() {
        let mut unread = gpu(0, 20 * GIB, Vec::new());
        unread.processes = None;
        let mut snapshot = snapshot(vec![unread, gpu(1, GIB, vec![row(7, None)])], Vec::new());
        let below = below_gpus(&snapshot, None);
        assert!(
            below.ends_with(
                "  1    7  -          -    -         -         -  -            -  (not looked up)\n"
            ),
            "{below}"
        );
        snapshot.gpus.truncate(1);
        let below = below_gpus(&snapshot, None);
        assert!(below.starts_with("The processes could not be listed: GPU 0.\n"));
        snapshot.gpus[0].processes = Some(Vec::new());
        let text = "No process is listed, but 20.0 GiB of GPU memory is in use.\n";
        assert!(below_gpus(&snapshot, None).starts_with(text));
        snapshot.host.pid_namespace = Some(PidNamespace::Container);
        assert!(below_gpus(&snapshot, None).starts_with(text));
        snapshot.gpus[0] = gpu(0, 0, Vec::new());
        assert!(below_gpus(&snapshot, None).starts_with("No process holds GPU memory.\n"));
    }

    #[test]
    fn the_first_line_lists_gpus_by_free_memory() {
        let gpus = (0..16).map(|at| gpu(at, u64::from(at) * GIB, Vec::new())).collect();
        let mut snapshot = snapshot(gpus, Vec::new());
        snapshot.gpus[1].memory_limit_free_bytes = Some(GIB);
        snapshot.gpus[2].stale_seconds = Some(30.0);
        snapshot.gpus[3].claim = Some(Claim::default());
        let first = |width| text(&snapshot, width).lines().next().unwrap().to_owned();
        assert_eq!(first(Some(60)), "Free: GPU 0 79.5 GiB, GPU 4 75.5 GiB, GPU 5 74.5 GiB, …");
        assert!(first(None).ends_with(", GPU 15 64.5 GiB, GPU 1 1.0 GiB"), "{}", first(None));
    }
}
