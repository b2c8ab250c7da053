//! Who has a GPU device file mapped, though it may have closed the descriptor.
//!
//! Reading `/proc/PID/maps` takes a lock of the process's memory map, and waits for it without end
//! where a thread of that process is stuck with it (on a dead file server, in a driver). Of a process
//! that is known to use a GPU that is risked where it sleeps (`entry`); of all processes of a machine
//! it is only done here, on a thread of its own: where that one hangs, nothing more is learnt from maps
//! and no other thread waits. It is done seldom, see `holders`.

use std::path::Path;
use std::sync::Arc;

use rustix::io;

use crate::deadline::Task;
use crate::host::Roots;
use crate::host::gpu::gpu_files::Files;
use crate::host::proc::folder::{Folder, ProcEntry};
use crate::host::proc::stat::{STAT_BYTES, parse_stat};

/// How much of a process's maps is read; 4 MiB hold some 40 000 lines.
const MAPS_BYTES: usize = 4 << 20;

/// A process that has GPU device files mapped.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::host) struct Mapped {
    pub listed: ProcEntry,
    /// When it started, read before its maps through the same folder.
    pub start_ticks: u64,
    /// Sorted, each once.
    pub files: Arc<[Arc<str>]>,
}

/// What a search found.
#[derive(Debug, Default)]
pub(in crate::host) struct MappedDevices {
    /// Sorted by pid.
    pub mapped: Vec<Mapped>,
    /// Those whose maps were left alone, because they are stuck; sorted by pid.
    pub stuck: Vec<ProcEntry>,
}

/// Begins to look through the maps of these processes. `None` where the system gives no thread.
pub(in crate::host) fn begin_search(
    roots: &Roots,
    listed: Vec<ProcEntry>,
) -> Option<Task<MappedDevices>> {
    let roots = roots.clone();
    Task::start("maps", move || search(&roots, &listed)).ok()
}

fn search(roots: &Roots, listed: &[ProcEntry]) -> MappedDevices {
    let mut content = Vec::new();
    let mut found = MappedDevices::default();
    for &listed in listed {
        // What cannot be read has nothing to say here.
        match read_mapped(roots, listed, &mut content) {
            Ok(Some(mapped)) if !mapped.files.is_empty() => found.mapped.push(mapped),
            Ok(None) => found.stuck.push(listed),
            Ok(Some(_)) | Err(_) => {}
        }
    }
    found
}

/// The device files that a process has mapped; `None` where it is stuck and is not asked.
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

/// The GPU device files under `dev` in the content of `/proc/PID/maps`, of which the end may be
/// missing: sorted, each once.
fn parse_mapped(bytes: &[u8], dev: &Path) -> Vec<Arc<str>> {
    let mut files = Files::under(dev);
    // A line without its newline was cut, and its path with it.
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    for line in lines.filter_map(|line| line.strip_suffix(b"\n")) {
        // What is before the path has no slash in it; a newline in a path is written as `\012`.
        if let Some(start) = line.iter().position(|&byte| byte == b'/') {
            let path = &line[start..];
            files.add(path.strip_suffix(b" (deleted)").unwrap_or(path));
        }
    }
    files.held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(maps: &[u8]) -> Vec<Arc<str>> {
        parse_mapped(maps, Path::new("/dev"))
    }

    #[test]
    fn device_files_are_found_among_the_mappings() {
        let maps = b"7f00-7f01 rw-s 00000000 00:06 512   /dev/nvidiactl\n\
            7f02-7f03 r-xp 00000000 08:01 9   /usr/lib/libcuda.so.1\n\
            7f04-7f05 rw-s 00010000 00:06 513   /dev/nvidia0 (deleted)\n\
            7f06-7f07 rw-s 00020000 00:06 513   /dev/nvidia0\n\
            7ffd-7ffe rw-p 00000000 00:00 0   [stack]\n";
        assert_eq!(mapped(maps), ["/dev/nvidia0".into(), "/dev/nvidiactl".into()]);
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        for maps in [
            &b""[..],
            b"\n\n/\n//\n",
            b"7f00-7f01 rw-s 0 00:06 5 /home/ann/dev/nvidia0\n",
            b"7f00-7f01 rw-s 0 00:06 5 /dev/nvidia-\n",
            b"7f00-7f01 rw-s 0 00:06 5 /dev/null\n",
            b"7f00-7f01 rw-s 0 00:06 5 /memfd:/dev/nvidia0\n",
            // Whether it goes on is not known.
            b"7f00-7f01 rw-s 0 00:06 5 /dev/nvidia1",
            b"\xff/\xff\n",
        ] {
            assert!(mapped(maps).is_empty(), "{}", maps.escape_ascii());
        }
    }
}
