//! `gpumem ps`'s tables of GPUs: each with its MIG devices, where its memory is, and why a
//! figure is not to be had.
//!
//! Who holds the memory is in `processes`.

use std::fmt::Write as _;

use super::escape::escape;
use super::style::Style;
use super::table::{Align, Table};
use crate::model::field::STAYS;
use crate::model::field::gpu::{GPU_FIELDS, GpuField};
use crate::model::snapshot::{Memory, MigDevice};
use crate::model::{Gpu, Snapshot};
use crate::units::{Bytes, Span};

pub(super) use crate::model::field::{NOT_AVAILABLE, UNKNOWN};

/// The GPUs and their MIG devices.
pub(super) fn table(snapshot: &Snapshot, width: Option<usize>, style: Style) -> String {
    if snapshot.gpus.is_empty() {
        return "The driver reports no GPU. `gpumem doctor` looks for the reason; --demo works without one.\n".to_owned();
    }
    let mut columns = vec![
        ("GPU", Align::Right),
        ("NAME", Align::Left),
        ("USED", Align::Right),
        ("TOTAL", Align::Right),
        ("FULL", Align::Right),
    ];
    columns.extend(GPU_FIELDS.iter().map(|field| match field.right {
        true => (field.title, Align::Right),
        false => (field.title, Align::Left),
    }));
    columns.push(("", Align::Left));
    let mut giving_way: Vec<&GpuField> = GPU_FIELDS.iter().collect();
    giving_way.retain(|field| field.gives_way != STAYS);
    giving_way.sort_by_key(|field| field.gives_way);
    let giving_way: Vec<&str> = giving_way.iter().map(|field| field.title).collect();
    let mut table = Table::new(&columns).giving_way(&giving_way);
    for gpu in &snapshot.gpus {
        table.row(gpu_row(gpu));
        for device in &gpu.mig_devices {
            table.row(mig_row(gpu, device));
        }
    }
    table.render(width, |text| style.heading(text))
}

fn gpu_row(gpu: &Gpu) -> Vec<String> {
    let note = match (gpu.stale_seconds, &gpu.processes) {
        (Some(age), _) => format!("stale: {} old", Span::from_seconds(age)),
        (None, None) => "not readable".to_owned(),
        (None, Some(_)) => String::new(),
    };
    let name = gpu.name.as_deref().map(|name| escape(name).into_owned());
    let missing = match gpu.memory_unavailable {
        Some(_) => NOT_AVAILABLE,
        None => UNKNOWN,
    };
    let [used, total, full] = memory_cells(gpu.memory, missing);
    let mut row = vec![gpu.index.to_string(), known(name), used, total, full];
    row.extend(GPU_FIELDS.iter().map(|field| field.text(gpu)));
    row.push(note);
    row
}

/// A MIG device has memory of its own; the rest is its GPU's.
fn mig_row(gpu: &Gpu, device: &MigDevice) -> Vec<String> {
    let profile = device.profile.as_deref().unwrap_or("device");
    let [used, total, full] = memory_cells(device.memory, UNKNOWN);
    let mut row =
        vec![device.name_on(gpu.index), format!("MIG {}", escape(profile)), used, total, full];
    row.resize(row.len() + GPU_FIELDS.len() + 1, String::new());
    row
}

fn memory_cells(memory: Option<Memory>, missing: &str) -> [String; 3] {
    let Some(memory) = memory else {
        return [missing, missing, missing].map(str::to_owned);
    };
    let full = (memory.total_bytes > 0).then(|| {
        let share = memory.used_bytes as f64 / memory.total_bytes as f64;
        format!("{}%", (share * 100.0).round())
    });
    [Bytes(memory.used_bytes).to_string(), Bytes(memory.total_bytes).to_string(), known(full)]
}

/// Where each GPU's memory is; nothing where no GPU gives a figure.
pub(super) fn balances(snapshot: &Snapshot, width: Option<usize>, style: Style) -> String {
    let mut table = Table::new(&[
        ("GPU", Align::Right),
        ("TOTAL =", Align::Right),
        ("FREE +", Align::Right),
        ("RESERVED +", Align::Right),
        ("PROCESSES +", Align::Right),
        ("UNATTRIBUTED", Align::Right),
    ]);
    let figure =
        |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |it| Bytes(it).to_string());
    for gpu in &snapshot.gpus {
        let Some(balance) = snapshot.balance(gpu) else {
            continue;
        };
        table.row(vec![
            gpu.index.to_string(),
            Bytes(balance.total_bytes).to_string(),
            Bytes(balance.free_bytes).to_string(),
            figure(balance.reserved_bytes),
            figure(balance.process_bytes),
            figure(balance.unattributed.ok()),
        ]);
    }
    if table.is_empty() {
        return String::new();
    }
    format!("\n{}", table.render(width, |text| style.heading(text)))
}

/// Why figures are not to be had, each reason once; and, where the rows are of `everyone`, what they
/// leave open: memory without a listed process, and files that could not be read.
pub(super) fn notes(snapshot: &Snapshot, everyone: bool) -> String {
    let mut out = String::new();
    let reasons = |of: fn(&Gpu) -> Option<&str>| {
        let mut unavailable: Vec<(&str, Vec<u32>)> = Vec::new();
        for gpu in &snapshot.gpus {
            let Some(reason) = of(gpu) else { continue };
            match unavailable.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, gpus)) => gpus.push(gpu.index),
                None => unavailable.push((reason, vec![gpu.index])),
            }
        }
        unavailable
    };
    let mut write_reason = |what: &str, (reason, gpus): (&str, Vec<u32>)| {
        let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
        let word = if numbers.len() == 1 { "GPU" } else { "GPUs" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{word} {}: {what}: {}.", numbers.join(", "), escape(reason));
    };
    for reason in reasons(|gpu| gpu.memory_unavailable.as_deref()) {
        write_reason("memory n/a", reason);
    }
    for reason in reasons(|gpu| gpu.process_memory_unavailable.as_deref()) {
        write_reason("memory of processes n/a", reason);
    }
    if everyone {
        for gpu in &snapshot.gpus {
            let notable = snapshot.balance(gpu).and_then(|it| it.notable_bytes());
            if let Some(bytes) = notable {
                let _ = writeln!(
                    out,
                    "GPU {}: {} are in use by no process that NVML lists.",
                    gpu.index,
                    Bytes(bytes)
                );
            }
        }
        if let Some(text) = snapshot.host.unread_text() {
            let _ = writeln!(out, "{text}.");
        }
    }
    out
}

fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| UNKNOWN.to_owned())
}
