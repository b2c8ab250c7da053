//! What there is to say of a process and of a GPU, put together from the last snapshot, the history and
//! the findings.

use std::time::Duration;

use super::{KnownSoFar, More, kin, steps};
use crate::advice;
use crate::history::{self, memory_series};
use crate::model::finding::{Finding, Undecided};
use crate::model::snapshot::ReadError;
use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot};
use crate::report::explain::{
    ExplainReport, GpuBalance, GpuHolder, GpuPage, MemoryCurve, MemoryPoint, OnGpu, ProcessPage,
    RuleVerdict,
};
use crate::rules;
use crate::units::Span;

/// The page of the process of this number; of one that is not known for certain, nothing but that.
///
/// What `asked` names is the first of the findings.
pub fn process(seen: KnownSoFar<'_>, pid: u32, asked: Option<&Finding>) -> ExplainReport {
    let last = seen.last;
    let unknown = Process { pid, ..Process::default() };
    let known = last.process(pid).unwrap_or(&unknown);
    let identity = known.identity();
    let process = if identity.is_certain() {
        known.clone()
    } else {
        // Whatever else a recording says of it may be a stranger's.
        Process {
            unresolved: known.unresolved.clone(),
            last_known: known.last_known.clone(),
            ..unknown.clone()
        }
    };
    let history = seen.engine.history();
    let past = history.process(identity);
    let gpus = on_gpus(seen, &process);
    let indices: Vec<u32> = gpus.iter().map(|on| on.gpu).collect();
    let mut verdict = verdict_of_process(seen, identity, &indices, asked);
    let hidden_on = gpus.iter().filter(|on| !on.listed).map(|on| on.gpu);
    verdict.findings.extend(unattributed(seen, hidden_on));
    let window = history.span_seconds();
    let steps = steps::of_process(&process, &gpus, &verdict.findings);
    let mut report = report(seen);
    report.errors = errors(last, |gpu| indices.contains(&gpu));
    let is_silent = |gpu: &&Gpu| gpu.stale_seconds.is_some() && indices.contains(&gpu.index);
    for gpu in last.gpus.iter().filter(is_silent) {
        report.notes.push(format!(
            "GPU {} does not answer: its memory there is the driver's last value",
            gpu.index
        ));
    }
    report.process = Some(ProcessPage {
        name: rules::name_of(&process),
        framework_title: advice::of(&process).map(|row| row.title.to_owned()),
        first_seen: past.map(history::ProcessHistory::first_seen),
        arrival_seen: past.is_some_and(|past| Some(past.first_seen()) > history.first_time()),
        runtime_seconds: process.start_time.map(|start| last.time.seconds_since(start)),
        cpu_percent_mean: past
            .and_then(|past| past.cpu().mean(window))
            .map(|mean| mean.percent)
            .or(process.cpu_percent),
        kin: kin::of(&process, last),
        gpus,
        verdict,
        steps,
        // A plan tells, and here none is made.
        release: None,
        process,
    });
    report
}

/// The page of the GPU at this place of the last snapshot; an empty one where there is none.
///
/// What `asked` names is the first of the findings.
pub fn gpu(seen: KnownSoFar<'_>, place: usize, asked: Option<&Finding>) -> ExplainReport {
    let last = seen.last;
    let mut report = report(seen);
    let Some(gpu) = last.gpus.get(place) else {
        return report;
    };
    let holders = holders(last, gpu);
    let pids: Vec<u32> = holders.iter().map(|holder| holder.pid).collect();
    let verdict = verdict_of_gpu(seen, gpu.index, &pids, asked);
    let past = seen.courses.gpu(gpu);
    report.errors = errors(last, |index| index == gpu.index);
    report.gpu = Some(GpuPage {
        balance: balance(last, gpu),
        holders,
        unread_processes: last.host.unread_processes,
        gpu_percent_mean: past.and_then(memory_series::MemorySeries::percent_mean),
        course: past.map(memory_curve).unwrap_or_default(),
        steps: steps::of_gpu(&verdict.findings),
        verdict,
        device: gpu.clone(),
    });
    report
}

/// A page without a subject: when, on how much history, and what more of it would tell.
fn report(seen: KnownSoFar<'_>) -> ExplainReport {
    let history = seen.engine.history();
    let span = history.span_seconds();
    let mut report = ExplainReport::new(Some(seen.last.time), span);
    if Duration::try_from_secs_f64(span).is_ok_and(|span| span < seen.needed) {
        let (span, needed) = (Span::from_seconds(span), Span(seen.needed));
        let more = match seen.more {
            More::Nowhere => String::new(),
            More::ByWindow => format!(
                "; `gpumem record --store` keeps one, and --window {} waits for it",
                typed(needed)
            ),
            More::ByWaiting => "; `gpumem record --store` keeps one".to_owned(),
        };
        report
            .notes
            .push(format!("the history is {span} long, and some rules look back {needed}{more}"));
    }
    report
}

/// A duration as one types it: `30m`, `1h30m`.
fn typed(span: Span) -> String {
    let text = span.to_string();
    let parts = text.split(' ').filter(|part| !part.starts_with("00"));
    parts.collect()
}

