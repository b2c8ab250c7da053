//! What is on the terminal and what is to be, as cells: a frame writes only what has changed.
//!
//! Knows no terminal: it writes to whatever it is given. Who takes the terminal is in `terminal.rs`,
//! what is drawn in `view/`.

use std::io::{self, Write};

use crossterm::queue;
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Position, Rect};

use super::canvas::{Canvas, is_narrow};

/// Two frames: the one that is shown and the one that is being drawn.
#[derive(Debug)]
pub struct DoubleBuffer<W: Write> {
    // Not `ratatui::Terminal`, which writes to the terminal when it is dropped, panics where that is
    // gone, and hides the cursor again with every frame.
    backend: CrosstermBackend<W>,
    shown: Buffer,
    canvas: Canvas,
    /// Whether what is on the output is not known, so that it is cleared with the next frame.
    is_unknown: bool,
    /// Room for the places of the cells that change.
    changes: Vec<Position>,
}

impl<W: Write> DoubleBuffer<W> {
    /// Cells for `output`, which is taken to be blank.
    pub fn new(output: W, area: Rect) -> Self {
        Self {
            backend: CrosstermBackend::new(output),
            shown: Buffer::empty(area),
            canvas: Canvas::new(area),
            is_unknown: false,
            changes: Vec::new(),
        }
    }

    /// Where frames are written to.
    pub fn output(&mut self) -> &mut impl Write {
        &mut self.backend
    }

    /// Takes a new size over and forgets what is shown: the next frame clears the output and is drawn whole.
    pub fn resize(&mut self, area: Rect) {
        self.shown = Buffer::empty(area);
        self.canvas = Canvas::new(area);
        self.is_unknown = true;
    }

    /// Draws a frame and writes what has changed; nothing where nothing has. A terminal that knows synchronized
    /// output (DEC's private mode 2026, which others pass over) shows all of it at once.
    ///
    /// # Errors
    ///
    /// Where the output cannot be written to.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Canvas)) -> io::Result<()> {
        paint(&mut self.canvas);
        find_changes(&self.shown, &self.canvas, &mut self.changes);
        if self.is_unknown || !self.changes.is_empty() {
            queue!(self.backend, BeginSynchronizedUpdate)?;
            if self.is_unknown {
                queue!(self.backend, Clear(ClearType::All))?;
            }
            let cells = self.changes.iter();
            self.backend.draw(cells.map(|&at| (at.x, at.y, &self.canvas[at])))?;
            queue!(self.backend, EndSynchronizedUpdate)?;
            Backend::flush(&mut self.backend)?;
            self.is_unknown = false;
        }
        for index in self.canvas.changed() {
            self.shown.content[index].clone_from(&self.canvas.content[index]);
        }
        self.canvas.forget_changes();
        Ok(())
    }
}

/// The places that [`Buffer::diff_iter`] gives. That compares all cells, and asks of each how wide it is; here
/// only those are looked at that were written anew, and only lines are asked that have cells which may be wide.
fn find_changes(shown: &Buffer, canvas: &Canvas, changes: &mut Vec<Position>) {
    changes.clear();
    let width = usize::from(canvas.area.width).max(1);
    let mut changed = canvas.changed().peekable();
    while let Some(&first) = changed.peek() {
        let line = first / width;
        let cells = line * width..(line + 1) * width;
        let y = canvas.area.y + line as u16;
        let from = changes.len();
        let mut are_narrow = canvas.is_narrow(y);
        while let Some(index) = changed.next_if(|index| cells.contains(index)) {
            let (before, now) = (&shown.content[index], &canvas.content[index]);
            if before != now {
                are_narrow &= is_narrow(before.symbol());
                let x = canvas.area.x + (index - cells.start) as u16;
                changes.push(Position { x, y });
            }
        }
        // Between wide cells a change may be of a cell that is under one.
        if changes.len() == from || are_narrow {
            continue;
        }
        changes.truncate(from);
        let line = |content: &[Cell]| Buffer {
            area: Rect::new(canvas.area.x, y, canvas.area.width, 1),
            content: content[cells.clone()].to_vec(),
        };
        let (before, now) = (line(&shown.content), line(&canvas.content));
        let cells = before.diff_iter(&now);
        changes.extend(cells.map(|(x, y, _)| Position { x, y }));
    }
}

#[cfg(test)]
mod tests {
    use crate::model::dice::Dice;
    use ratatui::style::{Color, Style};

    use super::*;

    #[test]
    fn only_what_has_changed_is_written() {
        let mut out = Vec::new();
        let mut frames = DoubleBuffer::new(&mut out, Rect::new(0, 0, 20, 3));
        let paint = |text: &'static str| {
            move |canvas: &mut Canvas| {
                canvas.frame(Style::new(), false, |canvas| {
                    canvas.text(0, 1, text, 20, Style::new());
                });
            }
        };
        for text in ["used:41GiB", "used:42GiB", "used:42GiB"] {
            frames.draw(paint(text)).unwrap();
        }
        drop(frames);
        let text = String::from_utf8(out).unwrap();
        let (first, after) = text.split_once("\x1b[2;7H").unwrap();
        assert!(first.contains("\x1b[2;1Hused:41GiB"), "{text:?}");
        // The one digit (line 2, column 7), once; then only what ends a frame. Both are shown at once.
        let (digit, end) = after.split_at(1);
        assert_eq!(digit, "2");
        assert!(end.ends_with("\x1b[?2026l"), "{text:?}");
        assert!(first.ends_with(&format!("{end}\x1b[?2026h")), "{text:?}");
    }

    #[test]
    fn after_a_new_size_all_of_it_is_written() {
        let mut out = Vec::new();
        let mut frames = DoubleBuffer::new(&mut out, Rect::new(0, 0, 20, 3));
        for _ in 0..2 {
            frames.resize(Rect::new(0, 0, 30, 2));
            frames
                .draw(|canvas| {
                    assert_eq!(canvas.area.width, 30);
                    canvas.text(0, 0, "whole", 20, Style::new());
                })
                .unwrap();
        }
        drop(frames);
        let text = String::from_utf8(out).unwrap();
        let at_once = "\x1b[?2026h\x1b[2J";
        assert_eq!(text.matches(at_once).count(), 2, "{text:?}");
        assert_eq!(text.matches("whole").count(), 2, "{text:?}");
    }

    #[test]
    fn the_changes_are_those_of_the_library() {
        let symbols =
            [" ", "a", "b", "─", "▇", "▝", "⣿", "…", "日", "é", "👍", "❤\u{fe0f}", "e\u{301}"];
        let mut dice = Dice::new(7);
        let area = Rect::new(0, 0, 9, 6);
        let mut canvas = Canvas::new(area);
        for _ in 0..2000 {
            let shown = Buffer::clone(&canvas);
            canvas.forget_changes();
            for _ in 0..dice.place(5) {
                let (x, y, symbol) =
                    (dice.place(8), dice.place(6), symbols[dice.place(symbols.len())]);
                let style = match dice.place(4) {
                    0 => Style::new().bg(Color::Red),
                    1 => Style::new().fg(Color::Red),
                    _ => Style::new(),
                };
                canvas.text(x as u16, y as u16, symbol, 9, style);
            }
            let mut found = Vec::new();
            find_changes(&shown, &canvas, &mut found);
            let known = shown.diff_iter(&canvas).map(|(x, y, _)| Position { x, y });
            assert_eq!(found, known.collect::<Vec<_>>());
        }
    }
}
