//! One reaper on a machine: a file lock, held while it acts.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::host::open_output;

/// File name in the state directory.
pub(super) const FILE_NAME: &str = "reap.lock";

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another reaper{} is running ({} is locked); wait for it to exit", holder(*pid), path.display())]
    Held {
        path: PathBuf,
        /// The holder's pid, as it wrote it there.
        pid: Option<u32>,
    },
    #[error("cannot lock {}: {cause}; nothing is done without the lock", path.display())]
    Failed { path: PathBuf, cause: io::Error },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" ({pid})"))
}

/// The lock; released when dropped, or when its holder ends in any way.
#[derive(Debug)]
pub struct Lock {
    _held: File,
}

impl Lock {
    /// Locks a file, creating it if missing. Does not wait.
    ///
    /// # Errors
    ///
    /// If another process holds the lock, or it cannot be taken.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |cause| LockError::Failed { path: path.to_owned(), cause };
        // Anyone who may open it, even for reading, could lock it and keep a reaper from acting.
        let mut file = open_output(path, OFlags::empty(), 0o600).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = file.take(16).read_to_string(&mut text);
                return Err(LockError::Held {
                    path: path.to_owned(),
                    pid: read.ok().and_then(|_| text.trim().parse().ok()),
                });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        // The pid is only information.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", process::id()));
        Ok(Self { _held: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = Lock::acquire(&path).unwrap();
        let error = Lock::acquire(&path).unwrap_err();
        assert!(
            matches!(&error, LockError::Held { pid, .. } if *pid == Some(process::id())),
            "{error}"
        );
        drop(lock);
        Lock::acquire(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_locked_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Lock::acquire(folder.path()).unwrap_err();
        assert!(matches!(error, LockError::Failed { .. }), "{error}");
    }
}
