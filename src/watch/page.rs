//! The findings as a list with a selection, and the page that explains one of them or a process.
//!
//! The page is the one that `gpumem explain` prints, put together by [`crate::explain`]; it is made anew
//! with each sample and follows its process, not the pid. The list is drawn in `view/findings.rs`, the
//! page in `view/page.rs`.

use std::sync::Arc;

use super::app::{App, Effect, Focus, Mode, NOTHING_SEEN};
use super::keys::Action;
use super::picture::RowKey;
use super::view::{findings, page as view};
use super::{play, reaping};
use crate::explain::{self, KnownSoFar, More};
use crate::model::finding::Finding;
use crate::model::{Identity, Snapshot, Time};
use crate::report::explain::ExplainReport;
use crate::report::explain::text::{self, PageStyle};
use crate::report::style::Style;

/// Why a key about the findings does nothing.
pub(super) const NOTHING_FOUND: &str = "nothing was found";
/// Why a key about the selected finding does nothing.
const NO_FINDING: &str = "no finding is selected; j or k selects one";
/// Why x does nothing about a process that is no more.
const GONE: &str = "the process is gone; there is nobody to end";
/// And about one that the table does not show.
const HIDDEN: &str = "the table does not show the process; show all, then press x again";

/// What a page is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A process, whatever becomes of its number.
    Process(Identity),
    /// A GPU, by NVML's index.
    Gpu(u32),
}

/// A page of explanation.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// What it is about.
    pub about: About,
    /// Its lines as [`Style`] colours them, which [`pieces`](crate::report::style::pieces) takes apart.
    pub lines: Vec<String>,
    /// Lines that are scrolled away.
    pub offset: usize,
    /// The time of the sample that it is of.
    pub time: Option<Time>,
    /// When it was missed first; the page stays what it was before.
    pub gone: Option<Time>,
    // What was asked about comes first.
    asked: Option<Finding>,
    report: ExplainReport,
}

/// Explains what is selected.
pub fn open(app: &mut App) -> Option<Effect> {
    if app.play.is_seeking() {
        // What the rules say is of somewhere on the way.
        return app.refuse("it is on its way to another time; Esc stops it");
    }
    let selected = match app.focus {
        Focus::Findings => selected_finding(app)
            .and_then(|(_, finding)| Some((about_finding(app, finding)?, Some(finding.clone())))),
        Focus::Table => app.subject().map(|subject| {
            let about = About::Process(subject.row.key.identity);
            (about, subject.finding.cloned())
        }),
    };
    let Some((about, asked)) = selected else {
        return app.refuse(match app.focus {
            Focus::Findings => NO_FINDING,
            Focus::Table => "no process is selected; j or k selects one",
        });
    };
    let report = newest(app).and_then(|last| report(app, about, asked.as_ref(), last));
    let Some(report) = report else {
        return app.refuse("it is not in this sample");
    };
    app.page = Some(Page {
        about,
        lines: Vec::new(),
        offset: 0,
        time: report.time,
        gone: None,
        asked,
        report,
    });
    app.mode = Mode::Page;
    lay_out(app);
    Some(Effect::Draw)
}

/// Makes the open page anew after the engine has judged `newest`.
pub fn renew(app: &mut App, newest: &Snapshot) -> Option<Effect> {
    let page = app.page.as_ref()?;
    let report = report(app, page.about, page.asked.as_ref(), newest);
    if let Some(page) = &mut app.page {
        match report {
            Some(report) => {
                page.time = report.time;
                page.gone = None;
                page.report = report;
            }
            None => page.gone = page.gone.or(Some(newest.time)),
        }
    }
    lay_out(app);
    Some(Effect::Draw)
}

/// Breaks the open page's lines for the screen as it is now.
pub fn lay_out(app: &mut App) {
    let look = PageStyle {
        width: usize::from(view::text(app.area).width),
        style: Style { color: true },
        ascii: app.setup.ascii,
    };
    if let Some(page) = &mut app.page {
        let text = text::page(&page.report, look);
        page.lines = text.lines().map(str::to_owned).collect();
    }
    scroll_to(app, |offset, _| offset);
}

