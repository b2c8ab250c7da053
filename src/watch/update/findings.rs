//! Selection and keys in the list of findings.

use crate::watch::findings::{self, VisibleFindings};
use crate::watch::keys::KeyAction;
use crate::watch::state::{
    App, Effect, Focus, GONE, HIDDEN, NO_FINDING, NOTHING_FOUND, NOTHING_SEEN,
};
use crate::watch::{page, reaping};

pub fn enter(app: &mut App) -> Option<Effect> {
    let Some(screenful) = &app.screenful else {
        return app.refuse(NOTHING_SEEN);
    };
    let findings = &screenful.findings;
    let chosen = app.table.is_chosen().then(|| app.subject()).flatten();
    let selected = chosen.and_then(|subject| subject.finding);
    let at =
        selected.and_then(|selected| findings.iter().position(|finding| finding.id == selected.id));
    let at = at.or_else(|| app.selected_finding().map(|(at, _)| at));
    if findings.is_empty() {
        return app.refuse(NOTHING_FOUND);
    }
    app.focus = Focus::Findings;
    select(app, at.unwrap_or(0));
    Some(Effect::Draw)
}

fn visible(app: &App) -> Option<VisibleFindings> {
    findings::visible(app, &app.layout()?)
}

pub fn act(app: &mut App, action: KeyAction) -> Option<Effect> {
    let step = visible(app).map_or(1, |visible| visible.shown.max(1));
    match action {
        KeyAction::Down => move_by(app, 1),
        KeyAction::Up => move_by(app, -1),
        KeyAction::PageDown => move_by(app, step as isize),
        KeyAction::PageUp => move_by(app, -(step as isize)),
        KeyAction::First => select(app, 0),
        KeyAction::Last => select(app, usize::MAX),
        KeyAction::Open => return page::open(app),
        KeyAction::SwitchFocus | KeyAction::Back => app.focus = Focus::Table,
        KeyAction::Reap | KeyAction::Release => {
            // If the finding is not about a process, the key must not kill the previously selected process.
            let key = app.subject_of_finding();
            let is_listed = app.select_row(key);
            let is_about_gpu = app.selected_finding().map(|(_, finding)| finding.process.is_none());
            return match (key, is_about_gpu) {
                (Some(key), _) if is_listed => {
                    reaping::open_row(app, key, action == KeyAction::Release)
                }
                (Some(_), _) => app.refuse(HIDDEN),
                (None, None) => app.refuse(NO_FINDING),
                (None, Some(true)) => app.refuse("it is about a GPU; there is no process to kill"),
                (None, Some(false)) => app.refuse(GONE),
            };
        }
        _ => return None,
    }
    Some(Effect::Draw)
}

/// Selects the finding at index `at`, or the last finding if there are fewer, and the row of the finding's process.
pub fn select(app: &mut App, at: usize) {
    let Some(screenful) = &app.screenful else {
        return;
    };
    app.findings.select(at, &screenful.findings);
    if let Some(visible) = visible(app) {
        app.findings.offset = visible.first;
    }
    app.select_row(app.subject_of_finding());
}

fn move_by(app: &mut App, steps: isize) {
    let at = match app.selected_finding() {
        Some((at, _)) => at.saturating_add_signed(steps),
        None => visible(app).map_or(0, |visible| visible.first),
    };
    select(app, at);
}
