//! `placeholder`: a program that holds a GPU to keep others off it, and does no work there.
//!
//! Known programs published for this purpose are found by name (`Process::placeholder`), once they have run for
//! the duration, so that a burn-in test of some minutes is none, and while they hold memory on a GPU.
//!
//! Others are found by their behaviour, as info only: for the duration the process used the GPU in short bursts
//! at a constant period (`history::bursts`), held the same memory, drew less power than a GPU at work, used
//! little CPU, had no socket, and read and wrote nothing at all: its results go nowhere. That excludes health
//! checks and periodic inference, which report results, collectives that keep in touch, which have sockets, and
//! servers and notebooks. Results passed only through shared memory are not visible, nor is a socket that lives
//! for less than half a minute, so it is reported and no more. Anything unknown makes the rule undecided.
//!
//! No action ends it: whoever needs the GPU talks to its owner. That goes for other rules' findings on it, too:
//! see `reclaim::select`.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rule::{FindingParts, ProcessInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds};
use super::undecided_reason::UndecidedReason;
use super::{server, subject};
use crate::advice;
use crate::history::RowHistory;
use crate::model::Time;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{FindingGpu, Kind, Severity};
use crate::model::snapshot::ProcessType;
use crate::units::{Bytes, GIB, Span};

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<PlaceholderEvidence>(
        Kind::Placeholder,
        "a program reserves a GPU and does no work on it",
        &[
            ("min_memory", "less memory than this on a GPU is ignored"),
            ("duration", "how long it has to run"),
            SEVERITY,
        ],
        Settings { min_memory: Bytes(GIB), duration: seconds(3600), ..Settings::NONE },
    )
};

/// The fewest bursts; fewer may be chance.
const LEAST_BURSTS: u64 = 10;
/// The longest period in seconds: one that wakes the GPU more rarely can be found idle.
const LONGEST_PERIOD_SECONDS: f64 = 900.0;
/// The share of its power limit from which a GPU is at work.
const POWER_AT_WORK: f64 = 0.5;
/// The mean CPU use, in percent of a core, from which a process is at work.
const CPU_AT_WORK: f64 = 20.0;

/// What to do, other than ending it.
const ADVICE: &str = "it holds a GPU and does no work on it; ask its owner what it is reserved for";

/// Evidence that a process only reserves a GPU.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlaceholderEvidence {
    /// Known program that the process runs; `None` if its behaviour is the evidence.
    pub program: Option<Arc<str>>,
    /// Number of short bursts of GPU use at a constant interval; `None` for a known program.
    pub bursts: Option<u64>,
    /// Mean interval between bursts, in seconds.
    pub period_seconds: Option<f64>,
    /// Highest power draw of the GPU in this time, in percent of its power limit.
    pub power_percent_max: Option<f64>,
    /// Number of samples evaluated.
    pub samples: u64,
}

impl KindEvidence for PlaceholderEvidence {
    fn words(&self) -> String {
        let mut words = match &self.program {
            Some(program) => format!("runs {}, which occupies GPUs", program),
            None => "no sockets, nothing read or written".to_owned(),
        };
        if let (Some(bursts), Some(period)) = (self.bursts, self.period_seconds) {
            let period = Span::from_seconds(period);
            let _ = write!(words, ", {bursts} short bursts of use, one every {period}");
        }
        if let Some(power) = self.power_percent_max {
            let _ = write!(words, ", at most {power:.0}% of the power limit");
        }
        let _ = write!(words, " in {}", samples(self.samples));
        words
    }
}

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let parts = match it.known.names().placeholder {
        Some(program) => by_name(it, program, verdicts),
        None => by_behaviour(it, verdicts),
    };
    if let Some(parts) = parts {
        verdicts.find(it.seen.finding(Some(it.process), parts));
    }
}

/// Evaluates a known placeholder by how long it has run.
fn by_name(
    it: ProcessInput<'_>,
    program: &'static str,
    verdicts: &mut RuleOutput,
) -> Option<FindingParts> {
    let now = it.seen.snapshot.time;
    let mut gpus: Vec<FindingGpu> = Vec::new();
    let mut severity = None;
    let mut samples = 0;
    // It was started to hold memory, and did so before its memory was observed.
    let began = it.process.start_time.filter(|start| *start <= now);
    let since = began.or_else(|| it.known.rows().iter().map(RowHistory::first_seen).min())?;
    for row in it.known.rows() {
        let Some(settings) = it.settings(row) else {
            continue;
        };
        let is_enough = |bytes: u64| bytes >= settings.min_memory.0;
        if row.kind() == ProcessType::Graphics || !row.used_bytes().is_some_and(is_enough) {
            continue;
        }
        let (gpu, needed) = (it.on(row), settings.duration.seconds());
        if now < since.plus_seconds(needed) {
            it.expect(gpu.index, since, needed, verdicts);
            continue;
        }
        severity = severity.max(Some(settings.severity));
        samples = samples.max(row.plateau().map_or(0, |plateau| plateau.samples));
        gpus.push(gpu);
    }
    let gpus = subject::by_gpu(gpus.into_iter());
    let message = format!(
        "{} holds {} and has run for {}: {program} occupies GPUs without doing any work",
        it.name(),
        subject::held(&gpus),
        Span::from_seconds(now.seconds_since(since)),
    );
    let evidence = PlaceholderEvidence {
        program: Some(program.into()),
        bursts: None,
        period_seconds: None,
        power_percent_max: None,
        samples,
    };
    let (evidence, advice) = (Evidence::new(evidence), advice(it));
    Some(FindingParts { severity: severity?, gpus, since, until: now, evidence, message, advice })
}

