//! How much memory of a sample could be had back, what of it a plan would skip, and what only looks so: which rows
//! are marked for it, and with what.
//!
//! Kept with every sample of the timeline, and so no more of a suspect than the screen shows.

use std::borrow::Cow;
use std::sync::Arc;

use crate::model::suspect::{SeenSoFar, StillMissing};
use crate::model::{Finding, Identity, Reclaimable, Snapshot, Suspect, Time};
use crate::reclaim::{Policy, by_snapshot, commands};
use crate::rules::exemption::exempt_processes;
use crate::rules::{Engine, serves};

/// The same findings are planned for again after so long.
const PLAN_AGAIN_SECONDS: f64 = 5.0;

/// A process that is suspected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuspectMark {
    /// Which.
    pub identity: Identity,
    /// What a cell says of it: `idle? 12s of 10m`.
    pub mark: SeenSoFar,
    /// What looks so; escape it for a terminal. Shared from sample to sample.
    pub message: Arc<str>,
    /// What is missing until a rule can tell.
    pub missing: StillMissing,
    /// The command that decides it.
    pub command: Arc<str>,
}

impl From<&Suspect> for SuspectMark {
    fn from(suspect: &Suspect) -> Self {
        Self {
            identity: suspect.process.identity,
            mark: suspect.mark,
            message: Arc::clone(&suspect.message),
            missing: suspect.missing,
            command: Arc::clone(&suspect.command),
        }
    }
}

/// What is waste in a sample, and what looks so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// The suspects.
    pub suspects: Vec<SuspectMark>,
    /// How much could be had back.
    pub reclaimable: Reclaimable,
}

/// Which findings of a sample, by id, a plan of all users skips that they would be reclaimable by, and why.
pub(crate) fn skipped(engine: &Engine, snapshot: &Snapshot) -> Vec<(Arc<str>, Arc<str>)> {
    if !engine.unkept().any(Finding::is_offered) {
        return Vec::new();
    }
    // Mostly nothing stands behind another finding.
    let accusations = engine.findings();
    let found = match engine.unkept().nth(accusations.len()) {
        None => Cow::Borrowed(accusations),
        Some(_) => Cow::Owned(engine.unkept().cloned().collect::<Vec<Finding>>()),
    };
    let settings = engine.settings();
    let policy = Policy {
        never: settings.never().to_vec(),
        kept: exempt_processes(settings.keeps(), snapshot),
        ..commands::policy(serves)
    };
    by_snapshot::skipped(&found, snapshot, policy)
}

/// What a plan skips of what is found, from sample to sample. It is made anew where something else is found than
/// before, and every five seconds: it looks at every process and its family, which takes longer than to judge them.
#[derive(Debug, Default)]
pub(super) struct SkippedFindings {
    offered: Vec<Arc<str>>,
    planned_at: Option<Time>,
    skipped: Vec<(Arc<str>, Arc<str>)>,
}

impl SkippedFindings {
    /// Those of a sample that was judged just now.
    pub(super) fn of(&mut self, engine: &Engine, snapshot: &Snapshot) -> &[(Arc<str>, Arc<str>)] {
        let offered = engine.unkept().filter(|finding| finding.is_offered());
        let offered: Vec<Arc<str>> = offered.map(|it| Arc::clone(&it.id)).collect();
        let age = self.planned_at.map(|at| snapshot.time.seconds_since(at));
        let is_recent = age.is_some_and(|age| (0.0..PLAN_AGAIN_SECONDS).contains(&age));
        if offered != self.offered || !is_recent {
            self.skipped = skipped(engine, snapshot);
            self.offered = offered;
            self.planned_at = Some(snapshot.time);
        }
        &self.skipped
    }
}

impl Waste {
    /// As of the last sample that was judged.
    pub fn of(engine: &Engine) -> Self {
        Self {
            suspects: engine.suspects().iter().map(SuspectMark::from).collect(),
            reclaimable: engine.reclaimable(),
        }
    }

    /// What it takes on the heap.
    pub fn bytes(&self) -> usize {
        let texts = self.suspects.iter();
        // As if nothing were shared: it may change in each sample.
        let texts = texts.map(|it| it.message.len());
        texts.sum::<usize>() + self.suspects.len() * size_of::<SuspectMark>()
    }
}
