//! The cells of a picture that show something.

use ratatui::buffer::Cell;

use crate::watch::text::columns;

/// The cells of a line that show something themselves, with their columns and how many each takes; the
/// right half of a wide character does not.
pub(super) fn visible(line: &[Cell]) -> impl Iterator<Item = (usize, &Cell, usize)> {
    let mut next = 0;
    line.iter().enumerate().filter_map(move |(at, cell)| {
        if at < next {
            return None;
        }
        let width = usize::from(columns(cell.symbol())).max(1);
        next = at + width;
        Some((at, cell, width))
    })
}