fn advice(it: ProcessInput<'_>) -> Vec<String> {
    [ADVICE.to_owned()].into_iter().chain(advice::steps(it.process)).collect()
}

/// Whether someone may wait for its results, or it may do other work.
fn may_be_awaited(it: ProcessInput<'_>) -> bool {
    let world = it.process.environment.as_deref().and_then(|it| it.get("WORLD_SIZE"));
    let below = it.process.descendants.as_deref().and_then(|it| it.count);
    world.is_some_and(|size| &**size != "1")
        || it.process.jupyter.is_some()
        || below != Some(0)
        || server::is_server(it.process, it.known, it.seen.snapshot)
}

/// A GPU kept from others by bursts of use.
struct HeldGpu {
    gpu: FindingGpu,
    evidence: PlaceholderEvidence,
    since: Time,
    until: Time,
}

/// Evaluates a process's behaviour on one GPU, by its bursts of use.
fn held_gpu(it: ProcessInput<'_>, row: &RowHistory, verdicts: &mut RuleOutput) -> Option<HeldGpu> {
    // Nearly every process ends here.
    let bursts = row.bursts().filter(|it| it.count >= LEAST_BURSTS)?;
    let settings = it.settings(row)?;
    let (plateau, period) = (row.plateau()?, bursts.period_seconds()?);
    let is_at_work = |share: f64| share >= POWER_AT_WORK;
    if row.used_bytes()? < settings.min_memory.0
        || row.kind() != ProcessType::Compute
        || row.is_of_instance()
        || period > LONGEST_PERIOD_SECONDS
        || bursts.power_share_max.is_some_and(is_at_work)
        || may_be_awaited(it)
    {
        return None;
    }
    let (gpu, pid) = (it.on(row), it.process.pid);
    let needed = settings.duration.seconds();
    if bursts.seconds() < needed {
        return None;
    }
    let Some(power) = bursts.power_share_max else {
        verdicts.doubt(UndecidedReason::NoReading { gpu: gpu.index, what: "power" });
        return None;
    };
    if it.process.io_bytes.is_none() || it.process.sockets.is_none() {
        verdicts.doubt(UndecidedReason::NoIo { pid });
        return None;
    }
    let since = bursts.since.max(plateau.since).max(it.known.silent()?.since);
    if bursts.until.seconds_since(since) < needed {
        return None;
    }
    let Some(cpu) = it.known.cpu().mean(needed) else {
        verdicts.doubt(UndecidedReason::NoCpu { pid });
        return None;
    };
    (cpu.percent < CPU_AT_WORK).then_some(HeldGpu {
        gpu,
        evidence: PlaceholderEvidence {
            program: None,
            bursts: Some(bursts.count),
            period_seconds: Some(period),
            power_percent_max: Some(power * 100.0),
            samples: bursts.samples,
        },
        since,
        until: bursts.until,
    })
}

/// Evaluates a process's behaviour on all of its GPUs.
fn by_behaviour(it: ProcessInput<'_>, verdicts: &mut RuleOutput) -> Option<FindingParts> {
    let rows = it.known.rows().iter();
    let found: Vec<HeldGpu> = rows.filter_map(|row| held_gpu(it, row, verdicts)).collect();
    let since = found.iter().map(|held| held.since).max()?;
    let until = found.iter().map(|held| held.until).max()?;
    // Numbers of the GPU with the fewest bursts.
    let fewest = found.iter().min_by_key(|held| held.evidence.bursts)?;
    let evidence = fewest.evidence.clone();
    let gpus = subject::by_gpu(found.into_iter().map(|held| held.gpu));
    let message = format!(
        "{} has held {} for {} and used it only for a moment every {}, at {:.0}% of its power or less, \
         without reading or writing anything",
        it.name(),
        subject::held(&gpus),
        Span::from_seconds(until.seconds_since(since)),
        Span::from_seconds(evidence.period_seconds?.round()),
        evidence.power_percent_max?,
    );
    let (evidence, advice) = (Evidence::new(evidence), advice(it));
    Some(FindingParts { severity: Severity::Info, gpus, since, until, evidence, message, advice })
}

#[cfg(test)]
mod tests;
