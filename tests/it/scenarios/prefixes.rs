//! Compares the findings at every point in a recording with the labels.
//!
//! A warning or critical finding is false unless the labels expect it, tolerate it at that time, or allow it. An
//! expected finding must appear within 20 minutes after its cause has begun. Until then, its absence is not a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gpumem::api::model::{Kind, Severity, Snapshot, Time};
use gpumem::api::rules::Engine;
use serde_json::Value;

use super::judge::{self, Found};
use super::scenario::{Labels, Subject, Verdict};

/// Maximum delay of an expected finding.
const PATIENCE_SECONDS: f64 = 1200.0;

// The limits come from measurements with seeds that were not used while the rules were developed.
const MAX_ALARMS_A_DAY: f64 = 0.14;
const MIN_F1: f64 = 0.97;

/// Families whose labels are correct at every time, because they always leak, never leak, or have an onset in their
/// labels.
const CLEAR: &[&str] = &[
    "leak_that_stopped",
    "leak_that_stopped_under_peaks",
    "leak_that_stopped_in_a_sawtooth",
    "leak_given_back",
    "alloc_high_water",
    "pinned_card",
    "leak_in_large_steps",
    "leak_by_requests",
    "leak_by_random_requests",
    "leak_linear",
    "leak_late",
    "leak_under_noise",
    "leak_under_peaks",
    "leak_in_a_sawtooth",
    "leak_in_segments",
    "warmup_steps",
    "warmup_exponential",
    "sawtooth_equal_peaks",
    "evaluation_peaks",
    "batch_changes",
    "dynamic_shapes",
    "random_walk_within_bounds",
    "hyperparameter_search",
    "small_growth",
    "high_water_of_long_tails",
    "settles_slowly",
    "cache_fills_to_a_limit",
    "drifts_within_a_band",
    "requests_come_and_go",
    "requests_fill_a_cache",
    "grows_by_logarithm",
    "grows_by_root",
];

/// Families with leaks in random steps. Each recording has a single finding, except in a few runs.
const RANDOM_STEPS: &[&str] =
    &["leak_by_random_requests", "leak_by_requests", "leak_under_noise", "leak_in_a_sawtooth"];

/// Families with leaks that end, and whether the use of memory still varies. Ten minutes after the end, no leak finding
/// remains. With varying use, one run in ten may be late.
const STOPPED: &[(&str, bool)] = &[
    ("leak_that_stopped", false),
    ("leak_given_back", false),
    ("leak_that_stopped_under_peaks", true),
    ("leak_that_stopped_in_a_sawtooth", true),
    ("leak_that_stopped_under_noise", true),
];

/// Totals over several recordings.
#[derive(Default)]
pub struct Score {
    hours: f64,
    /// Numbers of samples, which are taken once a minute.
    right: usize,
    missed: usize,
    wrong: usize,
    alarms: usize,
    messages: String,
    /// By family: the number of recordings, and descriptions of those that fail its additional check.
    checks: BTreeMap<&'static str, (usize, String)>,
}

impl Score {
    fn alarms_a_day(&self) -> f64 {
        self.alarms as f64 * 24.0 / self.hours.max(1e-9)
    }

    fn f1(&self) -> f64 {
        let right = 2.0 * self.right as f64;
        right / (right + (self.missed + self.wrong) as f64).max(1.0)
    }

    /// Plays a recording. Returns the findings at its end, and the flickers.
    pub fn play(
        &mut self,
        family: &'static str,
        name: &str,
        snapshots: &[Snapshot],
        labels: &Labels,
    ) -> (Vec<Found>, Vec<String>) {
        let first = snapshots[0].time;
        let is_clear = CLEAR.contains(&family);
        let mut active = BTreeMap::new();
        let mut minute = f64::NEG_INFINITY;
        let mut leaks = Leaks::default();
        let played = judge::play(snapshots, |engine, time| {
            let t = time.seconds_since(first);
            leaks.observe(engine, t);
            if is_clear {
                self.observe(engine, t, name, labels, &mut active);
                if t - minute >= 60.0 {
                    minute = t;
                    self.count(t, labels, &active);
                }
            }
        });
        if is_clear {
            self.hours += snapshots[snapshots.len() - 1].time.seconds_since(first) / 3600.0;
        }
        if RANDOM_STEPS.contains(&family) {
            let failure = (leaks.begins > 1).then(|| format!("{} findings", leaks.begins));
            self.add_check(family, name, failure);
        }
        if STOPPED.iter().any(|(stopped, _)| *stopped == family) {
            let late = leaks.grave_until - labels.tolerated[0].2;
            self.add_check(family, name, (late > 0.0).then(|| format!("{late:.0} s late")));
        }
        played
    }

    fn add_check(&mut self, family: &'static str, name: &str, failure: Option<String>) {
        let (runs, failures) = self.checks.entry(family).or_default();
        *runs += 1;
        if let Some(failure) = failure {
            let _ = writeln!(failures, "{name}: {failure}");
        }
    }

