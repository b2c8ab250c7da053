//! State of the open plan and of the batch.

use std::sync::Arc;
use std::time::Duration;

use crate::model::Time;
use crate::reclaim::worker::{PlanOptions, Proposal, TargetStage};
use crate::reclaim::{Outcome, Plan, Target};
use crate::report::escape::escape;
use crate::units::{Bytes, Span};
use crate::watch::view_model::RowKey;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reaping {
    pub dialog: Option<Dialog>,
    /// A running batch, or a finished batch whose panel the user has not closed.
    pub batch: Option<Batch>,
    pub number: u64,
}

/// A request for a plan, and the answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Dialog {
    pub options: PlanOptions,
    /// Rows that were marked or selected when the dialog was opened.
    pub selected: Vec<RowKey>,
    pub answer: Answer,
    pub offset: usize,
    /// When the confirmed plan starts, as time since the screen started. Before the start, the user
    /// can undo the confirmation.
    pub countdown: Option<Duration>,
    pub note: Option<String>,
    /// When the plan was requested, on the samples' clock.
    pub asked: Option<Time>,
    pub is_drawn: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    Asked,
    Plan(Proposal),
    Failed(String),
}

impl Reaping {
    pub fn is_running(&self) -> bool {
        let batch = self.batch.as_ref();
        batch.is_some_and(|batch| batch.over.is_none())
    }

    /// Returns when the dialog or batch must next be redrawn, or `None` if no redraw is due. Times count from the start
    /// of the screen.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        if let Some(ends) = self.dialog.as_ref().and_then(|dialog| dialog.countdown) {
            let next = seconds_left(ends, now).saturating_sub(1);
            return Some(ends.saturating_sub(Duration::from_secs(next)));
        }
        self.is_running().then(|| Duration::from_secs(now.as_secs() + 1))
    }
}

impl Dialog {
    pub fn proposal(&self) -> Option<&Proposal> {
        match &self.answer {
            Answer::Plan(proposal) => Some(proposal),
            _ => None,
        }
    }

    fn targets(&self) -> &[Target] {
        self.proposal().map_or(&[], |proposal| &proposal.plan.targets)
    }

    /// Returns the number of targets that gpumem itself would kill or ask.
    pub fn ends(&self) -> usize {
        self.targets().iter().filter(|target| !target.is_advice()).count()
    }

    /// Returns the number of processes that would receive a signal or request.
    pub fn receivers(&self) -> usize {
        let ended = self.targets().iter().filter(|target| !target.is_advice());
        ended.map(|target| target.members.len() + usize::from(target.launcher.is_some())).sum()
    }

    /// Returns whether the option `direct` would change the plan.
    pub fn offers_direct(&self) -> bool {
        self.options.direct || self.targets().iter().any(Target::is_advice)
    }
}

pub fn seconds_left(ends: Duration, now: Duration) -> u64 {
    ends.saturating_sub(now).as_millis().div_ceil(1000) as u64
}

/// Maximum number of recorded steps per target, as a bound on memory.
const SENT_MAX: usize = 16;

/// A plan that is being or has been carried out.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    pub number: u64,
    pub plan: Arc<Plan>,
    pub targets: Vec<TargetProgress>,
    /// The result, or why the plan was not completed. `None` while the batch runs.
    pub over: Option<Result<(), String>>,
    /// Whether the user has requested a stop.
    pub is_stopping: bool,
    pub offset: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub struct TargetProgress {
    pub title: String,
    /// `None` until the batch reaches the target.
    pub stage: Option<TargetStage>,
    /// Descriptions of the first `SENT_MAX` steps, oldest first.
    pub sent: Vec<String>,
}

impl TargetProgress {
    fn outcome(&self) -> Option<&Outcome> {
        match &self.stage {
            Some(TargetStage::Ended { outcome, .. }) => Some(outcome),
            _ => None,
        }
    }
}

