//! The charts of GPUs and of processes: what is drawn in each cell of the free rows, and in a GPU's card.
//!
//! Where the cells are is in `layout/charts.rs`; a chart with its words is drawn by `plot`. All of a screen
//! have the same window of time, so that they can be compared.

use ratatui::layout::Rect;

use ratatui::buffer::Buffer;

use super::chart::{self, ChartWindow};
use super::gpus::figures::{is_lost, memory_text};
use super::line_writer::{LineWriter, put};
use super::plot::{Plot, Scale};
use crate::history::memory_series::{Courses, MemorySeries};
use crate::model::evidence::Exhaustion;
use crate::model::snapshot::{Gpu, Snapshot};
use crate::report::escape::fit;
use crate::units::{Bytes, Span};
use crate::watch::command;
use crate::watch::layout::charts::{ChartGrid, ChartPanes, ChartSlot};
use crate::watch::state::App;
use crate::watch::text::{NOT_AVAILABLE, UNKNOWN, columns};
use crate::watch::theme::{ChartColor, Styles};
use crate::watch::view_model::{Subject, percent};

/// A shorter time without use has no mark: most processes rest now and then.
const UNUSED_SECONDS: f64 = 60.0;
/// With fewer columns a GPU is its number alone.
const WORD_FROM: u16 = 19;
/// With fewer columns a command is not part of a caption.
const COMMAND_MIN: u16 = 12;

/// Draws the free rows.
pub fn draw(app: &App, styles: Styles, panes: &ChartPanes, canvas: &mut Buffer) {
    let Some(screenful) = &app.screenful else {
        return;
    };
    let snapshot = &screenful.snapshot;
    let courses = &app.judged.courses;
    let window = window(courses, snapshot);
    let gpus = app.shown_gpus();
    match &panes.gpus {
        Some(grid) if grid.count == gpus.len() => {
            for (at, gpu) in gpus.iter().enumerate() {
                let [slot, _] = grid.charts(at);
                let word = if slot.area.width < WORD_FROM { "" } else { "GPU " };
                let charts = GpuCharts {
                    gpu,
                    course: courses.gpu(gpu),
                    window,
                    styles,
                    title: format!("{word}{} ", gpu.index),
                };
                charts.draw(grid.charts(at), canvas);
            }
        }
        Some(grid) => mean(app, &gpus, window, styles, grid, canvas),
        None => {}
    }
    let Some(grid) = &panes.processes else {
        return;
    };
    let selected = app.subject().filter(|subject| subject.row.is_listed);
    let lines = (0..app.table.listing.lines.len()).filter_map(|line| app.subject_at(line));
    let listed = lines.filter(|subject| subject.row.is_listed);
    let subjects = selected.into_iter().chain(listed);
    for (at, subject) in subjects.take(grid.count).enumerate() {
        let charts =
            ProcessCharts { subject: &subject, course: subject.course(courses), window, styles };
        charts.draw(grid.charts(at), canvas);
    }
}

/// The time that all charts show, so that they can be compared: all that was seen, up to the sample that is
/// shown.
pub fn window(courses: &Courses, snapshot: &Snapshot) -> ChartWindow {
    let gpus = snapshot.gpus.iter();
    let firsts = gpus.filter_map(|gpu| {
        let course = courses.gpu(gpu)?;
        let held = course.buckets().first().map(|bucket| bucket.since);
        let used = course.loads().first().map(|load| load.since);
        held.into_iter().chain(used).min()
    });
    ChartWindow::new(firsts.min(), snapshot.time)
}

/// The charts of a GPU.
pub struct GpuCharts<'a> {
    /// Which.
    pub gpu: &'a Gpu,
    /// How its memory and utilization moved; `None` where nothing was seen.
    pub course: Option<&'a MemorySeries>,
    /// The time that is shown.
    pub window: ChartWindow,
    /// The styles.
    pub styles: Styles,
    /// Before what each chart is of; nothing where the GPU is named already.
    pub title: String,
}

