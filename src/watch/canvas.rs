//! The cells that a frame is drawn on. They stay from one frame to the next: a panel writes all that it shows in
//! every frame, but a cell that says the same as before is only read, and one that is blank and stays so is
//! not touched at all.
//!
//! Where the cells are written to a terminal is in `double_buffer.rs`, what is drawn in `view/`.

use std::mem;
use std::ops::Deref;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::text::is_plain_byte;

mod ascii;
mod cell_set;

use cell_set::CellSet;

/// The cells of the screen. They are read as those of ratatui's [`Buffer`], and written only here.
#[derive(Debug)]
pub struct Canvas {
    buffer: Buffer,
    /// A cell with nothing on it.
    blank: Cell,
    /// Whether what is not ASCII is replaced, for terminals that know nothing else.
    is_ascii: bool,
    /// Cells that this frame has written.
    written: CellSet,
    /// Cells that are known to be blank.
    blanks: CellSet,
    /// Cells whose symbol may be wider than one column.
    wide: CellSet,
    /// Cells that are not what they were when the changes were forgotten.
    changed: CellSet,
    /// Room to divide text into what is in one cell.
    line: Buffer,
}

impl Deref for Canvas {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl Canvas {
    /// Blank cells, of the terminal's own colours.
    pub fn new(area: Rect) -> Self {
        let count = area.area() as usize;
        let mut blanks = CellSet::new(count);
        blanks.insert(0..count);
        Self {
            buffer: Buffer::empty(area),
            blank: Cell::EMPTY,
            is_ascii: false,
            written: CellSet::new(count),
            blanks,
            wide: CellSet::new(count),
            changed: CellSet::new(count),
            line: Buffer::empty(Rect::new(0, 0, area.width, 1)),
        }
    }

    /// Draws a frame: what `paint` does not write is blank, on a ground of this style. Where only ASCII may be
    /// written, all else is replaced by what is like it.
    pub fn frame(&mut self, ground: Style, is_ascii: bool, paint: impl FnOnce(&mut Self)) {
        let mut blank = Cell::EMPTY;
        blank.set_style(ground);
        if blank != self.blank {
            self.blank = blank;
            self.blanks.clear();
        }
        self.is_ascii = is_ascii;
        self.written.clear();
        paint(self);
        let left = self.blanks.neither(&self.written);
        for index in left {
            self.set(index, " ", &self.blank.clone());
            self.blanks.insert(index..index + 1);
        }
    }

    /// Has nothing of a part of the screen stay.
    pub fn clear(&mut self, area: Rect) {
        let blank = self.blank.clone();
        for cells in self.lines(area) {
            self.begin(cells.clone());
            cells.for_each(|index| self.set(index, " ", &blank));
        }
    }

    /// Adds a style to that of what is there.
    pub fn restyle(&mut self, area: Rect, style: Style) {
        for index in self.lines(area).into_iter().flatten() {
            let mut look = self.look(index, style);
            if self.written.contains(index) {
                look.set_symbol(self.buffer.content[index].symbol());
            }
            self.begin(index..index + 1);
            self.set(index, look.symbol(), &look);
        }
    }

    /// Writes a character of one column; nothing where there is no such cell.
    pub fn char(&mut self, x: u16, y: u16, char: char, style: Style) {
        self.fill(x, y, char.encode_utf8(&mut [0; 4]), 1, style);
    }

    /// Writes what one cell holds so many times, as far as there are cells.
    pub fn fill(&mut self, x: u16, y: u16, symbol: &str, times: u16, style: Style) {
        let cells = self.cells(x, y, times);
        self.write(cells.start, cells.map(|_| symbol), style);
    }

    /// Writes text, in at most `room` columns; returns the column behind it.
    pub fn text(&mut self, x: u16, y: u16, text: &str, room: u16, style: Style) -> u16 {
        let cells = self.cells(x, y, room);
        let plain = text.bytes().take_while(|byte| is_plain_byte(*byte));
        let mut plain = plain.count();
        if plain < text.len() {
            // The last one may have marks behind it.
            plain = plain.saturating_sub(1);
        }
        let plain = plain.min(cells.len());
        let each = (0..plain).map(|at| &text[at..=at]);
        self.write(cells.start, each, style);
        let (mut end, rest) = (x + plain as u16, &text[plain..]);
        let left = cells.len() - plain;
        if left > 0 && !rest.is_empty() {
            let mut line = mem::take(&mut self.line);
            let (count, _) = line.set_stringn(0, 0, rest, left, Style::new());
            let each = line.content[..usize::from(count)].iter().map(Cell::symbol);
            self.write(cells.start + plain, each, style);
            self.line = line;
            end += count;
        }
        end
    }

