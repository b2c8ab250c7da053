//! Combines findings, limits and the wait into one report with one status.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::baseline::Baseline;
use super::limit;
use super::wait::Wait;
use crate::cli::args::CheckArgs;
use crate::cli::selection::{RecordedUsers, Selection};
use crate::cli::store::{self, LoadedHistory};
use crate::cli::{UsageError, unreadable};
use crate::explain::{Marks, holders_table};
use crate::history::Resets;
use crate::model::finding::{Finding, Pending};
use crate::model::selector::Selected;
use crate::model::snapshot::ReadError;
use crate::model::{ComputeDevice, Gpu, Identity, Reclaimable, Severity, Snapshot, Suspect, Time};
use crate::reclaim::commands::CommandSource;
use crate::reclaim::prepare;
use crate::recording;
use crate::report::check::{
    CheckOutcome, CheckReport, Counts, Limit, LimitVerdict, NewHolder, SCHEMA,
};
use crate::report::table::Table;
use crate::rules::{Engine, RuleSet};
use crate::source::live::Live;
use crate::units::{Amount, Bytes, Span};

/// Criteria of `gpumem check` for one host. The default applies all rules to all GPUs.
#[derive(Debug, Default)]
pub(in crate::cli) struct CheckQuestion {
    selection: Selection,
    fail_on: Option<Severity>,
    limits: Vec<(Limit, Amount)>,
    wait: Option<Wait>,
    baseline: Option<Baseline>,
}

impl CheckQuestion {
    /// Fails if the baseline cannot be read.
    pub(in crate::cli) fn from_args(args: &CheckArgs) -> Result<Self, UsageError> {
        let limits =
            [(Limit::MaxUsed, args.max_used), (Limit::MaxUnattributed, args.max_unattributed)];
        let limits = limits.into_iter().filter_map(|(limit, amount)| Some((limit, amount?)));
        let waits = !args.wait_free.is_empty();
        Ok(Self {
            selection: Selection::new(&args.selected),
            fail_on: args.fail_on,
            limits: limits.collect(),
            wait: waits.then(|| Wait::new(&args.wait_free, &args.selected.gpu, args.timeout)),
            baseline: args.baseline.as_deref().map(Baseline::read).transpose()?,
        })
    }
}

#[derive(Debug)]
pub(in crate::cli) struct CheckVerdict {
    question: CheckQuestion,
    /// Reason why the baseline cannot be compared with this host, or `None` if it can.
    unusable: Option<String>,
    engine: Engine,
    commands: CommandSource,
    is_without_rules: bool,
    first: Option<Time>,
    last: Option<LastSnapshot>,
    /// Ids of the selected findings, including resolved ones.
    selected: HashSet<Arc<str>>,
    is_live: bool,
    /// All GPUs in any snapshot so far, for validating the GPUs in the arguments.
    known_gpus: Vec<Gpu>,
    recorded: RecordedUsers,
    impossible: Option<String>,
}

#[derive(Debug)]
struct LastSnapshot {
    time: Time,
    /// The whole snapshot, if the report shows processes on awaited GPUs or commands in findings.
    whole: Option<Snapshot>,
    gpus: usize,
    /// GPUs from `--gpu` that the snapshot does not contain.
    missing: Vec<String>,
    errors: Vec<ReadError>,
    unreadable: bool,
    limits: Vec<LimitVerdict>,
    /// Whether a limit or the baseline could not be evaluated.
    is_unknown: bool,
    new_holders: Option<Vec<NewHolder>>,
    hostname: Option<Arc<str>>,
    /// The selected part of the snapshot, or `None` if everything is selected.
    selected: Option<Selected>,
}

impl CheckVerdict {
    pub(in crate::cli) fn new(
        mut question: CheckQuestion,
        settings: RuleSet,
        commands: CommandSource,
        is_live: bool,
    ) -> Self {
        let is_without_rules = settings.rules().is_empty();
        // With `--wait-free` or without rules, findings fail the check only if `--fail-on` is given.
        if question.wait.is_none() && !is_without_rules {
            question.fail_on.get_or_insert(Severity::Warning);
        }
        Self {
            question,
            unusable: None,
            is_without_rules,
            engine: Engine::new(settings),
            commands,
            first: None,
            last: None,
            selected: HashSet::new(),
            is_live,
            known_gpus: Vec::new(),
            recorded: RecordedUsers::default(),
            impossible: None,
        }
    }

    pub(in crate::cli) fn set_rules(&mut self, settings: RuleSet) {
        self.engine.set_settings(settings);
    }

