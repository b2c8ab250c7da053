//! Feeds snapshots to the history, runs every rule, and keeps active and resolved findings.
//!
//! A finding is *pending* until its condition has held long enough, *active* while the condition holds, and
//! *resolved* afterwards. Its id stays the same throughout. While a GPU does not answer, findings on that GPU neither
//! start nor end.
//!
//! If several rules match a process, the engine reports the most severe finding and attaches the other findings to
//! it. If severities are equal, the kind that comes first in [`Kind`] is reported. When the reported finding
//! resolves, an attached finding takes its place.
//!
//! Findings on exempt processes are listed separately.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::RuleSet;
use super::exemption::{self, ExemptionMatch};
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

    /// Replaces the settings and keeps the history. The new settings apply from the next snapshot.
    pub fn set_settings(&mut self, settings: RuleSet) {
        self.settings = settings;
    }

    pub fn settings(&self) -> &RuleSet {
        &self.settings
    }

    pub fn forget(&mut self) {
        let (settings, has_recorder) = (std::mem::take(&mut self.settings), self.has_recorder);
        *self = Self { has_recorder, ..Self::new(settings) };
    }

    /// Suppresses advice to start a recorder.
    pub fn note_recorder(&mut self) {
        self.has_recorder = true;
    }

    pub fn has_recorder(&self) -> bool {
        self.has_recorder
    }

    /// Adds a snapshot to the history and evaluates the rules. Does nothing if the history ignores the snapshot
    /// because it is not newer than the last one.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        if !self.history.observe(snapshot) {
            return;
        }
        let mut output = self.run_rules(snapshot);
        self.drop_unobservable(&mut output, snapshot);
        self.undecided = self.list_undecided(&output);
        self.pending = output.pending;
        let processes = ProcessesByPid::new(snapshot);
        self.carry_over(output.findings, (snapshot, &processes));
        let found = self.active.identities().collect();
        let context = (&self.history, snapshot, &processes);
        let keeps = self.settings.keep_rules();
        let mut suspects = suspects(context, &found, keeps, output.candidates);
        let has_recorder = self.has_recorder;
        suspects.iter_mut().for_each(|suspect| suspect.missing.is_recorded |= has_recorder);
        self.suspects = suspects.into();
    }

    fn run_rules(&self, snapshot: &Snapshot) -> RuleOutput {
        let mut output = RuleOutput::default();
        let jobs = OnceCell::new();
        let (history, active) = (&self.history, &self.active);
        let rule_input = |rule| RuleInput { rule, history, snapshot, active, jobs: &jobs };
        let run: Vec<(usize, &Rule)> =
            self.settings.rules().iter().enumerate().filter(|(_, rule)| rule.is_run()).collect();
        // Skip parked processes: their users parked them deliberately, and their CUDA calls block.
        let processes = snapshot.processes.iter().filter(|process| process.parked().is_none());
        for process in processes {
            if let Some(process_history) = self.history.process(process.identity()) {
                // A desktop waits for its user and a virtual machine for its guest, which is not waste. Only `dead`,
                // `stuck` and `leak` apply to them.
                let waits = process_history.is_desktop_or_machine();
                for &(rule_index, rule) in &run {
                    if !waits || matches!(rule.kind(), Kind::Dead | Kind::Stuck | Kind::Leak) {
                        output.rule_index = rule_index;
                        let input =
                            ProcessInput { rule_input: rule_input(rule), process, process_history };
                        (rule.made_of.process)(input, &mut output);
                    }
                }
            }
        }
        for gpu in &snapshot.gpus {
            if let Some(device) = self.history.device(gpu) {
                for &(rule_index, rule) in &run {
                    output.rule_index = rule_index;
                    (rule.made_of.gpu)(rule_input(rule), gpu, device, &mut output);
                }
            }
        }
        for (gpu, row, process) in self.history.unresolved_rows(snapshot) {
            for &(rule_index, rule) in &run {
                output.rule_index = rule_index;
                (rule.made_of.unresolved_row)(rule_input(rule), gpu, row, process, &mut output);
            }
        }
        output
    }

    /// Drops new findings, pending findings and candidates on processes that may also use a GPU whose process list is
    /// missing, because such a process may be working there. Keeps earlier findings, but only with the action to notify
    /// the owner.
    fn drop_unobservable(&self, output: &mut RuleOutput, snapshot: &Snapshot) {
        let RuleOutput { findings, pending, candidates, .. } = output;
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
            let Some(earlier) = self.active.get(&FindingSubject::new(finding)) else {
                return false;
            };
            *finding = earlier.clone();
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
            if let Some(rule_index) = rules.position(|rule| rule.name == name) {
                output.rule_index = rule_index;
                output.add_doubt(doubt);
            }
        }
    }

    fn list_undecided(&self, output: &RuleOutput) -> Vec<Undecided> {
        let rules = self.settings.rules().iter();
        rules
            .zip(&output.doubts)
            .flat_map(|(rule, doubts)| doubts.to_undecided(&rule.name))
            .collect()
    }

    /// Decides whether each earlier finding persists, cannot be observed, or is resolved.
    fn carry_over(
        &mut self,
        mut found: Vec<Finding>,
        (snapshot, processes): (&Snapshot, &ProcessesByPid<'_>),
    ) {
        let before = std::mem::take(&mut self.active);
        let kept_before = before.kept.clone();
        let mut subjects: HashSet<FindingSubject> = HashSet::with_capacity(found.len());
        found.retain_mut(|finding| {
            let subject = FindingSubject::new(finding);
            // The subject does not include the process's GPUs, so the id stays even if they have changed.
            if let Some(earlier) = before.get(&subject) {
                finding.id = Arc::clone(&earlier.id);
            }
            // A recording can list a process twice.
            subjects.insert(subject)
        });
        for (mut finding, was_reported) in before.into_findings() {
            if subjects.contains(&FindingSubject::new(&finding)) {
                continue;
            }
            if self.may_be_hidden(&finding, snapshot) {
                found.push(finding);
            } else if was_reported {
                finding.resolved_at = Some(snapshot.time);
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
                ExemptionMatch::No => open.push(finding),
                ExemptionMatch::InPart => {
                    // Ending the process would also end the exempt work.
                    finding.actions.retain(|action| *action == Action::Notify);
                    open.push(finding);
                }
                ExemptionMatch::Wholly(keep, certain) => kept.push(keep.kept(finding, certain)),
                // The process is not in the snapshot, so keep the exemption found earlier.
                ExemptionMatch::Unseen => {
                    match kept_before.iter().find(|kept| kept.finding.id == finding.id) {
                        Some(before) => kept.push(before.clone()),
                        None => open.push(finding),
                    }
                }
            }
        }
        (open, kept)
    }

    /// Records why `reap` would skip the process of each finding. If the process is not in the snapshot, the reason
    /// recorded earlier stays.
    fn mark_kept(
        &self,
        open: &mut [Finding],
        (snapshot, processes): (&Snapshot, &ProcessesByPid<'_>),
    ) {
        let may_be_reaped = |finding: &&mut Finding| finding.kind.may_be_reaped();
        for finding in open.iter_mut().filter(may_be_reaped) {
            let Some(finding_process) = &finding.process else {
                continue;
            };
            let process = processes.get(finding_process.pid);
            if let Some(process) =
                process.filter(|process| process.identity() == finding_process.identity)
            {
                let process = (process, self.history.process(finding_process.identity));
                let kind_and_rule = (finding.kind, &finding.rule);
                finding.kept_by = exemption::kept_by(
                    self.settings.keep_rules(),
                    process,
                    kind_and_rule,
                    snapshot,
                );
            }
        }
    }

    /// Returns whether the subject of a finding may still exist although it is missing from the snapshot, because its
    /// GPU did not answer.
    fn may_be_hidden(&self, finding: &Finding, snapshot: &Snapshot) -> bool {
        match &finding.process {
            Some(process) if process.identity.is_certain() => {
                self.history.may_be_hidden(process.identity)
            }
            _ => finding.gpus.iter().any(|finding_gpu| {
                let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == finding_gpu.index);
                gpu.is_some_and(|gpu| gpu.stale_seconds.is_some() || gpu.processes.is_none())
            }),
        }
    }

    pub fn findings(&self) -> &[Finding] {
        &self.active.reported
    }

    pub fn kept(&self) -> &[Kept] {
        &self.active.kept
    }

    /// Returns all current findings: reported, attached and exempt.
    pub fn active_findings(&self) -> impl Iterator<Item = &Finding> {
        self.active.all()
    }

    pub fn unkept(&self) -> impl Iterator<Item = &Finding> + Clone {
        let current = &self.active;
        current.reported.iter().chain(&current.attached)
    }

    pub fn mark_planned(&mut self, marks: &[PlanMark]) {
        let current = &mut self.active;
        let open = current.reported.iter_mut().chain(&mut current.attached);
        open.for_each(|finding| finding.mark_planned(marks));
    }

    pub fn resolved(&self) -> &[Finding] {
        &self.resolved
    }

    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Returns the suspects, largest first. Suspects are never acted upon and do not affect exit codes.
    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    pub fn shared_suspects(&self) -> Arc<[Suspect]> {
        Arc::clone(&self.suspects)
    }

    pub fn reclaimable(&self) -> Reclaimable {
        self.reclaimable_of(|_| true, self.suspects.iter())
    }

    pub fn reclaimable_of<'a>(
        &'a self,
        is_asked: impl Fn(&Finding) -> bool,
        suspects: impl Iterator<Item = &'a Suspect>,
    ) -> Reclaimable {
        let is_asked = |finding: &&Finding| is_asked(finding);
        let rules = self.settings.rules().iter();
        let mut reclaiming =
            rules.filter(|rule| rule.is_run() && rule.kind().ends() == Ends::Always);
        let is_in_doubt =
            |rule: &Rule| self.undecided.iter().any(|undecided| undecided.rule == rule.name);
        let mut sum = Reclaimable::new(self.unkept().filter(is_asked), suspects);
        sum.findings = self.findings().iter().filter(is_asked).count();
        sum.is_undecided = reclaiming.clone().next().is_none() || reclaiming.any(is_in_doubt);
        sum
    }

    pub fn undecided(&self) -> Vec<Undecided> {
        self.undecided.clone()
    }

    pub fn history(&self) -> &History {
        &self.history
    }
}

