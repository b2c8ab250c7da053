//! The list of columns, beside the table that shows what is chosen.

use ratatui::layout::Rect;

use ratatui::buffer::Buffer;

use super::line_writer::{LineWriter, clear};
use crate::watch::layout::column_list::ColumnListAreas;
use crate::watch::state::column_list::ColumnList;
use crate::watch::theme::Styles;

/// Terminal columns of a heading.
const TITLE: u16 = 9;

/// Draws the list over what lies below it.
pub fn draw(list: &ColumnList, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let areas = ColumnListAreas::new(list, area);
    clear(canvas, areas.whole);
    let count = list.entries.len();
    let shown = list.entries.iter().filter(|(_, is_shown)| *is_shown).count();
    let mut writer = LineWriter::new(canvas, areas.title, 0);
    writer
        .fill("─", 2, styles.faint())
        .skip(1)
        .text(&format!("columns: {shown} of {count}"), styles.strong())
        .skip(1);
    let room = writer.room();
    writer.fill("─", room, styles.faint());
    let entries = list.entries.iter().enumerate().skip(areas.first);
    for (line, (at, (column, is_shown))) in (0..areas.body.height).zip(entries) {
        let row = Rect::new(areas.body.x, areas.body.y + line, areas.body.width, 1);
        let is_cursor = at == list.cursor;
        if is_cursor {
            canvas.set_style(row, styles.selected());
        }
        let spec = column.spec();
        let (mark, style) = match is_shown {
            true => ("[x]", styles.plain()),
            false => ("[ ]", styles.faint()),
        };
        LineWriter::new(canvas, row, 0)
            .text("│", styles.faint())
            .skip(1)
            .text(mark, style)
            .skip(1)
            .left(spec.title, TITLE, style)
            .skip(1)
            .text(spec.meaning, styles.faint());
    }
}
