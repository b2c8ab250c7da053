//! The report of `gpumem run`, as text, JSON, JUnit XML and annotations.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use super::ci::{Case, CaseResult, Failure, Level, Suite, annotation};
use crate::model::balance::WORTH_MENTIONING_BYTES;
use crate::model::finding::{Finding, FindingProcess};
use crate::model::{Kind, Time};
use crate::units::{Bytes, Span, number_of, some_of};

pub const SCHEMA: &str = "gpumem.run/1";
/// Maximum number of GPUs or processes named in one line of text.
const NAMED: usize = 4;

/// The file that `gpumem run --report FILE.json` writes: GPU use of a command and its descendants. Units are part of
/// the field names. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct RunReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Start time of the command: RFC 3339, UTC.
    pub time: Time,
    /// Run time of the command, in seconds.
    pub seconds: f64,
    /// Time spent waiting for GPUs before the start, in seconds; absent if gpumem did not choose GPUs.
    pub waited_seconds: Option<f64>,
    /// The command and its arguments. Secrets are masked (`***`).
    pub command: Arc<[Arc<str>]>,
    /// Exit code of the command; absent if a signal ended it.
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the command.
    pub signal: Option<i32>,
    /// `ok`; `failed`: the command failed; `findings`: the command succeeded, but an assertion failed; `error`: the
    /// command succeeded, but an assertion could not be measured; `incomplete`: the command was not started, or
    /// gpumem ended before the command did. The reason is in `errors`.
    pub status: RunStatus,
    /// Number of samples of the GPUs while the command ran.
    pub samples: u64,
    /// For each GPU, the total use by the command and its descendants.
    pub gpus: Vec<RunGpu>,
    /// For each process and GPU, the use by the process, most memory first.
    pub processes: Vec<RunProcess>,
    /// Whether the run was long enough to rule out leaks if none were found.
    pub leaks_decided: bool,
    /// Leaks of the command and its descendants.
    pub leaks: Vec<Finding>,
    /// Processes of the run that still held memory five seconds after the command's end; absent if unknown.
    pub held: Option<Vec<HeldMemory>>,
    /// Minimum free memory of each GPU that the command could see or used, fullest GPU first; absent if the command
    /// succeeded.
    pub least_free: Option<Vec<LeastFree>>,
    /// Results of the assertions (`--max-peak`, `--fail-on`).
    pub assertions: Vec<RunAssertion>,
    /// Read errors and other notes.
    pub errors: Vec<String>,
}

/// Result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// The command succeeded, and all assertions passed.
    Ok,
    /// The command failed.
    Failed,
    /// The command succeeded, but an assertion failed.
    Findings,
    /// The command succeeded, but an assertion could not be measured.
    Error,
    /// The command was not started, or gpumem ended before the command did.
    #[default]
    Incomplete,
}

/// Figures computed from the samples of a run.
#[skip_serializing_none]
#[derive(Clone, Copy, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct RunFigures {
    /// Peak memory in a sample, in bytes; absent if unknown in all samples.
    pub peak_bytes: Option<u64>,
    /// Time of the first sample with the peak.
    pub peak_time: Option<Time>,
    /// Mean memory over the samples, in bytes.
    pub mean_bytes: Option<u64>,
    /// Memory in the last sample before the end, in bytes.
    pub last_bytes: Option<u64>,
    /// Maximum SM utilization, in percent.
    pub sm_percent_max: Option<u32>,
    /// Mean SM utilization over the samples, in percent.
    pub sm_percent_mean: Option<f64>,
    /// Whether memory was unknown in any sample.
    #[serde(skip)]
    pub has_unknown: bool,
    /// Sum and count of the known values of bytes and SM utilization, for the means.
    #[serde(skip)]
    sums: [(u64, u64); 2],
}

