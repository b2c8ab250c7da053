//! What may be typed to `gpumem watch`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::{EXIT_CODES, OtherHosts, Recorded, Stored, Where};
use crate::units::Span;
use crate::watch::column::Column;
use crate::watch::once::Keys;

/// Watch GPUs, processes and findings live on the terminal, and free memory there
///
/// From top to bottom: the machine and the sample's age; the GPUs; the processes; the findings, or the
/// details of the selected process. If `gpumem record --store` is running, idle times and findings are
/// there from the start. With --replay or --demo a recording plays, and nothing in it can be signalled.
///
/// With --once it prints one picture and exits; that needs no terminal. The picture shows this
/// machine's second sample, the recording's end, or the demo's 25th minute.
///
/// Keys: ? shows all keys, q quits; the line at the bottom has F1 to F10, to press or to click. j, k
/// and the arrows select, Enter explains the selection, / filters as in `user:ann gpu:0 idle>10m
/// mem>4GiB`, F3 finds, digits show one GPU only, i shows its page, s totals by user and job, e the
/// environment of a process with secrets masked, F2 chooses the columns, p pauses, `[` and `]` step
/// back and forth. The manual page (gpumem man watch) lists all keys and the filter's terms.
///
/// Freeing memory: Space marks a process; x shows the plan that `gpumem reap` would make for the marked
/// or selected processes, X the plan for all findings. In a plan, Tab switches to families and to all
/// findings, s chooses another signal, y confirms, and u cancels until the first signal is sent.
///
/// When a signal terminates gpumem, it first restores the terminal and then dies of that signal.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct WatchArgs {
    /// Time between samples [default: 1s, or the configuration's]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub interval: Option<Span>,

    /// Start with only these GPUs and the processes on them, by index or UUID (or its beginning); /
    /// changes it
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Start with the processes of these users, by name or uid; / changes it
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// The filter that the screen starts with.
    #[command(flatten)]
    pub terms: Where,

    /// Sort the processes by this column; r reverses the order, o changes it [default: as last used, or
    /// memory]
    #[arg(long, value_name = "COLUMN", value_parser = columns())]
    pub sort: Option<Column>,

    /// Columns of the table, from left to right, for this session [default: as chosen with F2, or all]
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', value_parser = columns())]
    pub columns: Vec<Column>,

    /// Speed of a recording, as a multiple of real time
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed, allow_negative_numbers = true)]
    pub speed: f64,

    /// Draw with ASCII only [default: if the locale is not UTF-8, and on the Linux console]
    #[arg(long)]
    pub ascii: bool,

    /// The colours [default: auto]
    #[arg(long, value_name = "THEME")]
    pub theme: Option<ThemeChoice>,

    /// Print one picture to standard output, and exit
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        conflicts_with_all = ["host", "hosts"]
    )]
    pub once: Option<Once>,

    /// Columns and rows of the picture [default: the terminal's, or COLUMNS and LINES, or 80x24]
    #[arg(long, value_name = "COLUMNSxROWS", requires = "once", value_parser = size)]
    pub size: Option<(u16, u16)>,

    /// Keys to press before the picture is taken: `jj<Enter>`, `?<PgDn>`; `<lt>` is <
    #[arg(long, value_name = "KEYS", requires = "once", allow_hyphen_values = true)]
    pub keys: Option<Keys>,

    /// Leave the mouse to the terminal, so that it selects text
    #[arg(long)]
    pub no_mouse: bool,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,

    /// The machines to ask.
    #[command(flatten)]
    pub others: OtherHosts,
}

/// The columns by name, as for `ps --sort` and the filter's terms.
fn columns() -> impl TypedValueParser<Value = Column> {
    let values = Column::ALL.map(|column| {
        let spec = column.spec();
        let others = spec.names.iter().filter(|name| **name != spec.column_name());
        PossibleValue::new(spec.column_name()).aliases(others.copied()).help(spec.meaning)
    });
    PossibleValuesParser::new(values).map(|name| {
        let is_it = |column: &Column| {
            let spec = column.spec();
            spec.column_name() == name || spec.names.contains(&name.as_str())
        };
        // The parser lets no other name through.
        Column::ALL.into_iter().find(is_it).unwrap_or(Column::Gpu)
    })
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.01..=10_000.0).contains(&speed) => Ok(speed),
        _ => Err("write a number from 0.01 to 10000".to_owned()),
    }
}

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
fn size(text: &str) -> Result<(u16, u16), String> {
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
