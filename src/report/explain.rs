//! The page of `gpumem explain` for people: labels in a column, text beside them broken at a width, and never
//! wider; colour carries no meaning of its own. Nothing a process chose reaches it unescaped.

pub mod chart;

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use self::chart::Size;
use super::escape::escape;
use super::style::Style;
use super::wrap::wrap;
use crate::explain::page::{ExplainPage, MemoryCurve, Row};
use crate::units::Bytes;

/// The narrowest page, in columns: a narrower one would cut commands in two.
const LEAST_WIDTH: usize = 40;
/// The widest page, in columns: longer lines are hard to read.
const MOST_WIDTH: usize = 120;
/// The column at which the text beside a label begins.
const MARGIN: usize = 10;
/// The most lines of text beside a label.
const MOST_BESIDE: usize = 4;
/// The fewest columns of an item's text, however long its mark is.
const LEAST_ROOM: usize = 8;
/// The most lines of a list item, which may contain names chosen by a process.
const MOST_LINES: usize = 8;

/// Appearance of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageStyle {
    /// Width in columns.
    pub width: usize,
    /// Colour.
    pub style: Style,
    /// Whether charts use only ASCII.
    pub ascii: bool,
}

/// The page as text. Lines are at most as wide as the look's width, which is limited to 40 to 120
/// columns.
pub fn text(page: &ExplainPage, look: PageStyle) -> String {
    let look = PageStyle { width: look.width.clamp(LEAST_WIDTH, MOST_WIDTH), ..look };
    let mut sheet = PageText { out: String::new(), look };
    for line in wrap(&escape(&page.title), (look.width, look.width), MOST_BESIDE) {
        sheet.put(&look.style.heading(&line));
    }
    for section in &page.sections {
        sheet.heading(&section.heading);
        section.rows.iter().for_each(|row| sheet.row(row));
    }
    if !page.notes.is_empty() || !page.errors.is_empty() {
        sheet.heading("What is missing");
    }
    for note in &page.notes {
        sheet.item("- ", "- ", note);
    }
    for error in &page.errors {
        let gpu = error.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
        sheet.item("- ", "- ", &format!("{gpu}{}: {}", error.call, error.error));
    }
    sheet.out
}

/// The text written so far.
struct PageText {
    out: String,
    look: PageStyle,
}

impl PageText {
    /// Width of the text beside a label, in columns.
    fn room(&self) -> usize {
        self.look.width.saturating_sub(MARGIN)
    }

    /// Writes a section's heading, after an empty line except for the first section.
    fn heading(&mut self, text: &str) {
        if !text.is_empty() {
            self.out.push('\n');
            self.put(&self.look.style.heading(text));
        }
    }

    fn row(&mut self, row: &Row) {
        match row {
            Row::Entry { label, text } => {
                let text = escape(text);
                for (at, line) in
                    wrap(&text, (self.room(), self.room()), MOST_BESIDE).iter().enumerate()
                {
                    self.beside(if at == 0 { label } else { "" }, line);
                }
            }
            Row::Item { mark, text, severity } => {
                let severity = severity.map(|it| (it.to_string(), self.look.style.severity(it)));
                let shown = match severity {
                    Some((plain, coloured)) => mark.replacen(&plain, &coloured, 1),
                    None => mark.clone(),
                };
                self.item(mark, &shown, text);
            }
            Row::Table(table) => {
                let style = self.look.style;
                let text = table.render(Some(self.look.width), |text| style.heading(text));
                text.lines().for_each(|line| self.put(line));
            }
            Row::Curve(curve) => self.chart(curve),
        }
    }

    /// Writes one line, already wrapped and escaped, beside a label.
    fn beside(&mut self, label: &str, line: &str) {
        let padding = " ".repeat(MARGIN.saturating_sub(label.width()).max(1));
        let label = match label {
            "" => String::new(),
            label => self.look.style.heading(label),
        };
        self.put(&format!("{label}{padding}{line}"));
    }

    /// Writes a list item: its mark as shown, and its text, with further lines aligned below the first.
    fn item(&mut self, mark: &str, shown: &str, text: &str) {
        const INDENT: usize = 2;
        let columns = mark.width();
        let hang = INDENT + columns.min(8);
        let room = |before| self.look.width.saturating_sub(before).max(LEAST_ROOM);
        let text = escape(text);
        let lines = wrap(&text, (room(INDENT + columns), room(hang)), MOST_LINES);
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        self.put(&format!("{:INDENT$}{shown}{first}", ""));
        for line in lines {
            self.put(&format!("{:hang$}{line}", ""));
        }
    }

    fn chart(&mut self, curve: &MemoryCurve) {
        const SCALE: usize = 11;
        let columns = self.room().saturating_sub(SCALE).min(60);
        let ascii = self.look.ascii;
        let Some(chart) = chart::draw(curve, Size { columns, rows: curve.lines, ascii }) else {
            return;
        };
        let edge = if ascii { '|' } else { '▕' };
        let last = chart.lines.len() - 1;
        for (at, line) in chart.lines.iter().enumerate() {
            let scale = match at {
                0 => Bytes(chart.top_bytes).to_string(),
                at if at == last => Bytes(chart.bottom_bytes).to_string(),
                _ => String::new(),
            };
            let line = self.look.style.chart(line);
            self.beside("", &format!("{scale:>9} {edge}{line}"));
        }
    }

    fn put(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{}", line.trim_end());
    }
}
