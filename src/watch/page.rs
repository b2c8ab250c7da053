//! Pages about a process or a GPU, and pages with an environment or totals.
//!
//! [`crate::explain`] builds the explanations, as for `gpumem explain`. A page follows the process,
//! not the PID, which can be reused.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::charts;
use super::keys::KeyAction;
use super::reaping;
use super::state::page::{About, Page, PageContent};
use super::state::{App, Effect, Focus, GONE, HIDDEN, Mode, NO_FINDING, NOTHING_SEEN};
use super::text::{MESSAGE_CHARS, clean, clock, columns, wrap};
use super::theme::Styles;
use super::view::line_writer::LineWriter;
use super::view_model::{Subject, badge};
use crate::explain::page::ExplainPage;
use crate::explain::{self, ExplainInput, More};
use crate::history::memory_series::MemorySeries;
use crate::model::field::GROUPED;
use crate::model::finding::{Finding, OwnCommands};
use crate::model::row::ProcessRow;
use crate::model::totals::totals;
use crate::model::{Identity, Snapshot, Time};
use crate::reclaim::commands;
use crate::reclaim::commands::CommandUser;
use crate::reclaim::worker::ReclaimRequest;
use crate::report::environment;
use crate::report::explain::{PageStyle, text as explain_text};
use crate::report::style::{Emphasis, Style, pieces};
use crate::report::totals as report_totals;

const MARGIN: u16 = 1;
/// Minimum width of the text between margins. A narrower page has no margins.
const WIDTH_MIN: u16 = 40;

const GONE_PAGE: &str = "the process is gone; there is no environment to read";

