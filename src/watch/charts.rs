//! Charts of memory and utilization over time: beside or below the table, and on pages.
//!
//! A chart stacks memory by the present verdict on the processes that hold it, with utilization as a line. All charts
//! on a screen cover the same time span, so that the user can compare them. `plot` draws a chart with its axes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use super::gpus::{is_lost, memory_text};
use super::layout::{ChartGrid, Layout};
use super::memory_shares::{MemoryShare, UseVerdict};
use super::state::App;
use super::state::page::About;
use super::text::{self, NOT_AVAILABLE, UNKNOWN, columns};
use super::theme::Styles;
use super::view::bar::share_style;
use super::view::chart::{self, ChartWindow, Layer};
use super::view::plot::{Axis, FindingMark, Plot};
use super::view_model::Subject;
use crate::history::memory_series::{AllSeries, Bucket, MemorySeries};
use crate::model::snapshot::{Gpu, Snapshot};
use crate::report::escape::fit;
use crate::rules::scope::ScopeInput;
use crate::units::{Bytes, Span};

/// Minimum idle time that a title mentions. Most processes have shorter pauses.
const UNUSED_SECONDS: f64 = 60.0;
/// Minimum height of a page with charts, in lines.
const PAGE_ROWS_MIN: u16 = 16;
/// Maximum height of the charts on a page, in lines.
const PAGE_CHART_ROWS: u16 = 12;

#[derive(Clone, Copy, Debug)]
pub enum Charted<'a> {
    Gpu(&'a Gpu),
    Process(Subject<'a>),
}

/// Returns the charts beside or below the table: one for each shown GPU, and one for the selected process. If none is
/// selected or NVML does not list it, the first listed process in the table has the chart instead. If the sample has
/// only one row, its process has no chart, because the chart of the GPU looks the same. If the charts do not all fit,
/// the process is left out. If the GPUs alone do not fit, only the process has a chart.
pub fn shown<'a>(app: &'a App, layout: &Layout) -> Vec<(Rect, Charted<'a>)> {
    let is_listed = |subject: &Subject<'_>| subject.row.is_listed;
    let mut lines = (0..app.table.listing.lines.len()).filter_map(|line| app.subject_at(line));
    let process = app.subject().filter(is_listed).or_else(|| lines.find(is_listed));
    let is_only = app.screenful.as_ref().is_some_and(|screenful| screenful.rows.len() == 1);
    let process = process.filter(|_| !is_only);
    let gpus: Vec<_> = app.shown_gpus().into_iter().map(Charted::Gpu).collect();
    let process: Vec<_> = process.into_iter().map(Charted::Process).collect();
    for charts in [[&gpus[..], &process].concat(), gpus, process] {
        if let Some(grid) = ChartGrid::new(layout.charts, charts.len()) {
            let charts = charts.into_iter().enumerate();
            return charts.map(|(at, chart)| (grid.cell(at), chart)).collect();
        }
    }
    Vec::new()
}

pub fn hit<'a>(app: &'a App, layout: &Layout, at: Position) -> Option<&'a Gpu> {
    shown(app, layout).into_iter().find_map(|(area, charted)| match charted {
        Charted::Gpu(gpu) if area.contains(at) => Some(gpu),
        _ => None,
    })
}

pub fn draw(app: &App, styles: Styles, layout: &Layout, canvas: &mut Buffer) {
    let Some(screenful) = app.screenful.as_ref().filter(|_| !layout.charts.is_empty()) else {
        return;
    };
    let window = window(&app.judged.all_series, &screenful.snapshot);
    for (area, charted) in shown(app, layout) {
        match charted {
            Charted::Gpu(gpu) => draw_gpu(app, gpu, (window, styles), area, canvas),
            Charted::Process(subject) => {
                let title = process_title(&subject, area.width, styles);
                let mark = FindingMark::default();
                draw_process(app, &subject, &title, mark, (window, styles), area, canvas);
            }
        }
    }
}

/// Returns the height of the charts on a page, or 0 if the page is too short for charts and text.
pub fn page_rows(about: About, height: u16) -> u16 {
    let has_charts = matches!(about, About::Process(_) | About::Gpu(_)) && height >= PAGE_ROWS_MIN;
    if has_charts { (height * 2 / 5).min(PAGE_CHART_ROWS) / 2 * 2 } else { 0 }
}

