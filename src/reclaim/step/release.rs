//! The step that asks a process to release memory and keep running; see [`crate::reclaim::release`].
//!
//! Success is measured with NVML: the memory that NVML lists for the target must drop, and stay low in three samples
//! after the answer.

use super::{FamilyInput, StepContext, StepEffect, StepState};
use crate::model::{Process, Snapshot, Time};
use crate::reclaim::ledger::LedgerError;
use crate::reclaim::policy::Release;
use crate::reclaim::process_control::RequestResult;
use crate::reclaim::release::{
    self, NotReleased, ReleaseBy, ReleaseOptions, ReleaseReport, ReleaseWay,
};
use crate::reclaim::target::{Deed, Request, Step};
use crate::reclaim::verify::{MIN_RELEASED, Outcome};
use crate::units::Bytes;

/// Time, in seconds, for which NVML is watched after the process reports success.
const SETTLE_SECONDS: f64 = 5.0;
/// The step waits this many seconds longer than the requesting thread, so that the thread's time limit expires first.
const SLACK_SECONDS: f64 = 2.0;
/// Minimum interval, in seconds, between requests to the same process. A repeated request would hardly free more
/// memory and would delay the process.
pub const AGAIN_SECONDS: f64 = 60.0;

pub(in crate::reclaim) fn step(
    way: ReleaseWay,
    options: &ReleaseOptions,
    holders: &[&Process],
    snapshot: &Snapshot,
) -> Step {
    let milliseconds = match way.by {
        ReleaseBy::Server(_) => options.server_ms(),
        _ => options.wait_ms,
    };
    let grace_seconds =
        milliseconds as f64 / 1000.0 + settle_seconds(&way, options) + SLACK_SECONDS;
    let mut pci_bus_ids = Vec::new();
    for gpu in &snapshot.gpus {
        let mut rows = gpu.processes.iter().flatten();
        if rows.any(|row| holders.iter().any(|holder| holder.pid == row.pid)) {
            pci_bus_ids.extend(gpu.pci_bus_id.clone());
        }
    }
    Step::Release { way, options: ReleaseOptions { pci_bus_ids, ..options.clone() }, grace_seconds }
}

/// Returns the release step for an idle family, if any. The oldest member that can be asked is asked. Servers are
/// asked only if their rule requests it; see `plan`.
pub(super) fn plan(candidate: &FamilyInput<'_>) -> Option<Step> {
    let policy = &candidate.guard.policy;
    let Release::First(options) = &policy.release else {
        return None;
    };
    if !candidate.is_idle || policy.direct || policy.signal.is_some() {
        return None;
    }
    let mut members: Vec<&Process> = candidate.processes.to_vec();
    members.sort_by_key(|member| (member.start_ticks, member.pid));
    let mut ways =
        members.iter().filter_map(|member| release::find(member, candidate.snapshot).ok());
    let way = ways.find(|way| !matches!(way.by, ReleaseBy::Server(_)))?;
    Some(step(way, options, candidate.processes, candidate.snapshot))
}

/// Returns the time, in seconds, for which NVML is watched. A server can report success before it has finished its
/// current job and freed the memory.
fn settle_seconds(way: &ReleaseWay, options: &ReleaseOptions) -> f64 {
    match way.by {
        ReleaseBy::Server(_) => SETTLE_SECONDS.max(options.wait_ms as f64 / 1000.0),
        _ => SETTLE_SECONDS,
    }
}

/// Describes the request. `verb` is `ask` or `asking`.
pub(super) fn describe_request(way: &ReleaseWay, verb: &str) -> String {
    let pid = way.pid;
    match &way.by {
        ReleaseBy::Server(unload) => {
            format!("{verb} {} ({pid}) at {} to unload its models", unload.server, unload.address)
        }
        ReleaseBy::Kernel { notebook, .. } => {
            let notebook = notebook.as_ref().map(|path| format!(" of {path}")).unwrap_or_default();
            format!("{verb} kernel {pid}{notebook} to release cached memory")
        }
        ReleaseBy::Signal { signal } => {
            format!("send {signal} to {pid}, which then releases memory")
        }
    }
}