    /// Restricts `--wait-free` to the devices that CUDA_VISIBLE_DEVICES lists. Fails if a user in the arguments does
    /// not exist.
    pub(super) fn prepare_live(&mut self, visible: Option<String>) -> Result<(), UsageError> {
        if let Some(wait) = &mut self.question.wait {
            wait.restrict(visible);
        }
        self.question.selection.check_users()
    }

    pub(super) fn purpose(&self, patience: Span) -> String {
        match &self.question.wait {
            Some(wait) => format!("waiting for {wait}, up to {patience} (--timeout)"),
            None => format!("sampling for {patience} (--window)"),
        }
    }

    pub(super) fn is_too_late(&self, time: Time) -> bool {
        self.question.wait.as_ref().is_some_and(|wait| wait.is_too_late(time))
    }

    /// Applies the rules to the stored history. Fails if a store that the user named cannot be read.
    pub(in crate::cli) fn feed(
        &mut self,
        live: &Live,
        ask: store::Ask<'_>,
    ) -> Result<LoadedHistory, recording::RecordingError> {
        let (selection, selected) = (&self.question.selection, &mut self.selected);
        let fed = store::feed_each(&mut self.engine, live, ask, |engine, snapshot| {
            select(selection, engine, snapshot, selected);
        })?;
        self.first = fed.first;
        Ok(fed)
    }

    /// Adds a snapshot. Breaks if the result is final, for example because the requested memory is free or can never
    /// become free.
    pub(in crate::cli) fn observe(&mut self, mut snapshot: Snapshot) -> ControlFlow<()> {
        self.engine.observe(&snapshot);
        let selected =
            select(&self.question.selection, &self.engine, &snapshot, &mut self.selected);
        // Do not remove unselected GPUs before the rules are applied: a process that is active on another GPU is not
        // idle.
        self.note_gpus(&snapshot.gpus);
        if !self.is_live {
            self.recorded.observe(&snapshot);
        }
        let shows_holders = self.question.wait.is_some() || !self.engine.findings().is_empty();
        let whole = shows_holders.then(|| snapshot.clone());
        self.question.selection.retain_gpus(&mut snapshot);
        let missing = self.question.selection.missing_gpus(&snapshot.gpus);
        let mut progress = ControlFlow::Continue(());
        if let Some(wait) = &mut self.question.wait {
            wait.observe(snapshot.time, &snapshot.gpus);
            self.impossible = wait.impossible(&snapshot.gpus);
            if wait.is_satisfied() || self.impossible.is_some() {
                progress = ControlFlow::Break(());
            }
        }
        let (limits, mut unknown) = limit::judge(&self.question.limits, &snapshot);
        self.unusable =
            self.question.baseline.as_ref().and_then(|baseline| baseline.unusable(&snapshot));
        let new_holders = self.question.baseline.as_ref().map(|baseline| {
            let (mut new, errors) = baseline.judge(&snapshot);
            unknown.extend(errors);
            let on = selected.as_ref().map(|selected| &selected.on_gpus);
            new.retain(|holder| on.is_none_or(|on| on.contains(&(Some(holder.pid), holder.gpu))));
            new
        });
        // Continue while a value is unknown, because the next snapshot may contain it.
        let is_open = (limits.is_empty() && new_holders.is_none()) || !unknown.is_empty();
        if self.is_without_rules && self.question.wait.is_none() && self.is_live && !is_open {
            progress = ControlFlow::Break(());
        }
        let unreadable = unreadable(&snapshot);
        let is_unknown = !unknown.is_empty();
        let mut errors = snapshot.errors;
        errors.extend(unknown);
        self.first.get_or_insert(snapshot.time);
        self.last = Some(LastSnapshot {
            time: snapshot.time,
            whole,
            gpus: snapshot.gpus.len(),
            missing,
            errors,
            unreadable,
            limits,
            is_unknown,
            new_holders,
            hostname: snapshot.host.hostname,
            selected,
        });
        progress
    }

    pub(in crate::cli) fn engine(&self) -> &Engine {
        &self.engine
    }

    fn note_gpus(&mut self, gpus: &[Gpu]) {
        for gpu in gpus {
            let is_same_gpu = |known: &Gpu| known.index == gpu.index && known.uuid == gpu.uuid;
            if !self.known_gpus.iter().any(is_same_gpu) {
                self.known_gpus.push(Gpu { processes: None, ..gpu.clone() });
            }
        }
    }

