//! Reads the load of the machine (CPUs, memory, swap and load average), and how much host memory a process can still
//! allocate within the limits of the machine and its cgroups.

use std::path::{Component, Path};

use crate::host::Roots;
use crate::host::proc::folder::read_text;
use crate::host::proc::opened_process::OpenedProcess;
use crate::model::snapshot::HostLoad;

/// Maximum number of bytes to read. `/proc/stat` is long on machines with many CPUs, but its first line is enough.
const FILE_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuTicks {
    busy: u64,
    total: u64,
}

/// Reads the load. CPU use is computed from `before`, the ticks of the previous sample, which are then replaced. Facts
/// that cannot be read are `None`.
pub fn read_load(roots: &Roots, before: &mut Option<CpuTicks>) -> HostLoad {
    let read = |name: &str| read_text(&roots.proc.join(name), FILE_BYTES);
    let now = read("stat").and_then(|text| parse_ticks(&text));
    let earlier = std::mem::replace(before, now);
    let cpu_percent = now.zip(earlier).and_then(|(now, earlier)| {
        let total = now.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        let busy = now.busy.checked_sub(earlier.busy)?;
        Some((busy as f64 / total as f64 * 1000.0).round() / 10.0)
    });
    let memory = read("meminfo").unwrap_or_default();
    let bytes = |name: &str| parse_line(&memory, name)?.checked_mul(1024);
    let average = read("loadavg");
    HostLoad {
        cpu_percent,
        memory_total_bytes: bytes("MemTotal:"),
        memory_available_bytes: bytes("MemAvailable:"),
        swap_total_bytes: bytes("SwapTotal:"),
        swap_free_bytes: bytes("SwapFree:"),
        load_average: average
            .and_then(|text| text.split(' ').next()?.parse().ok())
            .filter(|load: &f64| load.is_finite()),
    }
}

/// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq and steal. The guest times
/// that follow are contained in user and nice.
fn parse_ticks(text: &str) -> Option<CpuTicks> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let ticks: Vec<u64> = numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let total = ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
    let idle = ticks.get(3)?.checked_add(ticks.get(4).copied().unwrap_or(0))?;
    Some(CpuTicks { busy: total.checked_sub(idle)?, total })
}

const CGROUPS: &str = "sys/fs/cgroup";

