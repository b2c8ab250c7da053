//! Tests of the timeline by number and by time, and of its bound.

use super::*;
use crate::model::finding::{Finding, Undecided};
use crate::model::{Identity, Snapshot};
use crate::watch::sample;

const KIBIBYTES: usize = 1024;

/// A machine at `second`: some processes work, most are idle, and from second 10 on one has a finding.
fn scene(second: u32, gpus: u32, processes: u32) -> (Snapshot, Vec<Finding>, Vec<Undecided>) {
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
    let (snapshot, findings, undecided) = scene(second, 2, processes);
    timeline.push(sample_of(snapshot, findings, undecided), is_live)
}

fn marks(timeline: &Timeline) -> Vec<u64> {
    timeline.entries.iter().map(|entry| entry.reference.number).collect()
}

#[test]
fn it_is_asked_by_number_and_by_time() {
    let mut timeline = Timeline::default();
    for second in 0..5 {
        push(&mut timeline, second * 10, 2, true);
    }
    let number = |mark: Option<FrameRef>| mark.map(|mark| mark.number);
    let first = timeline.oldest().unwrap().time;
    assert_eq!(number(timeline.before(0)), None);
    assert_eq!(number(timeline.before(3)), Some(2));
    assert_eq!(number(timeline.after(3)), Some(4));
    assert_eq!(number(timeline.after(4)), None);
    assert_eq!(number(timeline.at(first.plus_seconds(-9.0))), Some(0));
    assert_eq!(number(timeline.at(first.plus_seconds(10.0))), Some(1));
    assert_eq!(number(timeline.at(first.plus_seconds(10.5))), Some(2));
    assert_eq!(number(timeline.at(first.plus_seconds(40.5))), None);
    assert_eq!(number(timeline.after(u64::MAX)), None);
}

#[test]
fn a_recording_loses_the_oldest_first_and_keeps_the_rest_whole() {
    let mut timeline = Timeline::of(640 * KIBIBYTES);
    for second in 0..400 {
        let mark = push(&mut timeline, second, 8, false);
        assert_eq!(mark.number, u64::from(second));
        assert!(timeline.bytes <= 640 * KIBIBYTES);
    }
    let marks = marks(&timeline);
    assert!(marks.len() > 5 && marks[0] > 0, "{}", marks.len());
    assert!(marks.windows(2).all(|two| two[1] == two[0] + 1));
    assert_eq!(marks.last(), Some(&399));
    assert_eq!(timeline.beginning_before(399), Some(10), "it is remembered");
    timeline.clear();
    assert_eq!((timeline.oldest(), timeline.bytes), (None, 0));
    assert_eq!(push(&mut timeline, 0, 8, false).number, 0);
}

#[test]
fn on_a_live_machine_old_samples_are_thinned_before_the_oldest_are_dropped() {
    let mut timeline = Timeline::of(410 * KIBIBYTES);
    for second in 0..1000 {
        push(&mut timeline, second, 8, true);
        assert!(timeline.bytes <= 410 * KIBIBYTES);
    }
    let marks = marks(&timeline);
    let dense = marks.windows(2).filter(|two| two[1] == two[0] + 1).count();
    let thin = marks.windows(2).filter(|two| two[1] == two[0] + 10).count();
    // There may be a gap where the thinned samples end.
    assert!(dense + thin + 2 >= marks.len(), "{marks:?}");
    assert!(dense.abs_diff(thin) < 5, "{dense} and {thin}");
    assert_eq!(marks.last(), Some(&999));
}

#[test]
fn it_is_bounded_whatever_comes() {
    const SMALL: u32 = 6000;
    // A thousand busy processes for minutes, then small samples for hours.
    let mut timeline = Timeline::default();
    for second in 0..40 {
        let (snapshot, ..) = scene(second, 8, 125);
        timeline.push(sample_of(snapshot, Vec::new(), Vec::new()), true);
        assert!(timeline.bytes <= MOST_BYTES);
    }
    assert!(timeline.entries.len() > 5, "{}", timeline.entries.len());
    for second in 0..SMALL {
        let (snapshot, ..) = scene(second, 1, 2);
        timeline.push(sample_of(snapshot, Vec::new(), Vec::new()), true);
    }
    assert!(timeline.bytes <= MOST_BYTES && timeline.entries.len() < SMALL as usize);
    assert_eq!(timeline.bytes, timeline.entries.iter().map(|entry| entry.bytes).sum::<usize>());
    // A single sample is kept, however large.
    let mut tiny = Timeline::of(1);
    push(&mut tiny, 0, 30, true);
    push(&mut tiny, 1, 30, true);
    assert_eq!(marks(&tiny), [1]);
}
