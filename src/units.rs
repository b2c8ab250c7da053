//! Parses and formats sizes, percentages and durations.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Formats a count, such as `1 sample` or `3 samples`. Forms the plural with an `s`.
pub fn number_of<N: fmt::Display + PartialEq + From<u8>>(count: N, word: &str) -> String {
    let s = if count == N::from(1) { "" } else { "s" };
    format!("{count} {word}{s}")
}

/// Lists the first `most` words, and counts the others: `a, b and 3 more`.
pub fn some_of<S: AsRef<str>>(most: usize, separator: &str, words: &[S]) -> String {
    let named: Vec<&str> = words.iter().take(most).map(AsRef::as_ref).collect();
    let named = named.join(separator);
    match words.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Formats an error of the system in lower case and without its number, such as `permission denied`.
pub fn system_message(error: &dyn fmt::Display) -> String {
    let text = without_error_numbers(&error.to_string());
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// Removes the numbers that the standard library appends to errors of the system, such as ` (os error 2)`.
pub fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest)));
    plain
}

/// A number of bytes, displayed as `1.5 KiB` and parsed from `8GiB`, `512MiB` or `4096B`. Only `0`
/// needs no unit: a plain `8` could mean bytes or GiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

const BYTE_UNITS: [(&str, u64); 6] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 0;
        // 1023.95 KiB would be displayed as 1024.0 KiB, so use the next unit.
        while unit + 1 < BYTE_UNITS.len() && self.0 as f64 / BYTE_UNITS[unit].1 as f64 >= 1023.95 {
            unit += 1;
        }
        let (name, size) = BYTE_UNITS[unit];
        match unit {
            0 => f.pad(&format!("{} B", self.0)),
            _ => f.pad(&format!("{:.1} {name}", self.0 as f64 / size as f64)),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not {expected}; write {examples}")]
pub struct ParseError {
    text: String,
    expected: &'static str,
    examples: &'static str,
}

impl FromStr for Bytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError {
            text: text.to_owned(),
            expected: "a size",
            examples: "8GiB, 512MiB or 4096B",
        };
        let (number, unit) = split_unit(text).ok_or_else(error)?;
        let size = match unit.to_ascii_lowercase().as_str() {
            "" if number == 0.0 => 1u64,
            "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            _ => return Err(error()),
        };
        let bytes = number * size as f64;
        if bytes > u64::MAX as f64 / 2.0 {
            return Err(error());
        }
        Ok(Self(bytes.round() as u64))
    }
}

/// A size, or a share of a total, parsed from `8GiB`, `512MiB` or `90%`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Amount {
    Size(Bytes),
    /// Percentage of the total, from 0 to 100.
    Share(f64),
}

impl Amount {
    /// Returns the number of bytes, rounded down, or `None` for a share of an unknown total.
    pub fn in_bytes(self, total: Option<u64>) -> Option<u64> {
        match self {
            Self::Size(bytes) => Some(bytes.0),
            Self::Share(percent) => Some((total? as f64 * percent / 100.0) as u64),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => bytes.fmt(f),
            Self::Share(percent) => f.pad(&format!("{percent}%")),
        }
    }
}

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match split_unit(text) {
            Some((percent, "%")) if percent <= 100.0 => Ok(Self::Share(percent)),
            _ => text.parse().map(Self::Size).map_err(|_: ParseError| ParseError {
                text: text.to_owned(),
                expected: "a size or a share from 0% to 100%",
                examples: "8GiB, 512MiB or 90%",
            }),
        }
    }
}

fn split_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// A duration, displayed as `850ms`, `29m 50s` or `3d 04h`, and parsed from `30s`, `2h` or `1h30m`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span(pub Duration);

impl Span {
    /// Maximum duration that is parsed: 1,000 years, so that adding it to the current time does not overflow.
    const MAX: Self = Self(Duration::from_secs(365_250 * 86_400));

