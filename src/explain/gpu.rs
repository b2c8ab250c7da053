//! The page about a GPU: memory, holders, findings and next steps.

use std::cmp::Reverse;

use super::page::{ExplainPage, Row, Section};
use super::verdict::{Verdict, commands};
use super::{ExplainInput, add_memory_chart, steps, utilization_text, who};
use crate::history::memory_series::MemorySeries;
use crate::model::finding::{Finding, OwnCommands};
use crate::model::{ComputeDevice, Gpu, GpuProcess, Process, Snapshot, Suspect};
use crate::report::escape::escape;
use crate::report::table::{Align, Table};
use crate::units::{Bytes, Span};

const LISTED_MAX: usize = 24;
const CHART_LINES: usize = 3;

/// Creates the page about the GPU at index `position` of the snapshot. If there is no such GPU, the page is empty. The
/// finding `asked` comes first.
pub fn gpu(input: ExplainInput<'_>, position: usize, asked: Option<&Finding>) -> ExplainPage {
    let last = input.last;
    let Some(gpu) = last.gpus.get(position) else {
        return input.page(String::new(), |_| false);
    };
    let holders = holders(last, gpu);
    let pids: Vec<u32> = holders.iter().map(|(pid, _)| *pid).collect();
    let mut verdict = Verdict::of_gpu(input, gpu.index, &pids, asked);
    (input.commands)(&mut verdict.findings, None);
    let name = gpu.name.as_deref().unwrap_or("unknown model");
    let mut page = input.page(format!("GPU {}: {name}", gpu.index), |index| index == gpu.index);
    let mut facts = Section::default();
    let series = input.all_series.gpu(gpu);
    add_description(&mut facts, gpu, series.and_then(MemorySeries::percent_mean));
    memory(&mut facts, last, gpu);
    add_memory_chart(&mut facts, series, CHART_LINES);
    let marks = Marks { findings: &verdict.findings, suspects: input.engine.suspects() };
    page.sections.extend([facts, mig(gpu), held_by(last, gpu, &holders, marks)]);
    page.sections.push(verdict.section(input, |finding| finding.process.is_none()));
    let steps = steps::of_gpu(&verdict.findings);
    page.sections.extend(steps::sections(&steps, &verdict.findings));
    page.sections.push(commands(&verdict.findings, &OwnCommands::default()));
    page.sections.retain(|section| !section.rows.is_empty());
    (page.findings, page.gpu) = (verdict.findings, Some(gpu.clone()));
    page
}

fn add_description(facts: &mut Section, gpu: &Gpu, mean: Option<f64>) {
    let mut names = Vec::new();
    names.extend(gpu.uuid.as_deref().map(str::to_owned));
    names.extend(gpu.pci_bus_id.as_ref().map(|id| format!("at {id}")));
    names.extend(gpu.minor_number.map(|number| format!("/dev/nvidia{number}")));
    facts.facts("What", &names);
    let on_off = |on: bool| if on { "on" } else { "off" };
    let mut modes = Vec::new();
    modes.extend(gpu.compute_mode.as_ref().map(|mode| format!("compute mode {mode}")));
    modes.extend(gpu.persistence_mode.map(|on| format!("persistence mode {}", on_off(on))));
    modes.extend(gpu.mig_mode.map(|on| format!("MIG {}", on_off(on))));
    modes.extend(gpu.is_drained.filter(|&is| is).map(|_| "drained".to_owned()));
    let action = gpu.recovery_action.as_deref().filter(|&action| action != "none");
    modes.extend(action.map(|action| format!("needs recovery ({})", escape(action))));
    modes.extend(gpu.claim_text());
    facts.facts("", &modes);
    if let Some(age) = gpu.stale_seconds {
        let age = Span::from_seconds(age);
        facts
            .entry("", format!("the driver has not answered for {age}; these are its last values"));
    }
    let mut activity = Vec::from_iter(utilization_text(gpu.gpu_percent, mean));
    activity.extend(gpu.power_watts.map(|watts| match gpu.power_limit_watts {
        Some(limit) => format!("{watts:.0} W of {limit:.0} W"),
        None => format!("{watts:.0} W"),
    }));
    activity.extend(gpu.temperature_celsius.map(|celsius| format!("{celsius} °C")));
    facts.facts("Use", &activity);
    let number = |value: Option<u32>, unit: &str| value.map(|value| format!("{value}{unit}"));
    let rate = |bytes: Option<u64>| bytes.map(|bytes| format!("{}/s", Bytes(bytes)));
    let or_unknown = |(label, text): (&str, Option<String>)| {
        format!("{label} {}", text.as_deref().unwrap_or("unknown"))
    };
    let speed = [
        ("SM clock", number(gpu.sm_clock_mhz, " MHz")),
        ("memory clock", number(gpu.memory_clock_mhz, " MHz")),
        ("performance state", gpu.performance_state.map(|state| format!("P{state}"))),
        ("memory read or written", number(gpu.memory_percent, "% of the time")),
        ("fan", number(gpu.fan_percent, "%")),
    ];
    facts.facts("", &speed.map(or_unknown));
    let throttled = match gpu.throttle_reasons.as_deref() {
        None => "throttle reasons: unknown".to_owned(),
        Some([]) => "not throttled".to_owned(),
        Some(reasons) => {
            let reasons: Vec<_> = reasons.iter().map(|reason| escape(reason)).collect();
            format!("throttle reasons: {}", reasons.join(", "))
        }
    };
    facts.entry("", throttled);
    let others = [
        ("encoder", number(gpu.encoder_percent, "%")),
        ("decoder", number(gpu.decoder_percent, "%")),
        ("PCIe received", rate(gpu.pcie_received_bytes_per_second)),
        ("sent", rate(gpu.pcie_sent_bytes_per_second)),
        ("uncorrected ECC errors", gpu.ecc_uncorrected_errors.map(|count| count.to_string())),
    ];
    facts.facts("", &others.map(or_unknown));
    // Many GPUs lack these engines, so show them only while they are busy.
    let rare = [("JPEG decoder", gpu.jpeg_percent), ("optical flow", gpu.optical_flow_percent)];
    let busy = rare.iter().filter_map(|(name, percent)| {
        let percent = percent.filter(|percent| *percent > 0)?;
        Some(format!("{name} {percent}%"))
    });
    facts.facts("", &Vec::from_iter(busy));
}

