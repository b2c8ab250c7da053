//! Decides from the newest snapshot which notices and unattended acts are due. Only one act runs at a time.
//!
//! The snapshot supplies the time. All effects go through [`System`], which tests replace. The configuration selects
//! the findings to act on, and [`crate::reclaim`] decides which processes can be ended. `notices` chooses the
//! recipients of notices, and [`crate::reclaim::warnings`] records earlier warnings.

mod notices;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub use self::notices::{Notice, no_room_json};
use crate::config::reap::{ReapConfig, Response};
use crate::host::{JobUsage, JobWork};
use crate::model::finding::{Finding, FindingProcess, Severity};
use crate::model::{Gpu, Identity, Process, Snapshot, Time};
use crate::reclaim::ledger::{Actor, Deed, Failure};
use crate::reclaim::prepare::PlanSource;
use crate::reclaim::recheck::{MIN_SECONDS, is_work};
use crate::reclaim::release::{ReleaseBy, find as find_release};
use crate::reclaim::target::{Reason, Step, TargetProcess};
use crate::reclaim::warnings::WarningDue;
use crate::reclaim::{
    ActProgress, Executor, FindingSelector, FreshSample, Guard, Observer, Outcome, Plan, Refused,
    Target, Targets, Tools, Warnings,
};
use crate::report::escape::escape;
use crate::report::reap as text;
use crate::report::refusal::{self, RefusalPlace, RefusalReader};
use crate::rules::exemption::exempt_processes;
use crate::rules::{Engine, RuleSet};
use crate::units::{Bytes, Span, number_of};

const RETRY_SECONDS: f64 = 60.0;
const BUSY_SECONDS: f64 = 300.0;

/// The reader of the service's log. `is_root` is set, so that refusals do not advise the reader to run gpumem as root.
const READER: RefusalReader = RefusalReader { place: RefusalPlace::Service, is_root: true };

pub trait System {
    /// Makes a plan and records how much CPU and I/O each target has used so far.
    fn plan(&mut self, targets: Targets, source: PlanSource<'_>) -> Result<(Plan, Guard), String>;

    /// Queues a notice. Returns false if the queue is full.
    fn notify(&mut self, notice: Notice) -> bool;

    fn log(&mut self, text: &str);

    fn tools(&mut self) -> Result<Tools, String>;
}

struct LogObserver<'a>(&'a mut dyn System);

impl Observer for LogObserver<'_> {
    fn intended(&mut self, _: usize, deed: &Deed) {
        self.0.log(&text::deed(deed));
    }

    fn failed(&mut self, _: usize, failures: &[Failure]) {
        self.0.log(&text::failures(failures));
    }

    fn saving(&mut self, _: usize, words: &str) {
        self.0.log(words);
    }

    fn ended(&mut self, _: usize, target: &Target, outcome: &Outcome) {
        self.0.log(text::outcome(target, outcome, READER).trim_end());
    }
}

#[derive(Debug)]
struct RunningReap {
    executor: Executor,
    findings: Vec<Arc<str>>,
    response: Response,
    /// Whether the configuration changed during the act and no longer requires the act.
    is_revoked: bool,
}

#[derive(Debug)]
struct PendingRetry {
    retry_at: Time,
    error: String,
}

#[derive(Debug)]
pub struct ReapScheduler {
    engine: Engine,
    reap: ReapConfig,
    warnings: Warnings,
    snapshot: Snapshot,
    acting: Option<RunningReap>,
    not_before: Option<Time>,
    pending_notices: HashSet<Arc<str>>,
    undelivered: HashMap<Arc<str>, PendingRetry>,
    /// For each finding, when to ask for a release again, or `None` for never.
    asked: HashMap<Arc<str>, Option<Time>>,
    /// When a process may be asked again because of a finding on its GPU.
    cleaned: HashMap<Identity, Time>,
    /// For the first member of each warned target, the job's resource usage when it was last known to be idle.
    used_when_idle: HashMap<Identity, Arc<JobUsage>>,
    /// Findings for which the log already says why they are skipped.
    skip_logged: HashSet<Arc<str>>,
    /// The last logged error that prevented acts.
    last_error: Option<String>,
}

impl ReapScheduler {
    pub fn new(engine: Engine, reap: ReapConfig, warnings: Warnings) -> Self {
        Self {
            engine,
            reap,
            warnings,
            snapshot: Snapshot::new(Time::default()),
            acting: None,
            not_before: None,
            pending_notices: HashSet::new(),
            undelivered: HashMap::new(),
            asked: HashMap::new(),
            cleaned: HashMap::new(),
            used_when_idle: HashMap::new(),
            skip_logged: HashSet::new(),
            last_error: None,
        }
    }

