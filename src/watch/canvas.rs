//! The cells that a frame is drawn on: ratatui's [`Buffer`], with what panels write into it.
//!
//! Where the cells are written to a terminal is in `double_buffer.rs`, what is drawn in `view/`.

use std::ops::Deref;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::Style;

mod ascii;

/// The cells of the screen. They are read as those of ratatui's [`Buffer`], and written only here.
#[derive(Debug)]
pub struct Canvas {
    pub(super) buffer: Buffer,
    /// A cell with nothing on it.
    blank: Cell,
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
        Self { buffer: Buffer::empty(area), blank: Cell::EMPTY }
    }

    /// Draws a frame: what `paint` does not write is blank, on a ground of this style. Where only ASCII may be
    /// written, all else is replaced by what is like it.
    pub fn frame(&mut self, ground: Style, is_ascii: bool, paint: impl FnOnce(&mut Self)) {
        self.blank = Cell::EMPTY;
        self.blank.set_style(ground);
        self.buffer.content.fill(self.blank.clone());
        paint(self);
        if is_ascii {
            for cell in &mut self.buffer.content {
                if !cell.symbol().is_ascii() {
                    cell.set_symbol(ascii::likeness(cell.symbol()));
                }
            }
        }
    }

    /// Clears a region.
    pub fn clear(&mut self, area: Rect) {
        for at in area.intersection(self.buffer.area).positions() {
            self.buffer[at] = self.blank.clone();
        }
    }

    /// Adds a style to that of what is there.
    pub fn restyle(&mut self, area: Rect, style: Style) {
        self.buffer.set_style(area, style);
    }

    /// Writes a character of one column; nothing where there is no such cell.
    pub fn char(&mut self, x: u16, y: u16, char: char, style: Style) {
        self.fill(x, y, char.encode_utf8(&mut [0; 4]), 1, style);
    }

    /// Writes what one cell holds so many times, as far as there are cells.
    pub fn fill(&mut self, x: u16, y: u16, symbol: &str, times: u16, style: Style) {
        for at in Rect::new(x, y, times, 1).intersection(self.buffer.area).positions() {
            self.buffer[at].set_symbol(symbol).set_style(style);
        }
    }

    /// Writes text, in at most `room` columns; returns the column behind it.
    pub fn text(&mut self, x: u16, y: u16, text: &str, room: u16, style: Style) -> u16 {
        if !self.buffer.area.contains((x, y).into()) {
            return x;
        }
        let (end, _) = self.buffer.set_stringn(x, y, text, usize::from(room), style);
        if !text.is_ascii() {
            // What is under a wide character has been reset; it looks like that one.
            for x in x..end {
                let cell = &mut self.buffer[(x, y)];
                if *cell == Cell::EMPTY {
                    cell.clone_from(&self.blank);
                    cell.set_style(style);
                }
            }
        }
        end
    }

    /// The cells as they are.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use ratatui::style::Color;

    use super::*;

    #[test]
    fn a_frame_is_blank_but_for_what_it_draws_and_stays_on_the_screen() {
        let ground = Style::new().bg(Color::Blue);
        let mut canvas = Canvas::new(Rect::new(0, 0, 8, 2));
        canvas.frame(ground, false, |canvas| {
            canvas.fill(0, 1, "x", 99, Style::new());
            canvas.fill(9, 9, "x", 1, Style::new());
        });
        canvas.frame(ground, true, |canvas| {
            canvas.text(0, 0, "日本…", 5, Style::new());
            canvas.text(6, 1, "beyond", 99, Style::new());
            canvas.text(0, 7, "below", 99, Style::new());
            canvas.clear(Rect::new(7, 1, 90, 90));
        });
        let mut expected = Buffer::empty(Rect::new(0, 0, 8, 2));
        expected.set_string(0, 0, "? ? ~", Style::new());
        expected.set_string(6, 1, "b", Style::new());
        expected.set_style(expected.area, ground);
        assert_eq!(*canvas, expected);
    }
}
