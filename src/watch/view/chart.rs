//! Small charts of how something moved, filled from the ground up: in blocks on one line, which have
//! eight heights, and in dots of braille on more, which are two to a column and four to a line.
//!
//! Each column is the most that was seen in its share of the time, so that no peak is lost. What was
//! seen to be nothing is a line on the ground, and anything more is above it; a time that no one saw
//! is blank. `ascii` has likenesses of blocks and dots. The numbers come from
//! [`history::memory_series`](crate::history::memory_series).

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::history::memory_series::{Load, MemoryBucket};
use crate::model::Time;
use crate::watch::trend::vouched_milliseconds;

/// Heights of a block, from nothing.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The braille patterns: the first has no dots, and the bits of the others are their dots (The Unicode
/// Standard, chapter 21, "Braille Patterns").
const BRAILLE: u32 = 0x2800;
/// The bits of so many dots from the ground up, in the left column and in the right one.
const LEFT: [u32; 5] = [0, 0x40, 0x44, 0x46, 0x47];
const RIGHT: [u32; 5] = [0, 0x80, 0xa0, 0xb0, 0xb8];
/// The spans of time that charts have, so that their scale stays while time goes on, in milliseconds.
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

/// The time that a chart shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartWindow {
    end: Time,
    milliseconds: i64,
}

impl ChartWindow {
    /// The time up to `end`, from `first` or from before it.
    pub fn new(first: Option<Time>, end: Time) -> Self {
        let wanted = first.map_or(0, |first| end - first);
        let span = SPANS.iter().find(|(span, _)| *span >= wanted);
        let days = || ((wanted - 1) / DAY + 1).saturating_mul(DAY);
        Self {
            end,
            milliseconds: span.map_or_else(days, |(span, _)| *span),
        }
    }

    /// How long it is: `10m`.
    pub fn label(&self) -> String {
        let span = SPANS.iter().find(|(span, _)| *span == self.milliseconds);
        span.map_or_else(
            || format!("{}d", self.milliseconds / DAY),
            |(_, label)| (*label).to_owned(),
        )
    }
}

/// What was seen in a stretch of time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChartBucket {
    since: Time,
    until: Time,
    most: f64,
    last: f64,
}

impl From<&MemoryBucket> for ChartBucket {
    fn from(bucket: &MemoryBucket) -> Self {
        Self {
            since: bucket.since,
            until: bucket.until,
            most: bucket.high_bytes as f64,
            last: bucket.last_bytes as f64,
        }
    }
}

impl From<&Load> for ChartBucket {
    fn from(load: &Load) -> Self {
        let mean = load.percent.mean().unwrap_or(0.0);
        Self {
            since: load.since,
            until: load.until,
            most: mean,
            last: mean,
        }
    }
}

/// Draws what was seen, oldest first; `top` is what the upper edge stands for, the lower one is 0.
pub fn draw<S>(
    seen: &[S],
    window: ChartWindow,
    top: f64,
    style: Style,
    area: Rect,
    buffer: &mut Buffer,
) where
    for<'a> ChartBucket: From<&'a S>,
{
    // A chart that is not whole on the screen would end at another time than it says.
    if area.is_empty() || area.intersection(buffer.area) != area {
        return;
    }
    // Columns in a cell, and levels.
    let (wide, high) = if area.height == 1 { (1, 8) } else { (2, 4) };
    let levels = levels(seen, window, top, area.width * wide, area.height * high);
    for (line, y) in (area.top()..area.bottom()).enumerate() {
        let below = high * (area.height - 1 - line as u16);
        let level = |level: u16| usize::from(level.saturating_sub(below).min(high));
        for (cell, x) in levels.chunks_exact(usize::from(wide)).zip(area.x..) {
            let c = match *cell {
                [left, right] => {
                    let bits = LEFT[level(left)] | RIGHT[level(right)];
                    char::from_u32(BRAILLE | bits).filter(|_| bits > 0)
                }
                [one] => Some(BLOCKS[level(one)]).filter(|c| *c != ' '),
                _ => None,
            };
            if let Some(c) = c {
                buffer[(x, y)].set_char(c).set_style(style);
            }
        }
    }
}

