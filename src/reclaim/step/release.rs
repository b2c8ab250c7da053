//! A way: the process gives memory back and lives on, by one of the ways of [`crate::reclaim::release`].
//!
//! Whether it helped NVML says, and only NVML: what the target's own rows hold less than before, at the
//! least of three samples, in the seconds after the process says that it is done.

use std::fmt;

use super::{
    FamilyInput, Measured, PendingRequest, ReclaimWay, Started, StepContext, StepEffect, StepState,
};
use crate::model::{Process, Snapshot};
use crate::reclaim::ledger;
use crate::reclaim::policy::Release;
use crate::reclaim::process_control::{Handle, RequestResult};
use crate::reclaim::release::{self, ReleaseAnswer, ReleaseOptions, ReleaseReport, ReleaseWay};
use crate::reclaim::target::{Deed, Recipients, Request, Step, Target};
use crate::reclaim::verify::{LEAST_RELEASED, Outcome};
use crate::units::{Bytes, Span};

/// For how long NVML is looked at after the process has said that it is done, in seconds.
const SETTLE_SECONDS: f64 = 5.0;
/// What the thread that asks may take on top of what it was given, in seconds.
const SLACK_SECONDS: f64 = 2.0;
/// A process is not asked again within this time, in seconds: it would be held up for nothing.
pub const AGAIN_SECONDS: f64 = 60.0;

/// To have a process give memory back.
pub(super) struct ReleaseMemory<'a> {
    pub way: &'a ReleaseWay,
    pub options: &'a ReleaseOptions,
    pub grace_seconds: f64,
}

/// The step by which a process gives memory back.
pub(in crate::reclaim) fn step(
    way: ReleaseWay,
    options: &ReleaseOptions,
    holders: &[&Process],
    snapshot: &Snapshot,
) -> Step {
    let grace_seconds =
        options.wait_ms as f64 / 1000.0 + settle_seconds(&way, options) + SLACK_SECONDS;
    let mut pci_bus_ids = Vec::new();
    for gpu in &snapshot.gpus {
        let mut rows = gpu.processes.iter().flatten();
        if rows.any(|row| holders.iter().any(|it| it.pid == row.pid)) {
            pci_bus_ids.extend(gpu.pci_bus_id.clone());
        }
    }
    Step::Release { way, options: ReleaseOptions { pci_bus_ids, ..options.clone() }, grace_seconds }
}

/// Where a family was found idle, and the policy asks it first: by the oldest of its members that can be
/// asked. What serves is asked only by a rule that says so, see `plan`.
pub(super) fn plan(candidate: &FamilyInput<'_>) -> Option<Step> {
    let policy = &candidate.guard.policy;
    let Release::First(options) = &policy.release else {
        return None;
    };
    if !candidate.is_idle || policy.direct || policy.signal.is_some() {
        return None;
    }
    let mut members: Vec<&Process> = candidate.processes.to_vec();
    members.sort_by_key(|it| (it.start_ticks, it.pid));
    let mut ways = members.iter().filter_map(|it| release::find(it, candidate.snapshot).ok());
    let way = ways.find(|way| !matches!(way, ReleaseWay::Server(_)))?;
    Some(step(way, options, candidate.processes, candidate.snapshot))
}

/// For how long NVML is looked at: a server may say that it will, and do so once its job is done.
fn settle_seconds(way: &ReleaseWay, options: &ReleaseOptions) -> f64 {
    match way {
        ReleaseWay::Server(_) => SETTLE_SECONDS.max(options.wait_ms as f64 / 1000.0),
        _ => SETTLE_SECONDS,
    }
}

/// What is asked of which processes, in words.
pub(super) fn write_deed(f: &mut fmt::Formatter<'_>, way: &ReleaseWay) -> fmt::Result {
    let (pid, _) = way.process();
    match way {
        ReleaseWay::Server(it) => {
            write!(f, "asking {} ({pid}) at {} to unload its models", it.server, it.address)
        }
        ReleaseWay::Kernel(_) => write!(f, "asking kernel {pid} to release cached memory"),
        ReleaseWay::Python(_) => write!(f, "asking Python {pid} to release cached memory"),
        ReleaseWay::Signal(it) => {
            write!(f, "{} to {pid}, which releases memory upon it", it.signal)
        }
    }
}

