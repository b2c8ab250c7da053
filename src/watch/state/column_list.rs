//! The list from which the table's columns are chosen: all of them, which are shown, and where one is in it.

use crate::watch::column::{Column, Columns};

/// The list while it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnList {
    /// Every column in the order in which the table has them, and whether it is shown.
    pub entries: Vec<(Column, bool)>,
    /// The entry that keys act on.
    pub cursor: usize,
    /// What the table had before.
    pub before: Columns,
}

impl ColumnList {
    /// All columns, of which the table has these.
    pub fn new(columns: &Columns) -> Self {
        let mut entries: Vec<(Column, bool)> =
            columns.iter().map(|column| (column, true)).collect();
        // What is not shown stands where it would by itself: after its neighbour.
        let mut after = 0;
        for column in Column::ALL {
            match entries.iter().position(|(entry, _)| *entry == column) {
                Some(at) => after = at + 1,
                None => {
                    entries.insert(after, (column, false));
                    after += 1;
                }
            }
        }
        Self { entries, cursor: 0, before: columns.clone() }
    }

    /// The columns that are to be shown; `None` where that is none.
    pub fn chosen(&self) -> Option<Columns> {
        let shown = self.entries.iter().filter(|(_, is_shown)| *is_shown);
        Columns::new(shown.map(|(column, _)| *column))
    }

    /// Goes to an entry, or to the last one.
    pub fn go_to(&mut self, at: usize) {
        self.cursor = at.min(self.entries.len().saturating_sub(1));
    }

    /// Shows the entry, or hides it.
    pub fn switch(&mut self) {
        if let Some((_, is_shown)) = self.entries.get_mut(self.cursor) {
            *is_shown ^= true;
        }
    }

    /// Moves the entry so many places on, and the cursor with it; at an end it stays.
    pub fn shift(&mut self, steps: isize) {
        let Some(to) = self.cursor.checked_add_signed(steps) else {
            return;
        };
        if to < self.entries.len() {
            self.entries.swap(self.cursor, to);
            self.cursor = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_in_the_list_once_whatever_is_shown() {
        for shown in [&Column::ALL[..], &[Column::Command, Column::Gpu], &[Column::Finding]] {
            let columns = Columns::new(shown.iter().copied()).unwrap();
            let list = ColumnList::new(&columns);
            assert_eq!(list.chosen(), Some(columns));
            for column in Column::ALL {
                let mut entries = list.entries.iter();
                let found = entries.by_ref().find(|(entry, _)| *entry == column);
                assert_eq!(found.unwrap().1, shown.contains(&column));
                assert!(entries.all(|(entry, _)| *entry != column));
            }
        }
    }

    #[test]
    fn what_is_hidden_keeps_its_place_beside_its_neighbour() {
        let mut list = ColumnList::new(&Columns::default());
        list.go_to(3);
        let (column, _) = list.entries[3];
        list.switch();
        let again = ColumnList::new(&list.chosen().unwrap());
        assert_eq!(again.entries[3], (column, false));
        assert_eq!(again.entries, list.entries);
    }

    #[test]
    fn a_column_moves_with_the_cursor_and_not_past_an_end() {
        let mut list = ColumnList::new(&Columns::default());
        let (first, _) = list.entries[0];
        list.shift(-1);
        assert_eq!((list.cursor, list.entries[0].0), (0, first));
        list.shift(1);
        assert_eq!((list.cursor, list.entries[1].0), (1, first));
        list.go_to(usize::MAX);
        list.shift(1);
        assert_eq!(list.cursor, list.entries.len() - 1);
    }
}
