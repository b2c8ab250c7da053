//! What is on the terminal and what is to be, as cells: a frame writes only what has changed.
//!
//! Knows no terminal: it writes to whatever it is given. Who takes the terminal is in `terminal.rs`,
//! what is drawn in `view/`.

use std::io::{self, Write};
use std::mem;

use crossterm::queue;
use crossterm::terminal::{Clear, ClearType};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Position, Rect};

/// Two frames: the one that is shown and the one that is being drawn.
#[derive(Debug)]
pub struct DoubleBuffer<W: Write> {
    // Not `ratatui::Terminal`, which writes to the terminal when it is dropped, panics where that is
    // gone, and hides the cursor again with every frame.
    backend: CrosstermBackend<W>,
    shown: Buffer,
    next: Buffer,
    /// Room for the places of the cells that change.
    changes: Vec<Position>,
}

impl<W: Write> DoubleBuffer<W> {
    /// Cells for `output`, which is taken to be blank.
    pub fn new(output: W, area: Rect) -> Self {
        let blank = Buffer::empty(area);
        Self {
            backend: CrosstermBackend::new(output),
            shown: blank.clone(),
            next: blank,
            changes: Vec::new(),
        }
    }

    /// Where frames are written to.
    pub fn output(&mut self) -> &mut impl Write {
        &mut self.backend
    }

    /// Takes a new size over and forgets what is shown, so that the next frame is drawn whole.
    pub fn resize(&mut self, area: Rect) {
        self.shown = Buffer::empty(area);
        self.next = Buffer::empty(area);
    }

    /// Has the output cleared with the next frame, so that no blank screen is seen between.
    ///
    /// # Errors
    ///
    /// Where the output cannot be written to.
    pub fn clear(&mut self) -> io::Result<()> {
        queue!(self.backend, Clear(ClearType::All))
    }

    /// Draws a frame and writes what has changed; nothing where nothing has. `paint` is given a frame of before
    /// and has to write each cell.
    ///
    /// # Errors
    ///
    /// Where the output cannot be written to.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        paint(&mut self.next);
        find_changes(&self.shown, &self.next, &mut self.changes);
        if !self.changes.is_empty() {
            let cells = self.changes.iter();
            self.backend
                .draw(cells.map(|&at| (at.x, at.y, &self.next[at])))?;
            Backend::flush(&mut self.backend)?;
        }
        mem::swap(&mut self.shown, &mut self.next);
        Ok(())
    }
}

/// The places that [`Buffer::diff_iter`] gives. That asks how wide every cell is, changed or not, which takes
/// a third of its time; here only lines are asked that have changed and have cells which may be wide.
fn find_changes(shown: &Buffer, next: &Buffer, changes: &mut Vec<Position>) {
    changes.clear();
    let area = next.area;
    let width = usize::from(area.width).max(1);
    let lines = shown.content.chunks(width).zip(next.content.chunks(width));
    for (y, (before, now)) in (area.y..).zip(lines) {
        let from = changes.len();
        let mut are_narrow = true;
        for (x, (before, now)) in (area.x..).zip(before.iter().zip(now)) {
            if !is_same(before, now) {
                changes.push(Position { x, y });
                are_narrow &= is_narrow(before) && is_narrow(now);
            }
        }
        // Between wide cells a change may be of a cell that is under one.
        if changes.len() == from || (are_narrow && now.iter().all(is_narrow)) {
            continue;
        }
        changes.truncate(from);
        let line = |cells: &[Cell]| Buffer {
            area: Rect::new(area.x, y, area.width, 1),
            content: cells.to_vec(),
        };
        let (before, now) = (line(before), line(now));
        let cells = before.diff_iter(&now);
        changes.extend(cells.map(|(x, y, _)| Position { x, y }));
    }
}

/// Whether two cells are equal. Their own comparison calls a function for the symbols of each of the thousands
/// of cells, nearly all of which are a blank or one short character.
fn is_same(before: &Cell, now: &Cell) -> bool {
    let symbols = (before.symbol().as_bytes(), now.symbol().as_bytes());
    let is_same_symbol = match symbols {
        ([before], [now]) => before == now,
        ([a, b, c], [x, y, z]) => (a, b, c) == (x, y, z),
        (before, now) => before == now,
    };
    is_same_symbol
        && before.fg == now.fg
        && before.bg == now.bg
        && before.modifier == now.modifier
        && before.diff_option == now.diff_option
}

