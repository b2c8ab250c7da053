//! Tests the search for device file holders in a fake /proc.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::host::testing::{FakeProc, StatLine};

const SECOND: u64 = SECOND_NS;
const OTHER_UID: [u32; 0] = [];
/// Flags in the `stat` file: `PF_KTHREAD` and `PF_EXITING` in the kernel's `include/linux/sched.h`.
const KERNEL_THREAD: u32 = 0x0020_0000;
const EXITING: u32 = 4;

struct Fake(FakeProc);

impl std::ops::Deref for Fake {
    type Target = FakeProc;

    fn deref(&self) -> &FakeProc {
        &self.0
    }
}

impl Fake {
    fn new() -> Self {
        let fake = Self(FakeProc::new());
        fake.process(1, &["null"]);
        fake
    }

    fn holders(&self) -> Holders {
        Holders::new(self.roots.clone())
    }

    fn process(&self, pid: u32, files: &[&str]) {
        fs::create_dir_all(self.folder(pid).join("fd")).unwrap();
        self.set_state(pid, 'S', 0);
        for file in files {
            self.open(pid, self.dev.join(file));
        }
    }

    fn set_state(&self, pid: u32, state: char, flags: u32) {
        self.stat(pid, &StatLine { state, flags, start: 100, ..StatLine::ASLEEP });
    }

    fn open(&self, pid: u32, target: impl AsRef<Path>) {
        let number = fs::read_dir(self.folder(pid).join("fd")).unwrap().count();
        self.link(pid, &format!("fd/{number}"), target);
    }

    fn close_all(&self, pid: u32) {
        let fd = self.folder(pid).join("fd");
        fs::remove_dir_all(&fd).unwrap();
        fs::create_dir(&fd).unwrap();
    }

    /// Adds a process whose file descriptors cannot be read: its `fd` is a regular file, which even root cannot list.
    fn unreadable(&self, pid: u32, state: char, flags: u32) {
        self.set_state(pid, state, flags);
        self.put(pid, "fd", "");
    }
}

#[test]
fn only_holders_of_a_device_file_are_found() {
    let fake = Fake::new();
    fake.process(90, &["null", "nvidiactl"]);
    fake.process(70, &["null", "tty", "nvidia0"]);
    fake.process(71, &["null", "nvidia", "nvme0", "dri/card0"]);
    fake.process(72, &["nvidia-uvm (deleted)"]);
    fake.process(73, &[]);
    fake.open(73, "/somewhere/dev/nvidia0");
    fake.open(73, "socket:[12]");
    fake.open(73, std::ffi::OsStr::from_bytes(b"/dev/\xff\n\x1b[2J"));
    // `/proc/self` leads to process 74, so this is gpumem itself, which must be excluded.
    fake.process(74, &["nvidia0"]);
    symlink("74", fake.proc.join("self")).unwrap();
    for stranger in ["70x", "-70", "99999999999999", "sys", "\u{1b}[2J"] {
        fs::create_dir(fake.proc.join(stranger)).unwrap();
    }

    let mut holders = fake.holders();
    assert_eq!((holders.pids(), holders.unread()), (vec![], None));
    holders.refresh(SECOND, false);
    assert_eq!(holders.pids(), [70, 72, 90]);
    assert_eq!(holders.unread(), Some(0));
    fs::remove_dir_all(fake.folder(72)).unwrap();
    holders.refresh(6 * SECOND, false);
    assert_eq!(holders.pids(), [70, 90]);
}

#[test]
fn a_new_process_is_read_repeatedly() {
    let fake = Fake::new();
    let mut holders = fake.holders();
    holders.refresh(100 * SECOND, false);
    fake.process(70, &["null"]);
    fake.process(80, &["nvidia0"]);
    holders.refresh(105 * SECOND, false);
    assert_eq!(holders.pids(), [80], "at the first listing");

    fake.open(70, fake.dev.join("nvidia0"));
    holders.refresh(110 * SECOND - 1, false);
    assert_eq!(holders.pids(), [80], "not in every sample");
    holders.refresh(110 * SECOND, false);
    assert_eq!(holders.pids(), [70, 80]);
}

