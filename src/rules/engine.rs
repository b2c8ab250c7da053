//! Feeds snapshots to the history, runs every rule, and keeps active and resolved findings.
//!
//! A finding is *pending* until its condition has lasted long enough, then *active* under one id while the
//! condition lasts, and finally *resolved*. While a GPU does not answer, its conditions cannot be observed: they
//! neither last nor end.
//!
//! If several rules match a process, only the most severe finding is reported; of equally severe ones, the one that
//! needs action first. The others are attached to it, and are reported when it resolves.
//!
//! Exempt processes have no findings; matches are listed separately.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::RuleSet;
use super::exemption::{self, Exempts};
use super::rule::{ProcessInput, Rule, RuleInput, RuleOutput};
use super::suspect::suspects;
use super::undecided_reason::UndecidedReason;
use crate::history::History;
use crate::model::family::families;
use crate::model::finding::{Action, Also, Ends, Finding, Kept, Pending, Undecided};
use crate::model::reclaimable::PlanMark;
use crate::model::snapshot::ProcessesByPid;
use crate::model::{Gpu, Identity, Kind, Reclaimable, Snapshot, Suspect, Unread};

const MOST_RESOLVED: usize = 256;

/// Evaluates rules on a stream of snapshots.
#[derive(Debug, Default)]
pub struct Engine {
    settings: RuleSet,
    history: History,
    active: ActiveFindings,
    resolved: Vec<Finding>,
    pending: Vec<Pending>,
    undecided: Vec<Undecided>,
    suspects: Arc<[Suspect]>,
    has_recorder: bool,
}

impl Engine {
    pub fn new(settings: RuleSet) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Replaces the settings from the next snapshot on; keeps the history.
    pub fn set_settings(&mut self, settings: RuleSet) {
        self.settings = settings;
    }

    pub fn settings(&self) -> &RuleSet {
        &self.settings
    }

    /// Drops the history; keeps the settings.
    pub fn forget(&mut self) {
        let (settings, has_recorder) = (std::mem::take(&mut self.settings), self.has_recorder);
        *self = Self { has_recorder, ..Self::new(settings) };
    }

    /// Suppresses advice to start a recorder, because one is running.
    pub fn note_recorder(&mut self) {
        self.has_recorder = true;
    }

    pub fn has_recorder(&self) -> bool {
        self.has_recorder
    }

