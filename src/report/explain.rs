//! The page of `gpumem explain` as text: a column of labels with wrapped text beside them.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::escape::{escape, wrap};
use super::style::Style;
use crate::explain::page::{ExplainPage, MemoryCurve, MemoryPoint, Row};
use crate::units::Bytes;

/// Minimum width of a page in columns. A narrower page would split commands.
const WIDTH_MIN: usize = 40;
/// Maximum width of a page in columns, for readability.
const WIDTH_MAX: usize = 120;
const MARGIN: usize = 10;
/// Maximum number of lines beside a label.
const BESIDE_LINES_MAX: usize = 4;
/// Minimum width of an item's text in columns, even after a long mark.
const ITEM_COLUMNS_MIN: usize = 8;
/// Maximum number of lines of a list item. Items can contain untrusted names of any length.
const ITEM_LINES_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageStyle {
    pub width: usize,
    pub style: Style,
    pub ascii: bool,
}

/// Formats the page. The width is clamped to between 40 and 120 columns.
pub fn text(page: &ExplainPage, options: PageStyle) -> String {
    let options = PageStyle { width: options.width.clamp(WIDTH_MIN, WIDTH_MAX), ..options };
    let mut sheet = PageText { out: String::new(), options };
    for line in wrap(&escape(&page.title), (options.width, options.width), BESIDE_LINES_MAX) {
        sheet.put(&options.style.heading(&line));
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
        sheet.item("- ", "- ", &error.to_string());
    }
    sheet.out
}

struct PageText {
    out: String,
    options: PageStyle,
}

impl PageText {
    fn room(&self) -> usize {
        self.options.width.saturating_sub(MARGIN)
    }

    fn heading(&mut self, text: &str) {
        if !text.is_empty() {
            self.out.push('\n');
            self.put(&self.options.style.heading(text));
        }
    }

    fn row(&mut self, row: &Row) {
        match row {
            Row::Entry { label, text } => {
                let text = escape(text);
                for (at, line) in
                    wrap(&text, (self.room(), self.room()), BESIDE_LINES_MAX).iter().enumerate()
                {
                    self.beside(if at == 0 { label } else { "" }, line);
                }
            }
            Row::Item { mark, text, severity } => {
                let severity = severity
                    .map(|severity| (severity.to_string(), self.options.style.severity(severity)));
                let shown = match severity {
                    Some((plain, coloured)) => mark.replacen(&plain, &coloured, 1),
                    None => mark.clone(),
                };
                self.item(mark, &shown, text);
            }
            Row::Table(table) => {
                let style = self.options.style;
                let text = table.render(Some(self.options.width), |text| style.heading(text));
                text.lines().for_each(|line| self.put(line));
            }
            Row::Curve(curve) => self.chart(curve),
        }
    }

    fn beside(&mut self, label: &str, line: &str) {
        let padding = " ".repeat(MARGIN.saturating_sub(label.width()).max(1));
        let label = match label {
            "" => String::new(),
            label => self.options.style.heading(label),
        };
        self.put(&format!("{label}{padding}{line}"));
    }

    /// Writes a list item. `shown` is the mark with colours.
    fn item(&mut self, mark: &str, shown: &str, text: &str) {
        const INDENT: usize = 2;
        let columns = mark.width();
        let hang = INDENT + columns.min(8);
        let room = |before| self.options.width.saturating_sub(before).max(ITEM_COLUMNS_MIN);
        let text = escape(text);
        let lines = wrap(&text, (room(INDENT + columns), room(hang)), ITEM_LINES_MAX);
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
        let ascii = self.options.ascii;
        let Some(chart) = draw(curve, Size { columns, rows: curve.lines, ascii }) else {
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
            let line = self.options.style.chart(line);
            self.beside("", &format!("{scale:>9} {edge}{line}"));
        }
    }

    fn put(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{}", line.trim_end());
    }
}

/// Cells filled from zero to eight eighths.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '.', '.', ':', ':', '+', '+', '#', '#'];
const EIGHTHS: u64 = 8;
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
    pub ascii: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chart {
    pub lines: Vec<String>,
    top_bytes: u64,
    /// Memory at the lower edge, above 0 if all values are close together.
    bottom_bytes: u64,
}

