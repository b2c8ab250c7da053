//! Fake processes of this user, each with its own root.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;

use crate::host::Roots;
use crate::host::testing::{FakeProc, StatLine};

pub struct Proc(FakeProc);

impl Deref for Proc {
    type Target = FakeProc;

    fn deref(&self) -> &FakeProc {
        &self.0
    }
}

impl Proc {
    pub fn new() -> Self {
        let proc = Self(FakeProc::new());
        proc.process(1, 0, 1, &[]);
        proc.process(90, 1, 900, &[]);
        proc
    }

    pub fn roots(&self) -> Roots {
        Roots { dev: "/nonexistent".into(), root: "/".into(), ..self.0.roots.clone() }
    }

    /// Adds a process of this user with this parent, start and environment.
    pub fn process(&self, pid: u32, ppid: u32, start: u64, environment: &[&str]) {
        fs::create_dir_all(self.root_of(pid)).unwrap();
        self.stat(pid, &StatLine { ppid, start, ..StatLine::ASLEEP });
        let uid = rustix::process::getuid().as_raw();
        self.put(pid, "status", format!("Uid:\t{uid}\t{uid}\nNSpid:\t{pid}\n"));
        self.put(pid, "environ", environment.join("\0"));
    }

    /// Sets a process's argv.
    pub fn command(&self, pid: u32, line: &str) {
        self.put(pid, "cmdline", line.replace(' ', "\0"));
    }

    /// The root of a process's file system.
    pub fn root_of(&self, pid: u32) -> PathBuf {
        self.folder(pid).join("root")
    }

    /// Writes a file below the root of a process.
    pub fn write(&self, pid: u32, path: &str, content: &str) {
        self.put(pid, &format!("root/{}", path.trim_start_matches('/')), content);
    }
}
