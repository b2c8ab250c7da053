//! A labelled recording.

use std::collections::BTreeMap;
use std::fmt;

use gpumem::api::model::Snapshot;
use serde_json::Value;

use super::{NOTED, SCORED};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    Process(u32),
    Gpu(u32),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Gpu(index) => write!(f, "GPU {index}"),
        }
    }
}

/// The kind and the subject of a finding.
pub type Verdict = (&'static str, Subject);

/// The findings that gpumem must or may report after the last snapshot.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    pub expected: Vec<Verdict>,
    /// Expected info findings. No other info findings may appear.
    pub noted: Vec<Verdict>,
    pub allowed: Vec<Verdict>,
    /// Whether a reaper may kill a process by default, by pid. A reaper must not kill a process that is not in the map.
    pub kill_ok: BTreeMap<u32, bool>,
    /// Severity of the expected findings, or `None` if the test does not check it.
    pub severity: Option<&'static str>,
    /// Findings that are allowed between two times, in seconds.
    pub tolerated: Vec<(Verdict, f64, f64)>,
    /// The time in seconds at which the cause of the expected findings begins, or `None` if the test does not check
    /// the delay.
    pub onset: Option<f64>,
}

impl Labels {
    pub fn read(entry: &Value) -> Self {
        let list = |key: &str| -> Vec<Verdict> {
            let labels = entry[key].as_array().into_iter().flatten();
            labels.map(verdict).collect()
        };
        let kill_ok = entry["kill_ok"].as_object().unwrap();
        let severities = entry["expected"].as_array().unwrap().iter();
        let is_critical = |label: &Value| label["severity"] == "critical";
        Self {
            expected: list("expected"),
            noted: list("noted"),
            allowed: list("allowed"),
            kill_ok: kill_ok
                .iter()
                .map(|(pid, may)| (pid.parse().unwrap(), may.as_bool().unwrap()))
                .collect(),
            severity: severities.clone().any(is_critical).then_some("critical"),
            ..Self::default()
        }
    }
}

fn verdict(label: &Value) -> Verdict {
    let kind = SCORED.iter().chain(NOTED).find(|kind| label["kind"] == **kind);
    let subject = match (label["process"].as_u64(), label["gpu"].as_u64()) {
        (Some(pid), _) => Subject::Process(pid as u32),
        (None, gpu) => Subject::Gpu(gpu.unwrap() as u32),
    };
    (kind.expect("a kind that is scored"), subject)
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub family: &'static str,
    pub seed: u64,
    pub story: &'static str,
    pub labels: Labels,
    pub snapshots: Vec<Snapshot>,
}

impl Scenario {
    /// Returns the recording with one snapshot per line.
    pub fn to_jsonl(&self) -> String {
        let mut text = String::new();
        for snapshot in &self.snapshots {
            text += &serde_json::to_string(snapshot).unwrap();
            text.push('\n');
        }
        text
    }

    pub fn file(&self) -> String {
        format!("{}-{}.jsonl", self.family, self.seed)
    }
}
