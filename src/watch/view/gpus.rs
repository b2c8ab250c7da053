//! The GPUs: a line each, a grid, or one line for all, as the layout says.
//!
//! The memory bar tells apart what processes hold, what nobody visible holds, what the driver
//! reserves and what is free, by glyph as well as by colour. What a GPU last said before it fell
//! silent is marked `stale`; one that is gone is marked `lost`, with the error.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::look::Look;
use super::pen::{Pen, clean, columns};
use super::{UNKNOWN, whole};
use crate::model::snapshot::{Gpu, Memory, Snapshot};
use crate::units::{Bytes, Span};
use crate::watch::app::App;
use crate::watch::layout::{DENSE_CELL, GRID_CELL, Gpus};
use crate::watch::picture::percent;

/// Held by processes.
pub const HELD: &str = "█";
/// Used, and no visible process holds it.
pub const UNATTRIBUTED: &str = "▒";
/// Used, and by whom is not known.
pub const UNTOLD: &str = "▚";
/// Reserved by the driver.
pub const RESERVED: &str = "░";
/// Free.
pub const FREE: &str = "·";

/// Draws the heading and the GPUs.
pub fn draw(app: &App, look: Look, form: Gpus, heading: Rect, area: Rect, buffer: &mut Buffer) {
    let Some(picture) = &app.picture else {
        return;
    };
    let snapshot = &picture.snapshot;
    if snapshot.gpus.is_empty() {
        Pen::new(buffer, area, 0).text("no GPU", look.strong());
        return;
    }
    match form {
        Gpus::Lines => {
            let columns = Columns::new(snapshot, area.width);
            columns.heading(look, heading, buffer);
            for (line, gpu) in (0..area.height).zip(&snapshot.gpus) {
                columns.line(snapshot, gpu, look, area, line, buffer);
            }
        }
        Gpus::Grid => {
            cells_heading(snapshot, "memory %, util %", look, heading, buffer);
            cells(snapshot, GRID_CELL, area, buffer, |gpu, pen| {
                grid_cell(snapshot, gpu, look, pen);
            });
        }
        Gpus::Dense => {
            cells_heading(snapshot, "memory %", look, heading, buffer);
            cells(snapshot, DENSE_CELL, area, buffer, |gpu, pen| {
                dense_cell(gpu, look, pen);
            });
        }
        Gpus::Sum => {
            Pen::new(buffer, area, 0).text(&sum(snapshot), look.plain());
        }
    }
}

/// All GPUs in a few words: `64 GPUs  1.2/5.0 TiB (24%)  2 lost`.
pub fn sum(snapshot: &Snapshot) -> String {
    let count = snapshot.gpus.len();
    let mut text = format!("{count} GPU{}", if count == 1 { "" } else { "s" });
    let known = || snapshot.gpus.iter().filter_map(|gpu| gpu.memory);
    let used = known().fold(0u64, |sum, memory| sum.saturating_add(memory.used_bytes));
    let total = known().fold(0u64, |sum, memory| sum.saturating_add(memory.total_bytes));
    if total > 0 {
        text.push_str(&format!(
            "  {} ({:.0}%)",
            of(used, total),
            percent(used, total)
        ));
    }
    let mut tell = |count: usize, word: &str| {
        if count > 0 {
            text.push_str(&format!("  {count} {word}"));
        }
    };
    let (mut lost_count, mut stale_count) = (0, 0);
    for gpu in &snapshot.gpus {
        lost_count += usize::from(is_lost(gpu));
        stale_count += usize::from(gpu.stale_seconds.is_some());
    }
    tell(lost_count, "lost");
    tell(stale_count, "stale");
    text
}

/// Which values a line has room for, and how wide they are.
struct Columns {
    index: u16,
    name: u16,
    bar: u16,
    memory: u16,
    power: u16,
    temperature: u16,
    performance: u16,
}

const UTILIZATION: u16 = 5;
const BAR_MIN: u16 = 8;
const BAR_MAX: u16 = 64;

