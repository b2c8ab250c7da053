//! A small disk for tests that fill it.

use std::path::Path;
use std::process::Command;

/// A small disk, mounted on a folder until the value is dropped.
pub(super) struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts a small disk. Prints the reason and returns `None` if that fails.
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
