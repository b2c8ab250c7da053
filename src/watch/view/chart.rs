//! Charts over time: a stacked area, and a line over it.
//!
//! A column shows the maximum in its time span, so that no peak is lost. Times without samples are blank.
//! [`history::memory_series`](crate::history::memory_series) provides the values.

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::line_writer::put;
use crate::history::memory_series::{Bucket, seen_until};
use crate::model::Time;
use ratatui::buffer::Buffer;

const BLOCKS: [char; 8] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇'];
/// Glyphs of a line in the lower, middle and upper third of a cell.
const LINES: [char; 3] = ['▁', '─', '▔'];
/// Time spans in milliseconds. With only a few spans, the scale of a growing chart seldom changes.
const SPANS: [(i64, &str); 10] = [
    (60_000, "1m"),
    (2 * 60_000, "2m"),
    (5 * 60_000, "5m"),
    (10 * 60_000, "10m"),
    (30 * 60_000, "30m"),
    (3_600_000, "1h"),
    (2 * 3_600_000, "2h"),
    (6 * 3_600_000, "6h"),
    (12 * 3_600_000, "12h"),
    (DAY, "1d"),
];
const DAY: i64 = 24 * 3_600_000;
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartWindow {
    end: Time,
    milliseconds: i64,
}

impl ChartWindow {
    /// Creates a window that ends at `end` and starts at `first` or earlier.
    pub fn new(first: Option<Time>, end: Time) -> Self {
        let wanted = first.map_or(0, |first| end - first);
        let span = SPANS.iter().find(|(span, _)| *span >= wanted);
        let days = || ((wanted - 1) / DAY + 1).saturating_mul(DAY);
        Self { end, milliseconds: span.map_or_else(days, |(span, _)| *span) }
    }

    pub fn between(start: Time, end: Time) -> Self {
        Self { end, milliseconds: (end - start).max(1) }
    }

    /// Returns the number of the column that contains `time`, counted from the epoch. A time keeps this number while
    /// the window moves, so charts move smoothly.
    fn number(&self, time: Time, columns: u16) -> i64 {
        time.unix_milliseconds().div_euclid(self.step(columns))
    }

    fn step(&self, columns: u16) -> i64 {
        (self.milliseconds / i64::from(columns.max(1))).max(1)
    }

    pub fn column_of(&self, time: Time, columns: u16) -> Option<u16> {
        let column = self.number(time, columns).checked_sub(self.first_column(columns))?;
        u16::try_from(column).ok().filter(|column| *column < columns && time <= self.end)
    }

    pub fn first_column(&self, columns: u16) -> i64 {
        self.number(self.end, columns).saturating_sub(i64::from(columns) - 1)
    }

    /// Formats the length of the window, such as `10m`.
    pub fn label(&self) -> String {
        let span = SPANS.iter().find(|(span, _)| *span == self.milliseconds);
        span.map_or_else(
            || format!("{}d", self.milliseconds / DAY),
            |(_, label)| (*label).to_owned(),
        )
    }
}

/// A layer of a stacked area, with one value per column, oldest first.
pub struct Layer {
    /// Glyph of a whole cell.
    pub glyph: char,
    pub style: Style,
    pub values: Vec<Option<f64>>,
}

impl Layer {
    fn value(&self, column: usize) -> f64 {
        self.values.get(column).copied().flatten().unwrap_or(0.0)
    }
}