#[test]
fn all_processes_are_read_every_half_minute_and_on_request() {
    let fake = Fake::new();
    fake.process(70, &["null"]);
    fake.process(80, &["nvidia0"]);
    let mut holders = fake.holders();
    holders.refresh(100 * SECOND, false);
    // Between full reads, only new processes are read, so changes of old processes remain unnoticed.
    fake.open(70, fake.dev.join("nvidia0"));
    fake.close_all(80);
    holders.refresh(129 * SECOND, false);
    assert_eq!(holders.pids(), [80]);
    holders.refresh(130 * SECOND, false);
    assert_eq!(holders.pids(), [70]);

    fake.close_all(70);
    holders.refresh(131 * SECOND, true);
    assert_eq!(holders.pids(), OTHER_UID);
    fake.open(70, fake.dev.join("nvidia0"));
    holders.refresh(132 * SECOND, true);
    assert_eq!(holders.pids(), OTHER_UID, "requests are rate-limited");
    holders.refresh(136 * SECOND, false);
    assert_eq!(holders.pids(), [70], "the request is carried out later");
}

#[test]
fn a_reused_pid_inherits_no_verdict() {
    let fake = Fake::new();
    fake.process(70, &["null"]);
    fake.process(80, &["nvidia0"]);
    let mut holders = fake.holders();
    holders.refresh(SECOND, false);
    assert_eq!(holders.pids(), [80]);
    // The new processes are created before the old ones are removed. Otherwise, the file system could reuse inode
    // numbers.
    fake.process(170, &["nvidia0"]);
    fake.process(180, &["null"]);
    for pid in [70, 80] {
        fs::remove_dir_all(fake.folder(pid)).unwrap();
        fs::rename(fake.folder(pid + 100), fake.folder(pid)).unwrap();
    }
    holders.refresh(6 * SECOND, false);
    assert_eq!(holders.pids(), [70]);
}

#[test]
fn unreadable_processes_are_counted_and_are_not_holders() {
    let fake = Fake::new();
    fake.unreadable(70, 'S', 0);
    fake.unreadable(71, 'S', 0);
    fake.unreadable(72, 'I', KERNEL_THREAD);
    fake.unreadable(73, 'Z', EXITING);
    fake.process(74, &[]);
    let mut holders = fake.holders();
    holders.refresh(SECOND, false);
    assert_eq!((holders.pids(), holders.unread()), (vec![], Some(2)));

    // A changed permission takes effect at the next read of all processes.
    fs::remove_dir_all(fake.folder(70)).unwrap();
    holders.refresh(6 * SECOND, false);
    assert_eq!(holders.unread(), Some(2));
    holders.refresh(31 * SECOND, false);
    assert_eq!(holders.unread(), Some(1));
    // Without process 1, /proc hides processes.
    fs::remove_dir_all(fake.folder(1)).unwrap();
    let mut holders = fake.holders();
    holders.refresh(SECOND, false);
    assert_eq!(holders.unread(), None);
}

#[test]
fn reading_all_processes_continues_in_the_next_sample() {
    let fake = Fake::new();
    for pid in 70..80 {
        fake.process(pid, &["nvidia0"]);
    }
    let mut holders = fake.holders();
    holders.descriptor_limit = 8;
    let mut counts = Vec::new();
    for second in 1..=4 {
        holders.refresh(second * SECOND, false);
        counts.push((holders.pids().len(), holders.unread()));
    }
    assert_eq!(
        counts,
        [(3, None), (7, None), (10, Some(0)), (10, Some(0))],
        "two calls each, and two for the first process"
    );
}

#[test]
fn an_unlistable_proc_keeps_the_old_results() {
    let fake = Fake::new();
    fake.process(70, &["nvidia0"]);
    let mut holders = fake.holders();
    holders.refresh(SECOND, false);
    fs::rename(&fake.proc, fake.dev.join("away")).unwrap();
    holders.refresh(40 * SECOND, true);
    assert_eq!((holders.pids(), holders.unread()), (vec![70], Some(0)));
}
