//! The process table: which rows it has, in which order, which of them is selected or marked, and from which on
//! they are in view.
//!
//! How many rows are visible is the layout's to know; it is handed in.

use std::collections::HashSet;
use std::time::Duration;

use crate::history::memory_series::Courses;
use crate::model::row::Me;
use crate::watch::column::Columns;
use crate::watch::listing::{Choice, Listing};
use crate::watch::view_model::{RowKey, Screenful};

/// The process table.
#[derive(Debug, Default)]
pub struct TableState {
    /// Which rows it is to have, and in which order.
    pub choice: Choice,
    /// Which columns it is to have, where they have room.
    pub columns: Columns,
    /// The rows that it has.
    pub listing: Listing,
    /// The first visible row.
    pub offset: usize,
    /// The columns of the commands that are scrolled away to the left.
    pub scrolled: u16,
    /// The marked rows.
    pub tagged: HashSet<RowKey>,
    /// The row that was clicked last, and when.
    pub clicked: Option<(RowKey, Duration)>,
    selected: Option<RowKey>,
    // Where the selected row is, or was when its process went away.
    cursor: usize,
    is_bereft: bool,
}

impl TableState {
    /// The position of the selected row; `None` where none is selected.
    pub fn selected(&self) -> Option<usize> {
        self.selected.is_some().then_some(self.cursor)
    }

    /// What makes the selected row the same in another snapshot.
    pub fn selected_key(&self) -> Option<RowKey> {
        self.selected
    }

    /// Whether nothing is selected because the process that was is gone.
    pub fn is_bereft(&self) -> bool {
        self.is_bereft
    }

    /// Makes the rows anew, after the sample or the choice has changed, and finds the selected process again.
    /// Where it is gone, nothing is selected: a key must not act on whoever moved into its row.
    pub(super) fn list(&mut self, screenful: &Screenful, courses: &Courses, me: &Me) {
        self.listing = Listing::new(screenful, courses, &self.choice, me);
        let key = self.selected;
        match key.and_then(|key| self.listing.position(screenful, &key)) {
            Some(at) => self.cursor = at,
            None => {
                self.is_bereft |= self.selected.is_some();
                self.selected = None;
                self.cursor = self.cursor.min(self.last());
            }
        }
    }

    /// Keeps the selected row in view, and the table full, where so many rows are visible.
    pub(super) fn scroll(&mut self, height: usize) {
        if self.selected.is_some() {
            let first = (self.cursor + 1).saturating_sub(height);
            self.offset = self.offset.clamp(first, self.cursor);
        }
        let count = self.listing.lines.len();
        self.offset = self.offset.min(count.saturating_sub(height));
    }

    /// Selects the row on this line, or the last one.
    pub(super) fn select(&mut self, at: usize, screenful: &Screenful) {
        self.is_bereft = false;
        self.cursor = at.min(self.last());
        let line = self.listing.lines.get(self.cursor);
        self.selected = line.and_then(|line| Some(screenful.rows.get(line.row)?.key));
    }

    /// Nothing is selected any more; whether something was.
    pub(in crate::watch) fn unselect(&mut self) -> bool {
        self.is_bereft = false;
        self.selected.take().is_some()
    }

    /// The line that a key leads to which goes `steps` on. The first one leads to where the cursor is, or was.
    pub(super) fn line_after(&self, steps: isize) -> usize {
        match self.selected() {
            Some(at) => at.saturating_add_signed(steps),
            None => self.cursor,
        }
    }

    /// Marks the selected row, or takes its mark away.
    pub(super) fn toggle_tag(&mut self) {
        if let Some(key) = self.selected
            && !self.tagged.remove(&key)
        {
            self.tagged.insert(key);
        }
    }

    fn last(&self) -> usize {
        self.listing.lines.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::sample;

    /// A table of the processes of one GPU.
    fn table(processes: u32) -> (TableState, Screenful) {
        let snapshot = sample::snapshot(1, processes);
        let screenful = Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        let mut table = TableState::default();
        list(&mut table, &screenful);
        (table, screenful)
    }

    fn list(table: &mut TableState, screenful: &Screenful) {
        let me = Me { uid: Some(1000), name: None };
        table.list(screenful, &Courses::default(), &me);
    }

    #[test]
    fn the_selected_row_stays_in_view_and_the_table_full() {
        let (mut table, screenful) = table(30);
        for (line, height, offset) in
            [(29, 10, 20), (25, 10, 20), (5, 10, 5), (usize::MAX, 4, 26), (29, 40, 0)]
        {
            table.select(line, &screenful);
            table.scroll(height);
            assert_eq!(table.selected(), Some(line.min(29)));
            assert_eq!(table.offset, offset, "{line} of {height}");
        }
    }

    #[test]
    fn the_selection_follows_its_process_and_ends_with_it() {
        let (mut table, mut screenful) = table(5);
        table.select(2, &screenful);
        let key = table.selected_key().unwrap();
        table.choice.sort.reversed = true;
        list(&mut table, &screenful);
        assert_eq!((table.selected_key(), table.selected()), (Some(key), Some(2)));
        screenful.rows.retain(|row| row.key != key);
        list(&mut table, &screenful);
        assert_eq!((table.selected(), table.line_after(1)), (None, 2));
    }

    #[test]
    fn a_step_goes_on_from_the_selected_row_and_begins_where_the_cursor_was() {
        let (mut table, screenful) = table(3);
        assert_eq!(table.line_after(1), 0);
        table.select(1, &screenful);
        assert_eq!((table.line_after(1), table.line_after(-2)), (2, 0));
        assert!(table.unselect());
        assert!(!table.unselect());
        assert_eq!(table.line_after(-1), 1);
    }

    #[test]
    fn a_mark_is_set_and_taken_away_on_the_selected_row_only() {
        let (mut table, screenful) = table(3);
        table.toggle_tag();
        assert!(table.tagged.is_empty(), "nothing is selected");
        table.select(1, &screenful);
        table.toggle_tag();
        assert!(table.tagged.contains(&table.selected_key().unwrap()));
        table.toggle_tag();
        assert!(table.tagged.is_empty());
    }
}