    /// Replaces the configuration. A running act continues only if the new configuration requires the same response
    /// to its findings and exempts none of its processes.
    pub fn reconfigure(&mut self, rules: RuleSet, reap: ReapConfig) {
        self.engine.set_settings(rules);
        self.reap = reap;
        if let Some(acting) = &mut self.acting
            && let Some(target) = acting.executor.target()
        {
            let exempt = exempt_processes(self.engine.settings().keeps(), &self.snapshot);
            let is_kept = |member: &TargetProcess| {
                exempt.iter().any(|kept| kept.identity == member.identity())
            };
            let is_ended = match &target.reason {
                Reason::Found { findings } => findings
                    .iter()
                    .all(|because| self.reap.response(&because.rule) == acting.response),
                Reason::Named => false,
            };
            acting.is_revoked |= !is_ended || target.members.iter().any(is_kept);
        }
        self.skip_logged.clear();
        self.undelivered.clear();
    }

    pub fn is_acting(&self) -> bool {
        self.acting.is_some()
    }

    pub fn target(&self) -> Option<&Target> {
        self.acting.as_ref()?.executor.target()
    }

    pub fn status(&self) -> String {
        let gpus = number_of(self.snapshot.gpus.len(), "GPU");
        let found = number_of(self.engine.findings().len(), "finding");
        let warned = self.warnings.all().len();
        let mut text = format!("{gpus}, {found}, {warned} notified");
        if let Some(target) = self.target() {
            let does = match target.is_release() {
                true => "asking",
                false => "killing",
            };
            text.push_str(&format!("; {does} {}", target.leader));
        }
        text
    }

    pub fn observe(&mut self, snapshot: Snapshot, system: &mut dyn System) {
        let now = snapshot.time;
        self.engine.observe(&snapshot);
        self.snapshot = snapshot;
        let (reaped, notified) = self.found();
        let to_end = reaped.iter().map(|finding| (finding, true));
        let all: Vec<(&Finding, bool)> =
            to_end.chain(notified.iter().map(|finding| (finding, false))).collect();
        let updated = self.warnings.update(&all, now);
        self.log_error(updated.map_err(|error| error.to_string()), system);
        let lasts = |id: &Arc<str>| all.iter().any(|(finding, _)| finding.id == *id);
        self.skip_logged.retain(lasts);
        let snapshot = &self.snapshot;
        self.used_when_idle.retain(|identity, _| {
            snapshot.process(identity.pid).is_some_and(|process| process.identity() == *identity)
        });
        self.undelivered.retain(|id, _| lasts(id));
        for finding in &notified {
            self.warn(finding, false, now, system);
        }
        if self.acting.is_none() && !reaped.is_empty() {
            self.reap(&reaped, now, system);
        }
        if self.acting.is_none() {
            self.release(now, system);
        }
        self.advance(now, system);
    }

    /// Returns the findings to act on and the findings to notify about. gpumem acts on the findings of rules with
    /// `action = "reap"` or `"park"`, even if they are attached to a more severe finding.
    fn found(&self) -> (Vec<Finding>, Vec<Finding>) {
        let reaped: Vec<Finding> =
            self.engine.unkept().filter(|finding| self.is_reaping(finding)).cloned().collect();
        let identity_of =
            |finding: &Finding| finding.process.as_ref().map(|process| process.identity);
        let is_new = |finding: &&Finding| {
            let identity: Option<Identity> = identity_of(finding);
            !self.is_reaping(finding)
                && (identity.is_none()
                    || reaped.iter().all(|reaped| identity_of(reaped) != identity))
        };
        let others = self.engine.findings().iter();
        let notified = others
            .filter(|finding| finding.severity >= Severity::Warning)
            .filter(is_new)
            .cloned()
            .collect();
        (reaped, notified)
    }

    fn is_reaping(&self, finding: &Finding) -> bool {
        let response = self.reap.response(&finding.rule);
        finding.kind.may_be_reaped() && matches!(response, Response::Reap | Response::Park)
    }

