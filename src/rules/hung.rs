//! `hung`: one process fully uses a GPU, but the GPU's power has fallen to a fraction of its former power, when the
//! same process also worked there alone. Examples are a deadlocked collective and a spinning kernel.
//!
//! The process is compared only with itself: it worked alone on the GPU for some minutes, and keeps the GPU fully
//! used alone now. If other processes work on the GPU, their shares of its power are unknown, so there is no
//! finding. A process that only holds memory does not count as working.
//!
//! Not hung, whatever the power:
//!
//! - memory traffic continues: kernels lighter than before are work;
//! - the power limit was lowered below the former power, and the GPU draws much of it;
//! - the GPU is hot and its clock fell, or the clock is far below what it was: it was throttled;
//! - another rank of the job works on the CPU or a GPU and is not in the same state: while rank 0 validates for a
//!   quarter of an hour, it keeps the others in a collective;
//! - the kernel was light from the start, so that nothing has fallen. A process that hung before it was first
//!   observed looks the same.
//!
//! An orphan that was observed only at full use, below a third of the GPU's power limit and without memory traffic,
//! is reported as `info`. Ranks in a collective that can never end look like that, but so does a light kernel under
//! `nohup`.
//!
//! A finding begins at the settings, and ends when use falls below 90 % or power rises above half of its former
//! value. No action ends the process, because only its owner knows what it waits for.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{LEAST_COVERAGE, NOW_SECONDS, is_at_work, is_covered};
use super::rule::{
    FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds,
};
use super::subject;
use super::undecided_reason::UndecidedReason;
use crate::history::power::{FULL_PERCENT, LEAST_WORK_SECONDS, LOW_SHARE};
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
                "the mean utilization of the GPU that counts as full use, in percent (90 to 100)",
            ),
            (
                "max_power_share",
                "the mean power is less than this, in percent of the mean before (up to 50)",
            ),
            ("duration", "how long this has to last"),
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

/// With fewer samples, the result may be chance.
const LEAST_SAMPLES: u64 = 3;
/// If more samples are lost than [`is_covered`] allows, the rest must cover this share of the time, and as much
/// time as the duration. A few missing samples between equal ones change nothing, but intermittent work may fall
/// into every gap.
const LEAST_OF_LOST: f64 = 0.55;
/// The same share for a finding that is already active.
const LOST_TO_STAY: f64 = 0.4;
/// Memory traffic, in percent of the time, at or below which a GPU may be waiting.
const TRACE_OF_TRAFFIC: f64 = 3.0;
/// A kernel throttled by a power limit draws at least this share of the limit.
const SHARE_OF_LIMIT: f64 = 0.6;
/// A fully used GPU that draws a smaller share of its limit runs a kernel that does almost nothing.
const LIGHT_SHARE: f64 = 0.3;
/// CPU use, in percent of a core, from which a rank counts as working.
const WORK_CPU_PERCENT: f64 = 20.0;
/// The temperature from which GPUs may throttle, in degrees Celsius.
const HOT_CELSIUS: f64 = 80.0;
/// A hot GPU is throttled if its clock is below this share of its former clock.
const SLOWED_SHARE: f64 = 0.9;
/// Any GPU whose clock is below this share of before is throttled. Waiting in a kernel keeps the clock up.
const HELD_SHARE: f64 = 0.6;

/// Evidence that a process spins without making progress.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HungEvidence {
    /// Lowest utilization that the GPU reported in this time, in percent, 0 to 100.
    pub gpu_percent_min: u32,
    /// Mean power draw of the GPU in this time, in watts.
    pub power_watts_mean: f64,
    /// Mean power draw of the GPU while the same process was working, in watts.
    pub power_watts_before: Option<f64>,
    /// Power limit of the GPU, in watts, if it is used instead of the former power draw because the job
    /// is gone.
    pub power_limit_watts: Option<f64>,
    /// Mean memory traffic of the GPU in this time, in percent, 0 to 100.
    pub memory_percent_mean: Option<f64>,
    /// Mean memory traffic of the GPU while the same process was working, in percent, 0 to 100.
    pub memory_percent_before: Option<f64>,
    /// Number of samples in which the condition held.
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
            "min_utilization is {utilization}, and full use is from {FULL_PERCENT} to 100; write a \
             number between them"
        ));
    }
    let most = LOW_SHARE * 100.0;
    (share > most).then(|| {
        format!(
            "max_power_share is {share}, and above {most} a GPU is at work; write {most} or less"
        )
    })
}