/// What could not be read of these GPUs, or of the whole machine.
fn errors(last: &Snapshot, is_asked: impl Fn(u32) -> bool) -> Vec<ReadError> {
    let concerns = |error: &&ReadError| error.gpu.is_none_or(&is_asked);
    last.errors.iter().filter(concerns).cloned().collect()
}

fn on_gpus(seen: KnownSoFar<'_>, process: &Process) -> Vec<OnGpu> {
    let last = seen.last;
    let identity = process.identity();
    let mut found = Vec::new();
    for gpu in &last.gpus {
        let unattributed_bytes = balance(last, gpu).and_then(|it| it.unattributed_bytes);
        let rows = gpu.processes.iter().flatten();
        let mut rows = rows.filter(|row| row.pid == process.pid).peekable();
        if rows.peek().is_none() && gpu.is_open_in(process) == Some(true) {
            found.push(OnGpu {
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                gpu_instance_id: None,
                listed: false,
                used_bytes: None,
                used_unavailable: None,
                total_bytes: total(gpu, None),
                unattributed_bytes,
                sm_percent: None,
                sm_percent_mean: None,
                lifetime_percent: None,
                lifetime_since: None,
                unused_since: None,
                course: MemoryCurve::default(),
            });
        }
        for row in rows {
            let past = seen.courses.row(identity, gpu, row);
            let lifetime = row.lifetime_of(process);
            found.push(OnGpu {
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                gpu_instance_id: row.gpu_instance_id,
                listed: true,
                used_bytes: row.used_bytes,
                used_unavailable: gpu
                    .process_memory_unavailable
                    .clone()
                    .filter(|_| row.used_bytes.is_none()),
                total_bytes: total(gpu, row.gpu_instance_id),
                unattributed_bytes,
                sm_percent: row.sm_percent,
                sm_percent_mean: past.and_then(memory_series::MemorySeries::percent_mean),
                lifetime_percent: lifetime.map(|(percent, _)| percent),
                lifetime_since: lifetime.map(|(_, since)| since),
                unused_since: seen.engine.history().idle_since(identity, gpu.index),
                course: past.map(memory_curve).unwrap_or_default(),
            });
        }
    }
    found
}

/// All the memory of a GPU, or of an instance of it.
fn total(gpu: &Gpu, instance: Option<u32>) -> Option<u64> {
    let memory = match instance {
        None => gpu.memory,
        Some(id) => gpu
            .mig_devices
            .iter()
            .find(|device| device.gpu_instance_id == Some(id))
            .and_then(|device| device.memory),
    };
    memory.map(|memory| memory.total_bytes)
}

fn memory_curve(past: &memory_series::MemorySeries) -> MemoryCurve {
    let point = |bucket: &memory_series::MemoryBucket| MemoryPoint {
        since: bucket.since,
        until: bucket.until,
        low_bytes: bucket.low_bytes,
        high_bytes: bucket.high_bytes,
        last_bytes: bucket.last_bytes,
    };
    MemoryCurve {
        samples: past.samples(),
        points: past.buckets().iter().map(point).collect(),
        vouched_milliseconds: past.buckets().last().map_or(0, |last| last.vouched),
    }
}

/// Of a process on these GPUs.
fn verdict_of_process(
    seen: KnownSoFar<'_>,
    identity: Identity,
    gpus: &[u32],
    asked: Option<&Finding>,
) -> RuleVerdict {
    let is_its = |finding: &&Finding| {
        let process = finding.process.as_ref();
        process.is_some_and(|process| process.identity == identity)
    };
    let engine = &seen.engine;
    let kept = engine.kept().iter();
    let pending = engine.pending().iter();
    RuleVerdict {
        findings: first(asked, lasting_and_ceased(seen).filter(is_its)),
        pending: pending
            .filter(|pending| pending.pid == Some(identity.pid) && identity.is_certain())
            .cloned()
            .collect(),
        kept: kept.filter(|kept| is_its(&&kept.finding)).cloned().collect(),
        undecided: undecided(seen, |doubt| match (doubt.pid, doubt.gpu) {
            (Some(pid), _) => pid == identity.pid,
            (None, Some(gpu)) => gpus.contains(&gpu),
            (None, None) => true,
        }),
    }
}

/// Of a GPU that these processes hold.
fn verdict_of_gpu(
    seen: KnownSoFar<'_>,
    index: u32,
    holders: &[u32],
    asked: Option<&Finding>,
) -> RuleVerdict {
    let is_on = |finding: &&Finding| finding.gpus.iter().any(|gpu| gpu.index == index);
    let engine = &seen.engine;
    let kept = engine.kept().iter();
    let pending = engine.pending().iter();
    let mut findings: Vec<Finding> = first(asked, lasting_and_ceased(seen).filter(is_on));
    // What is about the GPU itself comes first; what was asked about is, too.
    findings.sort_by_key(|finding| finding.process.is_some());
    RuleVerdict {
        findings,
        pending: pending.filter(|it| it.gpu == index).cloned().collect(),
        kept: kept.filter(|kept| is_on(&&kept.finding)).cloned().collect(),
        undecided: undecided(seen, |doubt| match (doubt.gpu, doubt.pid) {
            (Some(gpu), _) => gpu == index,
            (None, Some(pid)) => holders.contains(&pid),
            (None, None) => true,
        }),
    }
}

