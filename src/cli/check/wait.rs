//! `--wait-free`: waits until memory is free. This module performs no I/O and takes the time from snapshots.
//!
//! The memory must be free on a single device, which is a GPU or a MIG device. If the free memory of a GPU is unknown,
//! the GPU satisfies no request. A claimed GPU satisfies only requests that name it.

use std::sync::Arc;

use crate::cli::UsageError;
use crate::cli::args::WaitFree;
use crate::cli::devices::visible;
use crate::cli::selection::{is_gpu_named, no_such_gpu};
use crate::model::compute_device::DeviceKey;
use crate::model::{ComputeDevice, Gpu, Time};
use crate::report::check::WaitVerdict;
use crate::units::Span;

#[derive(Debug)]
pub(super) struct Wait {
    wants: Vec<Want>,
    /// GPUs from `--gpu`. An empty list allows all GPUs.
    allowed: Vec<String>,
    visible: Option<String>,
    timeout: Span,
    waited_seconds: f64,
    latest: Option<Time>,
}

#[derive(Debug)]
struct Want {
    wanted: WaitFree,
    /// The device that satisfies the request. If none does, the device that had the most free memory so far.
    nearest: Option<Nearest>,
    satisfied: bool,
}

#[derive(Clone, Debug)]
struct Nearest {
    device: DeviceKey,
    uuid: Option<Arc<str>>,
    mig: Option<String>,
    free_bytes: u64,
    /// Reason why the device is unusable even if enough memory is free, or `None` if it is usable.
    refusal: Option<String>,
}

impl Wait {
    pub(super) fn new(wanted: &[WaitFree], allowed: &[String], timeout: Span) -> Self {
        let want =
            |wanted: &WaitFree| Want { wanted: wanted.clone(), nearest: None, satisfied: false };
        Self {
            wants: wanted.iter().map(want).collect(),
            allowed: allowed.to_vec(),
            visible: None,
            timeout,
            waited_seconds: 0.0,
            latest: None,
        }
    }

    /// Restricts the devices to those in a value of CUDA_VISIBLE_DEVICES.
    pub(super) fn restrict(&mut self, visible: Option<String>) {
        self.visible = visible;
    }

    pub(super) fn is_too_late(&self, time: Time) -> bool {
        self.waited_at(time) > self.timeout.seconds()
    }

    /// Returns the seconds waited until `time`. If the clock was set back since the last snapshot, no time is added.
    fn waited_at(&self, time: Time) -> f64 {
        let step = self.latest.map_or(0.0, |latest| time.seconds_since(latest));
        self.waited_seconds + step.max(0.0)
    }

    pub(super) fn observe(&mut self, time: Time, gpus: &[Gpu]) {
        self.waited_seconds = self.waited_at(time);
        self.latest = Some(time);
        let devices = self.devices(gpus).unwrap_or_default();
        for want in &mut self.wants {
            // `max_by_key` returns the last maximum, so reverse the order to choose the first device.
            let candidates =
                want.candidates(&devices).rev().filter_map(|device| want.nearest(device));
            let most = candidates.max_by_key(|near| (near.refusal.is_none(), near.free_bytes));
            want.satisfied = most.as_ref().is_some_and(|near| {
                near.free_bytes >= want.wanted.size.0 && near.refusal.is_none()
            });
            let best = want.nearest.as_ref().map(|near| near.free_bytes);
            if want.satisfied || most.as_ref().map(|near| near.free_bytes) > best {
                want.nearest = most;
            }
        }
    }

    /// Returns whether the latest snapshot satisfies all requests.
    pub(super) fn is_satisfied(&self) -> bool {
        self.wants.iter().all(|want| want.satisfied)
    }

    /// Returns whether, for at least one request, no snapshot contained an allowed device with known free memory.
    pub(super) fn is_blind(&self) -> bool {
        self.wants.iter().any(|want| want.nearest.is_none())
    }

