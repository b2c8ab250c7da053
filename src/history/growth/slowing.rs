//! Growth that becomes ever slower: it is no leak at the pace it has, and may fill a GPU all the same.
//!
//! Whether it does become slower is asked of the rises of twelfths, by a line through them. How it will go
//! on is asked of curves that are fitted to the height at their ends: powers of time (√t), its logarithm,
//! and approaches to a level. Several fit, and what all of those say is what may be said.

use std::sync::LazyLock;

use super::scale::{LEAST_RISE, UNIT};
use super::series::{Floor, GrowthSeries};
use super::trend::Trend;
use super::view::{View, Window};

/// Growth is cut into as many parts.
const PARTS: usize = 12;
/// Less time tells no curve from another.
const LEAST_SECONDS: u32 = 1800;
/// A curve that fits is off by no more than this share of the growth, as the root of the mean square,
const FITS: f32 = 0.02;
/// and by no more than so many times as much as the best does,
const AS_GOOD: f32 = 1.5;
/// or by less than this.
const GOOD: f32 = 0.002;
/// It has stopped when the last rise is as long ago as this,
const QUIET_SECONDS: u32 = 300;
/// and as so many of those in the last quarter, of which there are as many at least.
const QUIET_RISES: u32 = 4;

/// A curve over time, which is 1 at the end of the growth that was seen.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Curve {
    /// A power of the time since so much before the growth was seen to begin.
    Power(f64, f64),
    /// The logarithm of 1 and the time over this.
    Logarithm(f64),
    /// A level, approached in this time.
    Level(f64),
}

impl Curve {
    fn at(self, time: f64) -> f64 {
        match self {
            Self::Power(power, before) => (time + before).powf(power),
            Self::Logarithm(young) => (time / young).ln_1p(),
            Self::Level(tau) => -(-time / tau).exp_m1(),
        }
    }

    /// When it comes to a height; `None` where it never does.
    fn reaches(self, height: f64) -> Option<f64> {
        let time = match self {
            Self::Power(power, before) => height.powf(1.0 / power) - before,
            Self::Logarithm(young) => height.exp_m1() * young,
            Self::Level(tau) if height < 1.0 => -tau * (-height).ln_1p(),
            Self::Level(_) => return None,
        };
        time.is_finite().then_some(time)
    }
}

const POWERS: [f64; 7] = [0.35, 0.42, 0.5, 0.58, 0.66, 0.75, 0.85];
const BEFORE: [f64; 6] = [0.0, 0.002, 0.01, 0.03, 0.1, 0.3];
const YOUNG: [f64; 12] =
    [0.003, 0.005, 0.008, 0.0125, 0.02, 0.033, 0.055, 0.09, 0.15, 0.25, 0.4, 0.7];
const TAU: [f64; 16] =
    [0.15, 0.2, 0.25, 0.3, 0.36, 0.43, 0.52, 0.62, 0.75, 0.9, 1.1, 1.3, 1.6, 1.9, 2.3, 2.8];
const CURVES: usize = POWERS.len() * BEFORE.len() + YOUNG.len() + TAU.len();

/// A curve and its heights, less their mean, at the ends of the parts.
struct Shape {
    curve: Curve,
    mean: f64,
    heights: [f64; PARTS + 1],
    squares: f64,
}

/// All curves that are tried.
static SHAPES: LazyLock<[Shape; CURVES]> = LazyLock::new(|| {
    std::array::from_fn(|at| {
        let powers = POWERS.len() * BEFORE.len();
        let curve = if at < powers {
            Curve::Power(POWERS[at / BEFORE.len()], BEFORE[at % BEFORE.len()])
        } else if at < powers + YOUNG.len() {
            Curve::Logarithm(YOUNG[at - powers])
        } else {
            Curve::Level(TAU[at - powers - YOUNG.len()])
        };
        let mut heights = std::array::from_fn(|part| curve.at(part as f64 / PARTS as f64));
        let mean = heights.iter().sum::<f64>() / heights.len() as f64;
        heights.iter_mut().for_each(|height| *height -= mean);
        Shape { curve, mean, heights, squares: heights.iter().map(|height| height * height).sum() }
    })
});

/// A curve with the height and the scale at which it fits.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fitted {
    /// In [`SHAPES`].
    shape: u8,
    /// Units at the curve's 0, above what was held when the growth began.
    level: f32,
    scale: f32,
    /// What it is off by, as a share of the growth.
    off: f32,
}

impl Fitted {
    fn curve(&self) -> Curve {
        SHAPES[usize::from(self.shape)].curve
    }

    /// What it comes to in ten times the time.
    fn in_the_end(&self) -> f64 {
        f64::from(self.level) + f64::from(self.scale) * self.curve().at(10.0)
    }
}