    fn plan(&self, findings: &[Finding], system: &mut dyn System) -> Result<(Plan, Guard), String> {
        let mut rules: Vec<Arc<str>> =
            findings.iter().map(|finding| Arc::clone(&finding.rule)).collect();
        rules.sort_unstable();
        rules.dedup();
        let targets = Targets::Found(FindingSelector { rules, ..FindingSelector::default() });
        let source = PlanSource::new(&self.snapshot, findings, self.engine.settings());
        system.plan(targets, PlanSource { reap: Some(&self.reap), ..source })
    }

    /// Warns about the targets that will be ended or parked, and starts the act on the due target that holds the most
    /// memory. Owners of skipped processes are not warned.
    fn reap(&mut self, reaped: &[Finding], now: Time, system: &mut dyn System) {
        let (plan, guard) = match self.plan(reaped, system) {
            Ok(planned) => planned,
            Err(error) => return self.log_error(Err(error), system),
        };
        self.log_refused(&plan.refused, system);
        let (advice, targets): (Vec<_>, Vec<_>) =
            plan.targets.into_iter().partition(Target::is_advice);
        for target in &advice {
            let command =
                target.steps.iter().find_map(Step::advice).map_or("", |command| &**command);
            let target_words = describe_target(target);
            let why = format!("{target_words}: skipped: not gpumem's to kill: {command}");
            self.log_skipped(&finding_ids(target), &why, system);
        }
        let mut due = Vec::new();
        for mut target in targets {
            let ids = finding_ids(&target);
            let of_target: Vec<&Finding> =
                reaped.iter().filter(|finding| ids.contains(&finding.id)).collect();
            let at_work = of_target.iter().filter(|finding| self.has_worked(finding, now));
            let at_work: Vec<Arc<str>> = at_work.map(|finding| Arc::clone(&finding.id)).collect();
            if !at_work.is_empty() {
                system.log(&format!(
                    "{}: resumed work after the last warning; warnings start over",
                    describe_target(&target)
                ));
                let forgotten = self.warnings.forget(&at_work);
                self.log_error(forgotten.map_err(|error| error.to_string()), system);
                continue;
            }
            for finding in &of_target {
                self.warn(finding, true, now, system);
            }
            let last = |finding: &&Finding| {
                self.warnings.find(finding, true).and_then(|warning| warning.last)
            };
            let is_warned = of_target.iter().any(|finding| last(finding).is_some());
            let first = target.members.first().map(TargetProcess::identity);
            if let Some((first, now)) = first.zip(target.used_at_plan.take()) {
                match is_warned {
                    true => {
                        let when_idle =
                            self.used_when_idle.entry(first).or_insert_with(|| Arc::clone(&now));
                        // While the job is idle, the baseline advances. Averaging since the first warning would hide
                        // recent work.
                        let used = now.since(when_idle);
                        if used.seconds >= MIN_SECONDS && !is_work(used) {
                            *when_idle = now;
                        }
                        target.used_at_plan = Some(Arc::clone(when_idle));
                    }
                    false => drop(self.used_when_idle.remove(&first)),
                }
            }
            if of_target.iter().all(|finding| self.is_due(finding, now)) {
                due.push(target);
            }
        }
        if let Some(target) = due.into_iter().next() {
            let response = if target.is_park() { Response::Park } else { Response::Reap };
            self.begin((target, response), guard, now, system);
        }
    }

    /// Starts asking the process with the most memory, among those that are due, to release memory. The process keeps
    /// running, so its owner gets a notice but no warning beforehand.
    fn release(&mut self, now: Time, system: &mut dyn System) {
        let mut still_asked = std::mem::take(&mut self.asked);
        still_asked.retain(|id, _| self.engine.unkept().any(|finding| finding.id == *id));
        self.asked = still_asked;
        let is_due = |finding: &&Finding| {
            let retry_at = self.asked.get(&finding.id);
            finding.kind.may_be_released()
                && self.reap.response(&finding.rule) == Response::Release
                && retry_at.is_none_or(|retry_at| retry_at.is_some_and(|at| now >= at))
                && !self.was_asked(finding)
                && is_seen(finding, &self.snapshot)
        };
        let due: Vec<Finding> = self.engine.unkept().filter(is_due).cloned().collect();
        self.cleaned.retain(|_, until| now < *until);
        let due: Vec<Finding> =
            due.into_iter().flat_map(|finding| self.split_by_process(finding)).collect();
        if due.is_empty() {
            return;
        }
        let (plan, guard) = match self.plan(&due, system) {
            Ok(planned) => planned,
            Err(error) => return self.log_error(Err(error), system),
        };
        self.log_refused(&plan.refused, system);
        let mut targets = plan.targets.into_iter();
        if let Some(target) = targets.find(Target::is_release) {
            let identities = target.members.iter().map(TargetProcess::identity);
            let until = now.plus_seconds(self.reap.within.0.as_secs_f64());
            let until: Vec<(Identity, Time)> =
                identities.map(|identity| (identity, until)).collect();
            self.begin((target, Response::Release), guard, now, system);
            if self.acting.is_some() {
                self.cleaned.extend(until);
            }
        }
    }

