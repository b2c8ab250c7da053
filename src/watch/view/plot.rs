//! A framed chart with its axes: memory as a stacked area, utilization as a line. `chart` draws the chart itself.
//!
//! A label is on the row whose upper edge has the label's value. A grid line is on that edge.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::chart::{self, ChartWindow, Layer};
use super::line_writer::{LineWriter, put};
use crate::model::Time;
use crate::units::Bytes;
use crate::watch::text::columns;
use crate::watch::theme::Styles;

/// Minimum width of a chart with labels.
const LABELS_FROM: u16 = 20;
/// Number of columns between the dashes of a grid line.
const GRID_COLUMNS: usize = 4;

#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Value at the upper edge of the chart. The value at the lower edge is 0.
    pub top: f64,
    /// Labels of the upper edge and of the middle.
    labels: [String; 2],
}

impl Axis {
    /// Creates an axis up to `top`, with labels in percent of `top`.
    pub fn share_of(top: f64) -> Self {
        Self { top, labels: ["100", "50"].map(str::to_owned) }
    }

    /// Creates an axis for memory up to a round number above `max`.
    pub fn above(max: u64) -> Self {
        /// Round numbers, in quarters of a power of two.
        const PARTS: [u64; 4] = [2, 3, 4, 6];
        let power = max.max(4).checked_next_power_of_two().unwrap_or(1 << 63);
        let quarter = power / 4;
        let round = PARTS.into_iter().map(|parts| quarter.saturating_mul(parts));
        // The maximum must be visible, below the upper edge.
        let top = round.into_iter().find(|top| *top - *top / 16 >= max);
        let top = top.unwrap_or(power.saturating_mul(2));
        let label = |bytes: u64| Bytes(bytes).to_string().replace(".0 ", " ");
        Self { top: top as f64, labels: [label(top), label(top / 2)] }
    }

    /// Creates an axis for CPU use, in percent of a core.
    pub fn cores(max: f64) -> Self {
        let top = (max / 100.0).ceil().max(1.0) * 100.0;
        Self { top, labels: [top, top / 2.0].map(|value| format!("{value:.0}%")) }
    }

    fn width(&self) -> u16 {
        self.labels.iter().map(|label| columns(label)).max().unwrap_or(0)
    }
}

/// A finding's start, and the thresholds of its rule on both axes.
#[derive(Clone, Copy, Default)]
pub struct FindingMark {
    pub since: Option<Time>,
    pub thresholds: [Option<f64>; 2],
}

pub struct Plot {
    pub window: ChartWindow,
    /// The axis of the area on the left, and the axis of the line on the right. Without an axis, the value is not
    /// drawn. Equal labels are written once.
    pub axes: [Option<Axis>; 2],
    pub mark: FindingMark,
    pub styles: Styles,
}

impl Plot {
    /// Draws a frame with the title on its upper edge and the times on its lower edge. Returns the area inside.
    pub fn frame(&self, title: &[(String, Style)], area: Rect, canvas: &mut Buffer) -> Rect {
        let (styles, faint) = (self.styles, self.styles.faint());
        let mut upper = LineWriter::new(canvas, area, 0);
        upper.text("┌", faint).skip(1);
        let mut room = upper.room().saturating_sub(2);
        for (text, style) in title {
            upper.left(text, columns(text).min(room), *style);
            room = room.saturating_sub(columns(text));
        }
        upper.skip(1);
        let dashes = upper.room().saturating_sub(1);
        upper.fill("─", dashes, faint).text("┐", faint);
        for y in area.y + 1..area.bottom().saturating_sub(1) {
            put(canvas, (area.x, y), '│', faint);
            put(canvas, (area.right() - 1, y), '│', faint);
        }
        let mut lower = LineWriter::new(canvas, area, area.height.saturating_sub(1));
        let start = format!(" -{} ", self.window.label());
        lower.text("└", faint).text(&start, faint);
        let dashes = lower.room().saturating_sub(5);
        lower.fill("─", dashes, faint).text(" now┘", styles.faint());
        area.inner(ratatui::layout::Margin::new(1, 1))
    }

