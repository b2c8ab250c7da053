//! Formats a frame as a self-contained SVG document.
//!
//! Text is written in runs of one style, with explicit positions and lengths, so that columns stay aligned in any
//! font. A character that can come from a different font or a right-to-left script forms a separate run. Bars and
//! charts are shapes, because block characters do not touch in most fonts.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use crate::watch::once::{number, visible};
use crate::watch::theme::Theme;

/// Width and height of a cell in pixels. Most monospaced characters are 0.6 times as wide as the font size.
const CELL: (usize, usize) = (8, 16);
const FONT_PIXELS: &str = "13.33";
/// Distance from the top of a cell to the baseline, in pixels.
const BASELINE: usize = 12;
const UNDERLINE: usize = 14;
const MARGIN: usize = 8;

type Rgb = u32;

/// The sixteen terminal colours on a black background.
const ON_BLACK: [Rgb; 16] = [
    0x000000, 0xff6b6b, 0x5fae66, 0xe5c04b, 0x6cb6ff, 0xc792ea, 0x56c8d8, 0xd0d0d0, 0x8a8a8a,
    0xff8c5a, 0xa8eba0, 0xfbe64d, 0x9ad1ff, 0xd9a6d0, 0x9fe3f5, 0xffffff,
];
const ON_WHITE: [Rgb; 16] = [
    0x1f1f1f, 0xb00020, 0x1e6b2e, 0x855200, 0x0a50a8, 0x7a3aa0, 0x00626c, 0x666666, 0x666666,
    0xb83a00, 0x008700, 0x8a6d3b, 0x005f87, 0x6d3fb0, 0x2070a0, 0xffffff,
];

fn rgb(color: Color, theme: Theme) -> Option<Rgb> {
    let sixteen = if theme == Theme::Light { &ON_WHITE } else { &ON_BLACK };
    sixteen.get(usize::from(number(color)?)).copied()
}

fn plain(theme: Theme) -> (Rgb, Rgb) {
    match theme {
        Theme::Light => (0x1f1f1f, 0xffffff),
        Theme::Terminal | Theme::ColourBlind => (0xd0d0d0, 0x000000),
    }
}

/// Formats a frame. `description` becomes the alternative text.
pub fn write(buffer: &Buffer, theme: Theme, description: &str) -> String {
    let mut out = String::with_capacity(buffer.content.len() * 16);
    write_header(buffer, theme, description, &mut out);
    let width = usize::from(buffer.area.width).max(1);
    for (at, line) in buffer.content.chunks(width).enumerate() {
        let y = at * CELL.1;
        paint_backgrounds(line, y, theme, &mut out);
        for run in runs(line, theme) {
            run.write(y, theme, &mut out);
        }
    }
    out.push_str("</g>\n</svg>\n");
    out
}

fn write_header(buffer: &Buffer, theme: Theme, description: &str, out: &mut String) {
    let (columns, rows) = (buffer.area.width, buffer.area.height);
    let width = usize::from(columns) * CELL.0 + 2 * MARGIN;
    let height = usize::from(rows) * CELL.1 + 2 * MARGIN;
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"title description\">\n\
         <title id=\"title\">gpumem watch</title>\n\
         <desc id=\"description\">{}</desc>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{}\" stroke=\"#808080\"/>\n\
         <g transform=\"translate({MARGIN} {MARGIN})\" xml:space=\"preserve\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', \
         'Liberation Mono', monospace\" font-size=\"{FONT_PIXELS}\" fill=\"{}\">",
        escaped(description),
        width - 1,
        height - 1,
        hex(plain(theme).1),
        hex(plain(theme).0)
    );
}

fn colors(cell: &Cell, theme: Theme) -> (Rgb, Rgb) {
    let (text, background) = plain(theme);
    let (text, background) =
        (rgb(cell.fg, theme).unwrap_or(text), rgb(cell.bg, theme).unwrap_or(background));
    if cell.modifier.contains(Modifier::REVERSED) { (background, text) } else { (text, background) }
}

fn paint_backgrounds(line: &[Cell], y: usize, theme: Theme, out: &mut String) {
    let mut from = 0;
    for same in line.chunk_by(|one, other| colors(one, theme).1 == colors(other, theme).1) {
        let background = same.first().map(|cell| colors(cell, theme).1);
        if let Some(background) = background.filter(|&background| background != plain(theme).1) {
            rectangle(from, same.len(), (y, CELL.1), background, out);
        }
        from += same.len();
    }
}

fn rectangle(
    column: usize,
    columns: usize,
    (y, height): (usize, usize),
    fill: Rgb,
    out: &mut String,
) {
    let (x, width) = (column * CELL.0, columns * CELL.0);
    let fill = hex(fill);
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
    );
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SymbolKind {
    Ascii,
    Shapes,
    Other,
}

impl SymbolKind {
    fn from_symbol(symbol: &str) -> Self {
        let mut chars = symbol.chars();
        match (chars.next(), chars.next()) {
            (Some(' '..='~'), None) => Self::Ascii,
            (Some(c), None) if shape(c).is_some() => Self::Shapes,
            _ => Self::Other,
        }
    }
}

