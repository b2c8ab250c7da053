//! Reads facts about NVIDIA's driver: the version of its kernel module, the GPUs on the PCI bus, the MPS daemons, and
//! the path of a loaded library. The Multi-Process Service (MPS) lets several processes share a GPU.
//!
//! The loaded module provides `/proc/driver/nvidia/version`. The version of the installed driver can differ, for
//! example after an upgrade. The file is also visible in containers unless the container runtime masks it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::proc::folder::{Folder, ProcEntry, read_start, read_text};
use crate::host::proc::framework::mapped_path;

const VERSION_BYTES: u64 = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelModule {
    Loaded { version: Option<Arc<str>> },
    Absent,
    Unreadable,
}

pub fn read_kernel_module(proc: &Path) -> KernelModule {
    match read_start(&proc.join("driver/nvidia/version"), VERSION_BYTES) {
        Ok(text) => KernelModule::Loaded { version: parse_module_version(&text) },
        Err(error) if error.kind() == io::ErrorKind::NotFound => KernelModule::Absent,
        Err(_) => KernelModule::Unreadable,
    }
}

/// Returns the version of the kernel module, which is the first word of digits and dots in a line such as `NVRM
/// version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build …`.
pub fn parse_module_version(text: &[u8]) -> Option<Arc<str>> {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find_map(|line| line.strip_prefix("NVRM version:"))?;
    line.split_whitespace().find(|word| is_version(word)).map(Arc::from)
}

fn is_version(word: &str) -> bool {
    word.len() <= 32
        && word.contains('.')
        && word
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

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

/// Value of `comm` of both daemons. The kernel truncates `comm` to 15 bytes.
const MPS_COMM: &[u8] = b"nvidia-cuda-mps";
const COMM_BYTES: usize = 64;
const COMMAND_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MpsDaemons {
    /// Number of `nvidia-cuda-mps-control` daemons. Such a daemon starts a server for a user when the user's first
    /// client connects.
    pub controls: usize,
    pub servers: usize,
}

/// Counts the MPS daemons among the processes below `proc` that the current user can see. Returns `None` if processes
/// cannot be listed.
pub fn read_mps_daemons(proc: &Path) -> Option<MpsDaemons> {
    let mut daemons = MpsDaemons::default();
    let mut content = Vec::new();
    for ProcEntry { pid, .. } in Folder::list(proc).and_then(|proc| proc.processes()).ok()? {
        // The files cannot be read if the process has exited or `hidepid` hides them.
        let Ok(folder) = Folder::open(proc, pid) else { continue };
        if folder.read(c"comm", &mut content, COMM_BYTES).is_err()
            || !content.starts_with(MPS_COMM)
            || folder.read(c"cmdline", &mut content, COMMAND_BYTES).is_err()
        {
            continue;
        }
        let program = content.split(|&byte| byte == 0).next().unwrap_or_default();
        match program.rsplit(|&byte| byte == b'/').next() {
            Some(b"nvidia-cuda-mps-control") => daemons.controls += 1,
            Some(b"nvidia-cuda-mps-server") => daemons.servers += 1,
            _ => {}
        }
    }
    Some(daemons)
}

const MAPS_BYTES: u64 = 4 << 20;

/// Returns the first file mapped by gpumem for which `is_wanted` returns `true`, or `None` if there is none or the maps
/// cannot be read. The loader does not report the paths of loaded libraries.
pub fn read_own_mapped_file(proc: &Path, is_wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let file = File::open(proc.join("self/maps")).ok()?;
    let mut lines = BufReader::new(file.take(MAPS_BYTES)).split(b'\n');
    lines.find_map(|line| {
        let line = line.ok()?;
        let path = Path::new(OsStr::from_bytes(mapped_path(&line)?));
        is_wanted(path).then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_kernel_modules_are_parsed() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n\
                 GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1)\n",
                Some("535.104.05"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (root@host)\n",
                Some("580.159.03"),
            ),
            ("GCC version:  gcc version 12.3.0\n", None),
            ("NVRM version: none 12 a.b ..\n", None),
            ("", None),
        ] {
            assert_eq!(parse_module_version(text.as_bytes()).as_deref(), version);
        }
        assert_eq!(parse_module_version(b"NVRM version: \xff\xff 1.\xff"), None);
    }

    #[test]
    fn a_missing_version_file_means_no_module() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read_kernel_module(root.path()), KernelModule::Absent);
        fs::create_dir_all(root.path().join("driver/nvidia")).unwrap();
        let file = root.path().join("driver/nvidia/version");
        fs::write(&file, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02\n").unwrap();
        assert_eq!(
            read_kernel_module(root.path()),
            KernelModule::Loaded { version: Some("470.256.02".into()) }
        );
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(read_kernel_module(root.path()), KernelModule::Unreadable);
    }

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

    #[test]
    fn mps_daemons_are_distinguished_by_program() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(read_mps_daemons(proc.path()), Some(MpsDaemons::default()));
        for (pid, comm, cmdline) in [
            ("7", "nvidia-cuda-mps\n", "/usr/bin/nvidia-cuda-mps-control\0-d\0"),
            ("8", "nvidia-cuda-mps\n", "nvidia-cuda-mps-server\0"),
            ("9", "nvidia-cuda-mps\n", "vim\0nvidia-cuda-mps-server\0"),
            ("10", "python3\n", "nvidia-cuda-mps-server\0"),
            ("11", "nvidia-cuda-mps\n", ""),
        ] {
            let folder = proc.path().join(pid);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("comm"), comm).unwrap();
            fs::write(folder.join("cmdline"), cmdline).unwrap();
        }
        fs::create_dir(proc.path().join("12")).unwrap();
        assert_eq!(read_mps_daemons(proc.path()), Some(MpsDaemons { controls: 1, servers: 1 }));
        assert_eq!(read_mps_daemons(Path::new("/nonexistent")), None);
    }

    #[test]
    fn the_current_process_has_mapped_its_program() {
        let program = fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
        let mapped = read_own_mapped_file(Path::new("/proc"), |path| path == program);
        assert_eq!(mapped, Some(program));
        assert_eq!(read_own_mapped_file(Path::new("/proc"), |_| false), None);
        assert_eq!(read_own_mapped_file(Path::new("/nonexistent"), |_| true), None);
    }
}