    /// Checks the arguments against the snapshots. Fails if a GPU or recorded user in the arguments does not exist, if
    /// the baseline is from another host or boot, or if CUDA_VISIBLE_DEVICES hides a GPU in `--wait-free`. Succeeds if
    /// no snapshot contained a GPU.
    pub(super) fn prove_machine(&self) -> Result<(), UsageError> {
        if self.known_gpus.is_empty() {
            return Ok(());
        }
        self.question.selection.check_gpus(&self.known_gpus)?;
        if !self.is_live {
            self.question.selection.check_recorded_users(&self.recorded)?;
        }
        if let Some(why) = &self.unusable {
            return Err(UsageError(why.clone()));
        }
        let is_asked = |gpu: &&Gpu| self.question.selection.allows_gpu(gpu);
        let asked: Vec<Gpu> = self.known_gpus.iter().filter(is_asked).cloned().collect();
        self.question.wait.as_ref().map_or(Ok(()), |wait| wait.check_devices(&asked))
    }

    /// Returns a report on the snapshots so far. The status is an error if `failure` is given.
    pub(in crate::cli) fn report(&mut self, failure: Option<&str>) -> CheckReport {
        let whole = self.last.as_ref().and_then(|last| last.whole.as_ref());
        if let Some(whole) = whole {
            let marks = prepare::plan_marks(&self.engine, whole);
            self.engine.mark_planned(&marks);
        }
        let engine = &self.engine;
        let all = engine.findings().iter().chain(engine.resolved());
        let mut findings: Vec<Finding> = all.filter(|f| self.concerns(f)).cloned().collect();
        if let Some(whole) = whole {
            self.commands.fill_in(findings.iter_mut(), engine.findings(), whole);
        }
        let suspects = self.suspects();
        let limits = self.last.as_ref().map_or_else(Vec::new, |last| last.limits.clone());
        let wait = self.question.wait.as_ref().map_or_else(Vec::new, Wait::verdicts);
        let time = self.last.as_ref().map(|last| last.time);
        CheckReport {
            schema: SCHEMA,
            time,
            window_seconds: self
                .first
                .zip(time)
                .map_or(0.0, |(first, last)| last.seconds_since(first).max(0.0)),
            status: self.status(&findings, failure.is_some()),
            counts: Counts::new(&findings),
            reclaimable: self.reclaimable(&findings, &suspects),
            rules_applied: !self.is_without_rules,
            findings,
            pending: self.pending(),
            suspects,
            kept: engine
                .kept()
                .iter()
                .filter(|kept| self.concerns(&kept.finding))
                .cloned()
                .collect(),
            undecided: engine.undecided(),
            limits,
            wait,
            new_holders: self.last.as_ref().and_then(|last| last.new_holders.clone()),
            errors: self.errors(failure),
            gpus: self.last.as_ref().map_or(0, |last| last.gpus),
            hostname: self.last.as_ref().and_then(|last| last.hostname.clone()),
            rules: engine.settings().rules().iter().map(|rule| Arc::clone(&rule.name)).collect(),
            fail_on: self.question.fail_on,
            holders: self.holders(),
        }
    }

