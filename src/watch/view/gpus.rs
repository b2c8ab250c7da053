//! The GPUs: a card or a line each, with their MIG devices, or one line with the totals, as the layout says.
//!
//! What a GPU last said before it fell silent is marked `stale`; one that is gone is marked `lost`, with
//! the error. The memory bar is in `bar`, a card in `card`, how things moved in `chart`.

pub mod figures;

use ratatui::layout::Rect;
use ratatui::style::Style;

use ratatui::buffer::Buffer;

use self::figures::{is_lost, lost_text, memory_text, name, part_name, reason, stale_text, sum};
use super::bar::{bar, legend};
use super::card::Card;
use super::chart::{self, ChartWindow};
use super::charts::{values, window};
use super::line_writer::LineWriter;
use crate::history::memory_series::MemorySeries;
use crate::model::field::gpu::{self, GpuField};
use crate::model::snapshot::{Gpu, Memory, MigDevice, Snapshot};
use crate::units::Bytes;
use crate::watch::layout::gpus::has_room_for_parts;
use crate::watch::layout::{self, Gpus};
use crate::watch::memory_shares::{GpuShares, MemoryShare, MemoryShares};
use crate::watch::state::App;
use crate::watch::state::chart_values::ChartSubject;
use crate::watch::text::{NOT_AVAILABLE, UNKNOWN, columns};
use crate::watch::theme::{ChartColor, Styles};

/// Draws the heading and the GPUs.
pub fn draw(app: &App, styles: Styles, form: Gpus, heading: Rect, area: Rect, canvas: &mut Buffer) {
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
    match form {
        Gpus::Cards { across, height } => {
            let window = window(&app.judged.courses, snapshot);
            for (at, &(gpu, shares)) in shown.iter().enumerate() {
                let card = Card {
                    snapshot,
                    gpu,
                    shares,
                    course: app.judged.courses.gpu(gpu),
                    window,
                    values: &app.charts,
                    styles,
                };
                let place = layout::gpus::card(area, (across, height), shown.len(), at);
                card.draw(place, canvas);
            }
        }
        Gpus::Lines => {
            let window = window(&app.judged.courses, snapshot);
            let columns = GpuColumns::new(&shown, area.width);
            columns.heading(&window.label(), styles, heading, canvas);
            let has_parts = has_room_for_parts(&gpus, area);
            let mut line = 0;
            for &(gpu, shares) in &shown {
                columns.line(snapshot, (gpu, shares), styles, area, line, canvas);
                if let Some(course) = app.judged.courses.gpu(gpu).filter(|_| !is_lost(gpu)) {
                    let place = Rect::new(area.x, area.y + line, area.width, 1);
                    columns.history(app, (course, gpu), window, styles, place, canvas);
                }
                line += 1;
                let devices = gpu.mig_devices.iter().zip(&shares.devices);
                for device in devices.filter(|_| has_parts) {
                    let mut writer = LineWriter::new(canvas, area, line);
                    columns.device(gpu, device, styles, &mut writer);
                    line += 1;
                }
            }
        }
        Gpus::Totals => {
            LineWriter::new(canvas, area, 0).text(&sum(&gpus), styles.plain());
        }
    }
}