/// What is to be said above the page: that its process is gone, or that it is of another time than the
/// rest of the screen.
pub fn notices(app: &App) -> Vec<String> {
    let mut notices = Vec::new();
    let Some(page) = &app.page else {
        return notices;
    };
    if let Some(gone) = page.gone {
        notices.push(format!("gone since {}: as it was", view::clock(gone)));
        return notices;
    }
    let judged = app.engine.history().last_time();
    if let (Some(of), Some(judged)) = (page.time, judged.filter(|time| page.time != Some(*time))) {
        notices.push(format!(
            "of the sample of {}; what the rules say is of {}",
            view::clock(of),
            view::clock(judged)
        ));
    } else if let (Some(of), Some(picture)) = (page.time, &app.picture)
        && picture.snapshot.time != of
    {
        notices.push(format!(
            "of the newest sample, {}; the screen behind shows {}",
            view::clock(of),
            view::clock(picture.snapshot.time)
        ));
    }
    notices
}

/// Whether the open page is about a process that is still there.
pub fn has_subject(app: &App) -> bool {
    let is_process = |page: &Page| matches!(page.about, About::Process(_)) && page.gone.is_none();
    app.page.as_ref().is_some_and(is_process)
}

/// Scrolls the page, or leaves it.
pub fn on_key(app: &mut App, action: Option<Action>) -> Option<Effect> {
    match action? {
        Action::Down => scroll_to(app, |offset, _| offset.saturating_add(1)),
        Action::Up => scroll_to(app, |offset, _| offset.saturating_sub(1)),
        Action::PageDown => scroll_to(app, usize::saturating_add),
        Action::PageUp => scroll_to(app, usize::saturating_sub),
        Action::First => scroll_to(app, |_, _| 0),
        Action::Last => scroll_to(app, |_, _| usize::MAX),
        Action::Back | Action::Quit => close(app),
        Action::Reap => return reap_page(app),
        // Whoever reads does not want it to move.
        Action::Pause => return play::act(app, Action::Pause),
        _ => return None,
    }
    Some(Effect::Draw)
}

/// Changes the offset, given itself and the lines that a screenful has beside one that stays.
fn scroll_to(app: &mut App, change: impl FnOnce(usize, usize) -> usize) {
    let height = usize::from(view::body(app).height);
    if let Some(page) = &mut app.page {
        let last = page.lines.len().saturating_sub(height);
        let step = height.saturating_sub(1).max(1);
        page.offset = change(page.offset, step).min(last);
    }
}

fn close(app: &mut App) {
    app.page = None;
    app.mode = Mode::Main;
}

/// Shows how the process that the page is about would be ended.
fn reap_page(app: &mut App) -> Option<Effect> {
    let page = app.page.as_ref()?;
    let About::Process(who) = page.about else {
        return app.refuse("it is about a GPU; there is no process to end");
    };
    let key = row_of(app, who).filter(|_| page.gone.is_none());
    let Some(key) = key else {
        return app.refuse(GONE);
    };
    if !app.select_row(Some(key)) {
        // A plan must not be about whoever else is selected.
        return app.refuse(HIDDEN);
    }
    close(app);
    app.focus = Focus::Table;
    reaping::open_row(app, key).or(Some(Effect::Draw))
}

/// From the table to the findings, where there are any.
pub fn enter_findings(app: &mut App) -> Option<Effect> {
    let Some(picture) = &app.picture else {
        return app.refuse(NOTHING_SEEN);
    };
    let findings = &picture.findings;
    let own = app.subject().and_then(|subject| subject.finding);
    let at = own.and_then(|own| findings.iter().position(|it| it.id == own.id));
    let at = at.or_else(|| selected_finding(app).map(|(at, _)| at));
    if findings.is_empty() {
        return app.refuse(NOTHING_FOUND);
    }
    app.focus = Focus::Findings;
    select_finding(app, at.unwrap_or(0));
    Some(Effect::Draw)
}

