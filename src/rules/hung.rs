//! `hung`: a process keeps a GPU fully utilized, but the GPU draws much less power than when the same process worked.
//! Causes are, for example, a deadlocked collective and a kernel that spins.
//!
//! The process is compared only with its own past: it must have worked alone on the GPU for a few minutes, and it
//! must be alone on the GPU now. If several processes use a GPU, the power that each of them draws is unknown, so
//! there is no finding. Processes that hold memory without using the GPU are ignored.
//!
//! Even if the power is low, there is no finding if
//!
//! - memory traffic is still high compared with its former value, because lighter kernels are work, too;
//! - the power limit was lowered below the former power, and the GPU draws most of the new limit;
//! - the GPU is throttled: it is hot and its clock is lower than before, or its clock is far lower than before;
//! - another rank of the job works and does not spin. For example, the other ranks wait in a collective while rank 0
//!   validates for a quarter of an hour;
//! - the GPU drew little power from the start, because a process that hung before gpumem first observed it looks like
//!   one that runs light kernels.
//!
//! An orphan is reported as `info` if its GPU was fully utilized for the duration, drew less than a third of its power
//! limit and had no memory traffic, even if the orphan is not alone on the GPU. A rank whose peers have died looks like
//! this, but so does a light kernel under `nohup`.
//!
//! A finding begins at the configured thresholds. It ends when utilization falls below 90 % or power rises above half
//! of its former value. By default, gpumem does not end the process, because only the owner knows what the process
//! waits for.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{LEAST_COVERAGE, NOW_SECONDS, is_covered, is_working};
use super::rule::{
    FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds,
};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::power::{FULL_PERCENT, LEAST_WORK_SECONDS, LOW_SHARE, TRACE_OF_TRAFFIC};
use crate::history::{Device, LowPowerPhase, RowHistory, Use, Work};
use crate::model::family::{families, member};
use crate::model::finding::{Evidence, FindingGpu, Kind, KindEvidence, Severity, samples};
use crate::model::program::file_name;
use crate::model::{Gpu, Process, Time};
use crate::units::{Percent, Span};

pub static KIND: RuleKind = RuleKind {
    contradiction,
    process,
    gpu,
    ..RuleKind::new::<HungEvidence>(
        Kind::Hung,
        "a GPU reports full use by a process, but its power draw has fallen to a fraction of what \
        it was for the same process",
        &[
            (
                "min_utilization",
                "mean GPU utilization that is considered full use, in percent (90 to 100)",
            ),
            ("max_power_share", "maximum mean power, in percent of the former mean (up to 50)"),
            ("duration", "how long the condition must last"),
            SEVERITY,
        ],
        Settings {
            min_utilization: Percent(95.0),
            max_power_share: Percent(40.0),
            duration: seconds(600),
            ..Settings::NONE
        },
    )
};

/// Minimum number of samples. A single sample can show the condition by chance.
const LEAST_SAMPLES: u64 = 3;
/// Minimum share of its power limit that a GPU draws if the limit throttles it.
const SHARE_OF_LIMIT: f64 = 0.6;
/// Share of its power limit below which a fully utilized GPU does almost no work. A finding ends at a higher share
/// ([`crate::history::power`]).
const LIGHT_SHARE: f64 = 0.3;
/// Minimum CPU use, in percent of a core, of a rank that is working.
const WORK_CPU_PERCENT: f64 = 20.0;
/// Minimum temperature, in degrees Celsius, at which heat can throttle a GPU.
const HOT_CELSIUS: f64 = 80.0;
/// A hot GPU is throttled if its clock is below this share of its clock during work.
const SLOWED_SHARE: f64 = 0.9;
/// Any GPU is throttled if its clock is below this share of its clock during work. A waiting kernel alone does not
/// lower the clock.
const HELD_SHARE: f64 = 0.6;

/// Evidence that a process spins without making progress.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HungEvidence {
    /// Lowest utilization that the GPU reported while the condition held, in percent, 0 to 100.
    pub gpu_percent_min: u32,
    /// Mean power draw of the GPU while the condition held, in watts; the last power draw for an orphan that gpumem
    /// never observed working.
    pub power_watts_mean: f64,
    /// Mean power draw of the GPU while the same process was working, in watts.
    pub power_watts_before: Option<f64>,
    /// Power limit of the GPU, in watts. Present instead of `power_watts_before` for an orphan that gpumem never
    /// observed working.
    pub power_limit_watts: Option<f64>,
    /// Mean memory traffic of the GPU while the condition held, in percent, 0 to 100.
    pub memory_percent_mean: Option<f64>,
    /// Mean memory traffic of the GPU while the same process was working, in percent, 0 to 100.
    pub memory_percent_before: Option<f64>,
    /// Number of samples that show the condition.
    pub samples: u64,
}

