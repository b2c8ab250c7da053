//! A way: do nothing and say what to type, because something else owns the processes or would restart them.

use std::sync::Arc;

use super::FamilyInput;
use crate::advice;
use crate::model::Process;
use crate::reclaim::target::Step;

/// If a scheduler, service manager, container runtime, pool, or server that cannot be asked owns one of them,
/// unless a person insists. `restarted` is what to type for a kernel that its server would restart.
pub(super) fn plan(
    candidate: &FamilyInput<'_>,
    restarted: impl Fn(&Process) -> Option<Arc<str>>,
) -> Option<Step> {
    if candidate.guard.policy.direct {
        return None;
    }
    let processes = candidate.processes;
    let is_others = |it: &Process| it.uid != Some(candidate.guard.ourselves.uid);
    let mut owners = processes.iter().filter_map(|it| {
        advice::owner_of(it, processes).filter(|owner| !(owner.is_by_user && is_others(it)))
    });
    let are_own = !processes.iter().any(|it| is_others(it));
    let owned = owners.next().map(|owner| Arc::from(owner.way(are_own)));
    let restarted = || processes.iter().find_map(|it| restarted(it));
    let pooled = || processes.iter().find_map(|it| pooled(it, processes));
    let command = owned.or_else(restarted).or_else(pooled)?;
    Some(Step::Advise { command })
}

/// What to type for a worker that its pool restarts, if the pool is not ended with it.
fn pooled(process: &Process, processes: &[&Process]) -> Option<Arc<str>> {
    let pool = process.pool().filter(|_| process.is_restarted_by_its_pool())?;
    let is_parent = |it: &&Process| process.ppid == Some(it.pid);
    if processes.iter().any(is_parent) {
        return None;
    }
    let (by, words) = (&pool.restarted_by, &pool.words);
    let does = match pool.keeps_the_idle {
        true => "keeps it for the next task",
        false => "would start it again",
    };
    Some(format!("{by} {does}: {words}").into())
}
