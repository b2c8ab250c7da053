//! A small chart of how memory moved: columns of blocks, or of ASCII characters.
//!
//! Each column is the most that was held in its share of the time, so that no peak is lost; a time
//! without samples is blank. A forecast, where there is one, is a dotted line up to the memory there is.

use crate::explain::page::MemoryCurve;
use crate::history::memory_series::MemoryBucket;

/// A space, and eighths of a cell from the bottom.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The same for terminals without Unicode.
const ASCII: [char; 9] = [' ', '.', '.', ':', ':', '+', '+', '#', '#'];
const EIGHTHS: u64 = 8;
/// What is to come, and the same for terminals without Unicode.
const DOT: char = '·';
const ASCII_DOT: char = '\'';
/// What is to come is drawn where it is no longer than so many times what has been: else nothing of what
/// has been could be told any more.
const MOST_TO_COME: f64 = 2.0;
/// With fewer columns, what is to come is not drawn.
const LEAST_FOR_FORECAST: usize = 16;

/// How large a chart is, and what it is drawn with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub columns: usize,
    /// Lines.
    pub rows: usize,
    /// Only ASCII.
    pub ascii: bool,
}

/// A chart and its scale.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chart {
    /// Its lines, the top one first; each is as wide as the others.
    pub lines: Vec<String>,
    /// What the upper edge stands for.
    pub top_bytes: u64,
    /// What the lower edge stands for: 0, or more where all there is would lie near the upper edge.
    pub bottom_bytes: u64,
    /// Whether what is to come is drawn.
    pub has_forecast: bool,
}

/// Draws the points, and what is to come where there is room for it; `None` where there are fewer than
/// two, or nothing to draw on.
pub fn draw(course: &MemoryCurve, size: Size) -> Option<Chart> {
    let points = &course.points;
    let (first, last) = (points.first()?, points.last()?);
    let length = last.until - first.since;
    if points.len() < 2 || length <= 0 || size.columns == 0 || size.rows == 0 {
        return None;
    }
    let seconds = last.until.seconds_since(first.since);
    let forecast = course.forecast.filter(|it| {
        let is_due = it.seconds > 0.0 && it.seconds <= seconds * MOST_TO_COME;
        is_due && it.full_bytes > last.last_bytes && size.columns >= LEAST_FOR_FORECAST
    });
    let to_come = forecast.map_or(0, |it| {
        let share = it.seconds / (seconds + it.seconds);
        ((size.columns as f64 * share).ceil() as usize).clamp(1, size.columns - 1)
    });
    let high = points.iter().map(|point| point.high_bytes).max()?;
    let high = forecast.map_or(high, |it| high.max(it.full_bytes));
    let low = points.iter().map(|point| point.low_bytes).min()?;
    let bottom = if high - low < high / 4 { low.saturating_sub((high - low) / 4) } else { 0 };
    let columns = fill(points, course.vouched_milliseconds, size.columns - to_come);
    let steps = EIGHTHS * size.rows as u64;
    let height = |bytes: u64| {
        let share = (bytes - bottom) as f64 / ((high - bottom).max(1)) as f64;
        // What is held is never invisible.
        let least = u64::from(bytes > 0);
        ((share * steps as f64).round() as u64).clamp(least, steps)
    };
    let heights: Vec<Option<u64>> = columns.iter().map(|it| it.map(height)).collect();
    // The row, from the top, that the dotted line goes through in each column to come.
    let dotted: Vec<usize> = (1..=to_come)
        .filter_map(|column| {
            let left = forecast?.full_bytes.saturating_sub(last.last_bytes);
            let share = column as f64 / to_come as f64;
            let bytes = last.last_bytes.saturating_add((left as f64 * share) as u64);
            let above = steps - height(bytes.clamp(bottom, high)).max(1);
            Some((above / EIGHTHS) as usize)
        })
        .collect();
    let (cells, dot) = if size.ascii { (ASCII, ASCII_DOT) } else { (BLOCKS, DOT) };
    let line = |row: usize| {
        let below = EIGHTHS * (size.rows - 1 - row) as u64;
        let cell = |height: &Option<u64>| {
            let eighths = height.unwrap_or(0).saturating_sub(below).min(EIGHTHS);
            cells[eighths as usize]
        };
        let to_come = dotted.iter().map(|&at| if at == row { dot } else { ' ' });
        heights.iter().map(cell).chain(to_come).collect()
    };
    Some(Chart {
        lines: (0..size.rows).map(line).collect(),
        top_bytes: high,
        bottom_bytes: bottom,
        has_forecast: forecast.is_some(),
    })
}