pub(super) fn describe(way: &ReleaseWay) -> String {
    let keeps = match way.by {
        ReleaseBy::Kernel { .. } => "; its variables stay",
        ReleaseBy::Server(_) | ReleaseBy::Signal { .. } => "",
    };
    format!("{}{keeps}", describe_request(way, "ask"))
}

pub(super) fn request(
    way: &ReleaseWay,
    options: &ReleaseOptions,
    state: &mut StepState,
    context: &mut StepContext<'_>,
) -> Result<StepEffect, LedgerError> {
    let last = state.requests_to(way.pid, way.start_ticks).map(|release| release.since).max();
    // If the clock was set back, a request in the future is treated as one that was just sent.
    let seconds = last.map(|last| context.input.now.seconds_since(last).max(0.0));
    if let Some(seconds) = seconds.filter(|seconds| *seconds < AGAIN_SECONDS) {
        let why = format!(
            "it was asked {seconds:.0} s ago; try again in {:.0} s",
            (AGAIN_SECONDS - seconds).max(1.0)
        );
        return Ok(StepEffect::Settled(Outcome::Refused { why: why.into() }));
    }
    let request = Request::Release { way: way.clone(), options: options.clone() };
    state.request(Deed::Release { way: way.clone() }, request, context)
}

pub(super) fn effect(
    way: &ReleaseWay,
    options: &ReleaseOptions,
    state: &StepState,
    context: &mut StepContext<'_>,
) -> StepEffect {
    if !context.is_alive(way.pid, way.start_ticks) {
        return StepEffect::Ends(Outcome::Exited);
    }
    match &state.answer {
        RequestResult::Released(Ok(report)) => {
            measure(way, options, report, state, context.input.snapshot.time)
        }
        RequestResult::Released(Err(busy @ NotReleased::Busy(_))) => {
            StepEffect::Ends(Outcome::of_release(busy))
        }
        RequestResult::Released(Err(error)) => StepEffect::Settled(Outcome::of_release(error)),
        RequestResult::Failed(why) | RequestResult::Restarts(why) => {
            StepEffect::Settled(Outcome::NoWayIn { why: why.as_str().into() })
        }
        RequestResult::Waiting
        | RequestResult::Done
        | RequestResult::AtWork
        | RequestResult::Parked(_) => StepEffect::Pending,
    }
}

pub(super) fn expired(state: &StepState) -> StepEffect {
    let why = match state.answer {
        RequestResult::Released(_) => "NVML has not reported its memory since; see gpumem ps",
        _ => "it has not answered; it may still release memory later",
    };
    StepEffect::Settled(Outcome::TimedOut { why: why.into() })
}

/// Derives the outcome from NVML's samples after the answer.
fn measure(
    way: &ReleaseWay,
    options: &ReleaseOptions,
    report: &ReleaseReport,
    state: &StepState,
    sampled: Time,
) -> StepEffect {
    let Some((done, (bytes, since))) = state.answered.zip(state.meter.released()) else {
        return StepEffect::Pending;
    };
    let has_released = bytes >= MIN_RELEASED;
    let settle = if has_released { SETTLE_SECONDS } else { settle_seconds(way, options) };
    if sampled < done.plus_seconds(settle) {
        return StepEffect::Pending;
    }
    let mut report = Box::new(report.clone());
    StepEffect::Settled(if has_released {
        let ms = u64::try_from(since - state.first_action.unwrap_or(done)).unwrap_or(0);
        Outcome::Released { bytes, ms, report }
    } else {
        report.why.get_or_insert_with(|| format!("NVML shows {} freed", Bytes(bytes)).into());
        Outcome::NothingToRelease { bytes, report }
    })
}
