//! A frame as lines of text, with the escape sequences of ECMA-48 (SGR) where they are wanted.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::cells::visible;

/// Writes a frame, without the blanks at the ends of lines that no one could see.
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

/// Whether a blank can be seen.
fn is_painted(cell: &Cell) -> bool {
    let seen = Modifier::REVERSED | Modifier::UNDERLINED | Modifier::CROSSED_OUT;
    cell.bg != Color::Reset || cell.modifier.intersects(seen)
}

/// What follows the 0 that takes all back.
fn codes(cell: &Cell) -> String {
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

/// The sixteen are `base` to `base + 7` and 60 above, the others `base + 8`.
fn color(codes: &mut String, color: Color, base: u8) {
    let named = match color {
        Color::Reset => return,
        Color::Rgb(red, green, blue) => {
            // To a string nothing fails to be written.
            let _ = write!(codes, ";{};2;{red};{green};{blue}", base + 8);
            return;
        }
        Color::Indexed(index) => {
            let _ = write!(codes, ";{};5;{index}", base + 8);
            return;
        }
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        Color::DarkGray => 60,
        Color::LightRed => 61,
        Color::LightGreen => 62,
        Color::LightYellow => 63,
        Color::LightBlue => 64,
        Color::LightMagenta => 65,
        Color::LightCyan => 66,
        Color::White => 67,
    };
    let _ = write!(codes, ";{}", base + named);
}