/// How growth that becomes slower goes on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outlook {
    /// The curve that fits best, and of those that fit nearly as well the fastest and the slowest.
    fitted: [Fitted; 3],
    /// Seconds of growth that the curves were fitted to.
    seconds: f32,
    /// Units that it grew by in these.
    grown: f32,
}

impl Outlook {
    /// Seconds until it has grown by so much more: as the curve that fits best has it, at the soonest and at
    /// the latest by the others that fit. `None` where one of them never comes to it.
    pub fn seconds_until(&self, more_bytes: u64) -> Option<[f64; 3]> {
        let height = f64::from(self.grown) + more_bytes as f64 / UNIT as f64;
        let until = |fitted: &Fitted| {
            let height = (height - f64::from(fitted.level)) / f64::from(fitted.scale);
            let time = fitted.curve().reaches(height)?;
            Some(f64::max(time - 1.0, 0.0) * f64::from(self.seconds))
        };
        let [best, fastest, slowest] = &self.fitted;
        let best = until(best)?;
        Some([best, until(fastest)?.min(best), until(slowest)?.max(best)])
    }

    /// The power of time by which it grows; `None` where another curve fits better.
    pub fn power(&self) -> Option<f64> {
        match self.fitted[0].curve() {
            Curve::Power(power, _) => Some(power),
            _ => None,
        }
    }

    /// The curve that fits best: `power` of time, `logarithm`, or approach to a `level`.
    pub fn curve(&self) -> &'static str {
        match self.fitted[0].curve() {
            Curve::Power(..) => "power",
            Curve::Logarithm(_) => "logarithm",
            Curve::Level(_) => "level",
        }
    }

    /// How far that curve is off, as a share of the growth: the root of the mean square.
    pub fn error_share(&self) -> f64 {
        f64::from(self.fitted[0].off)
    }

    /// Of growth from `since` to the last sample; `None` where it is too short, or no curve fits.
    fn of(view: &View<'_>, since: u32) -> Option<Self> {
        let end = view.last_start();
        if end.saturating_sub(since) < LEAST_SECONDS {
            return None;
        }
        let heights: [f64; PARTS + 1] = view.heights(since, end);
        let grown = heights[PARTS];
        let mean = heights.iter().sum::<f64>() / heights.len() as f64;
        let fit = |at: usize| {
            let shape = &SHAPES[at];
            let product: f64 = (shape.heights.iter().zip(heights))
                .map(|(of_shape, height)| of_shape * (height - mean))
                .sum();
            let scale = product / shape.squares;
            let squares: f64 = (shape.heights.iter().zip(heights))
                .map(|(of_shape, height)| (height - mean - scale * of_shape).powi(2))
                .sum();
            Fitted {
                shape: at as u8,
                level: (mean - scale * shape.mean) as f32,
                scale: scale as f32,
                off: ((squares / heights.len() as f64).sqrt() / grown) as f32,
            }
        };
        let all: [Fitted; CURVES] = std::array::from_fn(fit);
        let best = *all.iter().min_by(|a, b| a.off.total_cmp(&b.off))?;
        if best.off > FITS {
            return None;
        }
        let (mut fastest, mut slowest) = (best, best);
        for fitted in all.iter().filter(|it| it.off <= f32::max(AS_GOOD * best.off, GOOD)) {
            if fitted.in_the_end() > fastest.in_the_end() {
                fastest = *fitted;
            }
            if fitted.in_the_end() < slowest.in_the_end() {
                slowest = *fitted;
            }
        }
        Some(Self {
            fitted: [best, fastest, slowest],
            seconds: (end - since) as f32,
            grown: grown as f32,
        })
    }
}

/// Growth that becomes slower, and how it goes on.
pub(super) fn of(series: &GrowthSeries) -> Option<(Trend, Outlook)> {
    let floor = Floor::of(&series.buckets);
    if floor.last() - floor.at(0) < LEAST_RISE {
        return None;
    }
    let view = View { series, floor: &floor };
    let (since, outlook) = view.outlook()?;
    let window = Window { start: since, end: series.now, counted: view.risen(since) };
    Some((view.trend(since, &window), outlook))
}

/// How much slower growth has to become, from its first twelfth to its last, to be called slowing.
pub(super) struct Slower {
    /// At least to this share,
    pub(super) all: f64,
    /// and in its second half to this one.
    pub(super) lately: f64,
    /// It is no chance: so many times the standard error.
    pub(super) sure: f64,
}