    /// The cells that may not be what they were, in order.
    pub fn changed(&self) -> impl Iterator<Item = usize> {
        self.changed.iter()
    }

    /// Whether no cell of a line holds more than one column.
    pub fn is_narrow(&self, line: u16) -> bool {
        let width = usize::from(self.area.width);
        let start = usize::from(line - self.area.y) * width;
        !self.wide.meets(start..start + width)
    }

    /// From now on what is there is what was there before.
    pub fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// The cells as they are.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The places of the cells from one on, on its line; none where that is not on the screen.
    fn cells(&self, x: u16, y: u16, count: u16) -> std::ops::Range<usize> {
        let area = self.area;
        if !area.contains((x, y).into()) {
            return 0..0;
        }
        let count = count.min(area.right() - x);
        let start = self.buffer.index_of(x, y);
        start..start + usize::from(count)
    }

    /// The places of the cells of each line of a part of the screen.
    fn lines(&self, area: Rect) -> Vec<std::ops::Range<usize>> {
        let area = area.intersection(self.area);
        let lines = area.top()..area.bottom();
        lines.map(|y| self.cells(area.x, y, area.width)).collect()
    }

    /// Writes what is in a cell each, from one on, which have to be on its line.
    fn write<'a>(
        &mut self,
        start: usize,
        symbols: impl ExactSizeIterator<Item = &'a str>,
        style: Style,
    ) {
        let cells = start..start + symbols.len();
        if cells.is_empty() {
            return;
        }
        let common = (!self.written.meets(cells.clone())).then(|| self.look(start, style));
        let is_ascii = self.is_ascii;
        for (index, symbol) in cells.clone().zip(symbols) {
            let symbol = match is_ascii && !symbol.is_ascii() {
                true => ascii::likeness(symbol),
                false => symbol,
            };
            match &common {
                Some(look) => self.set(index, symbol, look),
                None => self.set(index, symbol, &self.look(index, style)),
            }
        }
        self.begin(cells);
    }

    /// Cells are written in this frame.
    fn begin(&mut self, cells: std::ops::Range<usize>) {
        self.written.insert(cells.clone());
        self.blanks.remove(cells);
    }

    /// How a cell looks that a style is added to: to what this frame has written, or to the ground.
    fn look(&self, index: usize, style: Style) -> Cell {
        let mut look = self.blank.clone();
        if self.written.contains(index) {
            let before = &self.buffer.content[index];
            (look.fg, look.bg, look.modifier) = (before.fg, before.bg, before.modifier);
        }
        look.set_style(style);
        look
    }

    /// Has a cell hold a symbol and look like another.
    fn set(&mut self, index: usize, symbol: &str, look: &Cell) {
        let cell = &mut self.buffer.content[index];
        let has_symbol = match (cell.symbol().as_bytes(), symbol.as_bytes()) {
            ([before], [now]) => before == now,
            ([a, b, c], [x, y, z]) => (a, b, c) == (x, y, z),
            (before, now) => before == now,
        };
        if has_symbol && has_look(cell, look) {
            return;
        }
        cell.clone_from(look);
        cell.set_symbol(symbol);
        self.changed.insert(index..index + 1);
        if is_narrow(symbol) {
            self.wide.remove(index..index + 1);
        } else {
            self.wide.insert(index..index + 1);
        }
    }
}

/// Whether two cells are equal but for what is in them.
fn has_look(cell: &Cell, look: &Cell) -> bool {
    cell.fg == look.fg && cell.bg == look.bg && cell.modifier == look.modifier
}

/// Whether what a cell holds is certainly one column wide: ASCII, Latin-1, dashes and dots, lines, blocks,
/// shapes and braille.
pub(super) fn is_narrow(symbol: &str) -> bool {
    match symbol.as_bytes() {
        [_] => true,
        // U+00A1 to U+00FF but for the soft hyphen; U+2010 to U+2027.
        [0xc2, 0xa1..=0xac | 0xae..=0xbf] | [0xc3, _] | [0xe2, 0x80, 0x90..=0xa7] => true,
        // U+2500 to U+25BF, U+2800 to U+28FF.
        [0xe2, 0x94..=0x96, _] | [0xe2, 0xa0..=0xa3, _] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