fn gpu(seen: RuleInput<'_>, gpu: &Gpu, device: &Device, verdicts: &mut RuleOutput) {
    // The GPU answers, and a single process uses it fully.
    let (Some(who), Some(percent)) = (device.alone(), gpu.gpu_percent) else {
        return;
    };
    if f64::from(percent) < FULL_PERCENT {
        return;
    }
    let process = seen.snapshot.process(who.pid);
    let is_full = |settings: &Settings| f64::from(percent) >= settings.min_utilization.0;
    let Some(settings) = seen.settings_on(process, gpu).filter(is_full) else {
        return;
    };
    let span = seen.history.span_seconds();
    if !device.is_power_known() {
        verdicts.doubt(UndecidedReason::NoReading { gpu: gpu.index, what: "power" });
    } else if device.work(who).is_none() && span < LEAST_WORK_SECONDS {
        let needed = LEAST_WORK_SECONDS + settings.duration.seconds();
        verdicts.doubt(UndecidedReason::ShortHistory { needed, seen: span });
    }
}

struct HungOn {
    gpu: FindingGpu,
    severity: Severity,
    evidence: HungEvidence,
    since: Time,
    until: Time,
}

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    // Left-behind processes and GPUs in a low-power phase are rare, so test for them first.
    let is_left = it.known.abandoned().is_some();
    if !is_left && !it.seen.history.has_low_power_phase() {
        return;
    }
    // The driver attributes clients' work to the MPS server.
    if it.process.mps_role(None) == Some("mps server") {
        return;
    }
    let mut hung: Vec<HungOn> = Vec::new();
    for row in it.known.rows() {
        let device = it.seen.history.device_of(row);
        let gpu = device.index();
        let phase = device.low_power_phase().filter(|phase| phase.who == it.known.identity());
        // A recording may list a process twice on a GPU.
        if hung.iter().any(|on| on.gpu.index == gpu) {
            continue;
        }
        let Some(settings) = it.settings(row) else {
            continue;
        };
        let Some(phase) = phase else {
            hung.extend(left_spinning(it, row, &settings));
            continue;
        };
        let active = it.seen.active_finding(it.process.identity());
        let is_active = active.is_some_and(|it| it.gpus.iter().any(|on| on.index == gpu));
        let work = device.work(phase.who);
        let evidence = work.and_then(|work| evidence(phase, work, &settings, is_active));
        let Some(evidence) = evidence else {
            continue;
        };
        if phase.seconds() < settings.duration.seconds() {
            it.expect(gpu, phase.since, settings.duration.seconds(), verdicts);
        } else if !is_seen(phase, &settings, is_active) {
            verdicts.doubt(UndecidedReason::Gaps {
                gpu,
                covered: phase.coverage(),
                samples: phase.samples,
                least_covered: LEAST_COVERAGE,
                least_samples: LEAST_SAMPLES,
            });
        } else {
            hung.push(HungOn {
                gpu: FindingGpu { index: gpu, ..it.on(row) },
                severity: settings.severity,
                evidence,
                since: phase.since,
                until: phase.until,
            });
        }
    }
    if !hung.is_empty() && job_is_at_work(it) {
        return;
    }
    if let Some(parts) = finding_parts(it, hung) {
        verdicts.find(it.seen.finding(Some(it.process), parts));
    }
}

/// Whether another process of the job is working and does not spin.
fn job_is_at_work(it: ProcessInput<'_>) -> bool {
    let (history, snapshot) = (it.seen.history, it.seen.snapshot);
    let families = families(snapshot);
    let job = member(&families, it.process.pid);
    let others = job.into_iter().flat_map(|job| &job.members);
    let others = others.filter(|pid| **pid != it.process.pid);
    let known = others.filter_map(|pid| history.process(snapshot.process(*pid)?.identity()));
    known.into_iter().any(|other| {
        let spins = |row: &RowHistory| {
            let phase = history.device_of(row).low_power_phase();
            phase.is_some_and(|phase| phase.who == other.identity())
        };
        let uses = |row: &RowHistory| row.last_use() == Use::Used;
        !other.rows().is_empty()
            && !other.rows().iter().any(spins)
            && (other.rows().iter().any(uses) || is_at_work(other, WORK_CPU_PERCENT, NOW_SECONDS))
    })
}

/// Whether enough of a low-power phase was observed.
fn is_seen(phase: &LowPowerPhase, settings: &Settings, is_active: bool) -> bool {
    let (least, seconds) =
        if is_active { (LOST_TO_STAY, 0.0) } else { (LEAST_OF_LOST, settings.duration.seconds()) };
    let is_bridged = is_covered(phase.bridged(), is_active)
        && phase.coverage() >= least
        && phase.covered_seconds() >= seconds;
    phase.samples >= LEAST_SAMPLES && (is_covered(phase.coverage(), is_active) || is_bridged)
}

