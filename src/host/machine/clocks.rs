//! Reads the clocks, the boot time and the names of the machine, and detects containers and WSL.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::host::Roots;
use crate::host::proc::folder::read_text;
use crate::model::Time;
use crate::model::snapshot::{Host, PidNamespace};

/// Inode number of the initial pid namespace (`PROC_PID_INIT_INO` in the kernel's `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Reads facts about the machine. Facts that cannot be read are `None`. `suspended_seconds`, `unread_processes` and
/// `load` are always `None`, because they change over time.
pub fn read_host(roots: &Roots) -> Host {
    let uname = rustix::system::uname();
    Host {
        hostname: text(uname.nodename()),
        boot_id: read_boot_id(&roots.proc),
        kernel: text(uname.release()),
        pid_namespace: std::fs::read_link(roots.proc.join("self/ns/pid"))
            .ok()
            .and_then(|link| parse_pid_namespace(link.to_str()?)),
        suspended_seconds: None,
        unread_processes: None,
        load: None,
    }
}

fn text(name: &CStr) -> Option<Arc<str>> {
    let name = name.to_string_lossy();
    (!name.is_empty()).then(|| name.into())
}

fn read_boot_id(proc: &Path) -> Option<Arc<str>> {
    let id = read_text(&proc.join("sys/kernel/random/boot_id"), 64)?;
    let id = id.trim();
    (!id.is_empty()).then(|| id.into())
}

/// Parses the target of `/proc/self/ns/pid`, such as `pid:[4026531836]`.
pub(in crate::host) fn parse_pid_namespace(link: &str) -> Option<PidNamespace> {
    let number: u64 = link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
    Some(if number == INITIAL_PID_NAMESPACE { PidNamespace::Host } else { PidNamespace::Container })
}

/// Returns the boot time according to the current wall clock, rounded down to a second. The result changes when the
/// clock is set. `btime` in `/proc/stat` is unsuitable, because in an LXC container it can be the boot time of the
/// container. The start times of processes are relative to the boot time of the machine.
pub fn read_boot_time() -> Time {
    let boottime_ns = i64::try_from(read_clocks().boottime_ns).unwrap_or(i64::MAX);
    let milliseconds = read_time().unix_milliseconds() - boottime_ns / 1_000_000;
    Time::from_unix_milliseconds(milliseconds.div_euclid(1000) * 1000)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// Time since boot in nanoseconds, including the time for which the machine was suspended.
    pub boottime_ns: u64,
    monotonic_ns: u64,
}

impl Clocks {
    /// Returns for how many seconds the machine has been suspended since boot. `last` is the previous result. It is
    /// returned again unless it is wrong by at least two seconds. Smaller differences can arise because the two
    /// clocks are not read at exactly the same time.
    pub fn suspended_seconds(self, last: Option<u64>) -> u64 {
        const SECOND_NS: u64 = 1_000_000_000;
        let suspended_ns = self.boottime_ns.saturating_sub(self.monotonic_ns);
        match last {
            Some(last) if suspended_ns.abs_diff(last.saturating_mul(SECOND_NS)) < 2 * SECOND_NS => {
                last
            }
            _ => suspended_ns / SECOND_NS,
        }
    }
}

pub fn read_clocks() -> Clocks {
    let nanoseconds = |clock| {
        let time = clock_gettime(clock);
        let whole = u64::try_from(time.tv_sec).unwrap_or(0);
        let part = u64::try_from(time.tv_nsec).unwrap_or(0);
        whole.saturating_mul(1_000_000_000).saturating_add(part)
    };
    // Reading the monotonic clock first ensures that the difference is not negative.
    let monotonic_ns = nanoseconds(ClockId::Monotonic);
    let boottime_ns = nanoseconds(ClockId::Boottime);
    Clocks { boottime_ns, monotonic_ns }
}

/// Reads the wall clock. The wall clock can be changed, so the time may only be used for display and for comparison
/// with times that users enter.
pub fn read_time() -> Time {
    let time = clock_gettime(ClockId::Realtime);
    Time::from_unix_milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1_000_000)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Platform {
    /// Container runtime, detected by a marker file: `docker` or `podman`.
    pub container: Option<&'static str>,
    /// Whether Linux runs in WSL, where the Windows driver controls the GPU.
    pub is_wsl: bool,
}

pub fn read_platform(root: &Path, kernel: Option<&str>) -> Platform {
    let exists = |path: &str| root.join(path).exists();
    let container = if exists(".dockerenv") {
        Some("docker")
    } else if exists("run/.containerenv") {
        Some("podman")
    } else {
        None
    };
    Platform {
        container,
        // The kernel release contains `Microsoft` in WSL 1 and `microsoft-standard-WSL2` in WSL 2.
        is_wsl: kernel.is_some_and(|release| release.to_ascii_lowercase().contains("microsoft")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_unknown_without_proc() {
        let nowhere = Path::new("/nonexistent");
        let host =
            read_host(&Roots { proc: nowhere.into(), dev: nowhere.into(), root: nowhere.into() });
        assert_eq!((host.boot_id, host.pid_namespace), (None, None));
    }

    #[test]
    fn the_initial_pid_namespace_is_recognised_by_its_number() {
        for (link, namespace) in [
            ("pid:[4026531836]", Some(PidNamespace::Host)),
            ("pid:[4026532837]", Some(PidNamespace::Container)),
            ("pid:[]", None),
            ("mnt:[4026531836]", None),
            ("", None),
        ] {
            assert_eq!(parse_pid_namespace(link), namespace, "{link}");
        }
    }

    #[test]
    fn suspended_time_is_in_whole_seconds_without_jitter() {
        let clocks = |suspended_ns: u64| Clocks {
            boottime_ns: 50_000_000_000 + suspended_ns,
            monotonic_ns: 50_000_000_000,
        };
        assert_eq!(clocks(0).suspended_seconds(None), 0);
        assert_eq!(clocks(6_999_999_999).suspended_seconds(None), 6);
        assert_eq!(clocks(7_000_000_001).suspended_seconds(Some(6)), 6);
        assert_eq!(clocks(6_999_999_999).suspended_seconds(Some(7)), 7);
        assert_eq!(clocks(9_000_000_000).suspended_seconds(Some(6)), 9);
        let backwards = Clocks { boottime_ns: 1, monotonic_ns: 2 };
        assert_eq!(backwards.suspended_seconds(None), 0);

        let clocks = read_clocks();
        assert!(clocks.boottime_ns >= clocks.monotonic_ns && clocks.monotonic_ns > 0);
    }

    #[test]
    fn marker_files_and_release_identify_the_platform() {
        let root = tempfile::tempdir().unwrap();
        let read = |kernel| read_platform(root.path(), kernel);
        assert_eq!(read(Some("6.12.8")), Platform::default());
        assert_eq!(read(None), Platform::default());
        assert!(read(Some("5.15.167.4-microsoft-standard-WSL2")).is_wsl);
        std::fs::create_dir_all(root.path().join("run")).unwrap();
        std::fs::write(root.path().join("run/.containerenv"), "").unwrap();
        assert_eq!(read(None).container, Some("podman"));
        std::fs::write(root.path().join(".dockerenv"), "").unwrap();
        assert_eq!(read(None).container, Some("docker"));
    }
}
