//! Parses `/proc/PID/stat`, which identifies a process and contains the values that change frequently.
//!
//! In most samples, `processes` reads only this file. A changed stack address (`start_stack`) shows that the process
//! has executed another program, so no other file is needed to detect that.

use std::ffi::CString;
use std::path::Path;

use rustix::io;

use crate::host::proc::folder::{Folder, is_gone};
use crate::host::{HostError, parse_number};

pub(in crate::host) const STAT_BYTES: usize = 2048;

const EXITING: u64 = 0x0000_0004;

const KERNEL_THREAD: u64 = 0x0020_0000;

/// Values of `/proc/PID/stat`, with memory in pages and times in clock ticks.
///
/// A parent, and the leader of a group or session, is `None` if it is outside this pid namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat<'a> {
    /// Name of the first thread, which can contain any bytes. The kernel truncates it to 15 bytes.
    pub comm: &'a [u8],
    pub state: char,
    pub ppid: Option<u32>,
    pub process_group: Option<u32>,
    pub session: Option<u32>,
    pub terminal: u32,
    pub is_kernel_thread: bool,
    /// Whether the process is exiting or a zombie. Its memory map and files are then no longer visible. A driver can
    /// delay the exit for a long time, during which the GPU memory remains allocated.
    pub is_exiting: bool,
    pub cpu_ticks: u64,
    /// CPU time of reaped children and of the descendants that they reaped.
    pub reaped_ticks: u64,
    pub threads: Option<u32>,
    pub start_ticks: u64,
    pub rss_pages: u64,
    /// Start address of the stack, which is different for each executed program. The kernel returns 0 to readers that
    /// may not trace the process, and for exiting processes.
    pub start_stack: u64,
    /// Whether the kernel is releasing the process. It then has no process group any more, and other values are
    /// invalid.
    pub is_released: bool,
}

impl<'a> Stat<'a> {
    /// Reads `stat` through the open folder of a process. Returns `None` if the file is malformed, or if the kernel is
    /// releasing the process.
    pub(in crate::host) fn read(
        folder: &Folder,
        content: &'a mut Vec<u8>,
    ) -> io::Result<Option<Self>> {
        folder.read(c"stat", content, STAT_BYTES)?;
        Ok(parse_stat(content).filter(|stat| !stat.is_released))
    }

    /// Returns whether the process has memory that can be read without blocking. In state D, a read may block.
    pub fn has_memory(&self) -> bool {
        self.state != 'D' && !self.is_exiting && !self.is_kernel_thread
    }
}

pub fn parse_stat(bytes: &[u8]) -> Option<Stat<'_>> {
    // The name can contain any bytes, including parentheses and newlines. There are no parentheses after the name.
    let open = bytes.iter().position(|&byte| byte == b'(')?;
    let close = bytes.iter().rposition(|&byte| byte == b')')?;
    let comm = bytes.get(open + 1..close)?;
    let after_comm = bytes.get(close + 1..)?.strip_prefix(b" ")?;

    let mut fields = after_comm.split(|&byte| byte == b' ');
    let state = match fields.next()? {
        [state] if state.is_ascii_alphabetic() => char::from(*state),
        _ => return None,
    };
    let ppid: i64 = parse_number(fields.next()?)?;
    let process_group: i64 = parse_number(fields.next()?)?;
    let session: i64 = parse_number(fields.next()?)?;
    // The kernel prints the device number as a signed number.
    let terminal = parse_number::<i64>(fields.next()?)? as u32;
    let flags: u64 = parse_number(fields.nth(1)?)?;
    let user_ticks: u64 = parse_number(fields.nth(4)?)?;
    let system_ticks = parse_number(fields.next()?)?;
    let waited = |field| parse_number::<i64>(field).map(|ticks| u64::try_from(ticks).unwrap_or(0));
    let waited_user_ticks = waited(fields.next()?)?;
    let waited_system_ticks = waited(fields.next()?)?;
    let threads: u64 = parse_number(fields.nth(2)?)?;
    let start_ticks = parse_number(fields.nth(1)?)?;
    let rss_pages = parse_number(fields.nth(1)?)?;
    let start_stack = parse_number(fields.nth(3)?)?;
    // The previous field may be truncated unless another field follows.
    fields.next()?;

    let namespaced = |number: i64| u32::try_from(number).ok().filter(|&number| number != 0);
    Some(Stat {
        comm,
        state,
        ppid: namespaced(ppid),
        process_group: namespaced(process_group),
        session: namespaced(session),
        terminal,
        is_kernel_thread: flags & KERNEL_THREAD != 0,
        is_exiting: flags & EXITING != 0 || matches!(state, 'Z' | 'X'),
        cpu_ticks: user_ticks.saturating_add(system_ticks),
        reaped_ticks: waited_user_ticks.saturating_add(waited_system_ticks),
        threads: u32::try_from(threads).ok().filter(|&threads| threads != 0),
        start_ticks,
        rss_pages,
        start_stack,
        is_released: process_group < 0,
    })
}