/// What could not be decided of those that it concerns.
fn undecided(seen: KnownSoFar<'_>, concerns: impl FnMut(&Undecided) -> bool) -> Vec<Undecided> {
    let mut undecided = seen.engine.undecided();
    undecided.retain(concerns);
    undecided
}

/// The accusations, and what was one within the history.
fn lasting_and_ceased(seen: KnownSoFar<'_>) -> impl Iterator<Item = &Finding> {
    let engine = &seen.engine;
    engine.findings().iter().chain(engine.resolved())
}

/// The one that was asked about, and the others; one that is kept is listed as such.
fn first<'f>(asked: Option<&Finding>, findings: impl Iterator<Item = &'f Finding>) -> Vec<Finding> {
    let mut found: Vec<Finding> = findings.cloned().collect();
    if let Some(asked) = asked {
        found.sort_by_key(|finding| finding.id != asked.id);
    }
    found
}

/// What the rules say of memory without a listed process, on the GPUs whose device file it has open.
fn unattributed(seen: KnownSoFar<'_>, gpus: impl Iterator<Item = u32>) -> Vec<Finding> {
    let gpus: Vec<u32> = gpus.collect();
    let concerns = |finding: &&Finding| {
        let is_on = finding.gpus.iter().any(|gpu| gpus.contains(&gpu.index));
        finding.process.is_none() && finding.kind == crate::model::Kind::Unattributed && is_on
    };
    let findings = seen.engine.findings().iter();
    findings.filter(concerns).cloned().collect()
}

/// Where a GPU's memory is, as far as that is known.
fn balance(last: &Snapshot, gpu: &Gpu) -> Option<GpuBalance> {
    let balance = last.balance(gpu)?;
    Some(GpuBalance {
        total_bytes: balance.total_bytes,
        free_bytes: balance.free_bytes,
        reserved_bytes: balance.reserved_bytes,
        processes_bytes: balance.process_bytes,
        unattributed_bytes: balance.unattributed.ok(),
        unattributed_unknown: balance.unattributed.err().map(str::to_owned),
    })
}

/// Who is listed on a GPU, the largest first, and who has its device file open without being listed.
fn holders(last: &Snapshot, gpu: &Gpu) -> Vec<GpuHolder> {
    let rows = gpu.processes.as_deref().unwrap_or_default();
    let mut found: Vec<GpuHolder> = rows.iter().map(|row| listed(last, row)).collect();
    found.sort_by_key(|holder| (std::cmp::Reverse(holder.used_bytes), holder.pid));
    let is_listed = |pid: u32| rows.iter().any(|row| row.pid == pid);
    let hidden = last.processes.iter().filter(|process| {
        !is_listed(process.pid)
            && process.identity().is_certain()
            && gpu.is_open_in(process) == Some(true)
    });
    found.extend(hidden.map(named));
    found
}

fn listed(last: &Snapshot, row: &GpuProcess) -> GpuHolder {
    GpuHolder {
        listed: true,
        gpu_instance_id: row.gpu_instance_id,
        used_bytes: row.used_bytes,
        sm_percent: row.sm_percent,
        ..who(last, row.pid)
    }
}

/// The process that a pid names, without what it holds; nothing of one that is not known for certain.
fn who(last: &Snapshot, pid: u32) -> GpuHolder {
    let process = last.process(pid);
    if let Some(known) = process.filter(|process| process.identity().is_certain()) {
        return named(known);
    }
    let ownerless = Process { pid, ..Process::default() };
    let ended = process.filter(|process| process.ended().is_some());
    GpuHolder {
        name: match process.and_then(|process| process.unresolved.as_deref()) {
            Some(reason) => format!("(not resolved: {reason})"),
            None => match ended {
                Some(ended) => format!("(ended: {})", rules::name_of(ended)),
                None => "(no such process)".to_owned(),
            },
        },
        user: ended.and_then(|it| it.ended()?.user.clone()),
        ..named(&ownerless)
    }
}

fn named(process: &Process) -> GpuHolder {
    GpuHolder {
        pid: process.pid,
        name: rules::name_of(process),
        user: process.user.clone(),
        listed: false,
        is_monitor: process.is_monitor(),
        gpu_instance_id: None,
        used_bytes: None,
        sm_percent: None,
    }
}

/// A process with all that it holds, on whichever GPUs.
pub(super) fn holder(pid: u32, last: &Snapshot) -> GpuHolder {
    let rows = || {
        let rows = last.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        rows.filter(|row| row.pid == pid)
    };
    let sum = |sum: u64, row: &GpuProcess| Some(sum.saturating_add(row.used_bytes?));
    let is_listed = rows().next().is_some();
    GpuHolder {
        listed: is_listed,
        used_bytes: rows().try_fold(0, sum).filter(|_| is_listed),
        sm_percent: rows().filter_map(|row| row.sm_percent).max(),
        ..who(last, pid)
    }
}
