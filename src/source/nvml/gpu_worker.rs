//! A thread for one GPU, and the asking side's memory of what it last said.
//!
//! A GPU that hangs keeps its own thread and nothing else: it is not asked again until it has
//! answered, so there is never more than one thread lost to it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;

use super::calls::CallProgress;
use super::device::{DeviceReader, Reading};
use crate::model::snapshot::{Gpu, ReadError};
use crate::units::Span;

/// Between snapshots that are far apart, process utilization is gathered this often: the driver
/// keeps about 10 s of it.
const GATHER_EVERY: Duration = Duration::from_secs(4);
/// A lost GPU's handle is looked up again this often.
const LOOK_UP_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What a lane's thread answers.
#[derive(Debug)]
pub(super) struct Reply {
    /// NVML's index of the GPU.
    pub(super) index: u32,
    /// What it read.
    pub(super) reading: Reading,
}

/// The asking side of one GPU's thread.
#[derive(Debug)]
pub(super) struct GpuWorker {
    index: u32,
    requests: SyncSender<()>,
    progress: Arc<CallProgress>,
    /// When the outstanding request was made.
    asked: Option<Instant>,
    /// It has answered before; the first answer may take longer, because it wakes the GPU.
    started: bool,
    /// It missed its last deadline: its answers are taken when they come, and not waited for.
    late: bool,
    /// The last reading, and whether it was handed out.
    last: Option<Reading>,
    fresh: bool,
    /// Identity, kept while the GPU is lost.
    identity: Gpu,
}

impl GpuWorker {
    /// Starts the thread of GPU `index`.
    pub(super) fn start(
        nvml: Arc<Nvml>,
        index: u32,
        replies: Sender<Reply>,
    ) -> std::io::Result<Self> {
        // One request at most is outstanding, so sending never blocks.
        let (requests, inbox) = sync_channel(1);
        let progress = Arc::new(CallProgress::default());
        let seen = Arc::clone(&progress);
        thread::Builder::new()
            .name(format!("nvml-gpu{index}"))
            .spawn(move || answer(&nvml, index, &seen, &inbox, &replies))?;
        Ok(Self {
            index,
            requests,
            progress,
            asked: None,
            started: false,
            late: false,
            last: None,
            fresh: false,
            identity: Gpu {
                index,
                ..Gpu::default()
            },
        })
    }

    /// Asks for a reading, unless an earlier one is still to come.
    pub(super) fn request(&mut self, now: Instant) {
        if self.asked.is_none() && self.requests.try_send(()).is_ok() {
            self.asked = Some(now);
        }
    }

    /// Until when to wait for it; `None` where there is nothing to wait for.
    pub(super) fn deadline(&self, timeout: Duration, startup: Duration) -> Option<Instant> {
        let asked = self.asked.filter(|_| !self.late)?;
        Some(asked + if self.started { timeout } else { startup })
    }

    /// Takes in an answer.
    pub(super) fn answered(&mut self, reading: Reading, timeout: Duration) {
        if let Some(asked) = self.asked.take() {
            self.late =
                self.started && reading.completed.saturating_duration_since(asked) > timeout;
        }
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

    /// The GPU as it is to be shown now, its errors, and when its values were read.
    pub(super) fn report(&mut self, now: Instant) -> (Gpu, Vec<ReadError>, Option<Instant>) {
        let mut errors = Vec::new();
        if self.asked.is_some() {
            self.late = true;
        }
        if let Some(asked) = self.asked {
            let waited = Span(now.saturating_duration_since(asked));
            errors.push(ReadError {
                gpu: Some(self.index),
                call: self
                    .progress
                    .call()
                    .unwrap_or("nvmlDeviceGetHandleByIndex_v2")
                    .into(),
                error: if self.last.is_some() {
                    format!("no answer for {waited}; this GPU's last values are shown")
                } else {
                    format!("no answer for {waited}; nothing is known of this GPU yet")
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
            gpu.uuid.clone_from(&self.identity.uuid);
            gpu.name.clone_from(&self.identity.name);
            gpu.pci_bus_id.clone_from(&self.identity.pci_bus_id);
            gpu.minor_number = self.identity.minor_number;
        }
        if !std::mem::take(&mut self.fresh) || self.late {
            mark_stale(&mut gpu, now.saturating_duration_since(last.completed));
        }
        (gpu, errors, Some(last.completed))
    }

    /// What the last reading said of the driver as a whole.
    pub(super) fn driver_gone(&self) -> Option<super::error::Code> {
        self.last
            .as_ref()
            .filter(|_| self.asked.is_none())?
            .driver_gone
    }

    /// Whether the driver told processes' utilization when it was last asked.
    pub(super) fn process_utilization(&self) -> Option<bool> {
        self.last.as_ref()?.process_utilization
    }

    /// Who the GPU is, without values.
    pub(super) fn identity(&self) -> &Gpu {
        &self.identity
    }
}

/// Old values stay visible, marked; old utilization says nothing about now.
fn mark_stale(gpu: &mut Gpu, age: Duration) {
    gpu.stale_seconds = Some((age.as_secs_f64() * 10.0).round() / 10.0);
    gpu.gpu_percent = None;
    gpu.sampled_seconds = None;
    gpu.memory_percent = None;
    for row in gpu.processes.iter_mut().flatten() {
        row.sm_percent = None;
        row.memory_percent = None;
        row.encoder_percent = None;
        row.decoder_percent = None;
    }
}

/// The thread: answers requests until there is nobody left to ask.
fn answer(
    nvml: &Nvml,
    index: u32,
    progress: &Arc<CallProgress>,
    inbox: &Receiver<()>,
    replies: &Sender<Reply>,
) {
    let mut reader: Option<DeviceReader<'_>> = None;
    let mut opened = Instant::now();
    loop {
        match inbox.recv_timeout(GATHER_EVERY) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some(reader) = &mut reader {
                    reader.gather_utilization();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if reader.is_none() {
            opened = Instant::now();
        }
        let reading = match &mut reader {
            Some(reader) => reader.sample(),
            none => match DeviceReader::open(nvml, index, Arc::clone(progress)) {
                Ok(opened) => none.insert(opened).sample(),
                Err(failure) => *failure,
            },
        };
        if reading.lost && opened.elapsed() > LOOK_UP_AGAIN_AFTER {
            reader = None;
        }
        if replies.send(Reply { index, reading }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{GpuProcess, Memory};

    #[test]
    fn stale_values_keep_memory_and_lose_utilization() {
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
        assert_eq!(
            gpu.gpu_percent, None,
            "an old 0 must not prove idleness now"
        );
        let row = gpu.processes.unwrap()[0];
        assert_eq!((row.used_bytes, row.sm_percent), (Some(1), None));
        assert!(gpu.memory.is_some() && gpu.power_watts.is_some());
    }
}