/// Current findings of all rules. `reported` is sorted by severity, most severe first, and holds at most one finding
/// per process.
#[derive(Debug, Default)]
pub(super) struct ActiveFindings {
    reported: Vec<Finding>,
    /// Findings attached to the reported finding on the same process.
    attached: Vec<Finding>,
    kept: Vec<Kept>,
    /// Index of each finding in the concatenation of `reported`, `attached` and `kept`.
    positions: HashMap<FindingSubject, usize>,
}

impl ActiveFindings {
    fn new(mut findings: Vec<Finding>, kept: Vec<Kept>) -> Self {
        // Findings are large, and sorting by cached keys moves each finding only once.
        findings.sort_by_cached_key(|finding| (Reverse(finding.severity), finding.kind));
        let mut first: HashSet<Identity> = HashSet::with_capacity(findings.len());
        let (mut reported, mut attached) = (Vec::with_capacity(findings.len()), Vec::new());
        for mut finding in findings {
            finding.also.clear();
            let process = finding.process.as_ref();
            if process.is_none_or(|process| first.insert(process.identity)) {
                reported.push(finding);
            } else {
                attached.push(finding);
            }
        }
        reported.sort_by_cached_key(|finding| {
            (
                Reverse(finding.severity),
                Reverse(finding.memory_bytes),
                (finding.since, Arc::clone(&finding.id)),
            )
        });
        let mut current = Self { positions: HashMap::new(), reported, attached, kept };
        current.positions = current.all().map(FindingSubject::new).zip(0..).collect();
        current.attach();
        current
    }

