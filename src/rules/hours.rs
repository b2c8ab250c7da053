//! At which hours of which days a scope holds, by the clock on the wall of its time zone.
//!
//! The zone is resolved when the configuration is read; from then on a time of day is arithmetic on a
//! snapshot's time.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::setting;
use crate::model::Time;

const MINUTES_A_DAY: u16 = 24 * 60;
const SECONDS_A_DAY: i64 = 86_400;
/// The days of the week as they are written, in their order.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A time zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// As it was named; `None` for the machine's own.
    name: Option<Arc<str>>,
    zone: TimeZone,
}

/// Why there is no such time zone.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoZone {
    /// No zone of this name is installed.
    #[error(
        "{0:?} is no time zone of this machine; write a name from /usr/share/zoneinfo such as \
         \"Europe/Berlin\", or \"UTC\""
    )]
    Unknown(String),
    /// It cannot be told in which zone this machine is.
    #[error("the time zone of this machine is not known; add timezone = NAME, such as \"UTC\"")]
    NoLocal,
}

impl Zone {
    /// The zone of this name.
    ///
    /// # Errors
    ///
    /// None of this name is installed.
    pub fn named(name: &str) -> Result<Self, NoZone> {
        let zone = TimeZone::get(name).map_err(|_| NoZone::Unknown(name.to_owned()))?;
        Ok(Self { name: Some(name.into()), zone })
    }

    /// The zone that this machine is in.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn local() -> Result<Self, NoZone> {
        let zone = TimeZone::try_system().map_err(|_| NoZone::NoLocal)?;
        Ok(Self { name: None, zone })
    }

    /// As it was named; `None` for the machine's own.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The instant at which the clock there shows this; where it shows it twice, the first.
    pub fn instant(&self, shown: jiff::civil::DateTime) -> Option<Time> {
        let timestamp = self.zone.to_timestamp(shown).ok()?;
        Some(Time::from_unix_milliseconds(timestamp.as_millisecond()))
    }

    /// Seconds since the epoch as the clock there would count them; `None` outside the calendar.
    fn local_seconds(&self, time: Time) -> Option<i64> {
        let timestamp = Timestamp::from_millisecond(time.unix_milliseconds()).ok()?;
        let offset = self.zone.to_offset(timestamp).seconds();
        Some(time.unix_seconds() + i64::from(offset))
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::named(&setting::name(from)?).map_err(de::Error::custom)
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.name.serialize(to)
    }
}

/// A stretch of the day: from its first minute to the one at which it is over, which may be on the
/// next day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DayHours {
    from: u16,
    to: u16,
}

impl DayHours {
    /// Reads `22:00-06:00`; `None` where it is written otherwise or is empty.
    pub fn read(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let (from, to) = (minutes(from.trim())?, minutes(to.trim())?);
        (from < MINUTES_A_DAY && from != to).then_some(Self { from, to })
    }
}

impl<'de> Deserialize<'de> for DayHours {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let example = "two different times of day such as \"22:00-06:00\", from 00:00 to 24:00";
        setting::parsed(from, example, |written| Self::read(written.as_str()?))
    }
}

impl Serialize for DayHours {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// `6:05` or `06:05` as minutes since midnight, to `24:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let is_number = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (number(hour, 1..=2)?, number(minute, 2..=2)?);
    let minutes = hour * 60 + minute;
    (minute < 60 && minutes <= MINUTES_A_DAY).then_some(minutes)
}

impl fmt::Display for DayHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

/// At which hours of which days.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hours {
    /// The stretch of the day; `None` for all of it.
    pub stretch: Option<DayHours>,
    /// On which days of the week it begins, Monday first.
    pub days: [bool; 7],
    /// By which clock.
    pub zone: Zone,
}

impl Hours {
    /// Whether an instant is in them. What begins on Friday at 22:00 is Friday's until it is over.
    pub fn hold(&self, time: Time) -> bool {
        let Some(seconds) = self.zone.local_seconds(time) else {
            return false;
        };
        let minute = (seconds.rem_euclid(SECONDS_A_DAY) / 60) as u16;
        // The epoch was a Thursday.
        let today = (seconds.div_euclid(SECONDS_A_DAY) + 3).rem_euclid(7) as usize;
        let yesterday = (today + 6) % 7;
        let Some(DayHours { from, to }) = self.stretch else {
            return self.days[today];
        };
        if from < to {
            self.days[today] && (from..to).contains(&minute)
        } else {
            (self.days[today] && minute >= from) || (self.days[yesterday] && minute < to)
        }
    }