/// Draws a chart. Each column shows the maximum in its time span, so that no peak is lost. Returns `None` if there
/// are fewer than two points, if they span no time, or if the chart has no columns or rows.
pub fn draw(curve: &MemoryCurve, size: Size) -> Option<Chart> {
    let points = &curve.points;
    let (first, last) = (points.first()?, points.last()?);
    let length = last.until - first.since;
    if points.len() < 2 || length <= 0 || size.columns == 0 || size.rows == 0 {
        return None;
    }
    let high = points.iter().map(|point| point.high_bytes).max()?;
    let low = points.iter().map(|point| point.low_bytes).min()?;
    let bottom = if high - low < high / 4 { low.saturating_sub((high - low) / 4) } else { 0 };
    let columns = fill(points, curve.vouched_milliseconds, size.columns);
    let steps = EIGHTHS * size.rows as u64;
    let height = |bytes: u64| {
        let share = (bytes - bottom) as f64 / ((high - bottom).max(1)) as f64;
        // A nonzero amount of memory must be visible.
        let min = u64::from(bytes > 0);
        ((share * steps as f64).round() as u64).clamp(min, steps)
    };
    let heights: Vec<Option<u64>> = columns.iter().map(|bytes| bytes.map(height)).collect();
    let cells = if size.ascii { ASCII } else { BLOCKS };
    let line = |row: usize| {
        let below = EIGHTHS * (size.rows - 1 - row) as u64;
        let cell = |height: &Option<u64>| {
            let eighths = height.unwrap_or(0).saturating_sub(below).min(EIGHTHS);
            cells[eighths as usize]
        };
        heights.iter().map(cell).collect()
    };
    Some(Chart { lines: (0..size.rows).map(line).collect(), top_bytes: high, bottom_bytes: bottom })
}

fn fill(points: &[MemoryPoint], allowed: i64, columns: usize) -> Vec<Option<u64>> {
    let begin = points[0].since;
    let length = points[points.len() - 1].until - begin;
    let column = |time| {
        let at = (time - begin) as i128 * columns as i128 / i128::from(length);
        usize::try_from(at).unwrap_or(0).min(columns - 1)
    };
    let mut filled: Vec<Option<u64>> = vec![None; columns];
    for (at, point) in points.iter().enumerate() {
        // A value applies until the next point, unless the gap is longer than `allowed`.
        let next = points.get(at + 1).map(|next| next.since);
        let until = next.filter(|next| *next - point.until <= allowed);
        let (from, to) = (column(point.since), column(point.until));
        for cell in &mut filled[from..=to.max(from)] {
            *cell = (*cell).max(Some(point.high_bytes));
        }
        let held = until.map_or(to, column).max(to);
        for cell in &mut filled[to..=held] {
            *cell = (*cell).max(Some(point.last_bytes));
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Time;

    fn points(values: &[(i64, u64)]) -> MemoryCurve {
        let point = |&(seconds, bytes): &(i64, u64)| {
            let time = Time::from_unix_milliseconds(seconds * 1000);
            MemoryPoint {
                since: time,
                until: time,
                low_bytes: bytes,
                high_bytes: bytes,
                last_bytes: bytes,
            }
        };
        MemoryCurve {
            points: values.iter().map(point).collect(),
            vouched_milliseconds: 60_000,
            ..MemoryCurve::default()
        }
    }

    fn size(columns: usize, rows: usize) -> Size {
        Size { columns, rows, ascii: false }
    }

    #[test]
    fn too_few_points_make_no_chart_and_extremes_do_not_overflow() {
        assert_eq!(draw(&MemoryCurve::default(), size(9, 1)), None);
        assert_eq!(draw(&points(&[(0, 1)]), size(9, 1)), None);
        assert_eq!(draw(&points(&[(0, 1), (0, 2)]), size(9, 1)), None);
        assert_eq!(draw(&points(&[(0, 1), (1, 2)]), size(0, 1)), None);
        let extremes = points(&[(i64::MIN / 4000, u64::MAX), (0, 0), (i64::MAX / 4000, 7)]);
        for ascii in [false, true] {
            let lines = draw(&extremes, Size { ascii, ..size(40, 3) }).unwrap().lines;
            assert!(lines.iter().all(|line| line.chars().count() == 40));
            assert!(!ascii || lines.iter().all(|line| line.is_ascii()));
        }
        // If a clock is set back, times decrease.
        let back = points(&[(0, 1), (5, 2), (3, 9), (10, 4)]);
        assert!(draw(&back, size(10, 1)).is_some());
    }
}
