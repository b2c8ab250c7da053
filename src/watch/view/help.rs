//! The help: the keys from the very table that handles them, then what is typed, clicked and meant.
//!
//! It flows in as many columns as the width has room for, and nothing in it is cut: what is too long
//! for its column goes on in the next line.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::bar::{FREE, HELD, RESERVED, UNATTRIBUTED, UNTOLD};
use super::look::Look;
use super::pen::{Pen, wrap};
use crate::model::field::FIELDS;
use crate::watch::column::Column;
use crate::watch::keys::{Context, GROUPS, Group};
use crate::watch::layout::FOLDS;

/// How what can be typed after `/` is put together; the terms follow, from their own table.
const FILTER: [(&str, &str); 5] = [
    ("train.py", "a word: pid, user, command, notebook, finding"),
    ("user:ann gpu:0", "all of them have to fit"),
    ("user:ann,bob", "one of them has to fit"),
    (
        "idle>10m mem>4GiB",
        "figures; what is not known fits nothing",
    ),
    ("!gpu:0", "whatever does not fit"),
];

/// What the mouse does.
const MOUSE: [(&str, &str); 6] = [
    ("heading", "sort by it; again turns the order around"),
    ("row", "select; twice explains"),
    ("GPU", "filter by it; again lifts that"),
    ("key below", "does what the key does"),
    ("wheel", "scrolls what lies under it"),
    ("Shift", "held, the terminal selects text"),
];

/// What the marks mean.
const MARKS: [(&str, &str); 12] = [
    (HELD, "memory that processes hold"),
    (UNATTRIBUTED, "used, but by no process that can be seen"),
    (UNTOLD, "used; by whom is not known"),
    (RESERVED, "reserved by the driver"),
    (FREE, "free"),
    ("—", "not known; 0 is an observed zero"),
    ("n/a", "this GPU or driver does not tell it"),
    ("0:3", "device 3 of GPU 0, under MIG"),
    (
        "unlisted",
        "holds a GPU's device file; NVML does not list it",
    ),
    ("stale 7s", "the GPU has not answered for so long"),
    ("~", "the last known value of such a GPU"),
    ("unresolved", "who is behind this pid could not be told"),
];

/// Terminal columns that keys and marks take.
const LABEL: u16 = 17;
/// Terminal columns of text that a column of the help is worth having for.
const TEXT: u16 = 34;
/// Blanks before each column of the help, and after it.
const GAP: u16 = 1;
/// More columns than this are harder to read than to scroll.
const MOST_COLUMNS: u16 = 3;

/// A line of the help.
struct Line {
    /// A heading where there is no text, a key, a mark.
    label: String,
    text: Option<String>,
}

/// The help as it stands on a screen of one width.
struct Sheet {
    columns: Vec<Vec<Line>>,
    /// Of each column.
    width: u16,
}

impl Sheet {
    fn new(context: Context, width: u16) -> Self {
        let count = (width / (GAP + LABEL + 1 + TEXT)).clamp(1, MOST_COLUMNS);
        let width = width / count;
        let blocks = blocks(context, width.saturating_sub(2 * GAP + LABEL + 1));
        Self {
            columns: flow(blocks, usize::from(count)),
            width,
        }
    }

    fn height(&self) -> usize {
        self.columns.iter().map(Vec::len).max().unwrap_or_default()
    }
}

/// The help's parts, each with its heading and a blank after it, in lines of so much text. What was
/// open comes first.
fn blocks(context: Context, width: u16) -> Vec<Vec<Line>> {
    let mut blocks = Vec::new();
    let mut block = |title: &str, lines: &mut dyn Iterator<Item = (String, &str)>| {
        let mut block = vec![Line {
            label: title.to_owned(),
            text: None,
        }];
        for (mut label, text) in lines {
            for text in wrap(text, width, usize::MAX) {
                let text = Some(text.into_owned());
                let label = std::mem::take(&mut label);
                block.push(Line { label, text });
            }
        }
        block.push(Line {
            label: String::new(),
            text: None,
        });
        blocks.push(block);
    };
    let (own, others): (Vec<&Group>, Vec<&Group>) =
        GROUPS.iter().partition(|it| it.context == context);
    for group in own.into_iter().chain(others) {
        let bindings = group.bindings.iter();
        let mut lines = bindings.map(|it| (it.label.to_owned(), it.does));
        block(group.title, &mut lines);
    }
    let mut letters = Column::ALL.into_iter().map(|column| {
        let spec = column.spec();
        (spec.letter.to_string(), spec.title)
    });
    block("After o: sort by (capitals: reversed)", &mut letters);
    let terms = FIELDS.map(|field| (field.example, field.meaning));
    let filter = [&FILTER[..], &terms].concat();
    for (title, table) in [
        ("After /: show only", &filter[..]),
        ("The mouse", &MOUSE),
        ("When the screen is small", &FOLDS),
        ("Marks", &MARKS),
    ] {
        let mut lines = table.iter().map(|(mark, text)| ((*mark).to_owned(), *text));
        block(title, &mut lines);
    }
    blocks
}