/// Moves in the findings, where that is what the action does there.
pub fn act_on_findings(app: &mut App, action: Action) -> Option<Effect> {
    let step = findings::window(app).map_or(1, |window| window.shown.max(1));
    match action {
        Action::Down => move_by(app, 1),
        Action::Up => move_by(app, -1),
        Action::PageDown => move_by(app, step as isize),
        Action::PageUp => move_by(app, -(step as isize)),
        Action::First => select_finding(app, 0),
        Action::Last => select_finding(app, usize::MAX),
        Action::Open => return open(app),
        Action::SwitchFocus | Action::Back => app.focus = Focus::Table,
        Action::Reap => {
            // Where there is nobody to end, least of all is it who was selected.
            let key = subject_of_finding(app);
            let is_listed = app.select_row(key);
            let is_about_gpu = selected_finding(app).map(|(_, it)| it.process.is_none());
            return match (key, is_about_gpu) {
                (Some(key), _) if is_listed => reaping::open_row(app, key),
                (Some(_), _) => app.refuse(HIDDEN),
                (None, None) => app.refuse(NO_FINDING),
                (None, Some(true)) => app.refuse("it is about a GPU; there is no process to end"),
                (None, Some(false)) => app.refuse(GONE),
            };
        }
        _ => return None,
    }
    Some(Effect::Draw)
}

/// The first row of the process that the selected finding is about, shown rows before hidden ones;
/// `None` where it is about a GPU, or its process is not in the sample.
pub fn subject_of_finding(app: &App) -> Option<RowKey> {
    let (_, finding) = selected_finding(app)?;
    row_of(app, finding.process.as_ref()?.identity)
}

/// The selected finding and its place; `None` where it is no more.
pub fn selected_finding(app: &App) -> Option<(usize, &Finding)> {
    let id = app.finding.as_ref()?;
    let findings = app.picture.as_ref()?.findings.iter().enumerate();
    let mut findings = findings.filter(|(_, finding)| finding.id == *id);
    findings.next()
}

/// Selects a finding by its place, or the last one, and its process's row with it.
pub fn select_finding(app: &mut App, at: usize) {
    let Some(picture) = &app.picture else {
        return;
    };
    let at = at.min(picture.findings.len().saturating_sub(1));
    app.finding = picture
        .findings
        .get(at)
        .map(|finding| Arc::clone(&finding.id));
    if let Some(window) = findings::window(app) {
        app.findings_offset = window.first;
    }
    app.select_row(subject_of_finding(app));
}

/// Selects `steps` findings on. The first step after a finding has ceased selects the first that is seen.
fn move_by(app: &mut App, steps: isize) {
    let at = match selected_finding(app) {
        Some((at, _)) => at.saturating_add_signed(steps),
        None => findings::window(app).map_or(0, |window| window.first),
    };
    select_finding(app, at);
}

/// The process of a finding; its GPU where it is about no process, or about one that cannot be seen.
fn about_finding(app: &App, finding: &Finding) -> Option<About> {
    let process = finding.process.as_ref().map(|process| process.identity);
    match process.filter(|who| newest(app).is_some_and(|last| explain::is_there(*who, last))) {
        Some(who) => Some(About::Process(who)),
        None => finding.gpus.first().map(|gpu| About::Gpu(gpu.index)),
    }
}

fn row_of(app: &App, who: Identity) -> Option<RowKey> {
    let rows = &app.picture.as_ref()?.rows;
    let shown = app.listing.lines.iter();
    let shown = shown.filter_map(|line| rows.get(line.row));
    let mut rows = shown.chain(rows);
    rows.find(|row| row.key.identity == who).map(|row| row.key)
}

/// The sample that a page opens with. It is the last that the engine has judged, but for a screen that
/// was stepped back, whose page is of what it shows until the next sample comes.
fn newest(app: &App) -> Option<&Snapshot> {
    app.picture.as_ref().map(|picture| &picture.snapshot)
}

/// The page about what is in `last`; `None` where it is not.
fn report(
    app: &App,
    about: About,
    asked: Option<&Finding>,
    last: &Snapshot,
) -> Option<ExplainReport> {
    let known = KnownSoFar {
        engine: &app.engine,
        courses: &app.courses,
        last,
        needed: app.engine.settings().longest(),
        more: match app.setup.replay {
            Some(_) => More::Nowhere,
            None => More::ByWaiting,
        },
    };
    match about {
        About::Process(who) => {
            explain::is_there(who, last).then(|| explain::process(known, who.pid, asked))
        }
        About::Gpu(index) => {
            let place = last.gpus.iter().position(|gpu| gpu.index == index)?;
            Some(explain::gpu(known, place, asked))
        }
    }
}

#[cfg(test)]
mod tests;
