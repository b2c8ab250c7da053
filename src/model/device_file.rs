//! Names of device files. The number N in `/dev/nvidiaN` is the GPU's minor number, which may differ from its index.

use super::program::file_name;
use super::{Gpu, Process};

/// Returns N for the name `nvidiaN`, or `None` for other names.
pub fn minor_number(name: &str) -> Option<u32> {
    name.strip_prefix("nvidia")?.parse().ok()
}

pub fn minor_number_of(path: &str) -> Option<u32> {
    minor_number(path.strip_prefix("/dev/")?)
}

impl Gpu {
    /// Returns the path of the GPU's device file. If NVML does not report the minor number, assumes that it equals
    /// the index.
    pub fn device_file(&self) -> String {
        format!("/dev/nvidia{}", self.device_number())
    }

    /// Returns whether the process has the GPU's device file open, or `None` if its file descriptors could not be read.
    pub fn is_open_in(&self, process: &Process) -> Option<bool> {
        let number = Some(self.device_number());
        let mut files = process.gpu_files.as_ref()?.iter();
        Some(files.any(|file| minor_number_of(file) == number))
    }

    /// Returns whether a process that NVML does not list on this GPU may hold memory on it, or `None` if its file
    /// descriptors could not be read.
    pub fn may_be_held_by(&self, process: &Process) -> Option<bool> {
        Some(process.may_hold_gpu_memory()? && self.is_open_in(process)?)
    }

    fn device_number(&self) -> u32 {
        self.minor_number.unwrap_or(self.index)
    }
}

impl Process {
    /// Returns whether the process has the driver's file for memory management open, or `None` if its file descriptors
    /// could not be read. All processes with a GPU context, and the processes that they forked, have this file open. A
    /// process that only queries NVML does not have the file open.
    ///
    /// The file is `nvidia-uvm` on Linux. The drivers for WSL and Jetson have only one device file.
    pub fn may_hold_gpu_memory(&self) -> Option<bool> {
        // A parked process may have its files open, although its memory is on the host.
        if self.parked().is_some() {
            return Some(false);
        }
        let manages = |path: &str| matches!(file_name(path), "nvidia-uvm" | "dxg" | "nvmap");
        Some(self.gpu_files.as_ref()?.iter().any(|path| manages(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gpu_device_files_have_a_minor_number() {
        assert_eq!(minor_number("nvidia12"), Some(12));
        for name in ["nvidiactl", "nvidia-uvm", "nvidia99999999999", "dxg"] {
            assert_eq!(minor_number(name), None);
        }
    }

    #[test]
    fn open_device_files_show_which_gpu_a_process_holds() {
        let gpu = |minor_number| Gpu { index: 1, minor_number, ..Gpu::default() };
        assert_eq!(gpu(Some(12)).device_file(), "/dev/nvidia12");
        assert_eq!(gpu(None).device_file(), "/dev/nvidia1");
        let process = |files: Option<&[&str]>| Process {
            gpu_files: files.map(|files| files.iter().map(|&file| file.into()).collect()),
            ..Process::default()
        };
        for (files, is_open) in [
            (None, None),
            (Some(&[][..]), Some(false)),
            (Some(&["/dev/nvidiactl", "/dev/nvidia1"][..]), Some(true)),
            (Some(&["/dev/nvidia12", "/dev/nvidia-uvm"][..]), Some(false)),
            (Some(&["nvidia1", "/dev/shm/nvidia1"][..]), Some(false)),
        ] {
            assert_eq!(gpu(None).is_open_in(&process(files)), is_open, "{files:?}");
        }
        let held = |files| gpu(None).may_be_held_by(&process(Some(files)));
        assert_eq!(
            held(&["/dev/nvidiactl", "/dev/nvidia1"]),
            Some(false),
            "the process only queries NVML"
        );
        assert_eq!(held(&["/dev/nvidia-uvm", "/dev/nvidia1"]), Some(true));
        assert_eq!(held(&["/dev/nvidia-uvm", "/dev/nvidia0"]), Some(false));
        assert_eq!(gpu(None).may_be_held_by(&process(None)), None);
    }
}
