//! Finds the GPU device files that a process holds open, and checks whether the user may open the device files.
//!
//! A process that uses a GPU keeps the GPU's device files open. A process that has reused the pid of a GPU process
//! and does not use a GPU has no such files open. The links in `/proc/PID/fd` contain the name under which a file was
//! opened, even if the process runs in a container. Reading the links requires root or the rights of the process's
//! owner.

use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::{self, Errno};

use crate::host::proc::folder::{Folder, if_readable};
use crate::host::{Roots, parse_number};
use crate::model::device_file::minor_number;

/// Maximum number of file descriptors read from a process, which can have a million. The driver usually opens its
/// files early and thus gets low descriptor numbers.
const DESCRIPTORS: usize = 64 << 10;

/// Number of file descriptors read from each process even if the budget is used up. It equals the usual default of
/// the limit on open files.
const ALWAYS_READ: usize = 1024;

/// Number of file descriptors that one sample may read beyond the first [`ALWAYS_READ`] of each process. Reading this
/// many takes about half a second. Without this limit, processes with many descriptors could delay samples.
pub(in crate::host) const DESCRIPTOR_BUDGET: usize = 256 << 10;

const FILES: usize = 256;

/// Returns whether a name below `/dev` belongs to an NVIDIA GPU. Examples are `nvidia0`, `nvidiactl`, `nvidia-uvm`,
/// `nvidia-caps/…`, `dxg` (WSL), `nvmap`, `nvhost-…` and `nvgpu/…` (Jetson).
fn is_gpu_file(name: &[u8]) -> bool {
    let is_after = |prefix: &[u8], next: fn(&u8) -> bool| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.first().is_some_and(next))
    };
    matches!(name, b"nvidiactl" | b"dxg" | b"nvmap")
        || is_after(b"nvidia", u8::is_ascii_digit)
        || is_after(b"nvidia-", u8::is_ascii_graphic)
        || is_after(b"nvhost-", u8::is_ascii_graphic)
        || is_after(b"nvgpu/", u8::is_ascii_graphic)
}

pub fn has_gpu_device_files(dev: &Path) -> bool {
    let Ok(names) = fs::read_dir(dev) else {
        return false;
    };
    names.filter_map(Result::ok).any(|entry| is_gpu_file(entry.file_name().as_bytes()))
}

/// Returns whether the driver uses device files: `dev` contains some, or gpumem holds one open itself. If the driver
/// uses no device files, as in tests, a process without open device files can still use a GPU.
pub(in crate::host) fn is_driver_behind_files(roots: &Roots) -> bool {
    let own_pid = || -> Option<u32> {
        let link = fs::read_link(roots.proc.join("self")).ok()?;
        link.to_str()?.parse().ok()
    };
    let holds_one = || {
        let folder = Folder::open(&roots.proc, own_pid()?).ok()?;
        let files = read_held(&folder, &roots.dev).ok()?.gpu_files?;
        (!files.is_empty()).then_some(())
    };
    has_gpu_device_files(&roots.dev) || holds_one().is_some()
}

#[derive(Debug, Default)]
pub(in crate::host) struct HeldFiles {
    /// GPU device files that the process holds open, sorted and without duplicates, or `None` if they are unknown.
    pub gpu_files: Option<Arc<[Arc<str>]>>,
    pub sockets: Option<Sockets>,
}

#[derive(Debug, Default)]
pub(in crate::host) struct Sockets {
    pub inodes: Vec<u64>,
    pub is_partial: bool,
}

pub(in crate::host) fn read_held(folder: &Folder, dev: &Path) -> io::Result<HeldFiles> {
    read_held_within(&mut DESCRIPTOR_BUDGET.clone(), folder, dev)
}

/// Reads the same as [`read_held`], but with a budget that several processes share.
pub(in crate::host) fn read_held_within(
    budget: &mut usize,
    folder: &Folder,
    dev: &Path,
) -> io::Result<HeldFiles> {
    let Some(descriptors) = if_readable(folder.folder(c"fd"))? else {
        return Ok(HeldFiles::default());
    };
    let dev = dev.as_os_str().as_bytes();
    let mut paths: Vec<Arc<str>> = Vec::new();
    let mut sockets = Sockets::default();
    let limit = DESCRIPTORS.min(ALWAYS_READ + *budget);
    let mut read_count: usize = 0;
    let walk = walk(&descriptors, limit, |target| {
        read_count += 1;
        if let Some(inode) = parse_socket(target) {
            sockets.inodes.push(inode);
        } else if is_gpu_file_under(dev, target) && paths.len() < FILES {
            let path = String::from_utf8_lossy(target);
            if let Err(at) = paths.binary_search_by(|listed| (**listed).cmp(&*path)) {
                paths.insert(at, Arc::from(&*path));
            }
        }
        true
    })?;
    *budget = budget.saturating_sub(read_count.saturating_sub(ALWAYS_READ));
    sockets.is_partial = walk == Walk::Partial;
    Ok(HeldFiles {
        // A partial read can prove that a process holds a device file, but not that it holds none.
        gpu_files: (walk == Walk::Whole || !paths.is_empty()).then(|| paths.into()),
        sockets: (walk != Walk::Refused).then_some(sockets),
    })
}

