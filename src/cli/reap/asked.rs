//! What was typed, as a policy and as rules: whom to look for, how, and by which rules.

use std::sync::Arc;

use crate::cli::Misuse;
use crate::cli::args::Reap;
use crate::cli::selection::{names, no_such_gpu};
use crate::host::Ourselves;
use crate::model::{Gpu, Snapshot};
use crate::reclaim::policy::Keeps;
use crate::reclaim::{Exempt, Guard, Policy, Selection};
use crate::rules::keep::{Keep, exempt_processes, may_exempt};
use crate::rules::rule::Rule;
use crate::rules::setting::Value;
use crate::rules::{Settings, UnknownRule, serves};

/// Whether processes are named, so that no rule is asked.
pub(super) fn is_named(args: &Reap) -> bool {
    selection(args).is_named()
}

/// Switches the rules on that were asked for by name or kind. The others go on judging: what is the
/// worse about a process decides what it is accused of.
///
/// # Errors
///
/// A rule was named that there is not.
pub(super) fn switch_on(rules: &mut Settings, args: &Reap) -> Result<(), UnknownRule> {
    // The error is the same; what is selected is not wanted.
    rules.clone().select(&args.rule)?;
    let is_asked = |rule: &dyn Rule| {
        args.kind.contains(&rule.kind()) || args.rule.iter().any(|name| **name == **rule.name())
    };
    let asked = rules.rules().iter().filter(|rule| is_asked(&***rule));
    let asked: Vec<Arc<str>> = asked.map(|rule| Arc::clone(rule.name())).collect();
    for name in &asked {
        if let Some(rule) = rules.rule_mut(name) {
            rule.set("enabled", Value::Flag(true));
        }
    }
    Ok(())
}

/// Whether what a rule could not decide is of account to who asked.
pub(super) fn concerns(args: &Reap, rule: &dyn Rule) -> bool {
    if is_named(args) {
        return false;
    }
    let kinds = match args.kind.is_empty() && args.rule.is_empty() {
        true => &Selection::TAKEN[..],
        false => &args.kind,
    };
    kinds.contains(&rule.kind()) || args.rule.iter().any(|name| **name == **rule.name())
}

/// Whom a plan may be about, as the snapshot has it.
///
/// # Errors
///
/// A GPU was named that there is not.
pub(super) fn guard(
    args: &Reap,
    keeps: &[Keep],
    ourselves: Ourselves,
    snapshot: &Snapshot,
) -> Result<Guard, Misuse> {
    let mut selection = selection(args);
    for wanted in &args.gpu {
        let gpu = snapshot.gpus.iter().find(|gpu| names(wanted, gpu));
        match gpu {
            Some(Gpu { index, .. }) => selection.gpus.push(*index),
            None => return Err(no_such_gpu(&format!("--gpu {wanted}"), &snapshot.gpus)),
        }
    }
    let mut policy = Policy::new(serves);
    policy.selection = selection;
    policy.all_users = args.all_users;
    policy.graphics = args.graphics;
    policy.servers = args.servers;
    policy.direct = args.direct;
    policy.signal = args.signal;
    policy.grace = args.grace.map(|span| span.0);
    policy.kept = kept(keeps, snapshot);
    let keeps = keeps.to_vec();
    policy.keeps = Keeps::new(move |process, snapshot| may_exempt(&keeps, process, snapshot));
    Ok(Guard { policy, ourselves })
}

/// Whom the configuration keeps.
fn kept(keeps: &[Keep], snapshot: &Snapshot) -> Vec<Exempt> {
    let exempt = exempt_processes(keeps, snapshot).into_iter();
    exempt
        .map(|(identity, keep)| Exempt {
            identity,
            kinds: keep.kinds.clone(),
            rules: keep.rules.clone(),
            reason: Arc::clone(&keep.reason),
            until: keep.until,
        })
        .collect()
}

/// All of the selection but the GPUs, which have to be looked up.
fn selection(args: &Reap) -> Selection {
    let shared = |words: &[String]| words.iter().map(|word| Arc::from(&**word)).collect();
    Selection {
        pids: args.pid.clone(),
        notebooks: shared(&args.notebook),
        kernels: shared(&args.kernel),
        gpus: Vec::new(),
        users: shared(&args.user),
        kinds: args.kind.clone(),
        rules: shared(&args.rule),
        older_than: args.older_than.map(|span| span.0),
        min_bytes: args.min.map(|bytes| bytes.0),
    }
}
