//! Divides a GPU's memory by use, once per sample. `view/bar.rs` draws the bar.

use crate::model::Snapshot;
use crate::model::balance::WORTH_MENTIONING_BYTES;
use crate::model::field::gpu::FillLevel;
use crate::model::row::percent;
use crate::model::snapshot::{Gpu, GpuProcess, Memory};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UseVerdict {
    /// Held by a process that is neither suspected nor reclaimable.
    InUse,
    /// Held by a suspect.
    Suspected,
    /// Held by a process that `gpumem reap` selects by default.
    Reclaimable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryShare {
    InUse,
    Suspected,
    Reclaimable,
    /// Used, but held by no listed process.
    Unattributed,
    /// Used, but the driver reports too little to attribute the memory.
    Unknown,
    Reserved,
    Free,
}

pub const SHARES: usize = MemoryShare::ALL.len();

impl MemoryShare {
    /// All shares from left to right in a bar.
    pub const ALL: [Self; 7] = [
        Self::InUse,
        Self::Suspected,
        Self::Reclaimable,
        Self::Unattributed,
        Self::Unknown,
        Self::Reserved,
        Self::Free,
    ];

    /// All shares from most to least important.
    const BY_NEED: [Self; 7] = [
        Self::Reclaimable,
        Self::InUse,
        Self::Suspected,
        Self::Unattributed,
        Self::Unknown,
        Self::Free,
        Self::Reserved,
    ];

    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::InUse => ("▬", "in use", "memory that processes use"),
            Self::Suspected => ("▒", "suspected", "held; suspected of being unused"),
            Self::Reclaimable => ("■", "reclaimable", "held; found unused, gpumem reap frees it"),
            Self::Unattributed => ("▓", "unattributed", "used, but not by a visible process"),
            Self::Unknown => ("▚", "unknown", "in use by an unknown process"),
            Self::Reserved => ("░", "reserved", "reserved by the driver"),
            Self::Free => ("·", "free", "free"),
        }
    }

    pub const fn glyph(self) -> &'static str {
        self.words().0
    }

    pub const fn name(self) -> &'static str {
        self.words().1
    }

    pub const fn meaning(self) -> &'static str {
        self.words().2
    }
}

/// In a bar of at least this width, every share that is large enough to be shown gets a cell. In a shorter bar, a share
/// that rounds to no cell gets one only if processes hold its memory.
const ROOMY_CELLS: u16 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryShares {
    total_bytes: u64,
    bytes: [u64; SHARES],
}

