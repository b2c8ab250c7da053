//! The list of columns: where it is, and which of its entries are seen.

use ratatui::layout::{Position, Rect};

use crate::watch::state::column_list::ColumnList;

/// Columns of the list, where the screen has more.
const WIDTH: u16 = 48;

/// Where the list is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnListAreas {
    /// All of it.
    pub whole: Rect,
    /// Its heading.
    pub title: Rect,
    /// Its entries, one a line.
    pub body: Rect,
    /// The entry on the first line.
    pub first: usize,
}

impl ColumnListAreas {
    /// The list at the right edge of a screen, between its first line and its last.
    pub fn new(list: &ColumnList, area: Rect) -> Self {
        let width = WIDTH.min(area.width);
        let count = u16::try_from(list.entries.len()).unwrap_or(u16::MAX);
        let whole = Rect {
            x: area.right() - width,
            y: area.y + 1.min(area.height),
            width,
            height: area.height.saturating_sub(2).min(count.saturating_add(1)),
        };
        let title = Rect { height: whole.height.min(1), ..whole };
        let body = Rect { y: title.bottom(), height: whole.height - title.height, ..whole };
        let height = usize::from(body.height);
        let last = list.entries.len().saturating_sub(height);
        Self {
            whole,
            title,
            body,
            // The cursor stays in the middle, where there is more than the list shows.
            first: list.cursor.saturating_sub(height / 2).min(last),
        }
    }

    /// The entry that lies there.
    pub fn entry_at(&self, list: &ColumnList, at: Position) -> Option<usize> {
        if !self.body.contains(at) {
            return None;
        }
        let entry = self.first + usize::from(at.y - self.body.y);
        (entry < list.entries.len()).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::column::Columns;

    #[test]
    fn the_cursor_is_in_sight_on_every_screen() {
        let mut list = ColumnList::new(&Columns::default());
        for (width, height) in [(40, 10), (80, 24), (200, 60)] {
            for at in 0..list.entries.len() {
                list.go_to(at);
                let areas = ColumnListAreas::new(&list, Rect::new(0, 0, width, height));
                let line = at - areas.first;
                assert!(line < usize::from(areas.body.height), "{width}x{height}: {at}");
                let y = areas.body.y + line as u16;
                let there = Position::new(areas.body.x, y);
                assert_eq!(areas.entry_at(&list, there), Some(at));
                assert!(areas.whole.bottom() < height, "the keys stay in sight");
            }
        }
        for (width, height) in [(0, 0), (1, 1), (3, 2)] {
            let areas = ColumnListAreas::new(&list, Rect::new(0, 0, width, height));
            assert!(areas.whole.right() <= width && areas.whole.bottom() <= height.max(1));
        }
    }
}