/// Adds the GPU's total memory and its parts. If all parts are known, they add up to the total.
pub(super) fn memory(facts: &mut Section, last: &Snapshot, gpu: &Gpu) {
    let Some(balance) = last.balance(gpu) else {
        let reason = gpu.memory_unavailable.as_deref().unwrap_or("it could not be read");
        return facts.entry("Memory", format!("n/a: {reason}"));
    };
    let reserved = match balance.reserved_bytes {
        Some(_) => "reserved by driver and firmware",
        None => "reserved by driver and firmware; this driver counts it as used",
    };
    let unattributed = match balance.unattributed {
        Ok(_) => "unattributed: used, but not held by a listed process".to_owned(),
        Err(reason) => format!("unattributed: {reason}"),
    };
    for (label, bytes, part) in [
        ("Memory", Some(balance.total_bytes), "in total, of which"),
        ("", Some(balance.free_bytes), "free"),
        ("", balance.reserved_bytes, reserved),
        ("", balance.process_bytes, "held by the listed processes"),
        ("", balance.unattributed.ok(), &unattributed),
    ] {
        let bytes = bytes.map_or_else(|| "n/a".to_owned(), |bytes| Bytes(bytes).to_string());
        facts.entry(label, format!("{bytes} {part}"));
    }
}

fn mig(gpu: &Gpu) -> Section {
    let mut section = Section::new("MIG devices");
    let mut table = Table::new(&[
        ("MIG", Align::Right),
        ("INSTANCE", Align::Right),
        ("PROFILE", Align::Left),
        ("USED", Align::Right),
        ("TOTAL", Align::Right),
        ("UUID", Align::Left),
    ]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let text = |text: Option<&str>| or_dash(text.map(|text| escape(text).into_owned()));
    for device in &gpu.mig_devices {
        table.row(vec![
            or_dash(device.index.map(|index| index.to_string())),
            or_dash(device.gpu_instance_id.map(|id| id.to_string())),
            text(device.profile.as_deref()),
            or_dash(device.memory.map(|memory| Bytes(memory.used_bytes).to_string())),
            or_dash(device.memory.map(|memory| Bytes(memory.total_bytes).to_string())),
            text(device.uuid.as_deref()),
        ]);
    }
    if !table.is_empty() {
        section.rows.push(Row::Table(table));
    }
    section
}

/// Returns the processes on a GPU. The processes that NVML lists come first, in descending order of memory. Processes
/// that only have the GPU's device file open follow.
pub(super) fn holders<'s>(last: &'s Snapshot, gpu: &'s Gpu) -> Vec<(u32, Option<&'s GpuProcess>)> {
    let mut rows: Vec<&GpuProcess> = gpu.processes.iter().flatten().collect();
    rows.sort_by_key(|row| (Reverse(row.used_bytes), row.pid));
    let is_listed = |pid: u32| rows.iter().any(|row| row.pid == pid);
    let hidden = last.processes.iter().filter(|process| {
        !is_listed(process.pid)
            && process.identity().is_certain()
            && gpu.is_open_in(process) == Some(true)
    });
    let hidden: Vec<u32> = hidden.map(|process| process.pid).collect();
    let listed = rows.into_iter().map(|row| (row.pid, Some(row)));
    listed.chain(hidden.into_iter().map(|pid| (pid, None))).collect()
}