impl MemoryShares {
    /// Divides used memory by the verdicts on the processes in `rows`. The rest of the used memory is unattributed, or
    /// unknown if `is_rest_attributable` is false. Returns `None` if the GPU's total memory is 0.
    fn new(
        memory: &Memory,
        rows: impl Iterator<Item = (GpuProcess, UseVerdict)>,
        is_rest_attributable: bool,
    ) -> Option<Self> {
        let total_bytes = memory.total_bytes;
        if total_bytes == 0 {
            return None;
        }
        let mut held = [0u64; 3];
        for (row, verdict) in rows {
            let bytes = &mut held[verdict as usize];
            *bytes = bytes.saturating_add(row.used_bytes.unwrap_or(0));
        }
        // NVML can report more process memory than used memory. In this case, reduce reclaimable memory first.
        let mut rest = memory.used_bytes.min(total_bytes);
        let [in_use, suspected, reclaimable] = held.map(|bytes| take_up_to(&mut rest, bytes));
        let (unattributed, unknown) = match is_rest_attributable {
            true => (rest, 0),
            false => (0, rest),
        };
        let mut left = total_bytes - memory.used_bytes.min(total_bytes);
        let reserved = take_up_to(&mut left, memory.reserved_bytes.unwrap_or(0));
        Some(Self {
            total_bytes,
            bytes: [in_use, suspected, reclaimable, unattributed, unknown, reserved, left],
        })
    }

    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        all.copied().reduce(|mut sum, shares| {
            sum.total_bytes = sum.total_bytes.saturating_add(shares.total_bytes);
            for (part, bytes) in sum.bytes.iter_mut().zip(shares.bytes) {
                *part = part.saturating_add(bytes);
            }
            sum
        })
    }

    pub fn bytes(&self, part: MemoryShare) -> u64 {
        self.bytes[part as usize]
    }

    /// Returns whether a share is large enough to be shown.
    pub fn has(&self, share: MemoryShare) -> bool {
        let bytes = self.bytes(share);
        match share {
            // Every machine has a little unattributed memory, from contexts and rounding.
            MemoryShare::Unattributed => bytes >= WORTH_MENTIONING_BYTES,
            _ => bytes > 0,
        }
    }

    pub fn level(&self) -> FillLevel {
        let free = [MemoryShare::Reserved, MemoryShare::Free].map(|share| self.bytes(share));
        let used = self.total_bytes.saturating_sub(free.iter().sum());
        FillLevel::of_memory(percent(used, self.total_bytes))
    }

    /// Returns the number of cells for each share. A share that needs a cell but rounds to none takes a cell from the
    /// largest share.
    pub fn cells(&self, width: u16) -> [u16; SHARES] {
        let (mut bytes, mut drawn) = (0u64, 0);
        let mut cells = self.bytes.map(|part| {
            bytes = bytes.saturating_add(part);
            let share = bytes as f64 / self.total_bytes as f64;
            let end = ((share.min(1.0) * f64::from(width)).round() as u16).max(drawn);
            end - std::mem::replace(&mut drawn, end)
        });
        // A single cell shows the most urgent verdict.
        let verdicts = [MemoryShare::Reclaimable, MemoryShare::Suspected, MemoryShare::InUse];
        if let (1, Some(verdict)) = (width, verdicts.into_iter().find(|&part| self.has(part))) {
            cells = [0; SHARES];
            cells[verdict as usize] = 1;
        }
        for part in MemoryShare::BY_NEED {
            if cells[part as usize] > 0 || !self.needs_a_cell(part, width) {
                continue;
            }
            // On a tie, `max_by_key` returns the last maximum: the rightmost share.
            let largest = (0..SHARES).max_by_key(|&at| cells[at]);
            if let Some(largest) = largest.filter(|&at| cells[at] > 1) {
                cells[largest] -= 1;
                cells[part as usize] = 1;
            }
        }
        cells
    }

    fn needs_a_cell(&self, share: MemoryShare, width: u16) -> bool {
        let is_held =
            matches!(share, MemoryShare::InUse | MemoryShare::Suspected | MemoryShare::Reclaimable);
        self.has(share) && (is_held || width >= ROOMY_CELLS)
    }
}