/// The most that was held in each column's share of the time; `None` where no sample was taken.
fn fill(points: &[MemoryBucket], allowed: i64, columns: usize) -> Vec<Option<u64>> {
    let begin = points[0].since;
    let length = points[points.len() - 1].until - begin;
    let column = |time| {
        let place = (time - begin) as i128 * columns as i128 / i128::from(length);
        usize::try_from(place).unwrap_or(0).min(columns - 1)
    };
    let mut filled: Vec<Option<u64>> = vec![None; columns];
    for (place, point) in points.iter().enumerate() {
        // What was held at its last sample was held until the next one, unless that is long after.
        let next = points.get(place + 1).map(|next| next.since);
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
    use crate::explain::page::ForecastLine;
    use crate::model::Time;
    use crate::units::GIB;

    fn points(values: &[(i64, u64)]) -> MemoryCurve {
        let point = |&(seconds, bytes): &(i64, u64)| {
            let time = Time::from_unix_milliseconds(seconds * 1000);
            MemoryBucket {
                since: time,
                until: time,
                low_bytes: bytes,
                high_bytes: bytes,
                last_bytes: bytes,
                vouched: 60_000,
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
    fn hardly_anything_makes_no_chart_and_nothing_overflows() {
        assert_eq!(draw(&MemoryCurve::default(), size(9, 1)), None);
        assert_eq!(draw(&points(&[(0, 1)]), size(9, 1)), None);
        assert_eq!(draw(&points(&[(0, 1), (0, 2)]), size(9, 1)), None);
        assert_eq!(draw(&points(&[(0, 1), (1, 2)]), size(0, 1)), None);
        let extremes = points(&[(i64::MIN / 4000, u64::MAX), (0, 0), (i64::MAX / 4000, 7)]);
        assert!(draw(&extremes, size(40, 3)).is_some());
        // Times that go back are drawn somewhere.
        let back = points(&[(0, 1), (5, 2), (3, 9), (10, 4)]);
        assert!(draw(&back, size(10, 1)).is_some());
    }

    #[test]
    fn what_is_to_come_is_a_dotted_line_up_to_what_there_is() {
        let values: Vec<_> = (0..=8).map(|second| (second, (second as u64 + 1) * GIB)).collect();
        let full = |seconds| ForecastLine { seconds, full_bytes: 17 * GIB };
        let with = |forecast| MemoryCurve { forecast: Some(forecast), ..points(&values) };
        let chart = draw(&with(full(8.0)), size(16, 4)).unwrap();
        assert!(chart.has_forecast);
        assert_eq!((chart.top_bytes, chart.bottom_bytes), (17 * GIB, 0));
        assert!(chart.lines[0].ends_with("····"), "{chart:?}");
        // Too far away, too small, or nothing: as if there were no forecast.
        let plain = draw(&points(&values), size(16, 4)).unwrap();
        assert!(!plain.has_forecast);
        for seconds in [17.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            let chart = draw(&with(full(seconds)), size(16, 4));
            assert_eq!(chart.as_ref(), Some(&plain), "{seconds}");
        }
        let narrow = draw(&with(full(8.0)), size(15, 4)).unwrap();
        assert!(!narrow.has_forecast);
        let extreme = ForecastLine { seconds: 1e-9, full_bytes: u64::MAX };
        for ascii in [false, true] {
            let size = Size { ascii, ..size(40, 3) };
            let chart = draw(&with(extreme), size).unwrap();
            let lines = chart.lines.iter();
            assert!(lines.clone().all(|line| line.chars().count() == 40));
            assert!(!ascii || lines.clone().all(|line| line.is_ascii()));
        }
    }
}