impl ReclaimWay for ReleaseMemory<'_> {
    fn describe(&self, _: &Target) -> String {
        let (pid, _) = self.way.process();
        let wait = Span::from_seconds(self.grace_seconds);
        let what = match self.way {
            ReleaseWay::Server(it) => {
                format!("ask {} ({pid}) at {} to unload its models", it.server, it.address)
            }
            ReleaseWay::Kernel(it) => match &it.notebook {
                Some(notebook) => format!(
                    "ask kernel {pid} of {notebook} to release cached memory; its variables stay"
                ),
                None => format!("ask kernel {pid} to release cached memory; its variables stay"),
            },
            ReleaseWay::Python(_) => {
                format!("ask Python {pid} to release cached memory; its variables stay")
            }
            ReleaseWay::Signal(it) => {
                format!("{} to {pid}, which releases memory upon it", it.signal)
            }
        };
        format!("{what}; wait {wait}")
    }

    fn recipients(&self, scene: &mut StepState<'_>) -> Vec<Handle> {
        scene.alive(Recipients::Family)
    }

    fn execute(
        &self,
        context: &mut StepContext<'_>,
        _: &[Handle],
    ) -> Result<Started, ledger::LedgerError> {
        if let Some(seconds) = context.released_seconds_ago(self.way) {
            let why = format!(
                "it was asked {seconds:.0} s ago; try again in {:.0} s",
                (AGAIN_SECONDS - seconds).max(1.0)
            );
            return Ok(Started::Settled(Outcome::Refused { why: why.into() }));
        }
        let deed = Deed::Release { way: self.way.clone() };
        let request = Request::Release { way: self.way.clone(), options: self.options.clone() };
        context.request(&deed, request)?;
        Ok(Started::PendingRequest(PendingRequest { deed, prevents_respawn: false }))
    }

    fn grace_seconds(&self) -> f64 {
        self.grace_seconds
    }

    fn effect(&self, scene: &mut StepState<'_>) -> StepEffect {
        let (pid, start_ticks) = self.way.process();
        let facts = scene.control.read_guarded(pid);
        let lives = facts.is_some_and(|it| {
            it.start_ticks == start_ticks && !matches!(it.state, Some('Z' | 'X'))
        });
        if !lives {
            return StepEffect::Ends(Outcome::Exited);
        }
        let why = |why: &str| why.into();
        match scene.answer {
            RequestResult::Released(answer) => match answer {
                ReleaseAnswer::Done(report) => self.measure(report, scene),
                ReleaseAnswer::Busy(it) => StepEffect::Ends(Outcome::Busy { why: why(it) }),
                ReleaseAnswer::NoWayIn(it) => settled(Outcome::NoWayIn { why: why(it) }),
                ReleaseAnswer::Refused(it) => settled(Outcome::Refused { why: why(it) }),
                ReleaseAnswer::TimedOut(it) => settled(Outcome::TimedOut { why: why(it) }),
            },
            RequestResult::Failed(it) | RequestResult::Restarts(it) => {
                settled(Outcome::NoWayIn { why: why(it) })
            }
            RequestResult::Waiting | RequestResult::Done | RequestResult::AtWork => {
                StepEffect::Pending
            }
        }
    }

    fn expired(&self, scene: &StepState<'_>) -> Option<StepEffect> {
        let why = match scene.answer {
            RequestResult::Released(_) => {
                "NVML has not reported since what it holds; see gpumem ps"
            }
            _ => "it has not answered; it may still release memory later",
        };
        Some(settled(Outcome::TimedOut { why: why.into() }))
    }

    fn is_done(&self, _: &Measured) -> bool {
        false
    }

    fn ends_processes(&self) -> bool {
        false
    }
}

impl ReleaseMemory<'_> {
    /// What NVML shows since it was done.
    fn measure(&self, report: &ReleaseReport, scene: &StepState<'_>) -> StepEffect {
        let Some(done) = scene.answered.filter(|done| scene.snapshot.time > *done) else {
            return StepEffect::Pending;
        };
        let known = scene.meter.released();
        let has_released = known.is_some_and(|(bytes, _)| bytes >= LEAST_RELEASED);
        let settle = match has_released {
            true => SETTLE_SECONDS,
            false => settle_seconds(self.way, self.options),
        };
        if scene.snapshot.time < done.plus_seconds(settle) {
            return StepEffect::Pending;
        }
        let Some((bytes, since)) = known else {
            return StepEffect::Pending;
        };
        let mut report = Box::new(report.clone());
        if !has_released {
            report.why.get_or_insert_with(|| {
                let bytes = Bytes(bytes);
                format!("NVML shows {bytes} freed").into()
            });
            return settled(Outcome::NothingToRelease { bytes, report });
        }
        let ms = since - scene.begun.unwrap_or(done);
        let ms = u64::try_from(ms).unwrap_or(0);
        settled(Outcome::Released { bytes, ms, report })
    }
}

fn settled(outcome: Outcome) -> StepEffect {
    StepEffect::Settled(outcome)
}
