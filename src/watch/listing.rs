//! Which rows of a [`Picture`] the table has, and in which order: sorted, filtered, as trees of families.
//!
//! Pure. A line is a row of the picture by its place; what it says is made in `view/table.rs`.

use super::app::Me;
use super::column::Column;
use super::filter::Filter;
use super::picture::{Picture, RowKey, Sort};

/// Which rows are wanted, and in which order.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The order.
    pub sort: Sort,
    /// Families as trees.
    pub tree: bool,
    /// Only one's own processes.
    pub mine: bool,
    /// Only processes of which something was found.
    pub only_findings: bool,
    /// Without those that hold little.
    pub hide_small: bool,
    /// Only those that fit what was typed.
    pub filter: Option<Filter>,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            sort: Sort {
                column: Column::Memory,
                reversed: false,
            },
            tree: false,
            mine: false,
            only_findings: false,
            hide_small: false,
            filter: None,
        }
    }
}

impl Choice {
    /// Whether rows are hidden by it.
    pub fn is_limited(&self) -> bool {
        self.mine || self.only_findings || self.hide_small || self.filter.is_some()
    }

    /// Hides no row any more.
    pub fn lift(&mut self) {
        self.mine = false;
        self.only_findings = false;
        self.hide_small = false;
        self.filter = None;
    }
}

/// A line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The row, by its place in the picture.
    pub row: usize,
    /// Generations above it that are shown; 0 outside trees.
    pub depth: u16,
}

/// The table's lines.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Listing {
    /// From top to bottom.
    pub lines: Vec<Line>,
    /// Rows of the picture that are hidden.
    pub hidden: usize,
}

impl Listing {
    /// Chooses and orders.
    pub fn new(picture: &Picture, choice: &Choice, _me: &Me) -> Self {
        let lines = picture.order(choice.sort).into_iter();
        Self {
            lines: lines.map(|row| Line { row, depth: 0 }).collect(),
            hidden: 0,
        }
    }

    /// The line of a row.
    pub fn position(&self, picture: &Picture, key: &RowKey) -> Option<usize> {
        let is_it = |line: &Line| {
            picture
                .rows
                .get(line.row)
                .is_some_and(|row| row.key == *key)
        };
        self.lines.iter().position(is_it)
    }
}
