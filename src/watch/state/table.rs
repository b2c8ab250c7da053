//! The process table: which rows it has, in which order, which of them is selected or marked, and from which on
//! they are in view.
//!
//! How many rows are visible is the layout's to know; it is handed in.

use std::collections::HashSet;
use std::time::Duration;

use crate::history::memory_series::Courses;
use crate::model::row::Me;
use crate::watch::column::{Column, Columns};
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
    // Who was selected when the rows last came without it: it may be missing from one sample only.
    missed: Option<RowKey>,
    // Where the selected row is, or was when its process went away.
    cursor: usize,
    is_chosen: bool,
    has_begun: bool,
}

/// The list from which the columns are chosen, while it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnList {
    /// Every column in the order in which the table has them, and whether it is shown.
    pub entries: Vec<(Column, bool)>,
    /// The entry that keys act on.
    pub cursor: usize,
    /// What the table had before.
    pub before: Columns,
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

    /// Whether a person selected the row, and not the table by itself.
    pub fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Has the next rows begin at the first one, where the selected row is not among them: a person asked for others.
    pub(super) fn begin(&mut self) {
        self.has_begun = false;
    }

    /// Makes the rows anew, after the sample or the choice has changed, and finds the selected process again.
    /// Where it is gone, nothing is selected until it comes back: a key must not act on whoever moved into its row.
    /// The first row is selected where none ever was, and where a person has just asked for other rows.
    pub(super) fn list(&mut self, screenful: &Screenful, courses: &Courses, me: &Me) {
        self.listing = Listing::new(screenful, courses, &self.choice, me);
        let key = self.selected.or(self.missed);
        match key.and_then(|key| self.listing.position(screenful, &key)) {
            Some(at) => {
                self.cursor = at;
                // Once it is known who it is, nobody else is taken for it.
                let row = self.row(at, screenful).filter(RowKey::is_certain);
                (self.selected, self.missed) = (row.or(key), None);
            }
            None => {
                self.missed = key.filter(RowKey::is_certain);
                (self.selected, self.is_chosen) = (None, false);
                self.cursor = self.cursor.min(self.last());
                if !self.has_begun {
                    self.select(0, screenful);
                    self.is_chosen = false;
                }
            }
        }
        self.has_begun |= self.selected.is_some();
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

    /// Selects the row on this line, or the last one. If there is no row yet, the first one to appear will still be
    /// selected.
    pub(super) fn select(&mut self, at: usize, screenful: &Screenful) {
        self.cursor = at.min(self.last());
        self.selected = self.row(self.cursor, screenful);
        self.is_chosen = self.selected.is_some();
        if self.is_chosen {
            (self.has_begun, self.missed) = (true, None);
        }
    }

    /// Nothing is selected any more.
    pub(super) fn unselect(&mut self) {
        (self.selected, self.missed) = (None, None);
        (self.is_chosen, self.has_begun) = (false, true);
    }

    /// The selected row counts as selected by the table, so that the findings are seen again; whether it did not.
    pub(in crate::watch) fn release(&mut self) -> bool {
        std::mem::take(&mut self.is_chosen)
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

    /// The row on this line.
    fn row(&self, at: usize, screenful: &Screenful) -> Option<RowKey> {
        let line = self.listing.lines.get(at)?;
        Some(screenful.rows.get(line.row)?.key)
    }

    fn last(&self) -> usize {
        self.listing.lines.len().saturating_sub(1)
    }
}
