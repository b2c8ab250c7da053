//! Whether a process may have come or gone since it was last asked.
//!
//! /proc/loadavg has the pid that was given out last and the number of threads on the machine (`loadavg_proc_show`
//! in Linux's `fs/proc/loadavg.c`). Whoever is created takes the next number, a thread too, and whoever ends is
//! one thread less. So where neither has moved, nobody came, and listing /proc, which costs half a microsecond
//! for each process there, would tell nothing new. In a container the threads are those of the whole machine:
//! that one ended here while one began elsewhere is not seen, and so everybody is still listed now and then.

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::pread;

use super::Roots;

/// The longest line: three averages, two numbers of threads and a pid.
const LOADAVG_BYTES: usize = 128;

/// What was counted last.
#[derive(Debug)]
pub(super) struct ForkCounter {
    file: Option<OwnedFd>,
    last: Option<ForkCount>,
}

/// How many threads there are, and the pid that was given out last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ForkCount {
    threads: u32,
    last_pid: u32,
}

impl ForkCounter {
    /// Nothing was counted yet.
    pub(super) fn new(roots: &Roots) -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Self {
            file: openat(CWD, roots.proc.join("loadavg"), flags, Mode::empty()).ok(),
            last: None,
        }
    }

    /// Whether a process may have come or gone since the last call; `true` where that cannot be told.
    pub(super) fn has_moved(&mut self) -> bool {
        let mut content = [0; LOADAVG_BYTES];
        let read = self.file.as_ref().and_then(|file| pread(file, &mut content, 0).ok());
        let now = read.and_then(|length| parse_loadavg(&content[..length]));
        let before = std::mem::replace(&mut self.last, now);
        now.is_none() || now != before
    }

    /// Has the next call answer that it has: what was to be learnt meanwhile was not.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

/// `0.00 0.01 0.05 1/80 11206`: threads that run and all of them, then the last pid.
fn parse_loadavg(content: &[u8]) -> Option<ForkCount> {
    let mut fields = std::str::from_utf8(content).ok()?.split_ascii_whitespace();
    let (_, threads) = fields.nth(3)?.split_once('/')?;
    Some(ForkCount { threads: threads.parse().ok()?, last_pid: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_line_is_read_and_others_are_none() {
        let count = |threads, last_pid| Some(ForkCount { threads, last_pid });
        for (content, parsed) in [
            (&b"0.13 1.01 1.56 1/321 12536\n"[..], count(321, 12536)),
            (b"0.00 0.00 0.00 0/1 1", count(1, 1)),
            (b"0.00 0.00 0.00 1 1", None),
            (b"0.00 0.00 0.00 1/99999999999 1", None),
            (b"0.00 0.00 0.00 1/2", None),
            (b"\xff 1 2 3/4 5", None),
            (b"", None),
        ] {
            assert_eq!(parse_loadavg(content), parsed, "{content:?}");
        }
    }

    #[test]
    fn a_new_process_moves_it_and_what_is_unknown_may_have_moved() {
        let mut counter = ForkCounter::new(&Roots::default());
        assert!(counter.has_moved(), "nothing was known before");
        let mut child = Command::new("true").stdout(Stdio::null()).spawn().unwrap();
        child.wait().unwrap();
        assert!(counter.has_moved());

        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { proc: folder.path().into(), ..Roots::default() };
        let mut counter = ForkCounter::new(&roots);
        assert!(counter.has_moved() && counter.has_moved());
        std::fs::write(folder.path().join("loadavg"), "0 0 0 1/2 3").unwrap();
        let mut counter = ForkCounter::new(&roots);
        assert_eq!([0; 3].map(|_| counter.has_moved()), [true, false, false]);
        std::fs::write(folder.path().join("loadavg"), "0 0 0 1/2 4").unwrap();
        assert_eq!([0; 2].map(|_| counter.has_moved()), [true, false]);
        counter.forget();
        assert_eq!([0; 2].map(|_| counter.has_moved()), [true, false]);
    }
}