impl View<'_> {
    /// Whether growth becomes slower, and still does so lately.
    pub(super) fn slows(&self, since: u32, end: u32, slower: &Slower) -> bool {
        let end = end.min(self.last_start());
        if end <= since {
            return false;
        }
        let all = Bend::of(&self.heights(since, end));
        if all.left > slower.all || all.odds < slower.sure {
            return false;
        }
        let middle = u32::midpoint(since, end);
        Bend::of(&self.heights(middle, end)).left <= slower.lately
    }

    /// How growth goes on that has become slower ever since some time; with that time.
    fn outlook(&self) -> Option<(u32, Outlook)> {
        let now = self.series.now;
        // What was loaded at first is none of it.
        let first = self.first_rise();
        [0, 16, 8, 4, 2].into_iter().find_map(|part| {
            let skipped = (now - first).checked_div(part).unwrap_or(0);
            let since = first + skipped;
            if self.risen(since) < f64::from(LEAST_RISE) || self.is_over(since) {
                return None;
            }
            let slower = Slower { all: 0.8, lately: 0.95, sure: 3.0 };
            if !self.slows(since, now, &slower) {
                return None;
            }
            Outlook::of(self, since).map(|outlook| (since, outlook))
        })
    }

    /// Whether it rose too long ago to be growing still, for how often it did.
    fn is_over(&self, since: u32) -> bool {
        let now = self.series.now;
        let quarter = (now - since) / 4;
        let (rises, last) = self.rises_after(now - quarter);
        let usual = quarter.checked_div(rises).unwrap_or(0);
        rises < QUIET_RISES || now - last >= QUIET_SECONDS.max(QUIET_RISES * usual)
    }

    /// How far the floor is above where it was at `start`, there and at the ends of so many parts less one. It
    /// rises evenly from bucket to bucket, and after a plateau at its end.
    fn heights<const ENDS: usize>(&self, start: u32, end: u32) -> [f64; ENDS] {
        let mut at = self.index(start);
        let bottom = f64::from(self.floor.at(at));
        let step = f64::from(end - start) / (ENDS - 1) as f64;
        std::array::from_fn(|part| {
            let time = f64::from(start) + step * part as f64;
            while at + 1 < self.floor.len && f64::from(self.buckets()[at + 1].start) <= time {
                at += 1;
            }
            let height = f64::from(self.floor.at(at)) - bottom;
            let bucket = &self.buckets()[at];
            let is_plateau = bucket.low == bucket.high && bucket.samples > 1;
            if at + 1 >= self.floor.len || is_plateau {
                return height;
            }
            let rise = f64::from(self.floor.at(at + 1)) - bottom - height;
            let width = f64::from(self.end_of(at) - bucket.start).max(1.0);
            height + rise * (time - f64::from(bucket.start)) / width
        })
    }

    /// How much the rises of twelfths differ, but for a trend and a single jump: their standard deviation as a
    /// share of their mean.
    pub(super) fn unevenness(&self, start: u32, end: u32) -> f64 {
        let end = end.min(self.last_start()).max(start + 1);
        let mut heights: [f64; PARTS + 1] = self.heights(start, end);
        let rise = |at: usize| heights[at] - heights[at - 1];
        let largest = (1..=PARTS).max_by(|a, b| rise(*a).total_cmp(&rise(*b)));
        if let Some(at) = largest {
            let others = (heights[PARTS] - rise(at)) / (PARTS - 1) as f64;
            let more = rise(at) - others;
            heights[at..].iter_mut().for_each(|height| *height -= more);
        }
        Bend::of(&heights).uneven
    }

    /// How often the floor rose after a time, from bucket to bucket, and when it did last.
    fn rises_after(&self, time: u32) -> (u32, u32) {
        let first = self.index(time).max(1);
        let rises =
            || (first..self.floor.len).filter(|at| self.floor.at(*at) > self.floor.at(*at - 1));
        let last = rises().next_back().map_or(0, |at| self.buckets()[at].start);
        (rises().count() as u32, last)
    }
}

/// How the rises of the parts change from the first to the last.
struct Bend {
    /// The last as a share of the first, by a line through all.
    left: f64,
    /// How many times its standard error the line goes down by.
    odds: f64,
    /// Their standard deviation from that line, as a share of their mean.
    uneven: f64,
}

impl Bend {
    fn of(heights: &[f64; PARTS + 1]) -> Self {
        const MIDDLE: f64 = (PARTS - 1) as f64 / 2.0;
        let rises: [f64; PARTS] = std::array::from_fn(|at| heights[at + 1] - heights[at]);
        let mean = rises.iter().sum::<f64>() / PARTS as f64;
        let (mut squares, mut product) = (0.0, 0.0);
        for (at, rise) in rises.iter().enumerate() {
            let off = at as f64 - MIDDLE;
            squares += off * off;
            product += off * (rise - mean);
        }
        let slope = product / squares;
        let rest: f64 = (rises.iter().enumerate())
            .map(|(at, rise)| (rise - mean - slope * (at as f64 - MIDDLE)).powi(2))
            .sum();
        let variance = rest / (PARTS - 2) as f64;
        let error = (variance / squares).sqrt();
        let (first, last) = (mean - slope * MIDDLE, mean + slope * MIDDLE);
        Self {
            left: if first > 0.0 { last / first } else { f64::INFINITY },
            odds: -slope / error.max(1e-9),
            uneven: variance.sqrt() / mean.max(1e-9),
        }
    }
}
