//! The GPU table of `gpumem ps`, the line about free memory above it, and the notes below it.

use std::cmp::Reverse;
use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::escape::escape;
use super::style::Style;
use super::table::{Align, Table};
use crate::model::field::STAYS;
use crate::model::field::gpu::{GPU_FIELDS, GpuField};
use crate::model::row::ProcessRow;
use crate::model::snapshot::{Memory, MigDevice};
use crate::model::{Gpu, Snapshot};
use crate::units::{Bytes, Span};

pub(super) use crate::model::field::{NOT_AVAILABLE, UNKNOWN};

pub(super) fn table(snapshot: &Snapshot, width: Option<usize>, style: Style) -> String {
    if snapshot.gpus.is_empty() {
        return "The driver reports no GPU. Run `gpumem doctor` to find the cause, or try --demo.\n".to_owned();
    }
    let mut columns = vec![
        ("GPU", Align::Right),
        ("NAME", Align::Left),
        ("FREE", Align::Right),
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
    let mut giving_way: Vec<&str> = giving_way.iter().map(|field| field.title).collect();
    // Drop FULL first: the reader can compute it from USED and TOTAL.
    giving_way.insert(0, "FULL");
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
        (None, Some(_)) => gpu.claim_text().unwrap_or_default(),
    };
    let name = gpu.name.as_deref().map(|name| escape(name).into_owned());
    let missing = match gpu.memory_unavailable {
        Some(_) => NOT_AVAILABLE,
        None => UNKNOWN,
    };
    let mut row = vec![gpu.index.to_string(), known(name)];
    row.extend(memory_cells(gpu.memory, gpu.free_bytes(), missing));
    row.extend(GPU_FIELDS.iter().map(|field| field.text(gpu)));
    row.push(note);
    row
}

/// Formats a MIG device. NVML reports only the memory of a MIG device, so the other cells are empty.
fn mig_row(gpu: &Gpu, device: &MigDevice) -> Vec<String> {
    let profile = device.profile.as_deref().unwrap_or("device");
    let mut row = vec![device.name_on(gpu.index), format!("MIG {}", escape(profile))];
    let free = device.memory.map(|memory| memory.free_bytes);
    row.extend(memory_cells(device.memory, free, UNKNOWN));
    row.resize(row.len() + GPU_FIELDS.len() + 1, String::new());
    row
}

fn memory_cells(memory: Option<Memory>, free: Option<u64>, missing: &str) -> [String; 4] {
    let (Some(memory), Some(free)) = (memory, free) else {
        return [missing; 4].map(str::to_owned);
    };
    let full = (memory.total_bytes > 0).then(|| {
        let share = memory.used_bytes as f64 / memory.total_bytes as f64;
        format!("{}%", (share * 100.0).round())
    });
    let [free, used, total] =
        [free, memory.used_bytes, memory.total_bytes].map(|bytes| Bytes(bytes).to_string());
    [free, used, total, known(full)]
}

/// Returns free memory and index of each GPU, most free memory first. Omits GPUs with stale or unknown values, and GPUs
/// that `gpumem run --claim` has claimed.
pub fn free_gpus(snapshot: &Snapshot) -> Vec<(u64, u32)> {
    let gpus = snapshot.gpus.iter();
    let gpus = gpus.filter(|gpu| gpu.stale_seconds.is_none() && gpu.claim.is_none());
    let mut free: Vec<_> = gpus.filter_map(|gpu| Some((gpu.free_bytes()?, gpu.index))).collect();
    free.sort_by_key(|&(bytes, index)| (Reverse(bytes), index));
    free
}

/// Formats the line about free memory, such as
/// `Free: GPU 2 32.8 GiB, GPU 1 30.1 GiB, …; largest unused: 38.0 GiB, ben's 398120`.
///
/// Lists the [`free_gpus`] that fit. Returns `None` if there are none.
pub(super) fn free(
    snapshot: &Snapshot,
    unused: Option<&ProcessRow<'_>>,
    width: Option<usize>,
) -> Option<String> {
    let free = free_gpus(snapshot);
    let unused = unused.and_then(|row| {
        let label = if row.finding.is_some() { "largest unused" } else { "largest suspected" };
        let owner = row.process.ok().and_then(|process| process.user.as_deref());
        let owner = owner.map_or_else(String::new, |user| format!("{}'s ", escape(user)));
        Some(format!("; {label}: {}, {owner}{}", Bytes(row.used_bytes()?), row.pid()?))
    });
    let line = |count: usize| {
        let gpus = free[..count].iter();
        let mut gpus: Vec<String> =
            gpus.map(|&(bytes, index)| format!("GPU {index} {}", Bytes(bytes))).collect();
        gpus.extend((count < free.len()).then(|| "…".to_owned()));
        format!("Free: {}{}", gpus.join(", "), unused.as_deref().unwrap_or_default())
    };
    let fits = |line: &String| width.is_none_or(|width| line.width() <= width);
    (1..=free.len()).rev().map(line).find(fits).or_else(|| (!free.is_empty()).then(|| line(1)))
}

/// Lists the reasons for missing values. If `everyone` is set, adds notes about unattributed memory and unreadable
/// files.
pub(super) fn notes(snapshot: &Snapshot, everyone: bool) -> String {
    let mut out = String::new();
    let reasons = |reason_of: fn(&Gpu) -> Option<&str>| {
        let mut unavailable: Vec<(&str, Vec<u32>)> = Vec::new();
        for gpu in &snapshot.gpus {
            let Some(reason) = reason_of(gpu) else { continue };
            match unavailable.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, gpus)) => gpus.push(gpu.index),
                None => unavailable.push((reason, vec![gpu.index])),
            }
        }
        unavailable
    };
    let mut write_reason = |figure: &str, (reason, gpus): (&str, Vec<u32>)| {
        let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
        let word = if numbers.len() == 1 { "GPU" } else { "GPUs" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{word} {}: {figure}: {}.", numbers.join(", "), escape(reason));
    };
    for reason in reasons(|gpu| gpu.memory_unavailable.as_deref()) {
        write_reason("memory n/a", reason);
    }
    for reason in reasons(|gpu| gpu.process_memory_unavailable.as_deref()) {
        write_reason("memory of processes n/a", reason);
    }
    if everyone {
        for gpu in &snapshot.gpus {
            let notable = snapshot.balance(gpu).and_then(|balance| balance.notable_bytes());
            if let Some(bytes) = notable {
                let _ = writeln!(
                    out,
                    "GPU {}: {} is unattributed: no listed process holds it.",
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
