//! NVML calls that nvml-wrapper lacks or gets wrong, made through the library that it has loaded.
//!
//! These calls cross a C ABI, so this is the only file in `nvml` that contains `unsafe`. The calls return memory info
//! v1 (for drivers before R510 and WSL), the instance ids of MIG devices, the NUMA node, and the utilization of some
//! video engines. Other calls return process lists whose records differ in size from the header, and process
//! utilization in a single call. This file also stores the handle of a device without borrowing the library, so that
//! the handle can move between threads. Each function takes a live [`Device`], so NVML is initialised and the handle is
//! valid. Each buffer has room for everything that the driver can write.
#![allow(unsafe_code)]

use std::os::raw::{c_uint, c_ulonglong};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationSample_t, nvmlReturn_t,
};

use super::error::Code;

/// Size, in bytes, of the largest process record that a known driver writes (v3 of R535).
const LARGEST_RECORD: usize = 32;
/// Value with which a buffer is filled before a call, to detect how much the driver wrote.
const UNTOUCHED: u8 = 0xA5;
/// `PID_MAX_LIMIT` of Linux (`include/linux/threads.h`).
const PID_MAX_LIMIT: u32 = 1 << 22;
/// Maximum number of attempts to read a list, which can grow between two calls.
const GROWTH_RETRIES: usize = 5;
/// Maximum number of records for which a buffer is allocated. The driver lists at most 950 processes per GPU.
const MOST_RECORDS: usize = 1 << 16;

/// NVML handle of a device that does not borrow the library. The owner of the handle must also own the library.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceHandle(nvmlDevice_t);

// SAFETY: NVML can be called from any thread (nvml.h), and a handle is only an identifier. nvml-wrapper makes the
// same assumption for its `Device`.
unsafe impl Send for DeviceHandle {}

impl DeviceHandle {
    pub(super) fn new(device: &Device<'_>) -> Self {
        // SAFETY: the handle is only copied. It is used only together with the library.
        Self(unsafe { device.handle() })
    }