    /// Adds the next snapshot and evaluates the rules. Ignores a snapshot with the time of the previous one.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        if !self.history.observe(snapshot) {
            return;
        }
        let mut verdicts = self.judge(snapshot);
        self.withhold(&mut verdicts, snapshot);
        self.undecided = self.name_doubts(&verdicts);
        self.pending = verdicts.pending;
        let processes = ProcessesByPid::new(snapshot);
        self.carry_over(verdicts.findings, (snapshot, &processes));
        let found = self.active.identities().collect();
        let seen = (&self.history, snapshot, &processes);
        let keeps = self.settings.keep_rules();
        let mut suspects = suspects(seen, &found, keeps, verdicts.candidates);
        let has_recorder = self.has_recorder;
        suspects.iter_mut().for_each(|it| it.missing.is_recorded |= has_recorder);
        self.suspects = suspects.into();
    }

    fn judge(&self, snapshot: &Snapshot) -> RuleOutput {
        let mut verdicts = RuleOutput::default();
        let jobs = OnceCell::new();
        let (history, active) = (&self.history, &self.active);
        let seen = |rule| RuleInput { rule, history, snapshot, active, jobs: &jobs };
        let run: Vec<(usize, &Rule)> =
            self.settings.rules().iter().enumerate().filter(|(_, rule)| rule.is_run()).collect();
        // Look up each process once and run all rules on it.
        for process in &snapshot.processes {
            if let Some(known) = self.history.process(process.identity()) {
                // A desktop waits for its user, and a virtual machine for its guest. Report only that such a
                // process is dead, stuck or leaks, and offer no action that ends it.
                let waits = known.is_desktop_or_machine();
                for &(place, rule) in &run {
                    if !waits || matches!(rule.kind(), Kind::Dead | Kind::Stuck | Kind::Leak) {
                        verdicts.rule = place;
                        let input = ProcessInput { seen: seen(rule), process, known };
                        (rule.made_of.process)(input, &mut verdicts);
                    }
                }
            }
        }
        for gpu in &snapshot.gpus {
            if let Some(known) = self.history.device(gpu) {
                for &(place, rule) in &run {
                    verdicts.rule = place;
                    (rule.made_of.gpu)(seen(rule), gpu, known, &mut verdicts);
                }
            }
        }
        for (gpu, row, process) in self.history.unresolved_rows(snapshot) {
            for &(place, rule) in &run {
                verdicts.rule = place;
                (rule.made_of.unresolved_row)(seen(rule), gpu, row, process, &mut verdicts);
            }
        }
        verdicts
    }

    /// Drops new findings on a process that may be on a GPU whose process list is missing: the activity of the
    /// process or its family there is unknown. Earlier findings stay, without actions.
    fn withhold(&self, verdicts: &mut RuleOutput, snapshot: &Snapshot) {
        let RuleOutput { findings, pending, candidates, .. } = verdicts;
        let is_needed = findings.iter().any(|finding| finding.process.is_some())
            || pending.iter().any(|pending| pending.pid.is_some())
            || !candidates.is_empty();
        if !is_needed || !snapshot.gpus.iter().any(Gpu::is_unread) {
            return;
        }
        let unread = Unread::new(snapshot, &families(snapshot), |process, gpu| {
            self.history.was_on(process.identity(), gpu)
        });
        candidates.retain(|candidate| unread.gpu_of(candidate.process.pid).is_none());
        let mut doubts = Vec::new();
        findings.retain_mut(|finding| {
            let pid = finding.process.as_ref().map(|process| process.pid);
            let Some((pid, gpu)) = pid.and_then(|pid| Some((pid, unread.gpu_of(pid)?))) else {
                return true;
            };
            doubts.push((Arc::clone(&finding.rule), UndecidedReason::Elsewhere { pid, gpu }));
            let Some(known) = self.active.get(&FindingSubject::of(finding)) else {
                return false;
            };
            *finding = known.clone();
            finding.actions.retain(|action| *action == Action::Notify);
            true
        });
        pending.retain(|pending| {
            let Some((pid, gpu)) = pending.pid.and_then(|pid| Some((pid, unread.gpu_of(pid)?)))
            else {
                return true;
            };
            doubts.push((Arc::clone(&pending.rule), UndecidedReason::Elsewhere { pid, gpu }));
            false
        });
        for (name, doubt) in doubts {
            let mut rules = self.settings.rules().iter();
            if let Some(place) = rules.position(|rule| rule.name == name) {
                verdicts.rule = place;
                verdicts.doubt(doubt);
            }
        }
    }

    fn name_doubts(&self, verdicts: &RuleOutput) -> Vec<Undecided> {
        let rules = self.settings.rules().iter();
        rules.zip(&verdicts.doubts).flat_map(|(rule, doubts)| doubts.name(&rule.name)).collect()
    }

    /// Decides for each earlier finding whether it lasts, cannot be observed, or has ended.
    fn carry_over(
        &mut self,
        mut found: Vec<Finding>,
        (snapshot, processes): (&Snapshot, &ProcessesByPid<'_>),
    ) {
        let before = std::mem::take(&mut self.active);
        let kept_before = before.kept.clone();
        let mut subjects: HashSet<FindingSubject> = HashSet::with_capacity(found.len());
        found.retain_mut(|finding| {
            let subject = FindingSubject::of(finding);
            // The process's GPUs may have changed; the id stays.
            if let Some(known) = before.get(&subject) {
                finding.id = Arc::clone(&known.id);
            }
            // A recording may list a process twice, which gets one finding.
            subjects.insert(subject)
        });
        for (mut finding, was_accused) in before.into_findings() {
            if subjects.contains(&FindingSubject::of(&finding)) {
                continue;
            }
            if self.may_be_hidden(&finding, snapshot) {
                found.push(finding);
            } else if was_accused {
                finding.resolved_at = Some(snapshot.time);
                // A resolved finding needs no action.
                finding.actions.retain(|action| *action == Action::Notify);
                self.resolved.truncate(MOST_RESOLVED - 1);
                self.resolved.insert(0, finding);
            }
        }
        let (mut open, kept) = self.exempt(found, &kept_before, snapshot);
        self.mark_kept(&mut open, (snapshot, processes));
        self.active = ActiveFindings::new(open, kept);
    }

    fn exempt(
        &self,
        found: Vec<Finding>,
        kept_before: &[Kept],
        snapshot: &Snapshot,
    ) -> (Vec<Finding>, Vec<Kept>) {
        if self.settings.keeps().is_empty() {
            return (found, Vec::new());
        }
        let (mut open, mut kept) = (Vec::new(), Vec::new());
        for mut finding in found {
            match exemption::exempts(self.settings.keeps(), &finding, snapshot) {
                Exempts::No => open.push(finding),
                Exempts::InPart => {
                    // Ending the process would also end the exempt work.
                    finding.actions.retain(|action| *action == Action::Notify);
                    open.push(finding);
                }
                Exempts::Wholly(keep, certain) => kept.push(keep.kept(finding, certain)),
                // Keep the result from when the process was last seen.
                Exempts::Unseen => {
                    match kept_before.iter().find(|it| it.finding.id == finding.id) {
                        Some(before) => kept.push(before.clone()),
                        None => open.push(finding),
                    }
                }
            }
        }
        (open, kept)
    }

    /// Marks findings that `reap` skips because the process is kept. If the snapshot does not show the process, the
    /// earlier mark stays.
    fn mark_kept(
        &self,
        open: &mut [Finding],
        (snapshot, processes): (&Snapshot, &ProcessesByPid<'_>),
    ) {
        let may_be_reaped = |it: &&mut Finding| it.kind.may_be_reaped();
        for finding in open.iter_mut().filter(may_be_reaped) {
            let Some(accused) = &finding.process else {
                continue;
            };
            let process = processes.get(accused.pid);
            if let Some(process) = process.filter(|it| it.identity() == accused.identity) {
                let process = (process, self.history.process(accused.identity));
                let about = (finding.kind, &finding.rule);
                finding.kept_by =
                    exemption::kept_by(self.settings.keep_rules(), process, about, snapshot);
            }
        }
    }

    /// Whether the process or GPU of a finding may exist although the GPU did not answer.
    fn may_be_hidden(&self, finding: &Finding, snapshot: &Snapshot) -> bool {
        match &finding.process {
            Some(process) if process.identity.is_certain() => {
                self.history.may_be_hidden(process.identity)
            }
            _ => finding.gpus.iter().any(|on| {
                let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == on.index);
                gpu.is_some_and(|gpu| gpu.stale_seconds.is_some() || gpu.processes.is_none())
            }),
        }
    }

    pub fn findings(&self) -> &[Finding] {
        &self.active.accusations
    }

    pub fn kept(&self) -> &[Kept] {
        &self.active.kept
    }

    /// All current findings: reported, attached and exempt.
    pub fn active_findings(&self) -> impl Iterator<Item = &Finding> {
        self.active.all()
    }

    /// All current findings, except exempt ones.
    pub fn unkept(&self) -> impl Iterator<Item = &Finding> + Clone {
        let current = &self.active;
        current.accusations.iter().chain(&current.subordinate)
    }

    /// Records how a plan of the last snapshot treats each finding. The caller makes the plan.
    pub fn mark_planned(&mut self, marks: &[PlanMark]) {
        let current = &mut self.active;
        let open = current.accusations.iter_mut().chain(&mut current.subordinate);
        open.for_each(|finding| finding.mark_planned(marks));
    }

    /// Resolved findings, latest first, up to a limit.
    pub fn resolved(&self) -> &[Finding] {
        &self.resolved
    }

    /// Findings that will become active if nothing changes.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Processes that look like waste without proof yet, largest first. They affect no action and no exit code.
    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    /// Like `suspects`, shared without a copy.
    pub fn shared_suspects(&self) -> Arc<[Suspect]> {
        Arc::clone(&self.suspects)
    }

    pub fn reclaimable(&self) -> Reclaimable {
        self.reclaimable_of(|_| true, self.suspects.iter())
    }

    /// The amounts for these findings and suspects.
    pub fn reclaimable_of<'a>(
        &'a self,
        is_asked: impl Fn(&Finding) -> bool,
        suspects: impl Iterator<Item = &'a Suspect>,
    ) -> Reclaimable {
        let is_asked = |finding: &&Finding| is_asked(finding);
        let rules = self.settings.rules().iter();
        let mut taken = rules.filter(|it| it.is_run() && it.kind().ends() == Ends::Always);
        let is_in_doubt = |rule: &Rule| self.undecided.iter().any(|it| it.rule == rule.name);
        let mut sum = Reclaimable::new(self.unkept().filter(is_asked), suspects);
        sum.findings = self.findings().iter().filter(is_asked).count();
        sum.is_undecided = taken.clone().next().is_none() || taken.any(is_in_doubt);
        sum
    }

    /// The rules that could not be decided from the history so far.
    pub fn undecided(&self) -> Vec<Undecided> {
        self.undecided.clone()
    }

    pub fn history(&self) -> &History {
        &self.history
    }
}