pub fn open(app: &mut App) -> Option<Effect> {
    if app.playback.is_seeking() {
        // During a seek, the rules have judged only part of the samples.
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
    open_about(app, about, asked)
}

pub fn open_about(app: &mut App, about: About, asked: Option<Finding>) -> Option<Effect> {
    if app.playback.is_seeking() {
        return app.refuse("seeking; Esc cancels");
    }
    let report = newest(app).and_then(|last| report(app, about, asked.as_ref(), last));
    let Some(report) = report else {
        return app.refuse("it is not in this sample");
    };
    let time = report.time;
    show(app, about, time, asked, PageContent::Report(Box::new(report)));
    Some(Effect::Draw)
}

fn show(
    app: &mut App,
    about: About,
    time: Option<Time>,
    asked: Option<Finding>,
    content: PageContent,
) {
    let host = host(app, about);
    let lines = Vec::new();
    app.page = Some(Page { about, lines, offset: 0, time, gone: None, asked, content, host });
    app.mode = Mode::Page;
    lay_out(app);
}

/// Opens the environment of the process on the open page, or of the selected process. The worker reads the
/// environment of a local process; recordings and remote hosts supply only a few variables.
pub fn open_environment(app: &mut App) -> Option<Effect> {
    let of_page = app.page.as_ref().map(|page| (page.about.process(), page.gone));
    let identity = match of_page {
        Some((_, Some(_))) => return app.refuse(GONE_PAGE),
        Some((identity, None)) => identity,
        None => app.subject().map(|subject| subject.row.key.identity),
    };
    let Some(identity) = identity else {
        return app.refuse("no process is selected; j or k selects one");
    };
    let last = newest(app)?;
    let mut processes = last.processes.iter();
    let process = processes.find(|process| process.identity() == identity);
    let is_known =
        identity.is_certain() && process.is_some_and(|process| process.unresolved.is_none());
    let Some(process) = process.filter(|_| is_known) else {
        return app.refuse("the process is not identified; its environment cannot be read");
    };
    let (time, mut title) = (Some(last.time), format!("environment of {}", identity.pid));
    let (variables, effect) = if app.is_local() {
        (None, Effect::Reclaim(ReclaimRequest::Environment(identity)))
    } else {
        title.push_str(", as far as it was recorded");
        let recorded = process.environment.iter().flat_map(|variables| variables.iter());
        let recorded = recorded.map(|(name, value)| (name.to_string(), value.to_string()));
        (Some(Ok(recorded.collect())), Effect::Draw)
    };
    let content = PageContent::Environment { title, variables };
    show(app, About::Environment(identity), time, None, content);
    Some(effect)
}

pub fn fill_in_commands(app: &mut App) {
    let Some(page) = &app.page else { return };
    let updated = newest(app).and_then(|last| report(app, page.about, page.asked.as_ref(), last));
    if let (Some(updated), Some(page)) = (updated, &mut app.page) {
        page.time = updated.time;
        page.content = PageContent::Report(Box::new(updated));
        lay_out(app);
    }
}

pub fn set_environment(
    app: &mut App,
    identity: Identity,
    read: Result<Vec<(String, String)>, String>,
) -> Option<Effect> {
    let page = app.page.as_mut()?;
    if page.about != About::Environment(identity) {
        return None;
    }
    if let PageContent::Environment { variables, .. } = &mut page.content {
        *variables = Some(read);
    }
    lay_out(app);
    Some(Effect::Draw)
}

pub fn open_totals(app: &mut App) -> Option<Effect> {
    let Some(content) = totals_shown(app) else {
        return app.refuse(NOTHING_SEEN);
    };
    let time = app.shown_time();
    show(app, About::Totals, time, None, content);
    Some(Effect::Draw)
}

pub fn renew_totals(app: &mut App) -> Option<Effect> {
    if app.page.as_ref()?.about != About::Totals {
        return None;
    }
    let (time, content) = (app.shown_time(), totals_shown(app)?);
    if let Some(page) = &mut app.page {
        page.time = time;
        page.content = content;
    }
    lay_out(app);
    Some(Effect::Draw)
}

fn totals_shown(app: &App) -> Option<PageContent> {
    let screenful = app.screenful.as_ref()?;
    let lines = app.table.listing.lines.iter();
    let subjects = lines.filter_map(|line| screenful.subject(line.row));
    let rows: Vec<ProcessRow<'_>> = subjects.map(|subject| *subject).collect();
    let is_reclaimable = |row: &ProcessRow<'_>| row.finding.is_some_and(Finding::is_reclaimable);
    let groups = GROUPED.map(|by| (by, totals(&rows, by, is_reclaimable)));
    let title = match app.table.choice.limits() {
        Some(limits) => format!("totals of the rows that are shown ({limits})"),
        None => "totals".to_owned(),
    };
    Some(PageContent::Totals { title, groups: groups.into() })
}

pub fn renew(app: &mut App, newest: &Snapshot) -> Option<Effect> {
    let page = app.page.as_ref()?;
    let is_there = match page.about {
        // Totals need the table's new rows, which are computed later.
        About::Totals => return None,
        // The worker reads an environment only once.
        About::Environment(identity) => Some(None).filter(|_| explain::is_there(identity, newest)),
        about => report(app, about, page.asked.as_ref(), newest).map(Some),
    };
    let host = host(app, page.about);
    if let Some(page) = &mut app.page {
        page.host = host;
        match is_there {
            Some(report) => {
                page.gone = None;
                if let Some(report) = report {
                    page.time = report.time;
                    page.content = PageContent::Report(Box::new(report));
                }
            }
            None => page.gone = page.gone.or(Some(newest.time)),
        }
    }
    lay_out(app);
    Some(Effect::Draw)
}

/// Returns the host memory and CPU use of the page's process, from the samples in the timeline.
fn host(app: &App, about: About) -> MemorySeries {
    let About::Process(identity) = about else {
        return MemorySeries::default();
    };
    let samples = app.timeline.samples_of(identity);
    MemorySeries::from_samples(samples.map(|(time, process)| {
        (time, process.rss_bytes, process.cpu_percent.map(|percent| percent.round() as u32))
    }))
}

/// Returns the row of a process: the selected row if it belongs to the process, otherwise the first row that does.
fn charted(app: &App, identity: Identity) -> Option<Subject<'_>> {
    let screenful = app.screenful.as_ref()?;
    let selected = app.subject().filter(|subject| subject.row.key.identity == identity);
    let first = || screenful.rows.iter().position(|row| row.key.identity == identity);
    selected.or_else(|| screenful.subject(first()?))
}

