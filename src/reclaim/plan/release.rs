//! A plan that ends no process. Each process that can be asked to release memory is its own target, and the
//! processes of one server are one target. Pure.

use super::{Plan, PlanInput, Why, bytes, leader, reason, rows, target_process};
use crate::model::Kind;
use crate::model::{Process, Unread};
use crate::reclaim::guard::{Call, Guard};
use crate::reclaim::policy::{Policy, Release};
use crate::reclaim::release::{self, ReleaseBy, ReleaseOptions, ReleaseWay};
use crate::reclaim::select::Accused;
use crate::reclaim::step;
use crate::reclaim::target::Target;

/// Makes targets of the requested processes, or refuses them.
pub(super) fn plan(
    seen: &PlanInput<'_>,
    guard: &Guard,
    call: Call,
    (accused, unread): (&[Accused<'_>], &Unread),
    plan: &mut Plan,
) {
    let guard = &guard.for_release();
    let options = match &guard.policy.release {
        Release::Only(options) => options.clone(),
        Release::First(_) | Release::Never => ReleaseOptions::by_rule(),
    };
    let mut ways: Vec<(ReleaseWay, Vec<&Accused<'_>>)> = Vec::new();
    for one in accused {
        match way(one, call, unread, seen) {
            Ok(way) => match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, of_way)) => of_way.push(one),
                None => ways.push((way, vec![one])),
            },
            Err(why) => plan.refused.push(one.refused(why)),
        }
    }
    for (way, of_way) in ways {
        match target(seen, guard, (call, &options), way, &of_way) {
            Ok(target) => plan.targets.push(target),
            Err(why) => {
                let refused = of_way.iter().map(|it| it.refused(why.clone()));
                plan.refused.extend(refused);
            }
        }
    }
}

fn way(
    one: &Accused<'_>,
    call: Call,
    unread: &Unread,
    seen: &PlanInput<'_>,
) -> Result<ReleaseWay, Why> {
    let on_unread = unread.gpu_of(one.process.pid);
    if call == Call::Rule
        && let Some(gpu) = on_unread
    {
        return Err(Why::Unread { gpu });
    }
    release::find(one.process, seen.snapshot).map_err(|ways| Why::NoWayIn { ways: ways.into() })
}

/// One target for all processes that release memory by the same request. For a server, it includes workers that
/// were not requested, because their memory is released as well.
fn target(
    seen: &PlanInput<'_>,
    guard: &Guard,
    (call, options): (Call, &ReleaseOptions),
    way: ReleaseWay,
    accused: &[&Accused<'_>],
) -> Result<Target, Why> {
    let is_accused = |pid: u32| accused.iter().any(|it| it.process.pid == pid);
    let is_of_way = |process: &&Process| {
        is_accused(process.pid)
            || (matches!(way.by, ReleaseBy::Server(_))
                && !rows(process, seen.snapshot).is_empty()
                && release::find(process, seen.snapshot).as_ref() == Ok(&way))
    };
    let processes: Vec<&Process> = seen.snapshot.processes.iter().filter(is_of_way).collect();
    let mut members = Vec::new();
    for process in &processes {
        let on_gpu = is_accused(process.pid);
        members.push(target_process(seen, guard, (call, on_gpu), process)?);
    }
    members.sort_by_key(|it| (it.start_ticks, it.pid));
    let leader = leader(&members, &processes);
    let start = members.iter().find(|it| it.pid == leader);
    let start = start.map_or(0, |it| it.start_ticks);
    Ok(Target {
        id: format!("{leader}:{start}").into(),
        boot_id: seen.snapshot.host.boot_id.clone(),
        reason: reason(call, accused),
        launcher: None,
        leader,
        dead: Vec::new(),
        bytes: bytes(&members, &[], seen.snapshot),
        members,
        steps: vec![step::release::step(way, options, &processes, seen.snapshot)],
        owner: None,
        respawn_seconds: 0.0,
        used_at_plan: None,
    })
}

/// Whether the policy or the rule asks for a release instead of an end.
pub(super) fn is_released(accused: &Accused<'_>, policy: &Policy) -> bool {
    let mut findings = accused.findings.iter();
    matches!(policy.release, Release::Only(_))
        || findings.any(|it| policy.releasing.contains(&it.rule))
}

/// Whether idle is the only finding on these processes.
pub(super) fn is_idle(accused: &[&Accused<'_>]) -> bool {
    let mut findings = accused.iter().flat_map(|it| &it.findings);
    findings.all(|it| it.kind == Kind::Idle)
}