    /// Returns the device. `nvml` must be the library that returned the handle.
    pub(super) fn device(self, nvml: &Nvml) -> Device<'_> {
        // SAFETY: a reader keeps the handle together with the library that returned it, and the library is shut down
        // only after the handle is dropped.
        unsafe { Device::new(self.0, nvml) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    Compute,
    Graphics,
    /// Clients of the Multi-Process Service.
    Mps,
}

/// Version of the process list calls that gpumem uses with a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// `…_v3`, with records of 24 bytes, or of 32 bytes on R535 before 535.98.
    V3,
    /// `…_v2`, with records of 24 bytes.
    V2,
    /// Calls without a suffix, with records of 16 bytes, on drivers before R450.
    V1,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StructLayout {
    pub(super) version: Version,
    /// Expected size of a record, in bytes. [`parse`] determines the actual size.
    record_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ProcessRecord {
    pub pid: u32,
    /// `None` if NVML reports that the value is not available.
    pub used_bytes: Option<u64>,
    pub gpu_instance_id: Option<u32>,
    pub compute_instance_id: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UtilizationSample {
    pub pid: u32,
    /// Microseconds on the driver's clock, which is Unix time only on some drivers.
    pub timestamp: u64,
    pub sm_percent: u32,
    pub memory_percent: u32,
    pub encoder_percent: u32,
    pub decoder_percent: u32,
}

/// Determines which version of the process list calls to use, and the expected size of their records.
///
/// In `_v3`, the drivers 535.43.02 to 535.86 write records of 32 bytes, although the header says 24, so `_v2` is used
/// instead. These drivers are recognised by their symbols: they have the call for confidential-computing memory info,
/// but not the one that replaced the additional field.
pub(super) fn process_list_layout(nvml: &Nvml) -> StructLayout {
    let lib = nvml.lib();
    let has_v2 = lib.nvmlDeviceGetComputeRunningProcesses_v2.is_ok();
    let wide_v3 = lib.nvmlDeviceGetConfComputeMemSizeInfo.is_ok()
        && lib.nvmlDeviceGetRunningProcessDetailList.is_err();
    if lib.nvmlDeviceGetComputeRunningProcesses_v3.is_ok() && !(wide_v3 && has_v2) {
        let record_bytes = if wide_v3 { LARGEST_RECORD } else { 24 };
        StructLayout { version: Version::V3, record_bytes }
    } else if has_v2 {
        StructLayout { version: Version::V2, record_bytes: 24 }
    } else {
        StructLayout { version: Version::V1, record_bytes: 16 }
    }
}

/// Returns memory info v1 as `(total, used, free)`, in bytes. `used` includes the driver's reserve.
pub(super) fn memory_info_v1(nvml: &Nvml, device: &Device<'_>) -> Result<(u64, u64, u64), Code> {
    let call = nvml.lib().nvmlDeviceGetMemoryInfo.as_ref().map_err(|_| Code::FUNCTION_NOT_FOUND)?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is valid while `device` lives, and the call fills `memory`.
    Code::check(unsafe { call(device.handle(), &mut memory) })?;
    Ok((memory.total, memory.used, memory.free))
}

pub(super) fn gpu_instance_id(nvml: &Nvml, device: &Device<'_>) -> Result<u32, Code> {
    number(device, &nvml.lib().nvmlDeviceGetGpuInstanceId)
}

pub(super) fn compute_instance_id(nvml: &Nvml, device: &Device<'_>) -> Result<u32, Code> {
    number(device, &nvml.lib().nvmlDeviceGetComputeInstanceId)
}

/// Returns the NUMA node of the GPU's memory, on machines on which that memory is a NUMA node.
pub(super) fn numa_node(nvml: &Nvml, device: &Device<'_>) -> Result<u32, Code> {
    number(device, &nvml.lib().nvmlDeviceGetNumaNodeId)
}

/// A video engine whose utilization nvml-wrapper cannot read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Engine {
    Jpeg,
    OpticalFlow,
}

pub(super) fn engine_percent(
    nvml: &Nvml,
    device: &Device<'_>,
    engine: Engine,
) -> Result<u32, Code> {
    let library = nvml.lib();
    let call = match engine {
        Engine::Jpeg => &library.nvmlDeviceGetJpgUtilization,
        Engine::OpticalFlow => &library.nvmlDeviceGetOfaUtilization,
    };
    let call = call.as_ref().map_err(|_| Code::FUNCTION_NOT_FOUND)?;
    let (mut percent, mut period_us): (c_uint, c_uint) = (0, 0);
    // SAFETY: the handle is valid while `device` lives, and the call fills both values.
    Code::check(unsafe { call(device.handle(), &mut percent, &mut period_us) })?;
    Ok(percent)
}

fn number<E>(
    device: &Device<'_>,
    symbol: &Result<unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t, E>,
) -> Result<u32, Code> {
    let call = symbol.as_ref().map_err(|_| Code::FUNCTION_NOT_FOUND)?;
    let mut number: c_uint = 0;
    // SAFETY: the handle is valid while `device` lives, and the call only fills `number`.
    Code::check(unsafe { call(device.handle(), &mut number) })?;
    Ok(number)
}

/// Reads process lists. The buffer is reused, so that an unchanged list takes a single call.
#[derive(Debug, Default)]
pub(super) struct ProcessLists {
    /// Elements of 8 bytes, so that records of all formats are aligned.
    buffer: Vec<u64>,
    capacity: usize,
}

impl ProcessLists {
    /// Reads the records of a list. Returns NVML's error ([`Code::FUNCTION_NOT_FOUND`] if the driver lacks the call),
    /// or [`Code::UNKNOWN_LAYOUT`] if the size of the records cannot be determined.
    pub(super) fn read(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        list: List,
        layout: StructLayout,
    ) -> Result<Vec<ProcessRecord>, Code> {
        self.capacity = self.capacity.max(32);
        for _ in 0..GROWTH_RETRIES {
            self.buffer.clear();
            self.buffer
                .resize(self.capacity * LARGEST_RECORD / 8, u64::from_ne_bytes([UNTOUCHED; 8]));
            let mut count = self.capacity as c_uint;
            let code = self.call(nvml, device, list, layout.version, &mut count);
            match code {
                Err(Code::INSUFFICIENT_SIZE) => {
                    // Leave room, because the list can grow before the next call.
                    self.capacity = (count as usize + count as usize / 4 + 8)
                        .max(self.capacity * 2)
                        .min(MOST_RECORDS);
                }
                Err(code) => return Err(code),
                Ok(()) => {
                    let count = (count as usize).min(self.capacity);
                    return parse(&self.buffer, count, self.capacity, layout.record_bytes)
                        .ok_or(Code::UNKNOWN_LAYOUT);
                }
            }
        }
        Err(Code::INSUFFICIENT_SIZE)
    }

    fn call(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        list: List,
        version: Version,
        count: &mut c_uint,
    ) -> Result<(), Code> {
        type Call<T> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut T) -> nvmlReturn_t;
        fn some<T, E>(symbol: &Result<Call<T>, E>) -> Result<Call<T>, Code> {
            symbol.as_ref().copied().map_err(|_| Code::FUNCTION_NOT_FOUND)
        }
        let lib = nvml.lib();
        let buffer = self.buffer.as_mut_ptr();
        // SAFETY: the handle is valid while `device` lives. The buffer has room for `count` records of the largest
        // known format, and its alignment of 8 is enough for all formats.
        let code = unsafe {
            let device = device.handle();
            match version {
                Version::V3 => some::<nvmlProcessInfo_t, _>(match list {
                    List::Compute => &lib.nvmlDeviceGetComputeRunningProcesses_v3,
                    List::Graphics => &lib.nvmlDeviceGetGraphicsRunningProcesses_v3,
                    List::Mps => &lib.nvmlDeviceGetMPSComputeRunningProcesses_v3,
                })?(device, count, buffer.cast()),
                // On R450 and R460, the call has no version suffix, but its records are those of v2.
                Version::V2
                    if list == List::Mps
                        && lib.nvmlDeviceGetMPSComputeRunningProcesses_v2.is_err() =>
                {
                    some(&lib.nvmlDeviceGetMPSComputeRunningProcesses)?(
                        device,
                        count,
                        buffer.cast(),
                    )
                }
                Version::V2 => some::<nvmlProcessInfo_v2_t, _>(match list {
                    List::Compute => &lib.nvmlDeviceGetComputeRunningProcesses_v2,
                    List::Graphics => &lib.nvmlDeviceGetGraphicsRunningProcesses_v2,
                    List::Mps => &lib.nvmlDeviceGetMPSComputeRunningProcesses_v2,
                })?(device, count, buffer.cast()),
                Version::V1 => some::<nvmlProcessInfo_v1_t, _>(match list {
                    List::Compute => &lib.nvmlDeviceGetComputeRunningProcesses,
                    List::Graphics => &lib.nvmlDeviceGetGraphicsRunningProcesses,
                    List::Mps => &lib.nvmlDeviceGetMPSComputeRunningProcesses,
                })?(device, count, buffer.cast()),
            }
        };
        Code::check(code)
    }
}

/// Parses `count` records from a buffer that was filled with [`UNTOUCHED`] before the call. `capacity` is the number
/// of records for which the driver was told that there is room.
///
/// Records should have `expected` bytes, but the length of the part that was written can show a different size: it is
/// the exact length of 16-byte records (on a driver reported by nvitop), or it exceeds the expected length and fits
/// 32-byte records (R535). If the driver cleared the whole buffer first, the length shows nothing. Returns `None` if
/// a pid exceeds Linux's limit.
fn parse(
    buffer: &[u64],
    count: usize,
    capacity: usize,
    expected: usize,
) -> Option<Vec<ProcessRecord>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let last = buffer.iter().rposition(|&word| word != u64::from_ne_bytes([UNTOUCHED; 8]))?;
    let written = last * 8 + buffer[last].to_ne_bytes().iter().rposition(|&b| b != UNTOUCHED)? + 1;
    let size = if written == 16 * count {
        16
    } else if written > expected * count
        && written <= LARGEST_RECORD * count
        && written != expected * capacity
    {
        LARGEST_RECORD
    } else {
        expected
    };
    let word = |at: usize| {
        let bytes = buffer[at / 8].to_ne_bytes();
        let half = if at.is_multiple_of(8) { &bytes[..4] } else { &bytes[4..] };
        u32::from_ne_bytes([half[0], half[1], half[2], half[3]])
    };
    // NVML_VALUE_NOT_AVAILABLE is (unsigned long long)-1. For instance ids, it is 0xFFFFFFFF.
    let instance = |at: usize| (size > 16).then(|| word(at)).filter(|&id| id != u32::MAX);
    let records: Vec<ProcessRecord> = (0..count)
        .map(|index| index * size)
        .map(|at| ProcessRecord {
            pid: word(at),
            used_bytes: Some(buffer[at / 8 + 1]).filter(|&bytes| bytes != u64::MAX),
            gpu_instance_id: instance(at + 16),
            compute_instance_id: instance(at + 20),
        })
        .collect();
    records.iter().all(|record| record.pid <= PID_MAX_LIMIT).then_some(records)
}

