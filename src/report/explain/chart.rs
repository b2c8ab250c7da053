//! A small chart of how memory moved: columns of blocks, or of ASCII characters.
//!
//! Each column is the most that was held in its share of the time, so that no peak is lost; a time
//! without samples is blank.

use crate::explain::page::{MemoryCurve, MemoryPoint};

/// A space, and eighths of a cell from the bottom.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The same for terminals without Unicode.
const ASCII: [char; 9] = [' ', '.', '.', ':', ':', '+', '+', '#', '#'];
const EIGHTHS: u64 = 8;
/// Size of a chart, and its characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub columns: usize,
    /// Height in lines.
    pub rows: usize,
    /// Whether to use only ASCII.
    pub ascii: bool,
}

/// A chart and its scale.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chart {
    /// The lines, from the top; all have the same width.
    pub lines: Vec<String>,
    /// Value at the upper edge.
    pub top_bytes: u64,
    /// Value at the lower edge: 0, or more if all values would otherwise lie near the upper edge.
    pub bottom_bytes: u64,
}

/// Draws the points; `None` if there are fewer than two, or no room.
pub fn draw(course: &MemoryCurve, size: Size) -> Option<Chart> {
    let points = &course.points;
    let (first, last) = (points.first()?, points.last()?);
    let length = last.until - first.since;
    if points.len() < 2 || length <= 0 || size.columns == 0 || size.rows == 0 {
        return None;
    }
    let high = points.iter().map(|point| point.high_bytes).max()?;
    let low = points.iter().map(|point| point.low_bytes).min()?;
    let bottom = if high - low < high / 4 { low.saturating_sub((high - low) / 4) } else { 0 };
    let columns = fill(points, course.vouched_milliseconds, size.columns);
    let steps = EIGHTHS * size.rows as u64;
    let height = |bytes: u64| {
        let share = (bytes - bottom) as f64 / ((high - bottom).max(1)) as f64;
        // What is held is never invisible.
        let least = u64::from(bytes > 0);
        ((share * steps as f64).round() as u64).clamp(least, steps)
    };
    let heights: Vec<Option<u64>> = columns.iter().map(|it| it.map(height)).collect();
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

/// The most memory held in each column's time; `None` if no sample was taken.
fn fill(points: &[MemoryPoint], allowed: i64, columns: usize) -> Vec<Option<u64>> {
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
    fn hardly_anything_makes_no_chart_and_nothing_overflows() {
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
        // Times that go back are drawn somewhere.
        let back = points(&[(0, 1), (5, 2), (3, 9), (10, 4)]);
        assert!(draw(&back, size(10, 1)).is_some());
    }
}