#[derive(Debug)]
struct Run {
    column: usize,
    columns: usize,
    text: String,
    color: Rgb,
    modifier: Modifier,
    kind: SymbolKind,
}

fn runs(line: &[Cell], theme: Theme) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (column, cell, columns) in visible(line) {
        let is_underlined = cell.modifier.contains(Modifier::UNDERLINED);
        if cell.symbol() == " " && !is_underlined {
            // A run can contain single blanks. Two blanks end the run.
            let adjacent = runs.last_mut().filter(|run| {
                run.column + run.columns == column
                    && run.kind == SymbolKind::Ascii
                    && !run.text.ends_with(' ')
                    && !run.modifier.contains(Modifier::UNDERLINED)
            });
            if let Some(run) = adjacent {
                run.text.push(' ');
                run.columns += 1;
            }
            continue;
        }
        let color = colors(cell, theme).0;
        let kind = SymbolKind::from_symbol(cell.symbol());
        let modifier = cell.modifier - Modifier::REVERSED;
        let same_style = runs.last_mut().filter(|run| {
            run.column + run.columns == column
                && (run.color, run.modifier, run.kind) == (color, modifier, kind)
                && kind != SymbolKind::Other
        });
        match same_style {
            Some(run) => {
                run.text.push_str(cell.symbol());
                run.columns += columns;
            }
            None => runs.push(Run {
                column,
                columns,
                text: cell.symbol().to_owned(),
                color,
                modifier,
                kind,
            }),
        }
    }
    runs
}

impl Run {
    fn write(&self, y: usize, theme: Theme, out: &mut String) {
        if self.modifier.contains(Modifier::UNDERLINED) {
            let line = (y + UNDERLINE, 1);
            rectangle(self.column, self.columns, line, self.color, out);
        }
        let text = self.text.trim_end_matches(' ');
        if text.is_empty() {
            return;
        }
        if self.kind == SymbolKind::Shapes {
            let is_faint = self.modifier.contains(Modifier::DIM);
            let opacity = if is_faint { " fill-opacity=\"0.6\"" } else { "" };
            let _ = write!(out, "<path fill=\"{}\"{opacity} d=\"", hex(self.color));
            for (at, c) in text.chars().enumerate() {
                let corner = ((self.column + at) * CELL.0, y);
                for part in shape(c).into_iter().flatten() {
                    part.write(corner, out);
                }
            }
            out.push_str("\"/>\n");
            return;
        }
        let columns = self.columns - (self.text.len() - text.len());
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" textLength=\"{}\"",
            self.column * CELL.0,
            y + BASELINE,
            columns * CELL.0
        );
        if self.color != plain(theme).0 {
            let _ = write!(out, " fill=\"{}\"", hex(self.color));
        }
        for (modifier, attribute) in [
            (Modifier::BOLD, " font-weight=\"bold\""),
            (Modifier::DIM, " fill-opacity=\"0.6\""),
            (Modifier::ITALIC, " font-style=\"italic\""),
        ] {
            if self.modifier.contains(modifier) {
                out.push_str(attribute);
            }
        }
        let _ = writeln!(out, ">{}</text>", escaped(text));
    }
}

fn hex(color: Rgb) -> String {
    format!("#{color:06x}")
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

const WIDTH: usize = CELL.0;
const HEIGHT: usize = CELL.1;
const MIDDLE: (usize, usize) = (WIDTH / 2 - 1, HEIGHT / 2);

/// A rectangle in pixels, relative to its cell.
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
    pub fn write(self, (left, top): (usize, usize), out: &mut String) {
        let (x, y) = (left + self.x, top + self.y);
        let _ = write!(out, "M{x} {y}h{0}v{1}h-{0}z", self.width, self.height);
    }
}

/// Returns the rectangles for a character, or `None` if the character is written as text.
pub fn shape(c: char) -> Option<Vec<Part>> {
    let half = |x, y| part(x * WIDTH / 2, y * HEIGHT / 2, WIDTH / 2, HEIGHT / 2);
    // Stripes distinguish the shades even without colour.
    let striped = |width| vec![part(0, 0, width, HEIGHT), part(WIDTH / 2, 0, width, HEIGHT)];
    Some(match c {
        '·' => vec![part(MIDDLE.0, MIDDLE.1, 2, 2)],
        '█' => vec![part(0, 0, WIDTH, HEIGHT)],
        // Squares have a gap between them, as in most fonts.
        '■' => vec![part(0, 3, WIDTH - 1, HEIGHT - 6)],
        '▬' => vec![part(0, HEIGHT / 2 - 2, WIDTH - 1, 4)],
        '▌' => vec![part(0, 0, WIDTH / 2, HEIGHT)],
        '░' => striped(WIDTH / 8),
        '▒' => striped(WIDTH / 4),
        '▓' => striped(WIDTH * 3 / 8),
        '▔' => vec![part(0, 0, WIDTH, HEIGHT / 8)],
        '▚' => vec![half(0, 0), half(1, 1)],
        '▁'..='▇' => {
            let height = (c as usize - '▁' as usize + 1) * HEIGHT / 8;
            vec![part(0, HEIGHT - height, WIDTH, height)]
        }
        _ => shape_lines(c)?,
    })
}

fn shape_lines(c: char) -> Option<Vec<Part>> {
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
