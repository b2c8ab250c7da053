//! What the memory of a GPU is in use for, in the order in which a bar shows it: what processes use, what is
//! suspected to be unused, what `reap` would take, what no listed process holds, what the driver reserves,
//! and what is free.
//!
//! Pure. Added up once for each sample, not for each frame; how a bar is drawn is in `view/bar.rs`.

use crate::model::Snapshot;
use crate::model::balance::WORTH_MENTIONING_BYTES;
use crate::model::field::gpu::FillLevel;
use crate::model::row::percent;
use crate::model::snapshot::{Gpu, GpuProcess, Memory};

/// What is made of the memory that a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UseVerdict {
    /// Nothing says that it is reclaimable.
    InUse,
    /// It looks unused, and that is not proved yet.
    Suspected,
    /// A finding that `gpumem reap` takes by default is about it.
    Reclaimable,
}

/// A part of a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryShare {
    /// Processes hold it.
    InUse,
    /// Processes hold it that look idle.
    Suspected,
    /// Processes hold it that `reap` takes by default.
    Reclaimable,
    /// It is in use, and no listed process holds it.
    Unattributed,
    /// It is in use, and it is not known what for.
    Unknown,
    /// The driver reserves it.
    Reserved,
    /// It is free.
    Free,
}

/// How many parts there are.
pub const SHARES: usize = MemoryShare::ALL.len();

impl MemoryShare {
    /// All of them, as a bar shows them from left to right.
    pub const ALL: [Self; 7] = [
        Self::InUse,
        Self::Suspected,
        Self::Reclaimable,
        Self::Unattributed,
        Self::Unknown,
        Self::Reserved,
        Self::Free,
    ];

    /// From the one whose cell is worth most, where there are fewer cells than parts.
    const BY_NEED: [Self; 7] = [
        Self::Reclaimable,
        Self::InUse,
        Self::Suspected,
        Self::Unattributed,
        Self::Unknown,
        Self::Free,
        Self::Reserved,
    ];

    /// Its glyph, what a legend calls it, and what it is, as the help says it.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::InUse => ("▬", "in use", "memory that processes use"),
            Self::Suspected => ("□", "suspected", "held, and looks unused; not proved yet"),
            Self::Reclaimable => {
                ("■", "reclaimable", "held, and found unused: gpumem reap takes it")
            }
            Self::Unattributed => ("▒", "unattributed", "used, but by no process that can be seen"),
            Self::Unknown => ("▚", "unknown", "in use; the process is not known"),
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

/// Below this many cells only what processes hold is sure of one, however little it is: one cell is a
/// large part of such a bar.
const ROOMY_CELLS: u16 = 20;

/// The parts of some memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryShares {
    total_bytes: u64,
    bytes: [u64; SHARES],
}

impl MemoryShares {
    /// Of memory that is held by these rows. What is left of what is in use is unattributed or, where
    /// the driver does not tell enough to say so, unknown.
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
        // Processes may be said to hold more than is in use: what is accused is cut then, not what works.
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

    /// Those of several memories together; `None` of none.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        all.copied().reduce(|mut sum, one| {
            sum.total_bytes = sum.total_bytes.saturating_add(one.total_bytes);
            for (part, bytes) in sum.bytes.iter_mut().zip(one.bytes) {
                *part = part.saturating_add(bytes);
            }
            sum
        })
    }

    /// So much of it is this part.
    pub fn bytes(&self, part: MemoryShare) -> u64 {
        self.bytes[part as usize]
    }

    /// Whether so much of it is this share that a bar shows it.
    pub fn has(&self, share: MemoryShare) -> bool {
        let bytes = self.bytes(share);
        match share {
            // Less is context and rounding, which every machine has.
            MemoryShare::Unattributed => bytes >= WORTH_MENTIONING_BYTES,
            _ => bytes > 0,
        }
    }

    /// How full it is.
    pub fn level(&self) -> FillLevel {
        let free = [MemoryShare::Reserved, MemoryShare::Free].map(|share| self.bytes(share));
        let used = self.total_bytes.saturating_sub(free.iter().sum());
        FillLevel::of_memory(percent(used, self.total_bytes))
    }

    /// How many of `width` cells each part has. They are `width` in all: each boundary is rounded by
    /// itself, and a part too small for a cell has one from the largest, as far as there is room.
    pub fn cells(&self, width: u16) -> [u16; SHARES] {
        let (mut bytes, mut drawn) = (0u64, 0);
        let mut cells = self.bytes.map(|part| {
            bytes = bytes.saturating_add(part);
            let share = bytes as f64 / self.total_bytes as f64;
            let end = ((share.min(1.0) * f64::from(width)).round() as u16).max(drawn);
            end - std::mem::replace(&mut drawn, end)
        });
        for part in MemoryShare::BY_NEED {
            if cells[part as usize] > 0 || !self.is_sure_of_a_cell(part, width) {
                continue;
            }
            // Of several that are as large the last gives way: what is free, before what is used.
            let largest = (0..SHARES).max_by_key(|&at| cells[at]);
            if let Some(largest) = largest.filter(|&at| cells[at] > 1) {
                cells[largest] -= 1;
                cells[part as usize] = 1;
            }
        }
        cells
    }

    fn is_sure_of_a_cell(&self, share: MemoryShare, width: u16) -> bool {
        let is_held =
            matches!(share, MemoryShare::InUse | MemoryShare::Suspected | MemoryShare::Reclaimable);
        self.has(share) && (is_held || width >= ROOMY_CELLS)
    }
}

