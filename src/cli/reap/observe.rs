//! What a plan is made from: this machine, looked at for a while with its stored history behind it, or
//! the end of a recording.

use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::policy_from_args;
use crate::cli::args::{Global, ReapArgs};
use crate::cli::session::{self, SampleWindow};
use crate::cli::store::{self, Fed};
use crate::cli::{config, recorded, warn};
use crate::config::Config;
use crate::config::reap::ReapConfig;
use crate::host::{Roots, read_guarded, read_ourselves};
use crate::model::Snapshot;
use crate::model::family::families;
use crate::model::finding::{Finding, Undecided};
use crate::model::selector::Selected;
use crate::reclaim::plan::{PlanInput, pids};
use crate::reclaim::policy::Keeps;
use crate::reclaim::{Guard, Plan, Policy, Targets, plan, plan_by_snapshot};
use crate::rules::exemption::{Exemption, exempt_processes, may_exempt};
use crate::rules::{Engine, RuleSet};
use crate::source::live::Live;
use crate::units::Span;

/// How long this machine is sampled if only the present matters. A notebook's server has to answer
/// within this time.
const LOOK: Span = Span(Duration::from_secs(2));
/// Interval between these samples.
const INTERVAL: Duration = Duration::from_millis(500);

pub(in crate::cli) struct Observation {
    pub(in crate::cli) engine: Engine,
    pub(in crate::cli) snapshot: Snapshot,
    /// What the requested rules could not decide.
    pub(super) undecided: Vec<Undecided>,
    configured: ConfiguredPolicy,
    targets: Targets,
    /// The live source; `None` for a recording.
    pub(in crate::cli) live: Option<Live>,
}

/// The configuration's part of every policy: exemptions, and rules whose action is to release memory.
#[derive(Clone, Debug)]
pub(in crate::cli) struct ConfiguredPolicy {
    /// Exemptions.
    keeps: Vec<Exemption>,
    /// Programs that are never killed.
    never: Vec<Arc<str>>,
    /// How long `GPUMEM_KEEP` protects a process at most.
    longest_keep: Option<Span>,
    /// Rules whose findings are asked to release memory, and never ended.
    releasing: Vec<Arc<str>>,
}

impl ConfiguredPolicy {
    /// Takes the exemptions from the rules of the configuration.
    pub(in crate::cli) fn new(rules: &RuleSet) -> Self {
        Self {
            keeps: rules.keeps().to_vec(),
            never: rules.never().to_vec(),
            longest_keep: rules.longest_keep,
            releasing: Vec::new(),
        }
    }

    /// Adds the rules whose action is to release memory.
    pub(in crate::cli) fn with_releases(self, reap: &ReapConfig) -> Self {
        let releasing = reap.releasing().cloned().collect();
        Self { releasing, ..self }
    }

    /// Adds the exemptions to a policy, for a snapshot's processes.
    pub(in crate::cli) fn protect(&self, policy: &mut Policy, snapshot: &Snapshot) {
        policy.never.clone_from(&self.never);
        policy.longest_keep = self.longest_keep;
        policy.releasing.clone_from(&self.releasing);
        policy.kept = exempt_processes(&self.keeps, snapshot);
        let keeps = self.keeps.clone();
        policy.keeps = Keeps::new(move |process, snapshot| may_exempt(&keeps, process, snapshot));
    }
}

/// The input of a plan.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct PlanSource<'a> {
    pub(in crate::cli) snapshot: &'a Snapshot,
    pub(in crate::cli) findings: &'a [Finding],
    pub(in crate::cli) configured: &'a ConfiguredPolicy,
    /// The selection; `None` means everything.
    pub(in crate::cli) selected: Option<&'a Selected>,
}

impl Observation {
    /// Looks.
    ///
    /// # Errors
    ///
    /// Where there is nothing to see, or what was typed makes no sense.
    pub(in crate::cli) fn new(args: &ReapArgs, global: &Global) -> anyhow::Result<Self> {
        let Config { mut rules, reap, .. } = config::load(global)?;
        policy_from_args::switch_on(&mut rules, &args.kind);
        let configured = ConfiguredPolicy::new(&rules).with_releases(&reap);
        let targets = policy_from_args::targets(args);
        let concerned = concerned(&targets, &rules);
        let mut engine = Engine::new(rules);
        let mut live = None;
        let snapshot = match recorded(&args.recorded)? {
            Some(replay) => session::last(replay, |snapshot| engine.observe(snapshot))?,
            None => {
                let machine = live.insert(crate::cli::live(global, INTERVAL)?);
                let rows = policy_from_args::rows(args);
                rows.check_users()?;
                let is_clear = targets.is_named() && !targets.names_findings();
                let fed = if is_clear && !rows.needs_history() {
                    Fed::default()
                } else {
                    let ask = store::Ask::new(global, args.stored, store::MOST_FOR_CHECK);
                    store::feed(&mut engine, machine, ask)?
                };
                watch(machine, &mut engine, (args, &targets), fed)?
            }
        };
        let mut undecided = engine.undecided();
        undecided.retain(|it| concerned.contains(&it.rule));
        Ok(Self { engine, snapshot, undecided, configured, targets, live })
    }

