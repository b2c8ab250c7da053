//! `--wait-free`: waits until memory is free. This module performs no I/O and takes the time from snapshots.
//!
//! The memory must be free on a single device, which is a GPU or a MIG device. If the free memory of a GPU is unknown,
//! the GPU satisfies no request. A claimed GPU satisfies only requests that name it.

use crate::cli::UsageError;
use crate::cli::args::WaitFree;
use crate::cli::devices::{no_such_device, visible};
use crate::cli::selection::is_gpu_named;
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
    /// The device that satisfies the request. If there is none, the device with the most free memory in any snapshot.
    nearest: WaitVerdict,
}

impl Wait {
    pub(super) fn new(wanted: &[WaitFree], allowed: &[String], timeout: Span) -> Self {
        let want = |wanted: &WaitFree| {
            let named = wanted.gpu.clone();
            let nearest =
                WaitVerdict { named, wanted_bytes: wanted.size.0, ..WaitVerdict::default() };
            Want { wanted: wanted.clone(), nearest }
        };
        Self {
            wants: wanted.iter().map(want).collect(),
            allowed: allowed.to_vec(),
            visible: None,
            timeout,
            waited_seconds: 0.0,
            latest: None,
        }
    }

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
            // `max_by_key` returns the last maximum, so reverse the order to prefer the first device.
            let candidates = want.candidates(&devices).rev();
            let most = candidates
                .filter_map(|device| want.verdict_on(device))
                .max_by_key(|near| (near.refusal.is_none(), near.free_bytes));
            want.nearest.satisfied = false;
            if let Some(most) = most
                && (most.satisfied || most.free_bytes > want.nearest.free_bytes)
            {
                want.nearest = most;
            }
        }
    }

    pub(super) fn is_satisfied(&self) -> bool {
        self.wants.iter().all(|want| want.nearest.satisfied)
    }

    /// Returns whether, for at least one request, no snapshot contained an allowed device with known free memory.
    pub(super) fn is_blind(&self) -> bool {
        self.wants.iter().any(|want| want.nearest.free_bytes.is_none())
    }

    /// Returns the devices that satisfy the requests. For an unsatisfied request, returns all devices that the request
    /// allows.
    pub(super) fn asked<'g>(&self, gpus: &'g [Gpu]) -> Vec<ComputeDevice<'g>> {
        let devices = self.devices(gpus).unwrap_or_default();
        let is_asked = |device: &ComputeDevice<'_>| {
            self.wants.iter().any(|want| match want.nearest.satisfied {
                true => {
                    (want.nearest.gpu, &want.nearest.mig) == (Some(device.gpu.index), &mig(device))
                }
                false => want.is_candidate(device),
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

    /// Fails if a requested GPU does not exist, is excluded by `--gpu`, or is hidden by CUDA_VISIBLE_DEVICES, or if no GPU
    /// is left.
    pub(super) fn check_devices(&self, gpus: &[Gpu]) -> Result<(), UsageError> {
        let devices = self.devices(gpus)?;
        for want in &self.wants {
            let Some(wanted) = want.wanted.gpu.as_deref() else { continue };
            // A GPU in MIG mode has no compute device until the administrator creates a MIG device.
            let is_there =
                gpus.iter().any(|gpu| gpu.mig_mode == Some(true) && is_gpu_named(wanted, gpu));
            if !devices.iter().any(|device| device.is_called(wanted)) && !is_there {
                let typed = ("--wait-free SIZE:", wanted);
                return Err(no_such_device(typed, gpus, &devices, self.visible.as_deref()));
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
            // A device whose total is unknown may be large enough.
            totals.peek().is_some()
                && totals.all(|total| total.is_some_and(|total| total < want.wanted.size.0))
        };
        let want = self.wants.iter().find(too_much)?;
        let whose = match &want.wanted.gpu {
            Some(gpu) => format!("{} does not have", label(gpu)),
            None => "no GPU has".to_owned(),
        };
        let size = want.wanted.size;
        Some(format!("{whose} {size} of memory, so this request can never be satisfied"))
    }

    pub(super) fn verdicts(&self) -> Vec<WaitVerdict> {
        let waited_seconds = self.waited_seconds;
        let verdict = |want: &Want| WaitVerdict { waited_seconds, ..want.nearest.clone() };
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

    /// Compares the device with the request. Returns `None` if the free memory of the device is unknown.
    fn verdict_on(&self, device: &ComputeDevice<'_>) -> Option<WaitVerdict> {
        let claim = device.gpu.claim.as_ref().filter(|_| self.wanted.gpu.is_none());
        let (free_bytes, refusal) =
            (device.free_bytes()?, device.refusal().or_else(|| claim.map(ToString::to_string)));
        Some(WaitVerdict {
            gpu: Some(device.gpu.index),
            uuid: device.uuid().cloned(),
            mig: mig(device),
            free_bytes: Some(free_bytes),
            satisfied: free_bytes >= self.wanted.size.0 && refusal.is_none(),
            refusal,
            ..self.nearest.clone()
        })
    }
}

fn mig(device: &ComputeDevice<'_>) -> Option<String> {
    device.mig.map(|mig| mig.name_on(device.gpu.index))
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
mod tests {
    use super::*;
    use crate::model::snapshot::{Claim, Memory, MigDevice};
    use crate::units::GIB;

    /// Returns GPUs with 80 GiB each and the given free memory in GiB. `None` stands for a lost GPU.
    fn gpus(free: &[Option<u64>]) -> Vec<Gpu> {
        let gpu = |(index, free): (usize, &Option<u64>)| Gpu {
            index: u32::try_from(index).unwrap(),
            memory: free.map(|free| Memory {
                total_bytes: 80 * GIB,
                reserved_bytes: None,
                used_bytes: (80 - free) * GIB,
                free_bytes: free * GIB,
            }),
            ..Gpu::default()
        };
        free.iter().enumerate().map(gpu).collect()
    }

    fn wait(wanted: &[&str], timeout: f64) -> Wait {
        let wanted: Vec<WaitFree> = wanted.iter().map(|text| text.parse().unwrap()).collect();
        Wait::new(&wanted, &[], Span::from_seconds(timeout))
    }

    fn at(seconds: f64) -> Time {
        Time::default().plus_seconds(seconds)
    }

    #[test]
    fn a_claimed_gpu_does_not_satisfy_a_wait_for_any_gpu() {
        let mut both = gpus(&[Some(70), Some(9)]);
        both[0].claim = Some(Claim::default());
        let found = |wanted: &str| {
            let mut wait = wait(&[wanted], 60.0);
            wait.observe(at(0.0), &both);
            (wait.is_satisfied(), wait.verdicts()[0].gpu)
        };
        assert_eq!(found("8GiB"), (true, Some(1)));
        assert_eq!(found("10GiB"), (false, Some(1)));
        assert_eq!(found("10GiB:0"), (true, Some(0)));
    }

    #[test]
    fn a_lost_or_stale_gpu_never_satisfies_a_wait() {
        let mut lost = wait(&["8GiB:0"], 60.0);
        lost.observe(at(0.0), &gpus(&[None, Some(80)]));
        assert!(!lost.is_satisfied() && lost.is_blind());
        let mut stale = gpus(&[Some(80)]);
        stale[0].stale_seconds = Some(3.0);
        lost.observe(at(1.0), &stale);
        assert!(!lost.is_satisfied() && lost.is_blind());
        lost.observe(at(2.0), &gpus(&[Some(2)]));
        assert!(!lost.is_satisfied() && !lost.is_blind());
    }

    #[test]
    fn waiting_time_follows_snapshots_and_ignores_clock_jumps_back() {
        let mut wait = wait(&["8GiB"], 60.0);
        assert!(!wait.is_too_late(at(1e9)), "the first snapshot is never late");
        wait.observe(at(1000.0), &gpus(&[Some(0)]));
        assert!(!wait.is_too_late(at(1060.0)) && wait.is_too_late(at(1060.1)));
        wait.observe(at(1050.0), &gpus(&[Some(0)]));
        wait.observe(at(10.0), &gpus(&[Some(0)]));
        assert!(!wait.is_too_late(at(20.0)) && wait.is_too_late(at(20.1)));
        assert_eq!(wait.verdicts()[0].waited_seconds, 50.0);
    }

    #[test]
    fn a_request_above_the_total_memory_is_impossible() {
        let some = gpus(&[Some(1), Some(2)]);
        assert!(wait(&["80GiB"], 1.0).impossible(&some).is_none());
        let why = wait(&["8GiB", "81GiB:1"], 1.0).impossible(&some).unwrap();
        assert_eq!(
            why,
            "GPU 1 does not have 81.0 GiB of memory, so this request can never be satisfied"
        );
        assert!(wait(&["81GiB"], 1.0).impossible(&some).is_some());
        let unknown = gpus(&[Some(1), None]);
        assert!(wait(&["81GiB"], 1.0).impossible(&unknown).is_none());
        assert!(wait(&["81GiB"], 1.0).impossible(&[]).is_none());
    }

    #[test]
    fn a_partitioned_or_unusable_gpu_satisfies_no_wait_by_its_total() {
        let mut machine = gpus(&[Some(70), Some(60), Some(50)]);
        machine[0].mig_mode = Some(true);
        machine[1].compute_mode = Some("prohibited".into());
        let found = |machine: &[Gpu], wanted: &str| {
            let mut wait = wait(&[wanted], 60.0);
            wait.observe(at(0.0), machine);
            let verdict = wait.verdicts().remove(0);
            (wait.is_satisfied(), verdict.gpu, verdict.mig, verdict.refusal.is_some())
        };
        assert_eq!(found(&machine, "8GiB"), (true, Some(2), None, false));
        assert_eq!(found(&machine, "60GiB"), (false, Some(2), None, false));
        assert_eq!(found(&machine, "60GiB:1"), (false, Some(1), None, true));
        assert_eq!(
            found(&machine, "8GiB:0"),
            (false, None, None, false),
            "it has no MIG device yet"
        );
        let part = |index: u32, free: u64| MigDevice {
            index: Some(index),
            uuid: Some(format!("MIG-{index}").into()),
            memory: gpus(&[Some(free)])[0].memory,
            ..MigDevice::default()
        };
        machine[0].mig_devices = vec![part(0, 5), part(1, 9)];
        assert_eq!(found(&machine, "8GiB:0"), (true, Some(0), Some("0:1".into()), false));
        assert_eq!(found(&machine, "8GiB:MIG-0"), (false, Some(0), Some("0:0".into()), false));
    }

    #[test]
    fn the_callers_visible_devices_restrict_a_wait() {
        let mut machine = gpus(&[Some(70), Some(60), Some(50)]);
        for gpu in &mut machine {
            gpu.uuid = Some(format!("GPU-{}", gpu.index).into());
        }
        let restricted = |wanted: &str, visible: &str| {
            let mut wait = wait(&[wanted], 60.0);
            wait.restrict(Some(visible.to_owned()));
            wait.observe(at(0.0), &machine);
            (wait.verdicts()[0].gpu, wait.check_devices(&machine).is_ok())
        };
        assert_eq!(restricted("8GiB", "2,1"), (Some(1), true));
        assert_eq!(restricted("8GiB", "GPU-2"), (Some(2), true));
        assert_eq!(restricted("8GiB:1", "1"), (Some(1), true));
        assert_eq!(restricted("8GiB:0", "1"), (None, false));
        assert_eq!(restricted("8GiB", ""), (None, false));
    }
}