impl Columns {
    fn new(snapshot: &Snapshot, width: u16) -> Self {
        let widest = |text: &dyn Fn(&Gpu) -> u16| snapshot.gpus.iter().map(text).max().unwrap_or(0);
        let mut these = Self {
            index: widest(&|gpu| columns(&gpu.index.to_string())).max(3),
            name: 0,
            bar: BAR_MIN,
            memory: widest(&|gpu| columns(&memory_text(gpu))).max(6),
            power: 0,
            temperature: 0,
            performance: 0,
        };
        let mut room =
            width.saturating_sub(these.index + 1 + BAR_MIN + 1 + these.memory + 1 + UTILIZATION);
        // The most telling first; each brings the blank before it.
        let mut grant = |wanted: u16| {
            let fits = wanted > 0 && wanted < room;
            if fits {
                room -= wanted + 1;
            }
            if fits { wanted } else { 0 }
        };
        these.power = grant(widest(&|gpu| columns(&power_text(gpu))).max(5));
        these.temperature = grant(5);
        these.name = grant(widest(&|gpu| columns(&name(gpu))).clamp(4, 24));
        if width >= 100 {
            these.performance = grant(3);
        }
        these.bar = (BAR_MIN + room).min(BAR_MAX);
        these
    }

    fn heading(&self, look: Look, area: Rect, buffer: &mut Buffer) {
        let style = look.heading();
        let mut pen = Pen::new(buffer, area, 0);
        pen.right("GPU", self.index, style).skip(1);
        if self.name > 0 {
            pen.left("NAME", self.name, style).skip(1);
        }
        // The legend is whole or absent; the help has it, too.
        let legend =
            format!("MEMORY  {HELD} processes  {UNATTRIBUTED} unattributed  {RESERVED} reserved");
        let bar = if columns(&legend) <= self.bar {
            &legend
        } else {
            "MEMORY"
        };
        pen.left(bar, self.bar, style).skip(1);
        pen.right("USED", self.memory, style).skip(1);
        pen.right("UTIL", UTILIZATION, style);
        for (title, width) in [
            ("POWER", self.power),
            ("TEMP", self.temperature),
            ("P", self.performance),
        ] {
            if width > 0 {
                pen.skip(1).right(title, width, style);
            }
        }
    }

    fn line(
        &self,
        snapshot: &Snapshot,
        gpu: &Gpu,
        look: Look,
        area: Rect,
        line: u16,
        buffer: &mut Buffer,
    ) {
        let mut pen = Pen::new(buffer, area, line);
        pen.right(&gpu.index.to_string(), self.index, look.strong())
            .skip(1);
        if self.name > 0 {
            pen.left(&name(gpu), self.name, look.plain()).skip(1);
        }
        if is_lost(gpu) {
            pen.text(&lost_text(snapshot, gpu, area.width), look.alarm());
            return;
        }
        bar(gpu, self.bar, look, &mut pen);
        let fullness = gpu
            .memory
            .filter(|memory| memory.total_bytes > 0)
            .map_or(0.0, |memory| percent(memory.used_bytes, memory.total_bytes));
        pen.skip(1)
            .right(&memory_text(gpu), self.memory, look.fullness(fullness))
            .skip(1);
        if let Some(seconds) = gpu.stale_seconds {
            // Utilization is of a moment and has no last known value; the mark takes its place.
            pen.text(&stale_text(seconds), look.alarm());
            return;
        }
        pen.right(&whole(gpu.gpu_percent, "%"), UTILIZATION, look.plain());
        if self.power > 0 {
            pen.skip(1)
                .right(&power_text(gpu), self.power, look.plain());
        }
        if self.temperature > 0 {
            let text = whole(gpu.temperature_celsius, "°C");
            pen.skip(1).right(&text, self.temperature, look.plain());
        }
        if self.performance > 0 {
            let text = gpu
                .performance_state
                .map_or_else(|| UNKNOWN.to_owned(), |state| format!("P{state}"));
            pen.skip(1).right(&text, self.performance, look.faint());
        }
    }
}

fn cells_heading(snapshot: &Snapshot, what: &str, look: Look, area: Rect, buffer: &mut Buffer) {
    let text = format!("{}: {what}", sum(snapshot));
    Pen::new(buffer, area, 0).text(&text, look.heading());
}

