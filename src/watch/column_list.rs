//! The panel for choosing the table's columns. Choices take effect immediately.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::column::{Column, Columns};
use super::keys::KeyAction;
use super::state::table::ColumnList;
use super::state::{App, Effect, Mode};
use super::theme::Styles;
use super::view::line_writer::{LineWriter, clear};

const WIDTH: u16 = 48;
const TITLE: u16 = 9;

impl ColumnList {
    fn new(columns: &Columns) -> Self {
        let mut entries: Vec<(Column, bool)> =
            columns.iter().map(|column| (column, true)).collect();
        // List a hidden column after the column that precedes it by default.
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

    fn chosen(&self) -> Option<Columns> {
        let shown = self.entries.iter().filter(|(_, is_shown)| *is_shown);
        Columns::new(shown.map(|(column, _)| *column))
    }

    fn switch(&mut self) {
        if let Some((_, is_shown)) = self.entries.get_mut(self.cursor) {
            *is_shown ^= true;
        }
    }

    /// Moves the selected entry up or down. The cursor follows.
    fn shift(&mut self, steps: isize) {
        let to = self.cursor.saturating_add_signed(steps).min(self.entries.len() - 1);
        self.entries.swap(self.cursor, to);
        self.cursor = to;
    }

    /// Returns the area of the panel, and the index of the first visible entry. The first and last
    /// lines of the screen stay free.
    fn visible_area(&self, screen: Rect) -> (Rect, usize) {
        let width = WIDTH.min(screen.width);
        let count = self.entries.len();
        let area = Rect {
            x: screen.right() - width,
            y: screen.y + 1.min(screen.height),
            width,
            height: screen.height.saturating_sub(2).min(count as u16 + 1),
        };
        let height = usize::from(area.height.saturating_sub(1));
        // Centre the cursor if the list is longer than the panel.
        (area, self.cursor.saturating_sub(height / 2).min(count - height))
    }

    fn entry_at(&self, screen: Rect, at: Position) -> Option<usize> {
        let (area, first) = self.visible_area(screen);
        let line = at.y.checked_sub(area.y + 1).filter(|_| area.contains(at))?;
        Some(first + usize::from(line))
    }
}

pub fn open(app: &mut App) -> Option<Effect> {
    if app.layout().is_none() {
        return app.refuse("the screen is too small for a table");
    }
    app.mode = Mode::Columns(ColumnList::new(&app.table.columns));
    Some(Effect::Draw)
}

pub fn on_key(app: &mut App, action: Option<KeyAction>) -> Option<Effect> {
    let screen = app.area;
    let Mode::Columns(list) = &mut app.mode else {
        return None;
    };
    let page = usize::from(list.visible_area(screen).0.height.saturating_sub(2).max(1));
    let last = list.entries.len() - 1;
    match action? {
        KeyAction::Down => list.cursor = last.min(list.cursor + 1),
        KeyAction::Up => list.cursor = list.cursor.saturating_sub(1),
        KeyAction::PageUp => list.cursor = list.cursor.saturating_sub(page),
        KeyAction::PageDown => list.cursor = last.min(list.cursor + page),
        KeyAction::First => list.cursor = 0,
        KeyAction::Last => list.cursor = last,
        KeyAction::SwitchColumn => {
            list.switch();
            if list.chosen().is_none() {
                list.switch();
                return app.refuse("the table needs a column");
            }
        }
        KeyAction::ColumnLeft => list.shift(-1),
        KeyAction::ColumnRight => list.shift(1),
        KeyAction::DefaultColumns => list.entries = ColumnList::new(&Columns::default()).entries,
        KeyAction::Open => {
            app.mode = Mode::Main;
            return Some(Effect::Draw);
        }
        KeyAction::Back | KeyAction::Quit => {
            app.table.columns = list.before.clone();
            app.mode = Mode::Main;
            return Some(Effect::Draw);
        }
        _ => return None,
    }
    if let Some(columns) = list.chosen() {
        app.table.columns = columns;
    }
    Some(Effect::Draw)
}

pub fn click(app: &mut App, at: Position) -> Option<Effect> {
    let Mode::Columns(list) = &mut app.mode else {
        return None;
    };
    list.cursor = list.entry_at(app.area, at)?;
    on_key(app, Some(KeyAction::SwitchColumn))
}

pub fn draw(list: &ColumnList, styles: Styles, screen: Rect, canvas: &mut Buffer) {
    let (area, first) = list.visible_area(screen);
    clear(canvas, area);
    let shown = list.entries.iter().filter(|(_, is_shown)| *is_shown).count();
    let title = format!("columns: {shown} of {}", list.entries.len());
    LineWriter::new(canvas, area, 0).rule(&title, styles.strong(), styles.faint());
    let entries = list.entries.iter().enumerate().skip(first);
    for (line, (at, (column, is_shown))) in (1..area.height).zip(entries) {
        if at == list.cursor {
            let row = Rect { y: area.y + line, height: 1, ..area };
            canvas.set_style(row, styles.selected());
        }
        let spec = column.spec();
        let (mark, style) = match is_shown {
            true => ("[x]", styles.plain()),
            false => ("[ ]", styles.faint()),
        };
        let mut writer = LineWriter::new(canvas, area, line);
        writer.text("│", styles.faint()).skip(1).text(mark, style).skip(1);
        writer.left(spec.title, TITLE, style).skip(1).text(spec.meaning, styles.faint());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_column_once_and_keeps_hidden_positions() {
        for shown in [&Column::ALL[..], &[Column::Command, Column::Gpu], &[Column::Finding]] {
            let columns = Columns::new(shown.iter().copied()).unwrap();
            let list = ColumnList::new(&columns);
            assert_eq!(list.chosen(), Some(columns));
            for column in Column::ALL {
                let found = list.entries.iter().filter(|(entry, _)| *entry == column);
                let is_shown = shown.contains(&column);
                assert_eq!(found.collect::<Vec<_>>(), [&(column, is_shown)]);
            }
        }
        let mut list = ColumnList::new(&Columns::default());
        list.cursor = 3;
        list.switch();
        assert_eq!(ColumnList::new(&list.chosen().unwrap()).entries, list.entries);
    }

    #[test]
    fn the_cursor_is_visible_on_every_screen_size() {
        let mut list = ColumnList::new(&Columns::default());
        for (width, height) in [(40, 10), (80, 24), (200, 60)] {
            let screen = Rect::new(0, 0, width, height);
            for at in 0..list.entries.len() {
                list.cursor = at;
                let (area, first) = list.visible_area(screen);
                let position = Position::new(area.x, area.y + 1 + (at - first) as u16);
                assert_eq!(list.entry_at(screen, position), Some(at), "{width}x{height}");
                assert!(area.bottom() < height, "the hints stay visible");
            }
        }
        for (width, height) in [(0, 0), (1, 1), (3, 2)] {
            let (area, _) = list.visible_area(Rect::new(0, 0, width, height));
            assert!(area.right() <= width && area.bottom() <= height.max(1));
        }
    }
}
