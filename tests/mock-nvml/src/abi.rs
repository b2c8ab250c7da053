//! The table of NVML's symbols with their arguments and answers.
//!
//! A line contains a kind, a symbol, C arguments and an answer. Programs can call an `always` function before
//! `nvmlInit`, but not a `system` function. A `device` function takes the handle of a GPU, an `instance` function
//! also takes the handle of a MIG device, and a `lookup` function returns a handle. The table contains
//! no unsafe code, because [`Pointer`] dereferences the pointers.
//!
//! To add a function, add a line and, if needed, a field in [`scene`](crate::scene).

#![allow(
    non_snake_case,
    non_camel_case_types,
    reason = "the symbols have NVML's names, as do the enum's variants"
)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use crate::answer::{Answer, Code};
use crate::driver::{self, Device, Handle, Needs};
use crate::pci::{self, Address};
use crate::pointer::Pointer;
use crate::processes::{self, DetailList, List, Records, Version};
use crate::scene::{MigDevice, Process, Scene};
use crate::utilization::{self, Sample};

mod structs;

pub(crate) use structs::version_of;
use structs::{
    AccountingStats, Bar1, ConfidentialMemory, FieldValue, Memory, Memory2, Temperature,
    Utilization, Versioned, check_version,
};

type Out<T> = Pointer<T>;

macro_rules! symbols {
    ($($kind:ident $name:ident($($arguments:tt)*) $answer:expr;)*) => {
        /// The functions that this driver exports.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub(crate) enum Function { $($name),* }

        impl Function {
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Returns whether the first argument is a device.
            pub(crate) fn takes_device(self) -> bool {
                match self { $(Self::$name => symbols!(@takes_device $kind)),* }
            }

            /// Returns whether the first argument can be a MIG device. Other functions return `NOT_SUPPORTED` for a
            /// MIG device.
            pub(crate) fn takes_mig_device(self) -> bool {
                match self { $(Self::$name => symbols!(@takes_mig_device $kind)),* }
            }
        }

        $(symbols!(@$kind $name($($arguments)*) $answer);)*
    };
    (@takes_device device) => { true };
    (@takes_device instance) => { true };
    (@takes_device $other:ident) => { false };
    (@takes_mig_device instance) => { true };
    (@takes_mig_device $other:ident) => { false };
    (@always $name:ident($($argument:ident: $type:ty),*) $answer:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_uint {
            driver::answer(Function::$name, Needs::Nothing, $answer)
        }
    };
    (@system $name:ident($($argument:ident: $type:ty),*) $answer:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_uint {
            driver::answer(Function::$name, Needs::Init, $answer)
        }
    };
    (@device $name:ident($($argument:ident: $type:ty),*) $answer:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Handle, $($argument: $type),*) -> c_uint {
            driver::answer_on(Function::$name, device, $answer)
        }
    };
    (@instance $name:ident($($argument:ident: $type:ty),*) $answer:expr) => {
        symbols!(@device $name($($argument: $type),*) $answer);
    };
    (@lookup $name:ident($argument:ident: $type:ty) $answer:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($argument: $type, out: Out<Handle>) -> c_uint {
            driver::answer_lookup(Function::$name, $answer, |handle| out.put(handle))
        }
    };
}

