//! The memory bar.
//!
//! Reclaimable memory is solid and in the strongest colour, suspected memory is hatched, and memory in use is
//! muted. The glyphs of reclaimable memory and of memory in use are lower than the line, so that bars on adjacent lines
//! do not merge.

use ratatui::style::Style;

use super::line_writer::LineWriter;
use crate::watch::memory_shares::{MemoryShare, MemoryShares};
use crate::watch::text::{UNKNOWN, columns};
use crate::watch::theme::Styles;

/// Start of the legend, or the whole legend if there is no room for more.
const MEMORY: &str = "MEMORY";
const LEGEND_GAP: u16 = 2;

pub fn share_style(share: MemoryShare, styles: Styles) -> Style {
    match share {
        MemoryShare::InUse | MemoryShare::Unknown => styles.held(),
        MemoryShare::Suspected => styles.suspected(),
        MemoryShare::Reclaimable => styles.reclaimable(),
        MemoryShare::Unattributed => styles.unattributed(),
        MemoryShare::Reserved | MemoryShare::Free => styles.faint(),
    }
}

/// Writes the legend as a heading of `width` columns, with the entries that fit. If only one of several entries fits,
/// the legend has no entries.
pub fn legend(shares: &[MemoryShare], width: u16, styles: Styles, writer: &mut LineWriter<'_>) {
    let width_of = |share: &MemoryShare| LEGEND_GAP + 2 + columns(share.name());
    let mut used = columns(MEMORY);
    let fits = |share: &&MemoryShare| {
        used += width_of(share);
        used <= width
    };
    let count = match shares.iter().take_while(fits).count() {
        1 if shares.len() > 1 => 0,
        count => count,
    };
    let mut room = width.saturating_sub(columns(MEMORY));
    writer.left(MEMORY, width - room, styles.heading());
    for share in &shares[..count] {
        let style = share_style(*share, styles);
        writer.skip(LEGEND_GAP).text(share.glyph(), style).skip(1);
        writer.text(share.name(), styles.heading());
        room -= width_of(share);
    }
    writer.skip(room);
}

pub fn bar(
    shares: Option<&MemoryShares>,
    is_stale: bool,
    width: u16,
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    let Some(shares) = shares else {
        writer.left(UNKNOWN, width, styles.faint());
        return;
    };
    for (share, cells) in MemoryShare::ALL.into_iter().zip(shares.cells(width)) {
        let style = match share {
            MemoryShare::InUse if is_stale => styles.faint(),
            share => share_style(share, styles),
        };
        writer.fill(share.glyph(), cells, style);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ratatui::layout::Rect;

    use super::super::ascii;
    use super::*;
    use crate::model::snapshot::{Gpu, GpuProcess, Memory, Snapshot};
    use crate::model::time::Time;
    use crate::watch::memory_shares::{GpuShares, UseVerdict};
    use crate::watch::testing::lines;
    use crate::watch::theme::Theme;
    use ratatui::buffer::Buffer;

    fn gpu(used: u64, reserved: Option<u64>) -> Gpu {
        Gpu {
            memory: Some(Memory {
                total_bytes: 100,
                reserved_bytes: reserved,
                used_bytes: used,
                free_bytes: 0,
            }),
            processes: Some(Vec::new()),
            ..Gpu::default()
        }
    }

    fn drawn(mut gpu: Gpu, held: &[(Option<u64>, UseVerdict)]) -> String {
        let rows = held.iter().map(|&(used_bytes, verdict)| {
            let row = GpuProcess { used_bytes, ..GpuProcess::default() };
            (row, verdict)
        });
        let rows: Vec<_> = rows.collect();
        gpu.processes = Some(rows.iter().map(|(row, _)| *row).collect());
        let shares = GpuShares::new(&Snapshot::new(Time::default()), &gpu, &rows);
        let area = Rect::new(0, 0, 10, 1);
        let mut canvas = Buffer::empty(area);
        let styles = Styles { theme: Theme::Terminal, has_color: false };
        let mut writer = LineWriter::new(&mut canvas, area, 0);
        bar(shares.whole.as_ref(), false, 10, styles, &mut writer);
        lines(&canvas).concat()
    }

    #[test]
    fn unknown_memory_is_not_drawn_as_unattributed() {
        let (known, unknown) = ((Some(40), UseVerdict::InUse), (None, UseVerdict::InUse));
        let some = drawn(gpu(60, Some(10)), &[known, unknown]);
        assert_eq!(some, "▬▬▬▬▚▚░···");
        assert_eq!(drawn(gpu(60, None), &[known]), "▬▬▬▬▚▚····");
    }

    #[test]
    fn every_share_has_a_unique_glyph_and_ascii_replacement() {
        let glyphs = MemoryShare::ALL.map(MemoryShare::glyph);
        assert_eq!(BTreeSet::from(glyphs).len(), glyphs.len());
        let mut canvas = Buffer::empty(Rect::new(0, 0, glyphs.len() as u16, 1));
        canvas.set_string(0, 0, glyphs.concat(), Style::new());
        ascii::replace(&mut canvas);
        let cells = canvas.content.iter().map(ratatui::buffer::Cell::symbol);
        assert_eq!(cells.collect::<BTreeSet<_>>().len(), glyphs.len());
    }
}
