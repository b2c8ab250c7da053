//! The GPU panel: a line for each GPU and its MIG devices, a cell for each GPU, or one line with totals.
//!
//! A GPU that stops answering keeps its last values and is marked `stale`. A GPU whose values could
//! not be read is marked `lost`, with the error.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use super::charts::{self, Charted, window};
use super::layout::gpus::{TINY_CELL, cell_area};
use super::layout::{Form, Layout};
use super::memory_shares::{GpuShares, MemoryShare, MemoryShares};
use super::state::App;
use super::text::{NOT_AVAILABLE, UNKNOWN, clean, columns};
use super::theme::Styles;
use super::view::bar::{bar, legend};
use super::view::chart::{self, ChartWindow, Layer};
use super::view::line_writer::LineWriter;
use super::view_model::percent;
use crate::history::memory_series::MemorySeries;
use crate::model::field::gpu::{self, FACT_FIELDS, GpuField, UTILIZATION};
use crate::model::snapshot::{Gpu, Memory, MigDevice, Snapshot};
use crate::units::{Bytes, GIB, Span, number_of};

pub fn hit(app: &App, layout: &Layout, x: u16, y: u16) -> Option<u32> {
    let at = Position { x, y };
    let gpus = app.shown_gpus();
    match layout.gpus.contains(at) {
        true => gpus.get(in_panel(&gpus, layout, at)?).map(|gpu| gpu.index),
        false => charts::hit(app, layout, at).map(|gpu| gpu.index),
    }
}

fn in_panel(gpus: &[&Gpu], layout: &Layout, at: Position) -> Option<usize> {
    let area = layout.gpus;
    match layout.gpu_form {
        Form::Lines => {
            let has_parts = has_room_for_parts(gpus, area);
            let lines = |gpu: &Gpu| 1 + if has_parts { gpu.mig_devices.len() } else { 0 };
            let mut end = 0;
            gpus.iter().position(|gpu| {
                end += lines(gpu);
                usize::from(at.y - area.y) < end
            })
        }
        Form::Cells => (0..gpus.len()).find(|&gpu| cell_area(area, gpus.len(), gpu).contains(at)),
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
    let window = window(&app.judged.all_series, snapshot);
    match layout.gpu_form {
        Form::Lines => {
            let charts = charts::shown(app, layout);
            let has_charts = charts.iter().any(|(_, chart)| matches!(chart, Charted::Gpu(_)));
            let columns = GpuColumns::new(&shown, area.width, has_charts);
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
        Form::Cells => {
            let widest = |text: fn(&Gpu) -> String| {
                gpus.iter().map(|gpu| columns(&text(gpu))).max().unwrap_or(0)
            };
            let widths = (widest(|gpu| gpu.index.to_string()), widest(whole_gib) + 1);
            for (at, &(gpu, shares)) in shown.iter().enumerate() {
                let cell = cell_area(area, shown.len(), at);
                draw_cell(gpu, shares, widths, styles, &mut LineWriter::new(canvas, cell, 0));
            }
        }
        Form::Totals => {
            LineWriter::new(canvas, area, 0).text(&sum(&gpus), styles.plain());
        }
    }
}

/// Minimum width of the bar in a cell that also shows the memory in numbers.
const BAR_IN_CELL: u16 = 5;

/// Formats memory use in whole GiB, such as `72/80`.
fn whole_gib(gpu: &Gpu) -> String {
    let gib = |bytes: u64| format!("{:.0}", bytes as f64 / GIB as f64);
    let text = |memory: Memory| format!("{}/{}", gib(memory.used_bytes), gib(memory.total_bytes));
    gpu.memory.map_or_else(|| UNKNOWN.to_owned(), text)
}

/// Draws the index, the bar, the memory and the utilization of a GPU. `index` and `memory` are widths in columns.
fn draw_cell(
    gpu: &Gpu,
    shares: &GpuShares,
    (index, memory): (u16, u16),
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    let is_tiny = writer.room() <= TINY_CELL;
    // In a narrow cell, the bar follows the index immediately.
    let gap = u16::from(writer.room() > index + 9);
    writer.right(&gpu.index.to_string(), index, styles.strong()).skip(gap);
    if is_lost(gpu) {
        writer.text("lost", styles.alarm());
        return;
    }
    let is_stale = gpu.stale_seconds.is_some();
    let (figure, style) = match is_stale {
        true => (if is_tiny { "~" } else { " stale" }.to_owned(), styles.alarm()),
        false => (UTILIZATION.short(gpu), figure_style(&UTILIZATION, gpu, styles)),
    };
    if is_tiny {
        bar(shares.whole.as_ref(), is_stale, 1, styles, writer);
        writer.text(figure.trim_end_matches('%'), style);
        return;
    }
    let width = columns(&figure).max(5);
    let room = writer.room().saturating_sub(width);
    let memory = if room >= BAR_IN_CELL + memory { memory } else { 0 };
    bar(shares.whole.as_ref(), is_stale, room - memory, styles, writer);
    writer.right(&whole_gib(gpu), memory, styles.plain()).right(&figure, width, style);
}

#[derive(Clone, Copy)]
enum Part {
    Index,
    Name,
    Bar,
    Memory,
    Chart,
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
    fn new(shown: &[(&Gpu, &GpuShares)], width: u16, has_charts: bool) -> Self {
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
            0..100 => 9,
            100..140 => 13,
            _ => 21,
        };
        let figure = |field: &'static GpuField| {
            let widest = || widest(&|gpu| columns(&field.short(gpu))).max(columns(field.heading));
            (Part::Figure(field), if field.width == 0 { widest() } else { field.width })
        };
        let (judged, faint): (Vec<_>, Vec<_>) =
            gpu::on_screen().into_iter().partition(|field| field.from_columns == 0);
        // Columns from most to least important. A column is dropped if it does not fit beside the more important
        // columns.
        let mut columns =
            vec![(Part::Index, index), (Part::Memory, memory), (Part::Bar, BAR_MIN.max(width / 6))];
        columns.extend(judged.into_iter().map(figure));
        columns.push((Part::Name, name));
        // If the screen has charts of GPUs, columns with known facts replace the chart in each line.
        let is_known = |field: &&GpuField| shown.iter().any(|(gpu, _)| field.short(gpu) != UNKNOWN);
        match has_charts {
            true => columns.extend(FACT_FIELDS.iter().filter(is_known).map(figure)),
            false => columns.push((Part::Chart, chart)),
        }
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
            Part::Chart => 4,
            Part::Figure(_) => 5,
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
                Part::Chart => (format!(" UTIL {span}"), false),
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
                Part::Chart => {
                    let (area, canvas) = writer.skip(1).reserve(width - 1);
                    let loads = series.map_or(&[][..], MemorySeries::loads);
                    let values = chart::utilization(loads, window, area.width);
                    let layer = Layer { glyph: '▇', style: styles.heading(), values };
                    chart::draw_area(&[layer], 100.0, area, canvas);
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

    /// Draws the index, the profile and the memory of a MIG device. Other columns stay empty, because their values
    /// describe the whole GPU.
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

/// Formats the totals of `gpus`, such as `64 GPUs  1.2/5.0 TiB (24%)  2 lost`.
pub fn sum(gpus: &[&Gpu]) -> String {
    let mut text = number_of(gpus.len(), "GPU");
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
pub fn used_of_total(used: u64, total: u64) -> String {
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
