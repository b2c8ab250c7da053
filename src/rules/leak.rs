//! `leak`: a process's memory on a GPU grows and does not level off.
//!
//! [`crate::history::growth`] detects growth of the lower envelope over at least 15 minutes. The forecast is the time
//! until the GPU's free memory is used up at the current rate of growth.
//!
//! If memory has not grown for five minutes, or the forecast time has passed without growth, the forecast is
//! withdrawn and the severity becomes `info`. The finding then states for a while that the growth has stopped. If
//! growth resumes during that time, the finding continues.
//!
//! Never a leak: growth that slows down steadily, growth on a GPU that was already 95 % full, growth of graphics
//! processes other than desktops, and growth of a GPU's total memory use. By default, gpumem does not end the
//! process, because only the owner can decide to lose a training run.
//!
//! One finding covers all leaking GPUs of a process. Evidence and forecast describe the most severe leak, which is
//! the one that fills its GPU first.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::FACTOR_TO_STAY;
use super::rule::{FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, Settings, seconds};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::growth::{Demand, Trend, Verdict};
use crate::history::{Device, RowHistory};
use crate::model::finding::{
    Evidence, Exhaustion, Finding, FindingGpu, Kind, KindEvidence, Severity, samples,
};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process};
use crate::units::{Bytes, MIB, Span};

/// Minimum free share of a GPU's memory when growth begins. On a fuller GPU, a program that reserves all memory looks
/// like a leak.
const PINNED_SHARE: f64 = 0.05;
/// Minimum time, in seconds, without growth before a forecast is withdrawn, because samples can be this far apart.
const SHORTEST_REFUTATION_SECONDS: f64 = 60.0;
/// Maximum forecast, in seconds. Growth is unlikely to stay constant for longer.
const LONGEST_FORECAST_SECONDS: f64 = 30.0 * 86_400.0;
/// Minimum length, in seconds, of the window; see [`crate::history::growth`].
const LEAST_WINDOW_SECONDS: f64 = 900.0;

/// Evidence that a process's memory keeps growing.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct LeakEvidence {
    /// Growth of the lower envelope, in bytes per second.
    pub bytes_per_second: f64,
    /// Length of the evaluated window, in seconds.
    #[schemars(range(min = 0))]
    pub span_seconds: f64,
    /// Number of samples in the window.
    pub samples: u64,
    /// Growth of the lower envelope in the window, in bytes.
    pub grown_bytes: u64,
    /// Free memory of the GPU at the end of the window, in bytes.
    pub free_bytes: Option<u64>,
    /// Seconds until the free memory is used up at this rate; `null` if unknown.
    pub out_of_memory_seconds: Option<f64>,
}

impl KindEvidence for LeakEvidence {
    fn words(&self) -> String {
        let mut words = format!(
            "{} a minute, {} in {} and {}",
            Bytes((self.bytes_per_second.max(0.0) * 60.0) as u64),
            Bytes(self.grown_bytes),
            Span::from_seconds(self.span_seconds),
            samples(self.samples),
        );
        if let Some(free) = self.free_bytes {
            let _ = write!(words, ", {} free", Bytes(free));
        }
        words
    }

    fn forecast(&self) -> Option<Exhaustion> {
        Some(Exhaustion { free_bytes: self.free_bytes?, seconds: self.out_of_memory_seconds? })
    }
}

/// Factor by which `min_growth` is multiplied for desktops, whose memory grows whenever a window opens.
const DISPLAY_FACTOR: u64 = 16;
const DISPLAY_ADVICE: &str = "gpumem does not kill programs that draw on a desktop: save your work and restart the program (for the desktop, log out)";

pub static KIND: RuleKind = RuleKind {
    remark,
    process,
    gpu,
    ..RuleKind::new::<LeakEvidence>(
        Kind::Leak,
        "a process's memory on a GPU grows throughout the window and does not level off",
        &[
            ("min_growth", "minimum growth; sudden jumps are not growth"),
            ("window", "how long memory must grow; at least 15m"),
            (
                "out_of_memory_within",
                "critical if the GPU will be full sooner than this at the rate of growth",
            ),
            ("severity", "severity of other findings: info, warning or critical"),
        ],
        Settings {
            min_growth: Bytes(256 * MIB),
            window: seconds(900),
            out_of_memory_within: seconds(1800),
            ..Settings::NONE
        },
    )
};