/// Lays GPUs out in cells, row by row.
fn cells(
    snapshot: &Snapshot,
    width: u16,
    area: Rect,
    buffer: &mut Buffer,
    mut draw: impl FnMut(&Gpu, &mut Pen<'_>),
) {
    let across = (area.width / width).max(1);
    for (at, gpu) in (0u16..).zip(&snapshot.gpus) {
        let (line, column) = (at / across, at % across);
        if line >= area.height {
            return;
        }
        let cell = Rect::new(area.x + column * width, area.y + line, width - 2, 1);
        draw(gpu, &mut Pen::new(buffer, cell, 0));
    }
}

fn grid_cell(snapshot: &Snapshot, gpu: &Gpu, look: Look, pen: &mut Pen<'_>) {
    pen.right(&gpu.index.to_string(), 3, look.strong()).skip(1);
    if is_lost(gpu) {
        let text = lost_text(snapshot, gpu, GRID_CELL);
        pen.text(&text, look.alarm());
        return;
    }
    bar(gpu, 10, look, pen);
    pen.right(&used_percent(gpu), 5, look.plain());
    match gpu.stale_seconds {
        Some(_) => pen.right("stale", 5, look.alarm()),
        None => pen.right(&whole(gpu.gpu_percent, "%"), 5, look.faint()),
    };
}

fn dense_cell(gpu: &Gpu, look: Look, pen: &mut Pen<'_>) {
    pen.right(&gpu.index.to_string(), 3, look.strong());
    if is_lost(gpu) {
        pen.right("lost", 5, look.alarm());
    } else if gpu.stale_seconds.is_some() {
        pen.right("stale", 5, look.alarm());
    } else {
        pen.right(&used_percent(gpu), 5, look.plain());
    }
}

/// Draws the memory bar, `width` columns of it.
fn bar(gpu: &Gpu, width: u16, look: Look, pen: &mut Pen<'_>) {
    let Some(memory) = gpu.memory.filter(|memory| memory.total_bytes > 0) else {
        pen.left(UNKNOWN, width, look.faint());
        return;
    };
    let [held, unattributed, untold, reserved] = parts(gpu, &memory);
    let style = if gpu.stale_seconds.is_some() {
        look.faint()
    } else {
        look.held()
    };
    // Each boundary is rounded by itself, so that the bar is never longer than its memory.
    let boundary = |bytes: u64| {
        let share = bytes as f64 / memory.total_bytes as f64;
        (share.min(1.0) * f64::from(width)).round() as u16
    };
    let mut bytes = 0u64;
    let mut drawn = 0u16;
    for (part, glyph, style) in [
        (held, HELD, style),
        (unattributed, UNATTRIBUTED, look.unattributed()),
        (untold, UNTOLD, look.held()),
        (reserved, RESERVED, look.faint()),
    ] {
        bytes = bytes.saturating_add(part);
        let mut end = boundary(bytes);
        if glyph == HELD && part > 0 {
            // A process that holds little is still there.
            end = end.max(1);
        }
        let end = end.max(drawn).min(width);
        pen.fill(glyph, end - drawn, style);
        drawn = end;
    }
    pen.fill(FREE, width - drawn, look.faint());
}

/// Used memory as held by processes, unattributed, not told; and reserved memory.
fn parts(gpu: &Gpu, memory: &Memory) -> [u64; 4] {
    let known: u64 = gpu
        .processes
        .iter()
        .flatten()
        .filter_map(|entry| entry.used_bytes)
        .fold(0, u64::saturating_add);
    let held = known.min(memory.used_bytes);
    let rest = memory.used_bytes - held;
    // Where a share is unknown, or `used` includes what is reserved (memory info v1), nobody can say
    // what the rest is.
    if gpu.process_bytes().is_some() && memory.reserved_bytes.is_some() {
        [held, rest, 0, memory.reserved_bytes.unwrap_or(0)]
    } else {
        [held, 0, rest, memory.reserved_bytes.unwrap_or(0)]
    }
}

/// `8.1/45.0 GiB`; both units where they differ.
fn of(used: u64, total: u64) -> String {
    let (used, total) = (Bytes(used).to_string(), Bytes(total).to_string());
    match (used.split_once(' '), total.split_once(' ')) {
        (Some((number, unit)), Some((_, whole))) if unit == whole => format!("{number}/{total}"),
        _ => format!("{used}/{total}"),
    }
}

fn memory_text(gpu: &Gpu) -> String {
    gpu.memory.map_or_else(
        || UNKNOWN.to_owned(),
        |memory| of(memory.used_bytes, memory.total_bytes),
    )
}

fn used_percent(gpu: &Gpu) -> String {
    gpu.memory
        .filter(|memory| memory.total_bytes > 0)
        .map_or_else(
            || UNKNOWN.to_owned(),
            |memory| format!("{:.0}%", percent(memory.used_bytes, memory.total_bytes)),
        )
}

fn power_text(gpu: &Gpu) -> String {
    match (gpu.power_watts, gpu.power_limit_watts) {
        (Some(power), Some(limit)) => format!("{power:.0}/{limit:.0} W"),
        (Some(power), None) => format!("{power:.0} W"),
        (None, _) => UNKNOWN.to_owned(),
    }
}

fn name(gpu: &Gpu) -> String {
    let name = gpu.name.as_deref().unwrap_or(UNKNOWN);
    // Every GPU here is NVIDIA's; what follows tells them apart.
    clean(name.strip_prefix("NVIDIA ").unwrap_or(name), 64).into_owned()
}

fn is_lost(gpu: &Gpu) -> bool {
    gpu.memory.is_none() && gpu.processes.is_none()
}

fn lost_text(snapshot: &Snapshot, gpu: &Gpu, width: u16) -> String {
    let error = snapshot
        .errors
        .iter()
        .find(|error| error.gpu == Some(gpu.index));
    match error {
        Some(error) => format!("lost: {}", clean(&error.error, width)),
        None => "lost: nothing of it could be read".to_owned(),
    }
}

fn stale_text(seconds: f64) -> String {
    format!("stale {}", Span::from_seconds(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::GpuProcess;

    fn gpu(used: u64, reserved: Option<u64>, held: &[Option<u64>]) -> Gpu {
        Gpu {
            memory: Some(Memory {
                total_bytes: 100,
                reserved_bytes: reserved,
                used_bytes: used,
                free_bytes: 0,
            }),
            processes: Some(
                held.iter()
                    .map(|&used_bytes| GpuProcess {
                        used_bytes,
                        ..GpuProcess::default()
                    })
                    .collect(),
            ),
            ..Gpu::default()
        }
    }

    fn drawn(gpu: &Gpu) -> String {
        let area = Rect::new(0, 0, 10, 1);
        let mut buffer = Buffer::empty(area);
        bar(
            gpu,
            10,
            Look { color: false },
            &mut Pen::new(&mut buffer, area, 0),
        );
        buffer
            .content
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect()
    }

    #[test]
    fn a_bar_tells_its_parts_apart() {
        assert_eq!(drawn(&gpu(60, Some(10), &[Some(40)])), "████▒▒░···");
        assert_eq!(drawn(&gpu(1, Some(0), &[Some(1)])), "█·········");
        assert_eq!(drawn(&gpu(0, Some(0), &[])), "··········");
        assert_eq!(drawn(&Gpu::default()), "—         ");
    }

    #[test]
    fn what_is_not_known_is_not_called_unattributed() {
        assert_eq!(drawn(&gpu(60, Some(10), &[Some(40), None])), "████▚▚░···");
        assert_eq!(drawn(&gpu(60, None, &[Some(40)])), "████▚▚····");
    }

    #[test]
    fn absurd_numbers_fill_the_bar_and_no_more() {
        let absurd = gpu(u64::MAX, Some(u64::MAX), &[Some(u64::MAX), Some(u64::MAX)]);
        assert_eq!(drawn(&absurd), "██████████");
    }

    #[test]
    fn units_are_shown_once_where_they_agree() {
        assert_eq!(of(8 << 30, 45 << 30), "8.0/45.0 GiB");
        assert_eq!(of(512 << 20, 45 << 30), "512.0 MiB/45.0 GiB");
    }
}
