//! Feeds snapshots to the history, asks every rule, and keeps the findings: what is so and what ceased.
//!
//! A finding has a life. It is *pending* while what it says has not lasted long enough; *active* from
//! then on, under the same id for as long as it lasts; *resolved* once it has ceased. What cannot be seen
//! any more, because a GPU does not answer, neither lasts nor ceases.
//!
//! If several rules match a process, only the most severe finding is reported, and of equals the one about
//! which something has to be done first. The others stay attached to it, and are reported when it resolves.
//!
//! What an exemption keeps is no finding, and no evidence of one; it is listed apart.

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
use crate::model::processes_by_pid::ProcessesByPid;
use crate::model::reclaimable::PlanMark;
use crate::model::{Gpu, Identity, Kind, Reclaimable, Snapshot, Suspect, Unread};

/// How many findings that have ceased are kept.
const MOST_RESOLVED: usize = 256;

/// Judges snapshots as they come.
#[derive(Debug, Default)]
pub struct Engine {
    settings: RuleSet,
    history: History,
    active: ActiveFindings,
    resolved: Vec<Finding>,
    pending: Vec<Pending>,
    undecided: Vec<Undecided>,
    suspects: Vec<Suspect>,
    has_recorder: bool,
}

impl Engine {
    /// An engine without any history.
    pub fn new(settings: RuleSet) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Judges by other settings from the next snapshot on; what was seen so far still counts.
    pub fn set_settings(&mut self, settings: RuleSet) {
        self.settings = settings;
    }

    /// What it judges by.
    pub fn settings(&self) -> &RuleSet {
        &self.settings
    }

    /// Forgets all that was seen; the settings stay.
    pub fn forget(&mut self) {
        let (settings, has_recorder) = (std::mem::take(&mut self.settings), self.has_recorder);
        *self = Self { has_recorder, ..Self::new(settings) };
    }

    /// Notes that a recorder keeps this machine's history, so that nobody is advised to run one.
    pub fn note_recorder(&mut self) {
        self.has_recorder = true;
    }

    /// Whether a recorder keeps this machine's history.
    pub fn has_recorder(&self) -> bool {
        self.has_recorder
    }

