//! Layout of the help in columns.

use ratatui::layout::Rect;

use crate::model::field::selectable;
use crate::rules::KINDS;
use crate::watch::column::Column;
use crate::watch::keys::{Context, GROUPS, Group};
use crate::watch::memory_shares::MemoryShare;
use crate::watch::text::wrap;

/// The syntax of filters. [`selectable`] lists the terms.
pub const FILTER: [(&str, &str); 5] = [
    ("train.py", "a word: pid, user, command, notebook, finding"),
    ("user:ann gpu:0", "all terms must match"),
    ("user:ann,bob", "one of the values must match"),
    ("idle>10m mem>4GiB", "figures; unknown never matches"),
    ("!gpu:0", "rows that do not match"),
];

pub const MOUSE: [(&str, &str); 6] = [
    ("heading", "sort by it; again reverses the order"),
    ("row", "select; twice explains"),
    ("GPU", "filter by it; again shows all"),
    ("key below", "same as pressing the key"),
    ("wheel", "scrolls the panel under it"),
    ("Shift", "held, the terminal selects text"),
];

/// Marks on the screen, except the glyphs in bars, which [`MemoryShare`] explains.
pub const MARKS: [(&str, &str); 7] = [
    ("█ ─", "in a chart: memory in use, utilization"),
    ("-", "unknown; 0 is an observed zero"),
    ("n/a", "this GPU or driver does not report it"),
    ("0:3", "device 3 of GPU 0, under MIG"),
    ("unlisted", "holds a GPU's file; NVML does not list it"),
    ("~ stale 7s", "last known; no answer for 7s"),
    ("unresolved", "no process could be matched to this pid"),
];

pub const LABEL: u16 = 17;
const TEXT: u16 = 30;
pub const GAP: u16 = 1;
const LINES: usize = 64;
/// Maximum number of columns. Scrolling is easier than reading more columns.
const COLUMNS_MAX: u16 = 4;

#[derive(Debug)]
pub struct HelpLine {
    /// Left column: a heading, or the explained item, such as a key. Empty on continuation and blank lines.
    pub label: String,
    /// `None` for a heading and for a blank line.
    pub text: Option<String>,
}

#[derive(Debug)]
pub struct HelpPage {
    pub columns: Vec<Vec<HelpLine>>,
    pub width: u16,
}

impl HelpPage {
    pub fn new(context: Context, width: u16) -> Self {
        let count = (width / (GAP + LABEL + 1 + TEXT)).clamp(1, COLUMNS_MAX);
        let width = width / count;
        let blocks = blocks(context, width.saturating_sub(2 * GAP + LABEL + 1));
        Self { columns: flow(blocks, usize::from(count)), width }
    }

    pub fn height(&self) -> usize {
        self.columns.iter().map(Vec::len).max().unwrap_or_default()
    }
}

/// Returns the sections of the help. The sections about the current context come first.
fn blocks(context: Context, width: u16) -> Vec<Vec<HelpLine>> {
    let mut blocks = Vec::new();
    let mut block = |title: &str, lines: &mut dyn Iterator<Item = (String, &str)>| {
        let mut block = vec![HelpLine { label: title.to_owned(), text: None }];
        for (mut label, text) in lines {
            for text in wrap(text, width, LINES) {
                let text = Some(text.into_owned());
                let label = std::mem::take(&mut label);
                block.push(HelpLine { label, text });
            }
        }
        block.push(HelpLine { label: String::new(), text: None });
        blocks.push(block);
    };
    let (current, others): (Vec<&Group>, Vec<&Group>) =
        GROUPS.iter().partition(|group| group.0 == context);
    for (_, title, bindings) in current.into_iter().chain(others) {
        let mut lines = bindings.iter().map(|(keys, does, _)| ((*keys).to_owned(), *does));
        block(title, &mut lines);
    }
    let mut letters = Column::ALL.into_iter().map(|column| {
        let spec = column.spec();
        (spec.letter.to_string(), spec.title)
    });
    block("After o: sort by (capitals: reversed)", &mut letters);
    let terms: Vec<_> = selectable().map(|field| (field.example, field.meaning)).collect();
    let filter = [&FILTER[..], &terms].concat();
    let mut kinds = KINDS.iter().map(|rule| (rule.kind.to_string(), rule.meaning));
    block("Findings (column FINDING)", &mut kinds);
    let shares = MemoryShare::ALL.map(|share| (share.glyph(), share.meaning()));
    for (title, table) in [
        ("After /: show only", &filter[..]),
        ("Mouse", &MOUSE),
        ("Marks", &[&shares[..], &MARKS].concat()),
    ] {
        let mut lines = table.iter().map(|(mark, text)| ((*mark).to_owned(), *text));
        block(title, &mut lines);
    }
    blocks
}

/// Distributes the sections, whole and in order, over at most `count` columns of minimal height.
fn flow(blocks: Vec<Vec<HelpLine>>, count: usize) -> Vec<Vec<HelpLine>> {
    // The column of each section, if columns are limited to `height` lines.
    let places = |height: usize| -> Vec<usize> {
        let (mut column, mut used) = (0, 0);
        let column_of = |block: &Vec<HelpLine>| {
            if used > 0 && used + block.len() > height {
                (column, used) = (column + 1, 0);
            }
            used += block.len();
            column
        };
        blocks.iter().map(column_of).collect()
    };
    let mut heights = 0..=blocks.iter().map(Vec::len).sum::<usize>();
    let columns_of = heights
        .find_map(|height| Some(places(height)).filter(|places| places.last() < Some(&count)));
    let mut columns: Vec<Vec<HelpLine>> = Vec::new();
    for (at, block) in columns_of.unwrap_or_default().into_iter().zip(blocks) {
        if at == columns.len() {
            columns.push(Vec::new());
        }
        columns[at].extend(block);
    }
    for column in &mut columns {
        column.pop();
    }
    columns
}

/// Returns the area above the bottom line, which shows how to close the help.
pub fn body(area: Rect) -> Rect {
    let foot = u16::from(area.height > 1);
    Rect { height: area.height - foot, ..area }
}

pub fn last_line(context: Context, area: Rect) -> u16 {
    let height = HelpPage::new(context, area.width).height();
    let last = height.saturating_sub(usize::from(body(area).height));
    u16::try_from(last).unwrap_or(u16::MAX)
}