/// Every rule's findings. One is reported per process, worst first.
#[derive(Debug, Default)]
pub(super) struct ActiveFindings {
    accusations: Vec<Finding>,
    /// Findings attached to a reported one on the same process.
    subordinate: Vec<Finding>,
    kept: Vec<Kept>,
    /// The position of each finding, counted through all three lists.
    places: HashMap<FindingSubject, usize>,
}

impl ActiveFindings {
    fn new(mut findings: Vec<Finding>, kept: Vec<Kept>) -> Self {
        // Findings are large, so each is moved only once.
        findings.sort_by_cached_key(|finding| (Reverse(finding.severity), finding.kind));
        let mut first: HashSet<Identity> = HashSet::with_capacity(findings.len());
        let (mut accusations, mut subordinate) = (Vec::with_capacity(findings.len()), Vec::new());
        for mut finding in findings {
            finding.also.clear();
            let process = finding.process.as_ref();
            if process.is_none_or(|process| first.insert(process.identity)) {
                accusations.push(finding);
            } else {
                subordinate.push(finding);
            }
        }
        accusations.sort_by_cached_key(|finding| {
            (
                Reverse(finding.severity),
                Reverse(finding.memory_bytes),
                (finding.since, Arc::clone(&finding.id)),
            )
        });
        let mut current = Self { places: HashMap::new(), accusations, subordinate, kept };
        current.places = current.all().map(FindingSubject::of).zip(0..).collect();
        current.attach();
        current
    }

