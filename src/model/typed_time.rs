//! Parses a typed time: `10:04`, `10:04:30`, `2026-11-21 10:04`, `-5m`, `+1h`, `start`, `end`.
//!
//! Times of day are in the screen's time zone; a full time may have an offset or `Z`.

use jiff::civil::Date;

use crate::model::Time;
use crate::units::Span;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TypedTime {
    Start,
    End,
    /// The first sample at or after this time.
    At(Time),
}

const EXAMPLES: &str = "10:04, 10:04:30, 2026-11-21 10:04, -5m, +1h, start or end";

/// Parses a typed time. A time of day is on the day of the sample `shown`; with `now`, it is the last such time in the
/// past.
///
/// # Errors
///
/// If it is no time: the forms that are.
pub fn parse(text: &str, shown: Time, now: Option<Time>) -> Result<TypedTime, String> {
    let text = text.trim();
    let no_time = || format!("not a time; write {EXAMPLES}");
    match text.to_ascii_lowercase().as_str() {
        "start" | "begin" | "beginning" => return Ok(TypedTime::Start),
        "end" | "now" => return Ok(TypedTime::End),
        _ => {}
    }
    for (sign, way) in [('-', -1.0), ('+', 1.0)] {
        if let Some(span) = text.strip_prefix(sign) {
            let span: Span = span.parse().map_err(|_| no_time())?;
            return Ok(TypedTime::At(shown.plus_seconds(way * span.seconds())));
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

/// A date and a time of day, with or without seconds, in the screen's time zone.
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

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    fn at(text: &str) -> Result<TypedTime, String> {
        parse(text, time("2026-11-21T10:04:05Z"), None)
    }

    #[test]
    fn a_time_is_typed_in_usual_notations() {
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
    fn a_wrong_time_is_refused_with_an_example() {
        for text in ["", "-", "ten", "25:00", "10:61", "10", "-5", "+5x", "10:04:05:06"] {
            let error = at(text).unwrap_err();
            assert!(error.contains("10:04"), "{text}: {error}");
        }
    }

    #[test]
    fn on_a_live_machine_a_time_of_day_is_in_the_past() {
        let now = time("2026-11-21T00:10:00Z");
        let parse = |text| parse(text, now, Some(now));
        let last = TypedTime::At(time("2026-11-20T23:50:00Z"));
        assert_eq!(parse("23:50"), Ok(last));
        assert_eq!(parse("0:05"), Ok(TypedTime::At(time("2026-11-21T00:05:00Z"))));
    }

    #[test]
    fn nothing_that_is_typed_panics() {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
        let letters: Vec<char> = "0123456789::::  --++.TZmshd年\u{1b}e".chars().collect();
        for _ in 0..50_000 {
            let length = dice.roll(22);
            let text: String = (0..length).map(|_| letters[dice.place(letters.len())]).collect();
            let shown = Time::from_unix_milliseconds((dice.next() as i64) >> dice.roll(64));
            let now = Time::from_unix_milliseconds((dice.next() as i64) >> dice.roll(64));
            if let Err(error) = parse(&text, shown, Some(now)) {
                assert!(error.contains("10:04"), "{error}");
            }
        }
    }
}
