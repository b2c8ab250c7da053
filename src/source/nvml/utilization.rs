//! Measures how busy each process is, from the samples that the driver keeps, and, if the driver's accounting mode is
//! enabled, since the process started ([`Accounting`]).

use std::time::{Duration, Instant, SystemTime};

use foldhash::HashMap;
use nvml_wrapper::{Device, Nvml};

use super::calls::Calls;
use super::error::Code;
use super::ffi::UtilizationSamples;
use crate::model::Time;
use crate::model::snapshot::GpuProcess;

const KEPT_BY_DRIVER: Duration = Duration::from_secs(10);

/// Longest sampling period of a driver. The period is 1/6 s to 1 s, depending on the product (`nvml.h`,
/// `nvmlDeviceGetUtilizationRates`). The absence of samples in a shorter time proves nothing.
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Default, Debug)]
struct Peak {
    sm: Option<u32>,
    memory: u32,
    encoder: u32,
    decoder: u32,
}

/// Utilization of each process. It is read more often than snapshots are taken, because the driver keeps only about
/// 10 s of samples.
#[derive(Debug, Default)]
pub(super) struct Utilization {
    samples: UtilizationSamples,
    /// The newest timestamp on the driver's clock, or 0 to request all samples.
    last_seen: u64,
    /// Peaks in the current interval, which can span several snapshots.
    peaks: HashMap<u32, Peak>,
    /// Part of the current interval that samples cover.
    covered: Duration,
    /// Peaks in the previous interval, or `None` if they are unknown.
    previous: Option<HashMap<u32, Peak>>,
    /// Whether all calls since the last snapshot succeeded.
    is_known: bool,
    /// Whether the driver supports the call, or `None` if that is unknown because the call was not made or failed for
    /// another reason.
    supported: Option<bool>,
    read_at: Option<(Instant, SystemTime)>,
    /// Part of the time since the last snapshot that samples cover.
    sampled: Duration,
}

impl Utilization {
    pub(super) fn new() -> Self {
        Self { is_known: true, ..Self::default() }
    }

    pub(super) fn supported(&self) -> Option<bool> {
        self.supported
    }

    pub(super) fn take_sampled(&mut self) -> Duration {
        std::mem::take(&mut self.sampled)
    }

    /// Reads the samples since the last call, before the driver's ring buffer overwrites them.
    pub(super) fn read_samples(&mut self, nvml: &Nvml, device: &Device<'_>, calls: &mut Calls) {
        const CALL: &str = "nvmlDeviceGetProcessUtilization";
        let read_at = (Instant::now(), SystemTime::now());
        // Some drivers use Unix time in samples. If the clock is set back, all new samples would look old, and a busy
        // process would look idle.
        if self.read_at.is_some_and(|last| clock_was_set_back(last, read_at)) {
            self.last_seen = 0;
        }
        let last_seen = self.last_seen;
        let Self { samples, peaks, .. } = self;
        let answer = calls.raw(CALL, || {
            let new_samples = samples.read(nvml, device, last_seen)?;
            let mut newest = last_seen;
            for sample in new_samples.filter(|sample| sample.timestamp > last_seen) {
                newest = newest.max(sample.timestamp);
                let peak = peaks.entry(sample.pid).or_default();
                let percents = [
                    sample.sm_percent,
                    sample.memory_percent,
                    sample.encoder_percent,
                    sample.decoder_percent,
                ];
                // Skip impossible values, which some drivers return while zombies exist.
                if percents.iter().any(|&percent| percent > 100) {
                    continue;
                }
                peak.sm = peak.sm.max(Some(sample.sm_percent));
                peak.memory = peak.memory.max(sample.memory_percent);
                peak.encoder = peak.encoder.max(sample.encoder_percent);
                peak.decoder = peak.decoder.max(sample.decoder_percent);
            }
            Ok::<_, Code>(newest)
        });
        self.supported = match answer {
            Ok(_) | Err(Code::NOT_FOUND) => Some(true),
            Err(code) => code.is_unsupported().then_some(false),
        };
        match answer {
            Ok(newest) => self.last_seen = newest,
            // No process has run since the last sample, so utilization is 0.
            Err(Code::NOT_FOUND) => {}
            Err(code) => {
                self.is_known = false;
                calls.failed(CALL, code);
                return;
            }
        }
        let since = self.read_at.replace(read_at).map(|last| read_at.0 - last.0);
        let newly_covered = since.map_or(KEPT_BY_DRIVER, |since| since.min(KEPT_BY_DRIVER));
        self.sampled += newly_covered;
        self.covered += newly_covered;
    }

    /// Sets the utilization of each row to its peak in the current interval. An interval ends when it covers
    /// [`LONGEST_PERIOD`], so it can span several snapshots. Until then, a process without new samples keeps its peak
    /// from the previous interval. On a GPU that may be partitioned by MIG, missing samples prove nothing.
    pub(super) fn fill(&mut self, rows: &mut [GpuProcess], may_be_divided: bool) {
        let is_whole = self.covered >= LONGEST_PERIOD;
        let previous = self.previous.as_ref().filter(|_| !is_whole);
        let is_known = std::mem::replace(&mut self.is_known, true);
        if is_known {
            for row in rows {
                let previous_peak = previous.and_then(|previous| previous.get(&row.pid));
                let peak = match self.peaks.get(&row.pid).or(previous_peak) {
                    None if !is_whole && previous.is_none() => continue,
                    None if may_be_divided || row.gpu_instance_id.is_some() => continue,
                    None => Peak { sm: Some(0), ..Peak::default() },
                    // If all samples of the process are implausible, its utilization is unknown.
                    Some(Peak { sm: None, .. }) => continue,
                    Some(peak) => *peak,
                };
                row.sm_percent = peak.sm;
                row.memory_percent = Some(peak.memory);
                row.encoder_percent = Some(peak.encoder);
                row.decoder_percent = Some(peak.decoder);
            }
        }
        // If a read failed, keep collecting, because the next read returns the missing samples.
        if is_known && is_whole {
            self.previous = Some(std::mem::take(&mut self.peaks));
            self.covered = Duration::ZERO;
        }
    }
}

