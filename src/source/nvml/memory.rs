//! Reads the memory of GPUs and MIG devices, and determines the memory of the whole GPU. Since R615, if gpumem is in a
//! cgroup with a GPU memory limit, memory info v2 describes only the memory within the limit. v1 always describes the
//! whole GPU.

use nvml_wrapper::{Device, Nvml};

use super::calls::Calls;
use super::error::Code;
use super::ffi;
use crate::model::snapshot::Memory;
use crate::units::MIB;

/// Maximum difference, in bytes, by which rounding can change the total of a GPU.
const ROUNDING_BYTES: u64 = MIB;

pub(super) const V2: &str = "nvmlDeviceGetMemoryInfo_v2";
pub(super) const V1: &str = "nvmlDeviceGetMemoryInfo";

pub(super) fn read_v2(calls: &Calls, device: &Device<'_>) -> Result<Memory, Code> {
    let memory = calls.raw(V2, || device.memory_info())?;
    Ok(Memory {
        total_bytes: memory.total,
        reserved_bytes: Some(memory.reserved),
        used_bytes: memory.used,
        free_bytes: memory.free,
    })
}

pub(super) fn read_v1(calls: &Calls, nvml: &Nvml, device: &Device<'_>) -> Result<Memory, Code> {
    let read = calls.raw(V1, || ffi::memory_info_v1(nvml, device));
    let (total_bytes, used_bytes, free_bytes) = read?;
    Ok(Memory { total_bytes, reserved_bytes: None, used_bytes, free_bytes })
}

#[derive(Default, Debug)]
pub(super) struct WholeGpuMemory {
    /// The last v2 total that was compared with that of v1, and whether it is a limit. The total of a GPU never
    /// changes, so without a limit, v1 is called only once.
    compared: Option<(u64, bool)>,
    /// The last limit, and how many bytes within it are free.
    pub(super) limit: Option<(u64, u64)>,
}

impl WholeGpuMemory {
    /// Returns the memory of the whole GPU: `reported` (from v2), or the result of `v1` if a cgroup limits v2. Returns
    /// an error if v1 is needed but fails.
    pub(super) fn read(
        &mut self,
        reported: Memory,
        v1: impl FnOnce() -> Result<Memory, Code>,
    ) -> Result<Memory, Code> {
        self.limit = None;
        if self.compared == Some((reported.total_bytes, false)) {
            return Ok(reported);
        }
        let whole = match v1() {
            Err(code) if code.is_unsupported() => Memory::default(),
            figures => figures?,
        };
        let is_limit = reported.total_bytes.saturating_add(ROUNDING_BYTES) < whole.total_bytes;
        self.compared = Some((reported.total_bytes, is_limit));
        if !is_limit {
            return Ok(reported);
        }
        self.limit = Some((reported.total_bytes, reported.free_bytes));
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    fn of_total(total: u64) -> Memory {
        Memory {
            total_bytes: total,
            reserved_bytes: Some(0),
            used_bytes: GIB,
            free_bytes: total - GIB,
        }
    }

    fn figures(total_bytes: u64, used_bytes: u64, free_bytes: u64) -> Memory {
        Memory { total_bytes, reserved_bytes: None, used_bytes, free_bytes }
    }

    fn never() -> Result<Memory, Code> {
        panic!("v1 was called again")
    }

    #[test]
    fn setting_changing_and_removing_a_limit_is_detected() {
        let v1 = || Ok(figures(80 * GIB, 50 * GIB, 30 * GIB));
        let mut whole = WholeGpuMemory::default();
        assert_eq!(whole.read(of_total(80 * GIB), v1).unwrap(), of_total(80 * GIB));
        assert_eq!(whole.read(of_total(80 * GIB), never).unwrap(), of_total(80 * GIB));
        for limit in [8 * GIB, 16 * GIB, 16 * GIB] {
            let memory = whole.read(of_total(limit), v1).unwrap();
            assert_eq!(memory, figures(80 * GIB, 50 * GIB, 30 * GIB));
            assert_eq!(whole.limit, Some((limit, limit - GIB)));
        }
        assert_eq!(whole.read(of_total(80 * GIB), v1).unwrap(), of_total(80 * GIB));
        assert_eq!(whole.limit, None);
    }

    #[test]
    fn incomparable_figures_are_not_reported_as_the_gpus() {
        let mut whole = WholeGpuMemory::default();
        let failed = || Err(Code::UNKNOWN);
        assert!(whole.read(of_total(8 * GIB), failed).is_err());
        assert!(whole.read(of_total(8 * GIB), failed).is_err());
        // A difference by rounding is not a limit, and a driver without v1 has no limits.
        let rounded = || Ok(figures(80 * GIB + 4096, GIB, GIB));
        assert_eq!(whole.read(of_total(80 * GIB), rounded).unwrap(), of_total(80 * GIB));
        let missing = || Err(Code::NOT_SUPPORTED);
        assert_eq!(WholeGpuMemory::default().read(of_total(GIB), missing).unwrap(), of_total(GIB));
    }
}