/// Draws layers from bottom to top. `top` is the value at the upper edge. Only the topmost cell of a column is bright.
/// Returns the line of that cell for each column.
pub fn draw_area(layers: &[Layer], top: f64, area: Rect, canvas: &mut Buffer) -> Vec<Option<u16>> {
    // A truncated chart would seem to end too early, so draw nothing.
    if area.is_empty() || area.intersection(canvas.area) != area {
        return Vec::new();
    }
    // A chart of one line never fills its cells, so that charts on adjacent lines do not touch.
    let level_max = if area.height == 1 { 7 } else { area.height * 8 };
    let column_top = |column: usize| {
        layers.iter().find_map(|layer| layer.values.get(column).copied().flatten())?;
        let sum: f64 = layers.iter().map(|layer| layer.value(column)).sum();
        let share = (sum / top).clamp(0.0, 1.0);
        let level = ((share * f64::from(level_max)).round() as u16).max(1);
        let uppermost = layers.iter().rposition(|layer| layer.value(column) > 0.0).unwrap_or(0);
        let cells = level.div_ceil(8);
        for cell in 0..cells {
            let at = (area.left() + column as u16, area.bottom() - 1 - cell);
            if cell + 1 == cells {
                let layer = &layers[uppermost];
                let glyph = match level - cell * 8 {
                    8 => layer.glyph,
                    part => BLOCKS[usize::from(part)],
                };
                put(canvas, at, glyph, layer.style);
                break;
            }
            // The layer at the middle of the cell.
            let middle = (f64::from(cell) + 0.5) * 8.0 / f64::from(level_max) * top;
            let mut end = 0.0;
            let layer = layers.iter().find(|layer| {
                end += layer.value(column);
                end > middle
            });
            let layer = layer.unwrap_or(&layers[uppermost]);
            let style = layer.style.remove_modifier(Modifier::BOLD).add_modifier(Modifier::DIM);
            put(canvas, at, layer.glyph, style);
        }
        Some(area.bottom() - cells)
    };
    (0..usize::from(area.width)).map(column_top).collect()
}

/// Draws a line with one value per column over an area. `tops` contains the row of the area's uppermost cell in each
/// column.
///
/// A glyph is in the lower, middle or upper third of its cell. Where the line meets the edge of the area, only every
/// third column shows the line. `first` is the number of the leftmost column.
pub fn draw_line(
    values: &[Option<f64>],
    top: f64,
    (tops, first): (&[Option<u16>], i64),
    style: Style,
    area: Rect,
    canvas: &mut Buffer,
) {
    let mut before = None;
    for ((column, value), x) in values.iter().enumerate().zip(area.left()..area.right()) {
        let Some(value) = value else {
            before = None;
            continue;
        };
        let thirds = ((value / top).clamp(0.0, 1.0) * f64::from(area.height * 3)) as u16;
        let thirds = thirds.min(area.height * 3 - 1);
        let y = area.bottom() - 1 - thirds / 3;
        let last: u16 = before.replace(y).unwrap_or(y);
        for between in last.min(y) + 1..last.max(y) {
            put(canvas, (x, between), '│', style);
        }
        let is_edge = tops.get(column).copied().flatten() == Some(y);
        if !is_edge || (first + column as i64) % 3 == 0 {
            put(canvas, (x, y), LINES[usize::from(thirds % 3)], style);
        }
    }
}

pub fn past(buckets: &[Bucket], window: ChartWindow) -> &[Bucket] {
    seen_until(buckets, window.end)
}

pub fn memory(buckets: &[Bucket], window: ChartWindow, columns: u16) -> Vec<Option<f64>> {
    values(buckets, window, columns, |bucket| [bucket.high as f64, bucket.last as f64])
}

pub fn utilization(buckets: &[Bucket], window: ChartWindow, columns: u16) -> Vec<Option<f64>> {
    values(buckets, window, columns, |bucket| [bucket.mean(); 2])
}