    /// Compares the findings at one time with the labels.
    fn observe(
        &mut self,
        engine: &Engine,
        t: f64,
        name: &str,
        labels: &Labels,
        active: &mut BTreeMap<Verdict, bool>,
    ) {
        let mut now = BTreeMap::new();
        for finding in engine.findings() {
            if finding.severity < Severity::Warning {
                continue;
            }
            let subject = match (&finding.process, finding.gpus.first()) {
                (Some(process), _) => Subject::Process(process.identity.pid),
                (None, Some(gpu)) => Subject::Gpu(gpu.index),
                (None, None) => continue,
            };
            let verdict = (finding.kind.name(), subject);
            let is_tolerated = |(tolerated, from, to): &(Verdict, f64, f64)| {
                *tolerated == verdict && (*from..=*to).contains(&t)
            };
            let is_right = labels.expected.contains(&verdict)
                || labels.allowed.contains(&verdict)
                || labels.tolerated.iter().any(is_tolerated);
            now.insert(verdict, is_right);
            if !is_right && active.get(&verdict) != Some(&false) {
                self.alarms += 1;
                let _ = writeln!(self.messages, "{name} at {t:.0} s: {}", finding.message);
            }
        }
        *active = now;
    }

    fn count(&mut self, t: f64, labels: &Labels, active: &BTreeMap<Verdict, bool>) {
        self.wrong += active.values().filter(|right| !**right).count();
        if labels.onset.is_some_and(|onset| t >= onset + PATIENCE_SECONDS) {
            let found = labels.expected.iter().filter(|&verdict| active.contains_key(verdict));
            let found = found.count();
            self.right += found;
            self.missed += labels.expected.len() - found;
        }
    }

    /// Returns descriptions of the limits that are exceeded.
    pub fn complaints(&self) -> String {
        let mut complaints = String::new();
        if self.alarms_a_day() > MAX_ALARMS_A_DAY || (self.right > 0 && self.f1() < MIN_F1) {
            let (alarms, f1) = (self.alarms_a_day(), self.f1());
            complaints +=
                &format!("{alarms:.2} false alarms per day, F1 {f1:.3}\n{}", self.messages);
        }
        let checks = |families: &[&str]| {
            let of_families = self.checks.iter().filter(|(family, _)| families.contains(family));
            of_families.fold((0, String::new()), |(runs, failures), (_, (more, text))| {
                (runs + more, failures + text)
            })
        };
        // Allow one failure in 20 runs, and one more for small numbers of runs.
        let (runs, failures) = checks(RANDOM_STEPS);
        let mut limits = vec![(failures, runs / 20 + 1)];
        for (family, varies) in STOPPED {
            let (runs, failures) = checks(&[*family]);
            limits.push((failures, if *varies { runs / 10 + 1 } else { 0 }));
        }
        let exceeded = limits.into_iter().filter(|(text, limit)| text.lines().count() > *limit);
        exceeded.fold(complaints, |complaints, (text, _)| complaints + &text)
    }
}

/// The leak findings of a recording.
#[derive(Default)]
struct Leaks {
    /// Number of findings that have begun.
    begins: usize,
    standing: BTreeSet<String>,
    /// The last time in seconds at which the severity of a finding is above info.
    grave_until: f64,
}

impl Leaks {
    fn observe(&mut self, engine: &Engine, t: f64) {
        let leaks = || engine.findings().iter().filter(|finding| finding.kind == Kind::Leak);
        let now: BTreeSet<String> = leaks().map(|finding| finding.id.to_string()).collect();
        self.begins += now.difference(&self.standing).count();
        self.standing = now;
        if leaks().any(|finding| finding.severity > Severity::Info) {
            self.grave_until = t;
        }
    }
}

fn labels(trace: &Value, first: Time) -> Labels {
    let seconds = |time: &Value| {
        let time: Time = time.as_str().unwrap().parse().unwrap();
        time.seconds_since(first)
    };
    let mut labels = Labels::read(trace);
    let onsets = trace["expected"].as_array().unwrap().iter();
    labels.onset = onsets.map(|expected| seconds(&expected["onset"])).reduce(f64::max);
    for tolerated in trace["tolerated"].as_array().unwrap() {
        let process = tolerated["process"].as_u64().unwrap() as u32;
        assert_eq!(tolerated["kind"], "leak");
        labels.tolerated.push((
            ("leak", Subject::Process(process)),
            seconds(&tolerated["from"]),
            seconds(&tolerated["to"]),
        ));
    }
    labels
}

/// Earlier versions of gpumem reported wrong findings for these public recordings.
#[test]
fn public_recordings_are_judged_right_at_every_time() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/over-time");
    let text = fs::read_to_string(folder.join("labels.json")).unwrap();
    let traces: Value = serde_json::from_str(&text).unwrap();
    let mut wrong: Vec<String> = Vec::new();
    let mut score = Score::default();
    for trace in traces["traces"].as_array().unwrap() {
        let file = trace["file"].as_str().unwrap();
        let bytes = zstd::decode_all(&*fs::read(folder.join(file)).unwrap()).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let snapshots: Vec<Snapshot> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let labels = labels(trace, snapshots[0].time);
        let (found, _) = score.play("leak_linear", file, &snapshots, &labels);
        let complaints = judge::complaints(&labels, &found);
        wrong.extend(complaints.into_iter().map(|complaint| format!("{file}: {complaint}")));
    }
    assert_eq!(wrong, [""; 0]);
    assert!(score.hours > 40.0, "{} h", score.hours);
    assert_eq!(score.alarms, 0, "{}", score.messages);
}