    /// Returns the devices that satisfy the requests. For an unsatisfied request, returns all devices that the request
    /// allows.
    pub(super) fn asked<'g>(&self, gpus: &'g [Gpu]) -> Vec<ComputeDevice<'g>> {
        let devices = self.devices(gpus).unwrap_or_default();
        let is_asked = |device: &ComputeDevice<'_>| {
            self.wants.iter().any(|want| match &want.nearest {
                Some(near) if want.satisfied => near.device == device.key(),
                _ => want.is_candidate(device),
            })
        };
        devices.iter().copied().filter(is_asked).collect()
    }

    /// Returns the allowed devices in the order of CUDA_VISIBLE_DEVICES.
    fn devices<'g>(&self, gpus: &'g [Gpu]) -> Result<Vec<ComputeDevice<'g>>, UsageError> {
        let mut devices = visible(gpus, self.visible.as_deref())?;
        let is_allowed =
            |device: &ComputeDevice<'_>| self.allowed.iter().any(|name| device.is_called(name));
        devices.retain(|device| self.allowed.is_empty() || is_allowed(device));
        Ok(devices)
    }

    /// Fails if a requested GPU does not exist, or if CUDA_VISIBLE_DEVICES hides a requested GPU or all GPUs.
    pub(super) fn check_devices(&self, gpus: &[Gpu]) -> Result<(), UsageError> {
        let devices = self.devices(gpus)?;
        let visible_gpus: Vec<Gpu> = devices.iter().map(|device| device.gpu.clone()).collect();
        let hidden = |typed: &str| match &self.visible {
            Some(value) if gpus.iter().any(|gpu| is_gpu_named(typed, gpu)) => Some(format!(
                "CUDA_VISIBLE_DEVICES={value} hides that GPU; unset it, or name another"
            )),
            _ => None,
        };
        for want in &self.wants {
            let Some(wanted) = want.wanted.gpu.as_deref() else { continue };
            // A GPU in MIG mode has no compute device until the administrator creates a MIG device.
            let is_there =
                gpus.iter().any(|gpu| gpu.mig_mode == Some(true) && is_gpu_named(wanted, gpu));
            if !devices.iter().any(|device| device.is_called(wanted)) && !is_there {
                let typed = format!("--wait-free SIZE:{wanted}");
                return Err(match hidden(wanted) {
                    Some(why) => UsageError(format!("{typed}: {why}")),
                    None => no_such_gpu(&typed, &visible_gpus),
                });
            }
        }
        match &self.visible {
            Some(value) if devices.is_empty() && !gpus.is_empty() => Err(UsageError(format!(
                "--wait-free: CUDA_VISIBLE_DEVICES={value} hides every GPU; unset it"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns an error message if a request exceeds the total memory of every allowed device.
    pub(super) fn impossible(&self, gpus: &[Gpu]) -> Option<String> {
        let devices = self.devices(gpus).ok()?;
        let too_much = |want: &&Want| {
            let mut totals = want.candidates(&devices).map(ComputeDevice::total_bytes).peekable();
            // An unknown total can be large enough.
            totals.peek().is_some()
                && totals.all(|total| total.is_some_and(|total| total < want.wanted.size.0))
        };
        let want = self.wants.iter().find(too_much)?;
        let whose = match &want.wanted.gpu {
            Some(gpu) => format!("{} does not have", label(gpu)),
            None => "no GPU has".to_owned(),
        };
        let size = want.wanted.size;
        Some(format!("{whose} {size} of memory: it cannot become free"))
    }

    pub(super) fn verdicts(&self) -> Vec<WaitVerdict> {
        let verdict = |want: &Want| WaitVerdict {
            named: want.wanted.gpu.clone(),
            gpu: want.nearest.as_ref().map(|near| near.device.0),
            mig: want.nearest.as_ref().and_then(|near| near.mig.clone()),
            uuid: want.nearest.as_ref().and_then(|near| near.uuid.clone()),
            free_bytes: want.nearest.as_ref().map(|near| near.free_bytes),
            wanted_bytes: want.wanted.size.0,
            refusal: want.nearest.as_ref().and_then(|near| near.refusal.clone()),
            satisfied: want.satisfied,
            waited_seconds: self.waited_seconds,
        };
        self.wants.iter().map(verdict).collect()
    }
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, want) in self.wants.iter().enumerate() {
            let and = if at == 0 { "" } else { " and " };
            write!(f, "{and}{} free on ", want.wanted.size)?;
            match &want.wanted.gpu {
                Some(gpu) => f.write_str(&label(gpu))?,
                None => f.write_str("any GPU")?,
            }
        }
        Ok(())
    }
}

impl Want {
    fn candidates<'a, 'g>(
        &'a self,
        devices: &'a [ComputeDevice<'g>],
    ) -> impl DoubleEndedIterator<Item = &'a ComputeDevice<'g>> {
        devices.iter().filter(|device| self.is_candidate(device))
    }

    fn is_candidate(&self, device: &ComputeDevice<'_>) -> bool {
        self.wanted.gpu.as_deref().is_none_or(|wanted| device.is_called(wanted))
    }

    /// Describes the device as a candidate, or returns `None` if the free memory of the device is unknown.
    fn nearest(&self, device: &ComputeDevice<'_>) -> Option<Nearest> {
        let claim = device.gpu.claim.as_ref().filter(|_| self.wanted.gpu.is_none());
        Some(Nearest {
            device: device.key(),
            uuid: device.uuid().cloned(),
            mig: device.mig.map(|mig| mig.name_on(device.gpu.index)),
            free_bytes: device.free_bytes()?,
            refusal: device.refusal().or_else(|| claim.map(ToString::to_string)),
        })
    }
}

/// Formats an index as `GPU 1`, and returns a UUID unchanged.
fn label(gpu: &str) -> String {
    if gpu.starts_with(|c: char| c.is_ascii_digit()) {
        format!("GPU {gpu}")
    } else {
        gpu.to_owned()
    }
}

#[cfg(test)]
mod tests;