/// Returns the name below `/dev` of the terminal with this device number, such as `pts/3`, `tty1` or `ttyS0`. Returns
/// `None` if there is no terminal or its type is unknown.
pub fn terminal_name(device: u32) -> Option<String> {
    let major = device >> 8 & 0xfff;
    let minor = device & 0xff | device >> 12 & 0xfff00;
    // The numbers are from `Documentation/admin-guide/devices.txt` of the kernel.
    Some(match (major, minor) {
        (4, 0..64) => format!("tty{minor}"),
        (4, _) => format!("ttyS{}", minor - 64),
        (5, 1) => "console".to_owned(),
        (136..=143, _) => format!("pts/{}", (major - 136) * 256 + minor),
        _ => return None,
    })
}

/// Returns the start time of the process in clock ticks since boot, or `None` if the process does not exist.
/// Together, the pid and the start time identify a process.
pub fn read_start_ticks(proc: &Path, pid: u32) -> Result<Option<u64>, HostError> {
    let path = || proc.join(pid.to_string()).join("stat");
    let mut content = Vec::new();
    let read =
        Folder::open(proc, pid).and_then(|folder| folder.read(c"stat", &mut content, STAT_BYTES));
    match read {
        Ok(()) => match parse_stat(&content) {
            Some(stat) if stat.is_released => Ok(None),
            Some(stat) => Ok(Some(stat.start_ticks)),
            None => Err(HostError::Malformed { path: path() }),
        },
        Err(errno) if is_gone(errno) => Ok(None),
        Err(errno) => Err(HostError::Read { path: path(), errno }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticks {
    pub start: u64,
    pub own_ticks: u64,
    pub reaped_ticks: u64,
}

impl Ticks {
    pub(in crate::host) fn from_stat(stat: &Stat<'_>) -> Self {
        Self { start: stat.start_ticks, own_ticks: stat.cpu_ticks, reaped_ticks: stat.reaped_ticks }
    }
}

const MAX_THREADS: usize = 1024;

#[derive(Debug)]
pub(in crate::host) struct RemainingThread {
    pub folder: Folder,
    pub content: Vec<u8>,
}

/// Returns a live thread of a process whose first thread has exited. The files and memory of the process are then
/// visible only in the folder `/proc/PID/task/TID` of another thread (proc_pid_task(5)). A thread in state D is returned
/// only if there is no other. Returns `None` if the first thread is alive, if all threads have exited, or if the threads
/// cannot be read. `stat` must have been read through `process`.
pub(in crate::host) fn find_remaining_thread(
    process: &Folder,
    stat: &Stat<'_>,
) -> Option<RemainingThread> {
    if stat.state != 'Z' || stat.threads.is_none_or(|count| count < 2) {
        return None;
    }
    let tasks = process.folder(c"task").ok()?;
    let mut names: Vec<CString> = Vec::new();
    let listed = tasks.names(|name| {
        names.push(name.to_owned());
        names.len() < MAX_THREADS
    });
    listed.ok()?;
    let mut blocked = None;
    for name in names {
        let Ok(folder) = tasks.unlisted_folder(&name) else {
            continue;
        };
        let mut content = Vec::new();
        if folder.read(c"stat", &mut content, STAT_BYTES).is_err() {
            continue;
        }
        let state = parse_stat(&content).map(|stat| stat.state);
        match state {
            None | Some('Z' | 'X') => {}
            Some('D') => blocked = Some(RemainingThread { folder, content }),
            Some(_) => return Some(RemainingThread { folder, content }),
        }
    }
    blocked
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"4242 (python3) S 77 4242 77 34819 4242 4194304 15 0 2 0 123 45 6 7 20 0 3 0 \
        987654 300000000 2500 18446744073709551615 1 1 140722 0 0 0 0 16781312 2 0 0 0 17 1 0 0 0 0 0 \
        0 0 0 0 0 0 0 0\n";

    #[test]
    fn every_field_is_found() {
        assert_eq!(
            parse_stat(LINE),
            Some(Stat {
                comm: b"python3",
                state: 'S',
                ppid: Some(77),
                process_group: Some(4242),
                session: Some(77),
                terminal: 34819,
                is_kernel_thread: false,
                is_exiting: false,
                cpu_ticks: 168,
                reaped_ticks: 13,
                threads: Some(3),
                start_ticks: 987_654,
                rss_pages: 2500,
                start_stack: 140_722,
                is_released: false,
            })
        );
    }

    /// Returns a line of `/proc/PID/stat` with the name `comm`. `head` contains the state, the parent, the process
    /// group and the session.
    fn line(comm: &[u8], head: &str) -> Vec<u8> {
        let mut bytes = b"1 (".to_vec();
        bytes.extend(comm);
        bytes.extend(b") ");
        bytes.extend(head.as_bytes());
        bytes.extend(b" 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0\n");
        bytes
    }

    #[test]
    fn a_name_may_contain_any_bytes() {
        for comm in
            [&b"a) S 1 1 1 (b"[..], b") R 1 2 3", b"line\nbreak", b"((((", b"", b"\xff\xfe\x1b[31m"]
        {
            let bytes = line(comm, "Z 9 8 7");
            let stat = parse_stat(&bytes).unwrap();
            assert_eq!((stat.comm, stat.state, stat.ppid), (comm, 'Z', Some(9)));
            assert_eq!(stat.start_ticks, 5);
        }
    }

    #[test]
    fn ids_outside_the_namespace_are_unknown() {
        let bytes = line(b"x", "S 0 0 0");
        let stat = parse_stat(&bytes).unwrap();
        assert_eq!((stat.ppid, stat.process_group, stat.session), (None, None, None));
        assert!(!stat.is_released);
        assert!(parse_stat(&line(b"x", "X 0 -1 -1")).unwrap().is_released);
    }

    #[test]
    fn exiting_processes_and_kernel_threads_are_recognised_by_flags() {
        let line = |flags: u32| {
            format!("1 (x) D 1 1 1 0 -1 {flags} 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0")
        };
        let kinds = |flags| {
            let line = line(flags);
            let stat = parse_stat(line.as_bytes()).unwrap();
            (stat.is_exiting, stat.is_kernel_thread)
        };
        assert_eq!(kinds(0x0040_0100), (false, false));
        assert_eq!(kinds(0x0040_0104), (true, false));
        assert_eq!(kinds(0x0020_8040), (false, true));
    }

    #[test]
    fn a_cut_stat_line_is_refused() {
        let last = LINE.windows(6).position(|field| field == b"140722").unwrap();
        for end in 0..=last + 6 {
            // The last required field may be truncated.
            assert_eq!(parse_stat(&LINE[..end]), None, "{end}");
        }
        assert!(parse_stat(&LINE[..last + 8]).is_some());
    }

    #[test]
    fn malformed_stat_lines_are_refused() {
        for bytes in [
            &b""[..],
            b"()",
            b")(",
            b"1 (x) ",
            b"1 (x) SS 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0",
            b"1 (x) S 99999999999999999999999 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0",
            b"1 (x) S 1 1 1 0 -1 0 0 0 0 0 -1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0",
            b"1 (x) S 1 1 1 0 -1 0 0 0 0 0 0x1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0",
            b"1 (x) S  1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0",
        ] {
            assert_eq!(parse_stat(bytes), None, "{}", bytes.escape_ascii());
        }
        // Extreme numbers are accepted, and their sum saturates.
        let max = u64::MAX;
        let bytes =
            format!("1 (x) S 1 1 1 0 -1 0 0 0 0 0 {max} {max} 0 0 20 0 1 0 {max} 0 0 0 0 0 0 0");
        let stat = parse_stat(bytes.as_bytes()).unwrap();
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (max, max));
    }

    #[test]
    fn terminal_names_follow_from_device_numbers() {
        for (device, name) in [
            (0, None),
            (0x8803, Some("pts/3")),
            (0x0010_8801, Some("pts/257")),
            (0x0401, Some("tty1")),
            (0x0440, Some("ttyS0")),
            (0x0501, Some("console")),
            (u32::MAX, None),
        ] {
            assert_eq!(terminal_name(device).as_deref(), name, "{device:#x}");
        }
    }

    #[test]
    fn start_ticks_identify_a_process() {
        let proc = Path::new("/proc");
        let ticks = read_start_ticks(proc, std::process::id()).unwrap();
        assert!(ticks.is_some_and(|ticks| ticks > 0));
        assert_eq!(ticks, read_start_ticks(proc, std::process::id()).unwrap());
        assert_eq!(read_start_ticks(proc, u32::MAX).unwrap(), None);
    }
}
