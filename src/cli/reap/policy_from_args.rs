//! What was typed, as a policy and as rules: which targets, how, and by which rules.

use std::sync::Arc;

use crate::cli::args::ReapArgs;
use crate::cli::selection::Selection;
use crate::reclaim::policy::{NamedProcesses, ProcessNames, Release};
use crate::reclaim::release::ReleaseOptions;
use crate::reclaim::{FindingSelector, Policy, TargetLimits, Targets};
use crate::rules::rule::Rule;
use crate::rules::{RuleSet, UnknownRule, serves};

/// What a plan is about: what is named, unless a kind or a rule is asked for as well.
pub(super) fn targets(args: &ReapArgs) -> Targets {
    let names = ProcessNames {
        pids: args.pid.clone(),
        notebooks: shared(&args.notebook),
        kernels: shared(&args.kernel),
        words: shared(&args.words),
    };
    if args.kind.is_empty()
        && args.rule.is_empty()
        && let Some(named) = NamedProcesses::new(names.clone())
    {
        return Targets::Named(named);
    }
    Targets::Found(FindingSelector { names, kinds: args.kind.clone(), rules: shared(&args.rule) })
}

/// Which rows are meant, by `--gpu`, `--user` and `--where`.
pub(super) fn rows(args: &ReapArgs) -> Selection {
    Selection::new(&args.gpu, &args.user, &args.terms)
}

/// What was typed, but for what a selector means of a snapshot. What the configuration exempts is not in it.
pub(super) fn policy_from_args(args: &ReapArgs) -> Policy {
    Policy {
        limits: TargetLimits {
            selected: None,
            older_than: args.older_than.map(|span| span.0),
            min_bytes: args.min.map(|bytes| bytes.0),
        },
        all_users: args.all_users,
        // Who is only asked loses nothing.
        even_kept: args.release.is_some(),
        release: release(args),
        graphics: args.graphics,
        servers: args.servers,
        direct: args.direct,
        signal: args.signal,
        grace: args.grace.map(|span| span.0),
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

/// Switches the rules on that were asked for by name or kind. The others go on judging: what is the
/// worse about a process decides what it is accused of.
///
/// # Errors
///
/// A rule was named that there is not.
pub(super) fn switch_on(rules: &mut RuleSet, args: &ReapArgs) -> Result<(), UnknownRule> {
    // The error is the same; what is selected is not wanted.
    rules.clone().select(&args.rule)?;
    let is_asked = |rule: &Rule| {
        args.kind.contains(&rule.kind()) || args.rule.iter().any(|name| **name == *rule.name)
    };
    for rule in rules.rules_mut().iter_mut().filter(|rule| is_asked(rule)) {
        rule.settings.enabled = true;
    }
    Ok(())
}

fn shared(words: &[String]) -> Vec<Arc<str>> {
    words.iter().map(|word| Arc::from(&**word)).collect()
}
