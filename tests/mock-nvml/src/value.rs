//! A number that may change while a program runs: the scene's unit of time is the second.

use serde::{Deserialize, Serialize};

/// A number, or what it is at which second of the scene.
///
/// In JSON: `40`, or steps `[[0, 10], [30, 90]]` (10 until second 30, 90 from then on), or a line
/// through points `{"points": [[0, 10], [30, 90]], "interpolate": true}`. Before the first point the
/// first value holds, after the last point the last.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Constant(f64),
    /// `(second, value)`, by second; each value holds until the next.
    Steps(Vec<(f64, f64)>),
    /// As `Steps`, or a straight line from point to point.
    Points {
        /// `(second, value)`, by second.
        points: Vec<(f64, f64)>,
        /// Whether the value moves from point to point.
        #[serde(default)]
        interpolate: bool,
    },
}

impl Value {
    /// A straight line from point to point.
    pub fn line(points: impl Into<Vec<(f64, f64)>>) -> Self {
        Self::Points { points: points.into(), interpolate: true }
    }

    /// The value at a second of the scene; 0 where there are no points at all.
    pub fn at(&self, second: f64) -> f64 {
        let (points, interpolate) = match self {
            Self::Constant(value) => return *value,
            Self::Steps(points) => (points, false),
            Self::Points { points, interpolate } => (points, *interpolate),
        };
        let next = place(points, second);
        let (Some(before), after) = (points.get(next.saturating_sub(1)), points.get(next)) else {
            return 0.0;
        };
        match after {
            Some(after) if interpolate && next > 0 => {
                let share = (second - before.0) / (after.0 - before.0);
                before.1 + share * (after.1 - before.1)
            }
            _ => before.1,
        }
    }

    /// Whether the points come one after the other.
    pub(crate) fn is_ordered(&self) -> bool {
        match self {
            Self::Constant(_) => true,
            Self::Steps(points) | Self::Points { points, .. } => {
                !points.is_empty() && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
            }
        }
    }
}

/// How many points are not after a second. They are mostly as far apart from each other, so that the place is
/// where it is reckoned to be: monitors ask for thousands of values a second, and what the mock takes for them
/// is measured as theirs.
fn place(points: &[(f64, f64)], second: f64) -> usize {
    let is_place = |next: usize| {
        points[..next].last().is_none_or(|(from, _)| *from <= second)
            && points.get(next).is_none_or(|(from, _)| *from > second)
    };
    if let [(first, _), .., (last, _)] = points {
        let share = (second - first) / (last - first);
        let reckoned = (share * (points.len() - 1) as f64).clamp(0.0, (points.len() - 1) as f64);
        let next = reckoned as usize + 1;
        if is_place(next) {
            return next;
        }
    }
    points.partition_point(|(from, _)| *from <= second)
}

impl Default for Value {
    fn default() -> Self {
        Self::Constant(0.0)
    }
}

macro_rules! from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Self {
                Self::Constant(number as f64)
            }
        }
    )*};
}
from_number!(i32, u32, u64, f64);

impl<const N: usize> From<[(f64, f64); N]> for Value {
    fn from(steps: [(f64, f64); N]) -> Self {
        Self::Steps(steps.to_vec())
    }
}
