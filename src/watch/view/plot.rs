//! A chart with a caption, a scale on the left, and times below. `chart` draws the chart itself.

use ratatui::layout::Rect;
use ratatui::style::Style;

use ratatui::buffer::Buffer;

use super::chart::{self, ChartWindow};
use super::line_writer::{LineWriter, put};
use crate::model::Time;
use crate::units::Bytes;
use crate::watch::layout::CHARTS_ROWS_MIN;
use crate::watch::text::columns;
use crate::watch::theme::{ChartColor, Styles};

/// Minimum width of a chart with a scale.
const SCALE_FROM: u16 = 16;
/// Minimum height of a scale with a label in the middle.
const MIDDLE_FROM: u16 = 3;
/// Minimum width of the scale's labels, so that stacked charts are aligned.
const LABEL: u16 = 4;

/// Number of rows between grid lines, and number of columns between dots in a grid line.
const GRID_ROWS: u16 = 6;
const GRID_COLUMNS: usize = 4;

#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// Value at the upper edge of the chart, which starts at 0.
    pub top: f64,
    labels: [String; 3],
}

impl Scale {
    pub fn percent() -> Self {
        Self { top: 100.0, labels: ["100", "50", "0"].map(str::to_owned) }
    }

    pub fn bytes(top: u64) -> Self {
        let text = Bytes(top).to_string();
        let (number, _) = text.split_once(' ').unwrap_or((&text, ""));
        let half = format!("{:.1}", number.parse::<f64>().unwrap_or_default() / 2.0);
        let whole = |number: &str| number.trim_end_matches(".0").to_owned();
        Self { top: top as f64, labels: [whole(number), whole(&half), "0".to_owned()] }
    }

    /// Creates a scale for memory up to a round number above `max`.
    pub fn above(max: u64) -> Self {
        /// Round numbers, in quarters of a power of two.
        const PARTS: [u64; 4] = [2, 3, 4, 6];
        let power = max.max(4).checked_next_power_of_two().unwrap_or(1 << 63);
        let quarter = power / 4;
        let round = PARTS.into_iter().map(|parts| quarter.saturating_mul(parts));
        // The maximum must be visible, below the upper edge.
        let top = round.into_iter().find(|top| *top - *top / 16 >= max);
        Self::bytes(top.unwrap_or(power.saturating_mul(2)))
    }

    /// Creates a scale for CPU use, in percent of a core.
    pub fn cores(max: f64) -> Self {
        let top = (max / 100.0).ceil().max(1.0) * 100.0;
        Self { top, labels: [top, top / 2.0, 0.0].map(|value| format!("{value:.0}")) }
    }

    fn width(&self) -> u16 {
        let widest = self.labels.iter().map(|label| columns(label)).max();
        widest.unwrap_or(0).max(LABEL)
    }
}

#[derive(Clone, Copy, Default)]
pub struct FindingMark {
    pub since: Option<Time>,
    pub threshold: Option<f64>,
}

pub struct Plot {
    pub window: ChartWindow,
    pub captions: Vec<String>,
    pub now: Option<String>,
    pub scale: Option<Scale>,
    pub mark: FindingMark,
    pub color: ChartColor,
    pub styles: Styles,
}

impl Plot {
    pub fn draw(
        &self,
        area: Rect,
        canvas: &mut Buffer,
        values: impl FnOnce(u16) -> Vec<Option<f64>>,
    ) {
        self.caption(area, canvas);
        let Some(scale) = &self.scale else {
            return;
        };
        let has_times = area.height >= CHARTS_ROWS_MIN;
        let height = area.height.saturating_sub(1 + u16::from(has_times));
        let body = Rect { y: area.y + 1, height, ..area }.intersection(canvas.area);
        let dots = self.draw_scale(scale, body, canvas);
        if dots.width < body.width {
            self.grid(dots, canvas);
        }
        let values = values(dots.width);
        let style = |is_line| self.styles.chart(self.color, is_line);
        chart::draw_values(&values, scale.top, style, dots, canvas);
        let line =
            has_times.then(|| Rect { y: area.bottom().saturating_sub(1), height: 1, ..dots });
        if let Some(line) = line {
            self.times(line, canvas);
        }
        self.mark(scale, dots, line, canvas);
    }