impl RunFigures {
    pub fn add(&mut self, time: Time, bytes: Option<u64>, sm: Option<u32>) {
        self.raise_peak(time, bytes);
        let [of_bytes, of_sm] = &mut self.sums;
        self.last_bytes = bytes;
        self.has_unknown |= bytes.is_none();
        if let Some(bytes) = bytes {
            *of_bytes = (of_bytes.0 + bytes, of_bytes.1 + 1);
            self.mean_bytes = of_bytes.0.checked_div(of_bytes.1);
        }
        self.sm_percent_max = self.sm_percent_max.max(sm);
        if let Some(sm) = sm {
            *of_sm = (of_sm.0 + u64::from(sm), of_sm.1 + 1);
            self.sm_percent_mean = Some(of_sm.0 as f64 / of_sm.1 as f64);
        }
    }

    pub fn raise_peak(&mut self, time: Time, bytes: Option<u64>) {
        if bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_time) = (bytes, Some(time));
        }
    }
}

/// A GPU that a run used.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct RunGpu {
    /// NVML index.
    pub index: u32,
    /// UUID: `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// Product name.
    pub name: Option<Arc<str>>,
    /// Total memory of the GPU, in bytes.
    pub total_bytes: Option<u64>,
    #[serde(flatten)]
    pub figures: RunFigures,
}

/// A process of a run, on one GPU.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct RunProcess {
    /// The process.
    pub process: FindingProcess,
    /// Short name of the process.
    pub name: String,
    /// NVML index of the GPU.
    pub gpu: u32,
    #[serde(flatten)]
    pub figures: RunFigures,
}

/// Memory that a process still holds after the end of the command.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HeldMemory {
    /// The process.
    pub process: FindingProcess,
    /// Short name of the process.
    pub name: String,
    /// NVML index of the GPU.
    pub gpu: u32,
    /// Memory that the process holds on the GPU, in bytes.
    pub used_bytes: Option<u64>,
    /// Command that frees the memory, or shows details.
    pub command: String,
}

/// The last sample of a run in which the free memory of a GPU was at its minimum.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct LeastFree {
    /// NVML index of the GPU.
    pub gpu: u32,
    /// UUID: `"GPU-…"`.
    pub uuid: Option<Arc<str>>,
    /// Time of the sample.
    pub time: Time,
    /// Free memory, in bytes.
    pub free_bytes: u64,
    /// Processes outside the run that held memory on the GPU, largest first; absent if unknown.
    pub others: Option<Vec<OtherHolder>>,
    /// Unattributed memory, in bytes; absent if unknown.
    pub unattributed_bytes: Option<u64>,
}

/// A process outside a run that held GPU memory.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct OtherHolder {
    /// The process.
    pub process: FindingProcess,
    /// Short name of the process.
    pub name: String,
    /// Memory that the process held on the GPU, in bytes; absent if unknown.
    pub used_bytes: Option<u64>,
    /// Kind of the process's finding, if a rule found the memory to be unused; otherwise absent.
    pub finding: Option<Kind>,
    /// Kind of the suspected finding, if the memory was only suspected to be unused; otherwise absent.
    pub suspect: Option<Kind>,
}

/// An assertion about a run.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct RunAssertion {
    /// The assertion as given on the command line: `--max-peak 20GiB`, `--fail-on leak`.
    pub name: String,
    /// Whether the assertion passed; `null` if unknown.
    #[serialize_always]
    pub passed: Option<bool>,
    /// Why the assertion passed, failed, or is unknown.
    pub message: String,
    /// Whether the evidence was insufficient for a verdict. JUnit reports such an assertion as skipped.
    #[serde(skip)]
    pub is_undecided: bool,
}

