//! The asking side's memory of one GPU: whether it was asked, and what it last said.
//!
//! A GPU that hangs is not asked again until it has answered, so there is never more than one thread
//! lost to it. Which thread that is, is in `gpu_readers`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::CallProgress;
use super::device::Reading;
use super::gpu_readers::Reply;
use crate::model::snapshot::{Gpu, ReadError};
use crate::units::Span;

/// One GPU, as the asking side knows it.
#[derive(Debug)]
pub(super) struct AskedGpu {
    index: u32,
    progress: Arc<CallProgress>,
    /// When the outstanding request was made.
    asked: Option<Instant>,
    /// It has answered before; the first answer may take longer, because it wakes the GPU.
    started: bool,
    /// It missed its last deadline: its answers are taken when they come, and not waited for.
    late: bool,
    /// Its last answer took long: it is read by a thread of its own.
    is_slow: bool,
    /// The last reading, and whether it was handed out.
    last: Option<Reading>,
    fresh: bool,
    /// Identity, kept while the GPU is lost.
    identity: Gpu,
}

/// How a GPU is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// After others, on the shared thread.
    Together,
    /// On a thread of its own.
    Alone,
}

impl AskedGpu {
    /// GPU `index`, of which nothing is known.
    pub(super) fn new(index: u32, progress: Arc<CallProgress>) -> Self {
        Self {
            index,
            progress,
            asked: None,
            started: false,
            late: false,
            is_slow: false,
            last: None,
            fresh: false,
            identity: Gpu { index, ..Gpu::default() },
        }
    }

    /// Whether it has ever answered.
    pub(super) fn has_answered(&self) -> bool {
        self.started
    }

    /// How it is to be read now; `None` where an earlier answer is still to come.
    pub(super) fn request(&mut self, now: Instant) -> Option<Manner> {
        if self.asked.is_some() {
            return None;
        }
        self.asked = Some(now);
        Some(match self.is_slow {
            true => Manner::Alone,
            false => Manner::Together,
        })
    }

    /// It will not be read after all.
    pub(super) fn withdraw(&mut self) {
        self.asked = None;
    }

    /// Until when to wait for it; `None` where there is nothing to wait for.
    pub(super) fn deadline(&self, timeout: Duration, startup: Duration) -> Option<Instant> {
        let asked = self.asked.filter(|_| !self.late)?;
        Some(asked + if self.started { timeout } else { startup })
    }

    /// Takes in an answer.
    pub(super) fn answered(&mut self, reply: Reply, timeout: Duration) {
        let reading = reply.reading;
        self.is_slow = reply.is_slow;
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
                call: self.progress.call().unwrap_or("nvmlDeviceGetHandleByIndex_v2").into(),
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
        self.last.as_ref().filter(|_| self.asked.is_none())?.driver_gone
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
        assert_eq!(gpu.gpu_percent, None, "an old 0 must not prove idleness now");
        let row = gpu.processes.unwrap()[0];
        assert_eq!((row.used_bytes, row.sm_percent), (Some(1), None));
        assert!(gpu.memory.is_some() && gpu.power_watts.is_some());
    }
}
