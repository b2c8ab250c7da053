//! Determines how much host memory a process can still allocate within the limits of the machine and its cgroups.

use std::path::Path;

use crate::host::Roots;
use crate::host::proc::folder::read_text;
use crate::host::proc::opened_process::OpenedProcess;

const FILE_BYTES: u64 = 64 << 10;

/// Mount point of the cgroup v2 file system relative to [`Roots::root`].
const CGROUPS: &str = "sys/fs/cgroup";

/// Returns how many bytes the process can allocate before the kernel's OOM killer runs, or `None` if this is unknown.
pub fn read_available_memory(roots: &Roots, pid: u32) -> Option<u64> {
    let meminfo = read_text(&roots.proc.join("meminfo"), FILE_BYTES)?;
    let machine = parse_line(&meminfo, "MemAvailable:")?.checked_mul(1024)?;
    let process = OpenedProcess::open(roots, pid).ok()??;
    let mut content = Vec::new();
    let limit = usize::try_from(FILE_BYTES).ok()?;
    process.folder.read(c"cgroup", &mut content, limit).ok()?;
    let cgroup = String::from_utf8(content).ok()?;
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    // A process outside gpumem's cgroup namespace has a path that contains `..`. Its limits are not visible.
    let path = path.filter(|path| !path.split('/').any(|part| part == ".."));
    let root = roots.root.join(CGROUPS);
    let folders = path.map(Path::new).into_iter().flat_map(Path::ancestors);
    let limits = folders.filter_map(|folder| read_room(&root.join(folder)));
    Some(limits.fold(machine, u64::min))
}

/// Returns how many bytes the processes of a cgroup can still allocate, or `None` if the cgroup has no limit or its
/// files cannot be read. The kernel can reclaim page cache, so page cache is available for allocation.
fn read_room(folder: &Path) -> Option<u64> {
    let read = |name| read_text(&folder.join(name), FILE_BYTES);
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let current: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let files = ["active_file", "inactive_file"].map(|name| parse_line(&stat, name).unwrap_or(0));
    let taken = current.saturating_sub(files.iter().sum());
    Some(limit.saturating_sub(taken))
}

fn parse_line(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_match = words.next() == Some(name);
        is_match.then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn available_memory_is_the_minimum_of_machine_and_cgroups() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let roots = Roots {
            proc: folder.path().join("proc"),
            dev: "/nonexistent".into(),
            root: folder.path().to_owned(),
        };
        write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   5000 kB\n");
        write("proc/7/stat", "7 (x) S 1 1 1 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 70 0 0 0 0 0 0 0 0\n");
        write("proc/7/status", "Uid:\t0\t0\n");
        write("proc/7/cgroup", "1:cpu:/x\n0::/a/b\n");
        assert_eq!(read_available_memory(&roots, 7), Some(5_120_000));
        write("sys/fs/cgroup/a/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.max", "1000000\n");
        write("sys/fs/cgroup/a/b/memory.current", "900000\n");
        write("sys/fs/cgroup/a/b/memory.stat", "anon 1\nactive_file 100000\ninactive_file 50000\n");
        assert_eq!(read_available_memory(&roots, 7), Some(250_000));
        write("sys/fs/cgroup/a/memory.max", "100\n");
        write("sys/fs/cgroup/a/memory.current", "900\n");
        assert_eq!(read_available_memory(&roots, 7), Some(0));
        assert_eq!(read_available_memory(&roots, 8), None);
    }
}
