//! The GPU panel: a card or a line for each GPU and its MIG devices, or one line with totals.
//!
//! A GPU that stops answering keeps its last values and is marked `stale`. A GPU whose values could
//! not be read is marked `lost`, with the error.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use super::charts::{HistoryCharts, gpu_grid, window};
use super::layout::gpus::card_area;
use super::layout::{Form, Layout};
use super::memory_shares::{GpuShares, MemoryShare, MemoryShares};
use super::state::App;
use super::text::{NOT_AVAILABLE, UNKNOWN, clean, columns};
use super::theme::{ChartColor, Styles};
use super::view::bar::{bar, legend, share_style};
use super::view::chart::{self, ChartWindow};
use super::view::line_writer::LineWriter;
use super::view_model::percent;
use crate::history::memory_series::MemorySeries;
use crate::model::field::gpu::{self, CARD_FIELDS, GpuField};
use crate::model::snapshot::{Gpu, Memory, MigDevice, Snapshot};
use crate::units::{Bytes, Span};
use crate::watch::layout::CHARTS_ROWS_MIN;

/// Returns the index of the GPU under the mouse, in the panel or on its charts.
pub fn hit(app: &App, layout: &Layout, x: u16, y: u16) -> Option<u32> {
    let at = Position { x, y };
    let gpus = app.shown_gpus();
    let found = match layout.gpus.contains(at) {
        true => in_panel(&gpus, layout, at),
        false => {
            let grid = gpu_grid(app, layout)?;
            (0..gpus.len()).find(|&gpu| grid.cell(gpu).contains(at))
        }
    };
    gpus.get(found?).map(|gpu| gpu.index)
}

fn in_panel(gpus: &[&Gpu], layout: &Layout, at: Position) -> Option<usize> {
    let area = layout.gpus;
    match layout.gpu_form {
        Form::Cards => (0..gpus.len()).rev().find(|&gpu| {
            let card = card_area(area, gpus.len(), gpu);
            card.x <= at.x && card.y <= at.y
        }),
        Form::Lines => {
            let has_parts = has_room_for_parts(gpus, area);
            let lines = |gpu: &Gpu| 1 + if has_parts { gpu.mig_devices.len() } else { 0 };
            let mut end = 0;
            gpus.iter().position(|gpu| {
                end += lines(gpu);
                usize::from(at.y - area.y) < end
            })
        }
        Form::Totals => None,
    }
}

/// Returns whether all MIG devices fit. A partial list would look complete, so the panel lists all or none.
fn has_room_for_parts(gpus: &[&Gpu], area: Rect) -> bool {
    let parts: usize = gpus.iter().map(|gpu| gpu.mig_devices.len()).sum();
    gpus.len() + parts <= usize::from(area.height)
}