fn text_area(area: Rect) -> Rect {
    let margin = if area.width >= WIDTH_MIN + 2 * MARGIN { MARGIN } else { 0 };
    Rect {
        x: area.x + margin,
        y: area.y.saturating_add(1),
        width: area.width - 2 * margin,
        height: area.height.saturating_sub(2),
    }
}

/// Returns the areas of the answer, the charts and the text, below the notice.
fn parts(app: &App, area: Rect) -> [Rect; 3] {
    let text = text_area(area);
    let notice = text.height.min(notice(app).is_some().into());
    let answer = (answer(app).len() as u16).min(text.height - notice);
    let above = notice + answer;
    // A process that is gone has no charts, so the text gets their lines.
    let has_charts = |about| match about {
        About::Process(identity) => charted(app, identity).is_some(),
        _ => true,
    };
    let page = app.page.as_ref().filter(|page| has_charts(page.about));
    let charts = page.map_or(0, |page| charts::page_rows(page.about, text.height - above));
    let part = |from: u16, height| Rect { y: text.y.saturating_add(from), height, ..text };
    [part(notice, answer), part(above, charts), part(above + charts, text.height - above - charts)]
}

/// Returns the verdict on the page's process, and the keys and commands that free its memory.
fn answer(app: &App) -> Vec<Vec<(String, ratatui::style::Style)>> {
    let styles = Styles { theme: app.theme, has_color: app.setup.has_color };
    let Some(Page {
        about: About::Process(identity), content: PageContent::Report(report), ..
    }) = &app.page
    else {
        return Vec::new();
    };
    let mut findings = report.findings.iter();
    let finding = findings.find(|finding| finding.resolved_at.is_none());
    let suspect = charted(app, *identity).and_then(|subject| subject.suspect);
    let (mark, style, message) = match (finding, suspect) {
        (Some(finding), _) => {
            (badge(finding), styles.badge(finding.severity), finding.message.as_str())
        }
        (None, Some(suspect)) => (suspect.mark.to_string(), styles.suspected(), &*suspect.message),
        (None, None) => ("no finding".to_owned(), styles.strong(), ""),
    };
    let message = clean(message, MESSAGE_CHARS);
    let width = text_area(app.area).width.saturating_sub(columns(&mark) + 1);
    let mut verdict: Vec<_> = wrap(&message, width, 2)
        .into_iter()
        .map(|text| {
            vec![(" ".repeat(mark.len() + 1), styles.plain()), (text.into(), styles.plain())]
        })
        .collect();
    match verdict.first_mut() {
        Some(first) => first[0] = (format!("{mark} "), style),
        None => verdict.push(vec![(mark, style)]),
    }
    let commands = [("R", &report.own_commands.release), ("x", &report.own_commands.kill)];
    let mut line = Vec::new();
    for (key, command) in commands {
        let Some(command) = command else { continue };
        if !line.is_empty() {
            line.push((" · ".to_owned(), styles.faint()));
        }
        line.push((key.to_owned(), styles.key()));
        line.push((format!(" {}", clean(command, MESSAGE_CHARS)), styles.plain()));
    }
    verdict.extend((!line.is_empty()).then_some(line));
    verdict
}

fn body(app: &App, area: Rect) -> Rect {
    parts(app, area)[2]
}