    /// Splits a finding on a GPU into one finding for each process that has announced a signal and was not asked
    /// recently. Returns a finding on a process unchanged.
    fn split_by_process(&self, finding: Finding) -> Vec<Finding> {
        if finding.process.is_some() {
            return vec![finding];
        }
        let is_on = |gpu: &&Gpu| finding.gpus.iter().any(|found_gpu| found_gpu.index == gpu.index);
        let gpus = self.snapshot.gpus.iter().filter(is_on);
        let pids = gpus.flat_map(|gpu| gpu.processes.iter().flatten()).map(|row| row.pid);
        let processes = pids.filter_map(|pid| self.snapshot.process(pid));
        let may_be_asked = |process: &&Process| {
            let way = find_release(process, &self.snapshot);
            matches!(way.map(|way| way.by), Ok(ReleaseBy::Signal { .. }))
                && !self.cleaned.contains_key(&process.identity())
        };
        let processes = processes.filter(may_be_asked);
        let finding_about =
            |process| Finding { process: Some(FindingProcess::new(process)), ..finding.clone() };
        processes.map(finding_about).collect()
    }

    /// Returns whether an earlier run of gpumem asked the process after the finding began.
    fn was_asked(&self, finding: &Finding) -> bool {
        let process = finding.process.as_ref();
        let process = process.and_then(|about| self.snapshot.process(about.pid));
        let asked = process.and_then(|process| process.asked.as_deref());
        !self.asked.contains_key(&finding.id)
            && asked.is_some_and(|asked| asked.since >= finding.since)
    }

    /// Returns whether all warnings were sent, the grace period has passed, the act has not been tried yet, and the
    /// snapshot shows the finding's subject.
    fn is_due(&self, finding: &Finding, now: Time) -> bool {
        let warning = self.warnings.find(finding, true).filter(|warning| !warning.is_over);
        warning.is_some_and(|warning| warning.due(now, &self.reap) == WarningDue::Act)
            && is_seen(finding, &self.snapshot)
    }

    fn has_worked(&self, finding: &Finding, now: Time) -> bool {
        let last = self.warnings.find(finding, true).and_then(|warning| warning.last);
        let usage = finding
            .process
            .as_ref()
            .and_then(|process| self.engine.history().process(process.identity));
        let seconds = last.map(|last| now.seconds_since(last));
        let mean = usage.zip(seconds).and_then(|(usage, seconds)| usage.cpu().mean(seconds));
        mean.is_some_and(|mean| {
            let cpu_seconds = mean.percent / 100.0 * mean.seconds;
            let seconds = mean.seconds.max(self.reap.grace.0.as_secs_f64());
            is_work(JobWork { seconds, cpu_seconds, bytes: 0 })
        })
    }

    fn log_refused(&mut self, all: &[Refused], system: &mut dyn System) {
        for refused in all {
            let pid = refused.pid.unwrap_or_default();
            let why = format!("{pid}: skipped: {}", refusal::why(refused, READER));
            self.log_skipped(refused.finding.as_slice(), &why, system);
        }
    }

    /// Logs why findings are skipped, unless a reason was logged for each of them earlier.
    fn log_skipped(&mut self, findings: &[Arc<str>], why: &str, system: &mut dyn System) {
        let is_new = findings.iter().any(|finding| !self.skip_logged.contains(finding));
        if is_new {
            system.log(why);
            self.skip_logged.extend(findings.iter().cloned());
        }
    }

