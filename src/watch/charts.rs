//! Charts of memory and utilization over time, below the table and on pages.
//!
//! All charts on a screen cover the same time span, so that the user can compare them. `plot` draws
//! a chart with its labels.

use crate::watch::text;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gpus::{is_lost, memory_text};
use super::layout::{Form, Layout};
use super::state::App;
use super::state::page::About;
use super::text::{NOT_AVAILABLE, UNKNOWN, columns};
use super::theme::{ChartColor, Styles};
use super::view::chart::{self, ChartWindow};
use super::view::plot::{FindingMark, Plot, Scale};
use super::view_model::{Subject, percent};
use crate::history::memory_series::{AllSeries, Bucket, MemorySeries};
use crate::model::finding::Exhaustion;
use crate::model::snapshot::{Gpu, Snapshot};
use crate::report::escape::fit;
use crate::rules::scope::ScopeInput;
use crate::units::{Bytes, Span};
use crate::watch::layout::{ChartGrid, beside};

/// Minimum idle time that a caption mentions. Most processes have shorter pauses.
const UNUSED_SECONDS: f64 = 60.0;
/// Minimum number of columns for a command in a caption.
const COMMAND_MIN: u16 = 12;
const NAMED: u16 = 15;
/// Minimum height of a page with charts, in lines.
const PAGE_ROWS_MIN: u16 = 16;
/// Maximum height of a row of charts on a page, in lines.
const PAGE_CELL_ROWS: u16 = 9;
/// Minimum width of a page that places four charts in one row.
const PAGE_BESIDE: u16 = 118;
/// Returns the process to chart below the table: the selected process or, if NVML does not list it, the first listed
/// process in the table. Returns `None` if there is no such process, or if the GPU panel shows no cards. The GPUs are
/// charted then.
fn process<'a>(app: &'a App, layout: &Layout) -> Option<Subject<'a>> {
    let is_listed = |subject: &Subject<'_>| subject.row.is_listed;
    let mut lines = (0..app.table.listing.lines.len()).filter_map(|line| app.subject_at(line));
    let is_below_cards = layout.gpu_form == Form::Cards;
    is_below_cards.then(|| app.subject().filter(is_listed).or_else(|| lines.find(is_listed)))?
}

pub fn gpu_grid(app: &App, layout: &Layout) -> Option<ChartGrid> {
    if layout.charts.is_empty() || process(app, layout).is_some() {
        return None;
    }
    ChartGrid::new(layout.charts, app.shown_gpus().len())
}

pub fn draw(app: &App, styles: Styles, layout: &Layout, canvas: &mut Buffer) {
    let Some(screenful) = app.screenful.as_ref().filter(|_| !layout.charts.is_empty()) else {
        return;
    };
    let all_series = &app.judged.all_series;
    let window = window(all_series, &screenful.snapshot);
    let charts = |series| HistoryCharts::new(series, window, styles);
    if let Some(subject) = process(app, layout) {
        charts(subject.memory_series(all_series)).draw_process(&subject, layout.charts, canvas);
    } else if let Some(grid) = gpu_grid(app, layout) {
        for (at, gpu) in app.shown_gpus().into_iter().enumerate() {
            let title = format!("GPU {} ", gpu.index);
            charts(all_series.gpu(gpu)).draw_gpu(gpu, &title, grid.cell(at), canvas);
        }
    }
}

/// Returns the height of the charts on a page, or 0 if the page is too short for charts and text.
pub fn page_rows(about: About, (width, height): (u16, u16)) -> u16 {
    let down = match about {
        _ if height < PAGE_ROWS_MIN => 0,
        About::Process(_) if width < PAGE_BESIDE => 2,
        About::Process(_) | About::Gpu(_) => 1,
        About::Environment(_) | About::Totals => 0,
    };
    down * (height / 2 / down.max(1)).min(PAGE_CELL_ROWS)
}

pub fn draw_gpu_page(app: &App, gpu: &Gpu, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let Some(screenful) = &app.screenful else { return };
    let all_series = &app.judged.all_series;
    let charts =
        HistoryCharts::new(all_series.gpu(gpu), window(all_series, &screenful.snapshot), styles);
    charts.draw_gpu(gpu, &format!("GPU {} ", gpu.index), area, canvas);
}

