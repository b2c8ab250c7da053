//! What findings have cost: their bytes times their duration, by kind, user and GPU.
//!
//! Pure: samples bring their time. The caller keeps it over restarts, as plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::finding::{Finding, Kind};
use super::time::Time;

/// The most seconds that a gap between two samples counts for: what happened in a longer one is unknown.
const LONGEST_GAP_SECONDS: f64 = 300.0;

/// Whose waste it is, and where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct WasteKey {
    pub kind: Kind,
    /// The process's user; absent where the finding is about a GPU, or the user is not known.
    pub user: Option<Arc<str>>,
    /// The GPU's.
    pub uuid: Option<Arc<str>>,
}

/// The sum so far.
#[derive(Clone, Debug, Default)]
pub struct Waste {
    until: Option<Time>,
    byte_seconds: BTreeMap<WasteKey, f64>,
}

impl Waste {
    /// Goes on from an earlier sum.
    pub fn since(until: Time, sums: impl IntoIterator<Item = (WasteKey, f64)>) -> Self {
        Self { until: Some(until), byte_seconds: sums.into_iter().collect() }
    }

    /// Goes on from now at the latest: the clock by which the sum was kept may have been ahead of this one.
    pub fn resume(&mut self, now: Time) {
        self.until = self.until.map(|until| until.min(now));
    }

    /// Adds what these findings cost since the sample before; a sample that is not newer adds nothing.
    pub fn observe<'a>(&mut self, time: Time, findings: impl Iterator<Item = &'a Finding>) {
        let elapsed = self.until.map_or(0.0, |until| time.seconds_since(until));
        if self.until.is_some() && elapsed <= 0.0 {
            return;
        }
        self.until = Some(time);
        let seconds = elapsed.min(LONGEST_GAP_SECONDS);
        for finding in findings.filter(|it| it.resolved_at.is_none()) {
            let user = finding.process.as_ref().and_then(|process| process.user.clone());
            for gpu in &finding.gpus {
                let bytes = match finding.process {
                    Some(_) => gpu.used_bytes,
                    None => finding.memory_bytes,
                };
                let key =
                    WasteKey { kind: finding.kind, user: user.clone(), uuid: gpu.uuid.clone() };
                if let Some(bytes) = bytes {
                    *self.byte_seconds.entry(key).or_default() += bytes as f64 * seconds;
                }
            }
        }
    }

    /// The time up to which it is added up; `None` before the first sample.
    pub fn until(&self) -> Option<Time> {
        self.until
    }

    pub fn sums(&self) -> impl Iterator<Item = (&WasteKey, f64)> {
        self.byte_seconds.iter().map(|(key, &sum)| (key, sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Process;
    use crate::model::finding::FindingGpu;
    use crate::reclaim::testing;

    #[test]
    fn it_is_bytes_times_seconds_and_goes_on_after_a_restart() {
        let process = Process { pid: 7, user: Some("ann".into()), ..Process::default() };
        let on = |used_bytes| FindingGpu { index: 0, uuid: Some("GPU-a".into()), used_bytes };
        let mut idle = testing::finding(Kind::Idle, &process);
        idle.gpus = vec![on(Some(10)), on(None)];
        let at = |seconds: f64| Time::from_unix_milliseconds(0).plus_seconds(seconds);
        let mut waste = Waste::default();
        // What was before the first sample is not known; a sample twice, or an older one, counts once.
        for seconds in [100.0, 105.0, 105.0, 90.0] {
            waste.observe(at(seconds), [&idle].into_iter());
        }
        let total = |waste: &Waste| waste.sums().map(|(_, sum)| sum).sum::<f64>();
        assert_eq!(total(&waste), 50.0);
        let (key, _) = waste.sums().next().unwrap();
        assert_eq!((key.kind, key.user.as_deref()), (Kind::Idle, Some("ann")));
        let kept: Vec<_> = waste.sums().map(|(key, sum)| (key.clone(), sum)).collect();
        let mut waste = Waste::since(waste.until().unwrap(), kept);
        waste.observe(at(115.0), [&idle].into_iter());
        assert_eq!(total(&waste), 150.0);
        // Nor is it lost until a clock that was ahead has been caught up with.
        let mut ahead = waste.clone();
        ahead.resume(at(105.0));
        ahead.observe(at(110.0), [&idle].into_iter());
        assert_eq!(total(&ahead), 200.0);
        waste.resume(at(120.0));
        assert_eq!(waste.until(), Some(at(115.0)));
        // Of a long gap no more than that is counted, and of what is over nothing.
        waste.observe(at(100_000.0), [&idle].into_iter());
        assert_eq!(total(&waste), 150.0 + 10.0 * LONGEST_GAP_SECONDS);
        idle.resolved_at = Some(at(100_000.0));
        waste.observe(at(100_010.0), [&idle].into_iter());
        assert_eq!(total(&waste), 150.0 + 10.0 * LONGEST_GAP_SECONDS);
    }
}