pub fn draw(app: &App, styles: Styles, layout: &Layout, canvas: &mut Buffer) {
    let (heading, area) = (layout.gpu_heading, layout.gpus);
    let Some(screenful) = &app.screenful else {
        return;
    };
    let snapshot = &screenful.snapshot;
    if snapshot.gpus.is_empty() {
        LineWriter::new(canvas, area, 0)
            .text("no GPU; `gpumem doctor` looks for the reason", styles.strong());
        return;
    }
    let (shown, gpus) = (app.shown_shares(), app.shown_gpus());
    match layout.gpu_form {
        Form::Cards => {
            let window = window(&app.judged.all_series, snapshot);
            for (at, &(gpu, shares)) in shown.iter().enumerate() {
                let card = Card {
                    snapshot,
                    gpu,
                    shares,
                    charts: HistoryCharts::new(app.judged.all_series.gpu(gpu), window, styles),
                    styles,
                };
                card.draw(card_area(area, shown.len(), at), canvas);
            }
        }
        Form::Lines => {
            let window = window(&app.judged.all_series, snapshot);
            let columns = GpuColumns::new(&shown, area.width);
            let mut writer = LineWriter::new(canvas, heading, 0);
            columns.heading(&window.label(), styles, &mut writer);
            let has_parts = has_room_for_parts(&gpus, area);
            let mut line = 0;
            for &(gpu, shares) in &shown {
                let series = (app.judged.all_series.gpu(gpu), window);
                let mut writer = LineWriter::new(canvas, area, line);
                columns.line(snapshot, (gpu, shares), series, styles, &mut writer);
                line += 1;
                let devices = gpu.mig_devices.iter().zip(&shares.devices);
                for device in devices.filter(|_| has_parts) {
                    let mut writer = LineWriter::new(canvas, area, line);
                    columns.device(gpu, device, styles, &mut writer);
                    line += 1;
                }
            }
        }
        Form::Totals => {
            LineWriter::new(canvas, area, 0).text(&sum(&gpus), styles.plain());
        }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Index,
    Name,
    Bar,
    Memory,
    Chart(ChartColor),
    Figure(&'static GpuField),
}

/// The columns that fit on a line, with their widths. A blank follows each column.
struct GpuColumns {
    columns: Vec<(Part, u16)>,
    shares: Vec<MemoryShare>,
}

const BAR_MIN: u16 = 8;
const BAR_MAX: u16 = 64;

impl GpuColumns {
    fn new(shown: &[(&Gpu, &GpuShares)], width: u16) -> Self {
        let widest = |text: &dyn Fn(&Gpu) -> u16| {
            let texts = shown.iter().map(|(gpu, _)| text(gpu));
            texts.max().unwrap_or(0)
        };
        let of_parts = |gpu: &Gpu, text: &dyn Fn(&MigDevice) -> String| {
            let texts = gpu.mig_devices.iter().map(|part| columns(&text(part)));
            texts.max().unwrap_or(0)
        };
        let index = widest(&|gpu| {
            of_parts(gpu, &|part| part.name_on(gpu.index)).max(columns(&gpu.index.to_string()))
        });
        let index = index.clamp(3, 12);
        let memory = widest(&|gpu| {
            of_parts(gpu, &|part| memory_text(part.memory)).max(columns(&memory_text(gpu.memory)))
        });
        let memory = memory.max(6);
        let name = widest(&|gpu| of_parts(gpu, &part_name).max(columns(&name(gpu)))).clamp(4, 24);
        let chart = match width {
            0..100 => 8,
            100..140 => 12,
            _ => 20,
        };
        let figure = |field: &'static GpuField| {
            let widest = || widest(&|gpu| columns(&field.short(gpu))).max(columns(field.heading));
            (Part::Figure(field), if field.width == 0 { widest() } else { field.width })
        };
        let (judged, faint): (Vec<_>, Vec<_>) =
            gpu::on_screen().into_iter().partition(|field| field.from_columns == 0);
        // Columns from most to least important. If room is short, columns at the end are dropped.
        let mut columns = vec![(Part::Index, index), (Part::Memory, memory), (Part::Bar, BAR_MIN)];
        columns.extend(judged.into_iter().map(figure));
        columns.push((Part::Name, name));
        // The bar already shows the current memory, so the utilization chart gets room before the memory chart.
        columns.push((Part::Chart(ChartColor::Work), chart));
        columns.push((Part::Chart(ChartColor::Memory), if width >= 140 { chart } else { 0 }));
        let faint = faint.into_iter().filter(|field| width >= field.from_columns);
        columns.extend(faint.map(figure));
        // The last column needs no blank after it.
        let mut room = width + 1;
        columns.retain(|&(_, wide)| {
            let fits = wide > 0 && wide < room;
            room -= if fits { wide + 1 } else { 0 };
            fits
        });
        for (_, wide) in columns.iter_mut().filter(|(part, _)| matches!(part, Part::Bar)) {
            *wide = (*wide + room).min(BAR_MAX);
        }
        columns.sort_by_key(|(part, _)| match part {
            Part::Index => 0,
            Part::Name => 1,
            Part::Bar => 2,
            Part::Memory => 3,
            Part::Chart(ChartColor::Memory) => 4,
            Part::Chart(ChartColor::Work) => 5,
            Part::Figure(_) => 6,
        });
        Self { columns, shares: drawn_shares(shown) }
    }

    fn heading(&self, span: &str, styles: Styles, writer: &mut LineWriter<'_>) {
        let style = styles.heading();
        for &(part, width) in &self.columns {
            let (title, is_right) = match part {
                Part::Bar => {
                    legend(&self.shares, width, styles, writer);
                    writer.skip(1);
                    continue;
                }
                Part::Index => ("GPU".to_owned(), true),
                Part::Name => ("NAME".to_owned(), false),
                Part::Memory => ("USED".to_owned(), true),
                Part::Chart(ChartColor::Memory) => (format!("MEM {span}"), false),
                Part::Chart(ChartColor::Work) => (format!("UTIL {span}"), false),
                Part::Figure(field) => (field.heading.to_owned(), true),
            };
            match is_right {
                true => writer.right(&title, width, style),
                false => writer.left(&title, width, style),
            };
            writer.skip(1);
        }
    }

    fn line(
        &self,
        snapshot: &Snapshot,
        (gpu, shares): (&Gpu, &GpuShares),
        (series, window): (Option<&MemorySeries>, ChartWindow),
        styles: Styles,
        writer: &mut LineWriter<'_>,
    ) {
        let reason = reason(gpu);
        let is_stale = gpu.stale_seconds.is_some();
        for &(part, width) in &self.columns {
            match part {
                Part::Index => {
                    writer.right(&gpu.index.to_string(), width, styles.strong());
                }
                Part::Name => {
                    writer.left(&name(gpu), width, styles.plain());
                }
                _ if is_lost(gpu) => {
                    writer.text(&lost_text(snapshot, gpu, writer.room()), styles.alarm());
                    return;
                }
                Part::Bar => match &reason {
                    Some(reason) => {
                        let text = format!("{NOT_AVAILABLE}: {reason}");
                        writer.left(&text, width, styles.faint());
                    }
                    None => bar(shares.whole.as_ref(), is_stale, width, styles, writer),
                },
                Part::Memory if reason.is_some() => {
                    writer.skip(width);
                }
                Part::Memory => used(gpu.memory, shares.whole.as_ref(), width, styles, writer),
                Part::Chart(color) => {
                    let (area, canvas) = writer.reserve(width);
                    if let Some(series) = series {
                        let total = gpu.memory.map_or(0, |memory| memory.total_bytes) as f64;
                        let (values, top) = match color {
                            ChartColor::Memory => {
                                (chart::memory(series.buckets(), window, width), total)
                            }
                            ChartColor::Work => {
                                (chart::utilization(series.loads(), window, width), 100.0)
                            }
                        };
                        let style = |is_line| styles.chart(color, is_line);
                        chart::draw_values(&values, top, style, area, canvas);
                    }
                }
                Part::Figure(_) if is_stale => {
                    let seconds = gpu.stale_seconds.unwrap_or_default();
                    // A stale GPU has no current utilization, so the mark replaces it.
                    writer.text(&stale_text(seconds), styles.alarm());
                    return;
                }
                Part::Figure(field) => {
                    let style = match field.from_columns {
                        0 => figure_style(field, gpu, styles),
                        _ => styles.faint(),
                    };
                    writer.right(&field.short(gpu), width, style);
                }
            }
            writer.skip(1);
        }
    }

    /// Draws a MIG device. NVML reports only the memory of a MIG device; other columns stay empty.
    fn device(
        &self,
        gpu: &Gpu,
        (device, shares): (&MigDevice, &Option<MemoryShares>),
        styles: Styles,
        writer: &mut LineWriter<'_>,
    ) {
        let is_stale = gpu.stale_seconds.is_some();
        for &(part, width) in &self.columns {
            match part {
                Part::Index => {
                    writer.right(&device.name_on(gpu.index), width, styles.plain());
                }
                Part::Name => {
                    writer.left(&part_name(device), width, styles.plain());
                }
                Part::Bar => bar(shares.as_ref(), is_stale, width, styles, writer),
                Part::Memory => used(device.memory, shares.as_ref(), width, styles, writer),
                _ => return,
            }
            writer.skip(1);
        }
    }
}

fn used(
    memory: Option<Memory>,
    shares: Option<&MemoryShares>,
    width: u16,
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    let style = shares.map_or(styles.plain(), |shares| styles.strain(shares.level()));
    writer.right(&memory_text(memory), width, style);
}

fn figure_style(field: &GpuField, gpu: &Gpu, styles: Styles) -> Style {
    match (field.level)(gpu) {
        None => styles.plain(),
        Some(level) if field.is_work => styles.work(level),
        Some(level) => styles.strain(level),
    }
}

/// Returns the shares that appear in at least one bar, in bar order, without free memory.
fn drawn_shares(shown: &[(&Gpu, &GpuShares)]) -> Vec<MemoryShare> {
    let mut shares = MemoryShare::ALL.to_vec();
    shares.retain(|&share| {
        let has = |shares: &GpuShares| shares.whole.is_some_and(|whole| whole.has(share));
        share != MemoryShare::Free && shown.iter().any(|(_, shares)| has(shares))
    });
    shares
}

const NAME_MIN: u16 = 12;
/// Minimum width of a card that shows all figures. Narrower cards show only figures that indicate load.
const WIDE: u16 = 90;
const PART: (u16, u16) = (6, 16);

struct Card<'a> {
    snapshot: &'a Snapshot,
    gpu: &'a Gpu,
    shares: &'a GpuShares,
    charts: HistoryCharts<'a>,
    styles: Styles,
}