/// Returns whether a process holds a GPU device file below `dev` open, and how many file descriptors were read.
/// `descriptors` is the opened `fd` folder of the process. The first value is `None` if no GPU device file was found
/// and not all descriptors were read.
pub(in crate::host) fn holds_gpu_file(
    descriptors: &Folder,
    dev: &Path,
) -> io::Result<(Option<bool>, usize)> {
    let dev = dev.as_os_str().as_bytes();
    let (mut holds, mut read_count) = (false, 0);
    let walk = walk(descriptors, DESCRIPTORS, |target| {
        read_count += 1;
        holds = is_gpu_file_under(dev, target);
        !holds
    })?;
    Ok(((holds || walk == Walk::Whole).then_some(holds), read_count))
}

fn is_gpu_file_under(dev: &[u8], target: &[u8]) -> bool {
    let name = target.strip_prefix(dev).and_then(|name| name.strip_prefix(b"/"));
    name.is_some_and(is_gpu_file)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Walk {
    Whole,
    /// `each` returned `false`, or the process has more file descriptors than the limit.
    Partial,
    Refused,
}

/// Calls `each` with the targets of at most `limit` file descriptors, until `each` returns `false`.
fn walk(
    descriptors: &Folder,
    limit: usize,
    mut each: impl FnMut(&[u8]) -> bool,
) -> io::Result<Walk> {
    let mut read_count = 0;
    let mut walk = Walk::Whole;
    let listed = descriptors.names(|name: &CStr| {
        if read_count == limit {
            walk = Walk::Partial;
            return false;
        }
        read_count += 1;
        match descriptors.link(name, &mut each) {
            Ok(true) => {}
            Ok(false) => walk = Walk::Partial,
            Err(Errno::ACCESS | Errno::PERM) => walk = Walk::Refused,
            Err(_) => {}
        }
        walk == Walk::Whole
    });
    Ok(match if_readable(listed)? {
        Some(()) => walk,
        None => Walk::Refused,
    })
}

fn parse_socket(target: &[u8]) -> Option<u64> {
    parse_number(target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?)
}

// Permissions are checked without opening the files, because opening a GPU's device file can wake a suspended GPU. A
// container's device rules can deny access despite the permissions.

const MAX_LISTED: usize = 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFile {
    pub name: String,
    pub mode: u32,
    pub gid: u32,
    pub usable: bool,
}

/// Lists the GPU device files directly below `dev`, sorted by minor number, then by name.
pub fn read_device_files(dev: &Path) -> std::io::Result<Vec<DeviceFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dev)?.filter_map(Result::ok) {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_gpu_file(name.as_bytes()) || files.len() >= MAX_LISTED {
            continue;
        }
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        if metadata.is_dir() {
            continue;
        }
        let may = Access::READ_OK | Access::WRITE_OK;
        files.push(DeviceFile {
            usable: accessat(CWD, entry.path(), may, AtFlags::EACCESS).is_ok(),
            mode: metadata.mode() & 0o7777,
            gid: metadata.gid(),
            name,
        });
    }
    files.sort_by_key(|file| (minor_number(&file.name), file.name.clone()));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::FakeProc;

    #[test]
    fn device_files_are_recognised_by_name() {
        for name in [
            "nvidia0",
            "nvidia12",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "nvidia-modeset",
            "nvidia-caps/nvidia-cap1",
            "dxg",
            "nvmap",
            "nvhost-ctrl-gpu",
            "nvgpu/igpu0/ctrl",
        ] {
            assert!(is_gpu_file(name.as_bytes()), "{name}");
        }
        for name in ["", "null", "nvidia", "nvidia-", "nvme0", "nvidiax", "nvram", "dri/card0"] {
            assert!(!is_gpu_file(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn descriptors_beyond_the_first_few_use_a_shared_budget() {
        let fake = FakeProc::new();
        for (pid, count) in [(7, 3000), (8, 3000), (9, 1000)] {
            for number in 0..count {
                fake.link(pid, &format!("fd/{number}"), format!("socket:[{number}]"));
            }
        }
        let mut budget = 500;
        let mut read = |pid| {
            let folder = Folder::open(&fake.proc, pid).unwrap();
            let held = read_held_within(&mut budget, &folder, &fake.dev).unwrap();
            let sockets = held.sockets.unwrap();
            (sockets.inodes.len(), sockets.is_partial, held.gpu_files.is_some())
        };
        assert_eq!(read(7), (ALWAYS_READ + 500, true, false), "unknown, not none");
        assert_eq!(read(8), (ALWAYS_READ, true, false));
        assert_eq!(read(9), (1000, false, true));
    }

    #[test]
    fn device_files_are_listed_in_order_without_folders() {
        let dev = tempfile::tempdir().unwrap();
        assert_eq!(read_device_files(dev.path()).unwrap(), []);
        for name in ["nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null", "nvme0"] {
            fs::write(dev.path().join(name), "").unwrap();
        }
        fs::create_dir(dev.path().join("nvidia-caps")).unwrap();
        let files = read_device_files(dev.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["nvidia-uvm", "nvidiactl", "nvidia2", "nvidia10"]);
        assert!(files.iter().all(|file| file.usable), "{files:?}");
        assert!(read_device_files(&dev.path().join("none")).is_err());
    }
}