/// Takes as much of `wanted` as there is.
fn take_up_to(there: &mut u64, wanted: u64) -> u64 {
    let taken = wanted.min(*there);
    *there -= taken;
    taken
}

/// The parts of a GPU's memory, and of its MIG devices'.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuShares {
    /// Of the GPU; `None` where its memory is not known.
    pub whole: Option<MemoryShares>,
    /// Of its MIG devices, in their order.
    pub devices: Vec<Option<MemoryShares>>,
}

impl GpuShares {
    /// The parts of a GPU on which these rows are.
    pub fn new(snapshot: &Snapshot, gpu: &Gpu, rows: &[(GpuProcess, UseVerdict)]) -> Self {
        // Where a share is unknown, or `used` includes what is reserved (memory info v1), no one can
        // say what the rest is.
        let balance = snapshot.balance(gpu);
        let is_rest_attributable = balance.is_some_and(|it| it.unattributed.is_ok());
        let rows = || rows.iter().copied();
        let devices = gpu.mig_devices.iter().map(|device| {
            // The memory is its GPU instance's, and so are the processes.
            let own = rows().filter(|(row, _)| row.gpu_instance_id == device.gpu_instance_id);
            MemoryShares::new(device.memory.as_ref()?, own, false)
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
    fn what_is_accused_is_cut_first_where_the_figures_contradict_one_another() {
        use UseVerdict::{InUse, Reclaimable, Suspected};
        let it = parts(&memory(100, 50, 5), &[(30, Reclaimable), (30, InUse), (15, Suspected)]);
        assert_eq!(it.bytes, [30, 15, 5, 0, 0, 5, 45]);
        let it = parts(&memory(100, u64::MAX, u64::MAX), &[(u64::MAX, Reclaimable)]);
        assert_eq!(it.bytes, [0, 0, 100, 0, 0, 0, 0]);
        assert_eq!(MemoryShares::new(&memory(0, 0, 0), std::iter::empty(), true), None);
    }

    #[test]
    fn a_part_has_a_cell_where_there_is_room_for_one() {
        use UseVerdict::{InUse, Reclaimable, Suspected};
        let rows = [(79 * GIB, InUse), (1, Suspected), (1, Reclaimable)];
        let it = parts(&memory(80 * GIB, 79 * GIB + 2, GIB / 2), &rows);
        assert_eq!(it.cells(64), [60, 1, 1, 0, 0, 1, 1]);
        assert_eq!(it.cells(2), [1, 0, 1, 0, 0, 0, 0]);
        // A few MiB of context on every machine are no accusation.
        let little = parts(&memory(80 * GIB, 9 << 20, 0), &[]);
        assert_eq!(little.cells(64), [0, 0, 0, 0, 0, 0, 64]);
        let much = parts(&memory(2000 * GIB, GIB, 0), &[]);
        assert_eq!(much.cells(64), [0, 0, 0, 1, 0, 0, 63]);
    }

    /// Whatever the figures, the cells are as many as there are, and a part without bytes has none.
    #[test]
    fn a_bar_is_as_wide_as_it_is() {
        let mut dice = Dice(0x5eed);
        for _ in 0..2000 {
            let mut figure = || dice.bytes().unwrap_or(3);
            let memory = memory(figure().max(1), figure(), figure());
            let rows = [
                (figure(), UseVerdict::InUse),
                (figure(), UseVerdict::Suspected),
                (figure(), UseVerdict::Reclaimable),
            ];
            let it = parts(&memory, &rows);
            let sum = it.bytes.iter().fold(0u128, |sum, &part| sum + u128::from(part));
            assert_eq!(sum, u128::from(memory.total_bytes));
            for width in [0, 1, 2, 7, 20, 64, 300] {
                let cells = it.cells(width);
                assert_eq!(cells.iter().sum::<u16>(), width, "{it:?}");
                for (cells, bytes) in cells.into_iter().zip(it.bytes) {
                    assert!(cells == 0 || bytes > 0, "{it:?} {width}");
                }
                let held = MemoryShare::ALL[..3].iter().filter(|it_is| it.bytes(**it_is) > 0);
                if usize::from(width) > SHARES {
                    assert!(held.clone().all(|part| cells[*part as usize] > 0));
                }
            }
        }
    }
}