fn remark(settings: &Settings) -> Option<String> {
    let (window, shortest) = (settings.window, Span::from_seconds(LEAST_WINDOW_SECONDS));
    (window < shortest).then(|| {
        format!(
            "window {window} is raised to {shortest}: growth cannot be distinguished from warm-up sooner"
        )
    })
}

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    let rows_summary = input.process_history.rows_summary();
    if !rows_summary.has_moved && !rows_summary.is_unread {
        return;
    }
    let mut leaks = Vec::new();
    for row in input.process_history.rows() {
        if row.kind() != ProcessType::Graphics || is_display(input) {
            leaks.extend(judge(input, row, output));
        }
    }
    output.findings.extend(finding(input, leaks));
}

fn gpu(input: RuleInput<'_>, gpu: &Gpu, _device: &Device, output: &mut RuleOutput) {
    let doubt = UndecidedReason::for_unresponsive_gpu(gpu).or_else(|| {
        let needed = input.rule.settings.window.seconds().max(LEAST_WINDOW_SECONDS);
        let span = input.history.span_seconds();
        let is_compute = |row: &GpuProcess| row.kind != ProcessType::Graphics;
        let is_early = span < needed && gpu.processes.iter().flatten().any(is_compute);
        is_early.then_some(UndecidedReason::ShortHistory { needed, observed: span })
    });
    if let Some(doubt) = doubt
        && input.settings_on(None, gpu).is_some()
    {
        output.add_doubt(doubt);
    }
}

struct LeakingGpu {
    gpu: FindingGpu,
    trend: Trend,
    has_stopped: bool,
    evidence: LeakEvidence,
    severity: Severity,
}

impl LeakingGpu {
    fn seconds_left(&self) -> f64 {
        self.evidence.out_of_memory_seconds.unwrap_or(f64::INFINITY)
    }
}

/// Returns the seconds until the GPU is full, or `None` if the growth rate may be zero or the GPU might not fill
/// within [`LONGEST_FORECAST_SECONDS`].
fn forecast(trend: &Trend, free_bytes: u64) -> Option<f64> {
    let until_full = |rate: f64| free_bytes as f64 / rate;
    let latest = until_full(trend.bytes_per_second_low);
    (trend.bytes_per_second_low > 0.0 && latest <= LONGEST_FORECAST_SECONDS)
        .then(|| until_full(trend.bytes_per_second))
}

fn judge(input: ProcessInput<'_>, row: &RowHistory, output: &mut RuleOutput) -> Option<LeakingGpu> {
    let ProcessInput { rule_input, process, .. } = input;
    let index = rule_input.history.gpu_index(row);
    if row.used_bytes().is_none() {
        let is_shown = row.last_seen() == rule_input.snapshot.time;
        if is_shown && input.settings(row).is_some() {
            output.add_doubt(UndecidedReason::NoMemory { pid: process.pid, gpu: index });
        }
        return None;
    }
    // Nearly every row returns here, before the slower lookup of its settings.
    if !row.growth().has_moved() {
        return None;
    }
    let settings = input.settings(row)?;
    let growth = match is_display(input) {
        true => settings.min_growth.0.saturating_mul(DISPLAY_FACTOR),
        false => settings.min_growth.0,
    };
    let demand = Demand { bytes: input.lowered(growth), seconds: settings.window.seconds() };
    let (trend, has_stopped) = match row.growth().verdict(&demand) {
        Verdict::Leak(trend) => (trend, false),
        Verdict::Stopped(trend) => (trend, true),
        Verdict::Growing(trend) => {
            input.add_pending(index, trend.since, pending_seconds(&settings, &trend), output);
            return None;
        }
        Verdict::TooShort { seconds, needed } => {
            output.add_doubt(UndecidedReason::ShortHistory { needed, observed: seconds });
            return None;
        }
        Verdict::Not => return None,
    };
    let memory = rule_input
        .snapshot
        .gpus
        .iter()
        .find(|gpu| gpu.index == index && gpu.stale_seconds.is_none())
        .and_then(|gpu| gpu.memory.as_ref());
    let is_pinned = memory.is_some_and(|memory| {
        let free_before = memory.free_bytes.saturating_add(trend.grown_bytes) as f64;
        free_before <= PINNED_SHARE * memory.total_bytes as f64
    });
    let active = rule_input.active_finding(process.identity());
    if is_pinned && active.is_none() {
        return None;
    }
    let free_bytes = memory.map(|memory| memory.free_bytes);
    let forecast = free_bytes.and_then(|free| forecast(&trend, free));
    // The forecast is refuted if the forecast time has passed without growth.
    let is_refuted = forecast
        .is_some_and(|seconds| trend.is_quiet_for(seconds.max(SHORTEST_REFUTATION_SECONDS)));
    let has_stopped = has_stopped || is_refuted;
    let forecast = forecast.filter(|_| !has_stopped);
    // To avoid flicker, a critical finding stays critical until the forecast is a quarter longer.
    let was_near = active.is_some_and(|finding| finding.severity == Severity::Critical);
    let near_seconds =
        settings.out_of_memory_within.seconds() * if was_near { FACTOR_TO_STAY } else { 1.0 };
    let is_near = forecast.is_some_and(|seconds| seconds < near_seconds);
    let evidence = LeakEvidence {
        bytes_per_second: trend.bytes_per_second,
        span_seconds: trend.span_seconds,
        samples: trend.samples,
        grown_bytes: trend.grown_bytes,
        free_bytes,
        out_of_memory_seconds: forecast,
    };
    let severity = match (has_stopped, is_near) {
        (true, _) => Severity::Info,
        (false, true) => Severity::Critical,
        (false, false) => settings.severity,
    };
    let gpu = input.finding_gpu(row);
    Some(LeakingGpu { gpu, trend, has_stopped, evidence, severity })
}

