//! What a person may type of how the screen of watch looks, and of a picture of it.

use clap::ValueEnum;

/// The colours of watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ThemeChoice {
    /// Light if COLORFGBG names a light background, else the terminal's
    Auto,
    /// The terminal's own colours, as most programs use them
    Terminal,
    /// Those of the terminal's colours that are readable on a light ground
    Light,
    /// Cyan, yellow and light red: safe for red-green colour blindness
    #[value(alias = "color-blind")]
    ColourBlind,
}

/// The format of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Once {
    /// Lines of text, with colours on a terminal and with --color always
    Text,
    /// An SVG document, in colour but for --color never
    Svg,
}

/// Columns and rows, as `120x40`.
pub(super) fn size(text: &str) -> Result<(u16, u16), String> {
    let parts = text.split_once('x');
    let parsed = parts.and_then(|(columns, rows)| Some((cells(columns)?, cells(rows)?)));
    parsed.ok_or_else(|| format!("write columns and rows from 1 to {MOST_CELLS}: 120x40"))
}

/// A picture is no wider and no higher than this.
const MOST_CELLS: u16 = 1000;

/// Columns or rows of a picture; `None` where there are none of it, or too many.
pub fn cells(text: &str) -> Option<u16> {
    let number = text.parse().ok()?;
    (1..=MOST_CELLS).contains(&number).then_some(number)
}
