//! `leak`: a process's memory on a GPU grows and does not level off.
//!
//! [`crate::history::growth`] detects growth from the memory's floor over at least a quarter of an hour. The
//! forecast divides the GPU's free memory by the rate. There is no forecast if free memory is unknown, or the rate
//! may be 0.
//!
//! If nothing has risen for five minutes, or for as long as the forecast gave the GPU, the forecast is withdrawn
//! and the severity reduced. For a while, the finding then reports that growth has stopped. Growth that comes with
//! requests and later resumes has only paused, and belongs to the same finding.
//!
//! Never a leak: growth that slows down steadily; changes within the last twentieth of a GPU that was that full
//! before; graphics rows (a desktop's memory depends on the screen's content); a GPU's total. No action ends the
//! process, because only the owner can decide to lose a leaking training run.
//!
//! One finding covers all leaking GPUs of a process, with evidence and forecast of the one that fills first.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, Settings, seconds};
use super::undecided_reason::UndecidedReason;
use crate::history::growth::{Demand, Trend, Verdict};
use crate::history::{Device, RowHistory};
use crate::model::finding::{
    Evidence, Exhaustion, Finding, FindingGpu, Kind, KindEvidence, Severity, samples,
};
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process};
use crate::units::{Bytes, MIB, Span};

/// If the free share of a GPU is below this when growth begins, there is no room for a leak.
const PINNED_SHARE: f64 = 0.05;
/// The shortest time, in seconds, after which a forecast can be refuted: samples are that far apart.
const SHORTEST_REFUTATION_SECONDS: f64 = 60.0;
/// The longest forecast, in seconds. Beyond it, the number is meaningless.
const LONGEST_FORECAST_SECONDS: f64 = 30.0 * 86_400.0;
/// The shortest window, in seconds, for any setting; see [`crate::history::growth`].
const LEAST_WINDOW_SECONDS: f64 = 900.0;

/// Evidence that a process's memory grows without end.
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

/// `min_growth` is multiplied by this for a desktop, because windows open and close.
const DISPLAY_FACTOR: u64 = 16;
const DISPLAY_ADVICE: &str = "gpumem does not end what draws on a desktop: save your work and restart it (the desktop: log out)";

