//! The page that explains a finding or a process: opened, made anew, scrolled, left.
//!
//! It is the one that `gpumem explain` prints, put together by [`crate::explain`]; it is made anew
//! with each sample and follows its process, not the pid. Where it is is in `layout/page.rs`; it is drawn
//! in `view/page.rs`.

use super::playback;
use crate::explain::{self, KnownSoFar, More};
use crate::model::Snapshot;
use crate::model::finding::Finding;
use crate::report::explain::ExplainReport;
use crate::report::explain::text::{self, PageStyle};
use crate::report::style::Style;
use crate::watch::keys::KeyAction;
use crate::watch::layout::page as place;
use crate::watch::reaping;
use crate::watch::state::page::{About, Page};
use crate::watch::state::{App, Effect, Focus, GONE, HIDDEN, Mode, NO_FINDING};

/// Explains what is selected.
pub fn open(app: &mut App) -> Option<Effect> {
    if app.playback.is_seeking() {
        // What the rules say is of somewhere on the way.
        return app.refuse("seeking; Esc cancels");
    }
    let selected = match app.focus {
        Focus::Findings => app
            .selected_finding()
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
    let styles = PageStyle {
        width: usize::from(place::text(app.area).width),
        style: Style { color: true },
        ascii: app.setup.ascii,
    };
    if let Some(page) = &mut app.page {
        let text = text::page(&page.report, styles);
        page.lines = text.lines().map(str::to_owned).collect();
    }
    scroll_to(app, |offset, _| offset);
}

/// Scrolls the page, or leaves it.
pub fn on_key(app: &mut App, action: Option<KeyAction>) -> Option<Effect> {
    match action? {
        KeyAction::Down => scroll_to(app, |offset, _| offset.saturating_add(1)),
        KeyAction::Up => scroll_to(app, |offset, _| offset.saturating_sub(1)),
        KeyAction::PageDown => scroll_to(app, usize::saturating_add),
        KeyAction::PageUp => scroll_to(app, usize::saturating_sub),
        KeyAction::First => scroll_to(app, |_, _| 0),
        KeyAction::Last => scroll_to(app, |_, _| usize::MAX),
        KeyAction::Back | KeyAction::Quit => close(app),
        KeyAction::Reap => return reap_page(app),
        // Whoever reads does not want it to move.
        KeyAction::Pause => return playback::act(app, KeyAction::Pause),
        _ => return None,
    }
    Some(Effect::Draw)
}

/// Changes the offset, given itself and the lines that a screenful has beside one that stays.
fn scroll_to(app: &mut App, change: impl FnOnce(usize, usize) -> usize) {
    let height = usize::from(place::body(app).height);
    if let Some(page) = &mut app.page {
        page.scroll(height, change);
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
        return app.refuse("it is about a GPU; there is no process to kill");
    };
    let key = app.row_of(who).filter(|_| page.gone.is_none());
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

/// The process of a finding; its GPU where it is about no process, or about one that cannot be seen.
fn about_finding(app: &App, finding: &Finding) -> Option<About> {
    let process = finding.process.as_ref().map(|process| process.identity);
    match process.filter(|who| newest(app).is_some_and(|last| explain::is_there(*who, last))) {
        Some(who) => Some(About::Process(who)),
        None => finding.gpus.first().map(|gpu| About::Gpu(gpu.index)),
    }
}

/// The sample that a page opens with. It is the last that the engine has judged, but for a screen that
/// was stepped back, whose page is of what it shows until the next sample comes.
fn newest(app: &App) -> Option<&Snapshot> {
    app.screenful.as_ref().map(|screenful| &screenful.snapshot)
}

/// The page about what is in `last`; `None` where it is not.
fn report(
    app: &App,
    about: About,
    asked: Option<&Finding>,
    last: &Snapshot,
) -> Option<ExplainReport> {
    let known = KnownSoFar {
        engine: &app.judged.engine,
        courses: &app.judged.courses,
        last,
        needed: app.judged.engine.settings().longest(),
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
