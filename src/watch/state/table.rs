//! The process table: its rows and their order, the selected and the marked rows, and the first visible row.
//!
//! The layout knows how many rows are visible, and passes that in.

use std::collections::HashSet;
use std::time::Duration;

use crate::history::memory_series::Courses;
use crate::model::row::Me;
use crate::watch::column::{Column, Columns};
use crate::watch::listing::{Choice, Listing};
use crate::watch::view_model::{RowKey, Screenful};

#[derive(Debug, Default)]
pub struct TableState {
    /// The chosen rows and their order.
    pub choice: Choice,
    /// The chosen columns.
    pub columns: Columns,
    pub listing: Listing,
    /// The first visible row.
    pub offset: usize,
    /// Columns by which commands are scrolled to the left.
    pub scrolled: u16,
    /// The marked rows.
    pub tagged: HashSet<RowKey>,
    /// The row that was clicked last, and when.
    pub clicked: Option<(RowKey, Duration)>,
    selected: Option<RowKey>,
    // What was selected when a sample came without it, and whether a person had selected it.
    missed: Option<(RowKey, bool)>,
    // The line of the selected row, or where it was when its process disappeared.
    cursor: usize,
    is_chosen: bool,
    has_begun: bool,
}

/// The open list of columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnList {
    /// Every column, in the table's order, and whether it is shown.
    pub entries: Vec<(Column, bool)>,
    /// The entry that keys act on.
    pub cursor: usize,
    /// The table's columns before.
    pub before: Columns,
}

impl TableState {
    /// The line of the selected row.
    pub fn selected(&self) -> Option<usize> {
        self.selected.is_some().then_some(self.cursor)
    }

    /// The key that finds the selected row in another snapshot.
    pub fn selected_key(&self) -> Option<RowKey> {
        self.selected
    }

    /// Whether a person selected the row, rather than the table itself.
    pub fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Makes the next rows start at the first one if they lack the selected row, because a person asked for other rows.
    pub(super) fn begin(&mut self) {
        self.has_begun = false;
    }

    /// Rebuilds the rows after a new sample or choice, and finds the selected process again. If it is gone, nothing is
    /// selected until it comes back, because a key must not act on the row that moved into its place. The first row is
    /// selected if none ever was, or if a person has just asked for other rows.
    pub(super) fn list(&mut self, screenful: &Screenful, courses: &Courses, me: &Me) {
        self.listing = Listing::new(screenful, courses, &self.choice, me);
        let missed = self.missed.take();
        let key = self.selected.or(missed.map(|(key, _)| key));
        match key.and_then(|key| self.listing.position(screenful, &key)) {
            Some(at) => {
                self.cursor = at;
                // Once the identity is known, no other process can be mistaken for it.
                let row = self.row(at, screenful).filter(RowKey::is_certain);
                self.selected = row.or(key);
                self.is_chosen |= missed.is_some_and(|(_, is_chosen)| is_chosen);
            }
            None => {
                let is_chosen = missed.map_or(self.is_chosen, |(_, is_chosen)| is_chosen);
                self.missed = key.filter(RowKey::is_certain).map(|key| (key, is_chosen));
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

    /// Keeps the selected row in view, and the table full, if this many rows are visible.
    pub(super) fn scroll(&mut self, height: usize) {
        if self.selected.is_some() {
            let first = (self.cursor + 1).saturating_sub(height);
            self.offset = self.offset.clamp(first, self.cursor);
        }
        let count = self.listing.lines.len();
        self.offset = self.offset.min(count.saturating_sub(height));
    }

    /// Selects the row on this line, or the last one. If there are no rows yet, the first to appear will still be
    /// selected.
    pub(super) fn select(&mut self, at: usize, screenful: &Screenful) {
        self.cursor = at.min(self.last());
        self.selected = self.row(self.cursor, screenful);
        self.is_chosen = self.selected.is_some();
        if self.is_chosen {
            (self.has_begun, self.missed) = (true, None);
        }
    }

    pub(super) fn unselect(&mut self) {
        (self.selected, self.missed) = (None, None);
        (self.is_chosen, self.has_begun) = (false, true);
    }

    /// Treats the selected row as selected by the table itself, so that findings are shown again; returns whether a
    /// person had selected it.
    pub(in crate::watch) fn release(&mut self) -> bool {
        std::mem::take(&mut self.is_chosen)
    }

    /// The line that is `steps` away. Without a selection, it is the line of the cursor.
    pub(super) fn line_after(&self, steps: isize) -> usize {
        match self.selected() {
            Some(at) => at.saturating_add_signed(steps),
            None => self.cursor,
        }
    }

    pub(super) fn toggle_tag(&mut self) {
        if let Some(key) = self.selected
            && !self.tagged.remove(&key)
        {
            self.tagged.insert(key);
        }
    }

    fn row(&self, at: usize, screenful: &Screenful) -> Option<RowKey> {
        let line = self.listing.lines.get(at)?;
        Some(screenful.rows.get(line.row)?.key)
    }

    fn last(&self) -> usize {
        self.listing.lines.len().saturating_sub(1)
    }
}
