//! Text tables. Column widths are measured in terminal columns.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::escape::fit;

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Align {
    /// Alignment of words.
    Left,
    /// Alignment of numbers.
    Right,
}

/// Minimum width of the last column. Other columns are dropped to make room.
const LAST_COLUMN_MIN: usize = 16;

/// A table whose last column takes the remaining room.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    #[serde(skip)]
    giving_way: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), giving_way: Vec::new(), rows: Vec::new() }
    }

    /// Sets the columns that a narrow terminal drops, in this order.
    #[must_use]
    pub fn giving_way(mut self, columns: &[&'static str]) -> Self {
        self.giving_way = columns.to_vec();
        self
    }

    /// Appends a row. The cells must be escaped.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table. If a width is given, columns are dropped and lines truncated to fit.
    /// Columns without text are omitted.
    pub fn render(&self, width: Option<usize>, heading: impl Fn(&str) -> String) -> String {
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                self.rows.iter().map(|row| row[column].width()).max().filter(|&width| width > 0)
            })
            .zip(&self.columns)
            .map(|(widest, (name, _))| widest.map_or(0, |widest| widest.max(name.width())))
            .collect();
        if let Some(width) = width {
            self.make_room(&mut widths, width);
        }
        let header: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut out = String::new();
        for (line, cells) in std::iter::once(&header).chain(&self.rows).enumerate() {
            let text = self.line(cells, &widths, width);
            let text = if line == 0 { heading(&text) } else { text };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{text}");
        }
        out
    }

    fn make_room(&self, widths: &mut [usize], width: usize) {
        for name in &self.giving_way {
            let Some(last) = widths.iter().rposition(|&width| width > 0) else {
                return;
            };
            let before: usize =
                widths[..last].iter().filter(|&&width| width > 0).map(|width| width + 2).sum();
            if before + widths[last].min(LAST_COLUMN_MIN) <= width {
                return;
            }
            if let Some(column) = self.columns.iter().position(|(title, _)| title == name) {
                widths[column] = 0;
            }
        }
    }

    fn line(&self, cells: &[String], widths: &[usize], width: Option<usize>) -> String {
        let mut text = String::new();
        let last = widths.iter().rposition(|&width| width > 0);
        for (column, cell) in cells.iter().enumerate().filter(|&(column, _)| widths[column] > 0) {
            if !text.is_empty() {
                text.push_str("  ");
            }
            let padding = widths[column].saturating_sub(cell.width());
            let right = self.columns[column].1 == Align::Right;
            if right {
                text.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(cell);
            if !right && Some(column) != last {
                text.extend(std::iter::repeat_n(' ', padding));
            }
        }
        text.truncate(text.trim_end().len());
        match width {
            Some(width) => fit(&text, width).into_owned(),
            None => text,
        }
    }
}