    /// Takes in the next snapshot and judges again. One of the same time as the last says nothing new.
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
        self.suspects = suspects(seen, &found, keeps, verdicts.candidates);
        let has_recorder = self.has_recorder;
        self.suspects.iter_mut().for_each(|it| it.missing.is_recorded |= has_recorder);
    }

    fn judge(&self, snapshot: &Snapshot) -> RuleOutput {
        let mut verdicts = RuleOutput::default();
        let seen =
            |rule| RuleInput { rule, history: &self.history, snapshot, active: &self.active };
        let run: Vec<(usize, &Rule)> =
            self.settings.rules().iter().enumerate().filter(|(_, rule)| rule.is_run()).collect();
        // Everything of a process is judged while it is at hand.
        for process in &snapshot.processes {
            if let Some(known) = self.history.process(process.identity()) {
                // A desktop waits for its user. Only that it cannot go on is worth a word: nothing that
                // is said then would end it.
                let is_display = known.is_display();
                for &(place, rule) in &run {
                    if !is_display || matches!(rule.kind(), Kind::Dead | Kind::Stuck) {
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

    /// There is no finding about a process that may be on a GPU whose processes are not known: what it, or
    /// its family, does there is not known. What was found before stays as it was, and nothing is done
    /// about it.
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

    /// What stands now: each finding of before lasts, cannot be seen, or has ceased.
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
            // The GPUs that it is about may have changed; it keeps its name.
            if let Some(known) = before.get(&subject) {
                finding.id = Arc::clone(&known.id);
            }
            // A recording may show a process twice; it is accused once.
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
                // There is nothing left to do about it.
                finding.actions.retain(|action| *action == Action::Notify);
                self.resolved.truncate(MOST_RESOLVED - 1);
                self.resolved.insert(0, finding);
            }
        }
        let (mut open, kept) = self.exempt(found, &kept_before, snapshot);
        self.mark_kept(&mut open, (snapshot, processes));
        self.active = ActiveFindings::new(open, kept);
    }

    /// Parts what is to be reported from what an exemption keeps.
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
                    // To end it would end what is exempt as well.
                    finding.actions.retain(|action| *action == Action::Notify);
                    open.push(finding);
                }
                Exempts::Wholly(keep, certain) => kept.push(keep.kept(finding, certain)),
                // What it was when it was last seen it still is.
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

    /// Marks what `reap` leaves alone because something keeps the process; of a process that is not seen now,
    /// what was known before holds.
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

    /// Whether what a finding is about may be there all the same: its GPU did not answer.
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

    /// What is so now, worst first.
    pub fn findings(&self) -> &[Finding] {
        &self.active.accusations
    }

    /// What is so and is not reported, because the configuration exempts it.
    pub fn kept(&self) -> &[Kept] {
        &self.active.kept
    }

    /// What each rule finds now, whether it is an accusation, evidence of one, or kept.
    pub fn active_findings(&self) -> impl Iterator<Item = &Finding> {
        self.active.all()
    }

    /// What each rule finds now, but for what an exemption keeps.
    pub fn unkept(&self) -> impl Iterator<Item = &Finding> + Clone {
        let current = &self.active;
        current.accusations.iter().chain(&current.subordinate)
    }

    /// Marks what a plan of the last snapshot says of each finding. The engine makes no plans: who has it asks for
    /// one.
    pub fn mark_planned(&mut self, marks: &[PlanMark]) {
        let current = &mut self.active;
        let open = current.accusations.iter_mut().chain(&mut current.subordinate);
        open.for_each(|finding| finding.mark_planned(marks));
    }

    /// What was so and has ceased, latest first; bounded in number.
    pub fn resolved(&self) -> &[Finding] {
        &self.resolved
    }

    /// What will be so if nothing changes.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// What looks like waste already and is not proved, the one that holds most first. It is never acted
    /// upon and counts for no exit code.
    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    /// How much is reclaimable, and how much is suspected.
    pub fn reclaimable(&self) -> Reclaimable {
        self.reclaimable_of(|_| true, self.suspects.iter())
    }

    /// The same of some findings and suspects only.
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

    /// The rules that could not be decided on the history so far.
    pub fn undecided(&self) -> Vec<Undecided> {
        self.undecided.clone()
    }

    /// What has been seen so far.
    pub fn history(&self) -> &History {
        &self.history
    }
}

/// What every rule found, as accusations: one a process, worst first.
#[derive(Debug, Default)]
pub(super) struct ActiveFindings {
    accusations: Vec<Finding>,
    /// What an accusation of the same process stands before.
    subordinate: Vec<Finding>,
    /// What an exemption keeps from being an accusation.
    kept: Vec<Kept>,
    /// Where each is, counted through the three.
    places: HashMap<FindingSubject, usize>,
}

impl ActiveFindings {
    /// Puts findings into their order; no two are of the same subject.
    fn new(mut findings: Vec<Finding>, kept: Vec<Kept>) -> Self {
        // A finding is large: it is put into its place once, and not moved about until it has it.
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

    /// What every rule found: accusations, what they stand before, and what is kept.
    fn all(&self) -> impl Iterator<Item = &Finding> {
        let kept = self.kept.iter().map(|kept| &kept.finding);
        self.accusations.iter().chain(&self.subordinate).chain(kept)
    }

    /// Makes what is subordinate evidence of the accusation of its process.
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

    /// Every finding, and whether it was an accusation.
    fn into_findings(self) -> impl Iterator<Item = (Finding, bool)> {
        let accusations = self.accusations.into_iter().map(|finding| (finding, true));
        let kept = self.kept.into_iter().map(|kept| kept.finding);
        let others = self.subordinate.into_iter().chain(kept);
        accusations.chain(others.map(|finding| (finding, false)))
    }

    /// The processes of which anything is found, reported or kept.
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

/// Two findings are the same one at two times when a rule found them in the same process or on the
/// same GPU.
#[derive(PartialEq, Eq, Hash, Debug)]
enum FindingSubject {
    Process(Arc<str>, Identity),
    Gpu(Arc<str>, Arc<str>),
    /// A GPU without a uuid, by NVML's index.
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
