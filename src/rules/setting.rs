//! Parses settings from TOML and formats them for messages.
//!
//! For an invalid size, duration or percentage, the error shows the value and an example. All other errors are those
//! of serde and `toml`.

use std::sync::Arc;

use serde::de::{self, DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use toml::{Table, Value};

use crate::history::counter::LONGEST_WINDOW_SECONDS;
use crate::model::selector;
use crate::units::{Bytes, Percent, Span};

/// Returns the settings with the changes applied.
///
/// # Errors
///
/// Returns an error if a changed value is invalid.
pub fn changed<T: DeserializeOwned + Serialize>(
    settings: &T,
    changes: Table,
) -> Result<T, toml::de::Error> {
    let mut table = Table::try_from(settings).map_err(de::Error::custom)?;
    table.extend(changes);
    table.try_into()
}

pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        // `toml` turns numbers that are too large into infinity.
        Value::Float(number) if number.is_infinite() => "the number".to_owned(),
        Value::Datetime(_) => "the date".to_owned(),
        Value::Array(_) => "the list".to_owned(),
        Value::Table(_) => "the table".to_owned(),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => value.to_string(),
    }
}

/// Parses a value of the kind shown by `example`.
///
/// # Errors
///
/// Returns an error with `example` if `parse` rejects the value.
pub fn parsed<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    example: &str,
    parse: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, D::Error> {
    let written = Value::deserialize(deserializer)?;
    let wrong = || format!("{} is not allowed; write {example}", shown(&written));
    parse(&written).ok_or_else(|| de::Error::custom(wrong()))
}

pub fn text(written: &Value) -> Option<Arc<str>> {
    let text = written.as_str().filter(|text| !text.is_empty());
    text.map(Arc::from)
}

pub fn span(written: &Value) -> Option<Span> {
    let span: Span = written.as_str()?.parse().ok()?;
    Some(Span::from_seconds((span.seconds() * 1000.0).round() / 1000.0))
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let example = "a size such as \"1GiB\" or \"512MiB\"";
        parsed(deserializer, example, |written| written.as_str()?.parse().ok())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let example = "a duration such as \"30s\", \"10m\" or \"2h\", from 1s to 1d";
        let is_allowed = |span: &Self| (1.0..=LONGEST_WINDOW_SECONDS).contains(&span.seconds());
        parsed(deserializer, example, |written| span(written).filter(is_allowed))
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let example = "a percentage above 0 such as 20 (one core of CPU is 100)";
        parsed(deserializer, example, |written| {
            let number = written.as_float().or_else(|| Some(written.as_integer()? as f64))?;
            (number > 0.0 && number.is_finite()).then_some(Self(number))
        })
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&exact_bytes(*self))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.exact())
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // Writes 20 rather than 20.0.
        match self.0 as i64 {
            whole if whole as f64 == self.0 => to.serialize_i64(whole),
            _ => to.serialize_f64(self.0),
        }
    }
}

/// Returns `; did you mean "duration"?` if `name` looks like a misspelled known name, otherwise an empty string.
pub fn near<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    let near = selector::near(name, known);
    near.map_or_else(String::new, |known| format!("; did you mean {known:?}?"))
}

/// Formats a size in the largest unit that yields an integer.
fn exact_bytes(Bytes(bytes): Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    units
        .iter()
        .find(|(_, bits)| bytes != 0 && bytes.trailing_zeros() >= *bits)
        .map_or_else(|| format!("{bytes}B"), |(unit, bits)| format!("{}{unit}", bytes >> bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rule::Settings;
    use crate::rules::testing::written;
    use crate::units::{GIB, MIB};

    fn with(key: &str, value: &Value) -> Result<Settings, toml::de::Error> {
        changed(&Settings::NONE, Table::from_iter([(key.to_owned(), value.clone())]))
    }

    #[test]
    fn settings_round_trip_through_toml() {
        for (bytes, shown) in [
            (GIB, "\"1GiB\""),
            (1536 * MIB, "\"1536MiB\""),
            (1_000_001, "\"1000001B\""),
            (0, "\"0B\""),
        ] {
            let value = written(Bytes(bytes));
            assert_eq!(value.to_string(), shown);
            assert_eq!(with("min_memory", &value).unwrap().min_memory, Bytes(bytes));
        }
        for (seconds, shown) in [(600.0, "\"10m\""), (5_461.5, "\"1h31m1s500ms\"")] {
            let value = written(Span::from_seconds(seconds));
            assert_eq!(value.to_string(), shown);
            assert_eq!(with("duration", &value).unwrap().duration.seconds(), seconds);
        }
        for (percent, shown) in [(20.0, "20"), (12.5, "12.5")] {
            let value = written(Percent(percent));
            assert_eq!(value.to_string(), shown);
            assert_eq!(with("max_cpu_percent", &value).unwrap().max_cpu_percent, Percent(percent));
        }
    }

    #[test]
    fn an_invalid_value_error_shows_a_valid_example() {
        for (key, value) in [
            ("duration", Value::Integer(10)),
            ("duration", "10 apples".into()),
            ("duration", "0s".into()),
            ("duration", "25h".into()),
            ("max_cpu_percent", Value::Integer(-1)),
            ("max_cpu_percent", Value::Float(0.0)),
            ("max_cpu_percent", Value::Float(f64::NAN)),
            ("max_cpu_percent", "20%".into()),
            ("min_memory", Value::Integer(1024)),
            ("min_memory", "8GB".into()),
            ("min_memory", "8".into()),
        ] {
            let wrong = with(key, &value).unwrap_err();
            let start = format!("{} is not allowed; write a ", shown(&value));
            assert!(wrong.message().starts_with(&start), "{wrong}");
        }
        assert!(with("severity", &"high".into()).unwrap_err().message().contains("critical"));
        assert!(with("enabled", &"true".into()).is_err());
    }
}
