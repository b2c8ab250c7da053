//! Double buffering: writes only the cells that differ from the previous frame.

use std::io::{self, Write};
use std::mem;

use crossterm::cursor::MoveTo;
use crossterm::queue;
use crossterm::style::Print;
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use crate::watch::once::codes;

#[derive(Debug)]
pub struct DoubleBuffer<W: Write> {
    // `ratatui::Terminal` is unsuitable: on drop it writes to the terminal and panics if the
    // terminal is gone, and it hides the cursor with every frame.
    output: W,
    shown: Buffer,
    next: Buffer,
    /// Whether the terminal might differ from `shown`. The next frame then clears the terminal.
    is_unknown: bool,
}

impl<W: Write> DoubleBuffer<W> {
    pub fn new(output: W, area: Rect) -> Self {
        let (shown, next) = (Buffer::empty(area), Buffer::empty(area));
        Self { output, shown, next, is_unknown: false }
    }

    pub fn output(&mut self) -> &mut impl Write {
        &mut self.output
    }

    /// Sets a new size. The next frame clears the terminal and writes every cell.
    pub fn resize(&mut self, area: Rect) {
        self.shown = Buffer::empty(area);
        self.next = Buffer::empty(area);
        self.is_unknown = true;
    }

    /// Draws the whole frame with `paint` and writes the changed cells. Synchronized output (DEC private mode 2026)
    /// makes the changes visible together; terminals without it ignore the sequence.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        paint(&mut self.next);
        let mut changes = self.shown.diff_iter(&self.next).peekable();
        if self.is_unknown || changes.peek().is_some() {
            queue!(self.output, BeginSynchronizedUpdate)?;
            if self.is_unknown {
                queue!(self.output, Clear(ClearType::All))?;
            }
            write_cells(&mut self.output, changes)?;
            queue!(self.output, EndSynchronizedUpdate)?;
            self.output.flush()?;
            self.is_unknown = false;
        }
        mem::swap(&mut self.shown, &mut self.next);
        Ok(())
    }
}

/// Writes cells, with a cursor movement only after a gap and a style only where it changes.
fn write_cells<'a>(
    output: &mut impl Write,
    cells: impl Iterator<Item = (u16, u16, &'a Cell)>,
) -> io::Result<()> {
    let mut style = (Color::Reset, Color::Reset, Modifier::empty());
    let mut next = None;
    for (x, y, cell) in cells {
        if next != Some((x, y)) {
            queue!(output, MoveTo(x, y))?;
        }
        next = Some((x + 1, y));
        if (cell.fg, cell.bg, cell.modifier) != style {
            style = (cell.fg, cell.bg, cell.modifier);
            write!(output, "\x1b[0{}m", codes(cell))?;
        }
        queue!(output, Print(cell.symbol()))?;
    }
    write!(output, "\x1b[0m")
}

#[cfg(test)]
mod tests {
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn only_changed_cells_are_written() {
        let mut out = Vec::new();
        let mut frames = DoubleBuffer::new(&mut out, Rect::new(0, 0, 20, 3));
        let paint = |text: &'static str| {
            move |canvas: &mut Buffer| {
                canvas.set_string(0, 1, text, Style::new());
            }
        };
        for text in ["used:41GiB", "used:42GiB", "used:42GiB"] {
            frames.draw(paint(text)).unwrap();
        }
        drop(frames);
        let text = String::from_utf8(out).unwrap();
        let (first, after) = text.split_once("\x1b[2;7H").unwrap();
        assert!(first.contains("\x1b[2;1Hused:41GiB"), "{text:?}");
        // Only the digit in line 2, column 7 differs.
        let (digit, end) = after.split_at(1);
        assert_eq!(digit, "2");
        assert!(end.ends_with("\x1b[?2026l"), "{text:?}");
        assert!(first.ends_with(&format!("{end}\x1b[?2026h")), "{text:?}");
    }

    #[test]
    fn a_resize_rewrites_every_cell() {
        let mut out = Vec::new();
        let mut frames = DoubleBuffer::new(&mut out, Rect::new(0, 0, 20, 3));
        for _ in 0..2 {
            frames.resize(Rect::new(0, 0, 30, 2));
            frames
                .draw(|canvas| {
                    assert_eq!(canvas.area.width, 30);
                    canvas.set_string(0, 0, "whole", Style::new());
                })
                .unwrap();
        }
        drop(frames);
        let text = String::from_utf8(out).unwrap();
        let clear_frame = "\x1b[?2026h\x1b[2J";
        assert_eq!(text.matches(clear_frame).count(), 2, "{text:?}");
        assert_eq!(text.matches("whole").count(), 2, "{text:?}");
    }
}
