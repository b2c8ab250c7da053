//! What was typed, as a policy: which targets, how, and by which rules.

use std::sync::Arc;

use crate::cli::args::ReapArgs;
use crate::cli::selection::Selection;
use crate::model::Kind;
use crate::reclaim::policy::Release;
use crate::reclaim::release::ReleaseOptions;
use crate::reclaim::{FindingSelector, Policy, Targets};
use crate::rules::{RuleSet, serves};

/// The targets of a plan: the named ones, unless a kind is given as well.
pub(super) fn targets(args: &ReapArgs) -> Targets {
    let (pids, kinds) = (args.pid.clone(), args.kind.clone());
    let words = args.words.iter().map(|word| Arc::from(&**word)).collect();
    match Targets::named(pids.clone(), words).filter(|_| kinds.is_empty()) {
        Some(named) => named,
        None => Targets::Found(FindingSelector { pids, kinds, rules: Vec::new() }),
    }
}

/// The selection by `--gpu`, `--user` and `--where`.
pub(super) fn rows(args: &ReapArgs) -> Selection {
    Selection::new(&args.gpu, &args.user, &args.terms)
}

/// The policy from the arguments, without the selection in a snapshot and without the configuration's
/// exemptions.
pub(super) fn policy_from_args(args: &ReapArgs) -> Policy {
    Policy {
        all_users: args.how.all_users,
        even_kept: args.how.kept,
        release: release(args),
        graphics: args.how.graphics,
        servers: args.servers,
        direct: args.how.direct,
        signal: args.how.signal,
        grace: args.how.grace.map(|span| span.0),
        ..Policy::new(targets(args), serves)
    }
}

/// Findings of idle processes are asked to release memory before they are ended.
fn release(args: &ReapArgs) -> Release {
    match &args.release {
        Some(options) => Release::Only(options.clone()),
        None => Release::First(ReleaseOptions::by_rule()),
    }
}

/// Enables the rules of the requested kinds. The others stay enabled, because the most severe finding
/// on a process decides what is reported.
pub(in crate::cli) fn switch_on(rules: &mut RuleSet, kinds: &[Kind]) {
    for rule in rules.rules_mut().iter_mut().filter(|rule| kinds.contains(&rule.kind())) {
        rule.settings.enabled = true;
    }
}
