//! Counts the daemons of NVIDIA's Multi-Process Service (MPS), which lets several processes share a GPU.

use std::fs;
use std::path::Path;

use crate::host::proc::folder::Folder;
use crate::host::proc::small_file::read_start;

/// Value of `comm` of both daemons. The kernel truncates `comm` to 15 bytes.
const COMM: &[u8] = b"nvidia-cuda-mps";
const MAX_TRIED: usize = 1 << 16;
const START_BYTES: u64 = 64;
const COMMAND_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MpsDaemons {
    /// Number of `nvidia-cuda-mps-control` daemons. Such a daemon starts a server for a user when the user's first
    /// client connects.
    pub controls: usize,
    pub servers: usize,
}

/// Counts the MPS daemons among the processes below `proc` that the current user can see. Returns `None` if processes
/// cannot be listed.
pub fn read_mps_daemons(proc: &Path) -> Option<MpsDaemons> {
    let mut daemons = MpsDaemons::default();
    let processes = fs::read_dir(proc).ok()?.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    for process in processes.take(MAX_TRIED) {
        let folder = process.path();
        // `comm` cannot be read if the process has exited or `hidepid` hides its files.
        let comm = read_start(&folder.join("comm"), START_BYTES).unwrap_or_default();
        if !comm.starts_with(COMM) {
            continue;
        }
        let pid = process.file_name().to_str().and_then(|pid| pid.parse().ok());
        let opened = pid.and_then(|pid| Folder::open(proc, pid).ok());
        let mut command = Vec::new();
        let read = opened
            .is_some_and(|folder| folder.read(c"cmdline", &mut command, COMMAND_BYTES).is_ok());
        if !read {
            continue;
        }
        let program = command.split(|&byte| byte == 0).next().unwrap_or_default();
        match program.rsplit(|&byte| byte == b'/').next() {
            Some(b"nvidia-cuda-mps-control") => daemons.controls += 1,
            Some(b"nvidia-cuda-mps-server") => daemons.servers += 1,
            _ => {}
        }
    }
    Some(daemons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mps_daemons_are_distinguished_by_program() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(read_mps_daemons(proc.path()), Some(MpsDaemons::default()));
        for (pid, comm, cmdline) in [
            ("7", "nvidia-cuda-mps\n", "/usr/bin/nvidia-cuda-mps-control\0-d\0"),
            ("8", "nvidia-cuda-mps\n", "nvidia-cuda-mps-server\0"),
            ("9", "nvidia-cuda-mps\n", "vim\0nvidia-cuda-mps-server\0"),
            ("10", "python3\n", "nvidia-cuda-mps-server\0"),
            ("11", "nvidia-cuda-mps\n", ""),
        ] {
            let folder = proc.path().join(pid);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("comm"), comm).unwrap();
            fs::write(folder.join("cmdline"), cmdline).unwrap();
        }
        fs::create_dir(proc.path().join("12")).unwrap();
        assert_eq!(read_mps_daemons(proc.path()), Some(MpsDaemons { controls: 1, servers: 1 }));
        assert_eq!(read_mps_daemons(Path::new("/nonexistent")), None);
    }
}