/// Whether a cell is certainly one column wide: ASCII, Latin-1, dashes and dots, lines, blocks, shapes and
/// braille.
fn is_narrow(cell: &Cell) -> bool {
    match cell.symbol().as_bytes() {
        [_] => true,
        // U+00A1 to U+00FF but for the soft hyphen; U+2010 to U+2027.
        [0xc2, 0xa1..=0xac | 0xae..=0xbf] | [0xc3, _] | [0xe2, 0x80, 0x90..=0xa7] => true,
        // U+2500 to U+25BF, U+2800 to U+28FF.
        [0xe2, 0x94..=0x96, _] | [0xe2, 0xa0..=0xa3, _] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::style::{Color, Style};
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn only_what_has_changed_is_written() {
        let mut out = Vec::new();
        let mut frames = DoubleBuffer::new(&mut out, Rect::new(0, 0, 20, 3));
        let paint = |text: &'static str| {
            move |buffer: &mut Buffer| {
                buffer.reset();
                buffer.set_string(0, 1, text, Style::new());
            }
        };
        for text in ["used:41GiB", "used:42GiB", "used:42GiB"] {
            frames.draw(paint(text)).unwrap();
        }
        drop(frames);
        let text = String::from_utf8(out).unwrap();
        let (first, after) = text.split_once("\x1b[2;7H").unwrap();
        assert!(first.contains("\x1b[2;1Hused:41GiB"), "{text:?}");
        // The one digit (line 2, column 7), once; then only what ends a frame.
        let (digit, end) = after.split_at(1);
        assert_eq!(digit, "2");
        assert!(first.ends_with(end), "{text:?}");
    }

    #[test]
    fn after_a_new_size_all_of_it_is_written() {
        let mut out = Vec::new();
        let mut frames = DoubleBuffer::new(&mut out, Rect::new(0, 0, 20, 3));
        for _ in 0..2 {
            frames.resize(Rect::new(0, 0, 30, 2));
            frames.clear().unwrap();
            frames
                .draw(|buffer| {
                    buffer.reset();
                    assert_eq!(buffer.area.width, 30);
                    buffer.set_string(0, 0, "whole", Style::new());
                })
                .unwrap();
        }
        drop(frames);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\x1b[2J").count(), 2, "{text:?}");
        assert_eq!(text.matches("whole").count(), 2, "{text:?}");
    }

    #[test]
    fn the_changes_are_those_of_the_library() {
        let symbols = [
            " ",
            "a",
            "b",
            "─",
            "▇",
            "▝",
            "⣿",
            "…",
            "日",
            "é",
            "👍",
            "❤\u{fe0f}",
            "e\u{301}",
        ];
        let mut state = 7u32;
        let mut random = |most: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % most
        };
        let area = Rect::new(0, 0, 9, 6);
        let mut shown = Buffer::empty(area);
        for _ in 0..2000 {
            let mut next = shown.clone();
            for _ in 0..random(5) {
                let (x, y, symbol) = (random(8), random(6), symbols[random(symbols.len())]);
                let style = match random(4) {
                    0 => Style::new().bg(Color::Red),
                    1 => Style::new().fg(Color::Red),
                    _ => Style::new(),
                };
                next.set_string(x as u16, y as u16, symbol, style);
            }
            let mut found = Vec::new();
            find_changes(&shown, &next, &mut found);
            let are_same = shown.content.iter().zip(&next.content);
            assert!(are_same.into_iter().all(|(a, b)| is_same(a, b) == (a == b)));
            let known = shown.diff_iter(&next).map(|(x, y, _)| Position { x, y });
            assert_eq!(found, known.collect::<Vec<_>>());
            shown = next;
        }
    }

    #[test]
    fn what_is_called_narrow_is_one_column_wide() {
        for char in '\u{80}'..='\u{ffff}' {
            let mut cell = Cell::EMPTY;
            cell.set_char(char);
            assert!(!is_narrow(&cell) || cell.symbol().width() == 1, "{char:?}");
        }
    }
}