    fn begin(
        &mut self,
        (target, response): (Target, Response),
        guard: Guard,
        now: Time,
        system: &mut dyn System,
    ) {
        if self.not_before.is_some_and(|earliest| now < earliest) {
            return;
        }
        let tools = match system.tools() {
            Ok(tools) => tools,
            Err(error) => {
                self.log_error(Err(error), system);
                self.not_before = Some(now.plus_seconds(RETRY_SECONDS));
                return;
            }
        };
        let next = tools.earliest(&self.reap, now);
        if next > now {
            let wait = Span::from_seconds((next - now) as f64 / 1000.0);
            system.log(&format!("rate limit; next in {wait}"));
            self.not_before = Some(next);
            return;
        }
        self.last_error = None;
        system.log(&match response {
            Response::Release => format!("asking {} to release memory", describe_target(&target)),
            Response::Park => format!("parking {}", describe_target(&target)),
            Response::Notify | Response::Reap => format!("killing {}", describe_target(&target)),
        });
        let findings = finding_ids(&target);
        let actor = Actor { is_unattended: true, ..Actor::of_gpumem(&self.snapshot) };
        self.acting = Some(RunningReap {
            executor: Executor::new(vec![target], guard, actor, tools),
            findings,
            response,
            is_revoked: false,
        });
    }

    fn advance(&mut self, now: Time, system: &mut dyn System) {
        let Some(acting) = &mut self.acting else {
            return;
        };
        // Pass unknown findings to a revoked act, because they cancel every act. An empty list would not cancel the
        // act on a process that gpumem resumed with SIGCONT.
        let found = (!acting.is_revoked).then(|| self.engine.unkept().collect());
        let sample = FreshSample { now, snapshot: &self.snapshot, found };
        let outcome = match acting.executor.advance(&sample, &mut LogObserver(&mut *system)) {
            Ok(Some(ActProgress::Waiting { .. })) => return,
            Ok(Some(ActProgress::Ended(outcome))) => outcome,
            Ok(None) => return self.acting = None,
            // gpumem must not act without an audit log.
            Err(error) => {
                self.acting = None;
                self.not_before = Some(now.plus_seconds(RETRY_SECONDS));
                return self.log_error(Err(error.to_string()), system);
            }
        };
        let Some(RunningReap { findings, response, .. }) = self.acting.take() else {
            return;
        };
        if response == Response::Release {
            // A finding on a GPU stays due, because its interval applies to each process separately.
            let ids = self.engine.findings().iter().filter(|finding| finding.process.is_none());
            let gpu_findings: Vec<Arc<str>> = ids.map(|finding| Arc::clone(&finding.id)).collect();
            let findings = findings.into_iter().filter(|id| !gpu_findings.contains(id));
            let retry_at = matches!(outcome, Outcome::Busy { .. } | Outcome::TimedOut { .. });
            let retry_at = retry_at.then(|| now.plus_seconds(BUSY_SECONDS));
            let asked = findings.map(|finding| (finding, retry_at));
            return self.asked.extend(asked);
        }
        // If the process resumed work, warnings start over. After any other outcome, the act is not repeated.
        let noted = match outcome {
            Outcome::RuleNoLongerTrue => self.warnings.forget(&findings),
            _ => self.warnings.conclude(&findings),
        };
        self.log_error(noted.map_err(|error| error.to_string()), system);
    }

    /// Logs an error that prevents acts, unless the same error was logged last.
    fn log_error(&mut self, result: Result<(), String>, system: &mut dyn System) {
        if let Err(error) = result
            && self.last_error.as_ref() != Some(&error)
        {
            system.log(&error);
            self.last_error = Some(error);
        }
    }
}

/// Returns whether a snapshot contains a finding's process, if the finding has one, and current process lists of the
/// finding's GPUs. Otherwise, the finding is based on older data, and gpumem does not act on it.
fn is_seen(finding: &Finding, snapshot: &Snapshot) -> bool {
    let is_there = finding.process.as_ref().is_none_or(|about| {
        let process = snapshot.process(about.pid);
        process.is_some_and(|process| process.identity() == about.identity)
    });
    is_there
        && finding.gpus.iter().all(|found_gpu| {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == found_gpu.index);
            gpu.is_some_and(|gpu| gpu.stale_seconds.is_none() && gpu.processes.is_some())
        })
}

fn finding_ids(target: &Target) -> Vec<Arc<str>> {
    match &target.reason {
        Reason::Found { findings } => {
            findings.iter().map(|because| Arc::clone(&because.id)).collect()
        }
        Reason::Named => Vec::new(),
    }
}

fn describe_target(target: &Target) -> String {
    let leader = text::lead(target);
    let name = leader.map_or_else(String::new, |process| format!(" ({})", escape(&process.name)));
    let owner = leader.map_or_else(String::new, |process| format!(" of {}", text::owner(process)));
    let bytes = target.bytes.map_or_else(String::new, |bytes| format!(" with {}", Bytes(bytes)));
    format!("{}{name}{owner}{bytes}, {}", target.leader, text::why(target))
}

#[cfg(test)]
mod tests;