    fn all(&self) -> impl Iterator<Item = &Finding> {
        let kept = self.kept.iter().map(|kept| &kept.finding);
        self.accusations.iter().chain(&self.subordinate).chain(kept)
    }

    /// Attaches the other findings on a process to the reported one.
    fn attach(&mut self) {
        if self.subordinate.is_empty() {
            return;
        }
        let of_process = |finding: &Finding| finding.process.as_ref().map(|it| it.identity);
        let accused: HashMap<Option<Identity>, usize> = self
            .accusations
            .iter()
            .enumerate()
            .map(|(place, finding)| (of_process(finding), place))
            .collect();
        for finding in &self.subordinate {
            if let Some(accusation) = accused.get(&of_process(finding)) {
                self.accusations[*accusation].also.push(Also::from(finding));
            }
        }
    }

    fn into_findings(self) -> impl Iterator<Item = (Finding, bool)> {
        let accusations = self.accusations.into_iter().map(|finding| (finding, true));
        let kept = self.kept.into_iter().map(|kept| kept.finding);
        let others = self.subordinate.into_iter().chain(kept);
        accusations.chain(others.map(|finding| (finding, false)))
    }

    /// The processes with any finding, reported or exempt.
    pub(super) fn identities(&self) -> impl Iterator<Item = Identity> {
        let kept = self.kept.iter().map(|kept| &kept.finding);
        let all = self.accusations.iter().chain(kept);
        all.filter_map(|finding| Some(finding.process.as_ref()?.identity))
    }

    fn get(&self, subject: &FindingSubject) -> Option<&Finding> {
        self.all().nth(*self.places.get(subject)?)
    }

    pub(super) fn of_process(&self, rule: &Arc<str>, process: Identity) -> Option<&Finding> {
        if self.places.is_empty() {
            return None;
        }
        self.get(&FindingSubject::Process(Arc::clone(rule), process))
    }

    pub(super) fn of_gpu(&self, rule: &Arc<str>, gpu: &Gpu) -> Option<&Finding> {
        if self.places.is_empty() {
            return None;
        }
        self.get(&FindingSubject::gpu(Arc::clone(rule), gpu.uuid.as_ref(), gpu.index))
    }
}

/// Identifies a finding across snapshots: the rule, and the process or GPU.
#[derive(PartialEq, Eq, Hash, Debug)]
enum FindingSubject {
    Process(Arc<str>, Identity),
    Gpu(Arc<str>, Arc<str>),
    /// A GPU without a UUID, by NVML's index.
    Unnamed(Arc<str>, u32),
}

impl FindingSubject {
    fn of(finding: &Finding) -> Self {
        let rule = Arc::clone(&finding.rule);
        match (&finding.process, finding.gpus.first()) {
            (Some(process), _) => Self::Process(rule, process.identity),
            (None, Some(gpu)) => Self::gpu(rule, gpu.uuid.as_ref(), gpu.index),
            (None, None) => Self::gpu(rule, None, 0),
        }
    }

    fn gpu(rule: Arc<str>, uuid: Option<&Arc<str>>, index: u32) -> Self {
        match uuid {
            Some(uuid) => Self::Gpu(rule, Arc::clone(uuid)),
            None => Self::Unnamed(rule, index),
        }
    }
}

#[cfg(test)]
mod tests;
