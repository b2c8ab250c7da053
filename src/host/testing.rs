//! Creates fake processes in a fake /proc, with a fake /dev and fake files of the machine.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::host::Roots;

/// Temporary folder with a fake /proc and /dev. The folder is removed when the value is dropped.
pub struct FakeProc {
    _folder: TempDir,
    pub roots: Roots,
}

#[derive(Clone, Copy)]
pub struct StatLine {
    pub comm: &'static str,
    pub state: char,
    pub ppid: u32,
    pub group: u32,
    pub session: u32,
    pub terminal: u32,
    pub flags: u32,
    pub ticks: u64,
    pub waited: i64,
    pub threads: u32,
    pub start: u64,
    pub stack: u64,
}

impl StatLine {
    /// Value of `group` and `session` that is replaced by the pid of the process.
    const OWN: u32 = u32::MAX;

    /// A sleeping process that leads its process group and session.
    pub const ASLEEP: Self = Self {
        comm: "x",
        state: 'S',
        ppid: 1,
        group: Self::OWN,
        session: Self::OWN,
        terminal: 0,
        flags: 0,
        ticks: 5,
        waited: 0,
        threads: 1,
        start: 7,
        stack: 7,
    };
}

impl Deref for FakeProc {
    type Target = Roots;

    fn deref(&self) -> &Roots {
        &self.roots
    }
}

impl FakeProc {
    /// Creates a /proc that contains process 1. Without process 1, gpumem assumes that /proc hides processes.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [proc, dev, root] = ["proc", "dev", "root"].map(|name| folder.path().join(name));
        let fake = Self { _folder: folder, roots: Roots { proc, dev, root } };
        fs::create_dir_all(fake.folder(1)).unwrap();
        fs::create_dir_all(&fake.dev).unwrap();
        fake
    }

    pub fn folder(&self, pid: u32) -> PathBuf {
        self.proc.join(pid.to_string())
    }

    pub fn put(&self, pid: u32, name: &str, content: impl AsRef<[u8]>) {
        let path = self.folder(pid).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn link(&self, pid: u32, name: &str, target: impl AsRef<Path>) {
        let path = self.folder(pid).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub fn stat(&self, pid: u32, stat: &StatLine) {
        let StatLine { comm, state, ppid, group, session, terminal, flags, ticks, .. } = stat;
        let StatLine { waited, threads, start, stack, .. } = stat;
        let [group, session] =
            [group, session].map(|leader| if *leader == StatLine::OWN { &pid } else { leader });
        let line = format!(
            "{pid} ({comm}) {state} {ppid} {group} {session} {terminal} -1 {flags} 1 0 0 0 {ticks} 0 0 {waited} \
             20 0 {threads} 0 {start} 4096 3 99 1 1 {stack} 0 0\n"
        );
        self.put(pid, "stat", line);
    }

    /// Simulates the exit of a process. An open `stat` file then returns no data, and the process's folder no longer
    /// exists.
    pub fn end(&self, pid: u32) {
        self.put(pid, "stat", "");
        fs::remove_dir_all(self.folder(pid)).unwrap();
    }
}

/// Fake processes of the current user. Each has a separate root directory.
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

    pub fn process(&self, pid: u32, ppid: u32, start: u64, environment: &[&str]) {
        fs::create_dir_all(self.root_of(pid)).unwrap();
        self.stat(pid, &StatLine { ppid, start, ..StatLine::ASLEEP });
        let uid = rustix::process::getuid().as_raw();
        self.put(pid, "status", format!("Uid:\t{uid}\t{uid}\nNSpid:\t{pid}\n"));
        self.put(pid, "environ", environment.join("\0"));
    }

    pub fn command(&self, pid: u32, line: &str) {
        self.put(pid, "cmdline", line.replace(' ', "\0"));
    }

    pub fn root_of(&self, pid: u32) -> PathBuf {
        self.folder(pid).join("root")
    }

    pub fn write(&self, pid: u32, path: &str, content: &str) {
        self.put(pid, &format!("root/{}", path.trim_start_matches('/')), content);
    }
}
