//! Parses `/proc/PID/status`, which contains the user, the pids and the signal masks of a process.

use rustix::io;

use crate::host::parse_number;
use crate::host::proc::folder::Folder;

/// Maximum number of bytes read. The `NSpid` line follows the list of groups, which can be long.
const STATUS_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcStatus<'a> {
    /// Name of the first thread. The kernel escapes backslashes and newlines in it.
    pub name: Option<&'a [u8]>,
    /// Pid of the process. It differs from the number of the folder if that is a thread.
    pub thread_group: Option<u32>,
    pub tracer: Option<u32>,
    pub uid: Option<u32>,
    /// Pid in the innermost pid namespace, which is 1 for the first process of a container.
    pub innermost_pid: Option<u32>,
    /// Pid in the innermost pid namespace, or `None` if that is gpumem's namespace. The first pid after `NSpid` is
    /// the one in the namespace of the reader (proc_pid_status(5)).
    pub namespace_pid: Option<u32>,
    pub nspid: &'a [u8],
}

impl ProcStatus<'_> {
    /// Returns the pids in all pid namespaces, from gpumem's to the innermost, or an empty list if the kernel does
    /// not report them.
    pub fn pids(&self) -> Vec<u32> {
        let fields = self.nspid.split(|&byte| byte == b'\t');
        let pids: Option<Vec<u32>> = fields.map(parse_number).collect();
        pids.unwrap_or_default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalMasks {
    caught: u64,
    blocked: u64,
}

impl SignalMasks {
    pub fn catches(self, number: u32) -> bool {
        bit(self.caught, number)
    }

    pub fn blocks(self, number: u32) -> bool {
        bit(self.blocked, number)
    }
}

fn bit(mask: u64, number: u32) -> bool {
    let shifted = number.checked_sub(1).and_then(|shifted| mask.checked_shr(shifted));
    shifted.is_some_and(|bits| bits & 1 == 1)
}

pub(in crate::host) fn read_status<'a>(
    folder: &Folder,
    content: &'a mut Vec<u8>,
) -> io::Result<ProcStatus<'a>> {
    folder.read(c"status", content, STATUS_BYTES)?;
    Ok(parse_status(content))
}

/// Parses `SigBlk` and `SigCgt` in `/proc/PID/status`. Returns `None` if one of them is missing.
pub fn parse_signal_masks(bytes: &[u8]) -> Option<SignalMasks> {
    let mask = |name: &[u8]| {
        let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
        let value = lines.find_map(|line| line.strip_suffix(b"\n")?.strip_prefix(name))?;
        u64::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
    };
    Some(SignalMasks { caught: mask(b"SigCgt:\t")?, blocked: mask(b"SigBlk:\t")? })
}

/// Parses `/proc/PID/status`, which may be truncated.
pub fn parse_status(bytes: &[u8]) -> ProcStatus<'_> {
    let mut status = ProcStatus::default();
    // A line without a newline may be truncated.
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\n") else {
            break;
        };
        if let Some(name) = line.strip_prefix(b"Name:\t") {
            status.name = Some(name);
        } else if let Some(group) = line.strip_prefix(b"Tgid:\t") {
            status.thread_group = parse_number(group);
        } else if let Some(tracer) = line.strip_prefix(b"TracerPid:\t") {
            status.tracer = parse_number(tracer);
        } else if let Some(uids) = line.strip_prefix(b"Uid:\t") {
            status.uid = uids.split(|&byte| byte == b'\t').next().and_then(parse_number);
        } else if let Some(pids) = line.strip_prefix(b"NSpid:\t") {
            status.innermost_pid = pids.rsplit(|&byte| byte == b'\t').next().and_then(parse_number);
            status.nspid = pids;
            status.namespace_pid = status.innermost_pid.filter(|_| pids.contains(&b'\t'));
            break;
        }
    }
    status
}

/// Maximum number of bytes read from `/proc/PID/uid_map`. The kernel accepts at most 340 lines.
const UID_MAP_BYTES: usize = 16 << 10;