impl Card<'_> {
    fn draw(&self, area: Rect, canvas: &mut Buffer) {
        self.title(&mut LineWriter::new(canvas, area, 0));
        self.memory(&mut LineWriter::new(canvas, area, 1));
        self.figures(&mut LineWriter::new(canvas, area, 2));
        let mut line = 3;
        for device in self.gpu.mig_devices.iter().zip(&self.shares.devices) {
            self.part(device, &mut LineWriter::new(canvas, area, line));
            line += 1;
        }
        let rest = Rect {
            y: area.y + line.min(area.height),
            height: area.height.saturating_sub(line),
            ..area
        };
        self.charts(rest, canvas);
    }

    fn title(&self, writer: &mut LineWriter<'_>) {
        let (gpu, styles) = (self.gpu, self.styles);
        let (index, name) = (gpu.index.to_string(), name(gpu));
        let is_wide = writer.room() >= WIDE;
        let mut figures = match gpu.stale_seconds {
            // A stale GPU has no current utilization, so the mark replaces it.
            Some(seconds) => vec![(stale_text(seconds), styles.alarm())],
            None if is_lost(gpu) => Vec::new(),
            None => figures(gpu, is_wide, styles),
        };
        let name_min = if is_wide { columns(&name).max(NAME_MIN) } else { NAME_MIN };
        let mut room = writer.room().saturating_sub(columns(&index) + 1 + name_min);
        figures.retain(|(figure, _)| {
            let width = 2 + columns(figure);
            let fits = width <= room;
            room -= if fits { width } else { 0 };
            fits
        });
        writer.text(&index, styles.strong()).skip(1);
        writer.left(&name, name_min + room, styles.strong());
        for (figure, style) in figures {
            writer.skip(2).text(&figure, style);
        }
    }

    fn memory(&self, writer: &mut LineWriter<'_>) {
        let (gpu, styles) = (self.gpu, self.styles);
        if is_lost(gpu) {
            let text = lost_text(self.snapshot, gpu, writer.room());
            writer.text(&text, styles.alarm());
            return;
        }
        if let Some(reason) = reason(gpu) {
            writer.text(&format!("memory {NOT_AVAILABLE}: {reason}"), styles.faint());
            return;
        }
        self.bar(gpu.memory, self.shares.whole.as_ref(), writer);
    }

    fn bar(
        &self,
        memory: Option<Memory>,
        shares: Option<&MemoryShares>,
        writer: &mut LineWriter<'_>,
    ) {
        let styles = self.styles;
        let fullness = memory
            .filter(|memory| memory.total_bytes > 0)
            .map(|memory| percent(memory.used_bytes, memory.total_bytes));
        let mut text = memory_text(memory);
        if let Some(percent) = fullness {
            text.push_str(&format!(" ({percent:.0}%)"));
        }
        let width = writer.room().saturating_sub(columns(&text) + 1);
        let is_stale = self.gpu.stale_seconds.is_some();
        bar(shares, is_stale, width, styles, writer);
        let style = shares.map_or(styles.plain(), |shares| styles.strain(shares.level()));
        writer.skip(1).text(&text, style);
    }

    /// Writes the sizes of the shares, in the colours of the bar.
    fn figures(&self, writer: &mut LineWriter<'_>) {
        let styles = self.styles;
        let Some(shares) = &self.shares.whole else {
            return;
        };
        for share in MemoryShare::ALL {
            if !shares.has(share) {
                continue;
            }
            let text = format!("{} {}", share.name(), Bytes(shares.bytes(share)));
            if columns(&text) + 2 > writer.room() {
                return;
            }
            writer
                .text(share.glyph(), share_style(share, styles))
                .skip(1)
                .text(&text, styles.plain())
                .skip(2);
        }
    }

    fn part(
        &self,
        (device, shares): (&MigDevice, &Option<MemoryShares>),
        writer: &mut LineWriter<'_>,
    ) {
        let styles = self.styles;
        let (number, profile) = PART;
        writer
            .left(&device.name_on(self.gpu.index), number, styles.plain())
            .left(part_name(device).trim_start(), profile, styles.plain())
            .skip(1);
        self.bar(device.memory, shares.as_ref(), writer);
    }

    fn charts(&self, area: Rect, canvas: &mut Buffer) {
        if area.height < CHARTS_ROWS_MIN {
            return;
        }
        self.charts.draw_gpu(self.gpu, "", area, canvas);
    }
}

