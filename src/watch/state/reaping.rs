//! The open plan, and the batch that carries one out.

use std::time::Duration;

use super::batch::Batch;
use crate::model::Time;
use crate::reclaim::Target;
use crate::reclaim::worker::{PlanOptions, Proposal};
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
