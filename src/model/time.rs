//! An instant in milliseconds since the Unix epoch. File formats use RFC 3339 in UTC, and people see and type local
//! time.

use std::fmt;
use std::ops::Sub;
use std::str::FromStr;
use std::sync::OnceLock;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units::Span;

/// Milliseconds since the Unix epoch, written as `"2026-11-21T10:04:05.123Z"` in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, JsonSchema)]
#[schemars(inline, description = "", extend("format" = "date-time"))]
pub struct Time(#[schemars(with = "String")] i64);

impl Time {
    pub const fn from_unix_milliseconds(milliseconds: i64) -> Self {
        Self(milliseconds)
    }

    pub const fn unix_milliseconds(self) -> i64 {
        self.0
    }

    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns the seconds from `earlier` to this instant, which are negative if `earlier` is later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        (self - earlier) as f64 / 1000.0
    }

    /// Returns the instant `seconds` later. If `seconds` is negative, the result is earlier.
    pub fn plus_seconds(self, seconds: f64) -> Self {
        Self(self.0.saturating_add((seconds * 1000.0).round() as i64))
    }
}

impl Sub for Time {
    type Output = i64;

    fn sub(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.3}"),
            // Only a broken recording contains a time outside the years -9999 to 9999.
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

// People see local times with date, time of day and zone. The zone is set once, before the first time is shown, and
// defaults to UTC. File formats always use UTC, through the `Display` of [`Time`].

static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Sets the zone of all local times. Only the first call has an effect.
pub fn show_times_in(zone: TimeZone) {
    let _ = ZONE.set(zone);
}

fn zone() -> TimeZone {
    ZONE.get().cloned().unwrap_or(TimeZone::UTC)
}

/// A time in the local zone, displayed as `2026-11-21 11:04:05 CET`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalTime {
    time: Time,
    zoned: Option<Zoned>,
}

impl Time {
    pub fn local(self) -> LocalTime {
        self.in_zone(zone())
    }

    fn in_zone(self, zone: TimeZone) -> LocalTime {
        let timestamp = Timestamp::from_millisecond(self.unix_milliseconds()).ok();
        LocalTime { time: self, zoned: timestamp.map(|timestamp| timestamp.to_zoned(zone)) }
    }

    /// Returns the instant of a local time. A time in a daylight-saving gap is moved forward by the length of the
    /// gap: 02:30 becomes 03:30. Of two possible instants, returns the first.
    fn of_local(shown: DateTime) -> Option<Self> {
        Self::of_zone(shown, &zone())
    }

    fn of_zone(shown: DateTime, zone: &TimeZone) -> Option<Self> {
        let timestamp = zone.to_timestamp(shown).ok()?;
        Some(Self::from_unix_milliseconds(timestamp.as_millisecond()))
    }
}

impl LocalTime {
    /// Formats the date as `2026-11-21`. Returns an empty string if the calendar cannot represent the time.
    pub fn date(&self) -> String {
        self.day().map_or_else(String::new, |date| date.to_string())
    }

    pub fn day(&self) -> Option<Date> {
        Some(self.zoned.as_ref()?.date())
    }

    /// Formats the time of day as `11:04:05`. If the calendar cannot represent the time, formats the whole time.
    pub fn clock(&self) -> String {
        match &self.zoned {
            Some(zoned) => zoned.strftime("%H:%M:%S").to_string(),
            None => self.time.to_string(),
        }
    }

    pub fn zone(&self) -> String {
        match &self.zoned {
            Some(zoned) => zoned.strftime("%Z").to_string(),
            None => "UTC".to_owned(),
        }
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.zoned {
            Some(zoned) => write!(f, "{}", zoned.strftime("%Y-%m-%d %H:%M:%S %Z")),
            None => self.time.fmt(f),
        }
    }
}

/// A time that a user typed: `10:04`, `10:04:30`, `2026-11-21 10:04`, `-5m`, `+1h`, `start`, `end`.
///
/// Times of day are in the local time zone. A complete time can have an offset or `Z`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TypedTime {
    Start,
    End,
    /// The first sample at or after this time.
    At(Time),
}

