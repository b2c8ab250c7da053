//! The CUDA driver's checkpoint functions, which move a process's GPU state to host memory and back.
//!
//! The functions cross a C ABI, so this is the only file in `park` that contains `unsafe`. They are declared here,
//! because their argument structs follow the driver that is found at run time: in all versions since 12.8, each has 64
//! bytes, and unused bytes must be 0 (`cuda.h` of 12.8 to 13.5). Only the helper process calls them, because a call can
//! hang, and can fault in libcuda if the target exits (CRIU issue 3076). This module decides nothing; see `helper`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::host::has_gained_rights;

/// Overrides [`LIBRARY`]. Ignored if gpumem has rights that its caller lacks, because the library would gain them.
pub const VARIABLE: &str = "GPUMEM_CUDA_LIBRARY";
const LIBRARY: &str = "libcuda.so.1";
/// Version of the driver's interface (CUDA 12.8, driver 570) in which the functions appeared.
pub const VERSION: c_int = 12_080;

/// State of a process, as the driver reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CudaState {
    Running,
    /// CUDA calls of the process block. Its memory is on the GPU.
    Locked,
    /// The memory is on the host. CUDA calls block.
    Checkpointed,
    /// The CUDA state is lost.
    Failed,
    /// A state of a later driver, such as "restoring".
    Other(u32),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} returned {code} ({})", meaning(*code))]
pub struct CudaError {
    pub call: &'static str,
    pub code: c_int,
}

/// The call found no memory, or, for a lock, work that did not end in time.
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_READY: c_int = 600;

fn meaning(code: c_int) -> &'static str {
    match code {
        1 => "invalid value: the process may not use CUDA",
        OUT_OF_MEMORY => "out of memory",
        3 => "not initialised",
        34 => "stub library",
        201 => "invalid context",
        304 => "operating system error",
        401 => "illegal state",
        NOT_READY => "work did not end in time",
        800 => "not permitted",
        801 => "not supported",
        _ => "unknown error",
    }
}

/// Arguments of each function.
#[repr(C, align(8))]
struct Arguments([u8; 64]);

type OfProcess = unsafe extern "C" fn(c_int, *mut Arguments) -> c_int;
type Get<T> = unsafe extern "C" fn(c_int, *mut T) -> c_int;
type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

pub struct Cuda {
    init: Init,
    restore_thread: Get<c_int>,
    state: Get<c_uint>,
    lock: OfProcess,
    checkpoint: OfProcess,
    restore: OfProcess,
    unlock: OfProcess,
    /// The functions are valid while the library is loaded.
    _library: Library,
}

impl Cuda {
    /// Loads the driver's library. Returns why parking is impossible if the driver lacks a function.
    pub fn load() -> Result<Self, String> {
        let chosen = std::env::var_os(VARIABLE).filter(|_| !has_gained_rights());
        let path = chosen.map_or_else(|| Path::new(LIBRARY).to_owned(), PathBuf::from);
        // SAFETY: loading runs the library's constructors. It is the installed driver, or the library that the caller
        // chose and could load into any program of theirs.
        let library = unsafe { Library::new(&path) }
            .map_err(|error| format!("the CUDA driver cannot be loaded: {error}"))?;
        let old =
            || "the driver is older than 570, which added the checkpoint functions".to_owned();
        let mut version = 0;
        // SAFETY: the type is that of `cuDriverGetVersion` in `cuda.h`. It needs no initialisation and fills `version`.
        let code = unsafe {
            let get = library.get::<DriverGetVersion>(b"cuDriverGetVersion\0");
            get.map_err(|_| old())?(&mut version)
        };
        if code != 0 || version < VERSION {
            return Err(old());
        }
        // SAFETY: each type is that of the function in `cuda.h`, and `library` is stored beside the functions.
        unsafe {
            let get = library.get::<GetProcAddress>(b"cuGetProcAddress_v2\0");
            let get = *get.map_err(|_| old())?;
            Ok(Self {
                init: std::mem::transmute::<*mut c_void, Init>(find(get, c"cuInit")?),
                restore_thread: std::mem::transmute::<*mut c_void, Get<c_int>>(find(
                    get,
                    c"cuCheckpointProcessGetRestoreThreadId",
                )?),
                state: std::mem::transmute::<*mut c_void, Get<c_uint>>(find(
                    get,
                    c"cuCheckpointProcessGetState",
                )?),
                lock: of_process(find(get, c"cuCheckpointProcessLock")?),
                checkpoint: of_process(find(get, c"cuCheckpointProcessCheckpoint")?),
                restore: of_process(find(get, c"cuCheckpointProcessRestore")?),
                unlock: of_process(find(get, c"cuCheckpointProcessUnlock")?),
                _library: library,
            })
        }
    }

