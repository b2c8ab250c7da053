//! Process lists, in all layouts that drivers have used.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

use crate::answer::{Answer, Code};
use crate::driver::Device;
use crate::pointer::Pointer;
use crate::scene::{Process, ProcessKind};

/// `nvmlProcessInfo_v1_t`, for functions without a version suffix.
#[repr(C)]
#[derive(Clone, Copy)]
struct Record16 {
    pid: c_uint,
    used_bytes: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, for `_v2`, and for `_v3` in most drivers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Record24 {
    pid: c_uint,
    used_bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The record of `_v3` in drivers 535.43 to 535.86, and `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Record32 {
    pid: c_uint,
    used_bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    protected_bytes: c_ulonglong,
}

const _: () = assert!(size_of::<Record16>() == 16);
const _: () = assert!(size_of::<Record24>() == 24);
const _: () = assert!(size_of::<Record32>() == 32);

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DetailList {
    version: c_uint,
    mode: c_uint,
    count: c_uint,
    records: Pointer<Record32>,
}

/// A buffer of records. The layout depends on the function and the driver.
pub(crate) type Records = Pointer<u8>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Compute,
    Graphics,
    Mps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
    V3,
}

/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;
const NO_INSTANCE: u32 = u32::MAX;
/// First pid that the driver adds to a growing list. The pid is close to the maximum on Linux (4,194,304), so it is
/// probably unused.
const FIRST_ADDED_PID: u32 = 4_180_000;

/// Answers `nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses`.
pub(crate) fn answer(
    device: &Device<'_>,
    list: List,
    version: Version,
    count: Pointer<c_uint>,
    out: Records,
) -> Answer {
    let room = count.get()?;
    crate::abi::may_see_all(device)?;
    let found = records(device, list);
    count.put(found.len() as c_uint)?;
    if found.is_empty() {
        return Ok(());
    }
    if found.len() > room as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    let (found, room) = (found.into_iter(), room as usize);
    match version {
        Version::V1 => out.cast().put_all(found.map(Record16::from), room),
        Version::V3 if device.scene.driver.wide_records => out.cast().put_all(found, room),
        Version::V2 | Version::V3 => out.cast().put_all(found.map(Record24::from), room),
    }
}

/// Answers `nvmlDeviceGetRunningProcessDetailList`.
pub(crate) fn answer_details(device: &Device<'_>, list: Pointer<DetailList>) -> Answer {
    let mut request = list.get()?;
    if request.version != crate::abi::version_of::<DetailList>(1) {
        return Err(Code::ARGUMENT_VERSION_MISMATCH);
    }
    crate::abi::may_see_all(device)?;
    let found = match request.mode {
        0 => records(device, List::Compute),
        1 => records(device, List::Graphics),
        2 => records(device, List::Mps),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    let room = request.count as usize;
    request.count = found.len() as c_uint;
    list.put(request)?;
    if found.is_empty() {
        return Ok(());
    }
    if found.len() > room {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    request.records.put_all(found.into_iter(), room)
}

fn records(device: &Device<'_>, list: List) -> Vec<Record32> {
    let all: Vec<&Process> = match device.mig {
        Some(mig) => mig.processes.iter().collect(),
        None => device.gpu.all_processes().collect(),
    };
    let mut records: Vec<Record32> = all
        .into_iter()
        .filter(|process| match process.kind {
            ProcessKind::Compute => list == List::Compute,
            ProcessKind::Graphics => list == List::Graphics,
            ProcessKind::ComputeGraphics => list != List::Mps,
            ProcessKind::Mps => list == List::Mps,
        })
        .map(|process| {
            let used = process.used_bytes.as_ref();
            Record32 {
                pid: process.pid,
                used_bytes: used.map_or(NOT_AVAILABLE, |used| used.at(device.second) as u64),
                gpu_instance: process.gi.unwrap_or(NO_INSTANCE),
                compute_instance: process.ci.unwrap_or(NO_INSTANCE),
                protected_bytes: 0,
            }
        })
        .collect();
    if list == List::Compute
        && device.mig.is_none()
        && let Some(growth) = device.gpu.grow_list
    {
        let calls = device.list_calls.fetch_add(1, Ordering::Relaxed);
        let calls = calls.saturating_add(1).min(growth.calls);
        records.extend((0..growth.entries.saturating_mul(calls)).map(|added| Record32 {
            pid: FIRST_ADDED_PID.saturating_add(added),
            used_bytes: 1 << 20,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected_bytes: 0,
        }));
    }
    records
}

impl From<Record32> for Record24 {
    fn from(record: Record32) -> Self {
        Self {
            pid: record.pid,
            used_bytes: record.used_bytes,
            gpu_instance: record.gpu_instance,
            compute_instance: record.compute_instance,
        }
    }
}

impl From<Record32> for Record16 {
    fn from(record: Record32) -> Self {
        Self { pid: record.pid, used_bytes: record.used_bytes }
    }
}
