//! Utilization samples of processes, as in the driver's ring buffer.
//!
//! The ring buffer covers the last 10 s with 7.2 samples per second. At each sampling time, the mock driver adds a
//! sample of every busy process. The hardware samples only one process at a time, so the mock driver agrees with the
//! hardware only if a single process is busy.

use std::ffi::{c_uint, c_ulonglong};

use crate::answer::{Answer, Code};
use crate::driver::Device;
use crate::pointer::Pointer;
use crate::scene::Gpu;

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    pub(crate) pid: c_uint,
    pub(crate) timestamp: c_ulonglong,
    pub(crate) sm: c_uint,
    pub(crate) memory: c_uint,
    pub(crate) encoder: c_uint,
    pub(crate) decoder: c_uint,
}

/// Microseconds between two samples.
const PERIOD_US: i64 = 1_000_000 * 10 / 72;
const INSTANTS: i64 = 72;
/// Minimum number of samples for which the driver tells callers to allocate memory.
const USUAL_ROOM: usize = 100;

/// Answers `nvmlDeviceGetProcessUtilization`.
pub(crate) fn answer(
    device: &Device<'_>,
    out: Pointer<Sample>,
    count: Pointer<c_uint>,
    last_seen: u64,
) -> Answer {
    if !device.gpu.process_utilization || device.gpu.mig == Some(true) {
        return Err(Code::NOT_SUPPORTED);
    }
    let room = count.get()? as usize;
    let found = samples(device.gpu, device.second, device.origin_us, last_seen);
    if out.is_null() {
        // Reserve room for the next sampling time, which can pass before the caller's second call.
        let need = found.len() + device.gpu.processes.len();
        count.put(need.max(USUAL_ROOM) as c_uint)?;
        return Err(Code::INSUFFICIENT_SIZE);
    }
    count.put(found.len() as c_uint)?;
    if found.is_empty() {
        return Err(Code::NOT_FOUND);
    }
    out.put_all(found.into_iter(), room)
}

/// Returns the samples in the ring buffer that are newer than `last_seen`, oldest first. `origin_us` is the driver's
/// clock at second 0 of the scene.
fn samples(gpu: &Gpu, second: f64, origin_us: i64, last_seen: u64) -> Vec<Sample> {
    let last_seen = i64::try_from(last_seen).unwrap_or(i64::MAX);
    let newest = ((second * 1e6) as i64).div_euclid(PERIOD_US);
    let last_instant = last_seen.saturating_sub(origin_us).div_euclid(PERIOD_US);
    let mut samples = Vec::new();
    for instant in (newest - INSTANTS).max(last_instant) + 1..=newest {
        let at = (instant * PERIOD_US) as f64 / 1e6;
        // The driver's clock started after this sampling time.
        let Ok(timestamp) = u64::try_from(origin_us.saturating_add(instant * PERIOD_US)) else {
            continue;
        };
        for process in &gpu.processes {
            let (pid, sm) = (process.pid, process.sm.at(at).round() as u32);
            if sm != 0 {
                samples.push(Sample { pid, timestamp, sm, memory: 0, encoder: 0, decoder: 0 });
            }
        }
    }
    let newest = u64::try_from(origin_us.saturating_add(newest * PERIOD_US)).unwrap_or(0);
    for specified in &gpu.utilization_samples {
        if i64::try_from(newest).is_ok_and(|time| time > last_seen) {
            let (pid, sm) = (specified.pid, specified.sm);
            samples.push(Sample { pid, timestamp: newest, sm, memory: 0, encoder: 0, decoder: 0 });
        }
    }
    samples
}
