//! State of the list of findings: the selection, the number of lines, and the commands for the findings.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::finding::Finding;
use crate::model::{Snapshot, Time};
use crate::reclaim::commands::NextSteps;
use crate::reclaim::worker::{ObservedSample, ReclaimRequest};
use crate::watch::state::page::About;
use crate::watch::text::clean;
use crate::watch::view_model::Screenful;

/// Maximum number of lines that the list requests for suspects.
const SUSPECTS_WANTED: usize = 2;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FindingsState {
    pub selected: Option<Arc<str>>,
    pub offset: usize,
}

impl FindingsState {
    /// Returns the selected finding and its index, unless the finding is no longer reported.
    pub fn selected_of<'a>(&self, findings: &'a [Finding]) -> Option<(usize, &'a Finding)> {
        let id = self.selected.as_ref()?;
        let mut findings = findings.iter().enumerate();
        findings.find(|(_, finding)| finding.id == *id)
    }

    /// Selects the finding at index `at`, or the last finding if there are fewer findings.
    pub fn select(&mut self, at: usize, findings: &[Finding]) {
        let finding = findings.get(at).or(findings.last());
        self.selected = finding.map(|finding| Arc::clone(&finding.id));
    }
}

/// Returns the number of lines for findings, alarms, errors and unavailable values, and the number of lines for
/// suspects and undecided rules.
pub fn lines_wanted(screenful: &Screenful, alarms: usize) -> (usize, usize) {
    let errors = usize::from(!screenful.snapshot.errors.is_empty());
    let unavailable = unavailable(&screenful.snapshot, false).len();
    let suspects = screenful.suspects.len().min(SUSPECTS_WANTED);
    let undecided = match suspects {
        0 => screenful.undecided.len(),
        // A suspect's line already says when the rule will decide.
        _ => screenful.undecided.len().min(1),
    };
    (screenful.findings.len() + errors + unavailable + alarms, suspects + undecided)
}

/// Lists why memory values are unavailable and, if memory is unattributed, that processes could not be read. If
/// `is_memory_explained`, omits the reasons for unavailable GPU memory, because the GPU panel shows them.
pub fn unavailable(snapshot: &Snapshot, is_memory_explained: bool) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for gpu in &snapshot.gpus {
        for (figure, reason) in [
            ("memory", &gpu.memory_unavailable),
            ("memory of processes", &gpu.process_memory_unavailable),
        ] {
            let Some(reason) =
                reason.as_ref().filter(|_| !is_memory_explained || figure != "memory")
            else {
                continue;
            };
            let text = format!("{figure} n/a: {}", clean(reason, 400));
            if !notes.iter().any(|note| note.ends_with(&text)) {
                notes.push(format!("GPU {}: {text}", gpu.index));
            }
        }
    }
    let gpus = snapshot.gpus.iter();
    let mut balances = gpus.filter_map(|gpu| snapshot.balance(gpu));
    if balances.any(|balance| balance.notable_bytes().is_some()) {
        notes.extend(snapshot.host.unread_text());
    }
    notes
}

/// Interval, in sample time, at which commands for unchanged findings are requested again.
const REFRESH_SECONDS: f64 = 60.0;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct NextCommands {
    /// The last request: IDs of the findings, the open page, and the time.
    asked: Option<(Vec<Arc<str>>, Option<About>, Time)>,
    steps: HashMap<Arc<str>, NextSteps>,
}

impl NextCommands {
    pub fn fill_in<'f>(&self, findings: impl Iterator<Item = &'f mut Finding>) {
        for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
            if let Some(steps) = self.steps.get(&finding.id) {
                steps.put(finding);
            }
        }
    }

    pub fn first(&self, finding: &Finding) -> Option<&str> {
        let steps = self.steps.get(&finding.id)?;
        steps.commands.first().map(String::as_str)
    }

    /// Returns a request for the commands of the findings and of the open `page`, or `None` if the last request is
    /// still current or there are no unresolved findings.
    pub fn request(
        &mut self,
        screenful: &Screenful,
        page: Option<About>,
    ) -> Option<ReclaimRequest> {
        let findings = screenful.findings.iter().filter(|finding| finding.resolved_at.is_none());
        let ids: Vec<Arc<str>> = findings.map(|finding| Arc::clone(&finding.id)).collect();
        let now = screenful.snapshot.time;
        let is_current = self.asked.as_ref().is_some_and(|(asked, asked_page, at)| {
            let is_recent = now.seconds_since(*at).abs() < REFRESH_SECONDS;
            is_recent && *asked == ids && (page.is_none() || *asked_page == page)
        });
        if is_current || ids.is_empty() {
            return None;
        }
        self.asked = Some((ids, page, now));
        Some(ReclaimRequest::Commands(ObservedSample {
            snapshot: Arc::new(screenful.snapshot.clone()),
            found: screenful.findings.clone(),
        }))
    }

    pub fn receive(&mut self, steps: Vec<(Arc<str>, NextSteps)>) {
        self.steps = steps.into_iter().collect();
    }
}
