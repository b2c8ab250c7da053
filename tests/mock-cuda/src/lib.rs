//! A CUDA driver for tests: a shared library with the C ABI of `libcuda.so.1` and its checkpoint functions.
//!
//! `GPUMEM_MOCK_CUDA` contains the path of a [`Script`]: the state of each process, and the faults of calls. The driver
//! moves the rows of processes out of and into the scene of the mock NVML (`GPUMEM_MOCK_SCENE`). A process is treated as
//! a CUDA process if it has rows in the scene, or rows that a checkpoint has saved in the script. The script is shared by
//! all processes and locked during each change.

#![allow(non_snake_case, reason = "the symbols have CUDA's names")]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, thread};

use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

pub use crate::library::library;

mod library;

pub const RUNNING: u32 = 0;
pub const LOCKED: u32 = 1;
pub const CHECKPOINTED: u32 = 2;
pub const FAILED: u32 = 3;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const OPERATING_SYSTEM: c_int = 304;
const ILLEGAL_STATE: c_int = 401;
const UNKNOWN: c_int = 999;

/// The state of the driver, and how it answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Script {
    /// Version of CUDA, as 1000 × major + 10 × minor.
    pub version: i32,
    pub faults: Vec<CallFault>,
    pub processes: BTreeMap<u32, CudaProcess>,
    /// Names of the functions that were called, with pids.
    pub calls: Vec<(String, u32)>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CudaProcess {
    start_ticks: u64,
    pub state: u32,
    /// Rows that were moved out of the scene, with the indexes of their GPUs.
    pub saved: Vec<(usize, Process)>,
    /// Set by a restore that failed for lack of memory, which cannot be repeated.
    pub is_stuck: bool,
}

/// How a function answers. The first fault that matches a call applies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CallFault {
    /// End of the function's name, such as `Lock`; empty for all functions.
    pub function: String,
    /// Pid of the process that the call is about, or `None` for all processes.
    pub pid: Option<u32>,
    /// Return code, or `None` for the usual answer.
    pub code: Option<i32>,
    /// Set if the function takes effect although it returns `code`.
    pub has_effect: bool,
    /// State of the process after the call.
    pub state: Option<u32>,
    pub delay_ms: u64,
    pub hangs: bool,
    pub kills_target: bool,
    pub kills_caller: bool,
    /// Set if the call takes effect before it kills the target or the caller.
    pub kills_late: bool,
    /// Set if the rows of the process stay in the scene.
    pub keeps_rows: bool,
    /// Number of calls to which the fault applies, or `None` for all.
    pub times: Option<u32>,
}

impl CallFault {
    pub fn error(function: &str, code: i32) -> Self {
        Self { function: function.to_owned(), code: Some(code), ..Self::default() }
    }
}

impl Default for Script {
    fn default() -> Self {
        Self { version: 13_000, faults: Vec::new(), processes: BTreeMap::new(), calls: Vec::new() }
    }
}