impl GpuCharts<'_> {
    /// Draws memory and utilization; memory alone where there is no utilization.
    pub fn draw(&self, slots: [ChartSlot; 2], canvas: &mut Buffer) {
        let (gpu, styles, title) = (self.gpu, self.styles, &self.title);
        let (held, used) = match self.course {
            Some(course) => (
                chart::past(course.buckets(), self.window),
                chart::past(course.loads(), self.window),
            ),
            None => (&[][..], &[][..]),
        };
        let has_use = gpu.gpu_percent.is_some() || !used.is_empty();
        let [left, right] = if has_use { slots } else { [joined(slots); 2] };
        let most = || held.iter().map(|bucket| bucket.high_bytes).max();
        let top = gpu.memory.map(|memory| memory.total_bytes).or_else(most);
        let state = match (top, &gpu.memory_unavailable) {
            _ if is_lost(gpu) => " lost".to_owned(),
            (Some(_), _) => String::new(),
            (None, Some(_)) => format!(" {NOT_AVAILABLE}"),
            (None, None) => format!(" {UNKNOWN}"),
        };
        let memory = Plot {
            window: self.window,
            captions: &captions(title, &format!("memory{state}"), &format!("mem{state}")),
            now: gpu.memory.map(|memory| {
                let text = memory_text(Some(memory));
                match columns(&text) + NAMED <= left.area.width {
                    true => text,
                    false => {
                        let percent = percent(memory.used_bytes, memory.total_bytes.max(1));
                        format!("{percent:.0}%")
                    }
                }
            }),
            scale: top.map(Scale::bytes),
            color: ChartColor::Memory,
            styles,
        };
        memory.draw(left, canvas, |columns| chart::values(held, self.window, columns));
        if has_use {
            let utilization = Plot {
                window: self.window,
                captions: &captions(title, "utilization", "util"),
                now: gpu.gpu_percent.map(|percent| format!("{percent}%")),
                scale: Some(Scale::percent()),
                color: ChartColor::Work,
                styles,
            };
            utilization.draw(right, canvas, |columns| chart::values(used, self.window, columns));
        }
    }
}

/// Columns that the name of a chart has beside its figures.
const NAMED: u16 = 15;
/// Columns of a process's memory, with what is before it.
const NOW: u16 = 12;

/// The mean of all GPUs, where there is no room for each.
fn mean(
    app: &App,
    gpus: &[&Gpu],
    window: ChartWindow,
    styles: Styles,
    grid: &ChartGrid,
    canvas: &mut Buffer,
) {
    let count = gpus.len();
    let courses = &app.judged.courses;
    let memory = |columns| {
        let of = |gpu: &&Gpu| {
            let total = gpu.memory?.total_bytes.max(1) as f64;
            let course = courses.gpu(gpu)?;
            let bytes = chart::values(course.buckets(), window, columns);
            let share = |bytes: f64| bytes / total * 100.0;
            Some(bytes.into_iter().map(|it| it.map(share)).collect())
        };
        let series: Vec<_> = gpus.iter().filter_map(of).collect();
        chart::mean(&series, columns)
    };
    let utilization = |columns| {
        let of = |gpu: &&Gpu| Some(chart::values(courses.gpu(gpu)?.loads(), window, columns));
        let series: Vec<_> = gpus.iter().filter_map(of).collect();
        chart::mean(&series, columns)
    };
    let mut plot = |what: [&str; 2], color, slot, values: &dyn Fn(u16) -> _| {
        let [long, short] = what;
        let plot = Plot {
            window,
            captions: &[format!("{count} GPUs: {long}, mean"), format!("{short}, mean")],
            now: None,
            scale: Some(Scale::percent()),
            color,
            styles,
        };
        plot.draw(slot, canvas, values);
    };
    let [left, right] = grid.charts(0);
    plot(["memory in use", "mem"], ChartColor::Memory, left, &memory);
    plot(["utilization", "util"], ChartColor::Work, right, &utilization);
}

