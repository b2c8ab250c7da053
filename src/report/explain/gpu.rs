//! A GPU's page: where its memory is, who holds it, what the rules say, what to do.

use super::page::PageText;
use super::parts::{commands, steps, verdict};
use super::process::course;
use super::{ExplainReport, GpuBalance, GpuHolder, GpuPage};
use crate::model::Gpu;
use crate::model::finding::Finding;
use crate::report::escape::escape;
use crate::report::table::{Align, Table};
use crate::report::wrap::wrap;
use crate::units::{Bytes, Span};

/// More holders than this are counted.
const MOST_LISTED: usize = 24;
/// Lines that say why a number is not known.
const REASON_LINES: usize = 4;
/// Lines of the chart.
const CHART_LINES: usize = 3;

pub(super) fn write(sheet: &mut PageText, page: &GpuPage, report: &ExplainReport) {
    let gpu = &page.device;
    let name = gpu.name.as_deref().unwrap_or("of an unknown name");
    sheet.title(&format!("GPU {}: {name}", gpu.index));
    what(sheet, page);
    memory(sheet, page);
    course(sheet, &page.course, None, CHART_LINES);
    mig(sheet, page);
    holders(sheet, page);
    verdict(sheet, &page.verdict, report, |finding| finding.process.is_none());
    steps(sheet, &page.steps, "What to do, gentlest first");
    commands(sheet, &page.verdict.findings, None);
}

fn what(sheet: &mut PageText, page: &GpuPage) {
    let gpu = &page.device;
    let mut known = Vec::new();
    known.extend(gpu.uuid.as_deref().map(str::to_owned));
    known.extend(gpu.pci_bus_id.as_ref().map(|id| format!("at {id}")));
    let minor = gpu.minor_number;
    known.extend(minor.map(|number| format!("/dev/nvidia{number}")));
    if !known.is_empty() {
        sheet.entry("What", &known.join(", "));
    }
    let mut modes = Vec::new();
    modes.extend(gpu.compute_mode.as_ref().map(|mode| format!("compute mode {mode}")));
    let on_off = |on: bool| if on { "on" } else { "off" };
    let persistence = gpu.persistence_mode;
    modes.extend(persistence.map(|on| format!("persistence mode {}", on_off(on))));
    modes.extend(gpu.mig_mode.map(|on| format!("MIG {}", on_off(on))));
    if !modes.is_empty() {
        sheet.entry("", &modes.join(", "));
    }
    if let Some(age) = gpu.stale_seconds {
        let age = Span::from_seconds(age);
        let stale = format!("the driver has not answered for {age}; these are its last values");
        sheet.entry("", &stale);
    }
    let mut use_ = Vec::new();
    match (gpu.gpu_percent, page.gpu_percent_mean) {
        (Some(now), Some(mean)) => use_.push(format!("{now}% now, {mean:.0}% on average")),
        (None, Some(mean)) => use_.push(format!("{mean:.0}% on average")),
        (Some(now), None) => use_.push(format!("{now}% now")),
        (None, None) => {}
    }
    use_.extend(gpu.power_watts.map(|watts| match gpu.power_limit_watts {
        Some(limit) => format!("{watts:.0} W of {limit:.0} W"),
        None => format!("{watts:.0} W"),
    }));
    let celsius = gpu.temperature_celsius;
    use_.extend(celsius.map(|celsius| format!("{celsius} °C")));
    if !use_.is_empty() {
        sheet.entry("Use", &use_.join(", "));
    }
}

fn memory(sheet: &mut PageText, page: &GpuPage) {
    let Some(balance) = &page.balance else {
        let why = page.device.memory_unavailable.as_deref();
        let why = why.unwrap_or("it could not be read");
        sheet.entry("Memory", &format!("n/a: {why}"));
        return;
    };
    for (at, (bytes, what)) in parts(balance).into_iter().enumerate() {
        let label = if at == 0 { "Memory" } else { "" };
        let bytes = bytes.map_or_else(|| "n/a".to_owned(), |bytes| Bytes(bytes).to_string());
        const NUMBER: usize = 10;
        let room = sheet.room().saturating_sub(NUMBER + 2);
        for (at, line) in wrap(&escape(&what), (room, room), REASON_LINES).iter().enumerate() {
            let (label, bytes) = if at == 0 { (label, &*bytes) } else { ("", "") };
            sheet.beside(label, &format!("{bytes:>NUMBER$}  {line}"));
        }
    }
}