impl Batch {
    pub fn new(number: u64, proposal: Proposal) -> Self {
        let progress = |title| TargetProgress { title, stage: None, sent: Vec::new() };
        Self {
            number,
            plan: proposal.plan,
            targets: proposal.titles.into_iter().map(progress).collect(),
            over: None,
            is_stopping: false,
            offset: 0,
        }
    }

    pub fn set_stage(&mut self, place: usize, stage: TargetStage) {
        if let Some(target) = self.targets.get_mut(place) {
            target.stage = Some(stage);
        }
    }

    pub fn add_sent(&mut self, place: usize, words: String) {
        if let Some(target) = self.targets.get_mut(place)
            && target.sent.len() < SENT_MAX
        {
            target.sent.push(words);
        }
    }

    pub fn lines(&self, now: Option<Time>) -> Vec<String> {
        let mut lines = Vec::new();
        for target in &self.targets {
            lines.push(target.title.clone());
            lines.extend(target.sent.iter().map(|words| format!("    done: {words}")));
            lines.push(format!("    {}", self.state(target, now)));
        }
        lines
    }

    fn state(&self, target: &TargetProgress, now: Option<Time>) -> String {
        let until = match &target.stage {
            Some(TargetStage::Ended { words, .. }) => return words.clone(),
            _ if self.over.is_some() => return "nothing more is sent".to_owned(),
            None => return "pending".to_owned(),
            Some(TargetStage::Waiting { saving: Some(words), .. }) => return words.to_string(),
            Some(TargetStage::Waiting { until, saving: None }) => *until,
        };
        let left = now.map_or_else(String::new, |now| format!(", {} left", left(until, now)));
        match target.sent.is_empty() {
            true => format!("checking it{left}"),
            false => format!("waiting for its memory{left}"),
        }
    }

    pub fn verb(&self) -> &'static str {
        match self.is_release() {
            true => "releasing",
            false => "killing",
        }
    }

    /// Returns whether the plan only asks processes to release memory.
    fn is_release(&self) -> bool {
        let targets = &self.plan.targets;
        !targets.is_empty() && targets.iter().all(Target::is_release)
    }

    pub fn has_sent(&self) -> bool {
        self.targets.iter().any(|target| !target.sent.is_empty())
    }

    pub fn summary(&self) -> String {
        let outcomes = || self.targets.iter().filter_map(TargetProgress::outcome);
        let freed: u64 = outcomes().map(Outcome::freed_bytes).sum();
        let ended = outcomes().filter(|outcome| outcome.is_success()).count();
        let all = self.targets.len();
        let word = match self.is_release() {
            true => "released",
            false => "freed",
        };
        let freed = format!("{word} {}", Bytes(freed));
        let total = format!("{freed}; {ended} of {all} done");
        match &self.over {
            None if self.is_stopping => format!("{total}; stopping"),
            None => total,
            Some(Ok(())) if ended == all => format!("done: {freed}"),
            Some(Ok(())) => format!("done: {freed}; {ended} of {all} succeeded"),
            Some(Err(error)) => format!("{total}; {}", escape(error)),
        }
    }

    /// Formats the progress, such as `killing 1 of 3: SIGTERM to 4000, 7s`.
    pub fn hint(&self, now: Option<Time>) -> String {
        if self.over.is_some() {
            return format!("{} (x)", self.summary());
        }
        let all = self.targets.len();
        let is_open = |target: &TargetProgress| target.outcome().is_none();
        let Some(place) = self.targets.iter().position(is_open) else {
            return self.summary();
        };
        let target = &self.targets[place];
        let mut text = format!("{} {} of {all}", self.verb(), place + 1);
        if let Some(words) = target.sent.last() {
            text.push_str(&format!(": {words}"));
        }
        if let (Some(TargetStage::Waiting { until, .. }), Some(now)) = (&target.stage, now) {
            text.push_str(&format!(", {}", left(*until, now)));
        }
        text
    }
}

fn left(until: Time, now: Time) -> Span {
    Span::from_seconds(until.seconds_since(now).max(0.0).ceil())
}
