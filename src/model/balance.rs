//! Splits a GPU's memory into free memory, reserved memory, memory of listed processes, and unattributed memory.

use super::snapshot::{Gpu, GpuProcess, PidNamespace, Snapshot};
use crate::units::MIB;

/// Breakdown of a GPU's memory, in bytes. If all parts are known, they add up to the total, apart from rounding
/// errors of up to 1 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Memory reserved for the driver and firmware. `None` with memory info v1, which counts reserved memory as used.
    pub reserved_bytes: Option<u64>,
    /// Memory of the listed processes, or `None` if the memory of a process is unknown.
    pub process_bytes: Option<u64>,
    /// Memory in use that no listed process holds, or the reason why it is unknown.
    pub unattributed: Result<u64, &'static str>,
}

/// Minimum unattributed memory that is worth reporting. On a desktop, contexts and rounding account for up to 259 MiB
/// (captures of drivers 590 to 610).
pub const WORTH_MENTIONING_BYTES: u64 = 512 * MIB;

impl Balance {
    pub fn notable_bytes(&self) -> Option<u64> {
        self.unattributed.ok().filter(|&bytes| bytes >= WORTH_MENTIONING_BYTES)
    }
}

/// Parts of the names of GPUs that share system memory. Some drivers do not report that memory is shared.
const UNIFIED: &[&str] =
    &["GH200", "GB200", "GB300", "GB10", "Grace", "Orin", "Thor", "Xavier", "Tegra"];

impl Gpu {
    /// Returns whether the GPU shares system memory, which may be in use even if no process uses the GPU.
    pub fn is_unified(&self) -> bool {
        let has_unified_name = || {
            let name = self.name.as_deref();
            name.is_some_and(|name| UNIFIED.iter().any(|part| name.contains(part)))
        };
        self.numa_node.is_some() || self.memory_unavailable.is_some() || has_unified_name()
    }

    /// Returns whether the GPU is known to be partitioned into MIG instances.
    pub fn is_divided(&self) -> bool {
        let has_instance = |row: &GpuProcess| row.gpu_instance_id.is_some();
        self.mig_mode == Some(true)
            || !self.mig_devices.is_empty()
            || self.processes.iter().flatten().any(has_instance)
    }

    pub fn balance(&self) -> Option<Balance> {
        let memory = self.memory?;
        let process_bytes = self.process_bytes();
        let unattributed = match process_bytes {
            _ if self.is_divided() => {
                Err("under MIG the driver does not report process memory for the whole GPU")
            }
            _ if self.is_unified() => Err("it shares system memory"),
            _ if self.processes.is_none() => Err("the list of processes could not be read"),
            None => Err("the memory of one of the processes is unknown"),
            Some(_) if memory.reserved_bytes.is_none() => {
                Err("this driver reports reserved memory as used")
            }
            Some(held) => Ok(memory.used_bytes.saturating_sub(held)),
        };
        Some(Balance {
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            reserved_bytes: memory.reserved_bytes,
            process_bytes,
            unattributed,
        })
    }
}

impl Snapshot {
    /// Returns how much memory is in use on GPUs without listed processes, or `None` if the amount is unknown or too
    /// small to report. In a container, processes of other containers may hold this memory.
    pub fn unlisted_bytes(&self) -> Option<u64> {
        let gpus = self.gpus.iter().filter(|gpu| gpu.processes.as_ref().is_some_and(Vec::is_empty));
        gpus.filter_map(|gpu| gpu.balance()?.notable_bytes()).reduce(u64::saturating_add)
    }

    /// Returns the same as [`Gpu::balance`], except that unattributed memory is unknown if NVML may not list all
    /// processes, as in a container.
    pub fn balance(&self, gpu: &Gpu) -> Option<Balance> {
        let mut balance = gpu.balance()?;
        if self.host.pid_namespace == Some(PidNamespace::Container) {
            balance.unattributed = balance.unattributed.and(Err(
                "NVML lists every process only in the host's pid namespace; run gpumem on the host",
            ));
        }
        if !gpu.is_unread() && !self.lists_all(gpu) {
            balance.unattributed =
                balance.unattributed.and(Err("the driver does not list all of its processes"));
        }
        Some(balance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Time;
    use crate::model::snapshot::{GpuProcess, Memory};

    fn gpu(reserved_bytes: Option<u64>, held: &[Option<u64>]) -> Gpu {
        let row = |&used_bytes: &Option<u64>| GpuProcess { used_bytes, ..GpuProcess::default() };
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
    fn the_parts_of_a_balance_add_up_to_the_total() {
        let host = Snapshot::new(Time::default());
        let balance = host.balance(&gpu(Some(10), &[Some(15), Some(20)])).unwrap();
        assert_eq!(balance.unattributed, Ok(25));
        let sum = balance.free_bytes
            + balance.reserved_bytes.unwrap()
            + balance.process_bytes.unwrap()
            + balance.unattributed.unwrap();
        assert_eq!(sum, balance.total_bytes);
        let over = host.balance(&gpu(Some(10), &[Some(61)])).unwrap();
        assert_eq!(over.unattributed, Ok(0));
    }

    #[test]
    fn unattributed_memory_is_unknown_without_its_inputs() {
        let mut snapshot = Snapshot::new(Time::default());
        let parts = |snapshot: &Snapshot, gpu: Gpu| {
            let balance = snapshot.balance(&gpu).unwrap();
            (balance.process_bytes, balance.unattributed.is_ok())
        };
        assert_eq!(parts(&snapshot, gpu(Some(10), &[Some(15)])), (Some(15), true));
        assert_eq!(parts(&snapshot, gpu(None, &[Some(15)])), (Some(15), false));
        assert_eq!(parts(&snapshot, gpu(Some(10), &[Some(15), None])), (None, false));
        let mut divided = gpu(Some(10), &[Some(15)]);
        divided.mig_mode = Some(true);
        assert_eq!(parts(&snapshot, divided), (Some(15), false));
        assert_eq!(snapshot.balance(&Gpu::default()), None);
        snapshot.host.pid_namespace = Some(PidNamespace::Container);
        assert_eq!(parts(&snapshot, gpu(Some(10), &[Some(15)])), (Some(15), false));
    }
}