/// Evidence that a process is hung on a GPU; `None` if the fall has another explanation. An active finding has
/// already met the settings, and lasts while the history's wider bounds hold.
fn evidence(
    phase: &LowPowerPhase,
    work: &Work,
    settings: &Settings,
    is_active: bool,
) -> Option<HungEvidence> {
    let (now, before) = (phase.power.mean()?, work.power.mean()?);
    let is_full = phase.gpu_percent.mean()? >= settings.min_utilization.0;
    let is_low = now < before * settings.max_power_share.0 / 100.0;
    if !(is_active || is_full && is_low) {
        return None;
    }
    let (traffic, traffic_before) = (phase.memory.mean(), work.memory.mean());
    if moves_data(traffic, traffic_before, settings) || is_capped(phase, before) {
        return None;
    }
    if is_slowed_down(phase, work) {
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

/// Evidence that an orphan spins although it was never observed working.
fn left_spinning(it: ProcessInput<'_>, row: &RowHistory, settings: &Settings) -> Option<HungOn> {
    let left = it.known.abandoned()?;
    let device = it.seen.history.device_of(row);
    let gpu = it.seen.snapshot.gpus.iter().find(|gpu| gpu.index == device.index())?;
    let who = it.known.identity();
    let work = device.work(who).filter(|_| device.alone() == Some(who))?;
    let (percent, power, limit) = (gpu.gpu_percent?, work.power.mean()?, gpu.power_limit_watts?);
    let lasted = left.seconds().min(work.covered_seconds()) >= settings.duration.seconds();
    let is_full = f64::from(percent).min(work.gpu_percent.mean()?) >= settings.min_utilization.0;
    let is_low = power.max(gpu.power_watts?) < limit * LIGHT_SHARE;
    let is_still = work.memory.mean()? < TRACE_OF_TRAFFIC;
    (lasted && is_full && is_low && is_still).then(|| HungOn {
        gpu: FindingGpu { index: gpu.index, ..it.on(row) },
        severity: Severity::Info,
        evidence: HungEvidence {
            gpu_percent_min: percent,
            power_watts_mean: power,
            power_watts_before: None,
            power_limit_watts: Some(limit),
            memory_percent_mean: work.memory.mean(),
            memory_percent_before: None,
            samples: work.power.count(),
        },
        since: left.since,
        until: it.seen.snapshot.time,
    })
}

/// Whether memory traffic has stayed high although power has fallen.
fn moves_data(now: Option<f64>, before: Option<f64>, settings: &Settings) -> bool {
    now.zip(before).is_some_and(|(now, before)| {
        now >= TRACE_OF_TRAFFIC && now >= before * settings.max_power_share.0 / 100.0
    })
}

/// Whether the power limit is now below the former power, and most of it is used.
fn is_capped(phase: &LowPowerPhase, before: f64) -> bool {
    phase
        .power_limit
        .zip(phase.power.mean())
        .is_some_and(|(limit, now)| limit < before && now >= limit * SHARE_OF_LIMIT)
}

/// Whether the GPU is throttled by heat, or by a clock that someone set.
fn is_slowed_down(phase: &LowPowerPhase, work: &Work) -> bool {
    let share = phase.clock.mean().zip(work.clock.mean()).map(|(now, before)| now / before);
    let is_hot = phase.temperature.mean().is_some_and(|degrees| degrees >= HOT_CELSIUS);
    // An unknown clock does not prove that the GPU runs at full speed.
    share.is_some_and(|share| share < HELD_SHARE)
        || is_hot && share.is_none_or(|share| share < SLOWED_SHARE)
}

/// Combines the GPUs on which a process is hung into one finding.
fn finding_parts(it: ProcessInput<'_>, mut hung: Vec<HungOn>) -> Option<FindingParts> {
    let severity = hung.iter().map(|on| on.severity).max()?;
    let since = hung.iter().map(|on| on.since).max()?;
    let until = hung.iter().map(|on| on.until).max()?;
    hung.sort_by_key(|on| on.gpu.index);
    // Use the numbers of the GPU with the weakest evidence.
    let before = |it: &HungEvidence| it.power_watts_before.or(it.power_limit_watts);
    let share = |it: &HungEvidence| it.power_watts_mean / before(it).unwrap_or(f64::NAN);
    let evidence = hung.iter().map(|on| &on.evidence);
    let evidence = evidence.max_by(|a, b| share(a).total_cmp(&share(b)))?.clone();
    let gpus: Vec<FindingGpu> = hung.into_iter().map(|on| on.gpu).collect();
    let message = format!(
        "{} has kept {} at {}%{} for {} at {:.0} W{}, and {}",
        it.name(),
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
                    "outlived its job: a rank that waits for one that is gone, or a light kernel ({limit:.0} W is the limit)"
                )
            }
        },
    );
    let (evidence, advice) = (Evidence::new(evidence), advice(it.process));
    Some(FindingParts { severity, gpus, since, until, evidence, message, advice })
}

/// What to inspect before ending the process, while it still exists.
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
        "in a distributed job look at every rank: one that is gone or late keeps the others waiting"
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
