//! What to type about the findings that are shown, for the list of findings and the page: the worker makes the
//! plan for it, as `check` and `explain` do.
//!
//! It is asked when the shown findings change, when a page is opened, and once a minute, so that it costs nothing
//! while nothing changes. Until it has answered there is no command.

use std::collections::HashMap;
use std::sync::Arc;

use super::page::About;
use crate::model::Time;
use crate::model::finding::Finding;
use crate::reclaim::commands::NextSteps;
use crate::watch::reclaim_worker::{ObservedSample, ReclaimRequest};
use crate::watch::view_model::Screenful;

/// The same findings are asked about again after this long, by the samples' time; seconds.
const AGAIN_SECONDS: f64 = 60.0;

/// What is known of what to type.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NextCommands {
    /// The findings that were asked about, the page that was open, and when.
    asked: Option<(Vec<Arc<str>>, Option<About>, Time)>,
    /// By the finding's id.
    known: HashMap<Arc<str>, NextSteps>,
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

    /// What to ask the worker about the findings that are shown, where it has not been asked; `page` is what the open
    /// page explains.
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

    /// Takes in what the worker found.
    pub fn receive(&mut self, steps: Vec<(Arc<str>, NextSteps)>) {
        self.known = steps.into_iter().collect();
    }
}
