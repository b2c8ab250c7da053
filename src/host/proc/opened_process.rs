//! Reads data about a notebook kernel or server from /proc.
//!
//! The folder of the process stays open, so that no data of a later process with the same pid is returned.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::fstat;
use rustix::io;

use crate::host::Roots;
use crate::host::proc::cmdline::read_cmdline;
use crate::host::proc::folder::{Folder, is_gone};
use crate::host::proc::stat::Stat;
use crate::host::proc::status::read_status;

const ENVIRON_BYTES: usize = 1 << 20;
const VALUE_BYTES: usize = 4096;

#[derive(Debug)]
pub struct OpenedProcess {
    pub pid: u32,
    pub start_ticks: u64,
    pub ppid: Option<u32>,
    pub state: char,
    /// Pids of the process in its pid namespaces, from gpumem's to the innermost. The list is empty if the kernel
    /// does not report them.
    pub numbers: Vec<u32>,
    pub uid: Option<u32>,
    pub folder: Folder,
    root: OnceCell<Folder>,
}

impl OpenedProcess {
    pub fn open(roots: &Roots, pid: u32) -> io::Result<Option<Self>> {
        match Self::try_open(roots, pid) {
            Err(errno) if is_gone(errno) => Ok(None),
            opened => opened,
        }
    }

    fn try_open(roots: &Roots, pid: u32) -> io::Result<Option<Self>> {
        let folder = Folder::open(&roots.proc, pid)?;
        let mut content = Vec::new();
        let Some(stat) = Stat::read(&folder, &mut content)? else {
            return Ok(None);
        };
        let (start_ticks, ppid, state) = (stat.start_ticks, stat.ppid, stat.state);
        let status = read_status(&folder, &mut content)?;
        Ok(Some(Self {
            pid,
            start_ticks,
            ppid,
            state,
            numbers: status.pids(),
            uid: status.uid,
            folder,
            root: OnceCell::new(),
        }))
    }

    pub fn root(&self) -> io::Result<&Folder> {
        if let Some(root) = self.root.get() {
            return Ok(root);
        }
        let root = self.folder.unlisted_folder(c"root")?;
        Ok(self.root.get_or_init(|| root))
    }

    /// Returns whether both processes have the same root directory, so that a path refers to the same file in both.
    pub fn shares_root(&self, other: &Self) -> bool {
        let identity = |process: &Self| {
            let stat = fstat(process.root().ok()?).ok()?;
            Some((stat.st_dev, stat.st_ino))
        };
        let own_identity = identity(self);
        own_identity.is_some() && own_identity == identity(other)
    }

    fn has_memory(&self) -> bool {
        !matches!(self.state, 'D' | 'Z' | 'X')
    }

    pub fn environment(&self) -> Option<Environment> {
        let mut content = Vec::new();
        let read =
            self.has_memory().then(|| self.folder.read(c"environ", &mut content, ENVIRON_BYTES))?;
        read.ok().map(|()| Environment(content))
    }

    pub fn command(&self) -> Option<Arc<[Arc<str>]>> {
        self.has_memory().then(|| read_cmdline(&self.folder, &mut Vec::new()))?
    }

    /// Returns the target of a link such as `cwd` or `ns/pid`, or `None` if it cannot be read or is not UTF-8.
    pub fn link(&self, name: &std::ffi::CStr) -> Option<String> {
        self.folder.link(name, |target| String::from_utf8(target.to_vec()).ok()).ok()?
    }
}

/// Environment of a process. It can contain secrets and must not be displayed.
pub struct Environment(Vec<u8>);

impl Environment {
    /// Returns the value of a variable if it is UTF-8, not empty, and at most 4 KiB long.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.split(|&byte| byte == 0).find_map(|variable| {
            variable.strip_prefix(name.as_bytes()).and_then(|value| value.strip_prefix(b"="))
        })?;
        let value = std::str::from_utf8(value).ok()?;
        (!value.is_empty() && value.len() <= VALUE_BYTES).then_some(value)
    }

    /// Returns the path of Jupyter's runtime folder, which is determined as in `jupyter_runtime_dir` of jupyter_core.
    /// `JUPYTER_PLATFORM_DIRS` has no effect on Linux.
    pub fn runtime_folder(&self) -> Option<PathBuf> {
        if let Some(folder) = self.get("JUPYTER_RUNTIME_DIR") {
            return Some(folder.into());
        }
        let data = match self.get("JUPYTER_DATA_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => match self.get("XDG_DATA_HOME") {
                Some(folder) => Path::new(folder).join("jupyter"),
                None => Path::new(self.get("HOME")?).join(".local/share/jupyter"),
            },
        };
        Some(data.join("runtime"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(environment: &str) -> Option<String> {
        let environment = Environment(environment.replace(' ', "\0").into_bytes());
        environment.runtime_folder().map(|folder| folder.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_runtime_folder_follows_jupyters_precedence() {
        for (environment, expected) in [
            ("HOME=/h XDG_DATA_HOME=/x JUPYTER_DATA_DIR=/d JUPYTER_RUNTIME_DIR=/r", Some("/r")),
            ("HOME=/h XDG_DATA_HOME=/x JUPYTER_DATA_DIR=/d", Some("/d/runtime")),
            ("HOME=/h XDG_DATA_HOME=/x", Some("/x/jupyter/runtime")),
            (
                "XDG_RUNTIME_DIR=/run/user/1 HOME=/h JUPYTER_RUNTIME_DIR=",
                Some("/h/.local/share/jupyter/runtime"),
            ),
            ("OTHERHOME=/h", None),
        ] {
            assert_eq!(runtime(environment).as_deref(), expected, "{environment}");
        }
    }

    #[test]
    fn a_root_is_opened_once_and_compared() {
        let proc = crate::host::testing::Proc::new();
        let open = |pid| OpenedProcess::open(&proc.roots(), pid).unwrap().unwrap();
        let (first, kernel) = (open(1), open(90));
        assert!(kernel.shares_root(&kernel) && !kernel.shares_root(&first));
        assert!(open(90).shares_root(&kernel));
        // The root directory remains usable after its removal if it was opened before. A process whose root directory
        // cannot be opened shares it with no process, including itself.
        std::fs::remove_dir(proc.root_of(90)).unwrap();
        assert!(kernel.root().is_ok() && open(90).root().is_err());
        assert!(!open(90).shares_root(&kernel) && !open(90).shares_root(&open(90)));
    }

    #[test]
    fn variables_are_bounded_and_utf8() {
        let mut bytes = b"A=1\0B=\xff\0C=".to_vec();
        bytes.extend([b'c'; 5000]);
        bytes.extend(b"\0AB=2\0A=3\0");
        let environment = Environment(bytes);
        let get = |name| environment.get(name);
        assert_eq!((get("A"), get("AB")), (Some("1"), Some("2")));
        assert_eq!((get("B"), get("C"), get("D")), (None, None, None));
    }
}
