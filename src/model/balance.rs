//! Where a GPU's memory is: free, reserved, held by listed processes, and in use by nobody listed.

use super::snapshot::Gpu;
use crate::units::MIB;

/// A GPU's memory by who has it, in bytes. By the driver's figures `total` is the sum of the others;
/// measured, they can be a MiB apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Balance {
    /// All of it.
    pub total_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Held by the driver and firmware; unknown where only memory info v1 exists, whose free and used
    /// memory add up to all of it.
    pub reserved_bytes: Option<u64>,
    /// Held by the listed processes; unknown where one of them is.
    pub process_bytes: Option<u64>,
    /// In use, and no listed process holds it; 0 where they hold more than is in use. Unknown where one
    /// of the two before is, and under MIG, where the figures are an instance's.
    pub unattributed_bytes: Option<u64>,
}

/// Below this, memory that no listed process accounts for is context and rounding (captures of
/// drivers 590 to 610 show up to 259 MiB on a desktop).
const WORTH_MENTIONING_BYTES: u64 = 512 * MIB;

impl Balance {
    /// The memory in use by nobody listed, where it is worth a word.
    pub fn notable_bytes(&self) -> Option<u64> {
        self.unattributed_bytes
            .filter(|&bytes| bytes >= WORTH_MENTIONING_BYTES)
    }
}

impl Gpu {
    /// Where its memory is; `None` where no figure of it is known.
    pub fn balance(&self) -> Option<Balance> {
        let memory = self.memory?;
        let process_bytes = self.process_bytes();
        let is_divided = self.mig_mode == Some(true) || !self.mig_devices.is_empty();
        let unattributed = process_bytes
            .filter(|_| memory.reserved_bytes.is_some() && !is_divided)
            .map(|held| memory.used_bytes.saturating_sub(held));
        Some(Balance {
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            reserved_bytes: memory.reserved_bytes,
            process_bytes,
            unattributed_bytes: unattributed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{GpuProcess, Memory};

    fn gpu(reserved_bytes: Option<u64>, held: &[Option<u64>]) -> Gpu {
        let row = |&used_bytes: &Option<u64>| GpuProcess {
            used_bytes,
            ..GpuProcess::default()
        };
        Gpu {
            memory: Some(Memory {
                total_bytes: 100,
                reserved_bytes,
                used_bytes: 60,
                free_bytes: 30,
            }),
            processes: Some(held.iter().map(row).collect()),
            ..Gpu::default()
        }
    }

    #[test]
    fn the_parts_add_up_to_all_of_it() {
        let balance = gpu(Some(10), &[Some(15), Some(20)]).balance().unwrap();
        assert_eq!(balance.unattributed_bytes, Some(25));
        let sum = balance.free_bytes
            + balance.reserved_bytes.unwrap()
            + balance.process_bytes.unwrap()
            + balance.unattributed_bytes.unwrap();
        assert_eq!(sum, balance.total_bytes);
        let over = gpu(Some(10), &[Some(61)]).balance().unwrap();
        assert_eq!(over.unattributed_bytes, Some(0));
    }

    #[test]
    fn what_depends_on_the_unknown_is_unknown() {
        let parts = |gpu: Gpu| {
            let balance = gpu.balance().unwrap();
            (balance.process_bytes, balance.unattributed_bytes)
        };
        assert_eq!(parts(gpu(None, &[Some(15)])), (Some(15), None));
        assert_eq!(parts(gpu(Some(10), &[Some(15), None])), (None, None));
        let mut divided = gpu(Some(10), &[Some(15)]);
        divided.mig_mode = Some(true);
        assert_eq!(parts(divided), (Some(15), None));
        assert_eq!(Gpu::default().balance(), None);
    }
}
