//! A number that can change during the scene.

use serde::{Deserialize, Serialize};

/// A constant, or a function of the scene's time in seconds.
///
/// In JSON: `40`, steps such as `[[0, 10], [30, 90]]` (10 until second 30, and then 90), or a line such as
/// `{"points": [[0, 10], [30, 90]], "interpolate": true}`. Before the first point, the first value applies. After the
/// last point, the last value applies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Constant(f64),
    /// `(second, value)`, sorted by second. Each value applies until the next second in the list.
    Steps(Vec<(f64, f64)>),
    /// Points that are connected by steps or straight lines.
    Points {
        /// `(second, value)`, sorted by second.
        points: Vec<(f64, f64)>,
        /// If set, straight lines connect the points.
        #[serde(default)]
        interpolate: bool,
    },
}

impl Value {
    /// Returns a value that changes linearly between points.
    pub fn line(points: impl Into<Vec<(f64, f64)>>) -> Self {
        Self::Points { points: points.into(), interpolate: true }
    }

    /// Returns the value at a time in seconds, or 0 if there are no points.
    pub fn at(&self, second: f64) -> f64 {
        let (points, interpolate) = match self {
            Self::Constant(value) => return *value,
            Self::Steps(points) => (points, false),
            Self::Points { points, interpolate } => (points, *interpolate),
        };
        let next = points.partition_point(|(from, _)| *from <= second);
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

    /// Returns whether the value is a constant, or has at least one point and strictly increasing times.
    pub(crate) fn is_ordered(&self) -> bool {
        match self {
            Self::Constant(_) => true,
            Self::Steps(points) | Self::Points { points, .. } => {
                !points.is_empty() && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
            }
        }
    }
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
