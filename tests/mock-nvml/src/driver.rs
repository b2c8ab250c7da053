//! The state of the driver in this process: the current scene, its time, and the steps that all calls share.
//!
//! A call clones a reference to the scene and releases the lock, so that no call waits for another call's delay or
//! hang.

use std::ffi::c_uint;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, io, thread};

use rustix::time::{ClockId, clock_gettime};

use crate::abi::Function;
use crate::answer::{Answer, Code};
use crate::counts::Counter;
use crate::scene::{Fault, Gpu, MigDevice, Scene, UtilizationClock, Value};

/// Minimum time between two checks of the scene file.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(1);

/// A device handle. The driver uses tagged numbers instead of addresses, to detect invalid handles.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(usize);

const HANDLE_TAG: usize = 0x4d6f_636b_0000;
/// Maximum number of GPUs in a scene. A handle contains the index of a GPU in 10 bits.
pub(crate) const GPUS_MAX: usize = 1 << 10;
/// Maximum number of MIG devices of a GPU.
pub(crate) const MIG_DEVICES_MAX: u32 = 32;

impl Handle {
    pub(crate) fn for_gpu(gpu: u32) -> Self {
        Self(HANDLE_TAG | gpu as usize)
    }

    pub(crate) fn for_mig_device(gpu: u32, index: u32) -> Self {
        Self(Self::for_gpu(gpu).0 | ((index as usize + 1) * GPUS_MAX))
    }

    /// Returns the index of the GPU and, for the handle of a MIG device, the index of the MIG device.
    fn target(self) -> Option<(u32, Option<u32>)> {
        let number = self.0 & 0xffff;
        let (gpu, mig) = ((number % GPUS_MAX) as u32, (number / GPUS_MAX) as u32);
        (self.0 & !0xffff == HANDLE_TAG).then_some((gpu, mig.checked_sub(1)))
    }
}

/// The state that a call requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// The call is allowed before `nvmlInit`.
    Nothing,
    /// The call requires a successful `nvmlInit`.
    Init,
}

pub(crate) struct Call {
    played: Arc<Played>,
    pub(crate) second: f64,
}

pub(crate) struct Device<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) gpu: &'a Gpu,
    pub(crate) index: u32,
    /// The MIG device, or `None` if the handle is for a whole GPU.
    pub(crate) mig: Option<&'a MigDevice>,
    pub(crate) second: f64,
    /// The driver's clock at second 0 of the scene, in microseconds.
    pub(crate) origin_us: i64,
    /// Number of queries of the compute list, while the scene makes the list grow.
    pub(crate) list_calls: &'a AtomicU32,
}

impl Call {
    pub(crate) fn scene(&self) -> &Scene {
        &self.played.scene
    }
}

impl Device<'_> {
    /// Returns the current value, or `NOT_SUPPORTED` if the scene has none.
    pub(crate) fn now(&self, value: Option<&Value>) -> Result<f64, Code> {
        let value = value.ok_or(Code::NOT_SUPPORTED)?;
        Ok(value.at(self.second))
    }

    /// Returns the current value as an integer, or `NOT_SUPPORTED` if the scene has none.
    pub(crate) fn whole(&self, value: Option<&Value>) -> Result<c_uint, Code> {
        self.now(value).map(|value| value.round() as c_uint)
    }
}

/// Answers a call that takes no device handle.
pub(crate) fn answer(
    function: Function,
    needs: Needs,
    body: impl FnOnce(&Call) -> Answer,
) -> c_uint {
    guarded(|| {
        let driver = driver();
        driver.count(function, None);
        let call = driver.call(needs)?;
        call.played.meet_faults(function, None)?;
        body(&call)
    })
}

