//! Makes a plan that only parks processes and ends none. Each process is a target of its own.

use super::{Plan, PlanInput, Why, reason, target_process};
use crate::model::Unread;
use crate::reclaim::guard::{Call, Guard};
use crate::reclaim::policy::Policy;
use crate::reclaim::select::MatchedProcess;
use crate::reclaim::step;
use crate::reclaim::target::{ParkWay, Target};

pub(super) fn plan(
    input: &PlanInput<'_>,
    guard: &Guard,
    call: Call,
    (matched, unread): (&[MatchedProcess<'_>], &Unread),
    plan: &mut Plan,
) {
    for matched in matched {
        match target(input, guard, call, (matched, unread)) {
            Ok(target) => plan.targets.push(target),
            Err(why) => plan.refused.push(matched.refused(why)),
        }
    }
}

fn target(
    input: &PlanInput<'_>,
    guard: &Guard,
    call: Call,
    (matched, unread): (&MatchedProcess<'_>, &Unread),
) -> Result<Target, Why> {
    let process = matched.process;
    if call == Call::Rule
        && let Some(gpu) = unread.gpu_of(process.pid)
    {
        return Err(Why::Unread { gpu });
    }
    if call == Call::Rule && process.jupyter.is_none() {
        return Err(Why::CannotPark { obstacle: "rules park only notebooks".into() });
    }
    let member = target_process(input, guard, (call, true), process)?;
    let bytes = member.gpus.iter().try_fold(0u64, |sum, gpu| sum.checked_add(gpu.used_bytes?));
    let jupyter = process.jupyter.as_deref();
    let way = ParkWay {
        pid: member.pid,
        start_ticks: member.start_ticks,
        uid: member.uid,
        name: member.name.clone(),
        notebook: jupyter.and_then(|jupyter| jupyter.notebook_path.clone()),
        bytes: bytes.unwrap_or(0),
    };
    Ok(Target {
        id: format!("{}:{}", member.pid, member.start_ticks).into(),
        boot_id: input.snapshot.host.boot_id.clone(),
        reason: reason(call, &[matched]),
        launcher: None,
        leader: member.pid,
        dead: Vec::new(),
        bytes,
        members: vec![member],
        steps: vec![step::park::step(way, false)],
        owner: None,
        respawn_seconds: 0.0,
        used_at_plan: None,
    })
}

/// Returns whether the policy or a rule only parks the process.
pub(super) fn is_parked(matched: &MatchedProcess<'_>, policy: &Policy) -> bool {
    let mut findings = matched.findings.iter();
    policy.parks || findings.any(|finding| policy.parking.contains(&finding.rule))
}
