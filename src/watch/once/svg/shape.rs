//! Block and line characters as rectangles.

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
    /// Writes the rectangle as part of a path, for a cell with this corner.
    pub fn write(self, (left, top): (usize, usize), out: &mut String) {
        let (x, y) = (left + self.x, top + self.y);
        // Writing to a string cannot fail.
        let _ = write!(out, "M{x} {y}h{0}v{1}h-{0}z", self.width, self.height);
    }
}

/// The rectangles of a character; `None` if it is better written as text.
pub fn shape(c: char) -> Option<Vec<Part>> {
    let half = |x, y| part(x * WIDTH / 2, y * HEIGHT / 2, WIDTH / 2, HEIGHT / 2);
    // Stripes distinguish the shades too.
    let striped = |width| vec![part(0, 0, width, HEIGHT), part(WIDTH / 2, 0, width, HEIGHT)];
    Some(match c {
        '·' => vec![part(MIDDLE.0, MIDDLE.1, 2, 2)],
        '█' => vec![part(0, 0, WIDTH, HEIGHT)],
        // Squares in a row do not touch, as in most fonts.
        '■' => vec![part(0, 3, WIDTH - 1, HEIGHT - 6)],
        '▬' => vec![part(0, HEIGHT / 2 - 2, WIDTH - 1, 4)],
        '□' => vec![
            part(0, 3, WIDTH - 1, 1),
            part(0, HEIGHT - 4, WIDTH - 1, 1),
            part(0, 4, 1, HEIGHT - 8),
            part(WIDTH - 2, 4, 1, HEIGHT - 8),
        ],
        '▌' => vec![part(0, 0, WIDTH / 2, HEIGHT)],
        '░' => striped(WIDTH / 8),
        '▒' => striped(WIDTH / 4),
        '▚' => vec![half(0, 0), half(1, 1)],
        // Eighths from below.
        '▁'..='▇' => {
            let height = (c as usize - '▁' as usize + 1) * HEIGHT / 8;
            vec![part(0, HEIGHT - height, WIDTH, height)]
        }
        _ => lines(c)?,
    })
}

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
