//! Reads the load of the machine: CPUs, memory, swap and load average.

use crate::host::Roots;
use crate::host::proc::folder::read_text;
use crate::model::snapshot::HostLoad;

/// Maximum number of bytes to read. `/proc/stat` is long on machines with many CPUs, but its first line is enough.
const FILE_BYTES: u64 = 16 << 10;

/// Clock ticks of all CPUs since boot.
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
    let bytes = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line?.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let average = read("loadavg");
    HostLoad {
        cpu_percent,
        memory_total_bytes: bytes("MemTotal"),
        memory_available_bytes: bytes("MemAvailable"),
        swap_total_bytes: bytes("SwapTotal"),
        swap_free_bytes: bytes("SwapFree"),
        load_average: average
            .and_then(|text| text.split(' ').next()?.parse().ok())
            .filter(|load: &f64| load.is_finite()),
    }
}

/// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq and steal. The following guest
/// times are contained in user and nice.
fn parse_ticks(text: &str) -> Option<CpuTicks> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let ticks: Vec<u64> = numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let total = ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
    let idle = ticks.get(3)?.checked_add(ticks.get(4).copied().unwrap_or(0))?;
    Some(CpuTicks { busy: total.checked_sub(idle)?, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_read_and_missing_facts_are_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            proc: folder.path().to_owned(),
            dev: "/nonexistent".into(),
            root: folder.path().to_owned(),
        };
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
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
        // A counter that goes back gives no percentage.
        write("stat", "cpu  1 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(read_load(&roots, &mut ticks).cpu_percent, None);
    }
}