fn clock_was_set_back(last: (Instant, SystemTime), now: (Instant, SystemTime)) -> bool {
    let expected = last.1 + now.0.duration_since(last.0);
    expected.duration_since(now.1).is_ok_and(|behind| behind > Duration::from_secs(1))
}

const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Utilization of a process since the time `since`.
#[derive(Clone, Copy, Debug)]
struct Lifetime {
    percent: Option<u32>,
    since: Time,
}

/// The statistics of each listed process, or `None` if the driver has none. The percentages cover the lifetime of a
/// process, so they change slowly. They are read when a process is first listed, and then once a minute.
#[derive(Debug, Default)]
pub(super) struct Accounting(HashMap<u32, (Instant, Option<Lifetime>)>);

impl Accounting {
    pub(super) fn fill(
        &mut self,
        rows: &mut [GpuProcess],
        device: &Device<'_>,
        is_on: bool,
        calls: &mut Calls,
    ) {
        if !is_on {
            self.0.clear();
            return;
        }
        let mut old_accounts = std::mem::take(&mut self.0);
        // The driver has no statistics for MIG instances.
        let rows = rows.iter_mut().filter(|row| row.gpu_instance_id.is_none());
        for row in rows {
            let account = self.0.get(&row.pid).copied().or_else(|| {
                let account = old_accounts.remove(&row.pid);
                account.filter(|(at, _)| at.elapsed() < AGAIN_AFTER)
            });
            let account = account.or_else(|| {
                let looked_up = look_up(row.pid, device, calls).ok()?;
                Some((Instant::now(), looked_up))
            });
            let Some(account) = account else {
                // The call failed, so the next sample tries again.
                continue;
            };
            self.0.insert(row.pid, account);
            if let Some(lifetime) = account.1 {
                row.lifetime_percent = lifetime.percent;
                row.lifetime_since = lifetime.percent.map(|_| lifetime.since);
            }
        }
    }
}

/// Reads the statistics of a process. Returns `None` if there are none, if they are impossible, or if they are about
/// an earlier process with this pid.
fn look_up(pid: u32, device: &Device<'_>, calls: &mut Calls) -> Result<Option<Lifetime>, ()> {
    const CALL: &str = "nvmlDeviceGetAccountingStats";
    let stats = match calls.raw(CALL, || device.accounting_stats_for(pid)) {
        Ok(stats) => stats,
        // The process started before accounting mode was enabled, or the driver's buffer is full.
        Err(Code::NOT_FOUND) => return Ok(None),
        Err(code) => {
            calls.failed(CALL, code);
            return Err(());
        }
    };
    // If the statistics are complete, the process that they are about has exited.
    if !stats.is_running || stats.start_time == 0 {
        return Ok(None);
    }
    if let Some(percent) = stats.gpu_utilization.filter(|&percent| percent > 100) {
        let lie = format!("the driver reports {percent} percent of process {pid}'s lifetime");
        calls.report(CALL, lie);
        return Ok(None);
    }
    let milliseconds = i64::try_from(stats.start_time / 1000).unwrap_or(i64::MAX);
    Ok(Some(Lifetime {
        percent: stats.gpu_utilization,
        since: Time::from_unix_milliseconds(milliseconds),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_within_a_period_does_not_prove_zero() {
        let mut utilization = Utilization::new();
        let mut filled = |milliseconds: u64, sample: Option<u32>| {
            let peak = |sm| Peak { sm: Some(sm), ..Peak::default() };
            utilization.peaks.extend(sample.map(|sm| (7, peak(sm))));
            utilization.covered += Duration::from_millis(milliseconds);
            let mut rows = [GpuProcess { pid: 7, ..GpuProcess::default() }];
            utilization.fill(&mut rows, false);
            rows[0].sm_percent
        };
        // The driver takes a sample each second, and gpumem reads four times a second. The process is busy, then
        // idle, then busy.
        assert_eq!(filled(250, None), None);
        assert_eq!([250, 250, 250].map(|time| filled(time, None)), [None, None, Some(0)]);
        assert_eq!(filled(250, Some(30)), Some(30));
        assert_eq!([250; 3].map(|time| filled(time, None)), [Some(30); 3]);
        assert_eq!([250; 3].map(|time| filled(time, None)), [Some(30); 3]);
        assert_eq!([250; 4].map(|time| filled(time, None)), [Some(0); 4]);
        // gpumem reads as often as the driver takes samples, so each read covers an interval.
        assert_eq!(filled(1000, Some(40)), Some(40));
        assert_eq!([1000; 2].map(|time| filled(time, None)), [Some(0); 2]);
    }

    #[test]
    fn a_clock_set_back_is_detected() {
        let last = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
        let later = |wall: i64| {
            let wall = Duration::from_millis(1_000_000_000u64.saturating_add_signed(wall));
            (last.0 + Duration::from_secs(5), SystemTime::UNIX_EPOCH + wall)
        };
        assert!(!clock_was_set_back(last, later(5_000)));
        assert!(!clock_was_set_back(last, later(4_500)));
        assert!(!clock_was_set_back(last, later(3_600_000)));
        assert!(clock_was_set_back(last, later(-3_600_000)));
    }
}
