//! The CUDA driver's checkpoint functions, which move a process's GPU state to host memory and back.
//!
//! The functions cross a C ABI, so this is the only file in `park` that contains `unsafe`. They are declared here,
//! because the driver is found at run time. In `cuda.h` of 12.8 to 13.5, each argument struct has 64 bytes, and unused
//! bytes must be 0. Only the helper process calls them, because a call can hang, and can fault in libcuda if the target
//! exits (CRIU issue 3076). This module decides nothing; see `helper`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use libloading::Library;

use crate::host::has_gained_rights;
use crate::model::process::ParkState;

/// Environment variable that overrides [`LIBRARY`]. Ignored if gpumem has privileges that its caller lacks, because the
/// caller's library would gain them.
const VARIABLE: &str = "GPUMEM_CUDA_LIBRARY";
const LIBRARY: &str = "libcuda.so.1";
/// Version of the driver's interface (CUDA 12.8, driver 570) in which the functions appeared.
const VERSION: c_int = 12_080;

const INIT: &str = "cuInit";
const GET_VERSION: &str = "cuDriverGetVersion";
const RESTORE_THREAD: &str = "cuCheckpointProcessGetRestoreThreadId";
const STATE: &str = "cuCheckpointProcessGetState";
const LOCK: &str = "cuCheckpointProcessLock";
const CHECKPOINT: &str = "cuCheckpointProcessCheckpoint";
const RESTORE: &str = "cuCheckpointProcessRestore";
const UNLOCK: &str = "cuCheckpointProcessUnlock";

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} returned {code} ({})", meaning(*code))]
pub struct CudaError {
    pub call: &'static str,
    pub code: c_int,
}

const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
/// The GPU work of the process did not end within the time limit of a lock.
pub const NOT_READY: c_int = 600;

fn meaning(code: c_int) -> &'static str {
    match code {
        INVALID_VALUE => "invalid value: the process may not use CUDA",
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

/// Arguments of the lock, checkpoint, restore and unlock calls. All bytes are zero, except for the timeout of a lock.
#[repr(C, align(8))]
struct Arguments([u8; 64]);

pub struct Cuda(Library);

impl Cuda {
    /// Loads the driver's library. Returns the reason if the library cannot be loaded, is too old, or lacks a function.
    pub fn load() -> Result<Self, String> {
        let chosen = std::env::var_os(VARIABLE).filter(|_| !has_gained_rights());
        // SAFETY: loading runs the library's constructors. It is the installed driver, or a library that the caller
        // chose and could load into any of their own programs.
        let library = unsafe { Library::new(chosen.unwrap_or_else(|| LIBRARY.into())) }
            .map_err(|error| format!("the CUDA driver cannot be loaded: {error}"))?;
        for name in [INIT, GET_VERSION, RESTORE_THREAD, STATE, LOCK, CHECKPOINT, RESTORE, UNLOCK] {
            // SAFETY: the symbol is not used.
            unsafe { library.get::<*const ()>(name.as_bytes()) }
                .map_err(|_| format!("the driver lacks {name}; parking requires driver 570"))?;
        }
        let (cuda, mut version) = (Self(library), 0);
        // SAFETY: the function has this type in `cuda.h`. It needs no initialisation and fills `version`.
        let code = unsafe { cuda.call::<*mut c_int>(GET_VERSION, &raw mut version) };
        match code.is_ok() && version >= VERSION {
            true => Ok(cuda),
            false => {
                Err("the driver is older than 570, which added the checkpoint functions".into())
            }
        }
    }

    /// Initialises the driver in this process, as a restore requires. Creates no context, because a context would take
    /// GPU memory.
    pub fn init(&self) -> Result<(), CudaError> {
        // SAFETY: the function has this type in `cuda.h`, and the flags must be 0.
        unsafe { self.call::<c_uint>(INIT, 0) }
    }

    /// Returns the ID of the thread with which the process performs checkpoint operations. Fails if the process does
    /// not use CUDA.
    pub fn restore_thread(&self, pid: u32) -> Result<u32, CudaError> {
        let mut thread: c_int = 0;
        // SAFETY: the function has this type in `cuda.h`, and fills `thread`.
        unsafe { self.call_for(RESTORE_THREAD, pid, &mut thread)? };
        u32::try_from(thread).map_err(|_| CudaError { call: RESTORE_THREAD, code: INVALID_VALUE })
    }

    pub fn state(&self, pid: u32) -> Result<ParkState, CudaError> {
        let mut state: c_uint = 0;
        // SAFETY: the function has this type in `cuda.h`, and fills `state`.
        unsafe { self.call_for(STATE, pid, &mut state)? };
        Ok(match state {
            0 => ParkState::Running,
            1 => ParkState::Locked,
            2 => ParkState::Parked,
            3 => ParkState::Lost,
            // A state of a later driver, such as "restoring".
            _ => ParkState::Unknown,
        })
    }

    /// Blocks new CUDA calls of the process, and waits until its GPU work has ended. If that takes longer than
    /// `timeout_ms`, fails with [`NOT_READY`] and leaves the process running.
    pub fn lock(&self, pid: u32, timeout_ms: u32) -> Result<(), CudaError> {
        let mut arguments = Arguments([0; 64]);
        arguments.0[..4].copy_from_slice(&timeout_ms.to_ne_bytes());
        // SAFETY: the arguments have the size, the alignment and the zeroed reserved bytes that `cuda.h` requires.
        unsafe { self.call_for(LOCK, pid, &mut arguments) }
    }

    pub fn checkpoint(&self, pid: u32) -> Result<(), CudaError> {
        // SAFETY: as for `lock`.
        unsafe { self.call_for(CHECKPOINT, pid, &mut Arguments([0; 64])) }
    }

    pub fn restore(&self, pid: u32) -> Result<(), CudaError> {
        // SAFETY: as for `lock`.
        unsafe { self.call_for(RESTORE, pid, &mut Arguments([0; 64])) }
    }

    pub fn unlock(&self, pid: u32) -> Result<(), CudaError> {
        // SAFETY: as for `lock`.
        unsafe { self.call_for(UNLOCK, pid, &mut Arguments([0; 64])) }
    }

    /// Calls a function.
    ///
    /// # Safety
    ///
    /// The function must take one argument of type `T`, and the argument must be valid for it.
    unsafe fn call<T>(&self, call: &'static str, argument: T) -> Result<(), CudaError> {
        type Function<T> = unsafe extern "C" fn(T) -> c_int;
        // SAFETY: the caller guarantees the type and the argument.
        check(call, unsafe {
            self.0.get::<Function<T>>(call.as_bytes()).map(|function| function(argument))
        })
    }

    /// Calls a function on a process.
    ///
    /// # Safety
    ///
    /// The function must take a pid and a pointer to `T`, and the argument must be valid for it.
    unsafe fn call_for<T>(
        &self,
        call: &'static str,
        pid: u32,
        argument: &mut T,
    ) -> Result<(), CudaError> {
        type Function<T> = unsafe extern "C" fn(c_int, *mut T) -> c_int;
        let pid = c_int::try_from(pid).map_err(|_| CudaError { call, code: INVALID_VALUE })?;
        // SAFETY: the caller guarantees the type and the argument.
        check(call, unsafe {
            self.0.get::<Function<T>>(call.as_bytes()).map(|function| function(pid, argument))
        })
    }
}

fn check(call: &'static str, code: Result<c_int, libloading::Error>) -> Result<(), CudaError> {
    match code {
        Ok(0) => Ok(()),
        Ok(code) => Err(CudaError { call, code }),
        Err(_) => Err(CudaError { call, code: -1 }),
    }
}