impl KindEvidence for HungEvidence {
    fn words(&self) -> String {
        let mut words =
            format!("GPU {}% at least, {:.0} W", self.gpu_percent_min, self.power_watts_mean);
        if let Some(before) = self.power_watts_before {
            let _ = write!(words, " against {before:.0} W before");
        }
        if let Some(limit) = self.power_limit_watts {
            let _ = write!(words, " of {limit:.0} W, its job is gone");
        }
        if let (Some(now), Some(before)) = (self.memory_percent_mean, self.memory_percent_before) {
            let _ = write!(words, ", memory traffic {now:.0}% against {before:.0}%");
        }
        let _ = write!(words, " in {}", samples(self.samples));
        words
    }
}

fn contradiction(settings: &Settings) -> Option<String> {
    let (utilization, share) = (settings.min_utilization.0, settings.max_power_share.0);
    if !(FULL_PERCENT..=100.0).contains(&utilization) {
        return Some(format!(
            "min_utilization is {utilization}; write a number from {FULL_PERCENT} to 100"
        ));
    }
    let max_share = LOW_SHARE * 100.0;
    (share > max_share).then(|| {
        format!(
            "max_power_share is {share}; above {max_share}, a GPU is considered working: write {max_share} or less"
        )
    })
}

fn gpu(input: RuleInput<'_>, gpu: &Gpu, device: &Device, output: &mut RuleOutput) {
    let (Some(identity), Some(percent)) = (device.alone(), gpu.gpu_percent) else {
        return;
    };
    if f64::from(percent) < FULL_PERCENT {
        return;
    }
    let process = input.snapshot.process(identity.pid);
    let is_full = |settings: &Settings| f64::from(percent) >= settings.min_utilization.0;
    let Some(settings) = input.settings_on(process, gpu).filter(is_full) else {
        return;
    };
    let span = input.history.span_seconds();
    if !device.is_power_known() {
        output.add_doubt(UndecidedReason::NoReading { gpu: gpu.index, quantity: "power" });
    } else if device.work(identity).is_none() && span < LEAST_WORK_SECONDS {
        let needed = LEAST_WORK_SECONDS + settings.duration.seconds();
        output.add_doubt(UndecidedReason::ShortHistory { needed, observed: span });
    }
}

struct HungGpu {
    gpu: FindingGpu,
    severity: Severity,
    evidence: HungEvidence,
    since: Time,
    until: Time,
}

fn process(input: ProcessInput<'_>, output: &mut RuleOutput) {
    // Orphans and GPUs in a low-power phase are rare, so most processes are dismissed here.
    let is_left = input.process_history.abandoned().is_some();
    if !is_left && !input.rule_input.history.has_low_power_phase() {
        return;
    }
    // The driver attributes the GPU use of MPS clients to the MPS server.
    if input.process.mps_role(None) == Some("mps server") {
        return;
    }
    let mut hung: Vec<HungGpu> = Vec::new();
    for row in input.process_history.rows() {
        let device = input.rule_input.history.device_of(row);
        let gpu = device.index();
        let phase = device
            .low_power_phase()
            .filter(|phase| phase.process == input.process_history.identity());
        // A recording can list a process twice on a GPU.
        if hung.iter().any(|hung_gpu| hung_gpu.gpu.index == gpu) {
            continue;
        }
        let Some(settings) = input.settings(row) else {
            continue;
        };
        let Some(phase) = phase else {
            hung.extend(left_spinning(input, row, &settings));
            continue;
        };
        let active = input.rule_input.active_finding(input.process.identity());
        let is_active = active
            .is_some_and(|finding| finding.gpus.iter().any(|finding_gpu| finding_gpu.index == gpu));
        let work = device.work(phase.process);
        let evidence = work.and_then(|work| evidence(phase, work, &settings, is_active));
        let Some(evidence) = evidence else {
            continue;
        };
        if phase.seconds() < settings.duration.seconds() {
            input.add_pending(gpu, phase.since, settings.duration.seconds(), output);
        } else if phase.samples < LEAST_SAMPLES || !is_covered(phase.coverage(), is_active) {
            output.add_doubt(UndecidedReason::Gaps {
                gpu,
                covered: phase.coverage(),
                samples: phase.samples,
                least_covered: LEAST_COVERAGE,
                least_samples: LEAST_SAMPLES,
            });
        } else {
            hung.push(HungGpu {
                gpu: input.finding_gpu(row),
                severity: settings.severity,
                evidence,
                since: phase.since,
                until: phase.until,
            });
        }
    }
    if !hung.is_empty() && is_job_working(input) {
        return;
    }
    if let Some(parts) = finding_parts(input, hung) {
        output.findings.push(input.rule_input.finding(Some(input.process), parts));
    }
}

