//! Machines for scenarios: GPU models, drivers and hosts.

use gpumem::api::model::{Driver, Host, PidNamespace};

use super::random::Random;

/// A GPU model with the values that NVML reports.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub name: &'static str,
    pub total_bytes: u64,
    pub reserved_bytes: u64,
    pub limit_watts: f64,
    /// Power while a context exists and no kernel runs.
    pub idle_watts: f64,
    pub has_fan: bool,
}

const fn model(name: &'static str, total_mib: u64, reserved_mib: u64, watts: [f64; 2]) -> Model {
    Model {
        name,
        total_bytes: total_mib << 20,
        reserved_bytes: reserved_mib << 20,
        limit_watts: watts[0],
        idle_watts: watts[1],
        has_fan: false,
    }
}

const fn with_fan(model: Model) -> Model {
    Model { has_fan: true, ..model }
}

/// The smallest model has 16 GiB.
const MODELS: &[Model] = &[
    model("Tesla V100-SXM2-32GB", 32768, 270, [300.0, 40.0]),
    model("NVIDIA A100-SXM4-40GB", 40960, 470, [400.0, 52.0]),
    model("NVIDIA A100-SXM4-80GB", 81920, 630, [400.0, 60.0]),
    model("NVIDIA H100 80GB HBM3", 81559, 550, [700.0, 70.0]),
    model("NVIDIA H200", 143771, 614, [700.0, 76.0]),
    model("NVIDIA L40S", 46068, 560, [350.0, 36.0]),
    model("NVIDIA L4", 23034, 430, [72.0, 12.0]),
    model("Tesla T4", 16384, 430, [70.0, 10.0]),
    model("NVIDIA A10G", 24564, 512, [300.0, 25.0]),
    with_fan(model("NVIDIA RTX A5000", 24564, 300, [230.0, 24.0])),
    with_fan(model("NVIDIA GeForce RTX 4090", 24564, 476, [450.0, 28.0])),
    with_fan(model("NVIDIA RTX 6000 Ada Generation", 49140, 540, [300.0, 30.0])),
];

/// Matching versions of driver, NVML and CUDA.
const DRIVERS: &[[&str; 3]] = &[
    ["535.274.02", "12.535.274.02", "12.2"],
    ["550.163.01", "12.550.163.01", "12.4"],
    ["570.195.03", "12.570.195.03", "12.8"],
    ["580.159.03", "13.580.159.03", "13.0"],
];

const KERNELS: &[&str] = &["5.15.0-161-generic", "6.8.0-87-generic", "6.12.0-55.el10.x86_64"];

const BUSES: &[&str] = &["17", "29", "3D", "4F", "85", "A1", "C3", "E1"];

/// A machine with GPUs of one model.
#[derive(Clone, Debug)]
pub struct Machine {
    pub model: Model,
    pub uuids: Vec<String>,
    pub host: Host,
    pub driver: Driver,
    /// Set if the driver reports the utilization of processes.
    pub has_process_use: bool,
    /// Set if the driver reports the utilization of the encoder and decoder.
    pub has_codecs: bool,
    /// Set if the recording contains start ticks. Otherwise, it contains only start times.
    pub has_ticks: bool,
}

impl Machine {
    pub fn new(random: &mut Random) -> Self {
        let gpus = random.pick(&[1, 1, 2, 2, 4, 8]);
        let [version, nvml, cuda] = random.pick(DRIVERS);
        Self {
            model: random.pick(MODELS),
            uuids: (0..gpus).map(|_| format!("GPU-{}", random.uuid())).collect(),
            host: Host {
                hostname: Some(format!("gpu{:02}", random.whole(1, 64)).into()),
                boot_id: Some(random.uuid().into()),
                kernel: Some(random.pick(KERNELS).into()),
                pid_namespace: Some(PidNamespace::Host),
                suspended_seconds: None,
                ..Host::default()
            },
            driver: Driver {
                version: Some(version.into()),
                nvml_version: Some(nvml.into()),
                cuda_version: Some(cuda.into()),
            },
            has_process_use: true,
            has_codecs: random.chance(0.5),
            has_ticks: random.chance(0.3),
        }
    }

    pub fn resize(&mut self, gpus: usize, random: &mut Random) {
        self.uuids.truncate(gpus);
        while self.uuids.len() < gpus {
            self.uuids.push(format!("GPU-{}", random.uuid()));
        }
    }

    pub fn bus(gpu: usize) -> String {
        format!("00000000:{}:00.0", BUSES[gpu % BUSES.len()])
    }
}