/// Answers a call that takes a device handle.
pub(crate) fn answer_on(
    function: Function,
    handle: Handle,
    body: impl FnOnce(&Device<'_>) -> Answer,
) -> c_uint {
    guarded(|| {
        let driver = driver();
        let target = handle.target();
        driver.count(function, target.map(|(index, _)| index));
        let call = driver.call(Needs::Init)?;
        let (index, mig) = target.ok_or(Code::INVALID_ARGUMENT)?;
        let played = &call.played;
        played.meet_faults(function, Some(index))?;
        // The caller got a handle, so the GPU was in an earlier scene. Its removal simulates a GPU that fell off the
        // bus.
        let gpu = played.scene.gpus.get(index as usize);
        let (Some(gpu), Some(list_calls)) = (gpu, played.list_calls.get(index as usize)) else {
            return Err(Code::GPU_IS_LOST);
        };
        let mig = match mig {
            None => None,
            // The handle of a destroyed MIG device is invalid.
            Some(index) => Some(gpu.mig_device_at(index).ok_or(Code::INVALID_ARGUMENT)?),
        };
        if mig.is_some() && !function.takes_mig_device() {
            return Err(Code::NOT_SUPPORTED);
        }
        body(&Device {
            scene: &played.scene,
            gpu,
            index,
            mig,
            second: call.second,
            origin_us: driver.origin_us(&played.scene),
            list_calls,
        })
    })
}

/// Answers `nvmlDeviceGetHandleBy*`. Counts and faults apply as for a call on the requested GPU.
pub(crate) fn answer_lookup(
    function: Function,
    find: impl FnOnce(&Scene) -> Result<u32, Code>,
    return_handle: impl FnOnce(Handle) -> Answer,
) -> c_uint {
    guarded(|| {
        let driver = driver();
        let found = driver.call(Needs::Init);
        let found = found.map(|call| (find(call.scene()), call));
        let index = found.as_ref().ok().and_then(|(index, _)| index.as_ref().ok().copied());
        driver.count(function, index);
        let (index, call) = found?;
        call.played.meet_faults(function, index.ok())?;
        return_handle(Handle::for_gpu(index?))
    })
}

/// Answers `nvmlInit*`, which the scene can make fail.
pub(crate) fn init(call: &Call) -> Answer {
    match call.scene().init_error {
        Some(code) if code != 0 => Err(Code(code)),
        _ => {
            driver().users.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
    }
}

/// Answers `nvmlShutdown`, which undoes one `nvmlInit*`.
pub(crate) fn shutdown(_: &Call) -> Answer {
    driver()
        .users
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1))
        .map(|_| ())
        .map_err(|_| Code::UNINITIALIZED)
}

/// Catches panics, because unwinding into a C caller aborts the process.
fn guarded(body: impl FnOnce() -> Answer) -> c_uint {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

struct Played {
    scene: Scene,
    file: Identity,
    faults: Vec<Armed>,
    /// For each [`Function`], whether the driver lacks it.
    missing: Vec<bool>,
    list_calls: Vec<AtomicU32>,
}

/// A fault, and the number of calls that have matched it so far.
struct Armed {
    fault: Fault,
    matched: Arc<AtomicU64>,
}

/// Identifies the version of a file, to detect changes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl From<&Metadata> for Identity {
    fn from(file: &Metadata) -> Self {
        Self { inode: file.ino(), length: file.len(), modified: (file.mtime(), file.mtime_nsec()) }
    }
}

impl Played {
    fn read(path: &Path, before: Option<&Self>) -> io::Result<Self> {
        let file = Identity::from(&fs::metadata(path)?);
        let scene = Scene::from_json(&fs::read(path)?)?;
        let arm = |fault: &Fault| {
            let same =
                before.iter().flat_map(|before| &before.faults).find(|armed| armed.fault == *fault);
            Armed {
                fault: fault.clone(),
                matched: same.map(|armed| armed.matched.clone()).unwrap_or_default(),
            }
        };
        Ok(Self {
            faults: scene.faults.iter().map(arm).collect(),
            missing: Function::NAMES
                .iter()
                .map(|name| scene.driver.missing.iter().any(|missing| missing == name))
                .collect(),
            list_calls: scene.gpus.iter().map(|_| AtomicU32::new(0)).collect(),
            scene,
            file,
        })
    }

    /// Applies the faults that match a call: waits, hangs, or returns the error.
    fn meet_faults(&self, function: Function, gpu: Option<u32>) -> Answer {
        if self.missing[function as usize] {
            return Err(Code::FUNCTION_NOT_FOUND);
        }
        for Armed { fault, matched } in &self.faults {
            let named = fault.function == Function::NAMES[function as usize]
                || (fault.function == "*" && function.takes_device());
            if !named || (fault.gpu.is_some() && fault.gpu != gpu) {
                continue;
            }
            let before = matched.fetch_add(1, Ordering::Relaxed);
            let struck = before.checked_sub(fault.after_calls);
            if struck.is_none_or(|struck| fault.times.is_some_and(|times| struck >= times)) {
                continue;
            }
            thread::sleep(Duration::from_millis(fault.delay_ms));
            if fault.hang {
                loop {
                    thread::park();
                }
            }
            if let Some(code) = fault.error
                && code != 0
            {
                return Err(Code(code));
            }
        }
        Ok(())
    }
}

