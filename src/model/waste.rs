//! The cost of findings: bytes multiplied by time, for each kind, user and GPU.
//!
//! Time comes from the samples. Sums start at 0 and are not saved, because consumers such as Prometheus handle
//! counter resets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::finding::{Finding, Kind};
use super::snapshot::Snapshot;
use super::time::Time;

/// Maximum interval, in seconds, that a sample adds to the cost. The finding may have ended during a longer gap.
const LONGEST_GAP_SECONDS: f64 = 300.0;
/// Time, in seconds, after which the sums of a user who holds no GPU memory are dropped. This limits the number of
/// series.
const USER_SECONDS: f64 = 86_400.0;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WasteKey {
    pub kind: Kind,
    /// User of the process, or `None` if the finding is on a GPU or the user is unknown.
    pub user: Option<Arc<str>>,
    pub uuid: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
pub struct Waste {
    until: Option<Time>,
    byte_seconds: BTreeMap<WasteKey, f64>,
    held: HashMap<Arc<str>, Time>,
}

impl Waste {
    /// Adds the cost since the previous sample. Ignores a sample that is not newer than the previous one.
    pub fn observe(&mut self, snapshot: &Snapshot, findings: &[Finding]) {
        let time = snapshot.time;
        let elapsed = self.until.map_or(0.0, |until| time.seconds_since(until));
        if self.until.is_some() && elapsed <= 0.0 {
            return;
        }
        self.until = Some(time);
        let seconds = elapsed.min(LONGEST_GAP_SECONDS);
        self.held.extend(holding_users(snapshot).map(|user| (Arc::clone(user), time)));
        for finding in findings.iter().filter(|finding| finding.resolved_at.is_none()) {
            let user = finding.process.as_ref().and_then(|process| process.user.clone());
            // If the process has exited, only its finding contains its user.
            self.held.extend(user.clone().map(|user| (user, time)));
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
        self.held.retain(|_, last| time.seconds_since(*last) <= USER_SECONDS);
        let held = &self.held;
        let is_kept =
            |user: &Option<Arc<str>>| user.as_ref().is_none_or(|user| held.contains_key(user));
        self.byte_seconds.retain(|key, _| is_kept(&key.user));
    }

    pub fn sums(&self) -> impl Iterator<Item = (&WasteKey, f64)> {
        self.byte_seconds.iter().map(|(key, &sum)| (key, sum))
    }
}

fn holding_users(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<str>> {
    let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let holding: HashSet<u32> =
        rows.filter(|row| row.used_bytes != Some(0)).map(|row| row.pid).collect();
    let processes = snapshot.processes.iter();
    let holders = processes.filter(move |process| holding.contains(&process.pid));
    holders.filter_map(|process| process.user.as_ref())
}

/// Way in which memory was reclaimed: `"release"`, `"unload"` or `"end"`.
pub type How = &'static str;

/// Counters of past actions in the audit log. They never decrease.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    pub bytes: BTreeMap<(How, Arc<str>), u64>,
    pub acts: BTreeMap<(How, Arc<str>), u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::FindingGpu;
    use crate::model::{Gpu, GpuProcess, Process};
    use crate::reclaim::testing;

    /// Returns a sample in which each of these users holds memory. The pid is the position in the list.
    fn sample(seconds: f64, users: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::new(Time::from_unix_milliseconds(0).plus_seconds(seconds));
        let row = |pid: u32| GpuProcess { pid, used_bytes: Some(10), ..GpuProcess::default() };
        let processes = (0..users.len() as u32).map(row).collect();
        snapshot.gpus = vec![Gpu { processes: Some(processes), ..Gpu::default() }];
        let process = |(pid, user): (usize, &&str)| Process {
            pid: pid as u32,
            user: Some((*user).into()),
            ..Process::default()
        };
        snapshot.processes = users.iter().enumerate().map(process).collect();
        snapshot
    }

    fn idle(user: &str) -> Finding {
        let process = Process { pid: 7, user: Some(user.into()), ..Process::default() };
        let on = |used_bytes| FindingGpu { index: 0, uuid: Some("GPU-a".into()), used_bytes };
        let mut idle = testing::finding(Kind::Idle, &process);
        idle.gpus = vec![on(Some(10)), on(None)];
        idle
    }

    fn total(waste: &Waste) -> f64 {
        waste.sums().map(|(_, sum)| sum).sum()
    }

    #[test]
    fn waste_is_bytes_times_seconds() {
        let mut findings = [idle("ann")];
        let mut waste = Waste::default();
        // A sample that is not newer than the previous one adds nothing.
        for seconds in [100.0, 105.0, 105.0, 90.0] {
            waste.observe(&sample(seconds, &[]), &findings);
        }
        assert_eq!(total(&waste), 50.0);
        let (key, _) = waste.sums().next().unwrap();
        assert_eq!((key.kind, key.user.as_deref()), (Kind::Idle, Some("ann")));
        // A long gap is charged only up to the maximum, and a resolved finding adds nothing.
        waste.observe(&sample(10_000.0, &[]), &findings);
        assert_eq!(total(&waste), 50.0 + 10.0 * LONGEST_GAP_SECONDS);
        findings[0].resolved_at = Some(Time::from_unix_milliseconds(10_000_000));
        waste.observe(&sample(10_010.0, &[]), &findings);
        assert_eq!(total(&waste), 50.0 + 10.0 * LONGEST_GAP_SECONDS);
    }

    #[test]
    fn users_without_memory_for_a_day_are_dropped() {
        let mut waste = Waste::default();
        let findings = [idle("ann"), idle("ben")];
        for seconds in [0.0, 10.0] {
            waste.observe(&sample(seconds, &["ann", "ben"]), &findings);
        }
        let users = |waste: &Waste| -> Vec<String> {
            let users = waste.sums().filter_map(|(key, _)| key.user.as_deref().map(str::to_owned));
            users.collect()
        };
        waste.observe(&sample(10.0 + USER_SECONDS, &["ann"]), &[]);
        assert_eq!(users(&waste), ["ann", "ben"]);
        // ann still holds memory but has no finding.
        waste.observe(&sample(11.0 + USER_SECONDS, &["ann"]), &[]);
        assert_eq!(users(&waste), ["ann"]);
    }
}
