//! Reads one GPU on a thread, and keeps its last reading.
//!
//! Each GPU has a separate thread, so that a GPU that hangs does not delay the others. A thread gets no new request
//! until it has answered the last one.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;

use super::calls::CallProgress;
use super::device::{DeviceReader, Reading};
use crate::host::read_driver_gpus;
use crate::model::snapshot::{Gpu, ReadError};
use crate::units::Span;

/// Interval between reads of process utilization if snapshots are rare. The driver keeps samples for about 10 s.
const GATHER_EVERY: Duration = Duration::from_secs(4);
const LOOK_UP_AGAIN_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct GpuReader {
    index: u32,
    progress: Arc<CallProgress>,
    requests: Sender<()>,
    readings: Receiver<Reading>,
    requested: Option<Instant>,
    /// Whether the GPU has answered. The first answer can take longer, because the GPU must be woken.
    started: bool,
    /// Whether the GPU missed its last deadline. If so, the next sample does not wait for it.
    late: bool,
    /// The last reading. `fresh` is set until it has been reported.
    last: Option<Reading>,
    fresh: bool,
    /// Identity of the GPU, which is kept while the GPU is lost.
    identity: Gpu,
}

impl GpuReader {
    /// Starts the thread of a GPU, which ends after the reader is dropped.
    pub(super) fn start(nvml: &Arc<Nvml>, index: u32) -> io::Result<Self> {
        let progress = Arc::<CallProgress>::default();
        let (requests, requested) = channel();
        let (answers, readings) = channel();
        let (nvml, entered) = (Arc::clone(nvml), Arc::clone(&progress));
        thread::Builder::new()
            .name(format!("nvml-gpu{index}"))
            .spawn(move || read_on_request(&nvml, index, &entered, &requested, &answers))?;
        Ok(Self {
            index,
            progress,
            requests,
            readings,
            requested: None,
            started: false,
            late: false,
            last: None,
            fresh: false,
            identity: Gpu { index, ..Gpu::default() },
        })
    }

    pub(super) fn ask(&mut self, now: Instant) {
        // If the thread has ended, there will be no answer, and `report` adds an error.
        if self.requested.is_none() {
            let _ = self.requests.send(());
            self.requested = Some(now);
        }
    }

    /// Waits for the answer, at most until `timeout` after the request or, for the first answer, until `startup`
    /// after it. If the GPU is late, does not wait.
    pub(super) fn wait(&mut self, timeout: Duration, startup: Duration) {
        let Some(requested) = self.requested else { return };
        let time = if self.started { timeout } else { startup };
        let time_left =
            if self.late { Duration::ZERO } else { time.saturating_sub(requested.elapsed()) };
        let Ok(reading) = self.readings.recv_timeout(time_left) else {
            self.late = true;
            return;
        };
        self.requested = None;
        self.late =
            self.started && reading.completed.saturating_duration_since(requested) > timeout;
        self.started = true;
        if reading.gpu.uuid.is_some() {
            self.identity = Gpu {
                uuid: reading.gpu.uuid.clone(),
                name: reading.gpu.name.clone(),
                pci_bus_id: reading.gpu.pci_bus_id.clone(),
                minor_number: reading.gpu.minor_number,
                index: self.index,
                ..Gpu::default()
            };
        }
        self.last = Some(reading);
        self.fresh = true;
    }

    /// Returns the GPU's values for the current snapshot, its errors, and when the values were read.
    pub(super) fn report(&mut self, now: Instant) -> (Gpu, Vec<ReadError>, Option<Instant>) {
        let mut errors = Vec::new();
        if let Some(requested) = self.requested {
            let waited = Span(now.saturating_duration_since(requested));
            errors.push(ReadError {
                gpu: Some(self.index),
                call: self.progress.call().unwrap_or("nvmlDeviceGetHandleByIndex_v2").into(),
                error: if self.last.is_some() {
                    format!("no answer for {waited}; this GPU's last values are shown")
                } else {
                    format!("no answer for {waited}; no values of this GPU yet")
                }
                .into(),
            });
        }
        let Some(last) = &mut self.last else {
            return (self.identity.clone(), errors, None);
        };
        errors.extend(std::mem::take(&mut last.errors));
        let mut gpu = last.gpu.clone();
        if gpu.uuid.is_none() {
            let identity = self.identity.clone();
            gpu.uuid = identity.uuid;
            gpu.name = gpu.name.or(identity.name);
            gpu.pci_bus_id = gpu.pci_bus_id.or(identity.pci_bus_id);
            gpu.minor_number = gpu.minor_number.or(identity.minor_number);
        }
        if !std::mem::take(&mut self.fresh) || self.late {
            mark_stale(&mut gpu, now.saturating_duration_since(last.completed));
        }
        (gpu, errors, Some(last.completed))
    }

    /// Returns the error of the last reading if it is about the whole driver.
    pub(super) fn driver_gone(&self) -> Option<super::error::Code> {
        self.last.as_ref().filter(|_| self.requested.is_none())?.driver_gone
    }

    pub(super) fn process_utilization(&self) -> Option<bool> {
        self.last.as_ref()?.process_utilization
    }