/// Returns a notice if the process or GPU is gone, or if the page describes another time than the findings or the
/// displayed sample.
fn notice(app: &App) -> Option<String> {
    let page = app.page.as_ref()?;
    if let Some(gone) = page.gone {
        return Some(format!("gone since {}; this is its last state", clock(gone)));
    }
    let time = page.time?;
    let differs = |other: Option<Time>| other.filter(|other| *other != time).map(clock);
    if let Some(judged) = differs(app.judged.engine.history().last_time()) {
        return Some(format!("as of {}; findings of {judged}", clock(time)));
    }
    let shown = differs(app.shown_time())?;
    Some(format!("as of {}; the screen shows {shown}", clock(time)))
}

/// Formats the range of visible lines, unless all are visible.
pub fn position(app: &App) -> String {
    let height = usize::from(body(app, app.area).height);
    match &app.page {
        Some(page) if page.lines.len() > height => {
            let first = page.offset.min(page.lines.len() - height);
            format!("{}-{} of {}", first + 1, first + height, page.lines.len())
        }
        _ => String::new(),
    }
}

pub fn lay_out(app: &mut App) {
    let (width, style) = (usize::from(text_area(app.area).width), Style { color: true });
    if let Some(page) = &mut app.page {
        let text = match &page.content {
            PageContent::Report(report) => {
                explain_text(report, PageStyle { width, style, ascii: app.setup.ascii })
            }
            PageContent::Environment { title, variables } => {
                environment::page(title, variables.as_ref(), width, style)
            }
            PageContent::Totals { title, groups } => {
                report_totals::page(title, groups, width, style)
            }
        };
        page.lines = text.lines().map(str::to_owned).collect();
    }
    scroll_to(app, |offset, _| offset);
}

pub fn on_key(app: &mut App, action: KeyAction) -> Option<Effect> {
    match action {
        KeyAction::Down => scroll_to(app, |offset, _| offset.saturating_add(1)),
        KeyAction::Up => scroll_to(app, |offset, _| offset.saturating_sub(1)),
        KeyAction::PageDown => scroll_to(app, usize::saturating_add),
        KeyAction::PageUp => scroll_to(app, usize::saturating_sub),
        KeyAction::First => scroll_to(app, |_, _| 0),
        KeyAction::Last => scroll_to(app, |_, _| usize::MAX),
        KeyAction::Back | KeyAction::Quit => close(app),
        KeyAction::Reap => return reap_page(app, false),
        KeyAction::Release => return reap_page(app, true),
        KeyAction::Environment => return open_environment(app),
        KeyAction::Totals => return open_totals(app),
        _ => return None,
    }
    Some(Effect::Draw)
}

/// Scrolls the page. `change` computes the new offset from the current offset and the number of lines that PgDn
/// scrolls.
fn scroll_to(app: &mut App, change: impl FnOnce(usize, usize) -> usize) {
    let height = usize::from(body(app, app.area).height);
    if let Some(page) = &mut app.page {
        let last = page.lines.len().saturating_sub(height);
        page.offset = change(page.offset, height.saturating_sub(1).max(1)).min(last);
    }
}

fn close(app: &mut App) {
    app.page = None;
    app.mode = Mode::Main;
}

fn reap_page(app: &mut App, release: bool) -> Option<Effect> {
    let page = app.page.as_ref()?;
    let Some(identity) = page.about.process() else {
        return app.refuse("this page is not about a process; select one to kill it");
    };
    let Some(key) = app.row_of(identity).filter(|_| page.gone.is_none()) else {
        return app.refuse(GONE);
    };
    if !app.select_row(Some(key)) {
        // Do not make a plan for the process that happens to be selected.
        return app.refuse(HIDDEN);
    }
    close(app);
    app.focus = Focus::Table;
    reaping::open_row(app, key, release).or(Some(Effect::Draw))
}

/// Returns the finding's process. If the finding has no process or the displayed sample does not contain the process,
/// returns the finding's first GPU.
fn about_finding(app: &App, finding: &Finding) -> Option<About> {
    let process = finding.process.as_ref().map(|process| process.identity);
    match process
        .filter(|identity| newest(app).is_some_and(|last| explain::is_there(*identity, last)))
    {
        Some(identity) => Some(About::Process(identity)),
        None => finding.gpus.first().map(|gpu| About::Gpu(gpu.index)),
    }
}