/// The charts of a process on a GPU.
struct ProcessCharts<'a> {
    subject: &'a Subject<'a>,
    course: Option<&'a MemorySeries>,
    window: ChartWindow,
    styles: Styles,
}

impl ProcessCharts<'_> {
    /// Draws memory and SM, with the marks of what the rules found; memory alone where SM is not known.
    fn draw(&self, slots: [ChartSlot; 2], canvas: &mut Buffer) {
        let (subject, styles) = (self.subject, self.styles);
        let used = self.course.map_or(&[][..], MemorySeries::loads);
        let used = chart::past(used, self.window);
        let is_known = subject.entry.is_some_and(|entry| entry.sm_percent.is_some());
        let has_use = is_known || !used.is_empty();
        let [left, right] = if has_use { slots } else { [joined(slots); 2] };
        self.memory(left, canvas);
        if !has_use {
            return;
        }
        let plot = Plot {
            window: self.window,
            captions: &self.captions("SM", right.area.width),
            now: subject
                .entry
                .and_then(|entry| entry.sm_percent)
                .map(|percent| format!("{percent}%")),
            scale: Some(Scale::percent()),
            color: ChartColor::Work,
            styles,
        };
        let dots = plot.draw(right, canvas, |columns| chart::values(used, self.window, columns));
        self.unused(dots, canvas);
    }

    fn memory(&self, slot: ChartSlot, canvas: &mut Buffer) {
        let (subject, styles) = (self.subject, self.styles);
        let held = self.course.map_or(&[][..], MemorySeries::buckets);
        let held = chart::past(held, self.window);
        let used = subject.entry.and_then(|entry| entry.used_bytes);
        let will = used.and_then(|used| Some(Coming::new(used, exhaustion(subject)?, self.window)));
        let most = held.iter().map(|bucket| bucket.high_bytes);
        let top = most.chain(used).chain(will.map(|will| will.at_edge_bytes)).max();
        let window = will.map_or(self.window, |will| self.window.ahead(will.ahead_seconds));
        let scale = match (will, top) {
            (Some(will), _) if will.reaches => Some(Scale::bytes(will.full_bytes)),
            (_, top) => top.map(Scale::above),
        };
        let plot = Plot {
            window,
            captions: &self.captions("memory", slot.area.width),
            now: used.map(|used| Bytes(used).to_string()),
            scale,
            color: ChartColor::Memory,
            styles,
        };
        let dots = plot.draw(slot, canvas, |columns| chart::values(held, window, columns));
        if let (Some(will), Some(scale)) = (will, &plot.scale) {
            will.draw(window, subject.snapshot, scale, styles, dots, canvas);
        }
    }

    /// Since when it has not used the GPU: a line at that time, and how long that is.
    fn unused(&self, dots: Rect, canvas: &mut Buffer) {
        let idle = self.subject.idle_seconds;
        let Some(seconds) = idle.filter(|seconds| *seconds >= UNUSED_SECONDS) else {
            return;
        };
        let style = self.styles.caution();
        let since = self.subject.snapshot.time.plus_seconds(-seconds);
        let text = format!("unused for {}", Span::from_seconds(seconds));
        let column = self.window.column(since, dots.width);
        for y in dots.top()..dots.bottom() {
            if let Some(column) = column {
                put(canvas, (dots.x + column, y), '│', style);
            }
        }
        let after = column.map_or(0, |column| column + 2);
        let room = Rect {
            x: dots.x + after.min(dots.width),
            width: dots.width.saturating_sub(after),
            ..dots
        };
        let before = Rect { width: column.unwrap_or_default().saturating_sub(1), ..dots };
        if columns(&text) <= room.width {
            LineWriter::new(canvas, room, 0).text(&text, style);
        } else if columns(&text) <= before.width {
            let skipped = before.width - columns(&text);
            let mut writer = LineWriter::new(canvas, before, 0);
            writer.skip(skipped).text(&text, style);
        }
    }

    /// Which process, and on which GPU, in so many columns.
    fn captions(&self, what: &str, width: u16) -> Vec<String> {
        let subject = self.subject;
        let pid = subject.row.key.identity.pid;
        let gpu = subject.place_on_gpus().unwrap_or_default();
        let mut captions = Vec::new();
        let what = format!("{what} on GPU {gpu}");
        let room = width.saturating_sub(columns(&format!("{pid} {what}")) + NOW + 2);
        if room >= COMMAND_MIN {
            let command = command::of_row(subject, room);
            captions.push(format!("{pid} {what}  {}", fit(&command, usize::from(room))));
        }
        captions.push(format!("{pid} {what}"));
        captions.push(pid.to_string());
        captions
    }
}