/// Files of a cgroup: its limits, its usage, and the page cache in `memory.stat`, which the kernel can reclaim.
type Files = ([&'static str; 2], &'static str, [&'static str; 2]);

const V2: Files =
    (["memory.max", "memory.high"], "memory.current", ["active_file", "inactive_file"]);
const V1: Files = (
    ["memory.limit_in_bytes", "memory.limit_in_bytes"],
    "memory.usage_in_bytes",
    ["total_active_file", "total_inactive_file"],
);

/// Returns how many bytes the process can allocate within the limits of the machine and its cgroups, or `None` if this
/// is unknown. Limits that gpumem cannot see are ignored.
pub fn read_available_memory(roots: &Roots, pid: u32) -> Option<u64> {
    Some(read_limits(roots, pid)?.0)
}

/// Returns the same as [`read_available_memory`], but `None` if there may be limits that gpumem cannot see.
pub fn read_certain_memory(roots: &Roots, pid: u32) -> Option<u64> {
    read_limits(roots, pid).filter(|(_, is_certain)| *is_certain).map(|(bytes, _)| bytes)
}

pub fn read_total_memory(roots: &Roots) -> Option<u64> {
    let meminfo = read_text(&roots.proc.join("meminfo"), FILE_BYTES)?;
    parse_line(&meminfo, "MemTotal:")?.checked_mul(1024)
}

fn read_limits(roots: &Roots, pid: u32) -> Option<(u64, bool)> {
    let meminfo = read_text(&roots.proc.join("meminfo"), FILE_BYTES)?;
    let mut bytes = parse_line(&meminfo, "MemAvailable:")?.checked_mul(1024)?;
    let process = OpenedProcess::open(roots, pid).ok()??;
    let mut content = Vec::new();
    let limit = usize::try_from(FILE_BYTES).ok()?;
    process.folder.read(c"cgroup", &mut content, limit).ok()?;
    let cgroup = String::from_utf8(content).ok()?;
    let root = roots.root.join(CGROUPS);
    let mut is_certain = true;
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        // On a machine with v1 hierarchies, the v2 hierarchy is in `unified`.
        let (mounts, files): (&[&str], Files) = match controllers {
            "" => (&["", "unified"], V2),
            names if names.split(',').any(|name| name == "memory") => (&["memory"], V1),
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        let mounts = mounts.iter().map(|mount| root.join(mount));
        // A process outside gpumem's cgroup namespace has a path that contains `..`. Its limits are not visible.
        let is_outside = path.components().any(|part| part == Component::ParentDir);
        let mount = mounts.filter(|_| !is_outside).find(|mount| mount.join(path).is_dir());
        is_certain &= mount.is_some();
        for folder in mount.iter().flat_map(|mount| path.ancestors().map(|path| mount.join(path))) {
            bytes = bytes.min(read_room(&folder, files).unwrap_or(u64::MAX));
        }
    }
    Some((bytes, is_certain))
}

/// Returns how many bytes the processes of a cgroup can still allocate, or `None` if the cgroup has no limit or its
/// files cannot be read. The kernel can reclaim page cache, so page cache is available for allocation.
fn read_room(folder: &Path, (limits, usage, cached): Files) -> Option<u64> {
    let read = |name| read_text(&folder.join(name), FILE_BYTES);
    let limits = limits.into_iter().filter_map(|name| read(name)?.trim().parse::<u64>().ok());
    let limit = limits.min()?;
    let current: u64 = read(usage)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let files = cached.map(|name| parse_line(&stat, name).unwrap_or(0));
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
    use std::fs;

    use super::*;

    #[test]
    fn load_is_read_and_missing_facts_are_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            proc: folder.path().to_owned(),
            dev: "/nonexistent".into(),
            root: folder.path().to_owned(),
        };
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let mut ticks = None;
        assert_eq!(read_load(&roots, &mut ticks), HostLoad::default());
        write("stat", "cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2\n");
        write(
            "meminfo",
            "MemTotal:  64 kB\nMemAvailable: 16 kB\nSwapTotal: 0 kB\nSwapFree: x kB\n",
        );
        write("loadavg", "1.25 0.50 0.10 3/400 12345\n");
        let first = read_load(&roots, &mut ticks);
        assert_eq!((first.cpu_percent, first.load_average), (None, Some(1.25)));
        assert_eq!(first.memory_total_bytes, Some(65_536));
        assert_eq!((first.swap_total_bytes, first.swap_free_bytes), (Some(0), None));
        write("stat", "cpu  130 0 60 840 70 0 0 0 9 0\n");
        assert_eq!(read_load(&roots, &mut ticks).cpu_percent, Some(40.0));
        // If a counter decreases, the percentage is unknown.
        write("stat", "cpu  1 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(read_load(&roots, &mut ticks).cpu_percent, None);
    }

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
        write("sys/fs/cgroup/a/b/memory.high", "900000\n");
        assert_eq!(read_available_memory(&roots, 7), Some(150_000));
        write("sys/fs/cgroup/a/memory.max", "100\n");
        write("sys/fs/cgroup/a/memory.current", "900\n");
        assert_eq!(read_available_memory(&roots, 7), Some(0));
        write("proc/7/cgroup", "4:memory:/v1\n0::/\n");
        assert_eq!(read_available_memory(&roots, 7), Some(5_120_000));
        assert_eq!(read_certain_memory(&roots, 7), None, "the cgroup is not visible");
        write("sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "70000\n");
        write("sys/fs/cgroup/memory/v1/memory.usage_in_bytes", "20000\n");
        assert_eq!(read_certain_memory(&roots, 7), Some(50_000));
        write("proc/7/cgroup", "0::/../x\n");
        assert_eq!(read_certain_memory(&roots, 7), None);
        assert_eq!(read_available_memory(&roots, 8), None);
    }
}