impl RunReport {
    /// Describes how the command ended, for example `exit code 0 after 12m 03s`, or `incomplete` if the end is unknown.
    fn end(&self) -> String {
        let outcome = match (self.exit_code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => format!("ended by {name}"),
                None => format!("ended by signal {signal}"),
            },
            (None, None) => return "incomplete".to_owned(),
        };
        format!("{outcome} after {}", Span::from_seconds(self.seconds))
    }

    fn gpu_text(&self, gpu: &RunGpu) -> String {
        let figures = &gpu.figures;
        let Some(peak) = figures.peak_bytes else {
            return format!("GPU {}: memory unknown", gpu.index);
        };
        let mut text = format!("GPU {}: peak {}", gpu.index, Bytes(peak));
        if let Some(time) = figures.peak_time {
            let after = Span::from_seconds(time.seconds_since(self.time));
            let _ = write!(text, " after {after}");
        }
        for (word, bytes) in [("mean", figures.mean_bytes), ("last", figures.last_bytes)] {
            if let Some(bytes) = bytes {
                let _ = write!(text, ", {word} {}", Bytes(bytes));
            }
        }
        if let (Some(max), Some(mean)) = (figures.sm_percent_max, figures.sm_percent_mean) {
            let _ = write!(text, ", SM up to {max}%, mean {mean:.0}%");
        }
        text
    }

    fn memory(&self) -> String {
        if self.samples == 0 {
            return "GPU memory not measured: no sample was taken".to_owned();
        }
        let samples = number_of(self.samples, "sample");
        if self.gpus.is_empty() {
            return format!("no GPU memory held in {samples}");
        }
        let gpus: Vec<String> = self.gpus.iter().map(|gpu| self.gpu_text(gpu)).collect();
        format!("{} ({samples})", some_of(NAMED, "; ", &gpus))
    }

    fn afterwards(&self) -> String {
        let leaks = match (self.leaks.len(), self.leaks_decided) {
            (0, true) => "no leak found".to_owned(),
            (0, false) if self.samples == 0 => "leaks not measured".to_owned(),
            (0, false) => "too short to detect leaks".to_owned(),
            (count, _) => number_of(count, "leak"),
        };
        format!("{leaks}; {}", self.held_text())
    }

    pub fn held_text(&self) -> String {
        match self.held.as_deref() {
            None => "memory still held is unknown".to_owned(),
            Some([]) => "nothing left on a GPU".to_owned(),
            Some(held) => {
                let bytes = held.iter().filter_map(|held| held.used_bytes).sum();
                format!("{} still held after the command exited", Bytes(bytes))
            }
        }
    }

    /// Formats a summary of three lines, then lines about the fullest GPUs (if the command failed), leaks, processes
    /// that still hold memory, assertions that did not pass, and errors.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.end(), self.memory(), self.afterwards()];
        let leaks = self.leaks.iter().map(|leak| format!("leak: {}", leak.message));
        let held = self.held.iter().flatten().map(HeldMemory::text);
        let failed = self.assertions.iter().filter(|assertion| assertion.passed != Some(true));
        let failed = failed.map(|assertion| format!("{}: {}", assertion.name, assertion.message));
        let fullest = self.least_free.iter().flatten().take(NAMED);
        let fullest = fullest.map(|gpu| gpu.text(self.time));
        lines.extend(fullest.chain(leaks).chain(held).chain(failed));
        lines.extend_from_slice(&self.errors);
        lines
    }

    /// Formats the report as JUnit XML: test cases for the command and each assertion.
    pub fn to_junit(&self, hostname: Option<Arc<str>>) -> String {
        let case = |name: &str, result: CaseResult| Case {
            class: "gpumem.run".to_owned(),
            name: name.to_owned(),
            seconds: self.seconds,
            result,
        };
        let failure =
            |kind, message: String| Failure { kind, message, text: self.lines().join("\n") };
        let command = match self.exit_code {
            Some(0) => CaseResult::Passed,
            _ => CaseResult::Failed(failure("command", self.end())),
        };
        let mut cases = vec![case("command", command)];
        cases.extend(self.assertions.iter().map(|assertion| {
            let message = assertion.message.clone();
            let result = match assertion.passed {
                Some(true) => CaseResult::Passed,
                Some(false) => CaseResult::Failed(failure("assertion", message)),
                None if assertion.is_undecided => CaseResult::Skipped(message),
                None => CaseResult::Error(failure("assertion", message)),
            };
            case(&assertion.name, result)
        }));
        let suite = Suite {
            name: "gpumem run".to_owned(),
            time: self.time,
            hostname,
            seconds: self.seconds,
            cases,
            output: self.lines().join("\n"),
        };
        suite.to_xml()
    }

    /// Formats leaks, held memory and assertions that did not pass as annotations of a GitHub job.
    pub fn to_annotations(&self) -> String {
        let level = |passed| if passed == Some(false) { Level::Error } else { Level::Warning };
        let leaks =
            self.leaks.iter().map(|leak| (Level::Warning, "leak", leak.message.to_string()));
        let held = self.held.iter().flatten().map(|held| (Level::Warning, "held", held.text()));
        let failed = self.assertions.iter().filter(|assertion| assertion.passed != Some(true));
        let failed = failed.map(|assertion| {
            (level(assertion.passed), &*assertion.name, assertion.message.clone())
        });
        let all = leaks.chain(held).chain(failed);
        all.map(|(level, title, text)| annotation(level, &format!("gpumem: {title}"), &text))
            .collect()
    }
}

