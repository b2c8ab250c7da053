//! The machine's GPU device files, and whether this user may open them.
//!
//! This checks permissions and opens nothing, because opening a device may wake a sleeping GPU. So it does not
//! see what a container's device rules forbid; the driver's own answer does.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::host::gpu::gpu_files::is_gpu_file;
use crate::model::device_file::minor_number;

/// The most device files that are listed; a machine has fewer.
const MOST: usize = 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFile {
    /// Name below `/dev`: `nvidiactl`, `nvidia0`, `nvidia-uvm`.
    pub name: String,
    /// Permission bits: `0o666`.
    pub mode: u32,
    pub gid: u32,
    /// Whether this user may read and write it.
    pub usable: bool,
}

/// Lists the device files directly below `dev` by name, numbered ones in numeric order.
///
/// # Errors
///
/// If the folder cannot be listed.
pub fn read_device_files(dev: &Path) -> io::Result<Vec<DeviceFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dev)?.filter_map(Result::ok) {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_gpu_file(name.as_bytes()) || files.len() >= MOST {
            continue;
        }
        // `nvidia-caps` is a folder with more files.
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

    #[test]
    fn files_are_listed_in_order_and_folders_are_not() {
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