    fn caption(&self, area: Rect, canvas: &mut Buffer) {
        let styles = self.styles;
        let mut writer = LineWriter::new(canvas, area, 0);
        let now = self.now.as_deref().unwrap_or_default();
        let kept = match columns(now) {
            0 => 0,
            width => width + 2,
        };
        let room = writer.room().saturating_sub(kept);
        let fits = self.captions.iter().find(|text| columns(text) <= room);
        let text = fits.or(self.captions.last()).map_or("", String::as_str);
        writer.text(text, styles.heading());
        writer.at_end(now, styles.strong());
    }

    /// Draws the scale if there is room. Returns the remaining area.
    fn draw_scale(&self, scale: &Scale, body: Rect, canvas: &mut Buffer) -> Rect {
        if body.width < SCALE_FROM {
            return body;
        }
        let style = self.styles.faint();
        let width = scale.width();
        let [top, half, bottom] = &scale.labels;
        let middle = body.height / 2;
        for line in 0..body.height {
            let label = match line {
                0 => top.as_str(),
                _ if line + 1 == body.height => bottom,
                _ if line == middle && body.height >= MIDDLE_FROM => half,
                _ => "",
            };
            let edge = if label.is_empty() { "│" } else { "┤" };
            let mut writer = LineWriter::new(canvas, body, line);
            writer.right(label, width, style).text(edge, style);
        }
        Rect { x: body.x + width + 1, width: body.width - width - 1, ..body }
    }

    fn grid(&self, dots: Rect, canvas: &mut Buffer) {
        if dots.height < MIDDLE_FROM {
            return;
        }
        let style = self.styles.faint();
        let parts = dots.height.div_ceil(GRID_ROWS).next_power_of_two().max(2);
        for part in 0..parts {
            let y = dots.y + dots.height * part / parts;
            for x in (dots.left()..dots.right()).step_by(GRID_COLUMNS) {
                put(canvas, (x, y), '·', style);
            }
        }
    }

    /// Draws a finding's marks: a horizontal line at the threshold, and a vertical line at the
    /// start with an arrow below.
    fn mark(&self, scale: &Scale, dots: Rect, times: Option<Rect>, canvas: &mut Buffer) {
        let style = self.styles.reclaimable();
        if let Some(share) =
            self.mark.threshold.map(|value| value / scale.top).filter(|share| *share < 1.0)
        {
            let above = (share * f64::from(dots.height)) as u16;
            let y = dots.bottom().saturating_sub(above + 1);
            for x in dots.left()..dots.right() {
                put_on_grid(canvas, (x, y), '─', style);
            }
        }
        let since = self.mark.since.and_then(|since| self.window.column_of(since, dots.width));
        if let Some(column) = since {
            let x = dots.x + column;
            for y in dots.top()..dots.bottom() {
                put_on_grid(canvas, (x, y), '│', style);
            }
            if let Some(times) = times {
                put_on_grid(canvas, (x, times.y), '▲', style);
            }
        }
    }

    fn times(&self, line: Rect, canvas: &mut Buffer) {
        let left = format!("-{}", self.window.label());
        let style = self.styles.faint();
        LineWriter::new(canvas, line, 0).text(&left, style).at_end("now", style);
    }
}

/// Writes a character into a cell that is blank or part of the grid. In a cell with other graphics,
/// changes only the style.
fn put_on_grid(canvas: &mut Buffer, at: (u16, u16), symbol: char, style: Style) {
    match canvas.cell_mut(at) {
        Some(cell) if matches!(cell.symbol(), " " | "·") => cell.set_char(symbol).set_style(style),
        Some(cell) if !cell.symbol().is_ascii() => cell.set_style(style),
        _ => return,
    };
}
