//! Collects the input for a plan: the arguments, the stored history and samples of this machine, or a recording.
//! [`crate::reclaim::prepare`] makes the plan.

use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::cli::args::{Global, ReapArgs};
use crate::cli::selection::{RecordedUsers, Selection};
use crate::cli::session::{self, SampleWindow};
use crate::cli::store::{self, LoadedHistory};
use crate::cli::{config, recorded, warn};
use crate::config::Config;
use crate::config::reap::ReapConfig;
use crate::model::finding::Undecided;
use crate::model::{Kind, Snapshot};
use crate::reclaim::policy::Release;
use crate::reclaim::prepare::{PlanSource, concerned, plan_live, plan_recorded};
use crate::reclaim::release::ReleaseOptions;
use crate::reclaim::{FindingSelector, Guard, Plan, Policy, Targets};
use crate::rules::{Engine, RuleSet};
use crate::source::live::Live;
use crate::units::Span;

/// Default sampling time for named targets, or if the stored history is long enough. Notebook servers must answer
/// within this time.
const SHORT_WINDOW: Span = Span(Duration::from_secs(2));
const INTERVAL: Duration = Duration::from_millis(500);

pub(in crate::cli) struct Observation {
    pub(in crate::cli) engine: Engine,
    pub(in crate::cli) snapshot: Snapshot,
    /// Cases that the rules for the requested kinds could not decide.
    pub(super) undecided: Vec<Undecided>,
    reap: ReapConfig,
    targets: Targets,
    /// The source of more samples, or `None` for a recording.
    pub(in crate::cli) live: Option<Live>,
}

impl Observation {
    pub(in crate::cli) fn new(args: &ReapArgs, global: &Global) -> anyhow::Result<Self> {
        let Config { mut rules, reap, .. } = config::load(global)?;
        switch_on(&mut rules, &args.kind);
        let targets = targets(args);
        let concerned = concerned(&targets, &rules);
        let mut engine = Engine::new(rules);
        let mut live = None;
        let snapshot = match recorded(&args.recorded)? {
            Some(replay) => {
                let mut users = RecordedUsers::default();
                let last = session::last(replay, |snapshot| {
                    users.observe(snapshot);
                    engine.observe(snapshot);
                })?;
                selection(args).check_recorded_users(&users)?;
                last
            }
            None => {
                let machine = live.insert(crate::cli::live(global, INTERVAL)?);
                let selection = selection(args);
                selection.check_users()?;
                let names_processes = targets.is_named() && !targets.names_findings();
                let fed = if names_processes && !selection.needs_history() {
                    LoadedHistory::default()
                } else {
                    let ask = store::Ask::new(global, args.stored, store::MOST_FOR_CHECK);
                    store::feed(&mut engine, machine, ask)?
                };
                sample_window(machine, &mut engine, (args, &targets), fed)?
            }
        };
        let mut undecided = engine.undecided();
        undecided.retain(|case| concerned.contains(&case.rule));
        Ok(Self { engine, snapshot, undecided, reap, targets, live })
    }

    /// Returns the plan, and the guard that checks each target again before an action. Fails if a GPU in the arguments
    /// does not exist, or if gpumem cannot read its own identity from /proc.
    pub(in crate::cli) fn plan(&self, args: &ReapArgs) -> anyhow::Result<(Plan, Guard)> {
        let selection = selection(args);
        selection.check_gpus(&self.snapshot.gpus)?;
        let findings = self.engine.findings();
        let selected = selection.select(&self.snapshot, &self.engine, findings.iter());
        let source = PlanSource {
            reap: Some(&self.reap),
            selected: selected.as_ref(),
            ..PlanSource::new(&self.snapshot, findings, self.engine.settings())
        };
        let policy = policy_from_args(args);
        match self.live {
            Some(_) => Ok(plan_live(policy, source)?),
            None => Ok(plan_recorded(policy, source)),
        }
    }

    pub(super) fn is_named(&self) -> bool {
        self.targets.is_named()
    }
}

/// Takes samples for the time in `--window`, or for a default time. Stops after one sample if one is enough. Returns
/// the last sample.
fn sample_window(
    live: &mut Live,
    engine: &mut Engine,
    (args, targets): (&ReapArgs, &Targets),
    fed: LoadedHistory,
) -> anyhow::Result<Snapshot> {
    let is_named = targets.is_named();
    let usual = if is_named || fed.suffices { SHORT_WINDOW } else { store::WINDOW };
    let patience = args.window.unwrap_or(usual);
    if !is_named && io::stderr().is_terminal() {
        warn(&format!("sampling for {patience} (--window)"));
    }
    // Start the window after the first answer, so that a slow GPU does not shorten it.
    let window = SampleWindow { interval: INTERVAL, length: patience, begins_answered: true };
    let selection = selection(args);
    let mut last = None;
    session::sample(live, window, |snapshot| {
        // Reject an unknown GPU after the first sample.
        selection.check_gpus(&snapshot.gpus)?;
        engine.observe(&snapshot);
        let has_enough = args.window.is_none() && needs_one_sample(targets, &snapshot);
        last = Some(snapshot);
        Ok(if has_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    last.context("no sample could be taken; run `gpumem doctor`")
}

/// Returns whether one snapshot is enough. For a notebook, one is not enough, because its server must answer first.
fn needs_one_sample(targets: &Targets, snapshot: &Snapshot) -> bool {
    let Targets::Named { pids, words } = targets else {
        return false;
    };
    let is_plain = |&pid: &u32| {
        let process = snapshot.process(pid);
        process.is_none_or(|process| process.jupyter.is_none())
    };
    words.is_empty() && pids.iter().all(is_plain)
}

/// Returns the named processes. If none are named, or if a kind was given, returns a selection of findings.
fn targets(args: &ReapArgs) -> Targets {
    let (pids, kinds) = (args.pid.clone(), args.kind.clone());
    let words = args.words.iter().map(|word| Arc::from(&**word)).collect();
    match Targets::named(pids.clone(), words).filter(|_| kinds.is_empty()) {
        Some(named) => named,
        None => Targets::Found(FindingSelector { pids, kinds, rules: Vec::new() }),
    }
}

pub(super) fn selection(args: &ReapArgs) -> Selection {
    Selection::new(&args.selected)
}

/// Returns the policy without the selection and the exemptions.
pub(super) fn policy_from_args(args: &ReapArgs) -> Policy {
    Policy {
        all_users: args.how.all_users,
        even_kept: args.how.kept,
        release: release_policy(args),
        parks: args.parks,
        graphics: args.how.graphics,
        servers: args.servers,
        direct: args.how.direct,
        signal: args.how.signal,
        grace: args.how.grace.map(|span| span.0),
        targets: targets(args),
        ..Policy::default()
    }
}

/// Returns the release policy. By default, idle processes are asked to release memory before they are killed.
fn release_policy(args: &ReapArgs) -> Release {
    match &args.release {
        Some(options) => Release::Only(options.clone()),
        None => Release::First(ReleaseOptions::by_rule()),
    }
}

/// Enables the rules of the requested kinds. Keeps the other rules, because a process is reported under its most
/// severe finding.
pub(in crate::cli) fn switch_on(rules: &mut RuleSet, kinds: &[Kind]) {
    for rule in rules.rules_mut().iter_mut().filter(|rule| kinds.contains(&rule.kind())) {
        rule.settings.enabled = true;
    }
}