/// Draws a process's memory and utilization on the GPU, then memory and CPU use on the host.
pub fn draw_process_page(
    app: &App,
    subject: &Subject<'_>,
    host: &MemorySeries,
    styles: Styles,
    area: Rect,
    canvas: &mut Buffer,
) {
    let all_series = &app.judged.all_series;
    let window = window(all_series, subject.snapshot);
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
    let mark = |threshold: Option<f64>| FindingMark {
        since: finding.map(|finding| finding.since),
        threshold: threshold.filter(|threshold| *threshold > 0.0),
    };
    let min_memory = mark(settings.map(|settings| settings.min_memory.0 as f64));
    let cpu =
        settings.map(|settings| settings.max_cpu_percent.0).filter(|percent| *percent < 100.0);
    let cells = match area.width < PAGE_BESIDE {
        true => {
            let height = area.height / 2;
            [Rect { height, ..area }, Rect { y: area.y + height, height, ..area }]
        }
        false => beside(area),
    };
    let charts = |series, marks| HistoryCharts { series, window, styles, marks };
    let gpu = charts(subject.memory_series(all_series), [min_memory, mark(None)]);
    gpu.draw_process(subject, cells[0], canvas);
    charts(Some(host), [mark(None), mark(cpu)]).draw_host(subject, cells[1], canvas);
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

pub struct HistoryCharts<'a> {
    /// `None` if the history contains no sample.
    pub series: Option<&'a MemorySeries>,
    pub window: ChartWindow,
    pub styles: Styles,
    /// Marks on the memory chart and on the utilization chart.
    pub marks: [FindingMark; 2],
}

type Words = (Vec<String>, Option<String>);

impl<'a> HistoryCharts<'a> {
    pub fn new(series: Option<&'a MemorySeries>, window: ChartWindow, styles: Styles) -> Self {
        Self { series, window, styles, marks: [FindingMark::default(); 2] }
    }

    pub fn draw_gpu(&self, gpu: &Gpu, title: &str, area: Rect, canvas: &mut Buffer) {
        let total = gpu.memory.map(|memory| memory.total_bytes);
        let top = total.or_else(|| self.max_bytes());
        let state = match (top, &gpu.memory_unavailable) {
            _ if is_lost(gpu) => " lost".to_owned(),
            (Some(_), _) => String::new(),
            (None, Some(_)) => format!(" {NOT_AVAILABLE}"),
            (None, None) => format!(" {UNKNOWN}"),
        };
        let captions = |quantity: &str, short: &str| {
            vec![
                format!("{title}{quantity}"),
                format!("{title}{short}"),
                title.trim_end().to_owned(),
            ]
        };
        let memory = |width| {
            let now = gpu.memory.map(|memory| {
                let text = memory_text(Some(memory));
                let percent = percent(memory.used_bytes, memory.total_bytes.max(1));
                if columns(&text) + NAMED <= width { text } else { format!("{percent:.0}%") }
            });
            (captions(&format!("memory{state}"), &format!("mem{state}")), now)
        };
        let work = |_| {
            let now = gpu.gpu_percent.map(|percent| format!("{percent}%"));
            (captions("utilization", "util"), now)
        };
        let scales = [top.map(Scale::bytes), Some(Scale::percent())];
        self.draw(scales, memory, gpu.gpu_percent.is_some(), work, area, canvas);
    }

    fn draw_process(&self, subject: &Subject<'_>, area: Rect, canvas: &mut Buffer) {
        let used = subject.entry.and_then(|entry| entry.used_bytes);
        let sm = subject.entry.and_then(|entry| entry.sm_percent);
        let exhausted_in = exhaustion(subject).map(|forecast| Span::from_seconds(forecast.seconds));
        let idle = subject.idle_seconds.filter(|seconds| *seconds >= UNUSED_SECONDS);
        let words = |quantity: &str, width, now: Option<String>, more: Option<String>| {
            let now = match (now, more) {
                (Some(now), Some(more)) => {
                    let both = format!("{now}, {more}");
                    Some(if columns(&both) + NAMED <= width { both } else { now })
                }
                (now, _) => now,
            };
            let room = width.saturating_sub(now.as_deref().map_or(0, columns) + 2);
            (process_captions(subject, quantity, room), now)
        };
        let memory = |width| {
            let full = exhausted_in.map(|span| format!("GPU full in {span}"));
            words("memory", width, used.map(|used| Bytes(used).to_string()), full)
        };
        let work = |width| {
            let unused = idle.map(|idle| format!("unused for {}", Span::from_seconds(idle)));
            words("SM", width, sm.map(|percent| format!("{percent}%")), unused)
        };
        let scale = self.max_bytes().max(used).map(Scale::above);
        self.draw([scale, Some(Scale::percent())], memory, sm.is_some(), work, area, canvas);
    }

