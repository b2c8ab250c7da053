//! What a cell shows, in few bytes: a frame compares some ten thousand cells with those before, and ratatui's take
//! 40 bytes each.

use ratatui::buffer::Cell;
use ratatui::style::Color;

/// A symbol, its colours and its modifiers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellKey(u128);

/// Colours and modifiers.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Look {
    /// A blank with these.
    pub(super) cell: Cell,
    key: u128,
}

impl Look {
    /// That of a cell.
    pub(super) fn new(cell: Cell) -> Self {
        let (fg, bg) = (number_of(cell.fg), number_of(cell.bg));
        let modifier = cell.modifier.bits();
        let key = u128::from(fg) << 32 | u128::from(bg) << 64 | u128::from(modifier) << 96;
        Self { cell, key }
    }

    /// The key of a cell that looks so and holds this.
    pub(super) fn with(&self, symbol: &str) -> CellKey {
        let bytes = match *symbol.as_bytes() {
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c] => [a, b, c, 0],
            [a, b, c, d] => [a, b, c, d],
            // Several characters, or none.
            _ => return CellKey::NONE,
        };
        self.key_of(bytes, symbol.len())
    }

    /// Likewise, of a character of ASCII.
    pub(super) fn with_byte(&self, byte: u8) -> CellKey {
        self.key_of([byte, 0, 0, 0], 1)
    }

    fn key_of(&self, bytes: [u8; 4], length: usize) -> CellKey {
        let symbol = u128::from(u32::from_le_bytes(bytes));
        CellKey(self.key | symbol | (length as u128) << 112)
    }
}

impl CellKey {
    /// Of a cell whose symbol is too long for one: it is written anew in each frame.
    const NONE: Self = Self(u128::MAX);

    /// Whether two cells are certainly equal.
    pub(super) fn is_same(self, other: Self) -> bool {
        self.0 == other.0 && self.0 != Self::NONE.0
    }
}

/// A colour as a number; no two have the same.
fn number_of(color: Color) -> u32 {
    let tagged = |tag: u8, [a, b, c]: [u8; 3]| u32::from_be_bytes([tag, a, b, c]);
    match color {
        Color::Reset => tagged(0, [0; 3]),
        Color::Black => tagged(1, [0; 3]),
        Color::Red => tagged(2, [0; 3]),
        Color::Green => tagged(3, [0; 3]),
        Color::Yellow => tagged(4, [0; 3]),
        Color::Blue => tagged(5, [0; 3]),
        Color::Magenta => tagged(6, [0; 3]),
        Color::Cyan => tagged(7, [0; 3]),
        Color::Gray => tagged(8, [0; 3]),
        Color::DarkGray => tagged(9, [0; 3]),
        Color::LightRed => tagged(10, [0; 3]),
        Color::LightGreen => tagged(11, [0; 3]),
        Color::LightYellow => tagged(12, [0; 3]),
        Color::LightBlue => tagged(13, [0; 3]),
        Color::LightMagenta => tagged(14, [0; 3]),
        Color::LightCyan => tagged(15, [0; 3]),
        Color::White => tagged(16, [0; 3]),
        Color::Rgb(red, green, blue) => tagged(17, [red, green, blue]),
        Color::Indexed(index) => tagged(18, [index, 0, 0]),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::style::{Modifier, Style};

    use super::*;

    /// Cells of each colour, some modifiers and all kinds of symbols.
    fn cells() -> Vec<Cell> {
        let named = (0..16).map(Color::Indexed).chain((0..3).map(|it| Color::Rgb(it, 0, 0)));
        let words = "reset black red green yellow blue magenta cyan gray darkgray lightred lightgreen lightyellow \
                     lightblue lightmagenta lightcyan white";
        let colors: Vec<Color> = words
            .split_whitespace()
            .map(|it| it.parse().unwrap())
            .chain(named)
            .chain([Color::Rgb(0, 1, 0), Color::Rgb(0, 0, 1), Color::Indexed(255)])
            .collect();
        let modifiers = [Modifier::empty(), Modifier::BOLD, Modifier::REVERSED];
        let symbols = ["a", "b", "a\0", "\0", "é", "▇", "👍", "e\u{301}", "", "❤\u{fe0f}"];
        let mut cells = Vec::new();
        for (at, &fg) in colors.iter().enumerate() {
            for &bg in [colors[0], colors[2], colors[at]].iter() {
                for modifier in modifiers {
                    for symbol in symbols {
                        let mut cell = Cell::EMPTY;
                        cell.set_style(Style::new().fg(fg).bg(bg).add_modifier(modifier));
                        cell.set_symbol(symbol);
                        cells.push(cell);
                    }
                }
            }
        }
        cells
    }

    #[test]
    fn keys_are_equal_where_cells_are() {
        let cells = cells();
        let keys: Vec<CellKey> =
            cells.iter().map(|it| Look::new(it.clone()).with(it.symbol())).collect();
        for (at, (cell, key)) in cells.iter().zip(&keys).enumerate() {
            for (other, other_key) in cells[at..].iter().zip(&keys[at..]) {
                let is_short = (1..=4).contains(&cell.symbol().len());
                assert_eq!(
                    key.is_same(*other_key),
                    cell == other && is_short,
                    "{cell:?} {other:?}"
                );
            }
        }
        let look = Look::new(Cell::EMPTY);
        for byte in b' '..=b'~' {
            let text = char::from(byte).to_string();
            assert!(look.with_byte(byte).is_same(look.with(&text)));
        }
    }
}
