//! The list of findings: which one is selected, and how many lines the list wants.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::finding::Finding;
use crate::model::{Snapshot, Time};
use crate::reclaim::commands::NextSteps;
use crate::reclaim::worker::{ObservedSample, ReclaimRequest};
use crate::watch::state::page::About;
use crate::watch::text::clean;
use crate::watch::view_model::Screenful;

/// The list wants lines for this many suspects; more are listed if there is room. The table marks each suspect.
const SUSPECTS_WANTED: usize = 2;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FindingsState {
    /// The id of the selected finding.
    pub selected: Option<Arc<str>>,
    /// The first visible finding.
    pub offset: usize,
}

impl FindingsState {
    /// The selected finding and its position; `None` if it has ended.
    pub fn selected_of<'a>(&self, findings: &'a [Finding]) -> Option<(usize, &'a Finding)> {
        let id = self.selected.as_ref()?;
        let mut findings = findings.iter().enumerate();
        findings.find(|(_, finding)| finding.id == *id)
    }

    /// Selects the finding at this position, or the last one.
    pub fn select(&mut self, at: usize, findings: &[Finding]) {
        let finding = findings.get(at).or(findings.last());
        self.selected = finding.map(|finding| Arc::clone(&finding.id));
    }
}

/// How many lines the list, the notes and this many alarms want.
pub fn lines_wanted(screenful: &Screenful, alarms: usize) -> usize {
    let errors = usize::from(!screenful.snapshot.errors.is_empty());
    let unavailable = unavailable(&screenful.snapshot, false).len();
    let suspects = screenful.suspects.len().min(SUSPECTS_WANTED);
    let undecided = match suspects {
        0 => screenful.undecided.len(),
        // Suspects already say when their rule decides.
        _ => screenful.undecided.len().min(1),
    };
    let notes = errors + unavailable + suspects + undecided;
    screenful.findings.len() + notes + alarms
}

/// Why figures are not available, each reason once; and which processes could not be read, if memory is held that no
/// known process accounts for. `has_words`: a GPU's own line says why its memory is unavailable.
pub fn unavailable(snapshot: &Snapshot, has_words: bool) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for gpu in &snapshot.gpus {
        for (what, reason) in [
            ("memory", &gpu.memory_unavailable),
            ("memory of processes", &gpu.process_memory_unavailable),
        ] {
            // The GPU's own line says it already.
            let Some(reason) = reason.as_ref().filter(|_| !has_words || what != "memory") else {
                continue;
            };
            let text = format!("{what} n/a: {}", clean(reason, 400));
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
