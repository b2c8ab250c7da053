//! Finds processes that have mapped a GPU device file into memory. A mapping remains after the file descriptor has
//! been closed.
//!
//! Reading `/proc/PID/maps` takes a lock on the memory map of the process. The read can block forever if a thread of
//! the process holds the lock while it waits in a driver or for an unreachable file server. `entry` therefore reads
//! only the maps of known GPU processes that are not in state D. This module, in contrast, reads the maps of many
//! processes, but rarely (see `holders`) and on a separate thread. If that thread hangs, samples continue without
//! further reads of maps.

use std::path::Path;
use std::sync::Arc;

use rustix::io;

use crate::deadline::Task;
use crate::host::Roots;
use crate::host::gpu::gpu_files::Files;
use crate::host::proc::folder::{Folder, ProcEntry};
use crate::host::proc::framework::mapped_path;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};

/// Maximum number of bytes read from a `maps` file. About 40,000 lines fit.
const MAPS_BYTES: usize = 4 << 20;

#[derive(Clone, PartialEq, Debug)]
pub(in crate::host) struct Mapped {
    pub listed: ProcEntry,
    /// Start time in clock ticks, read before the maps through the same open folder.
    pub start_ticks: u64,
    pub files: Arc<[Arc<str>]>,
}

#[derive(Debug, Default)]
pub(in crate::host) struct MappedDevices {
    pub mapped: Vec<Mapped>,
    /// Processes that were skipped because they are in state D, sorted by pid.
    pub stuck: Vec<ProcEntry>,
}

/// Starts a thread that reads the maps of the listed processes. Returns `None` if the thread cannot be started.
pub(in crate::host) fn start_search(
    roots: &Roots,
    listed: Vec<ProcEntry>,
) -> Option<Task<MappedDevices>> {
    let roots = roots.clone();
    Task::start("maps", move || search(&roots, &listed)).ok()
}

fn search(roots: &Roots, listed: &[ProcEntry]) -> MappedDevices {
    let mut content = Vec::new();
    let mut result = MappedDevices::default();
    for &listed in listed {
        match read_mapped(roots, listed, &mut content) {
            Ok(Some(mapped)) if !mapped.files.is_empty() => result.mapped.push(mapped),
            Ok(None) => result.stuck.push(listed),
            Ok(Some(_)) | Err(_) => {}
        }
    }
    result
}

/// Reads which GPU device files a process has mapped. Returns `None` if the process is in state D and was skipped.
fn read_mapped(
    roots: &Roots,
    listed: ProcEntry,
    content: &mut Vec<u8>,
) -> io::Result<Option<Mapped>> {
    let folder = Folder::open(&roots.proc, listed.pid)?;
    folder.read(c"stat", content, STAT_BYTES)?;
    let stat = parse_stat(content).ok_or(io::Errno::INVAL)?;
    let start_ticks = stat.start_ticks;
    if stat.state == 'D' {
        return Ok(None);
    }
    let has_memory = !stat.is_exiting && !stat.is_kernel_thread;
    content.clear();
    if has_memory {
        folder.read_list(c"maps", content, MAPS_BYTES)?;
    }
    Ok(Some(Mapped { listed, start_ticks, files: parse_mapped(content, &roots.dev).into() }))
}

/// Returns the GPU device files below `dev` that are listed in a `maps` file, sorted and without duplicates. `bytes`
/// may be truncated.
fn parse_mapped(bytes: &[u8], dev: &Path) -> Vec<Arc<str>> {
    let mut files = Files::under(dev);
    // The last line may be truncated, so skip it unless it ends with a newline.
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.filter_map(mapped_path).for_each(|path| files.add(path));
    files.paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(maps: &[u8]) -> Vec<Arc<str>> {
        parse_mapped(maps, Path::new("/dev"))
    }

    #[test]
    fn device_files_are_found_in_maps() {
        let maps = b"7f00-7f01 rw-s 00000000 00:06 512   /dev/nvidiactl\n\
            7f02-7f03 r-xp 00000000 08:01 9   /usr/lib/libcuda.so.1\n\
            7f04-7f05 rw-s 00010000 00:06 513   /dev/nvidia0 (deleted)\n\
            7f06-7f07 rw-s 00020000 00:06 513   /dev/nvidia0\n\
            7ffd-7ffe rw-p 00000000 00:00 0   [stack]\n";
        assert_eq!(mapped(maps), ["/dev/nvidia0".into(), "/dev/nvidiactl".into()]);
    }

    #[test]
    fn similar_paths_are_not_device_files() {
        for maps in [
            &b""[..],
            b"\n\n/\n//\n",
            b"7f00-7f01 rw-s 0 00:06 5 /home/ann/dev/nvidia0\n",
            b"7f00-7f01 rw-s 0 00:06 5 /dev/nvidia-\n",
            b"7f00-7f01 rw-s 0 00:06 5 /dev/null\n",
            b"7f00-7f01 rw-s 0 00:06 5 /memfd:/dev/nvidia0\n",
            // The line has no newline, so its path may be truncated.
            b"7f00-7f01 rw-s 0 00:06 5 /dev/nvidia1",
            b"\xff/\xff\n",
        ] {
            assert!(mapped(maps).is_empty(), "{}", maps.escape_ascii());
        }
    }
}
