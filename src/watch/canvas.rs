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
mod cell_key;
mod cell_set;

use cell_key::{CellKey, Look};
use cell_set::CellSet;

/// The cells of the screen. They are read as those of ratatui's [`Buffer`], and written only here.
#[derive(Debug)]
pub struct Canvas {
    buffer: Buffer,
    /// What each cell shows, in few bytes: most cells are only compared in a frame, and lie in a third of the memory
    /// so.
    keys: Vec<CellKey>,
    /// How a cell with nothing on it looks.
    blank: Look,
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
            keys: vec![Look::new(Cell::EMPTY).with(" "); count],
            blank: Look::new(Cell::EMPTY),
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
        let blank = Look::new(blank);
        if blank != self.blank {
            self.blank = blank;
            self.blanks.clear();
        }
        self.is_ascii = is_ascii;
        self.written.clear();
        paint(self);
        let left = self.blanks.neither(&self.written);
        let blank = self.blank.clone();
        for index in left {
            self.set(index, " ", &blank);
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
            let look = self.look(index, style);
            let symbol = match self.written.contains(index) {
                true => self.buffer.content[index].symbol().to_owned(),
                false => " ".to_owned(),
            };
            self.begin(index..index + 1);
            self.set(index, &symbol, &look);
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
        self.write(cells.start, text.bytes().take(plain), style);
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
    fn write<S: Symbol>(
        &mut self,
        start: usize,
        symbols: impl ExactSizeIterator<Item = S>,
        style: Style,
    ) {
        let cells = start..start + symbols.len();
        if cells.is_empty() {
            return;
        }
        let common = (!self.written.meets(cells.clone())).then(|| self.look(start, style));
        let is_ascii = self.is_ascii;
        for (index, symbol) in cells.clone().zip(symbols) {
            let own;
            let look = match &common {
                Some(look) => look,
                None => {
                    own = self.look(index, style);
                    &own
                }
            };
            let symbol = if is_ascii { symbol.ascii() } else { symbol };
            if !self.keys[index].is_same(symbol.key(look)) {
                symbol.with_text(|symbol| self.set(index, symbol, look));
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
    fn look(&self, index: usize, style: Style) -> Look {
        let mut look = self.blank.cell.clone();
        if self.written.contains(index) {
            let before = &self.buffer.content[index];
            (look.fg, look.bg, look.modifier) = (before.fg, before.bg, before.modifier);
        }
        look.set_style(style);
        Look::new(look)
    }

    /// Has a cell hold a symbol and look so.
    fn set(&mut self, index: usize, symbol: &str, look: &Look) {
        let key = look.with(symbol);
        if self.keys[index].is_same(key) {
            return;
        }
        self.keys[index] = key;
        let cell = &mut self.buffer.content[index];
        cell.clone_from(&look.cell);
        cell.set_symbol(symbol);
        self.changed.insert(index..index + 1);
        if is_narrow(symbol) {
            self.wide.remove(index..index + 1);
        } else {
            self.wide.insert(index..index + 1);
        }
    }
}

/// What is written into a cell.
trait Symbol: Copy {
    /// Where only ASCII may be written, what is like it.
    fn ascii(self) -> Self;
    /// With a look.
    fn key(self, look: &Look) -> CellKey;
    /// As text.
    fn with_text(self, write: impl FnOnce(&str));
}

impl Symbol for &str {
    fn ascii(self) -> Self {
        match self.is_ascii() {
            true => self,
            false => ascii::likeness(self),
        }
    }

    fn key(self, look: &Look) -> CellKey {
        look.with(self)
    }

    fn with_text(self, write: impl FnOnce(&str)) {
        write(self);
    }
}

/// A character of ASCII.
impl Symbol for u8 {
    fn ascii(self) -> Self {
        self
    }

    fn key(self, look: &Look) -> CellKey {
        look.with_byte(self)
    }

    fn with_text(self, write: impl FnOnce(&str)) {
        write(char::from(self).encode_utf8(&mut [0; 4]));
    }
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
