//! Screen settings that gpumem remembers between runs. Filters and selections are not saved.
//!
//! Invalid settings are ignored, because a user or another version of gpumem may have written the file.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::column::{Column, Columns};
use super::view_model::Sort;
use crate::watch::state::App;

pub type UiState = Map<String, Value>;

pub fn parse(text: &[u8]) -> UiState {
    serde_json::from_slice(text).unwrap_or_default()
}

impl App {
    pub fn restore(&mut self, ui_state: &UiState) {
        fn read<T: DeserializeOwned>(ui_state: &UiState, name: &str) -> Option<T> {
            serde_json::from_value(ui_state.get(name)?.clone()).ok()
        }
        let choice = &mut self.table.choice;
        if let Some((title, reversed)) = read::<(String, bool)>(ui_state, "sort")
            && let Some(column) = Column::by_title(&title)
        {
            choice.sort = Sort { column, reversed };
        }
        choice.tree = read(ui_state, "tree").unwrap_or(choice.tree);
        self.border = read(ui_state, "border").unwrap_or(self.border);
        self.theme = read(ui_state, "theme").unwrap_or(self.theme);
        let titles: Vec<String> = read(ui_state, "columns").unwrap_or_default();
        let columns = titles.iter().filter_map(|title| Column::by_title(title));
        if let Some(columns) = Columns::new(columns) {
            self.table.columns = columns;
        }
        self.list();
    }

    pub fn ui_state(&self) -> UiState {
        let (choice, title) = (&self.table.choice, |column: Column| column.spec().title);
        let columns: Vec<&str> = self.table.columns.iter().map(title).collect();
        let values = [
            ("sort", json!([title(choice.sort.column), choice.sort.reversed])),
            ("tree", json!(choice.tree)),
            ("border", json!(self.border)),
            ("theme", json!(self.theme)),
            ("columns", json!(columns)),
        ];
        values.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