/// Returns the figures of a card other than memory, most informative first.
fn figures(gpu: &Gpu, is_wide: bool, styles: Styles) -> Vec<(String, Style)> {
    let judged = gpu::on_screen().into_iter();
    let judged = judged.map(|field| (field, figure_style(field, gpu, styles)));
    let others = CARD_FIELDS.iter().filter(|_| is_wide).map(|field| (field, styles.faint()));
    judged.chain(others).filter_map(|(field, style)| Some((field.on_card(gpu)?, style))).collect()
}

/// Formats the totals of all GPUs, such as `64 GPUs  1.2/5.0 TiB (24%)  2 lost`.
pub fn sum(gpus: &[&Gpu]) -> String {
    let count = gpus.len();
    let mut text = format!("{count} GPU{}", if count == 1 { "" } else { "s" });
    let memories = || gpus.iter().filter_map(|gpu| gpu.memory);
    let used = memories().fold(0u64, |sum, memory| sum.saturating_add(memory.used_bytes));
    let total = memories().fold(0u64, |sum, memory| sum.saturating_add(memory.total_bytes));
    if total > 0 {
        text.push_str(&format!("  {} ({:.0}%)", used_of_total(used, total), percent(used, total)));
    }
    let count = |is: fn(&Gpu) -> bool| gpus.iter().filter(|gpu| is(gpu)).count();
    let stale = count(|gpu| gpu.stale_seconds.is_some());
    for (count, word) in [(count(is_lost), "lost"), (stale, "stale")] {
        if count > 0 {
            text.push_str(&format!("  {count} {word}"));
        }
    }
    text
}

