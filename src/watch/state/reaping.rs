//! The open plan, and the batch that carries one out.

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
    /// The plan, while it is open.
    pub dialog: Option<Dialog>,
    /// The running batch, or a finished one until its result is shown.
    pub batch: Option<Batch>,
    /// The number of the last request for a plan.
    pub number: u64,
}

/// A requested plan and its options.
#[derive(Clone, PartialEq, Debug)]
pub struct Dialog {
    pub options: PlanOptions,
    /// The rows that were marked or selected when it was opened.
    pub selected: Vec<RowKey>,
    pub answer: Answer,
    /// Lines scrolled out of sight.
    pub offset: usize,
    /// When a confirmed plan starts, as time since the screen started; it can be undone until then.
    pub countdown: Option<Duration>,
    /// What the last key did.
    pub note: Option<String>,
    /// When the plan was requested, by the clock of the samples.
    pub asked: Option<Time>,
    /// Whether the current answer has been drawn.
    pub is_drawn: bool,
}

/// The answer to the request for a plan.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    Asked,
    Plan(Proposal),
    /// Why there is no plan.
    Failed(String),
}

impl Reaping {
    pub fn is_running(&self) -> bool {
        let batch = self.batch.as_ref();
        batch.is_some_and(|batch| batch.over.is_none())
    }

    /// When a text of the dialog or batch changes next, as time since the start.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        if let Some(ends) = self.dialog.as_ref().and_then(|it| it.countdown) {
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
        self.proposal().map_or(&[], |it| &it.plan.targets)
    }

    /// How many targets gpumem itself would end.
    pub fn ends(&self) -> usize {
        self.targets().iter().filter(|it| !it.is_advice()).count()
    }

    /// How many processes would be sent something.
    pub fn receivers(&self) -> usize {
        let ended = self.targets().iter().filter(|it| !it.is_advice());
        ended.map(|it| it.members.len() + usize::from(it.launcher.is_some())).sum()
    }

    /// Whether `direct` would change anything.
    pub fn offers_direct(&self) -> bool {
        self.options.direct || self.targets().iter().any(Target::is_advice)
    }
}

/// Whole seconds until then, rounded up.
pub fn seconds_left(ends: Duration, now: Duration) -> u64 {
    ends.saturating_sub(now).as_millis().div_ceil(1000) as u64
}

/// Steps kept per target; a plan has only a few.
const MOST_SENT: usize = 16;

/// A plan that is or was being carried out.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    pub number: u64,
    pub plan: Arc<Plan>,
    /// The state of each target of the plan.
    pub targets: Vec<TargetProgress>,
    /// The result: `Err` says why not everything was done. `None` while it runs.
    pub over: Option<Result<(), String>>,
    /// Whether it was told to stop, and the worker has not confirmed that yet.
    pub is_stopping: bool,
    /// Lines scrolled out of sight.
    pub offset: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub struct TargetProgress {
    /// Which process, and what should be freed.
    pub title: String,
    /// `None` before its turn.
    pub stage: Option<TargetStage>,
    /// The steps carried out, in words, oldest first.
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
        let mark = |title| TargetProgress { title, stage: None, sent: Vec::new() };
        Self {
            number,
            plan: proposal.plan,
            targets: proposal.titles.into_iter().map(mark).collect(),
            over: None,
            is_stopping: false,
            offset: 0,
        }
    }

    pub fn set_stage(&mut self, place: usize, stage: TargetStage) {
        if let Some(mark) = self.targets.get_mut(place) {
            mark.stage = Some(stage);
        }
    }

    pub fn add_sent(&mut self, place: usize, words: String) {
        if let Some(mark) = self.targets.get_mut(place)
            && mark.sent.len() < MOST_SENT
        {
            mark.sent.push(words);
        }
    }

    /// The lines of the dialog. `now` is by the clock of the samples.
    pub fn lines(&self, now: Option<Time>) -> Vec<String> {
        let mut lines = Vec::new();
        for mark in &self.targets {
            lines.push(mark.title.clone());
            lines.extend(mark.sent.iter().map(|words| format!("    done: {words}")));
            lines.push(format!("    {}", self.state(mark, now)));
        }
        lines
    }

    fn state(&self, mark: &TargetProgress, now: Option<Time>) -> String {
        let until = match &mark.stage {
            Some(TargetStage::Ended { words, .. }) => return words.clone(),
            // An unfinished target is left alone.
            _ if self.over.is_some() => return "nothing more is sent".to_owned(),
            None => return "pending".to_owned(),
            Some(TargetStage::Waiting { saving: Some(words), .. }) => return words.to_string(),
            Some(TargetStage::Waiting { until, saving: None }) => *until,
        };
        let left = now.map_or_else(String::new, |now| format!(", {} left", left(until, now)));
        match mark.sent.is_empty() {
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

    /// Whether it ends no process, and only asks for memory.
    fn is_release(&self) -> bool {
        let targets = &self.plan.targets;
        !targets.is_empty() && targets.iter().all(Target::is_release)
    }

    /// Whether anything was sent to any target.
    pub fn has_sent(&self) -> bool {
        self.targets.iter().any(|mark| !mark.sent.is_empty())
    }

    /// The result in one line.
    pub fn summary(&self) -> String {
        let outcomes = || self.targets.iter().filter_map(TargetProgress::outcome);
        let freed: u64 = outcomes().map(Outcome::freed_bytes).sum();
        let ended = outcomes().filter(|it| it.is_success()).count();
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

    /// The progress in a few words: `killing 1 of 3: SIGTERM to 4000, 7s`.
    pub fn hint(&self, now: Option<Time>) -> String {
        if self.over.is_some() {
            return format!("{} (x)", self.summary());
        }
        let all = self.targets.len();
        let is_open = |mark: &TargetProgress| mark.outcome().is_none();
        let Some(place) = self.targets.iter().position(is_open) else {
            return self.summary();
        };
        let mark = &self.targets[place];
        let mut text = format!("{} {} of {all}", self.verb(), place + 1);
        if let Some(words) = mark.sent.last() {
            text.push_str(&format!(": {words}"));
        }
        if let (Some(TargetStage::Waiting { until, .. }), Some(now)) = (&mark.stage, now) {
            text.push_str(&format!(", {}", left(*until, now)));
        }
        text
    }
}

/// The remaining time, in whole seconds.
fn left(until: Time, now: Time) -> Span {
    Span::from_seconds(until.seconds_since(now).max(0.0).ceil())
}