/// How high each column is, up to `most`; 0 where no one saw it.
fn levels<S>(seen: &[S], window: ChartWindow, top: f64, columns: u16, most: u16) -> Vec<u16>
where
    for<'a> ChartBucket: From<&'a S>,
{
    let is_past = |stretch: &S| ChartBucket::from(stretch).since <= window.end;
    let seen = &seen[..seen.partition_point(is_past)];
    // Columns begin at multiples of their length, so that what is drawn moves and does not flicker.
    let step = (window.milliseconds / i64::from(columns.max(1))).max(1);
    let number = |time: Time| time.unix_milliseconds().div_euclid(step);
    let first = number(window.end).saturating_sub(i64::from(columns) - 1);
    let column = |time: Time| number(time.min(window.end)).saturating_sub(first);
    let level = |value: f64| {
        if value > 0.0 {
            let share = (value / top).clamp(0.0, 1.0);
            1 + (share * f64::from(most - 1)).ceil() as u16
        } else {
            1
        }
    };
    let mut levels = vec![0u16; usize::from(columns)];
    let mut raise = |from: i64, to: i64, value: f64| {
        // What began before the window is cut off.
        let (from, end) = (usize::try_from(from.max(0)), usize::try_from(to + 1));
        if let (Ok(from), Ok(end)) = (from, end)
            && let Some(cells) = levels.get_mut(from..end)
        {
            let level = level(value);
            for cell in cells {
                *cell = level.max(*cell);
            }
        }
    };
    let distances = seen.windows(2).map(|two| {
        let [one, next] = [&two[0], &two[1]].map(ChartBucket::from);
        next.since - one.until
    });
    let allowed = vouched_milliseconds(distances);
    for (at, stretch) in seen.iter().enumerate() {
        let stretch = ChartBucket::from(stretch);
        let (from, to) = (column(stretch.since), column(stretch.until));
        raise(from, to, stretch.most);
        // What was so at its last sample was so until the next one, unless that is long after.
        let next = seen.get(at + 1).map(|next| ChartBucket::from(next).since);
        let next = next.unwrap_or(window.end);
        if next - stretch.until <= allowed {
            raise(
                to + 1,
                column(next) - i64::from(at + 1 < seen.len()),
                stretch.last,
            );
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Cell;

    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_unix_milliseconds(seconds * 1000)
    }

    /// What was held at so many seconds, sample by sample.
    fn held(values: &[(i64, u64)]) -> Vec<MemoryBucket> {
        let bucket = |&(second, bytes): &(i64, u64)| MemoryBucket {
            since: at(second),
            until: at(second),
            low_bytes: bytes,
            high_bytes: bytes,
            last_bytes: bytes,
        };
        values.iter().map(bucket).collect()
    }

    /// A chart of a minute that ends at second `end`, of so many columns and lines, up to 100.
    fn drawn(values: &[(i64, u64)], end: i64, columns: u16, rows: u16) -> Vec<String> {
        let area = Rect::new(0, 0, columns, rows);
        let mut buffer = Buffer::empty(area);
        let window = ChartWindow::new(None, at(end));
        draw(
            &held(values),
            window,
            100.0,
            Style::new(),
            area,
            &mut buffer,
        );
        let lines = buffer.content.chunks(usize::from(columns));
        let text = |line: &[Cell]| line.iter().map(Cell::symbol).collect();
        lines.map(text).collect()
    }

    #[test]
    fn it_rises_with_what_was_seen() {
        // Twelve values of five seconds each.
        let rising: Vec<(i64, u64)> = (0..12).map(|it| (it * 5, it as u64 * 9)).collect();
        assert_eq!(drawn(&rising, 59, 6, 2), ["  ⢀⣠⣶⣿", "⣠⣶⣿⣿⣿⣿"]);
        assert_eq!(drawn(&rising, 59, 12, 1), ["▁▂▃▃▄▅▅▆▇▇██"]);
    }

    #[test]
    fn nothing_is_a_line_on_the_ground_and_little_rises_above_it() {
        let of = |bytes, rows| drawn(&[(0, bytes), (59, bytes)], 59, 3, rows);
        assert_eq!(of(0, 1), ["▁▁▁"]);
        assert_eq!(of(1, 1), ["▂▂▂"]);
        assert_eq!(of(100, 1), ["███"]);
        assert_eq!(of(0, 2), ["   ", "⣀⣀⣀"]);
        assert_eq!(of(1, 2), ["   ", "⣤⣤⣤"]);
        assert_eq!(of(50, 2), ["⣀⣀⣀", "⣿⣿⣿"]);
        assert_eq!(of(u64::MAX, 2), ["⣿⣿⣿", "⣿⣿⣿"], "more than there is");
    }

    #[test]
    fn a_time_without_samples_is_blank() {
        assert_eq!(drawn(&[], 59, 3, 2), ["   ", "   "]);
        assert_eq!(
            drawn(&[(59, 0)], 59, 3, 2),
            ["   ", "  ⢀"],
            "a point is a dot"
        );
        assert_eq!(
            drawn(&[(30, 0)], 59, 3, 2),
            ["   ", " ⢀⣀"],
            "and holds until now"
        );
        // Ten minutes: half a minute is no gap, five minutes are one.
        let area = Rect::new(0, 0, 10, 1);
        let mut buffer = Buffer::empty(area);
        let values = held(&[(0, 0), (30, 0), (330, 100), (380, 100)]);
        let window = ChartWindow::new(Some(at(0)), at(599));
        draw(&values, window, 100.0, Style::new(), area, &mut buffer);
        let text: String = buffer.content.iter().map(Cell::symbol).collect();
        assert_eq!(text, "▁    ██   ");
    }

    #[test]
    fn a_peak_is_not_lost_among_many_samples() {
        let values: Vec<(i64, u64)> = (0..60)
            .map(|it| (it, if it == 33 { 100 } else { 0 }))
            .collect();
        assert_eq!(drawn(&values, 59, 6, 1), ["▁▁▁█▁▁"]);
    }

    #[test]
    fn a_chart_ends_at_the_time_that_is_shown() {
        let values: Vec<(i64, u64)> = (0..600).map(|it| (it, 100 * (it as u64 / 300))).collect();
        assert_eq!(drawn(&values, 599, 3, 1), ["███"]);
        assert_eq!(
            drawn(&values, 319, 3, 1),
            ["▁▁█"],
            "what came later is not drawn"
        );
        assert_eq!(drawn(&values, -1, 3, 1), ["   "]);
    }

    #[test]
    fn a_window_has_a_round_length_whatever_the_times_are() {
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
                draw(
                    &values,
                    window,
                    0.0,
                    Style::new(),
                    area,
                    &mut Buffer::empty(area),
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_drawn() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 2));
        let (values, window) = (held(&[(0, 1)]), ChartWindow::new(None, at(1)));
        for area in [Rect::new(2, 0, 4, 2), Rect::new(0, 1, 4, 2), Rect::ZERO] {
            draw(&values, window, 1.0, Style::new(), area, &mut buffer);
        }
        assert_eq!(buffer, Buffer::empty(buffer.area));
    }
}
