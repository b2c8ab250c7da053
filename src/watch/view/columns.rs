//! The list of columns, beside the table that shows what is chosen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::line_writer::LineWriter;
use crate::watch::layout::column_list::ColumnListAreas;
use crate::watch::state::column_list::ColumnList;
use crate::watch::theme::Styles;

/// Terminal columns of a heading.
const TITLE: u16 = 9;

/// Draws the list over what lies below it.
pub fn draw(list: &ColumnList, styles: Styles, area: Rect, buffer: &mut Buffer) {
    let areas = ColumnListAreas::new(list, area);
    for y in areas.whole.top()..areas.whole.bottom() {
        for x in areas.whole.left()..areas.whole.right() {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                cell.reset();
            }
        }
    }
    buffer.set_style(areas.whole, styles.ground());
    let count = list.entries.len();
    let shown = list
        .entries
        .iter()
        .filter(|(_, is_shown)| *is_shown)
        .count();
    let mut writer = LineWriter::new(buffer, areas.title, 0);
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
            buffer.set_style(row, styles.selected());
        }
        let spec = column.spec();
        let (mark, style) = match is_shown {
            true => ("[x]", styles.plain()),
            false => ("[ ]", styles.faint()),
        };
        LineWriter::new(buffer, row, 0)
            .text("│", styles.faint())
            .skip(1)
            .text(mark, style)
            .skip(1)
            .left(spec.title, TITLE, style)
            .skip(1)
            .text(spec.meaning, styles.faint());
    }
}