const EXAMPLES: &str = "10:04, 10:04:30, 2026-11-21 10:04, -5m, +1h, start or end";

/// Parses a typed time. A relative time counts from `shown`. A time of day is on the day of `shown`, or on the day
/// before if it would otherwise be later than `now`.
///
/// # Errors
///
/// Returns an error that lists the valid forms if the text is not a time.
pub fn parse_typed(text: &str, shown: Time, now: Option<Time>) -> Result<TypedTime, String> {
    let text = text.trim();
    let no_time = || format!("not a time; write {EXAMPLES}");
    match text.to_ascii_lowercase().as_str() {
        "start" | "begin" | "beginning" => return Ok(TypedTime::Start),
        "end" | "now" => return Ok(TypedTime::End),
        _ => {}
    }
    for (sign, factor) in [('-', -1.0), ('+', 1.0)] {
        if let Some(span) = text.strip_prefix(sign) {
            let span: Span = span.parse().map_err(|_| no_time())?;
            return Ok(TypedTime::At(shown.plus_seconds(factor * span.seconds())));
        }
    }
    if let Ok(time) = text.parse() {
        return Ok(TypedTime::At(time));
    }
    let (date, clock) = match text.split_once([' ', 'T']) {
        Some((date, clock)) => (Some(date.parse::<Date>().map_err(|_| no_time())?), clock.trim()),
        None => (None, text),
    };
    let today = shown.local().day().ok_or_else(no_time)?;
    let time = at(date.unwrap_or(today), clock).ok_or_else(no_time)?;
    match now {
        Some(now) if date.is_none() && time > now => {
            let yesterday = today.yesterday().map_err(|_| no_time())?;
            Ok(TypedTime::At(at(yesterday, clock).ok_or_else(no_time)?))
        }
        _ => Ok(TypedTime::At(time)),
    }
}

