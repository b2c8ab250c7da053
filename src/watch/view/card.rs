//! A GPU as a card: its name and figures, where its memory is, its MIG devices, and how memory and
//! utilization moved.
//!
//! The bar is in `bar`, the charts are in `charts`; how many cards stand side by side is in `layout.rs`.

use ratatui::layout::Rect;
use ratatui::style::Style;

use ratatui::buffer::Buffer;

use super::bar::{bar, share_style};
use super::chart::ChartWindow;
use super::charts::GpuCharts;
use super::gpus::figure_style;
use super::gpus::figures::{is_lost, lost_text, memory_text, name, part_name, reason, stale_text};
use super::line_writer::LineWriter;
use crate::history::memory_series::MemorySeries;
use crate::model::field::gpu::{self, CARD_FIELDS, GpuField};
use crate::model::snapshot::{Gpu, Memory, MigDevice, Snapshot};
use crate::units::Bytes;
use crate::watch::layout::charts::{CHARTS_ROWS_MIN, beside};
use crate::watch::memory_shares::{GpuShares, MemoryShare, MemoryShares};
use crate::watch::text::{NOT_AVAILABLE, columns};
use crate::watch::theme::Styles;
use crate::watch::view_model::percent;

/// Columns that the name keeps beside the figures.
const NAME_MIN: u16 = 12;
/// A narrower card has only what is judged, so that cards side by side have the same figures.
const WIDE: u16 = 90;
/// Columns of a MIG device's number and of its profile.
const PART: (u16, u16) = (6, 16);

/// What a card is made of.
pub(super) struct Card<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) gpu: &'a Gpu,
    /// What its memory is in use for.
    pub(super) shares: &'a GpuShares,
    /// How its memory and utilization moved; `None` where nothing was seen.
    pub(super) course: Option<&'a MemorySeries>,
    /// The time that the charts show.
    pub(super) window: ChartWindow,
    pub(super) styles: Styles,
}

impl Card<'_> {
    /// Draws it, from top to bottom; charts take the lines that are left.
    pub(super) fn draw(&self, area: Rect, canvas: &mut Buffer) {
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
        let (mut figures, others) = match gpu.stale_seconds {
            // Utilization is of a moment and has no last known value; the mark takes its place.
            Some(seconds) => (vec![(stale_text(seconds), styles.alarm())], Vec::new()),
            None if is_lost(gpu) => (Vec::new(), Vec::new()),
            None if writer.room() >= WIDE => (figures(gpu, styles), other_figures(gpu, styles)),
            None => (figures(gpu, styles), Vec::new()),
        };
        let index = gpu.index.to_string();
        let room = |name: u16| writer.room().saturating_sub(columns(&index) + 1 + name);
        let (least, whole) = (room(NAME_MIN), room(columns(&name(gpu)).max(NAME_MIN)));
        let mut used = 0;
        // A figure is whole or not at all.
        let mut fits = |figure: &str, room: u16| {
            let width = 2 + columns(figure);
            let fits = used + width <= room;
            used += if fits { width } else { 0 };
            fits
        };
        figures.retain(|(figure, _)| fits(figure, least));
        // The name comes before these.
        let others = others.into_iter();
        figures.extend(others.filter(|(figure, _)| fits(figure, whole)));
        let name_room = writer.room().saturating_sub(used + columns(&index) + 1);
        writer.text(&index, styles.strong()).skip(1).left(&name(gpu), name_room, styles.strong());
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

    /// The bar on what the text beside it leaves of the line.
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
        let style = shares.map_or(styles.plain(), |it| styles.strain(it.level()));
        writer.skip(1).text(&text, style);
    }

    /// Where the memory is, in figures; the bar's legend as well.
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
                .text(share.glyph(), share_style(share, shares.level(), styles))
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

    /// The charts under their captions, side by side; that of utilization only where there is any.
    fn charts(&self, area: Rect, canvas: &mut Buffer) {
        if area.height < CHARTS_ROWS_MIN {
            return;
        }
        let charts = GpuCharts {
            gpu: self.gpu,
            course: self.course,
            window: self.window,
            styles: self.styles,
            title: String::new(),
        };
        charts.draw(beside(area), canvas);
    }
}

/// What else there is, where a card is wide.
fn other_figures(gpu: &Gpu, styles: Styles) -> Vec<(String, Style)> {
    let texts = CARD_FIELDS.iter().filter_map(|field| field.on_card(gpu));
    texts.map(|text| (text, styles.faint())).collect()
}

/// What there is to say of a GPU beside its memory, the most telling first.
fn figures(gpu: &Gpu, styles: Styles) -> Vec<(String, Style)> {
    let fields = gpu::on_screen().into_iter();
    let figure = |field: &GpuField| Some((field.on_card(gpu)?, figure_style(field, gpu, styles)));
    fields.filter_map(figure).collect()
}
