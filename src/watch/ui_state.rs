//! What is remembered from one run to the next: how the screen is arranged, never a filter nor who was
//! selected.
//!
//! Everything is by name, so that a file of another version, or of somebody who edited it, is read as
//! far as it makes sense. Where it is kept is known to `cli`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::column::{Column, Columns};
use super::layout::Form;
use super::theme::Theme;
use super::view_model::Sort;
use crate::watch::state::App;

/// What stands for the GPUs in the form that has room.
const BY_ROOM: &str = "auto";

/// How the screen was arranged, as it is written down; `None` where nothing is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UiState {
    /// The title of the column that the table is sorted by.
    pub sort: Option<String>,
    /// Whether against the column's own direction.
    pub reversed: Option<bool>,
    /// Families as trees.
    pub tree: Option<bool>,
    /// Without processes that hold little.
    pub hide_small: Option<bool>,
    /// The form of the GPUs' panel; `auto` leaves it to the room that there is.
    pub gpus: Option<String>,
    /// The theme.
    pub theme: Option<String>,
    /// The titles of the table's columns, from left to right.
    pub columns: Option<Vec<String>>,
}

impl UiState {
    /// Reads what was written down; what makes no sense counts as nothing.
    pub fn parse(text: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(text).unwrap_or_default();
        let word = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let truth = |name: &str| value.get(name).and_then(Value::as_bool);
        Self {
            sort: word("sort"),
            reversed: truth("reversed"),
            tree: truth("tree"),
            hide_small: truth("hide_small"),
            gpus: word("gpus"),
            theme: word("theme"),
            columns: value.get("columns").and_then(Value::as_array).map(|titles| {
                let titles = titles.iter().filter_map(Value::as_str);
                titles.map(str::to_owned).collect()
            }),
        }
    }

    /// Only what differs from `start`; a column and its direction go together.
    pub fn since(self, start: &Self) -> Self {
        fn differing<T: PartialEq>(end: Option<T>, start: &Option<T>) -> Option<T> {
            end.filter(|end| Some(end) != start.as_ref())
        }
        let is_sorted_so = self.sort == start.sort && self.reversed == start.reversed;
        Self {
            sort: self.sort.filter(|_| !is_sorted_so),
            reversed: self.reversed.filter(|_| !is_sorted_so),
            tree: differing(self.tree, &start.tree),
            hide_small: differing(self.hide_small, &start.hide_small),
            gpus: differing(self.gpus, &start.gpus),
            theme: differing(self.theme, &start.theme),
            columns: differing(self.columns, &start.columns),
        }
    }

    /// The same with `changes`, as far as they say anything.
    pub fn with(self, changes: Self) -> Self {
        Self {
            sort: changes.sort.or(self.sort),
            reversed: changes.reversed.or(self.reversed),
            tree: changes.tree.or(self.tree),
            hide_small: changes.hide_small.or(self.hide_small),
            gpus: changes.gpus.or(self.gpus),
            theme: changes.theme.or(self.theme),
            columns: changes.columns.or(self.columns),
        }
    }
}

impl App {
    /// Arranges the screen as it was; what is not known or makes no sense stays as it is.
    pub fn restore(&mut self, ui_state: &UiState) {
        let choice = &mut self.table.choice;
        let title = ui_state.sort.as_deref();
        if let Some(column) = title.and_then(Column::by_title) {
            // The direction belongs to the column.
            let reversed = ui_state.reversed.unwrap_or_default();
            choice.sort = Sort { column, reversed };
        }
        choice.tree = ui_state.tree.unwrap_or(choice.tree);
        choice.hide_small = ui_state.hide_small.unwrap_or(choice.hide_small);
        match ui_state.gpus.as_deref() {
            Some(BY_ROOM) => self.form = None,
            gpus => self.form = gpus.and_then(named::<Form>).or(self.form),
        }
        let columns = ui_state.columns.iter().flatten();
        let columns = columns.filter_map(|title| Column::by_title(title));
        if let Some(columns) = Columns::new(columns) {
            self.table.columns = columns;
        }
        let theme = ui_state.theme.as_deref();
        self.theme = theme.and_then(named::<Theme>).unwrap_or(self.theme);
        self.list();
    }

    /// How the screen is arranged.
    pub fn ui_state(&self) -> UiState {
        let choice = &self.table.choice;
        UiState {
            sort: Some(choice.sort.column.spec().title.to_owned()),
            reversed: Some(choice.sort.reversed),
            tree: Some(choice.tree),
            hide_small: Some(choice.hide_small),
            gpus: match self.form {
                Some(form) => name(form),
                None => Some(BY_ROOM.to_owned()),
            },
            theme: name(self.theme),
            columns: Some(
                self.table.columns.iter().map(|column| column.spec().title.to_owned()).collect(),
            ),
        }
    }
}

/// The name by which a value is written down.
fn name(value: impl Serialize) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => Some(name),
        _ => None,
    }
}

/// The value of a name; `None` where it is no one's.
fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(Value::String(name.to_owned())).ok()
}

#[cfg(test)]
mod tests;
