//! A file per kind of finding, and the engine that runs them.

use crate::history::History;
use crate::model::Snapshot;
use crate::model::finding::{Finding, Undecided};

/// Every rule's settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// Judges snapshots as they come.
#[derive(Debug, Default)]
pub struct Engine {
    history: History,
    findings: Vec<Finding>,
    resolved: Vec<Finding>,
}

impl Engine {
    /// An engine without any history.
    pub fn new(_settings: Settings) -> Self {
        Self::default()
    }

    /// Takes in the next snapshot and judges again.
    pub fn observe(&mut self, _snapshot: &Snapshot) {}

    /// What is so now, worst first.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What was so and has ceased, latest first; bounded in number.
    pub fn resolved(&self) -> &[Finding] {
        &self.resolved
    }

    /// The rules that could not be decided on the history so far.
    pub fn undecided(&self) -> Vec<Undecided> {
        Vec::new()
    }

    /// What has been seen so far.
    pub fn history(&self) -> &History {
        &self.history
    }
}
