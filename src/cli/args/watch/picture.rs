//! What a person may type of how the screen of watch looks, and of a picture of it.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::watch::theme::Theme;

/// How the screen of watch looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThemeChoice {
    /// As the terminal says that it is.
    Auto,
    /// As a person says.
    Named(Theme),
}

impl ValueEnum for ThemeChoice {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Auto,
            Self::Named(Theme::Dark),
            Self::Named(Theme::Light),
            Self::Named(Theme::HighContrast),
            Self::Named(Theme::ColourBlind),
            Self::Named(Theme::Mono),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let Self::Named(theme) = self else {
            return Some(PossibleValue::new("auto").help(
                "Light if COLORFGBG names a light background, \
                else dark",
            ));
        };
        let value = PossibleValue::new(theme.name());
        Some(match theme {
            Theme::Dark => value.help("Light text on a dark ground"),
            Theme::Light => value.help("Dark text on a light ground"),
            Theme::HighContrast => value.help("The strongest colours on black, bold and never dim"),
            Theme::ColourBlind => value
                .help("Blue, yellow and orange: safe for red-green colour blindness")
                .alias("color-blind"),
            Theme::Mono => value.help("No colours").alias("monochrome"),
        })
    }
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
