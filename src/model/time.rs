//! An instant: milliseconds since the Unix epoch, written as RFC 3339 in UTC.

use std::borrow::Cow;
use std::fmt;
use std::ops::Sub;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Milliseconds since the Unix epoch (UTC); in JSON `"2026-11-21T10:04:05.123Z"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(i64);

impl Time {
    pub const fn from_unix_milliseconds(milliseconds: i64) -> Self {
        Self(milliseconds)
    }

    pub const fn unix_milliseconds(self) -> i64 {
        self.0
    }

    /// Rounded down.
    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Negative if `earlier` is later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        (self - earlier) as f64 / 1000.0
    }

    /// The instant `seconds` later (earlier if negative).
    pub fn plus_seconds(self, seconds: f64) -> Self {
        Self(self.0.saturating_add((seconds * 1000.0).round() as i64))
    }
}

impl Sub for Time {
    type Output = i64;

    /// Milliseconds between two instants.
    fn sub(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.3}"),
            // Outside years -9999..=9999; such a time comes only from a broken recording.
            Err(_) => write!(f, "@{}ms", self.0),
        }
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        let timestamp: Timestamp = text.parse()?;
        Ok(Self(timestamp.as_millisecond()))
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let shown = "a time such as \"2026-11-21T10:04:05.123Z\"";
        text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_in_utc_with_milliseconds() {
        let time: Time = "2025-12-04T09:15:38.138+01:00".parse().unwrap();
        assert_eq!(time.to_string(), "2025-12-04T08:15:38.138Z");
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2025-12-04T08:15:38.138Z\"");
        assert_eq!(
            serde_json::from_str::<Time>("\"2025-12-04T08:15:38Z\"").unwrap().to_string(),
            "2025-12-04T08:15:38.000Z"
        );
    }

    #[test]
    fn what_is_no_time_is_an_error_that_shows_one() {
        let error = serde_json::from_str::<Time>("\"yesterday\"").unwrap_err().to_string();
        assert!(error.contains("a time such as"), "{error}");
        assert_eq!(Time::from_unix_milliseconds(i64::MAX).to_string(), format!("@{}ms", i64::MAX));
    }

    #[test]
    fn differences_are_signed() {
        let early = Time::from_unix_milliseconds(1_000);
        assert_eq!(early.plus_seconds(1.5).seconds_since(early), 1.5);
        assert_eq!(early.seconds_since(early.plus_seconds(1.5)), -1.5);
        assert_eq!(Time::from_unix_milliseconds(-1).unix_seconds(), -1);
    }
}