struct Driver {
    path: Option<PathBuf>,
    counter: Option<Counter>,
    /// Time of the first call in this process. The next two fields contain the same time in seconds since 1970 and
    /// since boot.
    start: Instant,
    start_unix: f64,
    start_boot: f64,
    users: AtomicU32,
    /// Time of the last check of the scene file in nanoseconds since `start`, or 0 before the first check.
    checked_at: AtomicU64,
    played: RwLock<Option<Arc<Played>>>,
}

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(Driver::new)
}

impl Driver {
    fn new() -> Self {
        let since_boot = clock_gettime(ClockId::Boottime);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let counter = env::var_os("GPUMEM_MOCK_COUNTS").and_then(|path| {
            Counter::open(Path::new(&path)).map_err(|error| warn(Path::new(&path), &error)).ok()
        });
        Self {
            path: env::var_os("GPUMEM_MOCK_SCENE").map(PathBuf::from),
            counter,
            start: Instant::now(),
            start_unix: since_1970.unwrap_or_default().as_secs_f64(),
            start_boot: since_boot.tv_sec as f64 + since_boot.tv_nsec as f64 / 1e9,
            users: AtomicU32::new(0),
            checked_at: AtomicU64::new(0),
            played: RwLock::new(None),
        }
    }

    fn count(&self, function: Function, gpu: Option<u32>) {
        if let Some(counter) = &self.counter {
            counter.count(function, gpu);
        }
    }

    fn call(&self, needs: Needs) -> Result<Call, Code> {
        if needs == Needs::Init && self.users.load(Ordering::Acquire) == 0 {
            return Err(Code::UNINITIALIZED);
        }
        let elapsed = self.start.elapsed();
        let played = self.scene_at(elapsed).ok_or(Code::UNKNOWN)?;
        let second = elapsed.as_secs_f64() * played.scene.speed.unwrap_or(1.0);
        Ok(Call { second, played })
    }

    fn origin_us(&self, scene: &Scene) -> i64 {
        let origin = match scene.driver.utilization_clock {
            UtilizationClock::Unix => self.start_unix,
            UtilizationClock::Boot => self.start_boot,
        };
        (origin * 1e6) as i64
    }

    /// Returns the current scene, after reading the file again if it has changed. If the file cannot be read, returns
    /// the previous scene, or `None` if there is none.
    fn scene_at(&self, elapsed: Duration) -> Option<Arc<Played>> {
        let now = (elapsed.as_nanos() as u64).max(1);
        let checked_at = self.checked_at.load(Ordering::Relaxed);
        let due =
            checked_at == 0 || now.saturating_sub(checked_at) >= CHECK_EVERY.as_nanos() as u64;
        let mine = due
            && self
                .checked_at
                .compare_exchange(checked_at, now, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        let played = self.playing();
        if !mine && played.is_some() {
            return played;
        }
        let Some(path) = &self.path else {
            warn(Path::new("GPUMEM_MOCK_SCENE"), &"is not set; set it to a scene file");
            return None;
        };
        let found = fs::metadata(path).map(|file| Identity::from(&file));
        if let (Ok(found), Some(played)) = (&found, &played)
            && played.file == *found
        {
            return Some(played.clone());
        }
        match Played::read(path, played.as_deref()) {
            Ok(read) => {
                let read = Some(Arc::new(read));
                *self.played.write().unwrap_or_else(PoisonError::into_inner) = read.clone();
                read
            }
            Err(error) => {
                if played.is_none() {
                    warn(path, &error);
                }
                played
            }
        }
    }

    fn playing(&self) -> Option<Arc<Played>> {
        let played = self.played.read().unwrap_or_else(PoisonError::into_inner);
        played.clone()
    }
}

/// Prints why a scene is invalid. NVML has no return code for this error.
#[allow(clippy::print_stderr, reason = "a driver has no other output")]
fn warn(path: &Path, problem: &dyn std::fmt::Display) {
    eprintln!("mock-nvml: {}: {problem}", path.display());
}