pub fn draw_gpu(
    app: &App,
    gpu: &Gpu,
    (window, styles): (ChartWindow, Styles),
    area: Rect,
    canvas: &mut Buffer,
) {
    let state = match (gpu.memory, &gpu.memory_unavailable) {
        _ if is_lost(gpu) => "lost".to_owned(),
        (None, Some(_)) => format!("memory {NOT_AVAILABLE}"),
        (memory, _) => memory_text(memory),
    };
    let percent = gpu.gpu_percent.map_or(UNKNOWN.to_owned(), |percent| format!("{percent}%"));
    let title = [
        (gpu.index.to_string(), styles.strong()),
        (" ─ ".to_owned(), styles.faint()),
        (state, styles.plain()),
        (" · ".to_owned(), styles.faint()),
        (percent, styles.load()),
    ];
    let total = gpu.memory.map(|memory| memory.total_bytes as f64);
    let axes = [total.map(Axis::share_of), Some(Axis::share_of(100.0))];
    let plot = Plot { window, axes, mark: FindingMark::default(), styles };
    let inside = plot.frame(&title, area, canvas);
    let series = app.judged.all_series.gpu(gpu);
    let buckets = series.map_or(&[][..], MemorySeries::buckets);
    let loads = series.map_or(&[][..], MemorySeries::loads);
    plot.draw(inside, canvas, |columns| {
        let mut rest = chart::memory(buckets, window, columns);
        // The maxima in one column can be from different times, so their sum can exceed the used memory.
        let mut take = |verdict: UseVerdict| {
            let held = held_by(app, gpu, verdict, window, columns);
            let taken = rest.iter_mut().zip(held).map(|(rest, held)| {
                let taken = held?.min((*rest)?);
                *rest = rest.map(|rest| rest - taken);
                Some(taken)
            });
            taken.collect::<Vec<_>>()
        };
        let reclaimable = take(UseVerdict::Reclaimable);
        let suspected = take(UseVerdict::Suspected);
        let layers = vec![
            layer(UseVerdict::InUse, rest, styles),
            layer(UseVerdict::Suspected, suspected, styles),
            layer(UseVerdict::Reclaimable, reclaimable, styles),
        ];
        (layers, chart::utilization(loads, window, columns))
    });
}

fn held_by(
    app: &App,
    gpu: &Gpu,
    verdict: UseVerdict,
    window: ChartWindow,
    columns: u16,
) -> Vec<Option<f64>> {
    let mut sums: Vec<Option<f64>> = vec![None; usize::from(columns)];
    let Some(screenful) = &app.screenful else { return sums };
    for (at, row) in screenful.rows.iter().enumerate() {
        if !row.is_listed || row.verdict != verdict || row.key.gpu != Some(gpu.index) {
            continue;
        }
        let subject = screenful.subject(at);
        let series = subject.and_then(|subject| subject.memory_series(&app.judged.all_series));
        let Some(series) = series else { continue };
        let values = chart::memory(series.buckets(), window, columns);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = value.map(|value| value + sum.unwrap_or(0.0)).or(*sum);
        }
    }
    sums
}

fn layer(verdict: UseVerdict, values: Vec<Option<f64>>, styles: Styles) -> Layer {
    let (share, glyph) = match verdict {
        UseVerdict::InUse => (MemoryShare::InUse, '█'),
        UseVerdict::Suspected => (MemoryShare::Suspected, '▒'),
        UseVerdict::Reclaimable => (MemoryShare::Reclaimable, '■'),
    };
    Layer { glyph, style: share_style(share, styles), values }
}

/// Draws a process's memory and utilization on the GPU and, if there is room, its memory and CPU use on the host.
pub fn draw_process_page(
    app: &App,
    subject: &Subject<'_>,
    host: &MemorySeries,
    styles: Styles,
    area: Rect,
    canvas: &mut Buffer,
) {
    let window = window(&app.judged.all_series, subject.snapshot);
    let finding = subject.finding.filter(|finding| finding.resolved_at.is_none());
    let settings = finding.zip(subject.gpu).and_then(|(finding, gpu)| {
        let mut rules = app.judged.engine.settings().rules().iter();
        let rule = rules.find(|rule| rule.name == finding.rule)?;
        rule.settings_for(&ScopeInput {
            process: subject.process.ok(),
            index: gpu.index,
            held_bytes: subject.used_bytes(),
            snapshot: subject.snapshot,
        })
    });
    let since = finding.map(|finding| finding.since);
    let memory = settings.map(|settings| settings.min_memory.0 as f64).filter(|bytes| *bytes > 0.0);
    let cpu =
        settings.map(|settings| settings.max_cpu_percent.0).filter(|percent| *percent < 100.0);
    let grid = ChartGrid::new(area, 2);
    let cell = |at| grid.map_or(area, |grid| grid.cell(at));
    let title = process_title(subject, cell(0).width, styles);
    let mark = FindingMark { since, thresholds: [memory, None] };
    draw_process(app, subject, &title, mark, (window, styles), cell(0), canvas);
    if grid.is_some() {
        let mark = FindingMark { since, thresholds: [None, cpu] };
        draw_host(subject, host, mark, (window, styles), cell(1), canvas);
    }
}

