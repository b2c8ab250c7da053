//! What to type about the findings that are shown, for the list of findings and the page: the worker makes
//! the plan for it, as `check` and `explain` do.
//!
//! It is asked when other findings are shown than before, when a page is opened, and once a minute, so that
//! it costs nothing while nothing changes. Until it has answered there is no command. What is asked is put
//! together in `update/next_commands.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use super::page::About;
use crate::model::Time;
use crate::model::finding::Finding;
use crate::reclaim::commands::NextSteps;

/// The same findings are asked about again after this long, by the samples' time; seconds.
const AGAIN_SECONDS: f64 = 60.0;

/// What is known of what to type.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NextCommands {
    asked: Option<AskedCommands>,
    /// By the finding's id.
    known: HashMap<Arc<str>, NextSteps>,
}

/// What is asked about.
#[derive(Clone, PartialEq, Debug)]
pub struct AskedCommands {
    /// The findings.
    pub ids: Vec<Arc<str>>,
    /// The page that is open.
    pub page: Option<About>,
    /// The sample's time.
    pub at: Time,
}

impl NextCommands {
    /// Fills in what to type.
    pub fn fill_in<'f>(&self, findings: impl Iterator<Item = &'f mut Finding>) {
        for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
            if let Some(steps) = self.known.get(&finding.id) {
                steps.put(finding);
            }
        }
    }

    /// The first command about a finding.
    pub fn first(&self, finding: &Finding) -> Option<&str> {
        let steps = self.known.get(&finding.id)?;
        steps.commands.first().map(String::as_str)
    }

    /// Whether the worker has to be asked this; notes that it is.
    pub fn is_due(&mut self, now: AskedCommands) -> bool {
        let is_known = self.asked.as_ref().is_some_and(|asked| {
            let is_recent = now.at.seconds_since(asked.at).abs() < AGAIN_SECONDS;
            is_recent && asked.ids == now.ids && (now.page.is_none() || asked.page == now.page)
        });
        let is_due = !is_known && !now.ids.is_empty();
        if is_due {
            self.asked = Some(now);
        }
        is_due
    }

    /// Takes in what the worker found.
    pub fn receive(&mut self, steps: Vec<(Arc<str>, NextSteps)>) {
        self.known = steps.into_iter().collect();
    }
}
