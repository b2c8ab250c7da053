//! A proc file system of made-up processes with roots of their own.

use std::fs;
use std::path::PathBuf;

use crate::host::Roots;

/// The folder in which it lies.
pub struct Proc(tempfile::TempDir);

impl Proc {
    pub fn new() -> Self {
        let proc = Self(tempfile::tempdir().unwrap());
        proc.process(1, 0, 1, &[]);
        proc.process(90, 1, 900, &[]);
        proc
    }

    pub fn roots(&self) -> Roots {
        Roots { proc: self.0.path().to_owned(), dev: "/nonexistent".into(), ..Roots::default() }
    }

    /// Adds a process of this user with this parent, start and environment.
    pub fn process(&self, pid: u32, parent: u32, start: u64, environment: &[&str]) {
        let folder = self.folder(pid);
        fs::create_dir_all(folder.join("root")).unwrap();
        let stat = format!(
            "{pid} (x) S {parent} 1 1 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 0 0 0 0 0 0\n"
        );
        fs::write(folder.join("stat"), stat).unwrap();
        let uid = rustix::process::getuid().as_raw();
        let status = format!("Uid:\t{uid}\t{uid}\nNSpid:\t{pid}\n");
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("environ"), environment.join("\0")).unwrap();
    }

    /// Gives a process this argv.
    pub fn command(&self, pid: u32, line: &str) {
        fs::write(self.folder(pid).join("cmdline"), line.replace(' ', "\0")).unwrap();
    }

    /// The root of a process's file system.
    pub fn root_of(&self, pid: u32) -> PathBuf {
        self.folder(pid).join("root")
    }

    /// Writes a file below the root of a process.
    pub fn write(&self, pid: u32, path: &str, content: &str) {
        let path = self.root_of(pid).join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn folder(&self, pid: u32) -> PathBuf {
        self.0.path().join(pid.to_string())
    }
}