fn newest(app: &App) -> Option<&Snapshot> {
    app.screenful.as_ref().map(|screenful| &screenful.snapshot)
}

/// Returns the page about a process or a GPU. Returns `None` if the process or GPU is missing from `last`, or if
/// `about` is another kind of page.
fn report(
    app: &App,
    about: About,
    asked: Option<&Finding>,
    last: &Snapshot,
) -> Option<ExplainPage> {
    let command_user = match app.setup.me.uid.filter(|_| app.is_local()) {
        Some(uid) => CommandUser::User(uid),
        None if app.setup.host.is_some() => CommandUser::Elsewhere,
        None => CommandUser::Owner,
    };
    let inputs = ExplainInput {
        engine: &app.judged.engine,
        all_series: &app.judged.all_series,
        last,
        needed: app.judged.engine.settings().longest(),
        more: match app.setup.replay {
            Some(_) => More::Nowhere,
            None => More::ByWaiting,
        },
        commands: &|findings, process| {
            app.next_commands.fill_in(findings.iter_mut());
            let mut commands =
                commands::own_commands(app.judged.engine.settings(), process, last, command_user);
            if let Some(host) = &app.setup.host {
                let on_host = |command: Option<String>| command.map(|command| host.typed(&command));
                commands = OwnCommands {
                    release: on_host(commands.release),
                    kill: on_host(commands.kill),
                };
            }
            commands
        },
    };
    match about {
        About::Process(identity) => {
            explain::is_there(identity, last).then(|| explain::process(inputs, identity.pid, asked))
        }
        About::Environment(_) | About::Totals => None,
        About::Gpu(index) => {
            let position = last.gpus.iter().position(|gpu| gpu.index == index)?;
            Some(explain::gpu(inputs, position, asked))
        }
    }
}

pub fn draw(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let Some(page) = &app.page else {
        return;
    };
    if let Some(notice) = notice(app) {
        LineWriter::new(canvas, text_area(area), 0).text(&notice, styles.caution());
    }
    let [answer_area, above, body] = parts(app, area);
    for (at, line) in (0..answer_area.height).zip(answer(app)) {
        let mut writer = LineWriter::new(canvas, answer_area, at);
        for (text, style) in line {
            writer.text(&text, style);
        }
    }
    match page.about {
        _ if above.is_empty() => {}
        About::Process(identity) => {
            if let Some(subject) = charted(app, identity) {
                charts::draw_process_page(app, &subject, &page.host, styles, above, canvas);
            }
        }
        About::Gpu(index) => {
            let Some(screenful) = &app.screenful else { return };
            let mut gpus = screenful.snapshot.gpus.iter();
            if let Some(gpu) = gpus.find(|gpu| gpu.index == index) {
                let window = charts::window(&app.judged.all_series, &screenful.snapshot);
                charts::draw_gpu(app, gpu, (window, styles), above, canvas);
            }
        }
        About::Environment(_) | About::Totals => {}
    }
    let first = page.offset.min(page.lines.len().saturating_sub(usize::from(body.height)));
    for (line, text) in (0..body.height).zip(page.lines.iter().skip(first)) {
        let mut writer = LineWriter::new(canvas, body, line);
        for (mark, piece) in pieces(text) {
            writer.text(piece, style(mark, styles));
        }
    }
}

fn style(mark: Emphasis, styles: Styles) -> ratatui::style::Style {
    match mark {
        Emphasis::Plain => styles.plain(),
        Emphasis::Heading => styles.heading(),
        Emphasis::Chart => styles.held(),
        Emphasis::Severity(severity) => styles.badge(severity),
    }
}

#[cfg(test)]
mod tests;