    fn all(&self) -> impl Iterator<Item = &Finding> {
        let kept = self.kept.iter().map(|kept| &kept.finding);
        self.reported.iter().chain(&self.attached).chain(kept)
    }

    fn attach(&mut self) {
        if self.attached.is_empty() {
            return;
        }
        let of_process =
            |finding: &Finding| finding.process.as_ref().map(|process| process.identity);
        let indices: HashMap<Option<Identity>, usize> = self
            .reported
            .iter()
            .enumerate()
            .map(|(index, finding)| (of_process(finding), index))
            .collect();
        for finding in &self.attached {
            if let Some(index) = indices.get(&of_process(finding)) {
                self.reported[*index].also.push(Also::from(finding));
            }
        }
    }

    fn into_findings(self) -> impl Iterator<Item = (Finding, bool)> {
        let reported = self.reported.into_iter().map(|finding| (finding, true));
        let kept = self.kept.into_iter().map(|kept| kept.finding);
        let others = self.attached.into_iter().chain(kept);
        reported.chain(others.map(|finding| (finding, false)))
    }

    pub(super) fn identities(&self) -> impl Iterator<Item = Identity> {
        let kept = self.kept.iter().map(|kept| &kept.finding);
        let all = self.reported.iter().chain(kept);
        all.filter_map(|finding| Some(finding.process.as_ref()?.identity))
    }

    fn get(&self, subject: &FindingSubject) -> Option<&Finding> {
        self.all().nth(*self.positions.get(subject)?)
    }

    pub(super) fn of_process(&self, rule: &Arc<str>, process: Identity) -> Option<&Finding> {
        if self.positions.is_empty() {
            return None;
        }
        self.get(&FindingSubject::Process(Arc::clone(rule), process))
    }

    pub(super) fn of_gpu(&self, rule: &Arc<str>, gpu: &Gpu) -> Option<&Finding> {
        if self.positions.is_empty() {
            return None;
        }
        self.get(&FindingSubject::gpu(Arc::clone(rule), gpu.uuid.as_ref(), gpu.index))
    }
}

#[derive(PartialEq, Eq, Hash, Debug)]
enum FindingSubject {
    Process(Arc<str>, Identity),
    Gpu(Arc<str>, Arc<str>),
    /// A GPU without a UUID, identified by its NVML index.
    Unnamed(Arc<str>, u32),
}

impl FindingSubject {
    fn new(finding: &Finding) -> Self {
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
