//! What is to be ended, or being ended, as it is shown.

use std::time::Duration;

use crate::model::Time;
use crate::reclaim::Target;
use crate::watch::reaping::batch::Batch;
use crate::watch::reclaim_worker::{PlanOptions, Proposal};
use crate::watch::view_model::RowKey;

/// What is to be ended, and what is being ended.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reaping {
    /// The plan, while it is open.
    pub dialog: Option<Dialog>,
    /// What is being carried out, or was and has not been looked at since.
    pub batch: Option<Batch>,
    /// The last question's.
    pub number: u64,
}

/// A plan that is asked for and shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Dialog {
    /// Which processes, and how.
    pub options: PlanOptions,
    /// Who was marked or selected when it was opened.
    pub selected: Vec<RowKey>,
    /// The plan, or what keeps it.
    pub answer: Answer,
    /// Lines that are scrolled away.
    pub offset: usize,
    /// What Enter does.
    pub button: Button,
    /// The list of signals, and which of them is selected there: 0 for the default steps.
    pub signals: Option<usize>,
    /// A yes that can still be taken back.
    pub countdown: Option<Countdown>,
    /// What came of the last key, in words.
    pub note: Option<String>,
    /// When the plan was asked for, by the clock of the samples.
    pub asked: Option<Time>,
    /// All that is shown has been on the screen.
    pub is_drawn: bool,
    /// Samples are taken more often until there is an answer.
    pub is_fast: bool,
}

/// What has come of the question.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// The sample on the screen is of the past; the next one is waited for.
    Waiting,
    /// The plan is being made.
    Asked,
    /// The plan.
    Plan(Proposal),
    /// There is none, and why.
    Failed(String),
}

/// What Enter does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Button {
    /// Leave, with nothing sent.
    Cancel,
    /// Carry the plan out.
    Begin,
}

impl Reaping {
    /// Whether a plan is being carried out.
    pub fn is_running(&self) -> bool {
        let batch = self.batch.as_ref();
        batch.is_some_and(|batch| batch.over.is_none())
    }

    /// When something here will read differently, as time since the start of the screen.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let countdown = self.dialog.as_ref().and_then(|it| it.countdown);
        let running = || Duration::from_secs(now.as_secs() + 1);
        countdown.map(|it| it.next_tick(now)).or_else(|| self.is_running().then(running))
    }
}

impl Dialog {
    /// The plan, where there is one.
    pub fn proposal(&self) -> Option<&Proposal> {
        match &self.answer {
            Answer::Plan(proposal) => Some(proposal),
            _ => None,
        }
    }

    /// How many targets gpumem itself would end.
    pub fn ends(&self) -> usize {
        let targets = self.proposal().map(|it| &it.plan.targets).into_iter();
        targets.flatten().filter(|it| !it.is_advice()).count()
    }

    /// How many processes would be sent something.
    pub fn receivers(&self) -> usize {
        let targets = self.proposal().map(|it| &it.plan.targets).into_iter();
        let ended = targets.flatten().filter(|it| !it.is_advice());
        ended.map(|it| it.members.len() + usize::from(it.launcher.is_some())).sum()
    }

    /// Whether there is anything that `direct` would change.
    pub fn offers_direct(&self) -> bool {
        let targets = self.proposal().map(|it| &it.plan.targets).into_iter();
        self.options.direct || targets.flatten().any(Target::is_advice)
    }
}

/// A yes that can be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Countdown {
    /// Until then, as time since the screen started; `None` before the first tick tells the time, since
    /// keys do not.
    pub ends: Option<Duration>,
    /// Whether another yes came since the last tick.
    pub has_yes: bool,
    /// No yes came later than this, but for that one.
    pub quiet_since: Duration,
}

impl Countdown {
    /// When it will read differently, as time since the start of the screen.
    pub fn next_tick(self, now: Duration) -> Duration {
        let Some(ends) = self.ends else {
            return Duration::ZERO;
        };
        let next = seconds_left(ends, now).saturating_sub(1);
        ends.saturating_sub(Duration::from_secs(next))
    }
}

/// Whole seconds until then, the last one to its end.
pub fn seconds_left(ends: Duration, now: Duration) -> u64 {
    let left = ends.saturating_sub(now);
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}
