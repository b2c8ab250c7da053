//! Settings as serde reads and writes them: a kind's settings, and other tables of the configuration.
//!
//! A table of settings is a plain struct: its fields are the keys, their doc comments the manual, its
//! `Default` the defaults, and their types say what may be written. [`values`] writes one, [`changed`]
//! reads changes over one. What is wrong with a value is said in words of ours: what was written, and
//! what is to be written.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer, forward_to_deserialize_any};
use toml::{Table, Value};

use crate::history::cpu::LONGEST_WINDOW_SECONDS;
use crate::units::{Bytes, Percent, Span};

/// How a size is written.
const SIZE: &str = "a size such as \"1GiB\" or \"512MiB\"";
/// How a length of time is written.
const DURATION: &str = "a duration such as \"30s\", \"10m\" or \"2h\", from 1s to 1d";
/// How percent are written.
const PERCENT: &str = "a number of percent above 0 such as 20 (one core of CPU is 100)";

/// Its keys, in their order.
pub fn keys<T: DeserializeOwned>() -> &'static [&'static str] {
    /// Keeps the names of the fields that a struct asks for.
    struct Names<'n>(&'n mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = WrongValue;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            _visitor: V,
        ) -> Result<V::Value, WrongValue> {
            *self.0 = fields;
            Err(WrongValue::default())
        }

        fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, WrongValue> {
            Err(WrongValue::default())
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &[&str] = &[];
    let _ = T::deserialize(Names(&mut names));
    names
}

/// Its keys and their values, in their order.
pub fn values<T: DeserializeOwned + Serialize>(settings: &T) -> Vec<(&'static str, Value)> {
    let mut table = Table::try_from(settings).unwrap_or_default();
    let value = |name: &&'static str| Some((*name, table.remove(*name)?));
    keys::<T>().iter().filter_map(value).collect()
}

/// What its keys mean, each in a line, in their order: the doc comments of the fields.
pub fn meanings<T: DeserializeOwned + JsonSchema>() -> Vec<String> {
    let schema = SchemaGenerator::default().into_root_schema_for::<T>();
    let meaning = |name: &&str| {
        let text = schema.pointer(&format!("/properties/{name}/description"));
        let text = text.and_then(serde_json::Value::as_str).unwrap_or_default();
        let text = text.trim_end_matches('.');
        // `NVML` stays as it is.
        let is_name = text.chars().take(2).all(char::is_uppercase);
        match text.get(..1) {
            Some(first) if !is_name => first.to_ascii_lowercase() + &text[1..],
            _ => text.to_owned(),
        }
    };
    keys::<T>().iter().map(meaning).collect()
}

/// It with these values; the last of a key counts.
///
/// # Errors
///
/// A key that there is none of, or a value that is not allowed.
pub fn changed<'v, T: DeserializeOwned + Serialize>(
    settings: &T,
    changes: impl Iterator<Item = (&'v str, &'v Value)>,
) -> Result<T, WrongValue> {
    let mut table = values(settings);
    for (key, value) in changes {
        let Some((_, old)) = table.iter_mut().find(|(name, _)| *name == key) else {
            return Err(de::Error::custom(format!("{key:?} is not known")));
        };
        old.clone_from(value);
    }
    read(table.iter().map(|(name, value)| (*name, value)))
}

/// Reads a table of the keys of `T`.
///
/// # Errors
///
/// The first value that is not allowed.
pub fn read<'v, T: DeserializeOwned>(
    table: impl Iterator<Item = (&'v str, &'v Value)>,
) -> Result<T, WrongValue> {
    let at = Cell::new("");
    let entries = table.inspect(|(key, _)| at.set(key));
    let entries = entries.map(|(key, value)| (key, Written(value)));
    T::deserialize(MapDeserializer::new(entries))
        .map_err(|wrong: WrongValue| WrongValue { key: at.get().to_owned(), ..wrong })
}

/// Reads one value.
///
/// # Errors
///
/// It is not allowed.
pub fn read_value<T: DeserializeOwned>(value: &Value) -> Result<T, WrongValue> {
    T::deserialize(Written(value))
}

