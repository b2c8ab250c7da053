//! The worker thread of the screen: makes plans and carries them out as `gpumem reap` does.
//!
//! All calls that can hang (on /proc, a server or a disk) are made by this thread, so that the screen never hangs.
//! Requests arrive through a [`mailbox`]. The worker passes each sample to the executor and reports progress. Plans
//! for a recording are never carried out.

pub mod mailbox;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commands::{CommandSource, NextSteps};
use super::ledger::{self, Actor, Deed, Failure};
use super::plan::Why;
use super::policy::Release;
use super::prepare::{PlanSource, concerned, plan_live, plan_recorded};
use super::release::{ReleaseOptions, probe_targets};
use super::{
    ActProgress, Executor, FreshSample, Guard, Observer, Outcome, Plan, Policy, Refused, Signal,
    Target, Targets, Tools,
};
use crate::config::Config;
use crate::config::reap::ReapConfig;
use crate::deadline::Task;
use crate::host::{HostError, Roots, read_environment};
use crate::model::family::{families, member};
use crate::model::finding::{Finding, Undecided};
use crate::model::{Identity, Snapshot, Start, Time};
use crate::report::reap::{self as text, ReapReport};
use crate::report::refusal::{RefusalPlace, RefusalReader};
use crate::report::style::Style;
use crate::rules::RuleSet;
use crate::source::remote::RemoteHost;
use crate::units::{Span, system_message};