impl LeastFree {
    /// Formats a GPU's line, such as
    /// `GPU 0: least free 8.0 GiB, after 3s; others held 70.0 GiB, of which 70.0 GiB unused: …`.
    fn text(&self, start: Time) -> String {
        let after = Span::from_seconds(self.time.seconds_since(start));
        let mut text =
            format!("GPU {}: least free {}, after {after}; ", self.gpu, Bytes(self.free_bytes));
        match self.others.as_deref() {
            None => text.push_str("the processes that held the rest are unknown"),
            Some([]) => text.push_str("no other process held memory"),
            Some(others) => {
                let sum = |is_counted: fn(&OtherHolder) -> bool| {
                    let counted = others.iter().filter(|holder| is_counted(holder));
                    Bytes(counted.filter_map(|holder| holder.used_bytes).sum())
                };
                let (unused, suspected) =
                    (sum(|holder| holder.finding.is_some()), sum(OtherHolder::is_suspected));
                let is_known = others.iter().all(|holder| holder.used_bytes.is_some());
                let prefix = if is_known { "" } else { "at least " };
                let all = sum(|_| true);
                let _ = write!(text, "others held {prefix}{all}, of which {unused} unused");
                if suspected.0 > 0 {
                    let _ = write!(text, ", {suspected} suspected to be unused");
                }
                text.push_str(": ");
                let others: Vec<String> = others.iter().map(OtherHolder::text).collect();
                text.push_str(&some_of(NAMED, "; ", &others));
            }
        }
        if let Some(bytes) =
            self.unattributed_bytes.filter(|&bytes| bytes >= WORTH_MENTIONING_BYTES)
        {
            let _ = write!(text, "; {} unattributed", Bytes(bytes));
        }
        text
    }
}

impl OtherHolder {
    fn is_suspected(&self) -> bool {
        self.finding.is_none() && self.suspect.is_some()
    }

    /// Formats a holder, such as `70.0 GiB ana's python train.py (4242), idle`.
    fn text(&self) -> String {
        let bytes = self.used_bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        let user = self.process.user.as_deref().unwrap_or("?");
        let mut text = format!("{bytes} {user}'s {} ({})", self.name, self.process.pid);
        match (self.finding, self.suspect) {
            (Some(kind), _) => _ = write!(text, ", {kind}"),
            (None, Some(kind)) => _ = write!(text, ", suspected {kind}"),
            (None, None) => {}
        }
        text
    }
}

impl HeldMemory {
    fn text(&self) -> String {
        let bytes = match self.used_bytes {
            Some(bytes) => Bytes(bytes).to_string(),
            None => "an unknown amount".to_owned(),
        };
        let Self { name, gpu, command, process, .. } = self;
        format!("held: {name} ({}) has {bytes} on GPU {gpu}; run: {command}", process.pid)
    }
}