fn reason(gpu: &Gpu) -> Option<String> {
    let reason = gpu.memory_unavailable.as_deref()?;
    gpu.memory.is_none().then(|| clean(reason, 200).into_owned())
}

/// Formats memory use, such as `8.1/45.0 GiB`. Both units are written if they differ.
fn used_of_total(used: u64, total: u64) -> String {
    let (used, total) = (Bytes(used).to_string(), Bytes(total).to_string());
    match (used.split_once(' '), total.split_once(' ')) {
        (Some((number, unit)), Some((_, whole))) if unit == whole => format!("{number}/{total}"),
        _ => format!("{used}/{total}"),
    }
}

pub fn memory_text(memory: Option<Memory>) -> String {
    memory.map_or_else(
        || UNKNOWN.to_owned(),
        |memory| used_of_total(memory.used_bytes, memory.total_bytes),
    )
}

fn name(gpu: &Gpu) -> String {
    let name = gpu.name.as_deref().unwrap_or(UNKNOWN);
    // Every GPU is from NVIDIA, so the vendor's name wastes columns.
    let name = clean(name.strip_prefix("NVIDIA ").unwrap_or(name), 64);
    match &gpu.claim {
        Some(claim) => format!("{name}, {claim}"),
        None => name.into_owned(),
    }
}

fn part_name(device: &MigDevice) -> String {
    let profile = device.profile.as_deref().unwrap_or(UNKNOWN);
    format!("  MIG {}", clean(profile, 40))
}

pub fn is_lost(gpu: &Gpu) -> bool {
    gpu.memory.is_none() && gpu.memory_unavailable.is_none() && gpu.processes.is_none()
}

fn lost_text(snapshot: &Snapshot, gpu: &Gpu, width: u16) -> String {
    let error = snapshot.errors.iter().find(|error| error.gpu == Some(gpu.index));
    match error {
        Some(error) => format!("lost: {}", clean(&error.error, width)),
        None => "lost: no data could be read".to_owned(),
    }
}

fn stale_text(seconds: f64) -> String {
    format!("stale {}", Span::from_seconds(seconds))
}