/// Returns the user who owns a process. That is its real user or, as in a rootless container, the creator of its user
/// namespace. `content` is a reusable buffer.
pub(in crate::host) fn owner_uid(
    folder: &Folder,
    uid: Option<u32>,
    content: &mut Vec<u8>,
) -> Option<u32> {
    let read = folder.read(c"uid_map", content, UID_MAP_BYTES);
    read.ok().and_then(|()| parse_namespace_owner(content)).or(uid)
}

/// Returns the user who created a user namespace, according to its `uid_map`. An unprivileged user can map a single
/// uid only to their real uid, and ranges only to the subordinate uids in `/etc/subuid` (user_namespaces(7),
/// newuidmap(1)). Returns `None` for namespaces created by root, which usually map only ranges.
fn parse_namespace_owner(uid_map: &[u8]) -> Option<u32> {
    let mut lines = std::str::from_utf8(uid_map).ok()?.lines();
    lines.find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let outer: u32 = fields.next()?.parse().ok()?;
        (fields.next()? == "1" && outer != 0).then_some(outer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_user_and_the_innermost_pid_are_parsed() {
        let bytes = b"Name:\tsystemd\nUmask:\t0022\nTgid:\t42\nPid:\t42\nTracerPid:\t0\nUid:\t1000\t0\t0\t0\nGroups:\t4 27 \nNSpid:\t42\t7\t1\nThreads:\t1\n";
        assert_eq!(
            parse_status(bytes),
            ProcStatus {
                name: Some(b"systemd"),
                thread_group: Some(42),
                tracer: Some(0),
                uid: Some(1000),
                innermost_pid: Some(1),
                namespace_pid: Some(1),
                nspid: b"42\t7\t1",
            }
        );
        assert_eq!(parse_status(bytes).pids(), [42, 7, 1]);
        let status = parse_status(b"Name:\tx\nNSpid:\t42\n");
        assert_eq!((status.innermost_pid, status.namespace_pid), (Some(42), None));
        assert_eq!(status.pids(), [42]);
    }

    #[test]
    fn signal_handlers_are_parsed_from_bit_masks() {
        let bytes =
            b"SigBlk:\t0000000000000200\nSigIgn:\t0000000001001000\nSigCgt:\t0000000000000a02\n";
        let masks = parse_signal_masks(bytes).unwrap();
        let caught: Vec<u32> = (0..70).filter(|&signal| masks.catches(signal)).collect();
        assert_eq!(caught, [2, 10, 12]);
        assert!(masks.blocks(10) && !masks.blocks(12));
        for cut in [&bytes[..bytes.len() - 1], &bytes[..30], b"", b"SigCgt:\tx\nSigBlk:\t0\n"] {
            assert_eq!(parse_signal_masks(cut), None);
        }
    }

    #[test]
    fn incomplete_or_malformed_status_is_unknown() {
        assert_eq!(parse_status(b""), ProcStatus::default());
        for unknown in [&b""[..], b"NSpid:\t\n", b"NSpid:\t42\tx\n", b"NSpid:\t42\t7"] {
            assert!(parse_status(unknown).pids().is_empty());
        }
        assert_eq!(parse_status(b"Uid:\t10").uid, None);
        assert_eq!(parse_status(b"Uid:\t99999999999\t0\n").uid, None);
        assert_eq!(parse_status(b"Uid:\t\xff\t0\nNSpid:\t\n"), ProcStatus::default());
        assert_eq!(parse_status(b"Name:\t\\nUid:\\t0\nUid:\t5\n").uid, Some(5));
    }

    #[test]
    fn a_user_namespace_belongs_to_its_creator() {
        for (map, owner) in [
            ("         0          0 4294967295\n", None),
            // Maps of `unshare -r`, rootless Podman, and rootless Podman with `--userns=keep-id`
            ("         0       1000          1\n", Some(1000)),
            ("0 1000 1\n1 100000 65536\n", Some(1000)),
            ("0 100000 1000\n1000 1000 1\n1001 101000 64536\n", Some(1000)),
            // Maps created by root: Docker's userns-remap, and a namespace that maps only root
            ("0 100000 65536\n", None),
            ("0 0 1\n", None),
            ("", None),
            ("0 1000\n", None),
            ("0 -1 1\nx", None),
        ] {
            assert_eq!(parse_namespace_owner(map.as_bytes()), owner, "{map}");
        }
    }
}
