//! Columns of the process table, defined in [`crate::model::field`].

pub use crate::model::field::Field as Column;
use crate::model::field::{BY_NEED, ON_SCREEN};

impl Column {
    /// All columns from left to right.
    pub const ALL: [Self; ON_SCREEN.len()] = ON_SCREEN;

    /// All columns from most to least important. A narrow screen drops columns from the end.
    pub const BY_NEED: [Self; ON_SCREEN.len()] = BY_NEED;

    pub fn by_title(title: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.spec().title == title)
    }

    pub fn by_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.spec().letter == letter)
    }

    /// Returns the column `steps` to the right, or to the left if negative. The first column follows the last.
    pub fn step(self, steps: isize) -> Self {
        let count = Self::ALL.len() as isize;
        let at = Self::ALL.iter().position(|&column| column == self);
        let to = (at.unwrap_or(0) as isize + steps).rem_euclid(count);
        Self::ALL[to as usize]
    }
}

/// The columns that the user chose, at least one and without duplicates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns(Vec<Column>);

impl Default for Columns {
    fn default() -> Self {
        Self(Column::ALL.to_vec())
    }
}

impl Columns {
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Option<Self> {
        let mut chosen = Vec::with_capacity(Column::ALL.len());
        for column in columns {
            if !chosen.contains(&column) {
                chosen.push(column);
            }
        }
        (!chosen.is_empty()).then_some(Self(chosen))
    }

    pub fn iter(&self) -> impl Iterator<Item = Column> {
        self.0.iter().copied()
    }

    pub fn has(&self, column: Column) -> bool {
        self.0.contains(&column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_unique_letter_and_a_priority() {
        for column in Column::ALL {
            assert_eq!(Column::by_letter(column.spec().letter), Some(column));
            assert!(Column::BY_NEED.contains(&column), "{column:?}");
            assert_eq!(column.step(1).step(-1), column);
        }
        let mut names = Column::ALL.map(|column| column.spec().column_name());
        names.sort_unstable();
        assert!(!names.contains(&"") && names.windows(2).all(|two| two[0] != two[1]));
        assert_eq!(Column::by_letter('z'), None);
        assert_eq!(Column::Command.step(1), Column::Gpu);
    }

    #[test]
    fn chosen_columns_are_unique_and_not_empty() {
        let some = [Column::Pid, Column::Memory, Column::Pid];
        let chosen: Vec<Column> = Columns::new(some).unwrap().iter().collect();
        assert_eq!(chosen, [Column::Pid, Column::Memory]);
        assert_eq!(Columns::new([]), None);
    }
}
