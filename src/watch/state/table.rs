//! State of the process table: rows, selection, marks and scroll position.

use std::collections::HashSet;
use std::time::Duration;

use crate::history::memory_series::AllSeries;
use crate::model::row::CurrentUser;
use crate::watch::column::{Column, Columns};
use crate::watch::listing::{Choice, Listing};
use crate::watch::view_model::{RowKey, Screenful};

#[derive(Debug, Default)]
pub struct TableState {
    pub choice: Choice,
    pub columns: Columns,
    pub listing: Listing,
    pub offset: usize,
    /// Scroll offset of the commands, in columns.
    pub scrolled: u16,
    pub tagged: HashSet<RowKey>,
    pub clicked: Option<(RowKey, Duration)>,
    selected: Option<RowKey>,
    // The selected row while the table does not list it, and whether the user had selected it.
    missed: Option<(RowKey, bool)>,
    // Line of the selected row, or the row's last known line if it is no longer listed.
    cursor: usize,
    is_chosen: bool,
    has_begun: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnList {
    /// All columns in table order, each with whether it is shown.
    pub entries: Vec<(Column, bool)>,
    pub cursor: usize,
    /// The columns when the list was opened. Esc restores them.
    pub before: Columns,
}

impl TableState {
    pub fn selected(&self) -> Option<usize> {
        self.selected.is_some().then_some(self.cursor)
    }

    pub fn selected_key(&self) -> Option<RowKey> {
        self.selected
    }

    /// Returns whether the user, rather than the table, selected the row.
    pub fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Lets the next rebuild select the first row if the selected row is no longer listed. Call this function when the
    /// user changes which rows are listed.
    pub(super) fn reset_selection(&mut self) {
        self.has_begun = false;
    }

    /// Rebuilds the rows and selects the same process again. If the process is gone, nothing is selected, because a
    /// key must not act on another process. If no row has been selected yet, or after
    /// [`reset_selection`](Self::reset_selection), the first row is selected.
    pub(super) fn list(&mut self, screenful: &Screenful, all_series: &AllSeries, me: &CurrentUser) {
        self.listing = Listing::new(screenful, all_series, &self.choice, me);
        let missed = self.missed.take();
        let key = self.selected.or(missed.map(|(key, _)| key));
        match key.and_then(|key| self.listing.position(screenful, &key)) {
            Some(at) => {
                self.cursor = at;
                // A complete identity matches no other process.
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

    pub(super) fn scroll(&mut self, height: usize) {
        if self.selected.is_some() {
            let first = (self.cursor + 1).saturating_sub(height);
            self.offset = self.offset.clamp(first, self.cursor);
        }
        let count = self.listing.lines.len();
        self.offset = self.offset.min(count.saturating_sub(height));
    }

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

    /// Keeps the row selected, but forgets that the user chose it, so that the panel shows the findings again. Returns
    /// whether the user had chosen it.
    pub(in crate::watch) fn clear_chosen(&mut self) -> bool {
        std::mem::take(&mut self.is_chosen)
    }

    /// Returns the line `steps` away from the selection, or the cursor's line without a selection.
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
