//! Detects whether NVIDIA's kernel module is loaded, and reads the module's version.
//!
//! The loaded module provides `/proc/driver/nvidia/version`. The version of the installed driver can differ, for
//! example after an upgrade. The file is also visible in containers unless the container runtime masks it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::host::proc::small_file::read_start;

/// Maximum number of bytes read from the version file, which has two or three lines.
const VERSION_BYTES: u64 = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelModule {
    Loaded {
        /// A version such as `580.159.03`, or `None` if the file has an unknown format.
        version: Option<Arc<str>>,
    },
    Absent,
    Unreadable,
}

pub fn read_kernel_module(proc: &Path) -> KernelModule {
    match read_start(&proc.join("driver/nvidia/version"), VERSION_BYTES) {
        Ok(text) => KernelModule::Loaded { version: parse_module_version(&text) },
        Err(error) if error.kind() == io::ErrorKind::NotFound => KernelModule::Absent,
        Err(_) => KernelModule::Unreadable,
    }
}

/// Returns the version of the kernel module, which is the first word of digits and dots in a line such as `NVRM
/// version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build …`.
pub fn parse_module_version(text: &[u8]) -> Option<Arc<str>> {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find_map(|line| line.strip_prefix("NVRM version:"))?;
    line.split_whitespace().find(|word| is_version(word)).map(Arc::from)
}

fn is_version(word: &str) -> bool {
    word.len() <= 32
        && word.contains('.')
        && word
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_kernel_modules_are_parsed() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n\
                 GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1)\n",
                Some("535.104.05"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (root@host)\n",
                Some("580.159.03"),
            ),
            ("GCC version:  gcc version 12.3.0\n", None),
            ("NVRM version: none 12 a.b ..\n", None),
            ("", None),
        ] {
            assert_eq!(parse_module_version(text.as_bytes()).as_deref(), version);
        }
        assert_eq!(parse_module_version(b"NVRM version: \xff\xff 1.\xff"), None);
    }

    #[test]
    fn a_missing_version_file_means_no_module() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read_kernel_module(root.path()), KernelModule::Absent);
        std::fs::create_dir_all(root.path().join("driver/nvidia")).unwrap();
        let file = root.path().join("driver/nvidia/version");
        std::fs::write(&file, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02\n")
            .unwrap();
        assert_eq!(
            read_kernel_module(root.path()),
            KernelModule::Loaded { version: Some("470.256.02".into()) }
        );
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(read_kernel_module(root.path()), KernelModule::Unreadable);
    }
}