    /// Initialises the driver in this process, as a restore requires. Creates no context, which would take memory of
    /// the GPU.
    pub fn init(&self) -> Result<(), CudaError> {
        // SAFETY: the flags must be 0.
        check("cuInit", unsafe { (self.init)(0) })
    }

    /// Returns the thread of the process that performs operations. Fails if the process does not use CUDA.
    pub fn restore_thread(&self, pid: u32) -> Result<u32, CudaError> {
        let call = "cuCheckpointProcessGetRestoreThreadId";
        let mut thread: c_int = 0;
        // SAFETY: the call fills `thread`.
        check(call, unsafe { (self.restore_thread)(number(pid, call)?, &mut thread) })?;
        u32::try_from(thread).map_err(|_| CudaError { call, code: 1 })
    }

    pub fn state(&self, pid: u32) -> Result<CudaState, CudaError> {
        let call = "cuCheckpointProcessGetState";
        let mut state: c_uint = 0;
        // SAFETY: the call fills `state`.
        check(call, unsafe { (self.state)(number(pid, call)?, &mut state) })?;
        Ok(match state {
            0 => CudaState::Running,
            1 => CudaState::Locked,
            2 => CudaState::Checkpointed,
            3 => CudaState::Failed,
            other => CudaState::Other(other),
        })
    }

    /// Blocks the process's CUDA calls once its work has ended. If that takes longer than `timeout_ms`, fails with
    /// [`NOT_READY`] and leaves the process running.
    pub fn lock(&self, pid: u32, timeout_ms: u32) -> Result<(), CudaError> {
        let mut arguments = Arguments([0; 64]);
        arguments.0[..4].copy_from_slice(&timeout_ms.to_ne_bytes());
        call("cuCheckpointProcessLock", self.lock, pid, arguments)
    }

    pub fn checkpoint(&self, pid: u32) -> Result<(), CudaError> {
        call("cuCheckpointProcessCheckpoint", self.checkpoint, pid, Arguments([0; 64]))
    }

    pub fn restore(&self, pid: u32) -> Result<(), CudaError> {
        call("cuCheckpointProcessRestore", self.restore, pid, Arguments([0; 64]))
    }

    pub fn unlock(&self, pid: u32) -> Result<(), CudaError> {
        call("cuCheckpointProcessUnlock", self.unlock, pid, Arguments([0; 64]))
    }
}

/// Returns a function of [`VERSION`]. An old driver then reports that it lacks the function, and does not return a stub.
fn find(get: GetProcAddress, name: &CStr) -> Result<*mut c_void, String> {
    let (mut found, mut status) = (std::ptr::null_mut(), 0);
    // SAFETY: the name ends with 0, and the call fills `found` and `status`.
    let code = unsafe { get(name.as_ptr(), &mut found, VERSION, 0, &mut status) };
    match code == 0 && status == 0 && !found.is_null() {
        true => Ok(found),
        false => {
            Err(format!("the driver lacks {}; parking needs driver 570", name.to_string_lossy()))
        }
    }
}

/// # Safety
///
/// The pointer must be that of a function with this type.
unsafe fn of_process(function: *mut c_void) -> OfProcess {
    // SAFETY: the caller guarantees the type. A function pointer has the size of a data pointer on Linux.
    unsafe { std::mem::transmute::<*mut c_void, OfProcess>(function) }
}

fn call(
    call: &'static str,
    function: OfProcess,
    pid: u32,
    mut arguments: Arguments,
) -> Result<(), CudaError> {
    // SAFETY: the arguments have the size, the alignment and the zeroed reserve that the driver expects.
    check(call, unsafe { function(number(pid, call)?, &mut arguments) })
}

fn number(pid: u32, call: &'static str) -> Result<c_int, CudaError> {
    c_int::try_from(pid).map_err(|_| CudaError { call, code: 1 })
}

fn check(call: &'static str, code: c_int) -> Result<(), CudaError> {
    if code == 0 { Ok(()) } else { Err(CudaError { call, code }) }
}
