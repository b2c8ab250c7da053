//! Blocks, lines and braille as rectangles in a cell.

use std::fmt::Write as _;

use super::CELL;

const WIDTH: usize = CELL.0;
const HEIGHT: usize = CELL.1;
/// Where lines through the middle of a cell are.
const MIDDLE: (usize, usize) = (WIDTH / 2 - 1, HEIGHT / 2);

/// A rectangle in a cell, in pixels from its upper left corner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

const fn part(x: usize, y: usize, width: usize, height: usize) -> Part {
    Part { x, y, width, height }
}

impl Part {
    /// Writes the rectangle as a part of a path, in a cell with this corner.
    pub fn write(self, (left, top): (usize, usize), out: &mut String) {
        let (x, y) = (left + self.x, top + self.y);
        // To a string nothing fails to be written.
        let _ = write!(out, "M{x} {y}h{0}v{1}h-{0}z", self.width, self.height);
    }
}

/// The parts of a cell that a character covers; `None` for one that is better written.
pub fn shape(c: char) -> Option<Vec<Part>> {
    let half = |x, y| part(x * WIDTH / 2, y * HEIGHT / 2, WIDTH / 2, HEIGHT / 2);
    // Shades are told apart by their stripes, too.
    let striped = |width| vec![part(0, 0, width, HEIGHT), part(WIDTH / 2, 0, width, HEIGHT)];
    Some(match c {
        '·' => vec![part(MIDDLE.0, MIDDLE.1, 2, 2)],
        '█' => vec![part(0, 0, WIDTH, HEIGHT)],
        // Squares of a row touch no other, as in most fonts.
        '■' => vec![part(0, 3, WIDTH - 1, HEIGHT - 6)],
        '▬' => vec![part(0, HEIGHT / 2 - 2, WIDTH - 1, 4)],
        '□' => vec![
            part(0, 3, WIDTH - 1, 1),
            part(0, HEIGHT - 4, WIDTH - 1, 1),
            part(0, 4, 1, HEIGHT - 8),
            part(WIDTH - 2, 4, 1, HEIGHT - 8),
        ],
        '░' => striped(WIDTH / 8),
        '▒' => striped(WIDTH / 4),
        '▚' => vec![half(0, 0), half(1, 1)],
        // Eighths from below.
        '▁'..='▇' => {
            let height = (c as usize - '▁' as usize + 1) * HEIGHT / 8;
            vec![part(0, HEIGHT - height, WIDTH, height)]
        }
        '\u{2800}'..='\u{28ff}' => dots(c as usize - 0x2800),
        _ => lines(c)?,
    })
}

/// The dots of braille: bits 0 to 2 down the left, 3 to 5 down the right, 6 and 7 below.
fn dots(bits: usize) -> Vec<Part> {
    const PLACES: [(usize, usize); 8] =
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)];
    let places = PLACES.iter().enumerate();
    places
        .filter(|(bit, _)| bits >> bit & 1 == 1)
        .map(|(_, (x, y))| part(x * WIDTH / 2 + 1, y * HEIGHT / 4 + 1, 2, 2))
        .collect()
}

/// The strokes of a thin line or a corner.
fn lines(c: char) -> Option<Vec<Part>> {
    let (x, y) = MIDDLE;
    let left = part(0, y, x + 1, 1);
    let right = part(x, y, WIDTH - x, 1);
    let up = part(x, 0, 1, y + 1);
    let down = part(x, y, 1, HEIGHT - y);
    Some(match c {
        '─' => vec![part(0, y, WIDTH, 1)],
        '│' => vec![part(x, 0, 1, HEIGHT)],
        '┌' => vec![right, down],
        '┐' => vec![left, down],
        '└' => vec![right, up],
        '┘' => vec![left, up],
        '├' => vec![right, up, down],
        '┤' => vec![left, up, down],
        _ => return None,
    })
}