fn is_job_working(input: ProcessInput<'_>) -> bool {
    let (history, snapshot) = (input.rule_input.history, input.rule_input.snapshot);
    let families = families(snapshot);
    let job = member(&families, input.process.pid);
    let others = job.into_iter().flat_map(|job| &job.members);
    let others = others.filter(|pid| **pid != input.process.pid);
    let histories = others.filter_map(|pid| history.process(snapshot.process(*pid)?.identity()));
    histories.into_iter().any(|other| {
        let spins = |row: &RowHistory| {
            let device = history.device_of(row);
            device.spinning().is_some()
                || device.low_power_phase().is_some_and(|phase| phase.process == other.identity())
        };
        let uses = |row: &RowHistory| row.last_use() == Use::Used;
        !other.rows().is_empty()
            && !other.rows().iter().any(spins)
            && (other.rows().iter().any(uses)
                || is_working(other, WORK_CPU_PERCENT, NOW_SECONDS, false))
    })
}

/// Returns evidence that a process is hung on a GPU, or `None` if the thresholds are not met or something else
/// explains the lower power.
fn evidence(
    phase: &LowPowerPhase,
    work: &Work,
    settings: &Settings,
    is_active: bool,
) -> Option<HungEvidence> {
    let (now, before) = (phase.load.power.mean()?, work.load.power.mean()?);
    let is_full = phase.load.gpu_percent.mean()? >= settings.min_utilization.0;
    let is_low = now < before * settings.max_power_share.0 / 100.0;
    if !(is_active || is_full && is_low) {
        return None;
    }
    let (traffic, traffic_before) = (phase.load.memory.mean(), work.load.memory.mean());
    if moves_data(traffic, traffic_before, settings) || is_capped(phase, before) {
        return None;
    }
    if is_throttled(phase, work) {
        return None;
    }
    Some(HungEvidence {
        gpu_percent_min: phase.gpu_percent_min,
        power_watts_mean: now,
        power_watts_before: Some(before),
        power_limit_watts: None,
        memory_percent_mean: traffic,
        memory_percent_before: traffic_before,
        samples: phase.samples,
    })
}

/// Returns evidence that an orphan spins although gpumem never observed it working, or `None` if it does not seem to
/// spin. Other processes on the GPU do not matter, because all processes on it together do almost no work.
fn left_spinning(
    input: ProcessInput<'_>,
    row: &RowHistory,
    settings: &Settings,
) -> Option<HungGpu> {
    let abandoned = input.process_history.abandoned()?;
    let device = input.rule_input.history.device_of(row);
    let spinning = device.spinning()?;
    let gpu = input.rule_input.snapshot.gpus.iter().find(|gpu| gpu.index == device.index())?;
    let is_alone = device.alone() == Some(input.process_history.identity());
    let percent = gpu.gpu_percent?;
    let (since, until) = (abandoned.since.max(spinning.since), abandoned.until.min(spinning.until));
    let (power, limit) = (gpu.power_watts?, gpu.power_limit_watts?);
    let is_full = f64::from(percent) >= settings.min_utilization.0;
    let begins = input.is_active() || is_full && power < limit * LIGHT_SHARE;
    let lasted = until.seconds_since(since) >= settings.duration.seconds();
    (lasted && begins && (is_alone || row.last_use() == Use::Used)).then(|| HungGpu {
        gpu: input.finding_gpu(row),
        severity: Severity::Info,
        evidence: HungEvidence {
            gpu_percent_min: percent,
            power_watts_mean: power,
            power_watts_before: None,
            power_limit_watts: Some(limit),
            memory_percent_mean: gpu.memory_percent.map(f64::from),
            memory_percent_before: None,
            samples: spinning.samples,
        },
        since,
        until,
    })
}