impl Script {
    /// Changes the script at `path`, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, written or locked.
    pub fn change<T>(path: &Path, change: impl FnOnce(&mut Self) -> T) -> io::Result<T> {
        let _lock = lock(path)?;
        let mut script = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error),
        };
        let result = change(&mut script);
        let beside = path.with_extension("new");
        fs::write(&beside, serde_json::to_vec(&script)?)?;
        fs::rename(&beside, path)?;
        Ok(result)
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path.with_extension("lock"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn variable(name: &str) -> io::Result<PathBuf> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Answers a call about a process. `apply` gets the process, the scene and the fault, and returns the answer.
fn answer(
    function: &str,
    pid: c_int,
    apply: impl FnOnce(&mut CudaProcess, &mut Scene, &CallFault) -> Result<(), c_int>,
) -> c_int {
    let pid = u32::try_from(pid).unwrap_or(0);
    try_answer(function, pid, apply).unwrap_or(UNKNOWN)
}

fn try_answer(
    function: &str,
    pid: u32,
    apply: impl FnOnce(&mut CudaProcess, &mut Scene, &CallFault) -> Result<(), c_int>,
) -> io::Result<c_int> {
    let path = variable("GPUMEM_MOCK_CUDA")?;
    let fault = Script::change(&path, |script| {
        script.calls.push((function.to_owned(), pid));
        let mut faults = script.faults.iter_mut();
        let fault = faults.find(|fault| {
            function.ends_with(&fault.function)
                && fault.pid.is_none_or(|target| target == pid)
                && fault.times.is_none_or(|times| times > 0)
        })?;
        fault.times = fault.times.map(|times| times - 1);
        Some(fault.clone())
    })?;
    let fault = fault.unwrap_or_default();
    thread::sleep(Duration::from_millis(fault.delay_ms));
    if fault.hangs {
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
    let kill = |pid: u32| {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.map(|pid| kill_process(pid, Signal::KILL))
    };
    let kill_if = |is_due: bool| {
        if is_due && fault.kills_caller {
            kill(std::process::id());
        }
        if is_due && fault.kills_target {
            kill(pid);
        }
    };
    kill_if(!fault.kills_late);
    let Some(start_ticks) = start_ticks(pid) else { return Ok(INVALID_VALUE) };
    let scene_path = variable("GPUMEM_MOCK_SCENE")?;
    let answer = Script::change(&path, |script| -> io::Result<c_int> {
        let mut scene = Scene::from_json(&fs::read(&scene_path)?)?;
        let before = scene.clone();
        let process = script.processes.entry(pid).or_default();
        if process.start_ticks != start_ticks {
            *process = CudaProcess { start_ticks, ..CudaProcess::default() };
        }
        let is_listed = scene.gpus.iter().flat_map(|gpu| &gpu.processes).any(|row| row.pid == pid);
        if !is_listed && process.saved.is_empty() {
            return Ok(INVALID_VALUE);
        }
        let usual = match fault.code.is_none() || fault.has_effect {
            true => apply(process, &mut scene, &fault).err().unwrap_or(0),
            false => 0,
        };
        process.state = fault.state.unwrap_or(process.state);
        if scene != before {
            scene.write(&scene_path)?;
        }
        Ok(fault.code.unwrap_or(usual))
    })?;
    kill_if(fault.kills_late);
    answer
}

fn expect(process: &CudaProcess, state: u32) -> Result<(), c_int> {
    if process.state == state { Ok(()) } else { Err(ILLEGAL_STATE) }
}

fn used(gpu: &Gpu) -> f64 {
    let rows = gpu.processes.iter().filter_map(|row| row.used_bytes.as_ref());
    let memory = gpu.memory.clone().unwrap_or_default();
    let rows: f64 = rows.map(|bytes| bytes.at(0.0)).sum();
    rows + memory.unattributed.at(0.0) + memory.reserved.at(0.0)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    IS_INITIALIZED.store(true, Ordering::Release);
    let fault = variable("GPUMEM_MOCK_CUDA").and_then(|path| {
        Script::change(&path, |script| {
            let mut faults = script.faults.iter();
            faults.find(|fault| fault.function == "cuInit").and_then(|fault| fault.code)
        })
    });
    fault.ok().flatten().unwrap_or(0)
}

/// # Safety
///
/// `version` must point to an integer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    let path = variable("GPUMEM_MOCK_CUDA");
    let read = path.and_then(|path| Script::change(&path, |script| script.version));
    // SAFETY: the caller guarantees the pointer.
    unsafe { *version = read.unwrap_or(0) };
    0
}

/// # Safety
///
/// `thread` must point to an integer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessGetRestoreThreadId(
    pid: c_int,
    thread: *mut c_int,
) -> c_int {
    // SAFETY: the caller guarantees the pointer.
    unsafe { *thread = pid };
    answer("cuCheckpointProcessGetRestoreThreadId", pid, |_, _, _| Ok(()))
}

/// # Safety
///
/// `state` must point to an integer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessGetState(pid: c_int, state: *mut c_uint) -> c_int {
    answer("cuCheckpointProcessGetState", pid, |process, _, fault| {
        // SAFETY: the caller guarantees the pointer.
        unsafe { *state = fault.state.unwrap_or(process.state) };
        Ok(())
    })
}

/// # Safety
///
/// The arguments must be 64 bytes, or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessLock(pid: c_int, arguments: *const [u32; 16]) -> c_int {
    // SAFETY: the caller guarantees the size. Without a timeout, the call could block forever.
    let is_valid = unsafe { arguments.as_ref() }
        .is_some_and(|words| words[0] > 0 && words[1..].iter().all(|&word| word == 0));
    if !is_valid {
        return INVALID_VALUE;
    }
    answer("cuCheckpointProcessLock", pid, |process, _, _| {
        expect(process, RUNNING)?;
        process.state = LOCKED;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessCheckpoint(pid: c_int, _arguments: *const c_void) -> c_int {
    answer("cuCheckpointProcessCheckpoint", pid, |process, scene, fault| {
        expect(process, LOCKED)?;
        process.state = CHECKPOINTED;
        for (index, gpu) in scene.gpus.iter_mut().enumerate() {
            let is_its = |row: &Process| i64::from(row.pid) == i64::from(pid);
            let rows = gpu.processes.iter().filter(|row| is_its(row)).cloned();
            process.saved.extend(rows.map(|row| (index, row)));
            gpu.processes.retain(|row| fault.keeps_rows || !is_its(row));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessRestore(pid: c_int, _arguments: *const c_void) -> c_int {
    if !IS_INITIALIZED.load(Ordering::Acquire) {
        return NOT_INITIALIZED;
    }
    answer("cuCheckpointProcessRestore", pid, |process, scene, fault| {
        expect(process, CHECKPOINTED)?;
        if process.is_stuck {
            return Err(OPERATING_SYSTEM);
        }
        let saved = process.saved.clone();
        for (index, row) in saved {
            let Some(gpu) = scene.gpus.get_mut(index) else { return Err(UNKNOWN) };
            if !fault.keeps_rows {
                gpu.processes.push(row);
            }
            let total = gpu.memory.clone().unwrap_or_default().total.at(0.0);
            if used(gpu) > total {
                process.is_stuck = true;
                for gpu in &mut scene.gpus {
                    gpu.processes.retain(|row| i64::from(row.pid) != i64::from(pid));
                }
                return Err(OUT_OF_MEMORY);
            }
        }
        process.saved.clear();
        process.state = LOCKED;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessUnlock(pid: c_int, _arguments: *const c_void) -> c_int {
    answer("cuCheckpointProcessUnlock", pid, |process, _, _| {
        expect(process, LOCKED)?;
        process.state = RUNNING;
        Ok(())
    })
}