    fn draw_host(&self, subject: &Subject<'_>, area: Rect, canvas: &mut Buffer) {
        let process = subject.process.ok();
        let captions = |words: [&str; 2]| words.map(str::to_owned).to_vec();
        let rss = process.and_then(|process| process.rss_bytes);
        let memory =
            |_| (captions(["host memory", "host"]), rss.map(|bytes| Bytes(bytes).to_string()));
        let cpu = process.and_then(|process| process.cpu_percent);
        let work = |_| (captions(["CPU", "CPU"]), cpu.map(|percent| format!("{percent:.0}%")));
        let max_load = self.loads().iter().map(Bucket::mean).fold(0.0, f64::max);
        let scales = [self.max_bytes().map(Scale::above), Some(Scale::cores(max_load))];
        self.draw(scales, memory, cpu.is_some(), work, area, canvas);
    }

    /// Draws the memory chart and, if utilization is known, the utilization chart.
    fn draw(
        &self,
        [memory_scale, work_scale]: [Option<Scale>; 2],
        memory: impl Fn(u16) -> Words,
        is_work_known: bool,
        work: impl Fn(u16) -> Words,
        area: Rect,
        canvas: &mut Buffer,
    ) {
        let loads = self.loads();
        let has_work = is_work_known || !loads.is_empty();
        let [left, right] = if has_work { beside(area) } else { [area; 2] };
        let (captions, now) = memory(left.width);
        let (window, styles, [mark, work_mark]) = (self.window, self.styles, self.marks);
        let held = self.held();
        let (scale, color) = (memory_scale, ChartColor::Memory);
        let plot = Plot { window, captions, now, scale, mark, color, styles };
        plot.draw(left, canvas, |columns| chart::memory(held, window, columns));
        if has_work {
            let (captions, now) = work(right.width);
            let (scale, mark, color) = (work_scale, work_mark, ChartColor::Work);
            let plot = Plot { window, captions, now, scale, mark, color, styles };
            plot.draw(right, canvas, |columns| chart::utilization(loads, window, columns));
        }
    }

    fn loads(&self) -> &[Bucket] {
        chart::past(self.series.map_or(&[], MemorySeries::loads), self.window)
    }

    fn held(&self) -> &[Bucket] {
        chart::past(self.series.map_or(&[], MemorySeries::buckets), self.window)
    }

    fn max_bytes(&self) -> Option<u64> {
        self.held().iter().map(|bucket| bucket.high).max()
    }
}

/// Returns captions, longest first. `plot` draws the longest caption that fits.
fn process_captions(subject: &Subject<'_>, quantity: &str, width: u16) -> Vec<String> {
    let pid = subject.row.key.identity.pid;
    let gpu = subject.place_on_gpus().unwrap_or_default();
    let named = format!("{pid} {quantity} on GPU {gpu}");
    let room = width.saturating_sub(columns(&named) + 2);
    let mut captions = Vec::new();
    if room >= COMMAND_MIN {
        let command = text::row_command(subject, room);
        captions.push(format!("{named}  {}", fit(&command, usize::from(room))));
    }
    captions.extend([named, format!("{pid} {quantity}"), quantity.to_owned()]);
    captions
}

/// Predicts when a leak will fill the GPU. Returns `None` without an active finding that contains a forecast, or if the
/// finding is about several GPUs. Also returns `None` for a MIG instance, which cannot use all free memory of the GPU.
fn exhaustion(subject: &Subject<'_>) -> Option<Exhaustion> {
    let finding = subject.finding.filter(|finding| finding.resolved_at.is_none())?;
    let gpu = subject.gpu.filter(|_| subject.row.key.instance.0.is_none())?;
    match &finding.gpus[..] {
        [only] if only.index == gpu.index => finding.evidence.forecast(),
        _ => None,
    }
}