symbols! {
    always nvmlInit_v2() driver::init;
    always nvmlInit() driver::init;
    always nvmlInitWithFlags(_flags: c_uint) driver::init;
    system nvmlShutdown() driver::shutdown;

    system nvmlSystemGetDriverVersion(out: Out<c_char>, length: c_uint)
        |call| out.put_text(&call.scene().driver.version, length);
    always nvmlSystemGetNVMLVersion(out: Out<c_char>, length: c_uint)
        |call| out.put_text(&call.scene().driver.nvml_version, length);
    always nvmlSystemGetCudaDriverVersion(out: Out<c_int>)
        |call| out.put(call.scene().driver.cuda_version as c_int);
    always nvmlSystemGetCudaDriverVersion_v2(out: Out<c_int>)
        |call| out.put(call.scene().driver.cuda_version as c_int);

    system nvmlDeviceGetCount_v2(out: Out<c_uint>) |call| out.put(call.scene().gpus.len() as c_uint);
    system nvmlDeviceGetCount(out: Out<c_uint>) |call| out.put(call.scene().gpus.len() as c_uint);
    lookup nvmlDeviceGetHandleByIndex_v2(index: c_uint) |scene| by_index(scene, index);
    lookup nvmlDeviceGetHandleByIndex(index: c_uint) |scene| by_index(scene, index);
    lookup nvmlDeviceGetHandleByUUID(text: Out<c_char>)
        |scene| by_text(scene, text, |scene, index, text| uuid(scene, index) == text);
    lookup nvmlDeviceGetHandleByPciBusId_v2(text: Out<c_char>) |scene| by_text(scene, text, is_at);

    // Identity.
    instance nvmlDeviceGetName(out: Out<c_char>, length: c_uint)
        |device| out.put_text(garbled(device, name(device)), length);
    instance nvmlDeviceGetUUID(out: Out<c_char>, length: c_uint) |device| {
        let gpu_uuid = uuid(device.scene, device.index);
        let shown = device.mig.map_or(gpu_uuid, |mig| mig_uuid(device.index, mig));
        out.put_text(garbled(device, shown), length)
    };
    device nvmlDeviceGetSerial(out: Out<c_char>, length: c_uint)
        |_| out.put_text("1650224012345", length);
    device nvmlDeviceGetBoardPartNumber(out: Out<c_char>, length: c_uint)
        |_| out.put_text("692-2G520-0280-501", length);
    device nvmlDeviceGetIndex(out: Out<c_uint>) |device| out.put(device.index);
    device nvmlDeviceGetMinorNumber(out: Out<c_uint>)
        |device| out.put(device.gpu.minor_number.unwrap_or(device.index));
    device nvmlDeviceGetPciInfo_v3(out: Out<pci::Info>)
        |device| out.put(address(device.scene, device.index).info());
    device nvmlDeviceGetBrand(out: Out<c_uint>) |_| out.put(14);
    device nvmlDeviceGetArchitecture(out: Out<c_uint>) |_| out.put(9);
    device nvmlDeviceGetCudaComputeCapability(major: Out<c_int>, minor: Out<c_int>) |_| {
        major.put(9)?;
        minor.put(0)
    };

    // Memory.
    instance nvmlDeviceGetMemoryInfo(out: Out<Memory>) |device| {
        let memory = memory(device)?;
        out.put(Memory {
            total: memory.total,
            free: memory.free,
            used: memory.used.saturating_add(memory.reserved),
        })
    };
    instance nvmlDeviceGetMemoryInfo_v2(out: Out<Memory2>) |device| {
        check_version(out)?;
        out.put(limited(device, memory(device)?)?)
    };
    device nvmlDeviceGetBAR1MemoryInfo(out: Out<Bar1>)
        |_| out.put(Bar1 { total: 256 << 20, free: 255 << 20, used: 1 << 20 });
    device nvmlDeviceGetConfComputeMemSizeInfo(out: Out<ConfidentialMemory>) |device| {
        let unprotected_kib = memory(device)?.total >> 10;
        out.put(ConfidentialMemory { protected_kib: 0, unprotected_kib })
    };

    // Utilization.
    device nvmlDeviceGetUtilizationRates(out: Out<Utilization>) |device| {
        let rates = without_mig(device).and(supported(device.gpu.utilization.as_ref()))?;
        out.put(Utilization {
            gpu: device.whole(Some(&rates.gpu))?,
            memory: device.whole(Some(&rates.memory))?,
        })
    };
    device nvmlDeviceGetEncoderUtilization(out: Out<c_uint>, period_us: Out<c_uint>) |device|
        unused_engine(device, out, period_us);
    device nvmlDeviceGetDecoderUtilization(out: Out<c_uint>, period_us: Out<c_uint>) |device|
        unused_engine(device, out, period_us);
    device nvmlDeviceGetJpgUtilization(out: Out<c_uint>, period_us: Out<c_uint>) |device|
        unused_engine(device, out, period_us);
    device nvmlDeviceGetOfaUtilization(out: Out<c_uint>, period_us: Out<c_uint>) |device|
        unused_engine(device, out, period_us);
    device nvmlDeviceGetProcessUtilization(
        out: Out<Sample>, count: Out<c_uint>, last_seen: c_ulonglong
    ) |device| utilization::answer(device, out, count, last_seen);

    device nvmlDeviceGetAccountingMode(out: Out<c_uint>)
        |device| out.put(supported(device.gpu.accounting)?.into());
    device nvmlDeviceGetAccountingStats(pid: c_uint, out: Out<AccountingStats>) |device| {
        if device.gpu.accounting != Some(true) {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut processes = device.gpu.processes.iter();
        let process = processes.find(|process| process.pid == pid);
        let account = process.and_then(|process| process.account).ok_or(Code::NOT_FOUND)?;
        out.put(AccountingStats::from_account(account))
    };

    // Processes.
    instance nvmlDeviceGetComputeRunningProcesses_v3(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Compute, Version::V3, count, out);
    instance nvmlDeviceGetComputeRunningProcesses_v2(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Compute, Version::V2, count, out);
    instance nvmlDeviceGetComputeRunningProcesses(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Compute, Version::V1, count, out);
    instance nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Graphics, Version::V3, count, out);
    instance nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Graphics, Version::V2, count, out);
    instance nvmlDeviceGetGraphicsRunningProcesses(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Graphics, Version::V1, count, out);
    instance nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Mps, Version::V3, count, out);
    instance nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Mps, Version::V2, count, out);
    instance nvmlDeviceGetMPSComputeRunningProcesses(count: Out<c_uint>, out: Records)
        |device| processes::answer(device, List::Mps, Version::V1, count, out);
    instance nvmlDeviceGetRunningProcessDetailList(list: Out<DetailList>)
        |device| processes::answer_details(device, list);

    // Power, temperature, clocks.
    device nvmlDeviceGetPowerUsage(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.power.as_ref())?);
    device nvmlDeviceGetEnforcedPowerLimit(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.power_limit.as_ref())?);
    device nvmlDeviceGetPowerManagementLimit(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.power_limit.as_ref())?);
    device nvmlDeviceGetPowerManagementDefaultLimit(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.power_limit.as_ref())?);
    device nvmlDeviceGetTemperature(sensor: c_uint, out: Out<c_uint>) |device| {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        out.put(device.whole(device.gpu.temperature.as_ref())?)
    };
    device nvmlDeviceGetTemperatureV(out: Out<Temperature>) |device| {
        let temperature = check_version(out)?;
        if temperature.sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let degrees = device.now(device.gpu.temperature.as_ref())? as c_int;
        out.put(Temperature { degrees, ..temperature })
    };
    device nvmlDeviceGetTemperatureThreshold(which: c_uint, out: Out<c_uint>) |_| match which {
        0 => out.put(92),
        1 => out.put(87),
        _ => Err(Code::NOT_SUPPORTED),
    };
    device nvmlDeviceGetClockInfo(_which: c_uint, out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.clock.as_ref())?);
    device nvmlDeviceGetMaxClockInfo(_which: c_uint, out: Out<c_uint>) |_| out.put(1980);
    device nvmlDeviceGetPerformanceState(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.pstate.as_ref())?);
    device nvmlDeviceGetPowerState(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.pstate.as_ref())?);
    device nvmlDeviceGetFanSpeed(out: Out<c_uint>)
        |device| out.put(device.whole(device.gpu.fan.as_ref())?);
    device nvmlDeviceGetFanSpeed_v2(fan: c_uint, out: Out<c_uint>) |device| {
        let speed = device.whole(device.gpu.fan.as_ref())?;
        if fan == 0 { out.put(speed) } else { Err(Code::INVALID_ARGUMENT) }
    };
    device nvmlDeviceGetNumFans(out: Out<c_uint>)
        |device| out.put(c_uint::from(device.gpu.fan.is_some()));

    // Modes.
    device nvmlDeviceGetComputeMode(out: Out<c_uint>)
        |device| out.put(supported(device.gpu.compute_mode)? as c_uint);
    system nvmlDeviceQueryDrainState(info: Out<pci::Info>, out: Out<c_uint>) |call| {
        let (wanted, scene) = (info.get()?.address(), call.scene());
        let index = (0..scene.gpus.len() as u32).find(|&index| address(scene, index) == wanted);
        let gpu = &scene.gpus[index.ok_or(Code::NOT_FOUND)? as usize];
        out.put(supported(gpu.drained)?.into())
    };
    device nvmlDeviceGetFieldValues(count: c_int, values: Out<FieldValue>) |device| {
        let asked = values.get()?;
        if count != 1 || asked.field != FieldValue::RECOVERY_ACTION {
            return Err(Code::NOT_SUPPORTED);
        }
        values.put(asked.with(device.gpu.recovery_action))
    };
    device nvmlDeviceGetPersistenceMode(out: Out<c_uint>)
        |device| out.put(supported(device.gpu.persistence)?.into());
    device nvmlDeviceGetDisplayActive(out: Out<c_uint>) |_| out.put(0);
    device nvmlDeviceGetDisplayMode(out: Out<c_uint>) |_| out.put(0);
    device nvmlDeviceGetEccMode(current: Out<c_uint>, pending: Out<c_uint>) |_| {
        current.put(1)?;
        pending.put(1)
    };
    device nvmlDeviceGetTotalEccErrors(_kind: c_uint, _counter: c_uint, out: Out<c_ulonglong>)
        |_| out.put(0);
    device nvmlDeviceGetMigMode(current: Out<c_uint>, pending: Out<c_uint>) |device| {
        let on = supported(device.gpu.mig)?;
        current.put(on.into())?;
        pending.put(on.into())
    };

    // MIG devices.
    device nvmlDeviceGetMaxMigDeviceCount(out: Out<c_uint>)
        |device| out.put(if device.gpu.mig == Some(true) { 7 } else { 0 });
    device nvmlDeviceGetMigDeviceHandleByIndex(index: c_uint, out: Out<Handle>) |device| {
        supported(device.gpu.mig)?;
        let mig = device.gpu.mig_device_at(index).ok_or(Code::NOT_FOUND)?;
        out.put(Handle::for_mig_device(device.index, mig.index))
    };
    instance nvmlDeviceIsMigDeviceHandle(out: Out<c_uint>)
        |device| out.put(device.mig.is_some().into());
    instance nvmlDeviceGetDeviceHandleFromMigDeviceHandle(out: Out<Handle>) |device| {
        device.mig.ok_or(Code::INVALID_ARGUMENT)?;
        out.put(Handle::for_gpu(device.index))
    };
    instance nvmlDeviceGetGpuInstanceId(out: Out<c_uint>)
        |device| out.put(supported(device.mig)?.gpu_instance_id);
    instance nvmlDeviceGetComputeInstanceId(out: Out<c_uint>)
        |device| out.put(supported(device.mig)?.compute_instance_id);

    // PCIe.
    device nvmlDeviceGetPcieThroughput(_direction: c_uint, out: Out<c_uint>) |_| out.put(0);
    device nvmlDeviceGetCurrPcieLinkGeneration(out: Out<c_uint>) |_| out.put(5);
    device nvmlDeviceGetCurrPcieLinkWidth(out: Out<c_uint>) |_| out.put(16);
    device nvmlDeviceGetMaxPcieLinkGeneration(out: Out<c_uint>) |_| out.put(5);
    device nvmlDeviceGetMaxPcieLinkWidth(out: Out<c_uint>) |_| out.put(16);

    // Others.
    device nvmlDeviceGetCurrentClocksThrottleReasons(out: Out<c_ulonglong>) |_| out.put(0x4);
    device nvmlDeviceGetNumaNodeId(out: Out<c_uint>)
        |device| out.put(supported(device.gpu.numa_node)?);
}

