//! What is known of a GPU, in words.

use crate::model::snapshot::{Gpu, Memory, MigDevice, Snapshot};
use crate::units::{Bytes, Span};
use crate::watch::text::{UNKNOWN, clean};
use crate::watch::view_model::percent;

/// All GPUs in a few words: `64 GPUs  1.2/5.0 TiB (24%)  2 lost`.
pub fn sum(gpus: &[&Gpu]) -> String {
    let count = gpus.len();
    let mut text = format!("{count} GPU{}", if count == 1 { "" } else { "s" });
    let known = || gpus.iter().filter_map(|gpu| gpu.memory);
    let used = known().fold(0u64, |sum, memory| sum.saturating_add(memory.used_bytes));
    let total = known().fold(0u64, |sum, memory| sum.saturating_add(memory.total_bytes));
    if total > 0 {
        text.push_str(&format!("  {} ({:.0}%)", of(used, total), percent(used, total)));
    }
    let mut add_count = |count: usize, word: &str| {
        if count > 0 {
            text.push_str(&format!("  {count} {word}"));
        }
    };
    let (mut lost_count, mut stale_count) = (0, 0);
    for gpu in gpus {
        lost_count += usize::from(is_lost(gpu));
        stale_count += usize::from(gpu.stale_seconds.is_some());
    }
    add_count(lost_count, "lost");
    add_count(stale_count, "stale");
    text
}

/// Why a GPU gives no figures of its memory, made harmless.
pub fn reason(gpu: &Gpu) -> Option<String> {
    let reason = gpu.memory_unavailable.as_deref()?;
    gpu.memory.is_none().then(|| clean(reason, 200).into_owned())
}

/// `8.1/45.0 GiB`; both units where they differ.
fn of(used: u64, total: u64) -> String {
    let (used, total) = (Bytes(used).to_string(), Bytes(total).to_string());
    match (used.split_once(' '), total.split_once(' ')) {
        (Some((number, unit)), Some((_, whole))) if unit == whole => format!("{number}/{total}"),
        _ => format!("{used}/{total}"),
    }
}

/// What of it is used, in figures.
pub fn memory_text(memory: Option<Memory>) -> String {
    memory.map_or_else(|| UNKNOWN.to_owned(), |memory| of(memory.used_bytes, memory.total_bytes))
}

/// What the GPU is called.
pub fn name(gpu: &Gpu) -> String {
    let name = gpu.name.as_deref().unwrap_or(UNKNOWN);
    // Every GPU here is NVIDIA's; what follows tells them apart.
    clean(name.strip_prefix("NVIDIA ").unwrap_or(name), 64).into_owned()
}

/// A MIG device, by its profile.
pub fn part_name(device: &MigDevice) -> String {
    let profile = device.profile.as_deref().unwrap_or(UNKNOWN);
    format!("  MIG {}", clean(profile, 40))
}

/// Whether nothing of it could be read.
pub fn is_lost(gpu: &Gpu) -> bool {
    gpu.memory.is_none() && gpu.memory_unavailable.is_none() && gpu.processes.is_none()
}

/// Why nothing of it could be read.
pub fn lost_text(snapshot: &Snapshot, gpu: &Gpu, width: u16) -> String {
    let error = snapshot.errors.iter().find(|error| error.gpu == Some(gpu.index));
    match error {
        Some(error) => format!("lost: {}", clean(&error.error, width)),
        None => "lost: nothing of it could be read".to_owned(),
    }
}

/// For how long it has not answered.
pub fn stale_text(seconds: f64) -> String {
    format!("stale {}", Span::from_seconds(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_shown_once_where_they_agree() {
        assert_eq!(of(8 << 30, 45 << 30), "8.0/45.0 GiB");
        assert_eq!(of(512 << 20, 45 << 30), "512.0 MiB/45.0 GiB");
    }
}
