//! A frame as lines of text, with ECMA-48 escape sequences (SGR) if wanted.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use crate::watch::text::columns;

/// Writes a frame without invisible blanks at the end of lines.
pub fn write(buffer: &Buffer, has_styles: bool) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut out = String::with_capacity(buffer.content.len() * 2);
    for line in buffer.content.chunks(width) {
        let end = line
            .iter()
            .rposition(|cell| cell.symbol() != " " || has_styles && is_painted(cell))
            .map_or(0, |at| at + 1);
        let mut style = String::new();
        for (_, cell, _) in visible(&line[..end]) {
            if has_styles {
                let wanted = codes(cell);
                if wanted != style {
                    out.push_str("\x1b[0");
                    out.push_str(&wanted);
                    out.push('m');
                    style = wanted;
                }
            }
            out.push_str(cell.symbol());
        }
        if !style.is_empty() {
            out.push_str("\x1b[0m");
        }
        out.push('\n');
    }
    out
}

/// Whether a blank would be visible.
fn is_painted(cell: &Cell) -> bool {
    let seen = Modifier::REVERSED | Modifier::UNDERLINED | Modifier::CROSSED_OUT;
    cell.bg != Color::Reset || cell.modifier.intersects(seen)
}

/// The codes (SGR) of a cell's style, which follow the 0 that resets it.
pub(in crate::watch) fn codes(cell: &Cell) -> String {
    const MODIFIERS: [(Modifier, &str); 6] = [
        (Modifier::BOLD, ";1"),
        (Modifier::DIM, ";2"),
        (Modifier::ITALIC, ";3"),
        (Modifier::UNDERLINED, ";4"),
        (Modifier::REVERSED, ";7"),
        (Modifier::CROSSED_OUT, ";9"),
    ];
    let mut codes = String::new();
    for (modifier, code) in MODIFIERS {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    color(&mut codes, cell.fg, 30);
    color(&mut codes, cell.bg, 40);
    codes
}

/// A colour code relative to `base`: 30 for text, 40 for backgrounds; bright colours are 60 above.
fn color(codes: &mut String, color: Color, base: u8) {
    if let Some(number) = number(color) {
        let bright = if number < 8 { 0 } else { 60 - 8 };
        // Writing to a string cannot fail.
        let _ = write!(codes, ";{}", base + bright + number);
    }
}

/// Which of the terminal's sixteen colours it is; themes use no others.
pub(super) fn number(color: Color) -> Option<u8> {
    Some(match color {
        Color::Reset | Color::Rgb(..) | Color::Indexed(_) => return None,
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        Color::DarkGray => 8,
        Color::LightRed => 9,
        Color::LightGreen => 10,
        Color::LightYellow => 11,
        Color::LightBlue => 12,
        Color::LightMagenta => 13,
        Color::LightCyan => 14,
        Color::White => 15,
    })
}

/// The visible cells of a line, with column and width. The right half of a wide character is not one.
pub(super) fn visible(line: &[Cell]) -> impl Iterator<Item = (usize, &Cell, usize)> {
    let mut next = 0;
    line.iter().enumerate().filter_map(move |(at, cell)| {
        if at < next {
            return None;
        }
        let width = usize::from(columns(cell.symbol())).max(1);
        next = at + width;
        Some((at, cell, width))
    })
}
