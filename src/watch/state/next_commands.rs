//! The commands for the shown findings, in the list of findings and on the page. The worker makes the plan for them, as
//! for `check` and `explain`.
//!
//! It is asked when the shown findings change, when a page is opened, and once a minute, so that this costs nothing
//! while nothing changes. Before its first answer, no command is shown.

use std::collections::HashMap;
use std::sync::Arc;

use super::page::About;
use crate::model::Time;
use crate::model::finding::Finding;
use crate::reclaim::commands::NextSteps;
use crate::reclaim::worker::{ObservedSample, ReclaimRequest};
use crate::watch::view_model::Screenful;

/// The same findings are asked about again after this many seconds, by the samples' time.
const AGAIN_SECONDS: f64 = 60.0;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct NextCommands {
    /// The findings asked about, the page that was open, and when.
    asked: Option<(Vec<Arc<str>>, Option<About>, Time)>,
    /// By the finding's id.
    known: HashMap<Arc<str>, NextSteps>,
}

impl NextCommands {
    pub fn fill_in<'f>(&self, findings: impl Iterator<Item = &'f mut Finding>) {
        for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
            if let Some(steps) = self.known.get(&finding.id) {
                steps.put(finding);
            }
        }
    }

    pub fn first(&self, finding: &Finding) -> Option<&str> {
        let steps = self.known.get(&finding.id)?;
        steps.commands.first().map(String::as_str)
    }

    /// The request about the shown findings, unless it was made already; `page` is the open page's subject.
    pub fn request(
        &mut self,
        screenful: &Screenful,
        page: Option<About>,
    ) -> Option<ReclaimRequest> {
        let findings = screenful.findings.iter().filter(|finding| finding.resolved_at.is_none());
        let ids: Vec<Arc<str>> = findings.map(|finding| Arc::clone(&finding.id)).collect();
        let now = screenful.snapshot.time;
        let is_known = self.asked.as_ref().is_some_and(|(asked, on, at)| {
            let is_recent = now.seconds_since(*at).abs() < AGAIN_SECONDS;
            is_recent && *asked == ids && (page.is_none() || *on == page)
        });
        if is_known || ids.is_empty() {
            return None;
        }
        self.asked = Some((ids, page, now));
        Some(ReclaimRequest::Commands(ObservedSample {
            snapshot: Arc::new(screenful.snapshot.clone()),
            found: screenful.findings.clone(),
        }))
    }

    /// Takes in the worker's answer.
    pub fn receive(&mut self, steps: Vec<(Arc<str>, NextSteps)>) {
        self.known = steps.into_iter().collect();
    }
}