/// Which values a line has room for, and how wide they are.
struct GpuColumns {
    index: u16,
    name: u16,
    bar: u16,
    memory: u16,
    /// What is one value of a GPU, the first always; the width of what there is no room for is 0.
    figures: Vec<(&'static GpuField, u16)>,
    has_balance: bool,
    /// The shares that the bars have, for the legend.
    shares: Vec<MemoryShare>,
    /// Of the chart of utilization, and of that of memory.
    history: (u16, u16),
}

const BAR_MIN: u16 = 8;
const BAR_MAX: u16 = 64;
/// With this many columns a bar has its legend on most machines. It is no matter of what is in use, for
/// the columns are not to move with that.
const BAR_ROOMY: u16 = 46;
/// The columns of where the memory is, each with the blank before it.
const BALANCE: [(&str, u16); 4] =
    [("FREE", 10), ("RESERVED", 10), ("PROCESSES", 10), ("UNATTRIBUTED", 12)];

impl GpuColumns {
    fn new(shown: &[(&Gpu, &GpuShares)], width: u16) -> Self {
        let widest = |text: &dyn Fn(&Gpu) -> u16| {
            let texts = shown.iter().map(|(gpu, _)| text(gpu));
            texts.max().unwrap_or(0)
        };
        let mut these = Self {
            index: widest(&|gpu| {
                let parts = gpu.mig_devices.iter();
                let widest = parts.map(|part| columns(&part.name_on(gpu.index))).max();
                widest.unwrap_or(0).max(columns(&gpu.index.to_string()))
            })
            .clamp(3, 12),
            name: 0,
            bar: BAR_MIN,
            memory: widest(&|gpu| {
                let parts = gpu.mig_devices.iter().map(|part| part.memory);
                let texts = parts.chain([gpu.memory]).map(|it| columns(&memory_text(it)));
                texts.max().unwrap_or(0)
            })
            .max(6),
            figures: Vec::new(),
            has_balance: false,
            shares: drawn_shares(shown),
            history: (0, 0),
        };
        let wanted = |field: &GpuField| match field.width {
            _ if width < field.from_columns => 0,
            0 => widest(&|gpu| columns(&field.short(gpu))).max(columns(field.heading)),
            fixed => fixed,
        };
        let figures = gpu::on_screen().into_iter();
        these.figures = figures.map(|field| (field, wanted(field))).collect();
        let (_, always) = these.figures[0];
        let mut room =
            width.saturating_sub(these.index + 1 + BAR_MIN + 1 + these.memory + 1 + always);
        // The most telling first; each brings the blank before it.
        let mut grant = |wanted: u16| {
            let fits = wanted > 0 && wanted < room;
            if fits {
                room -= wanted + 1;
            }
            if fits { wanted } else { 0 }
        };
        let figures = these.figures[1..].iter_mut();
        for (_, width) in figures.filter(|(field, _)| field.from_columns == 0) {
            *width = grant(*width);
        }
        let names = |gpu: &Gpu| {
            let parts = gpu.mig_devices.iter().map(|part| columns(&part_name(part)));
            parts.max().unwrap_or(0).max(columns(&name(gpu)))
        };
        these.name = grant(widest(&names).clamp(4, 24));
        let chart = match width {
            0..100 => 8,
            100..140 => 12,
            _ => 20,
        };
        // The bar says what is held now; what became of a GPU's time says more than that of its memory.
        these.history.0 = grant(chart);
        if width >= 140 {
            these.history.1 = grant(chart);
        }
        let figures = these.figures[1..].iter_mut();
        for (_, width) in figures.filter(|(field, _)| field.from_columns > 0) {
            *width = grant(*width);
        }
        // The bar with its legend says more than these, and comes first.
        let balance: u16 = BALANCE.iter().map(|(_, width)| width + 1).sum();
        if BAR_MIN + room >= BAR_ROOMY + balance {
            these.has_balance = true;
            room -= balance;
        }
        these.bar = (BAR_MIN + room).min(BAR_MAX);
        these
    }

    fn heading(&self, span: &str, styles: Styles, area: Rect, canvas: &mut Buffer) {
        let style = styles.heading();
        let mut writer = LineWriter::new(canvas, area, 0);
        writer.right("GPU", self.index, style).skip(1);
        if self.name > 0 {
            writer.left("NAME", self.name, style).skip(1);
        }
        // The help has it, too.
        legend(&self.shares, self.bar, styles, &mut writer);
        writer.skip(1);
        writer.right("USED", self.memory, style).skip(1);
        if self.has_balance {
            for (title, width) in BALANCE {
                writer.right(title, width, style).skip(1);
            }
        }
        let (used, held) = self.history;
        for (what, width) in [("MEM", held), ("UTIL", used)] {
            if width > 0 {
                writer.left(&format!("{what} {span}"), width, style).skip(1);
            }
        }
        for (field, width) in self.shown_figures() {
            writer.right(field.heading, width, style).skip(1);
        }
    }

    /// A line of a MIG device: its memory is its own, the rest is its GPU's.
    fn device(
        &self,
        gpu: &Gpu,
        (device, shares): (&MigDevice, &Option<MemoryShares>),
        styles: Styles,
        writer: &mut LineWriter<'_>,
    ) {
        writer.right(&device.name_on(gpu.index), self.index, styles.plain()).skip(1);
        if self.name > 0 {
            writer.left(&part_name(device), self.name, styles.plain()).skip(1);
        }
        let is_stale = gpu.stale_seconds.is_some();
        self.memory(device.memory, (shares.as_ref(), is_stale), None, styles, writer);
    }

    /// The bar and the figures of some memory; why there is neither, where that is known.
    fn memory(
        &self,
        memory: Option<Memory>,
        (shares, is_stale): (Option<&MemoryShares>, bool),
        reason: Option<String>,
        styles: Styles,
        writer: &mut LineWriter<'_>,
    ) {
        if let Some(reason) = reason {
            let text = format!("{NOT_AVAILABLE}: {reason}");
            writer.left(&text, self.bar + 1 + self.memory, styles.faint()).skip(1);
            return;
        }
        bar(shares, is_stale, self.bar, styles, writer);
        let style = shares.map_or(styles.plain(), |it| styles.strain(it.level()));
        writer.skip(1).right(&memory_text(memory), self.memory, style).skip(1);
    }

