//! The step that parks a process; see [`crate::reclaim::park`]. The helper performs all checks and calls, and verifies
//! with NVML that the memory is free.

use super::{StepContext, StepEffect, StepState};
use crate::model::process::ParkState;
use crate::model::process_name::name_of;
use crate::model::{Process, Snapshot};
use crate::reclaim::ledger::LedgerError;
use crate::reclaim::park::{ParkAnswer, ParkOperation, ParkRequest, estimate, patience};
use crate::reclaim::process_control::RequestResult;
use crate::reclaim::target::{Deed, LedgerProcess, ParkWay, Request, Step};
use crate::reclaim::verify::Outcome;
use crate::units::Bytes;

/// The step waits this many seconds longer than the requesting thread, so that the thread's time limit expires first.
const SLACK_SECONDS: f64 = 5.0;

pub(in crate::reclaim) fn step(way: ParkWay, to_end: bool) -> Step {
    let grace_seconds = patience(way.bytes).as_secs_f64() + SLACK_SECONDS;
    Step::Park { way, to_end, grace_seconds }
}

/// Returns the step that parks a process before it is ended, if it was ever restored. Killing a restored process has hung
/// whole machines with the open kernel modules of driver 595 (NVIDIA/cuda-checkpoint issue 53).
pub(super) fn to_end(process: &Process, snapshot: &Snapshot) -> Option<Step> {
    let mark = process.park.as_deref()?;
    if !mark.was_restored || mark.state != ParkState::Running {
        return None;
    }
    let rows = snapshot.rows_of(process.pid);
    let way = ParkWay {
        pid: process.pid,
        start_ticks: process.start_ticks?,
        uid: process.uid?,
        name: name_of(process).into(),
        notebook: None,
        bytes: rows.filter_map(|row| row.used_bytes).fold(0, u64::saturating_add),
    };
    Some(step(way, true))
}

pub(super) fn describe(way: &ParkWay, to_end: bool) -> String {
    let (pid, bytes, time) = (way.pid, Bytes(way.bytes), estimate(way.bytes));
    match to_end {
        true => format!("park {pid} first, because it was restored once; about {time}"),
        false => format!(
            "move {bytes} of {pid} to host memory; about {time} each way; its next CUDA call waits until gpumem \
            unpark {pid}"
        ),
    }
}

pub(super) fn request(
    way: &ParkWay,
    to_end: bool,
    state: &mut StepState,
    context: &mut StepContext<'_>,
) -> Result<StepEffect, LedgerError> {
    let process = LedgerProcess { pid: way.pid, start_ticks: way.start_ticks };
    let deed = Deed::Park { process, bytes: way.bytes };
    state.request(deed, Request::Park { way: way.clone(), to_end }, context)
}

/// Parks the process. Can take as long as [`patience`] says.
pub(super) fn perform(way: &ParkWay, to_end: bool) -> ParkAnswer {
    let operation = if to_end { ParkOperation::ParkToEnd } else { ParkOperation::Park };
    match ParkRequest::new(operation, way) {
        Some(request) => request.perform(patience(way.bytes)),
        None => {
            ParkAnswer::Refused { why: "there is no state directory for the journal".to_owned() }
        }
    }
}

pub(super) fn effect(
    way: &ParkWay,
    to_end: bool,
    state: &StepState,
    context: &mut StepContext<'_>,
) -> StepEffect {
    if !context.is_alive(way.pid, way.start_ticks) {
        return if to_end { StepEffect::Over } else { StepEffect::Ends(Outcome::Exited) };
    }
    let RequestResult::Parked(answer) = &state.answer else {
        return StepEffect::Pending;
    };
    let why = || match to_end {
        true => format!(
            "not ended, because it was restored once and could not be parked: {}",
            answer.words()
        ),
        false => answer.words(),
    };
    StepEffect::Ends(match answer {
        ParkAnswer::Parked { .. } if to_end => {
            // An older snapshot can still show that the helper is at work.
            let is_shown = state.answered.is_some_and(|done| context.input.snapshot.time > done);
            return if is_shown { StepEffect::Over } else { StepEffect::Pending };
        }
        ParkAnswer::Parked { bytes, ms } => {
            return StepEffect::Settled(Outcome::Parked { bytes: *bytes, ms: *ms });
        }
        ParkAnswer::Refused { .. } | ParkAnswer::NoRoom { .. } => {
            Outcome::Refused { why: why().into() }
        }
        ParkAnswer::Busy { .. } => Outcome::Busy { why: why().into() },
        ParkAnswer::Late { .. } => Outcome::TimedOut { why: why().into() },
        ParkAnswer::Running { .. } | ParkAnswer::Failed { .. } => {
            Outcome::ParkFailed { why: why().into() }
        }
    })
}

pub(super) fn expired(to_end: bool) -> StepEffect {
    let why = match to_end {
        true => {
            "not ended: it was restored once, and parking it takes too long; see gpumem park --list"
        }
        false => "the helper continues; gpumem park --list shows the result",
    };
    StepEffect::Ends(Outcome::TimedOut { why: why.into() })
}