fn draw_process(
    app: &App,
    subject: &Subject<'_>,
    title: &[(String, Style)],
    mark: FindingMark,
    (window, styles): (ChartWindow, Styles),
    area: Rect,
    canvas: &mut Buffer,
) {
    let series = subject.memory_series(&app.judged.all_series);
    let buckets = chart::past(series.map_or(&[], MemorySeries::buckets), window);
    let total = subject.gpu.and_then(|gpu| gpu.memory).map(|memory| memory.total_bytes as f64);
    let high = || buckets.iter().map(|bucket| bucket.high).max();
    let axis = total.map(Axis::share_of).or_else(|| high().map(Axis::above));
    let plot = Plot { window, axes: [axis, Some(Axis::share_of(100.0))], mark, styles };
    let inside = plot.frame(title, area, canvas);
    plot.draw(inside, canvas, |columns| {
        let layers =
            vec![layer(subject.row.verdict, chart::memory(buckets, window, columns), styles)];
        let loads = series.map_or(&[][..], MemorySeries::loads);
        (layers, chart::utilization(loads, window, columns))
    });
}

fn draw_host(
    subject: &Subject<'_>,
    host: &MemorySeries,
    mark: FindingMark,
    (window, styles): (ChartWindow, Styles),
    area: Rect,
    canvas: &mut Buffer,
) {
    let process = subject.process.ok();
    let rss = process.and_then(|process| process.rss_bytes);
    let cpu = process.and_then(|process| process.cpu_percent);
    let title = [
        ("host ─ ".to_owned(), styles.faint()),
        (rss.map_or(UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string()), styles.plain()),
        (" · CPU ".to_owned(), styles.faint()),
        (cpu.map_or(UNKNOWN.to_owned(), |percent| format!("{percent:.0}%")), styles.load()),
    ];
    let (held, loads) = (chart::past(host.buckets(), window), chart::past(host.loads(), window));
    let max = held.iter().map(|bucket| bucket.high).max();
    let max_load = loads.iter().map(Bucket::mean).fold(0.0, f64::max);
    let plot =
        Plot { window, axes: [max.map(Axis::above), Some(Axis::cores(max_load))], mark, styles };
    let inside = plot.frame(&title, area, canvas);
    plot.draw(inside, canvas, |columns| {
        let memory = chart::memory(held, window, columns);
        let layers = vec![layer(UseVerdict::InUse, memory, styles)];
        (layers, chart::utilization(loads, window, columns))
    });
}

/// Returns the time span of all charts, from the earliest charted sample of a GPU to the displayed sample.
pub fn window(all_series: &AllSeries, snapshot: &Snapshot) -> ChartWindow {
    let gpus = snapshot.gpus.iter();
    let firsts = gpus.filter_map(|gpu| {
        let series = all_series.gpu(gpu)?;
        let held = series.buckets().first().map(|bucket| bucket.since);
        let used = series.loads().first().map(|load| load.since);
        held.into_iter().chain(used).min()
    });
    ChartWindow::new(firsts.min(), snapshot.time)
}

/// Returns the title of a process's chart. The least important parts are omitted if the title is too long.
fn process_title(subject: &Subject<'_>, width: u16, styles: Styles) -> Vec<(String, Style)> {
    /// Minimum number of columns for a command.
    const COMMAND_MIN: u16 = 12;
    let unknown = || UNKNOWN.to_owned();
    let used = subject.used_bytes().map_or_else(unknown, |used| Bytes(used).to_string());
    let sm = subject.entry.and_then(|entry| entry.sm_percent);
    let sm = sm.map_or_else(unknown, |percent| format!("{percent}%"));
    let idle = subject.idle_seconds.filter(|seconds| *seconds >= UNUSED_SECONDS);
    let mut parts = vec![
        (subject.row.key.identity.pid.to_string(), styles.strong()),
        (String::new(), styles.plain()),
        (" ─ ".to_owned(), styles.faint()),
        (used, styles.plain()),
        (" · SM ".to_owned(), styles.faint()),
        (sm, styles.load()),
    ];
    let mut room = width.saturating_sub(6);
    room = room.saturating_sub(parts.iter().map(|(part, _)| columns(part)).sum());
    let idle = idle.map(|idle| format!(", unused for {}", Span::from_seconds(idle)));
    if let Some(idle) = idle.filter(|idle| columns(idle) <= room) {
        room -= columns(&idle);
        parts.push((idle, styles.plain()));
    }
    if room > COMMAND_MIN {
        let command = text::row_command(subject, room - 1);
        parts[1].0 = format!(" {}", fit(&command, usize::from(room - 1)));
    }
    parts
}
