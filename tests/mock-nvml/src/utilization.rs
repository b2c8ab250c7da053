//! Utilization samples per process, as the driver's ring would hold them.
//!
//! The ring holds the last 10 s at 7.2 samples a second. Ours has at each of these instants one
//! sample for each process that is busy then, stamped with that instant. (The hardware names one
//! process at each; with one busy process the two are the same.)

use std::ffi::{c_uint, c_ulonglong};

use crate::answer::{Answer, Code};
use crate::driver::Device;
use crate::pointer::Pointer;
use crate::scene::{Gpu, Value};

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

/// Microseconds between two instants of the ring.
const PERIOD_US: i64 = 1_000_000 * 10 / 72;
/// Instants in the ring.
const INSTANTS: i64 = 72;
/// What the driver says that a caller needs room for, however few samples there are.
const USUAL_ROOM: usize = 100;

/// `nvmlDeviceGetProcessUtilization`.
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
        // Room for one more instant, which may pass before the caller comes back.
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

/// The samples in the ring at a second of the scene that are newer than `last_seen`, oldest first.
/// `origin_us` is the driver's clock at second 0.
fn samples(gpu: &Gpu, second: f64, origin_us: i64, last_seen: u64) -> Vec<Sample> {
    let last_seen = i64::try_from(last_seen).unwrap_or(i64::MAX);
    let newest = ((second * 1e6) as i64).div_euclid(PERIOD_US);
    let seen = last_seen.saturating_sub(origin_us).div_euclid(PERIOD_US);
    let mut samples = Vec::new();
    for instant in (newest - INSTANTS).max(seen) + 1..=newest {
        let at = (instant * PERIOD_US) as f64 / 1e6;
        // A machine that has only just started has no stamps from before that.
        let Ok(timestamp) = u64::try_from(origin_us.saturating_add(instant * PERIOD_US)) else {
            continue;
        };
        for process in gpu.processes.iter().filter(|process| process.is_there(at)) {
            let percent = |value: &Value| value.at(at).round() as u32;
            let sample = Sample {
                pid: process.pid,
                timestamp,
                sm: percent(&process.sm),
                memory: percent(&process.memory_util),
                encoder: percent(&process.encoder),
                decoder: percent(&process.decoder),
            };
            if (sample.sm, sample.memory, sample.encoder, sample.decoder) != (0, 0, 0, 0) {
                samples.push(sample);
            }
        }
    }
    let newest = u64::try_from(origin_us.saturating_add(newest * PERIOD_US)).unwrap_or(0);
    for dictated in &gpu.utilization_samples {
        if dictated.timestamp.is_some() || i64::try_from(newest).is_ok_and(|at| at > last_seen) {
            samples.push(Sample {
                pid: dictated.pid,
                timestamp: dictated.timestamp.unwrap_or(newest),
                sm: dictated.sm,
                memory: dictated.memory,
                encoder: dictated.encoder,
                decoder: dictated.decoder,
            });
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scene::{self, Process};

    const ORIGIN: i64 = 1_763_700_000_000_000;

    #[test]
    fn the_ring_holds_ten_seconds_of_each_busy_process() {
        let gpu = Gpu::default()
            .process(Process::compute(1, 0).sm(50))
            .process(Process::compute(2, 0))
            .process(Process::compute(3, 0).sm([(0.0, 0.0), (95.0, 7.0)]));
        let found = samples(&gpu, 100.0, ORIGIN, 0);
        let of = |pid| found.iter().filter(move |sample| sample.pid == pid);
        assert_eq!((of(1).count(), of(2).count(), of(3).count()), (72, 0, 36));
        assert!(of(1).all(|sample| sample.sm == 50));
        assert!(found.is_sorted_by_key(|sample| sample.timestamp));
        let rows: BTreeSet<_> = found.iter().map(|row| (row.timestamp, row.pid)).collect();
        assert_eq!(rows.len(), found.len(), "one row for each pid and instant");
        let newest = ORIGIN as u64 + 100_000_000;
        assert!(found.iter().all(|row| (newest - 10_000_000..=newest).contains(&row.timestamp)));
    }

    #[test]
    fn only_what_is_newer_than_seen_is_given() {
        let gpu = Gpu::default().process(Process::compute(1, 0).sm(50));
        let first = samples(&gpu, 100.0, ORIGIN, 0);
        let seen = first.last().map_or(0, |sample| sample.timestamp);
        assert_eq!(samples(&gpu, 100.0, ORIGIN, seen), []);
        let later = samples(&gpu, 101.0, ORIGIN, seen);
        assert!((7..=8).contains(&later.len()));
        assert!(later.iter().all(|sample| sample.timestamp > seen));
        assert_eq!(samples(&gpu, 101.0, ORIGIN, u64::MAX), []);
    }

    #[test]
    fn samples_stay_after_their_process_has_gone() {
        let gpu = Gpu::default().process(Process::compute(1, 0).sm(50).between(10.0, 20.0));
        assert_eq!(samples(&gpu, 9.0, ORIGIN, 0), []);
        assert_eq!(samples(&gpu, 25.0, ORIGIN, 0).len(), 36);
        assert_eq!(samples(&gpu, 31.0, ORIGIN, 0), []);
    }

    #[test]
    fn a_scene_may_dictate_garbage() {
        let garbage = scene::Sample { pid: 7, sm: 4_000_000_000, ..scene::Sample::default() };
        let stamped = scene::Sample { pid: 8, timestamp: Some(3), ..scene::Sample::default() };
        let gpu = Gpu { utilization_samples: vec![garbage, stamped], ..Gpu::default() };
        let pids = |last_seen| -> Vec<u32> {
            let found = samples(&gpu, 5.0, ORIGIN, last_seen);
            found.iter().map(|sample| sample.pid).collect()
        };
        assert_eq!(pids(0), [7, 8]);
        assert_eq!(pids(u64::MAX), [8]);
    }
}
