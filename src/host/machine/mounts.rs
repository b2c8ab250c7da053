//! Reads whether proc hides other users' processes, and which cgroup versions are mounted.

use std::io::BufRead as _;
use std::path::Path;

use crate::host::proc::folder::read_start;

/// Maximum number of bytes read from `mountinfo`. A machine with a thousand containers has about ten thousand mounts.
const MOUNTINFO_BYTES: u64 = 8 << 20;
/// Link target of the initial cgroup namespace (`PROC_CGROUP_INIT_INO` in the kernel's `include/linux/proc_ns.h`).
const INITIAL_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// Value of the `hidepid` mount option of proc (proc(5)), which hides other users' processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hidepid {
    Off,
    NoAccess,
    Invisible,
    Ptraceable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cgroups {
    None,
    V1,
    V2,
    Hybrid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mounts {
    /// `None` if no proc file system is mounted at the given path.
    pub hidepid: Option<Hidepid>,
    pub cgroups: Cgroups,
}

pub fn read_mounts(proc: &Path) -> Option<Mounts> {
    let text = read_start(&proc.join("self/mountinfo"), MOUNTINFO_BYTES).ok()?;
    Some(parse_mounts(&text, proc))
}

/// Parses `/proc/PID/mountinfo` (proc(5)). `proc` is the mount point of the proc file system that gpumem reads.
pub fn parse_mounts(text: &[u8], proc: &Path) -> Mounts {
    let (mut hidepid, mut v1, mut v2) = (None, false, false);
    for line in text.lines().map_while(Result::ok) {
        let Some((front, back)) = line.split_once(" - ") else {
            continue;
        };
        let mut back = back.split(' ');
        let (kind, options) = (back.next(), back.nth(1).unwrap_or_default());
        match kind {
            // A later mount at the same path hides earlier ones.
            Some("proc") if front.split(' ').nth(4).map(Path::new) == Some(proc) => {
                hidepid = Some(parse_hidepid(options));
            }
            Some("cgroup") => v1 = true,
            Some("cgroup2") => v2 = true,
            _ => {}
        }
    }
    let cgroups = match (v1, v2) {
        (false, false) => Cgroups::None,
        (true, false) => Cgroups::V1,
        (false, true) => Cgroups::V2,
        (true, true) => Cgroups::Hybrid,
    };
    Mounts { hidepid, cgroups }
}

fn parse_hidepid(options: &str) -> Hidepid {
    let mut values = options.split(',').filter_map(|option| option.strip_prefix("hidepid="));
    match values.next() {
        Some("1" | "noaccess") => Hidepid::NoAccess,
        Some("2" | "invisible") => Hidepid::Invisible,
        Some("4" | "ptraceable") => Hidepid::Ptraceable,
        _ => Hidepid::Off,
    }
}

/// Returns whether gpumem sees the cgroups of the whole machine rather than a subtree, or `None` if this is unknown.
pub fn read_is_initial_cgroup_namespace(proc: &Path) -> Option<bool> {
    let link = std::fs::read_link(proc.join("self/ns/cgroup")).ok()?;
    Some(link.to_str()? == INITIAL_CGROUP_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<Hidepid>, Cgroups) {
        let mounts = parse_mounts(text.as_bytes(), Path::new("/proc"));
        (mounts.hidepid, mounts.cgroups)
    }

    #[test]
    fn the_last_proc_mounted_at_the_path_decides() {
        let plain = "22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw\n";
        assert_eq!(parse(plain), (Some(Hidepid::Off), Cgroups::None));
        for (option, hidepid) in [
            ("hidepid=2", Hidepid::Invisible),
            ("hidepid=invisible", Hidepid::Invisible),
            ("gid=5,hidepid=1", Hidepid::NoAccess),
            ("hidepid=ptraceable,subset=pid", Hidepid::Ptraceable),
            ("hidepid=0", Hidepid::Off),
        ] {
            let text = format!("{plain}90 22 0:40 / /proc rw - proc proc rw,{option}\n");
            assert_eq!(parse(&text).0, Some(hidepid), "{option}");
            let elsewhere = text.replace("/ /proc rw -", "/ /jail/proc rw -");
            assert_eq!(parse(&elsewhere).0, Some(Hidepid::Off));
        }
        assert_eq!(parse("").0, None);
    }

    #[test]
    fn cgroup_versions_are_recognised_by_their_mounts() {
        let v1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let v2 = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(parse(v1).1, Cgroups::V1);
        assert_eq!(parse(v2).1, Cgroups::V2);
        assert_eq!(parse(&format!("{v1}{v2}")).1, Cgroups::Hybrid);
        assert_eq!(parse("32 31 0:29 / /x rw cgroup2\n - \n\n").1, Cgroups::None);
    }
}