/// Puts the parts below each other into at most `count` columns, as low as that can be; each part
/// stays whole, and in its order.
fn flow(mut blocks: Vec<Vec<Line>>, count: usize) -> Vec<Vec<Line>> {
    let columns_at = |height: usize| {
        let mut columns = 1;
        let mut used = 0;
        for block in &blocks {
            if used > 0 && used + block.len() > height {
                columns += 1;
                used = 0;
            }
            used += block.len();
        }
        columns
    };
    let least = blocks.iter().map(Vec::len).max().unwrap_or_default();
    let all: usize = blocks.iter().map(Vec::len).sum();
    let height = (least..all)
        .find(|&height| columns_at(height) <= count)
        .unwrap_or(all);
    let mut columns: Vec<Vec<Line>> = vec![Vec::new()];
    for block in blocks.drain(..) {
        let last = columns.last().map_or(0, Vec::len);
        if last > 0 && last + block.len() > height {
            columns.push(Vec::new());
        }
        if let Some(column) = columns.last_mut() {
            column.extend(block);
        }
    }
    // No blank follows the last part of a column.
    for column in &mut columns {
        column.pop();
    }
    columns
}

/// The part of the screen that is not the line of how to leave.
fn body(area: Rect) -> Rect {
    let foot = u16::from(area.height > 1);
    Rect {
        height: area.height - foot,
        ..area
    }
}

/// The line that the help of `context` starts with when it is scrolled down to its end.
pub fn last_line(context: Context, area: Rect) -> u16 {
    let height = Sheet::new(context, area.width).height();
    let last = height.saturating_sub(usize::from(body(area).height));
    u16::try_from(last).unwrap_or(u16::MAX)
}

/// Draws the help of `context` from line `first` on.
pub fn draw(context: Context, look: Look, first: u16, area: Rect, buffer: &mut Buffer) {
    let sheet = Sheet::new(context, area.width);
    let body = body(area);
    let last = sheet.height().saturating_sub(usize::from(body.height));
    let first = usize::from(first).min(last);
    for (at, column) in sheet.columns.iter().enumerate() {
        let left = Rect {
            x: body.x + sheet.width * at as u16,
            width: sheet.width,
            ..body
        };
        let visible = column.iter().skip(first).take(usize::from(body.height));
        for (row, line) in visible.enumerate() {
            let mut pen = Pen::new(buffer, left, row as u16);
            pen.skip(GAP);
            match &line.text {
                None => pen.text(&line.label, look.heading().patch(look.strong())),
                Some(text) => pen
                    .left(&line.label, LABEL, look.strong())
                    .skip(1)
                    .text(text, look.plain()),
            };
        }
    }
    if body.height < area.height {
        let more = match (first > 0, first < last) {
            (false, false) => "",
            (false, true) => "j k scrolls, more below; ",
            (true, false) => "j k scrolls, the end; ",
            (true, true) => "j k scrolls; ",
        };
        let text = format!("{more}any other key leaves this help");
        Pen::new(buffer, area, body.height)
            .skip(GAP)
            .text(&text, look.faint());
    }
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Cell;

    use super::*;
    use crate::watch::view::look::{Depth, Theme};

    fn text(context: Context, first: u16, area: Rect) -> Vec<String> {
        let look = Look {
            theme: Theme::default(),
            depth: Depth::Mono,
        };
        let mut buffer = Buffer::empty(area);
        draw(context, look, first, area, &mut buffer);
        let width = usize::from(area.width).max(1);
        let rows = buffer.content.chunks(width);
        rows.map(|row| row.iter().map(Cell::symbol).collect())
            .collect()
    }

    /// Everything that can be scrolled to, a line each, in one piece.
    fn whole(context: Context, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut out = Vec::new();
        for first in 0..=last_line(context, area) {
            let mut lines = text(context, first, area);
            lines.pop();
            let new = if first == 0 { 0 } else { lines.len() - 1 };
            out.extend(lines.drain(new..));
        }
        let words = out.join(" ");
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_key_and_mark_can_be_scrolled_to_at_the_smallest_size() {
        for context in [Context::Main, Context::Page, Context::Plan] {
            let words = whole(context, 40, 10);
            assert!(!words.contains('…'), "nothing is cut: {words}");
            for group in GROUPS {
                assert!(words.contains(group.title), "{}", group.title);
                for binding in group.bindings {
                    let line = format!("{} {}", binding.label, binding.does);
                    // Long ones go on below, past the keys' column.
                    assert!(words.contains(&line), "{line} in {words}");
                }
            }
            for (mark, meaning) in [
                &MARKS[..],
                &FILTER,
                &MOUSE,
                &FOLDS,
                &FIELDS.map(|field| (field.example, field.meaning)),
            ]
            .concat()
            {
                assert!(words.contains(&format!("{mark} {meaning}")), "{mark}");
            }
        }
    }

    #[test]
    fn it_has_as_many_columns_as_the_width_has_room_for() {
        let heights = [40, 80, 120, 200].map(|width| Sheet::new(Context::Main, width).height());
        assert!(heights.is_sorted_by(|a, b| a > b), "{heights:?}");
        let count = |width| Sheet::new(Context::Main, width).columns.len();
        assert_eq!([40, 80, 120, 200, 1000].map(count), [1, 1, 2, 3, 3]);
        assert!(last_line(Context::Main, Rect::new(0, 0, 200, 60)) == 0);
    }

    #[test]
    fn the_keys_of_what_is_open_come_first() {
        let area = Rect::new(0, 0, 80, 24);
        for group in GROUPS {
            let first = GROUPS.iter().find(|it| it.context == group.context);
            let lines = text(group.context, 0, area);
            assert_eq!(lines[0].trim(), first.unwrap().title);
        }
    }

    #[test]
    fn no_size_and_no_line_panics() {
        for width in 0..90 {
            for height in 0..5 {
                let area = Rect::new(0, 0, width, height);
                for first in [0, 7, u16::MAX] {
                    text(Context::Main, first, area);
                }
            }
        }
    }
}