pub static KIND: RuleKind = RuleKind {
    remark,
    process,
    gpu,
    ..RuleKind::new::<LeakEvidence>(
        Kind::Leak,
        "a process's memory on a GPU grows throughout the window and does not level off",
        &[
            ("min_growth", "less growth than this is ignored; jumps do not count"),
            ("window", "how long its memory has to have grown; less than 15m counts as 15m"),
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

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let rows_summary = it.known.rows_summary();
    if !rows_summary.has_moved && !rows_summary.is_unread {
        return;
    }
    let mut leaks = Vec::new();
    for row in it.known.rows() {
        if row.kind() != ProcessType::Graphics || is_display(it) {
            leaks.extend(judge(it, row, verdicts));
        }
    }
    verdicts.findings.extend(finding(it, leaks));
}

fn gpu(seen: RuleInput<'_>, gpu: &Gpu, _known: &Device, verdicts: &mut RuleOutput) {
    let doubt = UndecidedReason::of_silent(gpu).or_else(|| {
        // The history is too short to show growth of any process on the GPU.
        let needed = seen.rule.settings.window.seconds().max(LEAST_WINDOW_SECONDS);
        let span = seen.history.span_seconds();
        let is_somebodys = |row: &GpuProcess| row.kind != ProcessType::Graphics;
        let is_early = span < needed && gpu.processes.iter().flatten().any(is_somebodys);
        is_early.then_some(UndecidedReason::ShortHistory { needed, seen: span })
    });
    if let Some(doubt) = doubt
        && seen.settings_on(None, gpu).is_some()
    {
        verdicts.doubt(doubt);
    }
}

struct LeakOn {
    gpu: FindingGpu,
    trend: Trend,
    has_stopped: bool,
    evidence: LeakEvidence,
    severity: Severity,
}

impl LeakOn {
    fn seconds_left(&self) -> f64 {
        self.evidence.out_of_memory_seconds.unwrap_or(f64::INFINITY)
    }
}

/// Seconds until the GPU is full; `None` if there may be no growth, or too little to forecast.
fn forecast(trend: &Trend, free_bytes: u64) -> Option<f64> {
    let until_full = |rate: f64| free_bytes as f64 / rate;
    let latest = until_full(trend.bytes_per_second_low);
    (trend.bytes_per_second_low > 0.0 && latest <= LONGEST_FORECAST_SECONDS)
        .then(|| until_full(trend.bytes_per_second))
}

fn judge(it: ProcessInput<'_>, row: &RowHistory, verdicts: &mut RuleOutput) -> Option<LeakOn> {
    let ProcessInput { seen, process, .. } = it;
    let index = seen.history.gpu_index(row);
    let Some(bytes) = row.used_bytes() else {
        let is_shown = row.last_seen() == seen.snapshot.time;
        if is_shown && it.settings(row).is_some() {
            verdicts.doubt(UndecidedReason::NoMemory { pid: process.pid, gpu: index });
        }
        return None;
    };
    // Nearly every row ends here, before its settings are looked up.
    if !row.growth().has_moved() {
        return None;
    }
    let settings = it.settings(row)?;
    let growth = match is_display(it) {
        true => settings.min_growth.0.saturating_mul(DISPLAY_FACTOR),
        false => settings.min_growth.0,
    };
    // A finding ends at three quarters of the threshold, to avoid flicker.
    let least = if it.is_active() { growth - growth / 4 } else { growth };
    let demand = Demand { bytes: least, seconds: settings.window.seconds() };
    let (trend, has_stopped) = match row.growth().verdict(&demand) {
        Verdict::Leak(trend) => (trend, false),
        Verdict::Stopped(trend) => (trend, true),
        Verdict::Growing(trend) => {
            it.expect(index, trend.since, pending_seconds(&settings, &trend), verdicts);
            return None;
        }
        Verdict::TooShort { seconds, needed } => {
            verdicts.doubt(UndecidedReason::ShortHistory { needed, seen: seconds });
            return None;
        }
        Verdict::Not => return None,
    };
    let uuid = seen.history.gpu_uuid(row);
    let memory = seen
        .snapshot
        .gpus
        .iter()
        .find(|gpu| gpu.index == index && gpu.stale_seconds.is_none())
        .and_then(|gpu| gpu.memory.as_ref());
    let is_pinned = memory.is_some_and(|memory| {
        let free_before = memory.free_bytes.saturating_add(trend.grown_bytes) as f64;
        free_before <= PINNED_SHARE * memory.total_bytes as f64
    });
    if is_pinned {
        return None;
    }
    let free_bytes = memory.map(|memory| memory.free_bytes);
    let forecast = free_bytes.and_then(|free| forecast(&trend, free));
    // By now, the GPU should be full.
    let is_refuted =
        forecast.is_some_and(|it| trend.is_quiet_for(it.max(SHORTEST_REFUTATION_SECONDS)));
    let has_stopped = has_stopped || is_refuted;
    let forecast = forecast.filter(|_| !has_stopped);
    let is_near = forecast.is_some_and(|it| it < settings.out_of_memory_within.seconds());
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
    let gpu = FindingGpu { index, uuid: uuid.cloned(), used_bytes: Some(bytes) };
    Some(LeakOn { gpu, trend, has_stopped, evidence, severity })
}

/// When growth will reach the threshold, if it continues.
fn pending_seconds(settings: &Settings, trend: &Trend) -> f64 {
    let seconds_for_bytes = settings.min_growth.0 as f64 / trend.bytes_per_second.max(1.0);
    seconds_for_bytes.max(settings.window.seconds()).min(LONGEST_FORECAST_SECONDS)
}

fn is_display(it: ProcessInput<'_>) -> bool {
    it.known.is_desktop_or_machine()
}

/// Combines the GPUs on which a process leaks into one finding.
fn finding(it: ProcessInput<'_>, leaks: Vec<LeakOn>) -> Option<Finding> {
    let ProcessInput { seen, process, .. } = it;
    let severity = leaks.iter().map(|on| on.severity).max()?;
    let since = leaks.iter().map(|on| on.trend.since).min()?;
    let first = leaks.iter().min_by(|a, b| {
        let by_forecast = a.seconds_left().total_cmp(&b.seconds_left());
        let by_growth = b.trend.grown_bytes.cmp(&a.trend.grown_bytes);
        (b.severity.cmp(&a.severity)).then(by_forecast).then(by_growth)
    })?;
    let evidence = Evidence::new(first.evidence.clone());
    let message = message(process, first, leaks.len(), seen.snapshot.time.seconds_since(since));
    let mut gpus: Vec<FindingGpu> = leaks.into_iter().map(|on| on.gpu).collect();
    gpus.sort_by_key(|gpu| gpu.index);
    gpus.dedup_by(|next, gpu| {
        let same = next.index == gpu.index;
        if same {
            let sum = gpu.used_bytes.zip(next.used_bytes);
            gpu.used_bytes = sum.map(|(a, b)| a.saturating_add(b));
        }
        same
    });
    let parts = FindingParts {
        severity,
        gpus,
        since,
        until: seen.snapshot.time,
        evidence,
        message,
        advice: match is_display(it) {
            true => vec![DISPLAY_ADVICE.to_owned()],
            false => advice(process),
        },
    };
    Some(seen.finding(Some(process), parts))
}

fn message(process: &Process, first: &LeakOn, leaks: usize, seconds: f64) -> String {
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

/// Where to look for the leak. Freeing memory (`crate::advice`) does not stop it.
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