    /// The days as they are written; empty where it is every day.
    pub fn day_names(&self) -> Vec<&'static str> {
        if self.days == [true; 7] {
            return Vec::new();
        }
        let days = DAYS.iter().zip(self.days);
        days.filter_map(|(name, is)| is.then_some(*name)).collect()
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stretch = self.stretch.map(|stretch| stretch.to_string());
        let mut words: Vec<&str> = stretch.as_deref().into_iter().collect();
        words.extend(self.day_names());
        write!(f, "{}", words.join(" "))?;
        match self.zone.name() {
            Some(name) => write!(f, " ({})", name.escape_debug()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(stretch: &str, days: &[&str], zone: &str) -> Hours {
        Hours {
            stretch: Some(stretch)
                .filter(|text| !text.is_empty())
                .map(|text| DayHours::read(text).unwrap()),
            days: DAYS.map(|day| days.is_empty() || days.contains(&day)),
            zone: Zone::named(zone).unwrap(),
        }
    }

    #[track_caller]
    fn hold(hours: &Hours, time: &str) -> bool {
        hours.hold(time.parse().unwrap())
    }

    #[test]
    fn a_stretch_is_two_times_of_day() {
        for (text, shown) in [
            ("22:00-06:00", "22:00-06:00"),
            ("9:05 - 17:30", "09:05-17:30"),
            ("00:00-24:00", "00:00-24:00"),
            ("18:00-00:00", "18:00-00:00"),
        ] {
            assert_eq!(DayHours::read(text).unwrap().to_string(), shown);
        }
        for text in [
            "25:00-3",
            "25:00-03:00",
            "22:00",
            "22-6",
            "22:60-23:00",
            "10:00-10:00",
            "24:00-06:00",
            "-1:00-06:00",
            "+1:00-06:00",
            "010:00-11:00",
            "10:0-11:00",
            "",
            "-",
            "10:00-24:01",
            "10:00-11:00-12:00",
            "٣:00-11:00",
        ] {
            assert_eq!(DayHours::read(text), None, "{text}");
        }
    }

    #[test]
    fn it_begins_with_its_first_minute_and_is_over_at_its_last() {
        let day = hours("09:00-17:30", &[], "UTC");
        for (time, expected) in [
            ("2026-11-21T08:59:59.999Z", false),
            ("2026-11-21T09:00:00Z", true),
            ("2026-11-21T17:29:59Z", true),
            ("2026-11-21T17:30:00Z", false),
            ("1969-12-31T09:00:00Z", true),
        ] {
            assert_eq!(hold(&day, time), expected, "{time}");
        }
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        // 2026-11-20 is a Friday.
        let night = hours("22:00-06:00", &["fri"], "UTC");
        for (time, expected) in [
            ("2026-11-20T05:00:00Z", false),
            ("2026-11-20T22:00:00Z", true),
            ("2026-11-21T05:59:59Z", true),
            ("2026-11-21T06:00:00Z", false),
            ("2026-11-21T23:00:00Z", false),
        ] {
            assert_eq!(hold(&night, time), expected, "{time}");
        }
        let weekend = hours("", &["sat", "sun"], "UTC");
        assert!(hold(&weekend, "2026-11-22T23:59:59Z"));
        assert!(!hold(&weekend, "2026-11-23T00:00:00Z"));
    }

    #[test]
    fn the_clock_is_that_of_the_zone_summer_and_winter() {
        if Zone::named("Europe/Berlin").is_err() {
            return; // A machine without zoneinfo has UTC alone.
        }
        let day = hours("09:00-17:00", &[], "Europe/Berlin");
        assert!(hold(&day, "2026-07-01T07:00:00Z") && !hold(&day, "2026-07-01T15:00:00Z"));
        assert!(!hold(&day, "2026-12-01T07:00:00Z") && hold(&day, "2026-12-01T15:00:00Z"));
    }

    #[test]
    fn a_zone_that_there_is_not_and_a_time_outside_the_calendar_are_no_harm() {
        for name in ["Mars/Olympus", "", "../../etc/passwd", "Europe/Berlin\0"] {
            assert_eq!(Zone::named(name), Err(NoZone::Unknown(name.to_owned())));
        }
        let day = hours("00:00-24:00", &[], "UTC");
        assert!(!day.hold(Time::from_unix_milliseconds(i64::MAX)));
    }
}