    /// Makes the plan; with the guard that decided what it may touch.
    ///
    /// # Errors
    ///
    /// A GPU was named that there is not, or /proc does not tell who gpumem itself is.
    pub(in crate::cli) fn plan(&self, args: &ReapArgs) -> anyhow::Result<(Plan, Guard)> {
        let rows = policy_from_args::rows(args);
        rows.check_gpus(&self.snapshot.gpus)?;
        let findings = self.engine.findings();
        let selected = rows.select(&self.snapshot, &self.engine, findings.iter());
        let scene = PlanSource {
            snapshot: &self.snapshot,
            findings,
            configured: &self.configured,
            selected: selected.as_ref(),
        };
        let policy = policy_from_args::policy_from_args(args);
        match self.live {
            Some(_) => plan_here(policy, scene),
            None => Ok(plan_there(policy, scene)),
        }
    }

    /// Whether processes are named, so that no rule is needed.
    pub(super) fn is_named(&self) -> bool {
        self.targets.is_named()
    }
}

/// The rules whose undecided cases matter for the request.
pub(in crate::cli) fn concerned(targets: &Targets, rules: &RuleSet) -> Vec<Arc<str>> {
    let rules = rules.rules().iter();
    rules
        .filter(|rule| targets.concerns(&rule.name, rule.kind()))
        .map(|rule| Arc::clone(&rule.name))
        .collect()
}

/// Makes a plan for this machine, of which more is read; with the guard that decided what it may touch.
///
/// # Errors
///
/// /proc does not tell who gpumem itself is.
pub(in crate::cli) fn plan_here(
    mut policy: Policy,
    scene: PlanSource<'_>,
) -> anyhow::Result<(Plan, Guard)> {
    let PlanSource { snapshot, findings, configured, selected } = scene;
    let roots = Roots::default();
    let ourselves = read_ourselves(&roots)?;
    configured.protect(&mut policy, snapshot);
    policy.selected = selected.cloned();
    let guard = Guard { policy, ourselves };
    let families = families(snapshot);
    // Who cannot be looked at, or is gone, is not known, and that protects.
    let facts = pids(snapshot, &families).into_iter();
    let facts = facts.filter_map(|pid| Some((pid, read_guarded(&roots, pid).ok()??)));
    let seen = PlanInput { findings, snapshot, families: &families, facts: &facts.collect() };
    let mut plan = plan(&seen, &guard);
    plan.note_usage(&roots);
    Ok((plan, guard))
}

/// Of a recording: what root would plan there. What only the machine itself could tell
/// (`oom_score_adj`, an environment that was not recorded) protects nothing here, where nothing is sent.
pub(in crate::cli) fn plan_there(mut policy: Policy, scene: PlanSource<'_>) -> (Plan, Guard) {
    scene.configured.protect(&mut policy, scene.snapshot);
    policy.selected = scene.selected.cloned();
    plan_by_snapshot(policy, scene.findings, scene.snapshot)
}

/// Samples this machine for as long as needed; returns the last snapshot.
fn watch(
    live: &mut Live,
    engine: &mut Engine,
    (args, targets): (&ReapArgs, &Targets),
    fed: Fed,
) -> anyhow::Result<Snapshot> {
    let is_named = targets.is_named();
    let usual = if is_named || fed.suffices { LOOK } else { store::WINDOW };
    let patience = args.window.unwrap_or(usual);
    if !is_named && io::stderr().is_terminal() {
        warn(&format!("looking for {patience} (--window)"));
    }
    // Time lost to a slow GPU extends the window.
    let window = SampleWindow { interval: INTERVAL, length: patience, begins_answered: true };
    let rows = policy_from_args::rows(args);
    let mut last = None;
    session::sample(live, window, |snapshot| {
        // A GPU that does not exist is reported after the first sample.
        rows.check_gpus(&snapshot.gpus)?;
        engine.observe(&snapshot);
        let has_enough = args.window.is_none() && is_clear(targets, &snapshot);
        last = Some(snapshot);
        Ok(if has_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    last.context("the driver gave no snapshot")
}

/// Whether one snapshot is enough: processes are named, and none is a notebook's, whose server would
/// have to be asked.
fn is_clear(targets: &Targets, snapshot: &Snapshot) -> bool {
    let Targets::Named(named) = targets else {
        return false;
    };
    let is_plain = |&pid: &u32| {
        let process = snapshot.process(pid);
        process.is_none_or(|process| process.jupyter.is_none())
    };
    named.words.is_empty() && named.pids.iter().all(is_plain)
}
