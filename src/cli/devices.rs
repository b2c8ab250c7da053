//! Evaluates CUDA_VISIBLE_DEVICES, which lists the devices that the caller's programs can use.

use super::UsageError;
use super::selection::{is_gpu_named, no_such_gpu};
use crate::model::{ComputeDevice, Gpu};

pub(super) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

pub(super) fn callers_visible() -> Option<String> {
    std::env::var(VISIBLE).ok()
}

/// Returns the devices that a value of [`VISIBLE`] lists, in the same order. As in CUDA, the list ends at the first
/// invalid or repeated entry, and a GPU in MIG mode stands for its MIG devices.
///
/// Fails if the value contains an index and GPU models differ, unless CUDA_DEVICE_ORDER is PCI_BUS_ID. By default,
/// CUDA gives index 0 to the fastest GPU.
pub(super) fn visible<'a>(
    gpus: &'a [Gpu],
    value: Option<&str>,
) -> Result<Vec<ComputeDevice<'a>>, UsageError> {
    let all = || gpus.iter().flat_map(ComputeDevice::all_of);
    let Some(value) = value else { return Ok(all().collect()) };
    let is_by_bus =
        std::env::var_os("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
    let is_same = gpus.iter().all(|gpu| gpu.name == gpus[0].name);
    let mut found: Vec<ComputeDevice<'_>> = Vec::new();
    for word in value.split(',').map(str::trim) {
        let is_number = word.parse::<u32>().is_ok();
        if is_number && !is_by_bus && !is_same {
            return Err(UsageError(format!(
                "{VISIBLE}={value}: the GPUs are of different models, so CUDA's numbers differ from NVML's; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs"
            )));
        }
        let first_new = found.len();
        if word.starts_with("MIG-") {
            found.extend(all().find(|device| device.mig.is_some() && device.is_called(word)));
        } else if is_number || word.starts_with("GPU-") {
            let gpu = gpus.iter().find(|gpu| is_gpu_named(word, gpu));
            found.extend(gpu.into_iter().flat_map(ComputeDevice::all_of));
        }
        let (before, new) = found.split_at(first_new);
        if new.is_empty() || new.iter().any(|new| before.iter().any(|old| old == new)) {
            found.truncate(first_new);
            break;
        }
    }
    Ok(found)
}

/// Returns the error for a requested GPU that is not among `devices`, because it does not exist or [`VISIBLE`] hides
/// it.
pub(super) fn no_such_device(
    (option, wanted): (&str, &str),
    gpus: &[Gpu],
    devices: &[ComputeDevice<'_>],
    visible: Option<&str>,
) -> UsageError {
    match visible {
        Some(value) if gpus.iter().any(|gpu| is_gpu_named(wanted, gpu)) => UsageError(format!(
            "{option}{wanted}: {VISIBLE}={value} hides that GPU; unset it, or name another"
        )),
        _ => {
            let gpus: Vec<Gpu> = devices.iter().map(|device| device.gpu.clone()).collect();
            no_such_gpu(&format!("{option}{wanted}"), &gpus)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::MigDevice;

    #[test]
    fn visible_devices_follow_cuda_visible_devices() {
        let gpu = |index: u32, name: &str| Gpu {
            index,
            uuid: Some(format!("GPU-{index}a").into()),
            name: Some(name.into()),
            ..Gpu::default()
        };
        let mig = |index: u32| MigDevice {
            index: Some(index),
            uuid: Some(format!("MIG-{index}b").into()),
            ..MigDevice::default()
        };
        let mut same = [gpu(0, "H100"), gpu(1, "H100"), gpu(2, "H100")];
        same[1].mig_mode = Some(true);
        same[1].mig_devices = vec![mig(0), mig(1)];
        for (value, devices) in [
            (None, &["GPU 0", "MIG device 1:0", "MIG device 1:1", "GPU 2"] as &[&str]),
            (Some("2,0"), &["GPU 2", "GPU 0"]),
            (Some("GPU-2"), &["GPU 2"]),
            (Some("2,7,0"), &["GPU 2"]),
            (Some("2,2,0"), &["GPU 2"]),
            (Some("1"), &["MIG device 1:0", "MIG device 1:1"]),
            (Some("MIG-1b"), &["MIG device 1:1"]),
            (Some("MIG-1b,1"), &["MIG device 1:1"]),
            (Some("MIG-7"), &[]),
            (Some("MIG-"), &["MIG device 1:0"]),
            (Some(""), &[]),
            (Some("-1"), &[]),
            (Some("all"), &[]),
        ] {
            let found = visible(&same, value).unwrap();
            let names: Vec<String> = found.iter().map(ComputeDevice::name).collect();
            assert_eq!(names, devices, "{value:?}");
        }
        let different = [gpu(0, "T4"), gpu(1, "H100")];
        assert!(visible(&different, Some("0")).is_err());
        assert_eq!(visible(&different, Some("GPU-1a")).unwrap()[0].gpu.index, 1);
    }
}
