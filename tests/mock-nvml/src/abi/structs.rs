//! Structs of callers, with the layout in `nvml.h`.

use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong};

use super::Out;
use crate::answer::Code;
use crate::scene::Account;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) total: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memory2 {
    pub(super) version: c_uint,
    pub(super) total: c_ulonglong,
    pub(super) reserved: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlBAR1Memory_t`.
#[repr(C)]
pub(super) struct Bar1 {
    pub(super) total: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlConfComputeMemSizeInfo_t`.
#[repr(C)]
pub(super) struct ConfidentialMemory {
    pub(super) protected_kib: c_ulonglong,
    pub(super) unprotected_kib: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub(super) struct Utilization {
    pub(super) gpu: c_uint,
    pub(super) memory: c_uint,
}

/// `nvmlFieldValue_t` with an unsigned integer as its value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FieldValue {
    pub(super) field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    value_type: c_uint,
    code: c_uint,
    value: c_ulonglong,
}

impl FieldValue {
    pub(super) const RECOVERY_ACTION: c_uint = 230;

    /// Sets the value, or the return code `NOT_SUPPORTED` if there is none.
    pub(super) fn with(self, value: Option<u32>) -> Self {
        let code = if value.is_none() { 3 } else { 0 };
        Self { value_type: 1, code, value: value.unwrap_or_default().into(), ..self }
    }
}

/// `nvmlTemperature_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Temperature {
    pub(super) version: c_uint,
    pub(super) sensor: c_uint,
    pub(super) degrees: c_int,
}

/// `nvmlAccountingStats_t`.
#[repr(C)]
pub(super) struct AccountingStats {
    gpu: c_uint,
    memory: c_uint,
    max_memory: c_ulonglong,
    time_ms: c_ulonglong,
    start_us: c_ulonglong,
    is_running: c_uint,
    reserved: [c_uint; 5],
}

impl AccountingStats {
    pub(super) fn from_account(account: Account) -> Self {
        Self {
            gpu: account.gpu,
            memory: 0,
            max_memory: 0,
            // NVML reports 0 while the process is running.
            time_ms: u64::from(account.has_ended),
            start_us: account.start_us,
            is_running: (!account.has_ended).into(),
            reserved: [0; 5],
        }
    }
}

/// Returns the version field of a struct, which contains the struct's size in the low bytes and the version in the
/// top byte.
pub(crate) const fn version_of<T>(version: c_uint) -> c_uint {
    size_of::<T>() as c_uint | version << 24
}

/// A struct whose first field contains the version that the caller has set.
pub(super) trait Versioned: Copy {
    const VERSION: c_uint;
}

impl Versioned for Memory2 {
    const VERSION: c_uint = version_of::<Self>(2);
}

impl Versioned for Temperature {
    const VERSION: c_uint = version_of::<Self>(1);
}

/// Reads a versioned struct. The version must be checked before the rest is read, because other versions can be
/// shorter.
pub(super) fn check_version<T: Versioned>(out: Out<T>) -> Result<T, Code> {
    if out.cast::<c_uint>().get()? == T::VERSION {
        out.get()
    } else {
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    }
}