/// The only function that does not return a return code. nvtop requires it.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(_code: c_uint) -> *const c_char {
    c"an error of the mock driver".as_ptr()
}

/// Sampling period of the video engines.
const SAMPLING_US: c_uint = 166_666;

/// Answers for a video engine, whose utilization is always 0.
fn unused_engine(device: &Device<'_>, out: Out<c_uint>, period_us: Out<c_uint>) -> Answer {
    without_mig(device)?;
    out.put(0)?;
    period_us.put(SAMPLING_US)
}

fn supported<T>(value: Option<T>) -> Result<T, Code> {
    value.ok_or(Code::NOT_SUPPORTED)
}

/// Fails while MIG is on, because NVML then does not support utilization.
fn without_mig(device: &Device<'_>) -> Answer {
    match device.gpu.mig {
        Some(true) => Err(Code::NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// Fails if an unprivileged caller queries the whole GPU while MIG is on. Every caller can query a MIG device
/// (nvml.h, notes on memory info and process lists).
pub(crate) fn may_see_all(device: &Device<'_>) -> Answer {
    let is_whole = device.mig.is_none() && device.gpu.mig == Some(true);
    if is_whole && !device.scene.driver.privileged {
        return Err(Code::NO_PERMISSION);
    }
    Ok(())
}

/// Returns the name of the GPU or the MIG device.
fn name(device: &Device<'_>) -> String {
    let gpu = &device.gpu.name;
    match device.mig {
        None => gpu.clone(),
        Some(mig) => {
            let named = mig.name.clone();
            named.unwrap_or_else(|| format!("{gpu} MIG {}", mig.profile))
        }
    }
}

/// Makes text invalid UTF-8 if the GPU is garbled.
fn garbled(device: &Device<'_>, text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    if device.gpu.garbled {
        bytes.splice(0..0, [0xff, 0xc3, 0x28]);
    }
    bytes
}

fn mig_uuid(gpu: u32, mig: &MigDevice) -> String {
    let named = mig.uuid.clone();
    named.unwrap_or_else(|| format!("MIG-00000000-0000-4000-8{:03x}-{gpu:012x}", mig.index))
}

fn by_index(scene: &Scene, index: u32) -> Result<u32, Code> {
    let exists = (index as usize) < scene.gpus.len();
    exists.then_some(index).ok_or(Code::INVALID_ARGUMENT)
}

/// Returns the index of the first GPU for which `matches` returns `true`.
fn by_text(
    scene: &Scene,
    text: Out<c_char>,
    matches: impl Fn(&Scene, u32, &str) -> bool,
) -> Result<u32, Code> {
    let text = text.text()?;
    (0..scene.gpus.len() as u32).find(|&index| matches(scene, index, &text)).ok_or(Code::NOT_FOUND)
}

fn is_at(scene: &Scene, index: u32, text: &str) -> bool {
    Address::parse(text) == Some(address(scene, index))
}

fn uuid(scene: &Scene, index: u32) -> String {
    match &scene.gpus[index as usize].uuid {
        Some(uuid) => uuid.clone(),
        None => format!("GPU-00000000-0000-4000-8000-{index:012x}"),
    }
}

fn address(scene: &Scene, index: u32) -> Address {
    let written = scene.gpus[index as usize].pci.as_deref();
    let written = written.and_then(Address::parse);
    written.unwrap_or_else(|| Address::of_index(index))
}

fn memory(device: &Device<'_>) -> Result<Memory2, Code> {
    may_see_all(device)?;
    let (memory, processes): (_, Vec<&Process>) = match device.mig {
        Some(mig) => (&mig.memory, mig.processes.iter().collect()),
        None => (supported(device.gpu.memory.as_ref())?, device.gpu.all_processes().collect()),
    };
    let now = |value| device.now(Some(value)).map(|bytes| bytes as u64);
    let (total, reserved) = (now(&memory.total)?, now(&memory.reserved)?);
    let used = match &memory.used {
        Some(used) => now(used)?,
        None => processes
            .into_iter()
            .filter_map(|process| process.used_bytes.as_ref())
            .try_fold(now(&memory.unattributed)?, |sum: u64, used| {
                Ok(sum.saturating_add(now(used)?))
            })?,
    };
    let free = total.saturating_sub(used).saturating_sub(reserved);
    Ok(Memory2 { version: Memory2::VERSION, total, reserved, free, used })
}

/// Applies the limit of the caller's cgroup, if it is lower than the GPU's memory, to memory info v2.
fn limited(device: &Device<'_>, whole: Memory2) -> Result<Memory2, Code> {
    let memory = device.gpu.memory.as_ref().filter(|_| device.mig.is_none());
    let Some(limit) = memory.and_then(|memory| memory.limit.as_ref()) else {
        return Ok(whole);
    };
    let now = |value| device.now(Some(value)).map(|bytes| bytes as u64);
    let (total, used) = (now(&limit.hard)?, now(&limit.used)?);
    if total >= whole.total {
        return Ok(whole);
    }
    Ok(Memory2 { total, reserved: 0, used, free: total.saturating_sub(used), ..whole })
}
