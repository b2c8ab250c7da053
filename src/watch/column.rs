//! The columns of the process table, as the table of [fields](crate::model::field) has them: which there
//! are, and which give way first.

pub use crate::model::field::Field as Column;
use crate::model::field::{BY_NEED, ON_SCREEN};

impl Column {
    /// All of them, as shown from left to right.
    pub const ALL: [Self; ON_SCREEN.len()] = ON_SCREEN;

    /// From the one that stays longest on a narrow screen to the one that goes first.
    pub const BY_NEED: [Self; ON_SCREEN.len()] = BY_NEED;

    /// The column that `letter` sorts by.
    pub fn by_letter(letter: char) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|column| column.spec().letter == letter)
    }

    /// The column `steps` to the right (or left, where negative); the table's ends meet.
    pub fn step(self, steps: isize) -> Self {
        let count = Self::ALL.len() as isize;
        let at = Self::ALL.iter().position(|&column| column == self);
        let to = (at.unwrap_or(0) as isize + steps).rem_euclid(count);
        Self::ALL[to as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_letter_of_its_own_and_a_place() {
        for column in Column::ALL {
            assert_eq!(Column::by_letter(column.spec().letter), Some(column));
            assert!(Column::BY_NEED.contains(&column), "{column:?}");
            assert_eq!(column.step(1).step(-1), column);
        }
        assert_eq!(Column::by_letter('z'), None);
        assert_eq!(Column::Command.step(1), Column::Gpu);
    }
}