fn moves_data(now: Option<f64>, before: Option<f64>, settings: &Settings) -> bool {
    now.zip(before).is_some_and(|(now, before)| {
        now >= TRACE_OF_TRAFFIC && now >= before * settings.max_power_share.0 / 100.0
    })
}

/// Returns whether the GPU draws most of a power limit that is below the former power.
fn is_capped(phase: &LowPowerPhase, before: f64) -> bool {
    phase
        .power_limit
        .zip(phase.load.power.mean())
        .is_some_and(|(limit, now)| limit < before && now >= limit * SHARE_OF_LIMIT)
}

fn is_throttled(phase: &LowPowerPhase, work: &Work) -> bool {
    let share =
        phase.load.clock.mean().zip(work.load.clock.mean()).map(|(now, before)| now / before);
    let is_hot = phase.temperature.mean().is_some_and(|degrees| degrees >= HOT_CELSIUS);
    // If the clock is unknown, assume that heat throttles a hot GPU.
    share.is_some_and(|share| share < HELD_SHARE)
        || is_hot && share.is_none_or(|share| share < SLOWED_SHARE)
}

/// Combines the GPUs of a hung process into one finding with the weakest evidence of all GPUs. Returns `None` if
/// there are no GPUs.
fn finding_parts(input: ProcessInput<'_>, mut hung: Vec<HungGpu>) -> Option<FindingParts> {
    let severity = hung.iter().map(|hung_gpu| hung_gpu.severity).max()?;
    let since = hung.iter().map(|hung_gpu| hung_gpu.since).max()?;
    let until = hung.iter().map(|hung_gpu| hung_gpu.until).max()?;
    hung.sort_by_key(|hung_gpu| hung_gpu.gpu.index);
    let before =
        |evidence: &HungEvidence| evidence.power_watts_before.or(evidence.power_limit_watts);
    let share =
        |evidence: &HungEvidence| evidence.power_watts_mean / before(evidence).unwrap_or(f64::NAN);
    let evidence = hung.iter().map(|hung_gpu| &hung_gpu.evidence);
    let evidence = evidence.max_by(|a, b| share(a).total_cmp(&share(b)))?.clone();
    let gpus: Vec<FindingGpu> = hung.into_iter().map(|hung_gpu| hung_gpu.gpu).collect();
    let message = format!(
        "{} has kept {} at {}%{} for {} at {:.0} W{}, and {}",
        input.name(),
        subject::gpus(&gpus),
        evidence.gpu_percent_min,
        if evidence.gpu_percent_min < 100 { " or more" } else { "" },
        Span::from_seconds(until.seconds_since(since)),
        evidence.power_watts_mean,
        if gpus.len() == 1 { "" } else { " each" },
        match (evidence.power_watts_before, evidence.power_limit_watts) {
            (Some(before), _) => format!("drew {before:.0} W before"),
            (None, limit) => {
                let limit = limit.unwrap_or_default();
                format!(
                    "outlived its job: it may wait for a rank that is gone, or run a light kernel (power limit {limit:.0} W)"
                )
            }
        },
    );
    let (evidence, advice) = (Evidence::new(evidence), advice(input.process));
    Some(FindingParts { severity, gpus, since, until, evidence, message, advice })
}

fn advice(process: &Process) -> Vec<String> {
    let pid = process.pid;
    let program = process.executable.as_deref().or_else(|| {
        let command = process.command.as_deref()?;
        command.first().map(|program| &**program)
    });
    let is_python = process.jupyter.is_some()
        || program.is_some_and(|program| file_name(program).starts_with("python"));
    let mut lines = vec![
        if is_python {
            format!("see what it waits for: `py-spy dump --pid {pid}`, as its owner or as root")
        } else {
            format!("see what it waits for: `gdb -p {pid} -batch -ex 'thread apply all bt'`")
        },
        "in a distributed job, check every rank: a rank that is gone or late keeps the others waiting"
            .to_owned(),
    ];
    if process.framework.as_deref() == Some("pytorch") {
        lines.push(
            "at the next start: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
             log which collective each rank was in, NCCL_DEBUG=INFO how NCCL was set up"
                .to_owned(),
        );
    }
    lines.push(
        "save that output before you kill it: its work since the last checkpoint is lost"
            .to_owned(),
    );
    lines
}

#[cfg(test)]
mod tests;
