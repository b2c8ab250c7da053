//! Writes a screen line from left to right.
//!
//! Text that does not fit is truncated, and cells outside the screen are ignored. Untrusted text
//! must be escaped with [`clean`](crate::watch::text::clean) before it is written.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::report::escape::fit;
use crate::watch::text::columns;

/// Writes a character of width 1.
pub fn put(canvas: &mut Buffer, at: (u16, u16), symbol: char, style: Style) {
    if let Some(cell) = canvas.cell_mut(at) {
        cell.set_char(symbol).set_style(style);
    }
}

pub fn clear(canvas: &mut Buffer, area: Rect) {
    for at in area.intersection(canvas.area).positions() {
        canvas[at].reset();
    }
}

pub struct LineWriter<'a> {
    canvas: &'a mut Buffer,
    x: u16,
    y: u16,
    end: u16,
}

impl<'a> LineWriter<'a> {
    pub fn new(canvas: &'a mut Buffer, area: Rect, line: u16) -> Self {
        let area = area.intersection(canvas.area);
        Self {
            canvas,
            x: area.x,
            y: area.y.saturating_add(line),
            end: if line < area.height { area.right() } else { area.x },
        }
    }

    pub fn room(&self) -> u16 {
        self.end.saturating_sub(self.x)
    }

    /// Reserves the next `width` columns, if they fit, for the caller to draw.
    pub fn reserve(&mut self, width: u16) -> (Rect, &mut Buffer) {
        let width = if width <= self.room() { width } else { 0 };
        let area = Rect::new(self.x, self.y, width, 1);
        self.x += width;
        (area, self.canvas)
    }

    pub fn skip(&mut self, columns: u16) -> &mut Self {
        self.x = self.x.saturating_add(columns).min(self.end);
        self
    }

    pub fn text(&mut self, text: &str, style: Style) -> &mut Self {
        let room = self.room();
        if room > 0 {
            // The width of a text never exceeds its number of bytes.
            let text = match text.len() <= usize::from(room) {
                true => Cow::Borrowed(text),
                false => fit(text, usize::from(room)),
            };
            (self.x, _) = self.canvas.set_stringn(self.x, self.y, text, usize::from(room), style);
        }
        self
    }

    pub fn left(&mut self, text: &str, width: u16, style: Style) -> &mut Self {
        let after = self.x.saturating_add(width).min(self.end);
        self.within(after, |writer| writer.text(text, style));
        self.x = after;
        self
    }

    pub fn right(&mut self, text: &str, width: u16, style: Style) -> &mut Self {
        let blank = width.saturating_sub(columns(text));
        self.skip(blank).left(text, width - blank, style)
    }

    pub fn at_end(&mut self, text: &str, style: Style) -> &mut Self {
        let width = columns(text);
        if width < self.room() {
            self.x = self.end - width;
            self.text(text, style);
        }
        self
    }

    pub fn fill(&mut self, symbol: &str, times: u16, style: Style) -> &mut Self {
        let times = times.min(self.room());
        for x in self.x..self.x + times {
            self.canvas[(x, self.y)].set_symbol(symbol).set_style(style);
        }
        self.x += times;
        self
    }

    pub fn rule(&mut self, title: &str, style: Style, faint: Style) {
        self.fill("─", 2, faint);
        if !title.is_empty() {
            self.skip(1).text(title, style).skip(1);
        }
        self.fill("─", self.room(), faint);
    }

    fn within(&mut self, end: u16, write: impl FnOnce(&mut Self) -> &mut Self) {
        let line_end = std::mem::replace(&mut self.end, end);
        write(self);
        self.end = line_end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_truncated_to_its_columns_and_stays_on_its_line() {
        let mut canvas = Buffer::empty(Rect::new(0, 0, 10, 2));
        LineWriter::new(&mut canvas, Rect::new(2, 0, 6, 1), 0)
            .left("日本語", 4, Style::new())
            .right("1234", 3, Style::new());
        LineWriter::new(&mut canvas, Rect::new(2, 0, 6, 1), 1).text("below", Style::new());
        LineWriter::new(&mut canvas, Rect::new(50, 50, 6, 1), 0).text("beyond", Style::new());
        let mut expected = Buffer::empty(Rect::new(0, 0, 10, 2));
        expected.set_string(2, 0, "日…", Style::new());
        expected.set_string(6, 0, "1…", Style::new());
        assert_eq!(canvas, expected);
    }
}
