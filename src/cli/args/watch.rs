//! Arguments of `gpumem watch`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::{EXIT_CODES, OtherHosts, Recorded, Selected, Stored};
use crate::units::Span;
use crate::watch::column::Column;
use crate::watch::once::Keys;

/// Watch GPUs, processes and findings live in the terminal, and free memory
///
/// The screen shows, from top to bottom, the machine and the age of the sample, the GPUs, the processes, and the
/// findings or the details of the selected process. If `gpumem record --store` is running, idle times and findings
/// are shown at once. With --replay or --demo, a recording is played, and processes cannot be signalled.
///
/// With --once, gpumem prints one picture and exits; no terminal is needed. The picture shows the second
/// sample of this machine or of the host, the end of the recording, or the 25th minute of the demo.
///
/// Press ? for a list of all keys, and q to quit. The bottom line shows the keys F1 to F10, which can also be
/// clicked. j, k and the arrow keys select a row, and Enter explains it. / filters the rows, as in `user:ann gpu:0
/// idle>10m mem>4GiB`, and F3 searches. A digit shows only that GPU, and i explains the GPU. s shows totals by user
/// and job, e the environment of a process with secrets masked, and F2 the choice of columns. p pauses; `[` and `]`
/// step backward and forward.
///
/// To free memory, mark processes with Space and press x for the plan that `gpumem reap` would make, or X
/// for the plan for all findings. In a plan, Tab switches to families and to all findings, s selects another
/// signal, y confirms, and u cancels until the first signal is sent.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct WatchArgs {
    /// Time between samples [default: 1s, or as configured]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub interval: Option<Span>,

    /// The initial filter, which the user can change.
    #[command(flatten)]
    pub selected: Selected,

    /// Sort the processes by this column [default: as last used, or memory]
    #[arg(long, value_name = "COLUMN", value_parser = columns())]
    pub sort: Option<Column>,

    /// Columns of the table, from left to right, in this session [default: as chosen with F2, or all]
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', value_parser = columns())]
    pub columns: Vec<Column>,

    /// Speed of a recording, as a multiple of real time
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed, allow_negative_numbers = true)]
    pub speed: f64,

    /// Draw in ASCII [default: on the Linux console, or if the locale is not UTF-8]
    #[arg(long)]
    pub ascii: bool,

    /// Colour theme [default: auto]
    #[arg(long, value_name = "THEME")]
    pub theme: Option<ThemeChoice>,

    /// Print one picture to standard output and exit
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text"
    )]
    pub once: Option<Once>,

    /// Size of the picture [default: size of the terminal, COLUMNS and LINES, or 80x24]
    #[arg(long, value_name = "COLUMNSxROWS", requires = "once", value_parser = size)]
    pub size: Option<(u16, u16)>,

    /// Keys to press before the picture is taken, such as `jj<Enter>` or `?<PgDn>`; write < as `<lt>`
    #[arg(long, value_name = "KEYS", requires = "once", allow_hyphen_values = true)]
    pub keys: Option<Keys>,

    /// Leave the mouse to the terminal, for selecting text
    #[arg(long)]
    pub no_mouse: bool,

    #[command(flatten)]
    pub stored: Stored,

    #[command(flatten)]
    pub recorded: Recorded,

    #[command(flatten)]
    pub others: OtherHosts,
}

/// Parses a column by any name that `ps --sort` and filter terms accept.
fn columns() -> impl TypedValueParser<Value = Column> {
    let values = Column::ALL.map(|column| {
        let spec = column.spec();
        let others = spec.names.iter().filter(|name| **name != spec.column_name());
        PossibleValue::new(spec.column_name()).aliases(others.copied()).help(spec.meaning)
    });
    PossibleValuesParser::new(values).map(|name| {
        let has_name = |column: &Column| {
            let spec = column.spec();
            spec.column_name() == name || spec.names.contains(&name.as_str())
        };
        // The parser rejects all other names.
        Column::ALL.into_iter().find(has_name).unwrap_or(Column::Gpu)
    })
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.01..=10_000.0).contains(&speed) => Ok(speed),
        _ => Err("write a number from 0.01 to 10000".to_owned()),
    }
}

/// Colour theme of `watch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ThemeChoice {
    /// `light` if the terminal or COLORFGBG reports a light background, otherwise `terminal`
    Auto,
    /// Colours of the terminal, for a dark background
    Terminal,
    /// Colours of the terminal that are readable on a light background
    Light,
    /// Cyan, yellow and light red, suitable for red-green colour blindness
    #[value(alias = "color-blind")]
    ColourBlind,
}

/// Format of the picture that `--once` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Once {
    /// Text, with colours on a terminal and with --color always
    Text,
    /// An SVG document, in colour unless --color never is given
    Svg,
}

/// Parses a number of columns and rows, such as `120x40`.
fn size(text: &str) -> Result<(u16, u16), String> {
    let parts = text.split_once('x');
    let parsed = parts.and_then(|(columns, rows)| Some((cells(columns)?, cells(rows)?)));
    parsed.ok_or_else(|| format!("write columns and rows from 1 to {MOST_CELLS}: 120x40"))
}

/// Maximum width and height of a picture, in cells.
const MOST_CELLS: u16 = 1000;

/// Parses a width or height. Returns `None` if it is out of range.
pub fn cells(text: &str) -> Option<u16> {
    let number = text.parse().ok()?;
    (1..=MOST_CELLS).contains(&number).then_some(number)
}