    /// Columns of the charts, each with the blank after it.
    fn history_width(&self) -> u16 {
        let (used, held) = self.history;
        [used, held].iter().filter(|it| **it > 0).map(|it| it + 1).sum()
    }

    /// How memory and utilization moved, where there is room for it.
    fn history(
        &self,
        app: &App,
        (course, gpu): (&MemorySeries, &Gpu),
        window: ChartWindow,
        styles: Styles,
        line: Rect,
        canvas: &mut Buffer,
    ) {
        let name = if self.name > 0 { self.name + 1 } else { 0 };
        let balance = BALANCE.iter().filter(|_| self.has_balance);
        let balance: u16 = balance.map(|(_, width)| width + 1).sum();
        let x = line.x + self.index + 1 + name + self.bar + 1 + self.memory + 1 + balance;
        let place = |x: u16, width: u16| Rect::new(x, line.y, width, 1);
        let (used, held) = self.history;
        if held > 0 {
            let total = gpu.memory.map_or(0, |memory| memory.total_bytes) as f64;
            let place = place(x, held);
            let subject = ChartSubject::GpuMemory(gpu.index);
            let held = values(&app.charts, subject, course.buckets(), window, held);
            let style = |share| styles.chart(ChartColor::Memory, share);
            chart::draw_values(&held, total, style, place, canvas);
        }
        let place = place(x + if held > 0 { held + 1 } else { 0 }, used);
        let subject = ChartSubject::GpuUse(gpu.index);
        let used = values(&app.charts, subject, course.loads(), window, used);
        let style = |share| styles.chart(ChartColor::Work, share);
        chart::draw_values(&used, 100.0, style, place, canvas);
    }

    fn line(
        &self,
        snapshot: &Snapshot,
        (gpu, shares): (&Gpu, &GpuShares),
        styles: Styles,
        area: Rect,
        line: u16,
        canvas: &mut Buffer,
    ) {
        let mut writer = LineWriter::new(canvas, area, line);
        writer.right(&gpu.index.to_string(), self.index, styles.strong()).skip(1);
        if self.name > 0 {
            writer.left(&name(gpu), self.name, styles.plain()).skip(1);
        }
        if is_lost(gpu) {
            writer.text(&lost_text(snapshot, gpu, area.width), styles.alarm());
            return;
        }
        let bar = (shares.whole.as_ref(), gpu.stale_seconds.is_some());
        self.memory(gpu.memory, bar, reason(gpu), styles, &mut writer);
        if self.has_balance {
            balance(snapshot, gpu, styles, &mut writer);
        }
        writer.skip(self.history_width());
        if let Some(seconds) = gpu.stale_seconds {
            // Utilization is of a moment and has no last known value; the mark takes its place.
            writer.text(&stale_text(seconds), styles.alarm());
            return;
        }
        for (field, width) in self.shown_figures() {
            let style = match field.from_columns {
                0 => figure_style(field, gpu, styles),
                _ => styles.faint(),
            };
            writer.right(&field.short(gpu), width, style).skip(1);
        }
    }

    /// What there is room for, with its width.
    fn shown_figures(&self) -> impl Iterator<Item = (&GpuField, u16)> {
        let figures = self.figures.iter().map(|(field, width)| (*field, *width));
        figures.filter(|(_, width)| *width > 0)
    }
}

/// How a value of a GPU looks: by how loaded the GPU is by it.
pub(super) fn figure_style(field: &GpuField, gpu: &Gpu, styles: Styles) -> Style {
    match (field.level)(gpu) {
        None => styles.plain(),
        Some(level) if field.is_work => styles.work(level),
        Some(level) => styles.strain(level),
    }
}

/// The shares that any of the bars has, in their order; what is free needs no word.
fn drawn_shares(shown: &[(&Gpu, &GpuShares)]) -> Vec<MemoryShare> {
    let mut shares = MemoryShare::ALL.to_vec();
    shares.retain(|&share| {
        let has = |it: &GpuShares| it.whole.is_some_and(|whole| whole.has(share));
        share != MemoryShare::Free && shown.iter().any(|(_, shares)| has(shares))
    });
    shares
}

/// Where the GPU's memory is, in figures.
fn balance(snapshot: &Snapshot, gpu: &Gpu, styles: Styles, writer: &mut LineWriter<'_>) {
    let balance = snapshot.balance(gpu);
    let parts = balance.map(|balance| {
        [
            Some(balance.free_bytes),
            balance.reserved_bytes,
            balance.process_bytes,
            balance.unattributed.ok(),
        ]
    });
    for ((_, width), bytes) in BALANCE.into_iter().zip(parts.unwrap_or_default()) {
        let text = bytes.map_or_else(|| UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string());
        writer.right(&text, width, styles.plain()).skip(1);
    }
}