pub(super) fn held_by(
    last: &Snapshot,
    gpu: &Gpu,
    holders: &[(u32, Option<&GpuProcess>)],
    marks: Marks<'_>,
) -> Section {
    let mut section = Section::new("Who holds its memory");
    let (listed, hidden): (Vec<_>, Vec<_>) = holders.iter().partition(|(_, row)| row.is_some());
    match &gpu.processes {
        None => section.item("- ", "its list of processes could not be read"),
        Some(_) if listed.is_empty() => section.item("- ", "NVML lists no processes on it"),
        Some(_) => {}
    }
    if let Some(reason) = &gpu.process_memory_unavailable {
        section.item("- ", format!("memory of each process is n/a: {reason}"));
    }
    table(&mut section, last, &listed, marks);
    if !hidden.is_empty() {
        section.item("- ", "these have its device file open, but NVML does not list them:");
        table(&mut section, last, &hidden, marks);
    }
    if let Some(count) = last.host.unread_processes.filter(|count| *count > 0) {
        let es = if count == 1 { "" } else { "es" };
        section.item(
            "- ",
            format!(
                "{count} other process{es} of this machine may hold its memory: only root can read \
                 their open files"
            ),
        );
    }
    section
}

fn table(
    section: &mut Section,
    last: &Snapshot,
    holders: &[&(u32, Option<&GpuProcess>)],
    marks: Marks<'_>,
) {
    if holders.is_empty() {
        return;
    }
    let shown = holders.iter().take(LISTED_MAX).map(|(pid, row)| (*pid, *row));
    section.rows.push(Row::Table(rows(last, shown, marks)));
    let more = holders.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        section.item("", format!("and {more} more (`gpumem ps` lists them)"));
    }
}

#[derive(Clone, Copy)]
pub struct Marks<'m> {
    pub findings: &'m [Finding],
    pub suspects: &'m [Suspect],
}

pub fn holders_table(last: &Snapshot, device: ComputeDevice<'_>, marks: Marks<'_>) -> Table {
    let mut listed: Vec<&GpuProcess> = device.processes().into_iter().flatten().collect();
    listed.sort_by_key(|row| (Reverse(row.used_bytes), row.pid));
    rows(last, listed.into_iter().map(|row| (row.pid, Some(row))), marks)
}

fn rows<'r>(
    last: &Snapshot,
    holders: impl Iterator<Item = (u32, Option<&'r GpuProcess>)>,
    marks: Marks<'_>,
) -> Table {
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("TYPE", Align::Left),
        ("MIG", Align::Right),
        ("USER", Align::Left),
        ("MEMORY", Align::Right),
        ("SM", Align::Right),
        ("FINDING", Align::Left),
        ("PROCESS", Align::Left),
    ]);
    for (pid, row) in holders {
        let (name, user) = who(last, pid);
        let process = last.process(pid).filter(|process| process.identity().is_certain());
        let is_monitor = process.is_some_and(Process::is_monitor);
        table.row(vec![
            pid.to_string(),
            row.map_or("-", |row| row.kind.letters()).to_owned(),
            row.and_then(|row| row.gpu_instance_id).map_or_else(String::new, |id| id.to_string()),
            escape(user.unwrap_or("-")).into_owned(),
            row.map_or_else(String::new, |row| match row.used_bytes {
                Some(bytes) => Bytes(bytes).to_string(),
                None => "n/a".to_owned(),
            }),
            row.and_then(|row| row.sm_percent)
                .map_or_else(String::new, |percent| format!("{percent}%")),
            marks.mark_of(pid).unwrap_or_default(),
            format!("{}{}", escape(&name), if is_monitor { " (a monitor)" } else { "" }),
        ]);
    }
    table
}

impl Marks<'_> {
    /// Returns the kind and severity of the finding about a process. For a suspect, returns its mark.
    fn mark_of(self, pid: u32) -> Option<String> {
        let is_about_it = |finding: &&Finding| {
            let process = finding.process.as_ref();
            finding.resolved_at.is_none() && process.is_some_and(|process| process.pid == pid)
        };
        let found = self.findings.iter().find(is_about_it);
        let found = found.map(|finding| format!("{} ({})", finding.kind, finding.severity));
        let mut suspects = self.suspects.iter();
        found
            .or_else(|| Some(suspects.find(|suspect| suspect.process.pid == pid)?.mark.to_string()))
    }
}