/// The balance: the first is the sum of the others, where all are known.
fn parts(balance: &GpuBalance) -> Vec<(Option<u64>, String)> {
    let unattributed = match &balance.unattributed_unknown {
        Some(why) => format!("in use by no process that NVML lists: {why}"),
        None => "in use by no process that NVML lists".to_owned(),
    };
    let reserved = match balance.reserved_bytes {
        Some(_) => "reserved by driver and firmware",
        None => "reserved by driver and firmware; this driver counts it as used",
    };
    vec![
        (Some(balance.total_bytes), "in all, of which".to_owned()),
        (Some(balance.free_bytes), "free".to_owned()),
        (balance.reserved_bytes, reserved.to_owned()),
        (balance.processes_bytes, "held by the processes listed".to_owned()),
        (balance.unattributed_bytes, unattributed),
    ]
}

fn mig(sheet: &mut PageText, page: &GpuPage) {
    if page.device.mig_devices.is_empty() {
        return;
    }
    sheet.section("MIG devices");
    let mut table = Table::new(&[
        ("MIG", Align::Right),
        ("INSTANCE", Align::Right),
        ("PROFILE", Align::Left),
        ("USED", Align::Right),
        ("TOTAL", Align::Right),
        ("UUID", Align::Left),
    ]);
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for device in &page.device.mig_devices {
        let used = device.memory.map(|it| Bytes(it.used_bytes).to_string());
        let total = device.memory.map(|it| Bytes(it.total_bytes).to_string());
        let text = |text: &Option<std::sync::Arc<str>>| {
            known(text.as_deref().map(|text| escape(text).into_owned()))
        };
        table.row(vec![
            known(device.index.map(|index| index.to_string())),
            known(device.gpu_instance_id.map(|id| id.to_string())),
            text(&device.profile),
            known(used),
            known(total),
            text(&device.uuid),
        ]);
    }
    write_table(sheet, &table);
}

fn holders(sheet: &mut PageText, page: &GpuPage) {
    sheet.section("Who holds it");
    let Gpu { processes, process_memory_unavailable, .. } = &page.device;
    if processes.is_none() {
        sheet.item("- ", "its list of processes could not be read");
    }
    let (listed, hidden): (Vec<_>, Vec<_>) = page.holders.iter().partition(|it| it.listed);
    if listed.is_empty() && processes.is_some() {
        sheet.item("- ", "NVML lists no process on it");
    }
    if let Some(why) = process_memory_unavailable {
        sheet.item("- ", &format!("what each process holds is n/a: {why}"));
    }
    table(sheet, &listed, &page.verdict.findings);
    if !hidden.is_empty() {
        let heading = "has its device file open, and is not listed by NVML:";
        sheet.item("- ", heading);
        table(sheet, &hidden, &page.verdict.findings);
    }
    if let Some(count) = page.unread_processes.filter(|count| *count > 0) {
        let es = if count == 1 { "" } else { "es" };
        let text = format!(
            "whether {count} other process{es} of this machine hold it is not known: only root \
            may read their open files"
        );
        sheet.item("- ", &text);
    }
}

fn table(sheet: &mut PageText, holders: &[&GpuHolder], findings: &[Finding]) {
    if holders.is_empty() {
        return;
    }
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("MIG", Align::Right),
        ("USER", Align::Left),
        ("MEMORY", Align::Right),
        ("SM", Align::Right),
        ("FINDING", Align::Left),
        ("PROCESS", Align::Left),
    ]);
    for holder in holders.iter().take(MOST_LISTED) {
        let is_its = |finding: &&Finding| {
            let process = finding.process.as_ref();
            finding.resolved_at.is_none() && process.is_some_and(|it| it.pid == holder.pid)
        };
        let finding = findings.iter().find(is_its);
        let instance = holder.gpu_instance_id;
        let user = holder.user.as_deref();
        let name = escape(&holder.name);
        table.row(vec![
            holder.pid.to_string(),
            instance.map_or_else(String::new, |id| id.to_string()),
            user.map_or_else(|| "-".to_owned(), |user| escape(user).into_owned()),
            holder.used_bytes.map_or_else(
                || if holder.listed { "n/a" } else { "" }.to_owned(),
                |bytes| Bytes(bytes).to_string(),
            ),
            holder.sm_percent.map_or_else(String::new, |percent| format!("{percent}%")),
            finding.map_or_else(String::new, |finding| {
                format!("{} ({})", finding.kind, finding.severity)
            }),
            if holder.is_monitor { format!("{name} (a monitor)") } else { name.into_owned() },
        ]);
    }
    write_table(sheet, &table);
    let more = holders.len().saturating_sub(MOST_LISTED);
    if more > 0 {
        sheet.item("", &format!("and {more} more (--json lists them)"));
    }
}

fn write_table(sheet: &mut PageText, table: &Table) {
    let (width, style) = (sheet.look.width, sheet.look.style);
    sheet.table(&table.render(Some(width), |text| style.heading(text)));
}