    /// Draws the chart inside a frame. `values` returns the layers of the area and the values of the line for a number
    /// of columns.
    pub fn draw(
        &self,
        inside: Rect,
        canvas: &mut Buffer,
        values: impl FnOnce(u16) -> (Vec<Layer>, Vec<Option<f64>>),
    ) {
        if inside.is_empty() {
            return;
        }
        let dots = self.draw_labels(inside, canvas);
        let (layers, line) = values(dots.width);
        let [area_axis, line_axis] = &self.axes;
        let tops = match area_axis {
            Some(axis) => chart::draw_area(&layers, axis.top, dots, canvas),
            None => Vec::new(),
        };
        self.draw_grid(dots, canvas);
        self.draw_mark(dots, canvas);
        if let Some(axis) = line_axis {
            let first = self.window.first_column(dots.width);
            chart::draw_line(&line, axis.top, (&tops, first), self.styles.load(), dots, canvas);
        }
    }

    /// Draws the labels if there is room. Returns the area for the chart.
    fn draw_labels(&self, inside: Rect, canvas: &mut Buffer) -> Rect {
        if inside.width < LABELS_FROM {
            return inside;
        }
        let [left, right] = &self.axes;
        let left = left.as_ref().or(right.as_ref());
        let right =
            right.as_ref().filter(|right| left.is_some_and(|left| left.labels != right.labels));
        let width = |axis: Option<&Axis>| axis.map_or(0, |axis| axis.width() + 1);
        let dots = Rect {
            x: inside.x + width(left),
            width: inside.width.saturating_sub(width(left) + width(right)),
            ..inside
        };
        let lines = [Some(0), inside.height.is_multiple_of(2).then_some(inside.height / 2)];
        for (at, line) in lines.into_iter().enumerate() {
            let Some(line) = line else { continue };
            let mut writer = LineWriter::new(canvas, inside, line);
            let style = self.styles.faint();
            if let Some(axis) = left {
                writer.right(&axis.labels[at], axis.width(), style);
            }
            if let Some(axis) = right {
                writer.at_end(&axis.labels[at], style);
            }
        }
        dots
    }

    fn draw_grid(&self, dots: Rect, canvas: &mut Buffer) {
        let parts = match dots.height {
            height if height >= 8 && height % 4 == 0 => 4,
            height if height % 2 == 0 => 2,
            _ => 1,
        };
        for part in 0..parts {
            let y = dots.y + dots.height * part / parts;
            for x in (dots.left()..dots.right()).step_by(GRID_COLUMNS) {
                put_in_blank(canvas, (x, y), '▔', self.styles.faint());
            }
        }
    }

    /// Draws thin lines at the thresholds and at the start of the finding, and marks their ends at the edge of the
    /// chart.
    fn draw_mark(&self, dots: Rect, canvas: &mut Buffer) {
        let style = self.styles.caution();
        for (axis, threshold) in self.axes.iter().zip(self.mark.thresholds) {
            let share = axis.as_ref().zip(threshold).map(|(axis, value)| value / axis.top);
            let Some(share) = share.filter(|share| *share < 1.0) else { continue };
            let y = dots.bottom() - 1 - (share * f64::from(dots.height)) as u16;
            put(canvas, (dots.x.saturating_sub(1), y), '▸', style);
            for x in dots.left()..dots.right() {
                put_in_blank(canvas, (x, y), '─', style);
            }
        }
        let since = self.mark.since.and_then(|since| self.window.column_of(since, dots.width));
        if let Some(column) = since {
            let x = dots.x + column;
            for y in dots.top()..dots.bottom() {
                put_in_blank(canvas, (x, y), '│', style);
            }
            put(canvas, (x, dots.bottom()), '▲', style);
        }
    }
}

/// Writes a character into a cell that is blank or part of the grid.
fn put_in_blank(canvas: &mut Buffer, at: (u16, u16), symbol: char, style: Style) {
    if canvas.cell(at).is_some_and(|cell| matches!(cell.symbol(), " " | "▔")) {
        put(canvas, at, symbol, style);
    }
}
