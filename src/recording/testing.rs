//! Mounts a small disk for tests that fill it.

use std::path::Path;
use std::process::Command;

/// A small disk that is mounted on a directory until the value is dropped.
pub(super) struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts a small disk. If that is not possible, prints why and returns `None`.
    pub(super) fn mount(folder: &'a Path, size: &str) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(folder);
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped, no small disk to fill: mount needs root");
            return None;
        }
        Some(Self(folder))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}
