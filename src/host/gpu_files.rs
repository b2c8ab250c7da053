//! GPU device files, and which of them a process holds open.
//!
//! A process that uses a GPU holds its device files open for as long as it does, so that they tell a
//! user of the GPU from a stranger who was given its pid. Links in `/proc/PID/fd` show the name that
//! a file was opened by, also from within a container. Only root and the process's owner may see
//! them.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::{self, Errno};

use super::Roots;
use super::folder::{Folder, if_readable};

/// How many descriptors of a process are looked at. The driver's are opened at the start and have
/// low numbers; a process may hold a million others.
const DESCRIPTORS: usize = 16 << 10;

/// How many different device files are kept of a process; a machine has fewer.
const FILES: usize = 256;

/// Whether a name under `/dev` is that of an NVIDIA GPU's device file: `nvidia0`, `nvidiactl`,
/// `nvidia-uvm`, `nvidia-caps/…`, the GPU of Windows' Subsystem for Linux (`dxg`), those of Jetson
/// (`nvmap`, `nvhost-…`, `nvgpu/…`).
pub fn is_gpu_file(name: &[u8]) -> bool {
    let is_after = |prefix: &[u8], next: fn(&u8) -> bool| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.first().is_some_and(next))
    };
    matches!(name, b"nvidiactl" | b"dxg" | b"nvmap")
        || is_after(b"nvidia", u8::is_ascii_digit)
        || is_after(b"nvidia-", u8::is_ascii_graphic)
        || is_after(b"nvhost-", u8::is_ascii_graphic)
        || is_after(b"nvgpu/", u8::is_ascii_graphic)
}

/// Whether this machine has GPU device files: without any, no process can hold one open, and that
/// it holds none says nothing about it.
pub fn has_gpu_device_files(dev: &Path) -> bool {
    let Ok(names) = std::fs::read_dir(dev) else {
        return false;
    };
    names
        .filter_map(Result::ok)
        .any(|entry| is_gpu_file(entry.file_name().as_bytes()))
}

/// Whether the driver of this machine is reached through device files: there are some, or this very
/// process holds one open, as it does once it has opened NVML. Where neither is so, no client of the
/// driver can hold one (a driver that stands in for the real one in tests, say), and that a process
/// holds none says nothing about it, in a container no more than on the host.
pub(super) fn is_driver_behind_files(roots: &Roots) -> bool {
    let own_pid = || -> Option<u32> {
        let link = std::fs::read_link(roots.proc.join("self")).ok()?;
        link.to_str()?.parse().ok()
    };
    let holds_one = || {
        let folder = Folder::open(&roots.proc, own_pid()?).ok()?;
        let files = read_gpu_files(&folder, &roots.dev).ok()??;
        (!files.is_empty()).then_some(())
    };
    has_gpu_device_files(&roots.dev) || holds_one().is_some()
}

/// The GPU device files under `dev` that a process holds open: sorted, each once. `None` where its
/// descriptors may not be read; empty where it holds none.
pub(super) fn read_gpu_files(folder: &Folder, dev: &Path) -> io::Result<Option<Arc<[Arc<str>]>>> {
    let Some(descriptors) = if_readable(folder.folder(c"fd"))? else {
        return Ok(None);
    };
    let dev = dev.as_os_str().as_bytes();
    let mut files: Vec<Arc<str>> = Vec::new();
    let mut seen = 0;
    let mut may_read = true;
    let mut take = |target: &[u8]| {
        let Some(name) = target.strip_prefix(dev) else {
            return;
        };
        let Some(name) = name.strip_prefix(b"/") else {
            return;
        };
        if is_gpu_file(name) && files.len() < FILES {
            let file = String::from_utf8_lossy(target);
            if let Err(at) = files.binary_search_by(|known| (**known).cmp(&*file)) {
                files.insert(at, Arc::from(&*file));
            }
        }
    };
    let listed = descriptors.names(|name: &CStr| {
        seen += 1;
        // Any other error means that it was closed since it was listed.
        let link = descriptors.link(name, &mut take);
        may_read = !matches!(link, Err(Errno::ACCESS | Errno::PERM));
        may_read && seen < DESCRIPTORS
    });
    let is_whole = may_read && if_readable(listed)?.is_some() && seen < DESCRIPTORS;
    // Some that were seen are evidence; none among a part of them is not.
    Ok((is_whole || !files.is_empty()).then(|| files.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_known_by_name() {
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
        for name in [
            "",
            "null",
            "nvidia",
            "nvidia-",
            "nvme0",
            "nvidiax",
            "nvram",
            "dri/card0",
        ] {
            assert!(!is_gpu_file(name.as_bytes()), "{name}");
        }
    }
}