fn pending_seconds(settings: &Settings, trend: &Trend) -> f64 {
    let seconds_for_bytes = settings.min_growth.0 as f64 / trend.bytes_per_second.max(1.0);
    seconds_for_bytes.max(settings.window.seconds()).min(LONGEST_FORECAST_SECONDS)
}

fn is_display(input: ProcessInput<'_>) -> bool {
    input.process_history.is_desktop_or_machine()
}

fn finding(input: ProcessInput<'_>, leaks: Vec<LeakingGpu>) -> Option<Finding> {
    let ProcessInput { rule_input, process, .. } = input;
    let severity = leaks.iter().map(|leak| leak.severity).max()?;
    let since = leaks.iter().map(|leak| leak.trend.since).min()?;
    let first = leaks.iter().min_by(|a, b| {
        let by_forecast = a.seconds_left().total_cmp(&b.seconds_left());
        let by_growth = b.trend.grown_bytes.cmp(&a.trend.grown_bytes);
        (b.severity.cmp(&a.severity)).then(by_forecast).then(by_growth)
    })?;
    let evidence = Evidence::new(first.evidence.clone());
    let message =
        message(process, first, leaks.len(), rule_input.snapshot.time.seconds_since(since));
    let gpus = subject::merge_rows(leaks.into_iter().map(|leak| leak.gpu));
    let parts = FindingParts {
        severity,
        gpus,
        since,
        until: rule_input.snapshot.time,
        evidence,
        message,
        advice: match is_display(input) {
            true => vec![DISPLAY_ADVICE.to_owned()],
            false => advice(process),
        },
    };
    Some(rule_input.finding(Some(process), parts))
}

fn message(process: &Process, first: &LeakingGpu, leaks: usize, seconds: f64) -> String {
    let others = match leaks - 1 {
        0 => String::new(),
        1 => " (and on one more)".to_owned(),
        more => format!(" (and on {more} more)"),
    };
    let trend = &first.trend;
    if first.has_stopped {
        return format!(
            "{} ({}) stopped growing {} ago on GPU {}{others}: it had grown by {} in {}",
            super::name_of(process),
            process.pid,
            Span::from_seconds(trend.quiet_seconds),
            first.gpu.index,
            Bytes(trend.grown_bytes),
            Span::from_seconds(trend.rising_seconds),
        );
    }
    let mut message = format!(
        "{} ({}) has grown by {} a minute on GPU {}{others} for {}: {} in all",
        super::name_of(process),
        process.pid,
        Bytes((trend.bytes_per_second * 60.0) as u64),
        first.gpu.index,
        Span::from_seconds(seconds),
        Bytes(trend.grown_bytes),
    );
    if let Some(seconds) = first.evidence.out_of_memory_seconds {
        let left = Span::from_seconds(seconds);
        message += &format!(", out of memory in about {left} at this rate");
    }
    message
}

/// Returns advice on where to look for the leak. The advice on freeing memory (`crate::advice`) would not stop a leak.
fn advice(process: &Process) -> Vec<String> {
    let lines: &[&str] = match process.framework.as_deref() {
        Some("pytorch") => &[
            "keep numbers, not tensors: `total += loss.item()`; a tensor that is kept keeps its graph",
            "compare `torch.cuda.memory_summary()` between two epochs: where allocated memory grows, \
             something is kept; where only reserved memory does, it is fragmentation or new shapes",
        ],
        Some("tensorflow") => {
            &["build models and datasets once, not in the loop: each one stays in the process"]
        }
        Some("jax") => {
            &["keep numbers, not arrays (`float(loss)`); `jax.live_arrays()` lists what is kept"]
        }
        _ => &["find what is kept from one step to the next: results, caches, sessions"],
    };
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests;
