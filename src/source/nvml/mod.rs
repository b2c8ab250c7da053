//! Makes all NVML calls, on separate threads with deadlines.
//!
//! In [`Nvml::sample`], each GPU is read by a separate thread (`gpu_reader`), until a common deadline. For a GPU that
//! does not answer in time, the sample contains an error and old values, which are marked as stale. `device` reads a
//! GPU, and `mig` its MIG devices. `rows` removes impossible figures. `ffi` contains the calls that nvml-wrapper
//! lacks or gets wrong. `error` explains NVML's error codes.

mod calls;
mod device;
mod error;
mod ffi;
mod gpu_reader;
mod memory;
mod mig;
mod rows;
mod utilization;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use error::Code;
pub use error::NvmlFailure;
use gpu_reader::GpuReader;

use crate::deadline::{NoAnswer, Task};
use crate::model::snapshot::{Driver, Gpu, ReadError};

/// Name of the library for the dynamic loader. All drivers since 2012 install it.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Paths of the library on WSL and NixOS, where the dynamic loader may not find it.
const FURTHER_PLACES: [&str; 2] =
    ["/usr/lib/wsl/lib/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"];
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Interval between counts of the GPUs, which a bus rescan, a slow driver or a hypervisor can add.
const COUNT_EVERY: Duration = Duration::from_secs(10);
#[derive(Clone, Debug)]
pub struct NvmlOptions {
    /// Path of the library, or `None` to search for it.
    pub library: Option<PathBuf>,
    pub timeout: Duration,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self { library: None, timeout: Duration::from_secs(2) }
    }
}

impl NvmlOptions {
    /// Returns the time limit for the first answer of a GPU. Without persistence mode, waking the GPU takes 1 to 3 s
    /// (NVIDIA's documentation of driver persistence).
    fn first_answer(&self) -> Duration {
        (self.timeout * 5 / 2).max(Duration::from_secs(5))
    }

    /// Returns the time limit for initialising NVML, which may have to load the driver.
    fn start(&self) -> Duration {
        (self.timeout * 5).max(Duration::from_secs(10))
    }
}

#[derive(Debug)]
pub struct NvmlSample {
    /// The GPUs in the order of their NVML indices.
    pub gpus: Vec<SampledGpu>,
    pub errors: Vec<ReadError>,
}

#[derive(Debug)]
pub struct SampledGpu {
    pub gpu: Gpu,
    /// When NVML last answered, or `None` if it never has.
    pub read_at: Option<Instant>,
    /// Whether the driver reports process utilization for this GPU, or `None` if it was not requested or the call
    /// failed.
    pub process_utilization: Option<bool>,
}

pub struct Nvml {
    options: NvmlOptions,
    driver: Driver,
    /// Errors from opening the driver, which are in every snapshot.
    errors: Vec<ReadError>,
    gpus: Vec<GpuReader>,
    away: Option<Reopening>,
    counted: Instant,
    /// A second initialisation of NVML, used to count the GPUs.
    counting: Option<Task<Result<OpenedNvml, NvmlFailure>>>,
}

struct Reopening {
    why: String,
    last_try: Instant,
    attempt: Option<Task<Result<OpenedNvml, NvmlFailure>>>,
}

struct OpenedNvml {
    nvml: Arc<nvml_wrapper::Nvml>,
    driver: Driver,
    errors: Vec<ReadError>,
    gpus: u32,
}

impl Nvml {
    /// Loads the library, initialises NVML, and starts the threads that read the GPUs. Returns an error if the
    /// library or driver is missing, their versions differ, permission is denied, or NVML does not answer in time.
    pub fn open(options: NvmlOptions) -> Result<Self, NvmlFailure> {
        let opened = open_within(&options, options.start())?;
        let gpus = start_readers(&opened)?;
        Ok(Self {
            options,
            driver: opened.driver,
            errors: opened.errors,
            gpus,
            away: None,
            counted: Instant::now(),
            counting: None,
        })
    }

    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    pub fn sample(&mut self) -> NvmlSample {
        if let Some(sample) = self.sample_away() {
            return sample;
        }
        self.recount_gpus();
        let requested_at = Instant::now();
        for gpu in &mut self.gpus {
            gpu.ask(requested_at);
        }
        for gpu in &mut self.gpus {
            gpu.wait(self.options.timeout, self.options.first_answer());
        }

        let now = Instant::now();
        let mut sample =
            NvmlSample { gpus: Vec::with_capacity(self.gpus.len()), errors: self.errors.clone() };
        for reader in &mut self.gpus {
            let (gpu, errors, read_at) = reader.report(now);
            sample.gpus.push(SampledGpu {
                gpu,
                read_at,
                process_utilization: reader.process_utilization(),
            });
            sample.errors.extend(errors);
        }
        self.check_driver();
        sample
    }

    /// If there are more GPUs than before, starts new readers for all of them, because indices may have changed. A
    /// GPU that is lost stays listed with its error.
    fn recount_gpus(&mut self) {
        let Some(counting) = &self.counting else {
            if self.counted.elapsed() >= COUNT_EVERY {
                self.counting = start_opening(&self.options).ok();
            }
            return;
        };
        let answer = counting.wait(Duration::ZERO);
        if matches!(answer, Err(NoAnswer::Late)) {
            return;
        }
        (self.counting, self.counted) = (None, Instant::now());
        if let Ok(Ok(opened)) = answer
            && opened.gpus as usize > self.gpus.len()
            && let Ok(gpus) = start_readers(&opened)
        {
            self.gpus = gpus;
        }
    }