    /// Returns a title and a table of processes for each device that `--wait-free` considers.
    fn holders(&self) -> Vec<(String, Table)> {
        let whole = self.last.as_ref().and_then(|last| last.whole.as_ref());
        let (Some(wait), Some(whole)) = (&self.question.wait, whole) else {
            return Vec::new();
        };
        let asked = wait.asked(&whole.gpus).into_iter();
        let asked = asked.filter(|device| self.question.selection.allows_gpu(device.gpu));
        let engine = &self.engine;
        let marks = Marks { findings: engine.findings(), suspects: engine.suspects() };
        let title = |device: &ComputeDevice<'_>| {
            // Show claims and refusals: `--wait-free` may not count the free memory because of them.
            let notes = [device.gpu.claim_text(), device.refusal()].into_iter().flatten();
            let notes: String = notes.map(|note| format!(", {note}")).collect();
            match (device.free_bytes(), device.total_bytes()) {
                (Some(free), Some(total)) => {
                    format!("{}: {} of {} free{notes}", device.name(), Bytes(free), Bytes(total))
                }
                _ => format!("{}: free memory unknown{notes}", device.name()),
            }
        };
        asked.map(|device| (title(&device), holders_table(whole, device, marks))).collect()
    }

    fn pending(&self) -> Vec<Pending> {
        let selected = self.last.as_ref().and_then(|last| last.selected.as_ref());
        let concerns = |pending: &&Pending| {
            selected.is_none_or(|selected| selected.on_gpus.contains(&(pending.pid, pending.gpu)))
        };
        self.engine.pending().iter().filter(concerns).cloned().collect()
    }

    fn suspects(&self) -> Vec<Suspect> {
        let selected = self.last.as_ref().and_then(|last| last.selected.as_ref());
        let concerns = |suspect: &&Suspect| {
            let pid = Some(suspect.process.pid);
            let is_on = |selected: &Selected, gpu: u32| selected.on_gpus.contains(&(pid, gpu));
            selected
                .is_none_or(|selected| suspect.gpus.iter().any(|gpu| is_on(selected, gpu.index)))
        };
        let suspects = self.engine.suspects().iter().filter(concerns);
        let typed_here = |suspect: &Suspect| Suspect {
            command: self.commands.typed_here(&suspect.command).into(),
            ..suspect.clone()
        };
        suspects.map(typed_here).collect()
    }

    fn reclaimable(&self, findings: &[Finding], suspects: &[Suspect]) -> Reclaimable {
        let identity = |finding: &Finding| Some(finding.process.as_ref()?.identity);
        let concerned: HashSet<Identity> = findings.iter().filter_map(identity).collect();
        let is_asked = |finding: &Finding| match identity(finding) {
            Some(identity) => concerned.contains(&identity),
            None => self.concerns(finding),
        };
        self.engine.reclaimable_of(is_asked, suspects.iter())
    }

    fn status(&self, findings: &[Finding], failed: bool) -> CheckOutcome {
        let Some(last) = self.last.as_ref().filter(|_| !failed) else {
            return CheckOutcome::Error;
        };
        let lasts = |finding: &&Finding| finding.resolved_at.is_none();
        let mut lasting = findings.iter().filter(lasts);
        let found =
            lasting.any(|finding| self.question.fail_on.is_some_and(|on| finding.severity >= on));
        let exceeded = last.limits.iter().any(|v| v.exceeded == Some(true));
        let is_new = last.new_holders.as_ref().is_some_and(|new| !new.is_empty());
        let unsatisfied = self.question.wait.as_ref().is_some_and(|wait| !wait.is_satisfied());
        let never_known = self.question.wait.as_ref().is_some_and(Wait::is_blind);
        // An unreadable process list matters only if findings can fail the check.
        let unreadable = self.question.fail_on.is_some() && last.unreadable;
        let is_judged = self.question.fail_on.is_some()
            || !self.question.limits.is_empty()
            || self.question.baseline.is_some();
        let unreadable = unreadable || (is_judged && !last.missing.is_empty());
        if found || exceeded || is_new || (unsatisfied && !never_known) {
            CheckOutcome::Findings
        } else if last.is_unknown || unsatisfied || unreadable || last.gpus == 0 {
            CheckOutcome::Error
        } else {
            CheckOutcome::Ok
        }
    }

    fn concerns(&self, finding: &Finding) -> bool {
        self.question.selection.is_empty() || self.selected.contains(&finding.id)
    }

    fn errors(&self, failure: Option<&str>) -> Vec<ReadError> {
        let mut errors = Vec::new();
        if let Some(last) = &self.last {
            errors.clone_from(&last.errors);
            for wanted in &last.missing {
                let gone = format!("{wanted} is missing from the last snapshot");
                errors.push(ReadError::new("--gpu", &gone));
            }
            if self.known_gpus.is_empty() {
                errors.push(ReadError::new(
                    "nvmlDeviceGetCount_v2",
                    "the driver reports no GPU, so there is nothing to check; run `gpumem doctor`, or try --demo",
                ));
            }
        }
        errors.extend(self.impossible.iter().map(|why| ReadError::new("--wait-free", why)));
        errors.extend(forgotten(self.engine.history().resets()));
        errors.extend(failure.map(|why| ReadError::new("check", why)));
        errors
    }
}

/// Selects rows and findings of a snapshot that the engine has evaluated. Updates `ids` but keeps the ids of resolved
/// findings.
fn select(
    selection: &Selection,
    engine: &Engine,
    snapshot: &Snapshot,
    ids: &mut HashSet<Arc<str>>,
) -> Option<Selected> {
    let found = || {
        let kept = engine.kept().iter().map(|kept| &kept.finding);
        engine.findings().iter().chain(kept)
    };
    let selected = selection.select(snapshot, engine, found())?;
    for finding in found() {
        match selected.findings.get(&finding.id) {
            Some(id) => drop(ids.insert(Arc::clone(id))),
            None => drop(ids.remove(&finding.id)),
        }
    }
    Some(selected)
}

/// Returns an error for each reason why history was discarded or snapshots were skipped. In both cases, findings may be
/// missing.
fn forgotten(resets: Resets) -> Vec<ReadError> {
    [
        (resets.slept, "the machine was suspended"),
        (resets.other_boot, "the boot or the host changed"),
        (resets.clock_went_back, "the clock was set back"),
        (resets.gap, "an hour or more passed without a snapshot"),
    ]
    .into_iter()
    .filter(|(times, _)| *times > 0)
    .map(|(times, why)| format!("{why} ({times}×); earlier history was dropped"))
    .chain((resets.strays > 0).then(|| {
        let strays = resets.strays;
        format!("snapshots older than the previous one were skipped ({strays}×)")
    }))
    .map(|error| ReadError::new("history", &error))
    .collect()
}