/// Parses a time of day with or without seconds, on this date, in the local time zone. Returns `None` if the text is
/// not a time of day.
fn at(date: Date, clock: &str) -> Option<Time> {
    let seconds = match clock.bytes().filter(|byte| *byte == b':').count() {
        1 => ":00",
        2 => "",
        _ => return None,
    };
    let hours = if clock.find(':') == Some(1) { "0" } else { "" };
    Time::of_local(format!("{date}T{hours}{clock}{seconds}").parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dice::Dice;

    #[test]
    fn a_time_is_written_in_utc_with_milliseconds() {
        let time: Time = "2025-12-04T09:15:38.138+01:00".parse().unwrap();
        assert_eq!(time.to_string(), "2025-12-04T08:15:38.138Z");
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2025-12-04T08:15:38.138Z\"");
        assert_eq!(
            serde_json::from_str::<Time>("\"2025-12-04T08:15:38Z\"").unwrap().to_string(),
            "2025-12-04T08:15:38.000Z"
        );
    }

    #[test]
    fn an_invalid_time_is_an_error_with_an_example() {
        let error = serde_json::from_str::<Time>("\"yesterday\"").unwrap_err().to_string();
        assert!(error.contains("a time such as"), "{error}");
        let never = Time::from_unix_milliseconds(i64::MAX);
        let shown = format!("@{}ms", i64::MAX);
        assert_eq!((never.to_string(), never.local().to_string()), (shown.clone(), shown.clone()));
        assert_eq!((never.local().date().as_str(), never.local().clock()), ("", shown));
        assert_eq!(Time::from_unix_milliseconds(-1).unix_seconds(), -1);
    }

    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn shown(text: &str) -> String {
        let time: Time = text.parse().unwrap();
        time.in_zone(berlin()).to_string()
    }

    #[test]
    fn local_time_shows_seconds_and_zone() {
        let time = Time::from_unix_milliseconds(1_763_706_000_123);
        assert_eq!(time.local().to_string(), "2025-11-21 06:20:00 UTC");
        assert_eq!(shown("2025-11-21T23:20:00Z"), "2025-11-22 00:20:00 CET");
        let nameless = TimeZone::posix("<-03>3").unwrap();
        let local = time.in_zone(nameless);
        assert_eq!(local.to_string(), "2025-11-21 03:20:00 -03");
        assert_eq!(
            (local.date().as_str(), local.clock().as_str(), local.zone().as_str()),
            ("2025-11-21", "03:20:00", "-03")
        );
    }

    #[test]
    fn repeated_and_skipped_local_hours_are_resolved() {
        assert_eq!(shown("2026-10-25T00:30:00Z"), "2026-10-25 02:30:00 CEST");
        assert_eq!(shown("2026-10-25T01:30:00Z"), "2026-10-25 02:30:00 CET");
        assert_eq!(shown("2026-03-29T00:59:59Z"), "2026-03-29 01:59:59 CET");
        assert_eq!(shown("2026-03-29T01:00:00Z"), "2026-03-29 03:00:00 CEST");
        let typed = |text: &str| {
            let time = Time::of_zone(text.parse().unwrap(), &berlin()).unwrap();
            time.to_string()
        };
        assert_eq!(typed("2026-10-25T02:30:00"), "2026-10-25T00:30:00.000Z");
        assert_eq!(typed("2026-03-29T02:30:00"), "2026-03-29T01:30:00.000Z");
    }

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    fn at(text: &str) -> Result<TypedTime, String> {
        parse_typed(text, time("2026-11-21T10:04:05Z"), None)
    }

    #[test]
    fn common_time_notations_are_parsed() {
        for (text, means) in [
            ("10:03", "2026-11-21T10:03:00Z"),
            ("9:03", "2026-11-21T09:03:00Z"),
            (" 23:59:30 ", "2026-11-21T23:59:30Z"),
            ("2026-11-20 10:04", "2026-11-20T10:04:00Z"),
            ("2026-11-20T10:04:07", "2026-11-20T10:04:07Z"),
            ("2026-11-20T10:04:07Z", "2026-11-20T10:04:07Z"),
            ("2026-11-20T10:04:07+01:00", "2026-11-20T09:04:07Z"),
            ("-5m", "2026-11-21T09:59:05Z"),
            ("+1h30m", "2026-11-21T11:34:05Z"),
            ("-0", "2026-11-21T10:04:05Z"),
        ] {
            assert_eq!(at(text), Ok(TypedTime::At(time(means))), "{text}");
        }
        assert_eq!(at("start"), Ok(TypedTime::Start));
        assert_eq!(at("END"), Ok(TypedTime::End));
    }

    #[test]
    fn an_invalid_typed_time_is_rejected_with_an_example() {
        for text in ["", "-", "ten", "25:00", "10:61", "10", "-5", "+5x", "10:04:05:06"] {
            let error = at(text).unwrap_err();
            assert!(error.contains("10:04"), "{text}: {error}");
        }
    }

    #[test]
    fn a_live_time_of_day_is_in_the_past() {
        let now = time("2026-11-21T00:10:00Z");
        let parse = |text| parse_typed(text, now, Some(now));
        let last = TypedTime::At(time("2026-11-20T23:50:00Z"));
        assert_eq!(parse("23:50"), Ok(last));
        assert_eq!(parse("0:05"), Ok(TypedTime::At(time("2026-11-21T00:05:00Z"))));
    }

    #[test]
    fn no_typed_time_panics() {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
        let letters: Vec<char> = "0123456789::::  --++.TZmshd年\u{1b}e".chars().collect();
        for _ in 0..50_000 {
            let length = dice.roll(22);
            let text: String = (0..length).map(|_| letters[dice.place(letters.len())]).collect();
            let shown = Time::from_unix_milliseconds((dice.next() as i64) >> dice.roll(64));
            let now = Time::from_unix_milliseconds((dice.next() as i64) >> dice.roll(64));
            if let Err(error) = parse_typed(&text, shown, Some(now)) {
                assert!(error.contains("10:04"), "{error}");
            }
        }
    }
}
