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
use super::charts::window;
use super::line_writer::LineWriter;
use crate::history::memory_series::MemorySeries;
use crate::model::field::gpu::{self, GpuField};
use crate::model::snapshot::{Gpu, Memory, MigDevice, Snapshot};
use crate::units::Bytes;
use crate::watch::layout::gpus::has_room_for_parts;
use crate::watch::layout::{self, Gpus};
use crate::watch::memory_shares::{GpuShares, MemoryShare, MemoryShares};
use crate::watch::state::App;
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
                    styles,
                };
                let place = layout::gpus::card(area, (across, height), shown.len(), at);
                card.draw(place, canvas);
            }
        }
        Gpus::Lines => {
            let window = window(&app.judged.courses, snapshot);
            let columns = GpuColumns::new(&shown, area.width);
            let mut writer = LineWriter::new(canvas, heading, 0);
            columns.heading(&window.label(), styles, &mut writer);
            let has_parts = has_room_for_parts(&gpus, area);
            let mut line = 0;
            for &(gpu, shares) in &shown {
                let course = (app.judged.courses.gpu(gpu), window);
                let mut writer = LineWriter::new(canvas, area, line);
                columns.line(snapshot, (gpu, shares), course, styles, &mut writer);
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

/// A column of the lines.
#[derive(Clone, Copy)]
enum Part {
    Index,
    Name,
    Bar,
    Memory,
    /// Where the memory is, by its place in [`BALANCE`].
    Balance(usize),
    Chart(ChartColor),
    Figure(&'static GpuField),
}

/// The columns that a line has room for, from left to right, with their widths; each has a blank after it.
struct GpuColumns {
    columns: Vec<(Part, u16)>,
    /// The shares that the bars have, for the legend.
    shares: Vec<MemoryShare>,
}

const BAR_MIN: u16 = 8;
const BAR_MAX: u16 = 64;
/// With this many columns a bar has its legend on most machines. It is no matter of what is in use, for
/// the columns are not to move with that.
const BAR_ROOMY: u16 = 46;
const BALANCE: [(&str, u16); 4] =
    [("FREE", 10), ("RESERVED", 10), ("PROCESSES", 10), ("UNATTRIBUTED", 12)];

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
        let wanted = |field: &GpuField| match field.width {
            _ if width < field.from_columns => 0,
            0 => widest(&|gpu| columns(&field.short(gpu))).max(columns(field.heading)),
            fixed => fixed,
        };
        let figures = gpu::on_screen().into_iter();
        let mut figures: Vec<_> = figures.map(|field| (field, wanted(field))).collect();
        // Index, bar, memory and the first figure are always shown.
        let always = figures.first().map_or(0, |(_, width)| *width);
        let mut room = width.saturating_sub(index + 1 + BAR_MIN + 1 + memory + 1 + always);
        // The most telling first; each brings the blank before it.
        let mut grant = |wanted: u16| {
            let fits = wanted > 0 && wanted < room;
            if fits {
                room -= wanted + 1;
            }
            if fits { wanted } else { 0 }
        };
        for (_, width) in figures.iter_mut().skip(1).filter(|(field, _)| field.from_columns == 0) {
            *width = grant(*width);
        }
        let name = grant(name);
        let chart = match width {
            0..100 => 8,
            100..140 => 12,
            _ => 20,
        };
        // The bar says what is held now; what became of a GPU's time says more than that of its memory.
        let work = grant(chart);
        let held = if width >= 140 { grant(chart) } else { 0 };
        for (_, width) in figures.iter_mut().skip(1).filter(|(field, _)| field.from_columns > 0) {
            *width = grant(*width);
        }
        // The bar with its legend says more than these, and comes first.
        let balance: u16 = BALANCE.iter().map(|(_, width)| width + 1).sum();
        let has_balance = BAR_MIN + room >= BAR_ROOMY + balance;
        if has_balance {
            room -= balance;
        }
        let bar = (BAR_MIN + room).min(BAR_MAX);
        let mut columns = vec![
            (Part::Index, index),
            (Part::Name, name),
            (Part::Bar, bar),
            (Part::Memory, memory),
        ];
        let parts = BALANCE.iter().enumerate().filter(|_| has_balance);
        columns.extend(parts.map(|(at, (_, width))| (Part::Balance(at), *width)));
        columns.push((Part::Chart(ChartColor::Memory), held));
        columns.push((Part::Chart(ChartColor::Work), work));
        columns.extend(figures.into_iter().map(|(field, width)| (Part::Figure(field), width)));
        columns.retain(|(_, width)| *width > 0);
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
                Part::Balance(at) => (BALANCE[at].0.to_owned(), true),
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
        (course, window): (Option<&MemorySeries>, ChartWindow),
        styles: Styles,
        writer: &mut LineWriter<'_>,
    ) {
        let balance = balance(snapshot, gpu);
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
                Part::Balance(at) => {
                    let text = balance[at].map(|bytes| Bytes(bytes).to_string());
                    writer.right(text.as_deref().unwrap_or(UNKNOWN), width, styles.plain());
                }
                Part::Chart(of) => {
                    let (place, canvas) = writer.place(width);
                    if let Some(course) = course {
                        let total = gpu.memory.map_or(0, |memory| memory.total_bytes) as f64;
                        let (values, top) = match of {
                            ChartColor::Memory => {
                                (chart::values(course.buckets(), window, width), total)
                            }
                            ChartColor::Work => {
                                (chart::values(course.loads(), window, width), 100.0)
                            }
                        };
                        let style = |share| styles.chart(of, share);
                        chart::draw_values(&values, top, style, place, canvas);
                    }
                }
                Part::Figure(_) if is_stale => {
                    let seconds = gpu.stale_seconds.unwrap_or_default();
                    // Utilization is of a moment and has no last known value; the mark takes its place.
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

    /// A line of a MIG device: its memory is its own, the rest is its GPU's.
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

/// What of some memory is used, in figures.
fn used(
    memory: Option<Memory>,
    shares: Option<&MemoryShares>,
    width: u16,
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    let style = shares.map_or(styles.plain(), |it| styles.strain(it.level()));
    writer.right(&memory_text(memory), width, style);
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

/// Where the GPU's memory is, in the order of [`BALANCE`].
fn balance(snapshot: &Snapshot, gpu: &Gpu) -> [Option<u64>; 4] {
    let balance = snapshot.balance(gpu);
    balance.map_or([None; 4], |balance| {
        [
            Some(balance.free_bytes),
            balance.reserved_bytes,
            balance.process_bytes,
            balance.unattributed.ok(),
        ]
    })
}