/// Returns the maximum in each column. `values_of` returns the values in a bucket and after the bucket.
fn values(
    buckets: &[Bucket],
    window: ChartWindow,
    columns: u16,
    values_of: impl Fn(&Bucket) -> [f64; 2],
) -> Vec<Option<f64>> {
    let buckets = past(buckets, window);
    let first = window.first_column(columns);
    let column = |time: Time| window.number(time.min(window.end), columns).saturating_sub(first);
    let mut values: Vec<Option<f64>> = vec![None; usize::from(columns)];
    let mut raise = |from: i64, to: i64, value: f64| {
        let (from, end) = (usize::try_from(from.max(0)), usize::try_from(to + 1));
        if let (Ok(from), Ok(end)) = (from, end) {
            for cell in values.get_mut(from..end).unwrap_or_default() {
                *cell = Some(cell.map_or(value, |highest| highest.max(value)));
            }
        }
    };
    for (at, bucket) in buckets.iter().enumerate() {
        let (from, to) = (column(bucket.since), column(bucket.until));
        let [value, value_after] = values_of(bucket);
        raise(from, to, value);
        // A value applies until the next sample, unless the gap is long.
        let next = buckets.get(at + 1).map(|next| next.since);
        let until = next.unwrap_or(window.end);
        if bucket.is_seen_until(until) {
            let last = column(until) - i64::from(next.is_some());
            if last > to {
                raise(to + 1, last, value_after);
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::testing::lines;

    fn at(seconds: i64) -> Time {
        Time::from_unix_milliseconds(seconds * 1000)
    }

    fn draw(buckets: &[Bucket], window: ChartWindow, top: f64, area: Rect, canvas: &mut Buffer) {
        let values = memory(buckets, window, area.width);
        draw_area(&[Layer { glyph: '█', style: Style::new(), values }], top, area, canvas);
    }

    fn held(values: &[(i64, u64)]) -> Vec<Bucket> {
        let bucket = |&(second, bytes): &(i64, u64)| Bucket::new(at(second), bytes, 60_000);
        values.iter().map(bucket).collect()
    }

    fn drawn(values: &[(i64, u64)], end: i64, columns: u16, rows: u16) -> Vec<String> {
        let area = Rect::new(0, 0, columns, rows);
        let mut canvas = Buffer::empty(area);
        let window = ChartWindow::new(None, at(end));
        draw(&held(values), window, 100.0, area, &mut canvas);
        lines(&canvas)
    }

    #[test]
    fn a_time_without_samples_is_blank() {
        assert_eq!(drawn(&[], 59, 3, 2), ["   ", "   "]);
        assert_eq!(drawn(&[(59, 0)], 59, 3, 2), ["   ", "  ▁"]);
        assert_eq!(drawn(&[(30, 0)], 59, 3, 2), ["   ", " ▁▁"], "the value holds until the end");
        assert_eq!(drawn(&[(30, 60)], 59, 3, 2), [" ▂▂", " ██"]);
        // In a window of ten minutes, a gap of five minutes is shown, and a gap of half a minute is not.
        let area = Rect::new(0, 0, 10, 1);
        let mut canvas = Buffer::empty(area);
        let values = held(&[(0, 0), (30, 0), (330, 100), (380, 100)]);
        let window = ChartWindow::new(Some(at(0)), at(599));
        draw(&values, window, 100.0, area, &mut canvas);
        assert_eq!(lines(&canvas), ["▁    ▇▇   "]);
    }

    #[test]
    fn a_peak_is_not_lost_among_many_samples() {
        let values: Vec<(i64, u64)> =
            (0..60).map(|second| (second, if second == 33 { 100 } else { 0 })).collect();
        assert_eq!(drawn(&values, 59, 6, 1), ["▁▁▁▇▁▁"]);
    }

    #[test]
    fn a_chart_ends_at_the_displayed_time() {
        let values: Vec<(i64, u64)> =
            (0..600).map(|second| (second, 100 * (second as u64 / 300))).collect();
        assert_eq!(drawn(&values, 599, 3, 1), ["▇▇▇"]);
        assert_eq!(drawn(&values, 319, 3, 1), ["▁▁▇"], "later values are not drawn");
        assert_eq!(drawn(&values, -1, 3, 1), ["   "]);
    }

    #[test]
    fn a_window_has_a_round_length_for_any_times() {
        let label = |first, end| ChartWindow::new(first, end).label();
        assert_eq!(label(None, at(0)), "1m");
        assert_eq!(label(Some(at(100)), at(0)), "1m", "the past is shown");
        assert_eq!(label(Some(at(0)), at(61)), "2m");
        assert_eq!(label(Some(at(0)), at(3600)), "1h");
        assert_eq!(label(Some(at(0)), at(86_401)), "2d");
        let times = [i64::MIN, -1, 0, i64::MAX].map(Time::from_unix_milliseconds);
        for first in times {
            for end in times {
                let window = ChartWindow::new(Some(first), end);
                let values = held(&[(0, u64::MAX), (1, 0)]);
                let area = Rect::new(0, 0, 9, 2);
                draw(&values, window, 0.0, area, &mut Buffer::empty(area));
            }
        }
    }

    #[test]
    fn a_chart_that_does_not_fit_is_not_drawn() {
        let mut canvas = Buffer::empty(Rect::new(0, 0, 4, 2));
        let (values, window) = (held(&[(0, 1)]), ChartWindow::new(None, at(1)));
        for area in [Rect::new(2, 0, 4, 2), Rect::new(0, 1, 4, 2), Rect::ZERO] {
            draw(&values, window, 1.0, area, &mut canvas);
        }
        assert_eq!(canvas, Buffer::empty(canvas.area));
    }
}
