//! Finds NVIDIA GPUs on the PCI bus, even if no driver is loaded, and the kernel driver bound to each GPU.

use std::fs;
use std::path::Path;

use crate::host::proc::small_file::read_text;

/// NVIDIA's PCI vendor id.
const NVIDIA: &str = "0x10de";
/// Prefix of the PCI class of display controllers. VGA controllers have class 0x0300, GPUs without video outputs
/// 0x0302.
const DISPLAY: &str = "0x03";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PciGpu {
    /// Address of the GPU on the bus, such as `0000:17:00.0`.
    pub address: String,
    /// Name of the bound kernel driver, such as `nvidia`, `nouveau` or `vfio-pci`. `None` if no driver is bound.
    pub driver: Option<String>,
    /// Whether the kernel has suspended the GPU to save power. Opening the device file of a suspended GPU wakes it.
    pub is_suspended: bool,
}

/// Returns all NVIDIA GPUs sorted by address, or `None` if the PCI bus cannot be read.
pub fn read_pci_gpus(sys: &Path) -> Option<Vec<PciGpu>> {
    read_gpus(&sys.join("bus/pci/devices"))
}

/// Returns the GPUs bound to NVIDIA's kernel driver, sorted by address, or `None` if the driver is not loaded. Unlike
/// `read_pci_gpus`, it does not read all other PCI devices, of which a server can have hundreds.
pub fn read_driver_gpus(sys: &Path) -> Option<Vec<PciGpu>> {
    read_gpus(&sys.join("bus/pci/drivers/nvidia"))
}

fn read_gpus(devices: &Path) -> Option<Vec<PciGpu>> {
    let devices = fs::read_dir(devices).ok()?;
    let mut gpus: Vec<PciGpu> = devices
        .filter_map(Result::ok)
        .filter_map(|device| {
            let folder = device.path();
            let starts_with = |name: &str, prefix: &str| {
                let text = read_text(&folder.join(name), 64);
                text.is_some_and(|text| text.starts_with(prefix))
            };
            (starts_with("vendor", NVIDIA) && starts_with("class", DISPLAY)).then(|| PciGpu {
                address: device.file_name().to_string_lossy().into_owned(),
                driver: fs::read_link(folder.join("driver"))
                    .ok()
                    .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())),
                is_suspended: starts_with("power/runtime_status", "suspended"),
            })
        })
        .collect();
    gpus.sort_by(|left, right| left.address.cmp(&right.address));
    Some(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nvidia_display_controllers_are_gpus() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(read_pci_gpus(sys.path()), None);
        let devices = sys.path().join("bus/pci/devices");
        for (address, vendor, class, driver) in [
            ("0000:65:00.0", "0x10de", "0x030200", Some("vfio-pci")),
            ("0000:17:00.0", "0x10de", "0x030000", None),
            ("0000:17:00.1", "0x10de", "0x040300", Some("snd_hda_intel")),
            ("0000:00:02.0", "0x8086", "0x030000", Some("i915")),
        ] {
            let folder = devices.join(address);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(folder.join("class"), format!("{class}\n")).unwrap();
            if let Some(driver) = driver {
                let target = format!("../../../bus/pci/drivers/{driver}");
                std::os::unix::fs::symlink(target, folder.join("driver")).unwrap();
            }
        }
        fs::create_dir_all(devices.join("0000:ff:00.0")).unwrap();
        let gpu = |address: &str, driver: Option<&str>| PciGpu {
            address: address.to_owned(),
            driver: driver.map(str::to_owned),
            is_suspended: false,
        };
        assert_eq!(
            read_pci_gpus(sys.path()).unwrap(),
            [gpu("0000:17:00.0", None), gpu("0000:65:00.0", Some("vfio-pci"))]
        );
    }
}
