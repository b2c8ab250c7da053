//! The memory bar: what processes hold, what no one visible holds, what the driver reserves and what is
//! free, told apart by glyph as well as by colour.

use super::line_writer::LineWriter;
use crate::model::snapshot::{Gpu, Memory, MigDevice};
use crate::watch::text::{FREE, HELD, RESERVED, UNATTRIBUTED, UNKNOWN, USED_UNKNOWN};
use crate::watch::theme::Styles;

/// What the glyphs mean, as a heading.
pub fn legend() -> String {
    format!("MEMORY  {HELD} processes  {UNATTRIBUTED} unattributed  {RESERVED} reserved")
}

/// What some memory is in use for.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    total: u64,
    held: u64,
    unattributed: u64,
    unknown_bytes: u64,
    reserved: u64,
    is_stale: bool,
}

impl Shares {
    /// Of a GPU.
    pub fn of(gpu: &Gpu, memory: &Memory) -> Self {
        let rows = gpu.processes.iter().flatten();
        let known = rows.filter_map(|entry| entry.used_bytes);
        let known = known.fold(0, u64::saturating_add);
        // Where a share is unknown, or `used` includes what is reserved (memory info v1), no one can
        // say what the rest is.
        let unattributed = gpu.balance().and_then(|it| it.unattributed.ok());
        Self::new(gpu, memory, known, unattributed.is_some())
    }

    /// Of a MIG device: the memory is its GPU instance's, and so are the processes.
    pub fn on(gpu: &Gpu, device: &MigDevice, memory: &Memory) -> Self {
        let rows = gpu.processes.iter().flatten();
        let own = rows.filter(|row| row.gpu_instance_id == device.gpu_instance_id);
        let known = own.filter_map(|entry| entry.used_bytes);
        Self::new(gpu, memory, known.fold(0, u64::saturating_add), false)
    }

    fn new(gpu: &Gpu, memory: &Memory, known: u64, shows_rest: bool) -> Self {
        let held = known.min(memory.used_bytes);
        let rest = memory.used_bytes - held;
        Self {
            total: memory.total_bytes,
            held,
            unattributed: if shows_rest { rest } else { 0 },
            unknown_bytes: if shows_rest { 0 } else { rest },
            reserved: memory.reserved_bytes.unwrap_or(0),
            is_stale: gpu.stale_seconds.is_some(),
        }
    }
}

/// Draws the memory bar, `width` columns of it.
pub fn bar(shares: Option<Shares>, width: u16, styles: Styles, writer: &mut LineWriter<'_>) {
    let Some(shares) = shares.filter(|shares| shares.total > 0) else {
        writer.left(UNKNOWN, width, styles.faint());
        return;
    };
    let style = if shares.is_stale {
        styles.faint()
    } else {
        styles.held()
    };
    // Each boundary is rounded by itself, so that the bar is never longer than its memory.
    let boundary = |bytes: u64| {
        let share = bytes as f64 / shares.total as f64;
        (share.min(1.0) * f64::from(width)).round() as u16
    };
    let mut bytes = 0u64;
    let mut drawn = 0u16;
    for (part, glyph, style) in [
        (shares.held, HELD, style),
        (shares.unattributed, UNATTRIBUTED, styles.unattributed()),
        (shares.unknown_bytes, USED_UNKNOWN, styles.held()),
        (shares.reserved, RESERVED, styles.faint()),
    ] {
        bytes = bytes.saturating_add(part);
        let mut end = boundary(bytes);
        if glyph == HELD && part > 0 {
            // A process that holds little is still there.
            end = end.max(1);
        }
        let end = end.max(drawn).min(width);
        writer.fill(glyph, end - drawn, style);
        drawn = end;
    }
    writer.fill(FREE, width - drawn, styles.faint());
}

#[cfg(test)]
mod tests {
    use crate::watch::theme::{Depth, Theme};
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;

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
            gpu.memory.map(|memory| Shares::of(gpu, &memory)),
            10,
            Styles {
                theme: Theme::Dark,
                depth: Depth::Mono,
            },
            &mut LineWriter::new(&mut buffer, area, 0),
        );
        buffer
            .content
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect()
    }

    #[test]
    fn a_bar_distinguishes_its_parts() {
        assert_eq!(drawn(&gpu(60, Some(10), &[Some(40)])), "████▒▒░···");
        assert_eq!(drawn(&gpu(1, Some(0), &[Some(1)])), "█·········");
        assert_eq!(drawn(&gpu(0, Some(0), &[])), "··········");
        assert_eq!(drawn(&Gpu::default()), "-         ");
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
}