    /// Creates a span from seconds. Negative numbers and NaN become 0.
    pub fn from_seconds(seconds: f64) -> Self {
        Self(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
    }

    pub fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// Formats the duration with millisecond precision in a form that can be parsed, such as `10m5s`.
    pub fn exact(self) -> String {
        let mut remainder = self.0.as_millis();
        let mut text = String::new();
        for (unit, milliseconds) in
            [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
        {
            if remainder >= milliseconds {
                text.push_str(&format!("{}{unit}", remainder / milliseconds));
                remainder %= milliseconds;
            }
        }
        if text.is_empty() { "0s".to_owned() } else { text }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let text = match seconds {
            0 => format!("{}ms", self.0.as_millis()),
            1..60 => format!("{seconds}s"),
            60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
            3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
            _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
        };
        f.pad(if seconds == 0 && self.0.is_zero() { "0s" } else { &text })
    }
}

impl FromStr for Span {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError {
            text: text.to_owned(),
            expected: "a duration",
            examples: "30s, 10m, 2h or 1h30m",
        };
        let mut unparsed = text.trim();
        let mut seconds = 0.0;
        if unparsed.is_empty() {
            return Err(error());
        }
        while !unparsed.is_empty() {
            let (number, tail) = split_unit(unparsed).ok_or_else(error)?;
            let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            seconds += number
                * match &tail[..end] {
                    "ms" => 0.001,
                    "s" | "sec" => 1.0,
                    "m" | "min" => 60.0,
                    "h" => 3600.0,
                    "d" => 86_400.0,
                    "" if number == 0.0 => 1.0,
                    _ => return Err(error()),
                };
            unparsed = tail[end..].trim_start();
        }
        let span = Duration::try_from_secs_f64(seconds).ok();
        span.map(Self).filter(|span| *span <= Self::MAX).ok_or_else(error)
    }
}

/// A percentage in the configuration. In CPU usage, 100 is one fully used core.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Percent(pub f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_formatted_in_the_largest_unit() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_524, "1023.9 KiB"),
            (1_048_525, "1.0 MiB"),
            (3 * GIB / 2, "1.5 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), shown);
            assert_eq!(format!("{:>14}", Bytes(bytes)), format!("{shown:>14}"));
        }
    }

    #[test]
    fn bytes_are_parsed_with_binary_units() {
        for (text, bytes) in [
            ("8GiB", 8 * GIB),
            ("512 MiB", 512 * MIB),
            ("1.5g", 3 * GIB / 2),
            ("1024B", 1024),
            ("0", 0),
            ("0.0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in
            ["", "GiB", "8GB", "8 apples", "-1", "1e99", "99999999999TiB", "1.2.3MiB", "NaN"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_parsed_as_sizes_or_shares() {
        for (text, bytes) in [
            ("500MiB", 500 * MIB),
            ("0", 0),
            ("0%", 0),
            ("12.5%", 10 * GIB),
            ("90 %", 72 * GIB),
            ("100%", 80 * GIB),
        ] {
            let amount: Amount = text.parse().unwrap();
            assert_eq!(amount.in_bytes(Some(80 * GIB)), Some(bytes), "{text}");
        }
        assert_eq!("33%".parse::<Amount>().unwrap().in_bytes(Some(10)), Some(3), "rounded down");
        for text in ["", "%", "101%", "-1%", "8GB", "NaN%", "1e1%", "50%%"] {
            let error = text.parse::<Amount>().unwrap_err().to_string();
            assert!(error.ends_with("write 8GiB, 512MiB or 90%"), "{error}");
        }
        assert_eq!("90%".parse::<Amount>().unwrap().to_string(), "90%");
    }

    #[test]
    fn spans_are_formatted_with_their_two_largest_units() {
        for (seconds, shown) in [
            (0.0, "0s"),
            (0.85, "850ms"),
            (59.9, "59s"),
            (1790.0, "29m 50s"),
            (18_120.0, "5h 02m"),
            (273_600.0, "3d 04h"),
        ] {
            assert_eq!(Span::from_seconds(seconds).to_string(), shown);
        }
        assert_eq!(Span::from_seconds(f64::NAN), Span::default());
        assert_eq!(Span::from_seconds(-3.0), Span::default());
    }

    #[test]
    fn spans_are_parsed_with_their_units() {
        for (text, seconds) in [
            ("30s", 30.0),
            ("10m", 600.0),
            ("2h", 7200.0),
            ("1h30m", 5400.0),
            ("500ms", 0.5),
            ("0", 0.0),
            ("1d", 86_400.0),
        ] {
            assert_eq!(text.parse::<Span>().map(Span::seconds), Ok(seconds), "{text}");
        }
        for text in ["", "10", "m", "10x", "ten minutes", "-5s", "9999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
