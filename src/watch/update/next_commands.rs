//! Has the worker find what to type about what is found; see `state/next_commands.rs`.

use std::sync::Arc;

use super::page;
use crate::reclaim::commands::NextSteps;
use crate::watch::reclaim_worker::{FoundSample, ReclaimRequest};
use crate::watch::state::next_commands::AskedCommands;
use crate::watch::state::page::PageContent;
use crate::watch::state::{App, Effect};

/// What is to be asked now, if anything.
pub fn request(app: &mut App) -> Option<ReclaimRequest> {
    let screenful = app.screenful.as_ref()?;
    if app.playback.is_seeking() {
        // Of somewhere on the way.
        return None;
    }
    let findings = screenful.findings.iter();
    let findings = findings.filter(|finding| finding.resolved_at.is_none());
    let is_report = |content: &PageContent| matches!(content, PageContent::Report(_));
    let page = app.page.as_ref().filter(|page| is_report(&page.content));
    let now = AskedCommands {
        ids: findings.map(|finding| Arc::clone(&finding.id)).collect(),
        page: page.map(|page| page.about),
        at: screenful.snapshot.time,
    };
    app.next_commands.is_due(now).then(|| {
        ReclaimRequest::Commands(FoundSample {
            snapshot: Arc::new(screenful.snapshot.clone()),
            findings: screenful.findings.clone(),
        })
    })
}

/// Takes in what the worker found.
pub(super) fn receive(app: &mut App, steps: Vec<(Arc<str>, NextSteps)>) -> Option<Effect> {
    app.next_commands.receive(steps);
    page::fill_in_commands(app);
    Some(Effect::Draw)
}
