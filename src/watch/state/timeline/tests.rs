//! Tests of the timeline's limit, and of access by number and time.

use super::*;
use crate::model::finding::{Finding, Undecided};
use crate::model::{Identity, Snapshot};
use crate::watch::sample;

const KIBIBYTES: usize = 1024;

/// Returns a sample in which a quarter of the processes are active. A finding begins at second 10.
fn sample_at(second: u32, gpus: u32, processes: u32) -> (Snapshot, Vec<Finding>, Vec<Undecided>) {
    let mut snapshot = sample::snapshot(gpus, processes);
    snapshot.time = snapshot.time.plus_seconds(f64::from(second));
    for (at, process) in snapshot.processes.iter_mut().enumerate() {
        if at % 4 == 0 {
            process.cpu_seconds = Some(f64::from(second) * 1.5);
            process.rss_bytes = Some(u64::from(second) << 20);
        }
    }
    sample::entry(&mut snapshot, 0, 0).sm_percent = Some(second % 100);
    let mut findings = Vec::new();
    if second >= 10 {
        let mut finding = sample::finding(&snapshot, 0, 1);
        finding.since = sample::snapshot(1, 1).time;
        finding.duration_seconds = f64::from(second);
        finding.message = format!("has held it for {second}s");
        findings.push(finding);
    }
    let undecided = Undecided {
        rule: "leak".into(),
        pid: None,
        gpu: None,
        reason: format!("{} s are too few", second / 60 * 60),
    };
    (snapshot, findings, vec![undecided])
}

fn idle_since(identity: Identity, gpu: u32) -> Option<Time> {
    let since = i64::from(identity.pid) * 1000 + i64::from(gpu);
    (!identity.pid.is_multiple_of(3)).then(|| Time::from_unix_milliseconds(since))
}

fn sample_of(
    snapshot: Snapshot,
    findings: Vec<Finding>,
    undecided: Vec<Undecided>,
) -> Arc<JudgedSample> {
    Screenful::new(snapshot, findings, undecided, idle_since).sample
}

fn push(timeline: &mut Timeline, second: u32, processes: u32, is_live: bool) -> FrameRef {
    let (snapshot, findings, undecided) = sample_at(second, 2, processes);
    timeline.push(sample_of(snapshot, findings, undecided), is_live)
}

fn numbers(timeline: &Timeline) -> Vec<u64> {
    timeline.entries.iter().map(|entry| entry.reference.number).collect()
}

#[test]
fn live_samples_are_thinned_before_they_are_dropped() {
    let mut timeline = Timeline::with_limit(410 * KIBIBYTES);
    for second in 0..1000 {
        push(&mut timeline, second, 8, true);
        assert!(timeline.bytes <= 410 * KIBIBYTES);
    }
    let numbers = numbers(&timeline);
    let dense = numbers.windows(2).filter(|two| two[1] == two[0] + 1).count();
    let thin = numbers.windows(2).filter(|two| two[1] == two[0] + 10).count();
    assert!(dense + thin + 2 >= numbers.len(), "{numbers:?}");
    assert!(dense.abs_diff(thin) < 5, "{dense} and {thin}");
    assert_eq!(numbers.last(), Some(&999));
}

#[test]
fn the_timeline_is_bounded_for_any_samples() {
    const SMALL: u32 = 6000;
    // A thousand processes for 40 seconds, then small samples for 100 minutes.
    let mut timeline = Timeline::default();
    for second in 0..40 {
        let (snapshot, ..) = sample_at(second, 8, 125);
        timeline.push(sample_of(snapshot, Vec::new(), Vec::new()), true);
        assert!(timeline.bytes <= BYTES_MAX);
    }
    assert!(timeline.entries.len() > 5, "{}", timeline.entries.len());
    for second in 0..SMALL {
        let (snapshot, ..) = sample_at(second, 1, 2);
        timeline.push(sample_of(snapshot, Vec::new(), Vec::new()), true);
    }
    assert!(timeline.bytes <= BYTES_MAX && timeline.entries.len() < SMALL as usize);
    assert_eq!(timeline.bytes, timeline.entries.iter().map(|entry| entry.bytes).sum::<usize>());
    let mut tiny = Timeline::with_limit(1);
    push(&mut tiny, 0, 30, true);
    push(&mut tiny, 1, 30, true);
    assert_eq!(numbers(&tiny), [1]);
}