    pub(super) fn identity(&self) -> &Gpu {
        &self.identity
    }
}

/// Reads the GPU once for each request until the channel is closed. Runs on the GPU's thread.
fn read_on_request(
    nvml: &Arc<Nvml>,
    index: u32,
    progress: &Arc<CallProgress>,
    requested: &Receiver<()>,
    answers: &Sender<Reading>,
) {
    // `None` before the GPU is looked up, and after it is lost.
    let mut device: Option<(DeviceReader, Instant)> = None;
    loop {
        match requested.recv_timeout(GATHER_EVERY) {
            Ok(()) => {
                let open = || match asleep(Path::new("/sys"), index, nvml.device_count().ok()) {
                    Some(gpu) => Err(Box::new(Reading::new(gpu))),
                    None => DeviceReader::open(nvml, index, Arc::clone(progress)),
                };
                let reading = match &mut device {
                    Some((device, _)) => device.sample(),
                    none => match open() {
                        Ok(opened) => none.insert((opened, Instant::now())).0.sample(),
                        Err(failure) => *failure,
                    },
                };
                device.take_if(|(_, at)| reading.lost && at.elapsed() > LOOK_UP_AGAIN_AFTER);
                if answers.send(reading).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some((device, _)) = &mut device {
                    device.gather_utilization();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Returns the GPU with this index, without waking it, if it is certainly suspended. No process computes on a
/// suspended GPU. NVML numbers the `count` GPUs of the driver by address.
fn asleep(sys: &Path, index: u32, count: Option<u32>) -> Option<Gpu> {
    let gpus = read_driver_gpus(sys)?;
    let gpu = gpus
        .get(index as usize)
        .filter(|_| Some(gpus.len()) == count.map(|count| count as usize))?;
    gpu.is_suspended.then(|| Gpu {
        index,
        pci_bus_id: Some(gpu.address.as_str().into()),
        memory_unavailable: Some(
            "power management has suspended the GPU, and gpumem does not wake it".into(),
        ),
        processes: Some(Vec::new()),
        ..Gpu::default()
    })
}

/// Marks old values as stale. Removes the utilization, which would be mistaken for current.
fn mark_stale(gpu: &mut Gpu, age: Duration) {
    gpu.stale_seconds = Some((age.as_secs_f64() * 10.0).round() / 10.0);
    gpu.gpu_percent = None;
    gpu.sampled_seconds = None;
    gpu.memory_percent = None;
    (gpu.encoder_percent, gpu.decoder_percent) = (None, None);
    (gpu.jpeg_percent, gpu.optical_flow_percent) = (None, None);
    for row in gpu.processes.iter_mut().flatten() {
        row.sm_percent = None;
        row.memory_percent = None;
        row.encoder_percent = None;
        row.decoder_percent = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{GpuProcess, Memory};

    #[test]
    fn only_a_certainly_suspended_gpu_is_not_woken() {
        use std::{fs, os::unix::fs::symlink};
        let sys = tempfile::tempdir().unwrap();
        for (address, driver, status) in [
            ("0000:65:00.0", "nvidia", "active"),
            ("0000:01:00.0", "nvidia", "suspended"),
            ("0000:02:00.0", "vfio-pci", "suspended"),
        ] {
            let folder = sys.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(folder.join("power")).unwrap();
            for (name, text) in
                [("vendor", "0x10de"), ("class", "0x030200"), ("power/runtime_status", status)]
            {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
            let bound = sys.path().join("bus/pci/drivers").join(driver);
            fs::create_dir_all(&bound).unwrap();
            symlink(&folder, bound.join(address)).unwrap();
        }
        let asleep = |index, count| asleep(sys.path(), index, count);
        let gpu = asleep(0, Some(2)).unwrap();
        assert_eq!((gpu.pci_bus_id.as_deref(), gpu.memory), (Some("0000:01:00.0"), None));
        assert_eq!(gpu.processes.as_deref(), Some(&[][..]));
        assert_eq!((asleep(1, Some(2)), asleep(2, Some(2))), (None, None));
        // NVML's count must equal the number of GPUs on the bus.
        assert_eq!([None, Some(1), Some(3)].map(|count| asleep(0, count)), [None, None, None]);
    }

    #[test]
    fn stale_readings_keep_memory_but_not_utilization() {
        let row = GpuProcess {
            pid: 7,
            used_bytes: Some(1),
            sm_percent: Some(0),
            memory_percent: Some(0),
            ..GpuProcess::default()
        };
        let mut gpu = Gpu {
            memory: Some(Memory::default()),
            gpu_percent: Some(0),
            power_watts: Some(70.0),
            processes: Some(vec![row]),
            ..Gpu::default()
        };
        mark_stale(&mut gpu, Duration::from_millis(3210));
        assert_eq!(gpu.stale_seconds, Some(3.2));
        assert_eq!(gpu.gpu_percent, None, "an old 0 must not prove idleness now");
        let row = gpu.processes.unwrap()[0];
        assert_eq!((row.used_bytes, row.sm_percent), (Some(1), None));
        assert!(gpu.memory.is_some() && gpu.power_watts.is_some());
    }
}
