//! Removes impossible figures from the driver's process lists and memory.
//!
//! Drivers have reported pid 0, the same process several times, and sizes that exceed the GPU's memory. Such figures
//! would cause wrong findings. Removed figures are reported in the snapshot's errors.

use foldhash::{HashMap, HashMapExt as _};

use super::ffi::ProcessRecord;
use crate::model::snapshot::{GpuProcess, Memory, ProcessType};
use crate::units::Bytes;

/// Maximum memory of a row, in bytes, if the GPU's memory is unknown: 1 PiB.
const MOST_BYTES: u64 = 1 << 50;

/// Merges the lists into one row per process and instance, with the larger memory value. Also returns descriptions of
/// impossible entries.
pub(super) fn merge(
    compute: &[ProcessRecord],
    graphics: &[ProcessRecord],
    mps: &[ProcessRecord],
) -> (Vec<GpuProcess>, Vec<String>) {
    let mut rows: Vec<GpuProcess> = Vec::with_capacity(compute.len() + graphics.len());
    let mut places = HashMap::with_capacity(compute.len() + graphics.len());
    let lists = [
        (compute, ProcessType::Compute),
        (graphics, ProcessType::Graphics),
        (mps, ProcessType::Mps),
    ];
    let (mut without_pid, mut twice) = (0usize, 0usize);
    // For each row, the index of the list in which it last appeared.
    let mut last_lists: Vec<usize> = Vec::with_capacity(rows.capacity());
    for (list, (records, kind)) in lists.into_iter().enumerate() {
        for record in records {
            if record.pid == 0 {
                without_pid += 1;
                continue;
            }
            let key = (record.pid, record.gpu_instance_id, record.compute_instance_id);
            let index = *places.entry(key).or_insert(rows.len());
            match rows.get_mut(index) {
                Some(row) => {
                    let last = std::mem::replace(&mut last_lists[index], list);
                    twice += usize::from(last == list);
                    row.used_bytes = row.used_bytes.max(record.used_bytes);
                    row.kind = match (row.kind, kind) {
                        (ProcessType::Compute, ProcessType::Graphics) => {
                            ProcessType::ComputeGraphics
                        }
                        (ProcessType::ComputeGraphics, ProcessType::Graphics) => row.kind,
                        (_, kind) => kind,
                    };
                }
                None => {
                    last_lists.push(list);
                    rows.push(GpuProcess {
                        pid: record.pid,
                        kind,
                        used_bytes: record.used_bytes,
                        gpu_instance_id: record.gpu_instance_id,
                        compute_instance_id: record.compute_instance_id,
                        ..GpuProcess::default()
                    });
                }
            }
        }
    }
    let mut lies = Vec::new();
    if without_pid > 0 {
        lies.push(format!(
            "the driver lists pid 0, which no process has ({without_pid}×); it is left out"
        ));
    }
    if twice > 0 {
        lies.push(format!(
            "the driver lists a process more than once ({twice}×); it is shown once"
        ));
    }
    (rows, lies)
}

pub(super) fn bound(rows: &mut [GpuProcess], memory: Option<Memory>) -> Option<String> {
    let limit = memory.map_or(MOST_BYTES, |memory| memory.total_bytes);
    let mut lie = None;
    for row in rows {
        if let Some(bytes) = row.used_bytes.filter(|&bytes| bytes > limit) {
            row.used_bytes = None;
            lie.get_or_insert_with(|| {
                format!(
                    "the driver reports that process {} holds {bytes} bytes, but the GPU has only \
                    {}; its memory is unknown",
                    row.pid,
                    Bytes(limit)
                )
            });
        }
    }
    lie
}

/// Returns why the memory figures are impossible, or `None` if they are possible.
pub(super) fn contradiction(memory: Memory) -> Option<String> {
    let Memory { total_bytes: total, reserved_bytes, used_bytes: used, free_bytes: free } = memory;
    let reserved = reserved_bytes.unwrap_or_default();
    (total == 0 || total > MOST_BYTES || used.max(free).max(reserved) > total).then(|| {
        format!(
            "the driver's figures cannot be true: {used} bytes used, {free} free and {reserved} \
             reserved of {total}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32, used_bytes: Option<u64>) -> ProcessRecord {
        ProcessRecord { pid, used_bytes, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn a_process_on_two_lists_is_one_row_with_the_larger_value() {
        let (rows, lies) = merge(
            &[record(1, Some(5)), record(2, None)],
            &[record(1, Some(7)), record(3, Some(1))],
            &[record(2, Some(4))],
        );
        let merged: Vec<_> = rows.iter().map(|row| (row.pid, row.kind, row.used_bytes)).collect();
        assert_eq!(
            merged,
            [
                (1, ProcessType::ComputeGraphics, Some(7)),
                (2, ProcessType::Mps, Some(4)),
                (3, ProcessType::Graphics, Some(1)),
            ]
        );
        assert_eq!(lies, [""; 0]);
    }

    #[test]
    fn impossible_process_sizes_are_dropped() {
        let memory = Some(Memory { total_bytes: 100, ..Memory::default() });
        for memory in [memory, None] {
            let records = [record(7, Some(u64::MAX - 1)), record(8, Some(100))];
            let (mut rows, _) = merge(&records, &[], &[]);
            let lie = bound(&mut rows, memory).unwrap();
            assert!(lie.contains("process 7"), "{lie}");
            assert_eq!((rows[0].used_bytes, rows[1].used_bytes), (None, Some(100)));
            assert_eq!(bound(&mut rows, memory), None);
        }
    }

    #[test]
    fn impossible_gpu_figures_are_detected() {
        let memory = |total_bytes, used_bytes, free_bytes| Memory {
            total_bytes,
            reserved_bytes: Some(1),
            used_bytes,
            free_bytes,
        };
        assert_eq!(contradiction(memory(100, 60, 40)), None);
        for lie in [memory(100, 101, 0), memory(100, 1, 101), memory(u64::MAX - 1, 1, 1)] {
            assert!(contradiction(lie).is_some(), "{lie:?}");
        }
    }
}
