//! Formats the subject of a finding, such as its id, its GPUs and its memory.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::model::finding::FindingGpu;
use crate::model::{Gpu, Identity, Process, Start};
use crate::units::Bytes;

/// Maximum number of GPUs that a message names. If there are more, the message gives only their number.
const MOST_GPUS_LISTED: usize = 4;

/// Returns `rule:uuid:pid:start` for a finding on a process, with the UUID of the GPU with the lowest index, or
/// `rule:uuid` for a finding on a GPU. An unknown UUID is replaced with the index.
pub(super) fn finding_id(rule: &str, gpus: &[FindingGpu], process: Option<&Process>) -> Arc<str> {
    let mut id = format!("{rule}:");
    // Writing to a String cannot fail.
    let _ = match gpus.iter().min_by_key(|gpu| gpu.index) {
        Some(FindingGpu { uuid: Some(uuid), .. }) => write!(id, "{uuid}"),
        Some(gpu) => write!(id, "{}", gpu.index),
        None => Ok(()),
    };
    let _ = match process.map(Process::identity) {
        Some(Identity { pid, start: Start::Ticks(ticks) }) => write!(id, ":{pid}:{ticks}"),
        Some(Identity { pid, start: Start::Time(time) }) => {
            write!(id, ":{pid}:{}", time.unix_seconds())
        }
        Some(Identity { pid, start: Start::Unknown }) => write!(id, ":{pid}:"),
        None => Ok(()),
    };
    id.into()
}

pub(super) fn finding_gpu(gpu: &Gpu, used_bytes: Option<u64>) -> FindingGpu {
    FindingGpu { index: gpu.index, uuid: gpu.uuid.clone(), used_bytes }
}

/// Formats a list of GPUs as `GPU 0`, `GPUs 0 and 1`, `GPUs 0, 1 and 2` or `8 GPUs`.
pub(super) fn gpus(gpus: &[FindingGpu]) -> String {
    if gpus.len() > MOST_GPUS_LISTED {
        return format!("{} GPUs", gpus.len());
    }
    let indices: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    match indices.split_last() {
        None => "no GPU".to_owned(),
        Some((only, [])) => format!("GPU {only}"),
        Some((last, others)) => format!("GPUs {} and {last}", others.join(", ")),
    }
}

/// Merges rows on the same GPU. Under MIG, a process can have several rows on one GPU.
pub(super) fn merge_rows(rows: impl Iterator<Item = FindingGpu>) -> Vec<FindingGpu> {
    let mut gpus: Vec<FindingGpu> = Vec::with_capacity(rows.size_hint().1.unwrap_or(0));
    for row in rows {
        match gpus.iter_mut().find(|gpu| gpu.index == row.index) {
            Some(gpu) => {
                let sum = gpu.used_bytes.zip(row.used_bytes);
                gpu.used_bytes = sum.map(|(a, b)| a.saturating_add(b));
            }
            None => gpus.push(row),
        }
    }
    gpus.sort_by_key(|gpu| gpu.index);
    gpus
}

/// Returns the sum of the memory on all GPUs, or `None` if any value is unknown.
pub(super) fn total_bytes(gpus: &[FindingGpu]) -> Option<u64> {
    gpus.iter().try_fold(0u64, |sum, gpu| Some(sum.saturating_add(gpu.used_bytes?)))
}

/// Formats the held memory as `20.0 GiB on GPU 0`, or as `memory on GPU 0` if the size is unknown.
pub(super) fn describe_memory(gpus_held: &[FindingGpu]) -> String {
    match total_bytes(gpus_held) {
        Some(bytes) => format!("{} on {}", Bytes(bytes), gpus(gpus_held)),
        None => format!("memory on {}", gpus(gpus_held)),
    }
}