/// Growth that goes on as it is, until its GPU is full.
#[derive(Clone, Copy)]
struct Coming {
    used_bytes: u64,
    /// What the process will hold then.
    full_bytes: u64,
    seconds: f64,
    /// How much of that is drawn: as much as what has been, or half of that where it does not reach the end.
    ahead_seconds: f64,
    /// Whether the end is drawn.
    reaches: bool,
    /// What it will hold at the edge of the chart.
    at_edge_bytes: u64,
}

impl Coming {
    fn new(used_bytes: u64, will: Exhaustion, window: ChartWindow) -> Self {
        let most = window.seconds();
        let reaches = will.seconds <= most;
        let ahead_seconds = if reaches { will.seconds } else { most / 2.0 };
        let share = (ahead_seconds / will.seconds.max(1e-9)).clamp(0.0, 1.0);
        let grown = (will.free_bytes as f64 * share) as u64;
        Self {
            used_bytes,
            full_bytes: used_bytes.saturating_add(will.free_bytes),
            seconds: will.seconds,
            ahead_seconds,
            reaches,
            at_edge_bytes: used_bytes.saturating_add(grown),
        }
    }

    /// Draws the way there after now, and what it leads to in the first line.
    fn draw(
        self,
        window: ChartWindow,
        snapshot: &Snapshot,
        scale: &Scale,
        styles: Styles,
        dots: Rect,
        canvas: &mut Buffer,
    ) {
        let style = styles.caution();
        let Some(now) = window.column(snapshot.time, dots.width) else {
            return;
        };
        let ahead = dots.width.saturating_sub(now + 1);
        for step in 1..=ahead {
            let share = f64::from(step) / f64::from(ahead);
            let grown = (self.at_edge_bytes - self.used_bytes) as f64 * share;
            let row = scale.row(self.used_bytes as f64 + grown, dots.height);
            put(canvas, (dots.x + now + step, dots.y + row), '·', style);
        }
        let when = Span::from_seconds(self.seconds);
        let mark = if self.reaches { "─" } else { "▲" };
        let text = format!("{mark} {}: the GPU is full in {when}", Bytes(self.full_bytes));
        let mut writer = LineWriter::new(canvas, dots, 0);
        if columns(&text) > writer.room() {
            return;
        }
        writer.text(&text, style);
        if self.reaches {
            let rest = writer.skip(1).room();
            writer.fill("─", rest, style);
        }
    }
}

/// When the GPU will be full, where that is of this row: the evidence of a process on several GPUs is of one
/// of them, and a GPU's free memory says nothing of its parts.
fn exhaustion(subject: &Subject<'_>) -> Option<Exhaustion> {
    let finding = subject.finding.filter(|it| it.resolved_at.is_none())?;
    let gpu = subject.gpu.filter(|_| subject.row.key.instance.0.is_none())?;
    match &finding.gpus[..] {
        [only] if only.index == gpu.index => finding.evidence.forecast(),
        _ => None,
    }
}

/// Both charts' place for one.
fn joined([one, other]: [ChartSlot; 2]) -> ChartSlot {
    ChartSlot::new(one.area.union(other.area))
}

/// What a chart is of, in less and less words.
fn captions(title: &str, what: &str, short: &str) -> [String; 3] {
    [format!("{title}{what}"), format!("{title}{short}"), title.trim_end().to_owned()]
}
