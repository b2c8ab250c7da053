//! The step that parks a process; see [`crate::reclaim::park`]. The helper performs all checks and calls, and verifies
//! with NVML that the memory is free.

use super::{StepContext, StepEffect, StepState};
use crate::model::process::ParkState;
use crate::model::process_name::name_of;
use crate::model::{Process, Snapshot};
use crate::reclaim::ledger::LedgerError;
use crate::reclaim::park::{self, ParkAnswer, ParkOperation, ParkResult, estimate, timeout};
use crate::reclaim::process_control::RequestResult;
use crate::reclaim::release;
use crate::reclaim::target::{Deed, LedgerProcess, ProcessToPark, Request, Step};
use crate::reclaim::verify::Outcome;
use crate::units::Bytes;

/// The step waits this many seconds longer than the requesting thread, so that the thread's time limit expires first.
const SLACK_SECONDS: f64 = 5.0;

/// Returns the step that parks a process. Returns `None` if the owner or the start time of the process is unknown.
pub(in crate::reclaim) fn step(
    process: &Process,
    snapshot: &Snapshot,
    to_end: bool,
) -> Option<Step> {
    let rows = snapshot.rows_of(process.pid);
    let jupyter = process.jupyter.as_deref();
    let process = ProcessToPark {
        pid: process.pid,
        start_ticks: process.start_ticks?,
        uid: process.uid?,
        name: name_of(process).into(),
        notebook: jupyter.and_then(|jupyter| jupyter.notebook_path.clone()),
        bytes: rows.filter_map(|row| row.used_bytes).fold(0, u64::saturating_add),
        has_release: release::find(process, snapshot).is_ok(),
    };
    Some(Step::Park { process, to_end })
}

/// Returns the step that parks a process before it is ended, if it was ever restored. Killing a restored process has
/// hung whole machines with the open kernel modules of driver 595 (NVIDIA/cuda-checkpoint issue 53).
pub(super) fn before_end(process: &Process, snapshot: &Snapshot) -> Option<Step> {
    let mark = process.park.as_deref()?;
    let must_park = mark.was_restored && mark.state == ParkState::Running;
    step(process, snapshot, true).filter(|_| must_park)
}

pub(super) fn describe(process: &ProcessToPark, to_end: bool) -> String {
    let (pid, bytes, time) = (process.pid, Bytes(process.bytes), estimate(process.bytes));
    if to_end {
        return format!("park {pid} first, because it was restored once; about {time}");
    }
    let unpark = format!("its next CUDA call waits until gpumem unpark {pid}");
    let first = match process.has_release {
        true => format!("; if its cache is large, run gpumem release {pid} first, which is faster"),
        false => String::new(),
    };
    format!("move {bytes} of {pid} to host memory; about {time} each way; {unpark}{first}")
}

pub(super) fn grace_seconds(process: &ProcessToPark) -> f64 {
    timeout(process.bytes).as_secs_f64() + SLACK_SECONDS
}

pub(super) fn request(
    process: &ProcessToPark,
    to_end: bool,
    state: &mut StepState,
    context: &mut StepContext<'_>,
) -> Result<StepEffect, LedgerError> {
    let parked = LedgerProcess { pid: process.pid, start_ticks: process.start_ticks };
    let deed = Deed::Park { process: parked, bytes: process.bytes };
    state.request(deed, Request::Park { process: process.clone(), to_end }, context)
}

/// Parks the process. Can take up to [`timeout`].
pub(super) fn perform(process: &ProcessToPark, to_end: bool) -> ParkAnswer {
    park::perform(if to_end { ParkOperation::ParkToEnd } else { ParkOperation::Park }, process)
}

pub(super) fn effect(
    process: &ProcessToPark,
    to_end: bool,
    state: &StepState,
    context: &mut StepContext<'_>,
) -> StepEffect {
    if !context.is_alive(process.pid, process.start_ticks) {
        return if to_end { StepEffect::Over } else { StepEffect::Ends(Outcome::Exited) };
    }
    let RequestResult::Parked(answer) = &state.answer else {
        return StepEffect::Pending;
    };
    let ParkAnswer { result, text, bytes, ms } = answer;
    let why = match to_end {
        true => format!("not ended, because it was restored once and could not be parked: {text}"),
        false => text.clone(),
    };
    let why = why.into();
    StepEffect::Ends(match result {
        ParkResult::Parked if to_end => {
            // An older snapshot can still show the park as in progress.
            let is_shown = state.answered.is_some_and(|done| context.input.snapshot.time > done);
            return if is_shown { StepEffect::Over } else { StepEffect::Pending };
        }
        ParkResult::Parked => {
            return StepEffect::Settled(Outcome::Parked { bytes: *bytes, ms: *ms });
        }
        ParkResult::Refused | ParkResult::NoRoom => Outcome::Refused { why },
        ParkResult::Busy => Outcome::Busy { why },
        ParkResult::Late => Outcome::TimedOut { why },
        ParkResult::Running | ParkResult::Failed => Outcome::ParkFailed { why },
    })
}

pub(super) fn expired(to_end: bool) -> StepEffect {
    let end = if to_end { "not ended; " } else { "" };
    let why = format!("{end}the helper continues, and gpumem park --list shows the result");
    StepEffect::Ends(Outcome::TimedOut { why: why.into() })
}
