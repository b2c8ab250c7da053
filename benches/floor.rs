//! The floor: a program that makes the NVML calls and the /proc reads that the values shown need,
//! and does nothing else. gpumem is measured as a ratio to it, on the same mock driver and the same
//! processes, in the same run.
//!
//! It is `unsafe` because it calls NVML's C functions with nothing in between; that is its point.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::raw::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use libloading::{Library, Symbol};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};

type Device = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    pid: c_uint,
    timestamp: c_ulonglong,
    percents: [c_uint; 4],
}

type Value = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;
type Indexed = unsafe extern "C" fn(Device, c_int, *mut c_uint) -> c_int;
type Two = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;
type List = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;

/// NVML, loaded and started, with its GPUs' handles.
pub struct Floor {
    devices: Vec<Device>,
    memory: unsafe extern "C" fn(Device, *mut Memory) -> c_int,
    rates: Two,
    power: Value,
    temperature: Indexed,
    clock: Indexed,
    state: Value,
    compute: List,
    graphics: List,
    utilization: unsafe extern "C" fn(Device, *mut Sample, *mut c_uint, c_ulonglong) -> c_int,
    records: Vec<ProcessInfo>,
    samples: Vec<Sample>,
    last_seen: Vec<c_ulonglong>,
    _library: Library,
}

impl Floor {
    /// Loads the library, starts NVML and reads the static facts that `gpumem ps` shows.
    pub fn open(library: &Path) -> Self {
        unsafe {
            let library = Library::new(library).unwrap();
            let init: Symbol<'_, unsafe extern "C" fn() -> c_int> =
                library.get(b"nvmlInit_v2\0").unwrap();
            assert_eq!(init(), 0);
            let text = |name: &[u8]| {
                let get: Symbol<'_, unsafe extern "C" fn(*mut c_char, c_uint) -> c_int> =
                    library.get(name).unwrap();
                get([0; 96].as_mut_ptr(), 96);
            };
            text(b"nvmlSystemGetDriverVersion\0");
            text(b"nvmlSystemGetNVMLVersion\0");
            let mut count = 0;
            let get: Symbol<'_, unsafe extern "C" fn(*mut c_uint) -> c_int> =
                library.get(b"nvmlDeviceGetCount_v2\0").unwrap();
            get(&mut count);
            let handle: Symbol<'_, unsafe extern "C" fn(c_uint, *mut Device) -> c_int> =
                library.get(b"nvmlDeviceGetHandleByIndex_v2\0").unwrap();
            let devices: Vec<Device> = (0..count)
                .map(|index| {
                    let mut device = std::ptr::null_mut();
                    assert_eq!(handle(index, &mut device), 0);
                    device
                })
                .collect();
            for &device in &devices {
                for name in [&b"nvmlDeviceGetName\0"[..], b"nvmlDeviceGetUUID\0"] {
                    let get: Symbol<
                        '_,
                        unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int,
                    > = library.get(name).unwrap();
                    get(device, [0; 96].as_mut_ptr(), 96);
                }
                let pci: Symbol<'_, unsafe extern "C" fn(Device, *mut c_void) -> c_int> =
                    library.get(b"nvmlDeviceGetPciInfo_v3\0").unwrap();
                pci(device, [0u64; 32].as_mut_ptr().cast());
                for name in [
                    &b"nvmlDeviceGetMinorNumber\0"[..],
                    b"nvmlDeviceGetComputeMode\0",
                    b"nvmlDeviceGetPersistenceMode\0",
                    b"nvmlDeviceGetEnforcedPowerLimit\0",
                ] {
                    let get: Symbol<'_, Value> = library.get(name).unwrap();
                    get(device, &mut 0);
                }
                let mig: Symbol<
                    '_,
                    unsafe extern "C" fn(Device, *mut c_uint, *mut c_uint) -> c_int,
                > = library.get(b"nvmlDeviceGetMigMode\0").unwrap();
                mig(device, &mut 0, &mut 0);
                let fan: Symbol<'_, Indexed> = library.get(b"nvmlDeviceGetFanSpeed_v2\0").unwrap();
                fan(device, 0, &mut 0);
                let mps: Symbol<'_, List> =
                    library.get(b"nvmlDeviceGetMPSComputeRunningProcesses_v3\0").unwrap();
                mps(device, &mut 1024, vec![ProcessInfo::default(); 1024].as_mut_ptr());
            }
            Self {
                memory: *library.get(b"nvmlDeviceGetMemoryInfo_v2\0").unwrap(),
                rates: *library.get(b"nvmlDeviceGetUtilizationRates\0").unwrap(),
                power: *library.get(b"nvmlDeviceGetPowerUsage\0").unwrap(),
                temperature: *library.get(b"nvmlDeviceGetTemperature\0").unwrap(),
                clock: *library.get(b"nvmlDeviceGetClockInfo\0").unwrap(),
                state: *library.get(b"nvmlDeviceGetPerformanceState\0").unwrap(),
                compute: *library.get(b"nvmlDeviceGetComputeRunningProcesses_v3\0").unwrap(),
                graphics: *library.get(b"nvmlDeviceGetGraphicsRunningProcesses_v3\0").unwrap(),
                utilization: *library.get(b"nvmlDeviceGetProcessUtilization\0").unwrap(),
                records: vec![ProcessInfo::default(); 1024],
                samples: vec![Sample::default(); 1024],
                last_seen: vec![0; devices.len()],
                devices,
                _library: library,
            }
        }
    }