/// A value that is not allowed.
#[derive(Clone, PartialEq, Eq, Debug, Default, thiserror::Error)]
#[error("{message}")]
pub struct WrongValue {
    /// The key that it stands at, where it is of a table.
    pub key: String,
    /// What was written, and what is allowed.
    pub message: String,
}

impl de::Error for WrongValue {
    fn custom<M: fmt::Display>(message: M) -> Self {
        Self { message: message.to_string(), ..Self::default() }
    }
}

/// A value as it was written.
#[derive(Clone, Copy, Debug)]
struct Written<'v>(&'v Value);

impl<'v> IntoDeserializer<'v, WrongValue> for Written<'v> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Written<'de> {
    type Error = WrongValue;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WrongValue> {
        let value = self.0.clone().into_deserializer();
        let read = value.deserialize_any(visitor);
        read.map_err(|error: toml::de::Error| de::Error::custom(error.message()))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WrongValue> {
        visitor.visit_bool(expect(self.0, "true or false", Value::as_bool)?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WrongValue> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, WrongValue> {
        let written = self.0.as_str().unwrap_or_default();
        if let Some(word) = words.iter().find(|word| **word == written) {
            return visitor.visit_enum((*word).into_deserializer());
        }
        let hint = near(written, words.iter().copied());
        let (shown, allowed) = (shown(self.0), one_of(words));
        Err(de::Error::custom(format!("{shown} is not allowed{hint}; write {allowed}")))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// `"info", "warning" or "critical"`.
fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// A value as a mistake in it is told.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        // Also one of more digits than TOML's numbers have.
        Value::Float(number) if number.is_infinite() => "the number".to_owned(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(_) => "the date".to_owned(),
        Value::Array(_) => "the list".to_owned(),
        Value::Table(_) => "the table".to_owned(),
    }
}

/// Reads a value that is written as in the `example`, by what was written.
///
/// # Errors
///
/// It is written otherwise.
pub fn parsed<'de, T, D: Deserializer<'de>>(
    from: D,
    example: &str,
    parse: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, D::Error> {
    expect(&Value::deserialize(from)?, example, parse)
}

/// As [`parsed`], of what was written.
///
/// # Errors
///
/// As there.
pub fn expect<T, E: de::Error>(
    written: &Value,
    example: &str,
    parse: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, E> {
    let shown = || format!("{} is not allowed; write {example}", shown(written));
    parse(written).ok_or_else(|| E::custom(shown()))
}

/// A text that is not empty.
pub fn text(written: &Value) -> Option<Arc<str>> {
    let text = written.as_str().filter(|text| !text.is_empty());
    text.map(Arc::from)
}

/// A length of time as text, in milliseconds, because it can be written again then.
pub fn span(written: &Value) -> Option<Span> {
    let span: Span = written.as_str()?.parse().ok()?;
    Some(Span::from_seconds((span.seconds() * 1000.0).round() / 1000.0))
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from, SIZE, |written| written.as_str()?.parse().ok())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let is_allowed = |span: &Self| (1.0..=LONGEST_WINDOW_SECONDS).contains(&span.seconds());
        parsed(from, DURATION, |written| span(written).filter(is_allowed))
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = |written: &Value| match written {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        let is_allowed = |number: &f64| *number > 0.0 && number.is_finite();
        parsed(from, PERCENT, |written| number(written).filter(is_allowed).map(Self))
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
        // As people write it: 20 and not 20.0.
        match self.0 as i64 {
            whole if whole as f64 == self.0 => to.serialize_i64(whole),
            _ => to.serialize_f64(self.0),
        }
    }
}

macro_rules! written_as {
    ($($unit:ident as $form:ty),*) => {$(
        impl JsonSchema for $unit {
            fn schema_name() -> Cow<'static, str> {
                stringify!($unit).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                <$form>::json_schema(generator)
            }
        }
    )*};
}
written_as!(Bytes as String, Span as String, Percent as f64);

/// `; did you mean "duration"?`, where a known name is a typing error away.
pub fn near<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    known
        .map(|known| (distance(name, known), known))
        .filter(|(distance, known)| *distance <= 2 && *distance < known.len())
        .min()
        .map_or_else(String::new, |(_, known)| format!("; did you mean {known:?}?"))
}

/// How many letters have to be added, dropped or changed to turn one name into another.
fn distance(from: &str, to: &str) -> usize {
    // Longer than any name: nothing is near it, and it shall cost nothing.
    if from.len() > 64 {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The size in the largest unit in which it is a whole number.
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
    use crate::model::Severity;
    use crate::units::{GIB, MIB};

    /// A table with a key of every kind.
    #[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema, Serialize)]
    struct Sample {
        /// Whether it is so.
        flag: bool,
        /// NVML's size, in a line.
        size: Bytes,
        /// How long.
        time: Span,
        /// How much.
        share: Percent,
        /// How bad.
        severity: Severity,
    }

    fn sample(size: u64, seconds: f64, share: f64) -> Sample {
        Sample {
            flag: true,
            size: Bytes(size),
            time: Span::from_seconds(seconds),
            share: Percent(share),
            severity: Severity::Info,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for settings in [
            sample(GIB, 600.0, 20.0),
            sample(1536 * MIB, 86_400.0, 12.5),
            sample(1_000_001, 5_461.5, 99.9),
            sample(0, 1.0, 1e300),
            sample(1, 1.5, 0.1),
        ] {
            let text = toml::to_string(&settings).unwrap();
            let table: Table = text.parse().unwrap();
            let table = table.iter().map(|(key, value)| (&**key, value));
            assert_eq!(read(table), Ok(settings), "{text}");
        }
        let written = |settings: &Sample| -> Vec<String> {
            let values = values(settings);
            values.iter().map(|(_, value)| value.to_string()).collect()
        };
        assert_eq!(
            written(&sample(1536 * MIB, 5_461.5, 12.5))[1..4],
            ["\"1536MiB\"", "\"1h31m1s500ms\"", "12.5"]
        );
        assert_eq!(written(&sample(0, 600.0, 20.0))[1..4], ["\"0B\"", "\"10m\"", "20"]);
    }

    #[test]
    fn a_table_lists_its_keys_and_what_they_mean() {
        assert_eq!(keys::<Sample>(), ["flag", "size", "time", "share", "severity"]);
        let meanings = meanings::<Sample>();
        let expected =
            ["whether it is so", "NVML's size, in a line", "how long", "how much", "how bad"];
        assert_eq!(meanings, expected);
        assert!(keys::<String>().is_empty());
    }

    #[test]
    fn the_error_of_what_is_out_of_bounds_names_what_is_allowed() {
        let severities = "\"info\", \"warning\" or \"critical\"";
        let base = sample(GIB, 600.0, 20.0);
        for (key, written, allowed) in [
            ("time", Value::Integer(10), DURATION),
            ("time", "10 apples".into(), DURATION),
            ("time", "0s".into(), DURATION),
            ("time", "25h".into(), DURATION),
            ("share", Value::Integer(-1), PERCENT),
            ("share", Value::Float(0.0), PERCENT),
            ("share", Value::Float(f64::NAN), PERCENT),
            ("share", "20%".into(), PERCENT),
            ("size", Value::Integer(1024), SIZE),
            ("size", "8GB".into(), SIZE),
            ("size", "8".into(), SIZE),
            ("severity", "high".into(), severities),
            ("severity", Value::Integer(3), severities),
            ("flag", "true".into(), "true or false"),
            ("flag", Value::Array(vec![]), "true or false"),
            ("flag", Value::Datetime("1979-05-27".parse().unwrap()), "true or false"),
        ] {
            let wrong = changed(&base, [(key, &written)].into_iter()).unwrap_err();
            assert_eq!(wrong.key, key);
            let shown = shown(&written);
            assert_eq!(wrong.message, format!("{shown} is not allowed; write {allowed}"));
        }
        let change = Value::from("1h");
        let expected = sample(GIB, 3600.0, 20.0);
        let with = |key| changed(&base, [("time", &change), (key, &change)].into_iter());
        assert_eq!(with("time"), Ok(expected));
        assert!(with("nothing").is_err());
    }
}
