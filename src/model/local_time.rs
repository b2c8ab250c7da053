//! An instant for people: date, time of day and zone, in the zone that the program was started in.
//!
//! The zone is set once, before anything is shown; the default is UTC. Formats always use UTC, through
//! [`Time`]'s own `Display`.

use std::fmt;
use std::sync::OnceLock;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::Time;

static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Shows all times in this zone from now on. Only the first call counts.
pub fn show_times_in(zone: TimeZone) {
    let _ = ZONE.set(zone);
}

fn zone() -> TimeZone {
    ZONE.get().cloned().unwrap_or(TimeZone::UTC)
}

/// An instant for people: `2026-11-21 11:04:05 CET`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalTime {
    time: Time,
    /// `None` outside the calendar.
    zoned: Option<Zoned>,
}

impl Time {
    /// In the zone that times are shown in.
    pub fn local(self) -> LocalTime {
        self.in_zone(zone())
    }

    fn in_zone(self, zone: TimeZone) -> LocalTime {
        let timestamp = Timestamp::from_millisecond(self.unix_milliseconds()).ok();
        LocalTime { time: self, zoned: timestamp.map(|timestamp| timestamp.to_zoned(zone)) }
    }

    /// The instant at which the clock of the shown zone shows this: the first if it does twice; if it skips it,
    /// as long after the skip.
    pub fn of_local(shown: DateTime) -> Option<Self> {
        Self::of_zone(shown, &zone())
    }

    fn of_zone(shown: DateTime, zone: &TimeZone) -> Option<Self> {
        let timestamp = zone.to_timestamp(shown).ok()?;
        Some(Self::from_unix_milliseconds(timestamp.as_millisecond()))
    }
}

impl LocalTime {
    /// `2026-11-21`; empty outside the calendar.
    pub fn date(&self) -> String {
        self.day().map_or_else(String::new, |date| date.to_string())
    }

    /// The same as a date.
    pub fn day(&self) -> Option<Date> {
        Some(self.zoned.as_ref()?.date())
    }

    /// `11:04:05`; outside the calendar the whole time.
    pub fn clock(&self) -> String {
        match &self.zoned {
            Some(zoned) => zoned.strftime("%H:%M:%S").to_string(),
            None => self.time.to_string(),
        }
    }

    /// `CET`, or `+03` if the zone has no name.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn shown(text: &str) -> String {
        let time: Time = text.parse().unwrap();
        time.in_zone(berlin()).to_string()
    }

    #[test]
    fn it_is_shown_to_the_second_with_its_zone() {
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
    fn an_hour_that_comes_twice_has_two_names_and_none_is_made_up() {
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

    #[test]
    fn what_no_calendar_has_stays_as_it_is() {
        let never = Time::from_unix_milliseconds(i64::MAX).local();
        assert_eq!(never.to_string(), format!("@{}ms", i64::MAX));
        assert_eq!((never.date().as_str(), never.clock()), ("", never.to_string()));
    }
}