/// Interval between checks whether processes have exited.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum age of a sample whose findings are still considered current.
const MAX_SAMPLE_AGE: Duration = Duration::from_secs(5);
/// Time limit for reading a process's environment.
const ENVIRONMENT_TIME: Duration = Duration::from_millis(500);
/// Time for which a confirmation is valid. A later action would surprise the user.
const CONFIRMATION_TIME: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, Debug)]
pub struct PlanOptions {
    pub scope: PlanScope,
    /// Whether to ask for releases only and keep the processes running.
    pub release: bool,
    pub signal: Option<Signal>,
    pub all_users: bool,
    /// Whether to signal processes that a scheduler, service manager or container runtime owns.
    pub direct: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum PlanScope {
    Processes(Vec<Identity>),
    Families(Vec<Identity>),
    Findings,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ReclaimRequest {
    Plan(Box<PlanRequest>),
    Begin {
        number: u64,
        plan: Arc<Plan>,
    },
    /// Take the actions that are due, given this sample.
    Observe(ObservedSample),
    /// Stop the plan: take no further action on its targets.
    Stop {
        number: u64,
    },
    Environment(Identity),
    Commands(ObservedSample),
    /// Stop, and report which actions were taken.
    Leave,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// Number that identifies the request in the answer.
    pub number: u64,
    pub options: PlanOptions,
    pub snapshot: Arc<Snapshot>,
    pub findings: Vec<Finding>,
    pub undecided: Vec<Undecided>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ObservedSample {
    pub snapshot: Arc<Snapshot>,
    /// For a plan, all findings that are not exempt. For commands, the findings shown on the screen.
    pub found: Vec<Finding>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ReclaimProgress {
    Planned {
        number: u64,
        plan: Result<Proposal, String>,
    },
    Environment {
        of: Identity,
        /// Variables by name, with secrets masked, or the reason why they could not be read.
        variables: Result<Vec<(String, String)>, String>,
    },
    /// The commands for each finding, by finding id.
    Commands(Vec<(Arc<str>, NextSteps)>),
    /// The plan was started and needs samples.
    Begun {
        number: u64,
    },
    Target {
        number: u64,
        place: usize,
        stage: TargetStage,
    },
    Sent {
        number: u64,
        place: usize,
        words: String,
    },
    /// The plan is over: every target has ended, the plan was stopped, or an error occurred.
    Finished {
        number: u64,
        error: Option<String>,
    },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Proposal {
    pub plan: Arc<Plan>,
    /// The lines that `gpumem reap` or `gpumem release` would print for the plan.
    pub lines: Vec<String>,
    /// One line per target, with the process and the memory to be freed.
    pub titles: Vec<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum TargetStage {
    /// The executor waits for the last step to take effect.
    Waiting {
        until: Time,
        /// Description of the target's work, if the target was given more time because it is still working.
        saving: Option<Arc<str>>,
    },
    Ended {
        outcome: Outcome,
        words: String,
    },
}

pub type OpenTools = fn() -> Result<Tools, String>;

pub struct ReclaimWorker {
    rules: RuleSet,
    reap: ReapConfig,
    commands: CommandSource,
    /// `None` for a recording or another machine, where the worker cannot carry out plans.
    open_tools: Option<OpenTools>,
    guard: Option<(u64, Guard, Actor)>,
    batch: Option<RunningBatch>,
    /// The newest sample and when it arrived.
    sample: Option<(ObservedSample, Instant)>,
}

impl ReclaimWorker {
    pub fn new(config: &Config, open_tools: Option<OpenTools>) -> Self {
        Self {
            rules: config.rules.clone(),
            reap: config.reap.clone(),
            commands: CommandSource::new(&config.rules, open_tools.is_some()),
            open_tools,
            guard: None,
            batch: None,
            sample: None,
        }
    }

    /// Creates a worker that only returns commands for another machine.
    pub fn on_host(config: &Config, host: RemoteHost) -> Self {
        let commands = CommandSource::on_host(&config.rules, host);
        Self { commands, ..Self::new(config, None) }
    }

    fn propose(&mut self, question: &PlanRequest) -> Result<Proposal, HostError> {
        let snapshot = &*question.snapshot;
        let (pids, mut gone) = pids_in_scope(&question.options.scope, snapshot);
        let targets = match question.options.scope {
            PlanScope::Findings => Some(Targets::default()),
            PlanScope::Processes(_) | PlanScope::Families(_) => Targets::named(pids, Vec::new()),
        };
        let mut undecided = Vec::new();
        let mut plan = if let Some(targets) = targets {
            let concerned = concerned(&targets, &self.rules);
            let policy = Policy {
                release: match question.options.release {
                    true => Release::Only(ReleaseOptions {
                        is_named: true,
                        ..ReleaseOptions::by_rule()
                    }),
                    false => Release::First(ReleaseOptions::by_rule()),
                },
                signal: question.options.signal,
                all_users: question.options.all_users,
                direct: question.options.direct,
                targets,
                ..Policy::default()
            };
            let source = PlanSource {
                reap: Some(&self.reap),
                ..PlanSource::new(snapshot, &question.findings, &self.rules)
            };
            let (plan, guard) = match self.open_tools {
                None => plan_recorded(policy, source),
                Some(_) => plan_live(policy, source)?,
            };
            self.guard = Some((question.number, guard, Actor::of_gpumem(snapshot)));
            undecided.clone_from(&question.undecided);
            undecided.retain(|undecided| concerned.contains(&undecided.rule));
            plan
        } else {
            self.guard = None;
            Plan { time: snapshot.time, targets: Vec::new(), refused: Vec::new() }
        };
        plan.refused.append(&mut gone);
        let (style, reader) = (Style::default(), RefusalReader::new(RefusalPlace::Screen));
        let mut report = ReapReport::new(plan.clone(), undecided, snapshot.errors.clone());
        // Processes in a recording cannot be probed.
        let text = if question.options.release && self.open_tools.is_some() {
            probe_targets(&mut report.targets);
            plan.targets = report.due();
            text::release_plan(&report, snapshot, style, reader)
        } else {
            text::plan(&report, style, reader)
        };
        Ok(Proposal {
            lines: text.lines().map(str::to_owned).collect(),
            titles: plan.targets.iter().map(|target| text::title(target, style)).collect(),
            plan: Arc::new(plan),
        })
    }

    /// Starts a plan that the user confirmed at `asked`.
    fn begin(&mut self, number: u64, plan: &Plan, asked: Instant) -> Result<RunningBatch, String> {
        let open_tools = self
            .open_tools
            .ok_or("a recording cannot be acted on; run gpumem watch on the machine itself")?;
        if self.batch.is_some() {
            return Err("another plan is running; wait until it ends".to_owned());
        }
        let guard = self.guard.take().filter(|(planned, ..)| *planned == number);
        let (_, guard, actor) = guard.ok_or("there is a newer plan; try again")?;
        let executor = Executor::new(plan.targets.clone(), guard, actor, open_tools()?);
        Ok(RunningBatch::new(number, executor, asked))
    }

    /// Takes the actions that are due. Returns how long to wait before the next call, or `None` if no plan is running.
    fn advance(&mut self, report: &mut dyn FnMut(ReclaimProgress)) -> Option<Duration> {
        let batch = self.batch.as_mut()?;
        let number = batch.number;
        let error = if batch.now.is_none() && batch.asked.elapsed() > CONFIRMATION_TIME {
            let limit = Span(CONFIRMATION_TIME);
            Some(format!("nothing was sent: no sample came for {limit}; try again"))
        } else {
            // Without a sample, no action is taken.
            let Some((sample, arrived)) = &self.sample else {
                return Some(CHECK_INTERVAL);
            };
            match batch.advance(sample, arrived.elapsed(), report) {
                Ok(Some(wait)) => return Some(wait),
                Ok(None) => None,
                Err(error) => Some(error.to_string()),
            }
        };
        self.finish(number, error, report);
        None
    }

    fn finish(
        &mut self,
        number: u64,
        error: Option<String>,
        report: &mut dyn FnMut(ReclaimProgress),
    ) {
        (self.batch, self.sample) = (None, None);
        report(ReclaimProgress::Finished { number, error });
    }

    fn stop(&mut self, number: u64, report: &mut dyn FnMut(ReclaimProgress)) {
        let Some(batch) = self.batch.as_ref().filter(|batch| batch.number == number) else {
            return;
        };
        let words = match batch.observer.has_sent {
            true => "stopped: nothing more is sent",
            false => "undone: nothing was sent",
        };
        self.finish(number, Some(words.to_owned()), report);
    }

    /// Stops the plan. Describes what was sent to the target that the worker was acting on, if any.
    pub fn leave(&mut self) -> Option<String> {
        let batch = self.batch.take()?;
        let leader = batch.executor.target()?.leader;
        let sent = match &batch.observer.sent[..] {
            [] => String::new(),
            sent => format!("; it was sent: {}", sent.join(", ")),
        };
        Some(format!("left at {leader}: nothing more is sent{sent}"))
    }

    /// Handles a request and the time since it was sent, or continues the running plan, and reports the results.
    /// Returns how long to wait for the next request, or `None` to wait forever. May block.
    pub fn handle(
        &mut self,
        request: Option<(ReclaimRequest, Duration)>,
        report: &mut dyn FnMut(ReclaimProgress),
    ) -> Option<Duration> {
        let (request, waited) = request.unzip();
        let now = Instant::now();
        let asked = waited.and_then(|waited| now.checked_sub(waited)).unwrap_or(now);
        match request {
            Some(ReclaimRequest::Plan(question)) => {
                let plan = self.propose(&question).map_err(|error| error.to_string());
                let number = question.number;
                report(ReclaimProgress::Planned { number, plan });
            }
            Some(ReclaimRequest::Begin { number, plan }) => {
                match self.begin(number, &plan, asked) {
                    Ok(batch) => {
                        // Do not use samples from before the start of the plan.
                        (self.batch, self.sample) = (Some(batch), None);
                        report(ReclaimProgress::Begun { number });
                    }
                    Err(error) => report(ReclaimProgress::Finished {
                        number,
                        error: Some(format!("nothing was sent: {error}")),
                    }),
                }
            }
            Some(ReclaimRequest::Observe(sample)) if self.batch.is_some() => {
                self.sample = Some((sample, asked));
            }
            Some(ReclaimRequest::Observe(_) | ReclaimRequest::Leave) | None => {}
            Some(ReclaimRequest::Stop { number }) => self.stop(number, report),
            Some(ReclaimRequest::Commands(sample)) => {
                report(ReclaimProgress::Commands(
                    self.commands.next_steps(&sample.found, &sample.snapshot),
                ));
            }
            Some(ReclaimRequest::Environment(of)) => {
                report(ReclaimProgress::Environment { of, variables: environment(of) });
            }
        }
        self.advance(report)
    }
}

/// Reads the environment of a process, with a time limit. The kernel can hold a lock on the memory of a blocked
/// process, and a running plan must not wait for this lock.
fn environment(process: Identity) -> Result<Vec<(String, String)>, String> {
    let Start::Ticks(ticks) = process.start else {
        return Err("the identity of the process is unknown".to_owned());
    };
    let read = move || read_environment(&Roots::default(), process.pid, ticks);
    let reading = Task::start("environment", read).map_err(|error| system_message(&error))?;
    match reading.wait(ENVIRONMENT_TIME) {
        Ok(variables) => variables.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it could not be read in {}", Span(ENVIRONMENT_TIME))),
    }
}

struct RunningBatch {
    number: u64,
    executor: Executor,
    observer: ScreenObserver,
    asked: Instant,
    /// Estimate of the current time, which never decreases, or `None` before the first sample.
    now: Option<Time>,
}

impl RunningBatch {
    fn new(number: u64, executor: Executor, asked: Instant) -> Self {
        Self {
            number,
            executor,
            observer: ScreenObserver { number, ..ScreenObserver::default() },
            asked,
            now: None,
        }
    }

    /// Takes the actions that are due, given a sample of this age. Returns how long to wait before the next call, or
    /// `None` if all targets are done.
    fn advance(
        &mut self,
        sample: &ObservedSample,
        age: Duration,
        report: &mut dyn FnMut(ReclaimProgress),
    ) -> Result<Option<Duration>, ledger::LedgerError> {
        // Taking a sample takes time, so this estimate can be earlier than the one from the previous sample.
        let reckoned = sample.snapshot.time.plus_seconds(age.as_secs_f64());
        let now = self.now.map_or(reckoned, |now| now.max(reckoned));
        self.now = Some(now);
        let sample = FreshSample {
            now,
            snapshot: &sample.snapshot,
            // If the driver hangs, no newer sample arrives, and the findings may be outdated.
            found: (age <= MAX_SAMPLE_AGE).then(|| sample.found.iter().collect()),
        };
        loop {
            let progress = self.executor.advance(&sample, &mut self.observer);
            // Reporting can block, so events are reported between steps.
            self.observer.events.drain(..).for_each(&mut *report);
            match progress? {
                Some(ActProgress::Waiting { .. }) => return Ok(Some(CHECK_INTERVAL)),
                Some(ActProgress::Ended(_)) => {}
                None => return Ok(None),
            }
        }
    }
}

/// Collects events for the screen, which are reported between steps.
#[derive(Default)]
struct ScreenObserver {
    number: u64,
    events: Vec<ReclaimProgress>,
    last_stage: Option<TargetStage>,
    sent: Vec<String>,
    has_sent: bool,
    /// Description of the target's work, if the target was given more time because it is still working.
    saving: Option<Arc<str>>,
}

impl ScreenObserver {
    fn report_sent(&mut self, index: usize, words: String) {
        self.has_sent = true;
        self.sent.push(words.clone());
        let number = self.number;
        self.events.push(ReclaimProgress::Sent { number, place: index, words });
    }

    fn report_stage(&mut self, index: usize, stage: TargetStage) {
        if self.last_stage.as_ref() != Some(&stage) {
            self.last_stage = Some(stage.clone());
            let number = self.number;
            self.events.push(ReclaimProgress::Target { number, place: index, stage });
        }
    }
}

impl Observer for ScreenObserver {
    fn intended(&mut self, index: usize, deed: &Deed) {
        self.saving = None;
        self.report_sent(index, text::deed(deed));
    }

    fn failed(&mut self, index: usize, failures: &[Failure]) {
        self.report_sent(index, text::failures(failures));
    }

    fn waiting(&mut self, index: usize, until: Time) {
        let saving = self.saving.clone();
        self.report_stage(index, TargetStage::Waiting { until, saving });
    }

    fn saving(&mut self, _: usize, words: &str) {
        self.saving = Some(words.into());
    }

    fn ended(&mut self, index: usize, target: &Target, outcome: &Outcome) {
        let words = text::outcome(target, outcome, RefusalReader::new(RefusalPlace::Screen));
        let (outcome, words) = (outcome.clone(), words.trim_end().to_owned());
        self.report_stage(index, TargetStage::Ended { outcome, words });
        (self.last_stage, self.saving) = (None, None);
        self.sent.clear();
    }
}

/// Returns the pids in a scope, and a refusal for each process that is gone or replaced.
fn pids_in_scope(scope: &PlanScope, snapshot: &Snapshot) -> (Vec<u32>, Vec<Refused>) {
    let (identities, is_family) = match scope {
        PlanScope::Findings => return (Vec::new(), Vec::new()),
        PlanScope::Processes(identities) => (identities, false),
        PlanScope::Families(identities) => (identities, true),
    };
    let families = match is_family {
        true => families(snapshot),
        false => Vec::new(),
    };
    let (mut pids, mut gone): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for identity in identities {
        let pid = identity.pid;
        let process = snapshot.process(pid);
        if process.is_none_or(|process| process.identity() != *identity) {
            gone.push(pid);
            continue;
        }
        pids.push(pid);
        let relatives = member(&families, pid).map(|family| &family.members);
        // The plan adds the members that are not on a GPU; see `plan`.
        let is_on_gpu = |pid: &&u32| snapshot.rows_of(**pid).next().is_some();
        pids.extend(relatives.into_iter().flatten().filter(is_on_gpu));
    }
    pids.sort_unstable();
    pids.dedup();
    gone.sort_unstable();
    gone.dedup();
    let refused = |pid| Refused::new(Some(pid), Why::Gone);
    (pids, gone.into_iter().map(refused).collect())
}

#[cfg(test)]
mod tests;