    /// One sample's calls; the pids that were listed.
    pub fn sample(&mut self, pids: &mut Vec<u32>) {
        pids.clear();
        for (index, &device) in self.devices.iter().enumerate() {
            unsafe {
                let mut memory = Memory {
                    version: (size_of::<Memory>() | 2 << 24) as c_uint,
                    ..Memory::default()
                };
                (self.memory)(device, &mut memory);
                (self.rates)(device, [0; 2].as_mut_ptr());
                (self.power)(device, &mut 0);
                (self.temperature)(device, 0, &mut 0);
                (self.clock)(device, 1, &mut 0);
                (self.state)(device, &mut 0);
                for list in [self.compute, self.graphics] {
                    let mut count = 1024;
                    if list(device, &mut count, self.records.as_mut_ptr()) == 0 {
                        let records = &self.records[..count as usize];
                        pids.extend(records.iter().map(|record| record.pid));
                    }
                }
                let mut count = 1024;
                let seen = self.last_seen[index];
                if (self.utilization)(device, self.samples.as_mut_ptr(), &mut count, seen) == 0 {
                    let samples = &self.samples[..count as usize];
                    let newest = samples.iter().map(|sample| sample.timestamp).max();
                    self.last_seen[index] = newest.unwrap_or(seen);
                }
            }
        }
    }

    /// What a steady sample needs of each process: its stat file, opened, read and closed.
    pub fn read_stats(pids: &[u32]) {
        let mut bytes = [0; 1024];
        for pid in pids {
            if let Ok(mut file) = File::open(format!("/proc/{pid}/stat")) {
                let _ = file.read(&mut bytes);
            }
        }
    }

    /// What the first sample needs of each process besides: owner, argv, libraries, environment, place,
    /// program, open files.
    pub fn read_the_rest(pids: &[u32]) {
        let mut bytes = vec![0; 64 << 10];
        for pid in pids {
            for name in ["status", "cmdline", "maps", "environ", "cgroup"] {
                if let Ok(mut file) = File::open(format!("/proc/{pid}/{name}")) {
                    while file.read(&mut bytes).is_ok_and(|length| length > 0) {}
                }
            }
            let _ = std::fs::read_link(format!("/proc/{pid}/exe"));
            for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten() {
                let _ = entry.map(|entry| std::fs::read_link(entry.path()));
            }
        }
    }
}

/// What it takes to see what everybody has open: each process's descriptors, listed, and the target of
/// each read. The number of descriptors.
pub fn read_all_descriptors() -> usize {
    let open = |at: &OwnedFd, path: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(at, path, flags, Mode::empty())
    };
    let root = openat(CWD, "/", OFlags::PATH, Mode::empty()).unwrap();
    let proc = open(&root, "proc").unwrap();
    let mut entries = [MaybeUninit::uninit(); 8192];
    let mut descriptors = [MaybeUninit::uninit(); 8192];
    let mut target = [MaybeUninit::uninit(); 4096];
    let mut seen = 0;
    let mut processes = RawDir::new(proc.as_fd(), &mut entries);
    while let Some(Ok(process)) = processes.next() {
        let name = process.file_name().to_bytes();
        let Some(pid) = std::str::from_utf8(name).ok().filter(|it| it.parse::<u32>().is_ok())
        else {
            continue;
        };
        let Ok(folder) = open(&proc, &format!("{pid}/fd")) else {
            continue;
        };
        let mut listed = RawDir::new(folder.as_fd(), &mut descriptors);
        while let Some(Ok(descriptor)) = listed.next() {
            let name = descriptor.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if let Ok((target, _)) = readlinkat_raw(&folder, name, &mut target) {
                std::hint::black_box(target.starts_with(b"/dev/nvidia"));
                seen += 1;
            }
        }
    }
    seen
}