fn take_up_to(available: &mut u64, wanted: u64) -> u64 {
    let taken = wanted.min(*available);
    *available -= taken;
    taken
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuShares {
    pub whole: Option<MemoryShares>,
    pub devices: Vec<Option<MemoryShares>>,
}

impl GpuShares {
    pub fn new(snapshot: &Snapshot, gpu: &Gpu, rows: &[(GpuProcess, UseVerdict)]) -> Self {
        // The rest cannot be attributed if a process's memory is unknown, or if used memory
        // includes reserved memory (version 1 of NVML's memory info).
        let balance = snapshot.balance(gpu);
        let is_rest_attributable = balance.is_some_and(|balance| balance.unattributed.is_ok());
        let rows = || rows.iter().copied();
        let devices = gpu.mig_devices.iter().map(|device| {
            // A MIG device and its processes have the same GPU instance.
            let held = rows().filter(|(row, _)| row.gpu_instance_id == device.gpu_instance_id);
            MemoryShares::new(device.memory.as_ref()?, held, false)
        });
        Self {
            whole: gpu
                .memory
                .and_then(|memory| MemoryShares::new(&memory, rows(), is_rest_attributable)),
            devices: devices.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;
    use crate::watch::sample::dice::Dice;

    fn memory(total: u64, used: u64, reserved: u64) -> Memory {
        Memory {
            total_bytes: total,
            used_bytes: used,
            reserved_bytes: Some(reserved),
            free_bytes: 0,
        }
    }

    fn parts(memory: &Memory, rows: &[(u64, UseVerdict)]) -> MemoryShares {
        let rows = rows.iter().map(|&(bytes, verdict)| {
            let row = GpuProcess { used_bytes: Some(bytes), ..GpuProcess::default() };
            (row, verdict)
        });
        MemoryShares::new(memory, rows, true).unwrap()
    }

    #[test]
    fn contradicting_figures_reduce_reclaimable_memory_first() {
        use UseVerdict::{InUse, Reclaimable, Suspected};
        let shares = parts(&memory(100, 50, 5), &[(30, Reclaimable), (30, InUse), (15, Suspected)]);
        assert_eq!(shares.bytes, [30, 15, 5, 0, 0, 5, 45]);
        let shares = parts(&memory(100, u64::MAX, u64::MAX), &[(u64::MAX, Reclaimable)]);
        assert_eq!(shares.bytes, [0, 0, 100, 0, 0, 0, 0]);
        assert_eq!(MemoryShares::new(&memory(0, 0, 0), std::iter::empty(), true), None);
    }

    #[test]
    fn a_small_share_gets_a_cell_if_there_is_room() {
        use UseVerdict::{InUse, Reclaimable, Suspected};
        let rows = [(79 * GIB, InUse), (1, Suspected), (1, Reclaimable)];
        let shares = parts(&memory(80 * GIB, 79 * GIB + 2, GIB / 2), &rows);
        assert_eq!(shares.cells(64), [60, 1, 1, 0, 0, 1, 1]);
        assert_eq!(shares.cells(2), [1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(shares.cells(1), [0, 0, 1, 0, 0, 0, 0]);
        let free = parts(&memory(80 * GIB, GIB, 0), &[(GIB, InUse)]);
        assert_eq!(free.cells(1), [1, 0, 0, 0, 0, 0, 0]);
        // Contexts occupy a few MiB on every machine.
        let little = parts(&memory(80 * GIB, 9 << 20, 0), &[]);
        assert_eq!(little.cells(64), [0, 0, 0, 0, 0, 0, 64]);
        let much = parts(&memory(2000 * GIB, GIB, 0), &[]);
        assert_eq!(much.cells(64), [0, 0, 0, 1, 0, 0, 63]);
    }

    /// Checks with random sizes that the cells add up to the width and that an empty share has no cell.
    #[test]
    fn a_bar_fills_its_width() {
        let mut dice = Dice(0x5eed);
        for _ in 0..2000 {
            let mut figure = || dice.bytes().unwrap_or(3);
            let memory = memory(figure().max(1), figure(), figure());
            let rows = [
                (figure(), UseVerdict::InUse),
                (figure(), UseVerdict::Suspected),
                (figure(), UseVerdict::Reclaimable),
            ];
            let shares = parts(&memory, &rows);
            let sum = shares.bytes.iter().fold(0u128, |sum, &part| sum + u128::from(part));
            assert_eq!(sum, u128::from(memory.total_bytes));
            for width in [0, 1, 2, 7, 20, 64, 300] {
                let cells = shares.cells(width);
                assert_eq!(cells.iter().sum::<u16>(), width, "{shares:?}");
                for (cells, bytes) in cells.into_iter().zip(shares.bytes) {
                    assert!(cells == 0 || bytes > 0, "{shares:?} {width}");
                }
                let held = MemoryShare::ALL[..3].iter().filter(|share| shares.bytes(**share) > 0);
                if usize::from(width) > SHARES {
                    assert!(held.clone().all(|part| cells[*part as usize] > 0));
                }
            }
        }
    }
}
