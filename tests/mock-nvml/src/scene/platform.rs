//! Platforms on which NVML reports less data.

use super::{Fault, Gpu, Scene};

/// `NVML_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 3;
/// `NVML_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;

impl Gpu {
    /// Returns the GPU of a DGX Spark. The GPU shares the system's memory, so NVML does not support the memory calls,
    /// but lists processes with their memory.
    pub fn gb10() -> Self {
        Self { memory: None, power_limit: None, ..Self::new("NVIDIA GB10") }
    }
}

impl Scene {
    /// Returns a scene with the integrated GPU of a Jetson, for which NVML reports little more than the name.
    pub fn jetson() -> Self {
        let gpu = Gpu {
            memory: None,
            utilization: None,
            power: None,
            power_limit: None,
            temperature: None,
            clock: None,
            pstate: None,
            compute_mode: None,
            persistence: None,
            accounting: None,
            process_utilization: false,
            ..Gpu::new("Orin (nvgpu)")
        };
        let lists = ["Compute", "Graphics", "MPSCompute"];
        let versions = ["", "_v2", "_v3"];
        let functions = lists.iter().flat_map(|list| {
            let name = move |version| format!("nvmlDeviceGet{list}RunningProcesses{version}");
            versions.iter().map(name)
        });
        functions.fold(Self::new().gpu(gpu), |scene, function| {
            scene.fault(Fault::error(function, NOT_SUPPORTED))
        })
    }

    /// Returns a scene with a GPU in WSL, where memory info v2 fails, and NVML neither lists processes nor samples
    /// their utilization.
    pub fn wsl() -> Self {
        let gpu = Gpu {
            process_utilization: false,
            power_limit: None,
            persistence: Some(true),
            ..Gpu::new("NVIDIA GeForce RTX 4090").total(24_u64 << 30).unattributed(5_u64 << 30)
        };
        let fault = Fault::error("nvmlDeviceGetMemoryInfo_v2", UNKNOWN);
        Self::new().gpu(gpu).fault(fault)
    }
}
