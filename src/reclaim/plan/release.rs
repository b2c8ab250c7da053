//! Makes a plan that only asks for releases and ends no process. Each process that can be asked is a target, except
//! that all processes of a server are one target.

use super::{Plan, PlanInput, Why, bytes, find_leader, reason, rows, target_process};
use crate::model::Kind;
use crate::model::{Process, Unread};
use crate::reclaim::guard::{Call, Guard};
use crate::reclaim::policy::{Policy, Release};
use crate::reclaim::release::{self, ReleaseBy, ReleaseOptions, ReleaseWay};
use crate::reclaim::select::MatchedProcess;
use crate::reclaim::step;
use crate::reclaim::target::Target;

pub(super) fn plan(
    input: &PlanInput<'_>,
    guard: &Guard,
    call: Call,
    (matched, unread): (&[MatchedProcess<'_>], &Unread),
    plan: &mut Plan,
) {
    let guard = &guard.for_release();
    let options = match &guard.policy.release {
        Release::Only(options) => options.clone(),
        Release::First(_) | Release::Never => ReleaseOptions::by_rule(),
    };
    let mut ways: Vec<(ReleaseWay, Vec<&MatchedProcess<'_>>)> = Vec::new();
    for matched in matched {
        match find_way(matched, call, unread, input) {
            Ok(way) => match ways.iter_mut().find(|(other, _)| *other == way) {
                Some((_, requested)) => requested.push(matched),
                None => ways.push((way, vec![matched])),
            },
            Err(why) => plan.refused.push(matched.refused(why)),
        }
    }
    for (way, requested) in ways {
        match target(input, guard, (call, &options), way, &requested) {
            Ok(target) => plan.targets.push(target),
            Err(why) => {
                let refused = requested.iter().map(|matched| matched.refused(why.clone()));
                plan.refused.extend(refused);
            }
        }
    }
}

fn find_way(
    matched: &MatchedProcess<'_>,
    call: Call,
    unread: &Unread,
    input: &PlanInput<'_>,
) -> Result<ReleaseWay, Why> {
    let on_unread = unread.gpu_of(matched.process.pid);
    if call == Call::Rule
        && let Some(gpu) = on_unread
    {
        return Err(Why::Unread { gpu });
    }
    release::find(matched.process, input.snapshot)
        .map_err(|ways| Why::NoWayIn { ways: ways.into() })
}

/// Creates one target for all processes that release memory after the same request. The target of a server includes
/// its workers even if they were not requested, because the server releases their memory, too.
fn target(
    input: &PlanInput<'_>,
    guard: &Guard,
    (call, options): (Call, &ReleaseOptions),
    way: ReleaseWay,
    matched: &[&MatchedProcess<'_>],
) -> Result<Target, Why> {
    let is_matched = |pid: u32| matched.iter().any(|matched| matched.process.pid == pid);
    let is_of_way = |process: &&Process| {
        is_matched(process.pid)
            || (matches!(way.by, ReleaseBy::Server(_))
                && !rows(process, input.snapshot).is_empty()
                && release::find(process, input.snapshot).as_ref() == Ok(&way))
    };
    let processes: Vec<&Process> = input.snapshot.processes.iter().filter(is_of_way).collect();
    let mut members = Vec::new();
    for process in &processes {
        let on_gpu = is_matched(process.pid);
        members.push(target_process(input, guard, (call, on_gpu), process)?);
    }
    members.sort_by_key(|member| (member.start_ticks, member.pid));
    let leader = find_leader(&members, &processes);
    let start = members.iter().find(|member| member.pid == leader);
    let start = start.map_or(0, |member| member.start_ticks);
    Ok(Target {
        id: format!("{leader}:{start}").into(),
        boot_id: input.snapshot.host.boot_id.clone(),
        reason: reason(call, matched),
        launcher: None,
        leader,
        dead: Vec::new(),
        bytes: bytes(&members, &[], input.snapshot),
        members,
        steps: vec![step::release::step(way, options, &processes, input.snapshot)],
        owner: None,
        respawn_seconds: 0.0,
        used_at_plan: None,
    })
}

/// Returns whether the policy or a rule only asks the process to release memory, instead of ending it.
pub(super) fn is_released(matched: &MatchedProcess<'_>, policy: &Policy) -> bool {
    let mut findings = matched.findings.iter();
    matches!(policy.release, Release::Only(_))
        || findings.any(|finding| policy.releasing.contains(&finding.rule))
}

pub(super) fn is_idle(matched: &[&MatchedProcess<'_>]) -> bool {
    let mut findings = matched.iter().flat_map(|matched| &matched.findings);
    findings.all(|finding| finding.kind == Kind::Idle)
}