    fn check_driver(&mut self) {
        let mut codes = self.gpus.iter().map(GpuReader::driver_gone);
        let Some(Some(code)) = codes.next() else {
            return;
        };
        if codes.all(|code| code.is_some()) {
            let why = NvmlFailure::answer("nvmlInit_v2", code).to_string();
            self.away = Some(Reopening { why, last_try: Instant::now(), attempt: None });
        }
    }

    /// While the driver is gone, returns the identities of the GPUs and the reason, and periodically tries to open
    /// the driver on a separate thread. Returns `None` if the driver works.
    fn sample_away(&mut self) -> Option<NvmlSample> {
        let away = self.away.as_mut()?;
        match away.attempt.as_ref().map(|attempt| attempt.wait(Duration::ZERO)) {
            Some(Ok(opened)) => {
                match opened.and_then(|opened| Ok((start_readers(&opened)?, opened))) {
                    Ok((gpus, opened)) => {
                        (self.gpus, self.driver, self.errors) =
                            (gpus, opened.driver, opened.errors);
                        self.away = None;
                        return None;
                    }
                    Err(error) => (away.why, away.attempt) = (error.to_string(), None),
                }
            }
            Some(Err(NoAnswer::Never)) => away.attempt = None,
            Some(Err(NoAnswer::Late)) => {}
            None => {
                if away.last_try.elapsed() >= OPEN_AGAIN_AFTER {
                    away.last_try = Instant::now();
                    away.attempt = start_opening(&self.options).ok();
                }
            }
        }
        let error =
            ReadError { gpu: None, call: "nvmlInit_v2".into(), error: away.why.as_str().into() };
        Some(NvmlSample {
            gpus: self
                .gpus
                .iter()
                .map(|reader| SampledGpu {
                    gpu: reader.identity().clone(),
                    read_at: None,
                    process_utilization: None,
                })
                .collect(),
            errors: vec![error],
        })
    }
}

/// Returns the versions of the library and the driver without accessing a GPU.
pub fn versions(options: &NvmlOptions) -> Result<Driver, NvmlFailure> {
    Ok(open_within(options, options.timeout)?.driver)
}

fn open_within(options: &NvmlOptions, time: Duration) -> Result<OpenedNvml, NvmlFailure> {
    let opened = start_opening(options)?.wait(time);
    opened.unwrap_or(Err(NvmlFailure::NoAnswer { call: "nvmlInit_v2", waited: time }))
}

fn start_readers(opened: &OpenedNvml) -> io::Result<Vec<GpuReader>> {
    (0..opened.gpus).map(|index| GpuReader::start(&opened.nvml, index)).collect()
}

/// Loads the library and initialises NVML on a separate thread, because both can hang.
fn start_opening(options: &NvmlOptions) -> io::Result<Task<Result<OpenedNvml, NvmlFailure>>> {
    let library = options.library.clone();
    Task::start("nvml-open", move || open_now(library))
}

fn open_now(library: Option<PathBuf>) -> Result<OpenedNvml, NvmlFailure> {
    let places = match library {
        Some(path) => vec![path],
        None => std::iter::once(LIBRARY).chain(FURTHER_PLACES).map(PathBuf::from).collect(),
    };
    let mut first_failure = None;
    for path in places {
        match nvml_wrapper::Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => return facts(nvml),
            Err(error) => {
                let error = NvmlFailure::opening(path, error);
                let missing = matches!(error, NvmlFailure::LibraryNotFound { .. });
                first_failure.get_or_insert(error);
                if !missing {
                    break;
                }
            }
        }
    }
    Err(first_failure
        .unwrap_or_else(|| NvmlFailure::LibraryNotFound { library: LIBRARY.to_owned() }))
}

fn facts(nvml: nvml_wrapper::Nvml) -> Result<OpenedNvml, NvmlFailure> {
    let nvml = Arc::new(nvml);
    if nvml.lib().nvmlShutdown.is_err() {
        // When it is dropped, nvml-wrapper calls `nvmlShutdown`, and panics if the symbol is missing.
        std::mem::forget(Arc::clone(&nvml));
    }
    let gpus = nvml
        .device_count()
        .map_err(|error| NvmlFailure::answer("nvmlDeviceGetCount_v2", Code::from(error)))?;
    let mut errors = Vec::new();
    let version = nvml.sys_driver_version();
    let nvml_version = nvml.sys_nvml_version();
    let cuda_version = nvml.sys_cuda_driver_version();
    let driver = Driver {
        version: reported(&mut errors, "nvmlSystemGetDriverVersion", version).map(Into::into),
        nvml_version: reported(&mut errors, "nvmlSystemGetNVMLVersion", nvml_version)
            .map(Into::into),
        // For example, 13010 is CUDA 13.1 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR).
        cuda_version: reported(&mut errors, "nvmlSystemGetCudaDriverVersion_v2", cuda_version)
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10).into()),
    };
    Ok(OpenedNvml { nvml, driver, errors, gpus })
}

fn reported<T>(
    errors: &mut Vec<ReadError>,
    call: &str,
    answer: Result<T, nvml_wrapper::error::NvmlError>,
) -> Option<T> {
    answer
        .map_err(|error| {
            errors.push(ReadError {
                gpu: None,
                call: call.into(),
                error: Code::from(error).to_string().into(),
            });
        })
        .ok()
}