/// Reads process utilization samples. The buffer is reused, so that a read usually takes a single call.
#[derive(Debug, Default)]
pub(super) struct UtilizationSamples {
    buffer: Vec<nvmlProcessUtilizationSample_t>,
    /// Number of entries that the driver may have written. The others are empty.
    used: usize,
}

impl UtilizationSamples {
    /// Reads the samples that are newer than `last_seen`, in microseconds on the driver's clock, or all samples if it
    /// is 0. Returns [`Code::NOT_FOUND`] as an error if there are none.
    pub(super) fn read(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        last_seen: u64,
    ) -> Result<impl Iterator<Item = UtilizationSample> + '_, Code> {
        let call = nvml
            .lib()
            .nvmlDeviceGetProcessUtilization
            .as_ref()
            .map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        let empty = nvmlProcessUtilizationSample_t {
            pid: 0,
            timeStamp: 0,
            smUtil: 0,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let mut capacity = self.buffer.len().max(128);
        for _ in 0..GROWTH_RETRIES {
            let used = std::mem::replace(&mut self.used, capacity);
            self.buffer[..used].fill(empty);
            self.buffer.resize(capacity, empty);
            let mut count = capacity as c_uint;
            // SAFETY: the handle is valid while `device` lives. The buffer has room for `count` samples, whose format
            // is the same on all drivers.
            let code = unsafe {
                call(
                    device.handle(),
                    self.buffer.as_mut_ptr(),
                    &mut count,
                    last_seen as c_ulonglong,
                )
            };
            match Code::check(code) {
                Err(Code::INSUFFICIENT_SIZE) => {
                    capacity = (count as usize).max(capacity * 2).min(MOST_RECORDS);
                }
                Err(code) => return Err(code),
                Ok(()) => {
                    let count = (count as usize).min(capacity);
                    self.used = count;
                    return Ok(self.buffer[..count].iter().map(|sample| UtilizationSample {
                        pid: sample.pid,
                        timestamp: sample.timeStamp,
                        sm_percent: sample.smUtil,
                        memory_percent: sample.memUtil,
                        encoder_percent: sample.encUtil,
                        decoder_percent: sample.decUtil,
                    }));
                }
            }
        }
        Err(Code::INSUFFICIENT_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a buffer as a driver with records of `size` bytes would leave it.
    fn written(size: usize, records: &[(u32, u64, u32, u32)]) -> Vec<u64> {
        let mut bytes = vec![UNTOUCHED; 8 * LARGEST_RECORD];
        for (index, &(pid, used, gpu_instance, compute_instance)) in records.iter().enumerate() {
            let record = &mut bytes[index * size..(index + 1) * size];
            record[0..4].copy_from_slice(&pid.to_ne_bytes());
            record[8..16].copy_from_slice(&used.to_ne_bytes());
            if size > 16 {
                record[16..20].copy_from_slice(&gpu_instance.to_ne_bytes());
                record[20..24].copy_from_slice(&compute_instance.to_ne_bytes());
            }
            if size > 24 {
                record[24..32].fill(0);
            }
        }
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    const RECORDS: [(u32, u64, u32, u32); 3] =
        [(4242, 20 << 30, u32::MAX, u32::MAX), (7, u64::MAX, 1, 0), (9, 0, 2, 3)];

    #[test]
    fn records_of_every_known_size_are_parsed() {
        for (size, expected) in [(16, 16), (24, 24), (32, 32), (16, 24), (32, 24)] {
            let parsed = parse(&written(size, &RECORDS), 3, 8, expected).unwrap();
            assert_eq!(parsed.len(), 3);
            assert_eq!(parsed[0].pid, 4242);
            assert_eq!(parsed[0].used_bytes, Some(20 << 30));
            assert_eq!(parsed[0].gpu_instance_id, None);
            assert_eq!((parsed[1].pid, parsed[1].used_bytes), (7, None));
            let instances = (parsed[2].gpu_instance_id, parsed[2].compute_instance_id);
            assert_eq!(instances, if size == 16 { (None, None) } else { (Some(2), Some(3)) });
        }
    }

    #[test]
    fn the_expected_size_applies_if_the_driver_cleared_the_buffer() {
        for capacity in [3, 4, 8] {
            let mut buffer = written(24, &RECORDS);
            buffer[9..capacity * 3].fill(0);
            let parsed = parse(&buffer, 3, capacity, 24).unwrap();
            let pids: Vec<u32> = parsed.iter().map(|record| record.pid).collect();
            assert_eq!(pids, [4242, 7, 9], "{capacity}");
        }
    }

    #[test]
    fn records_that_cannot_be_processes_are_refused() {
        let none = u64::from_ne_bytes([UNTOUCHED; 8]);
        assert_eq!(parse(&[none; 64], 1, 16, 24), None, "the driver wrote nothing");
        let absurd = [(PID_MAX_LIMIT + 1, 5, 0, 0)];
        assert_eq!(parse(&written(24, &absurd), 1, 8, 24), None);
        assert_eq!(parse(&[], 0, 0, 24), Some(Vec::new()));
    }
}
