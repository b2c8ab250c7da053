//! What was typed, as a policy: which targets, how, and by which rules.

use std::sync::Arc;

use crate::cli::args::ReapArgs;
use crate::cli::selection::Selection;
use crate::model::Kind;
use crate::reclaim::policy::{NamedProcesses, ProcessNames, Release};
use crate::reclaim::release::ReleaseOptions;
use crate::reclaim::{FindingSelector, Policy, Targets};
use crate::rules::{RuleSet, serves};

/// What a plan is about: what is named, unless a kind is asked for as well.
pub(super) fn targets(args: &ReapArgs) -> Targets {
    let names = ProcessNames {
        pids: args.pid.clone(),
        notebooks: shared(&args.notebook),
        kernels: shared(&args.kernel),
        words: shared(&args.words),
    };
    if args.kind.is_empty()
        && let Some(named) = NamedProcesses::new(names.clone())
    {
        return Targets::Named(named);
    }
    Targets::Found(FindingSelector { names, kinds: args.kind.clone(), rules: Vec::new() })
}

/// Which rows are meant, by `--gpu`, `--user` and `--where`.
pub(super) fn rows(args: &ReapArgs) -> Selection {
    Selection::new(&args.gpu, &args.user, &args.terms)
}

/// What was typed, but for what a selector means of a snapshot. What the configuration exempts is not in it.
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

/// What rules find idle is asked to release memory before it is ended.
fn release(args: &ReapArgs) -> Release {
    match &args.release {
        Some(options) => Release::Only(options.clone()),
        None => Release::First(ReleaseOptions::by_rule()),
    }
}

/// Switches the rules on that were asked for by kind. The others go on judging: what is the worse about a
/// process decides what it is accused of.
pub(in crate::cli) fn switch_on(rules: &mut RuleSet, kinds: &[Kind]) {
    for rule in rules.rules_mut().iter_mut().filter(|rule| kinds.contains(&rule.kind())) {
        rule.settings.enabled = true;
    }
}

fn shared(words: &[String]) -> Vec<Arc<str>> {
    words.iter().map(|word| Arc::from(&**word)).collect()
}
