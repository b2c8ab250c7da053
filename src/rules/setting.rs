//! A rule's settings as a table: what each is called, what it means, how it is written.
//!
//! A kind of rule keeps its settings in a plain struct; [`Setting`] names the fields, so that the
//! configuration, the catalogue and overrides need to know no kind.

use std::fmt;

use crate::history::cpu::LONGEST_WINDOW_SECONDS;
use crate::model::Severity;
use crate::units::{Bytes, Span};

/// A setting of the kind whose settings are `S`.
#[derive(Debug)]
pub struct Setting<S: 'static> {
    /// As it is written in the configuration.
    pub name: &'static str,
    /// What it means, in a line.
    pub meaning: &'static str,
    /// Where it is kept.
    pub field: SettingField<S>,
}

/// Where a setting is kept, by what it is.
#[derive(Debug)]
pub enum SettingField<S> {
    /// Yes or no.
    Flag(fn(&mut S) -> &mut bool),
    /// A size.
    Bytes(fn(&mut S) -> &mut Bytes),
    /// A length of time.
    Span(fn(&mut S) -> &mut Span),
    /// Percent, one core of CPU being 100.
    Percent(fn(&mut S) -> &mut f64),
    /// How bad a finding is.
    Severity(fn(&mut S) -> &mut Severity),
}

impl<S> Setting<S> {
    /// The one that every rule has first.
    pub const fn enabled(flag: fn(&mut S) -> &mut bool) -> Self {
        Self {
            name: "enabled",
            meaning: "whether the rule is run",
            field: SettingField::Flag(flag),
        }
    }

    /// How bad the rule's findings are.
    pub const fn severity(severity: fn(&mut S) -> &mut Severity) -> Self {
        Self {
            name: "severity",
            meaning: "how bad a finding is: info, warning or critical",
            field: SettingField::Severity(severity),
        }
    }
}

impl<S: Clone> Setting<S> {
    /// What kind of value it takes.
    pub fn form(&self) -> ValueKind {
        match self.field {
            SettingField::Flag(_) => ValueKind::Flag,
            SettingField::Bytes(_) => ValueKind::Bytes,
            SettingField::Span(_) => ValueKind::Span,
            SettingField::Percent(_) => ValueKind::Percent,
            SettingField::Severity(_) => ValueKind::Severity,
        }
    }

    /// Its value.
    pub fn get(&self, settings: &S) -> TomlValue {
        let mut settings = settings.clone();
        match self.field {
            SettingField::Flag(field) => TomlValue::Flag(*field(&mut settings)),
            SettingField::Bytes(field) => TomlValue::Bytes(*field(&mut settings)),
            SettingField::Span(field) => TomlValue::Span(*field(&mut settings)),
            SettingField::Percent(field) => TomlValue::Percent(*field(&mut settings)),
            SettingField::Severity(field) => TomlValue::Severity(*field(&mut settings)),
        }
    }

    /// Gives it a value; one of another form is not taken, and the answer is `false`.
    pub fn set(&self, settings: &mut S, value: TomlValue) -> bool {
        match (&self.field, value) {
            (SettingField::Flag(field), TomlValue::Flag(value)) => *field(settings) = value,
            (SettingField::Bytes(field), TomlValue::Bytes(value)) => *field(settings) = value,
            (SettingField::Span(field), TomlValue::Span(value)) => *field(settings) = value,
            (SettingField::Percent(field), TomlValue::Percent(value)) => *field(settings) = value,
            (SettingField::Severity(field), TomlValue::Severity(value)) => *field(settings) = value,
            _ => return false,
        }
        true
    }
}

/// What kind of value a setting takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// Yes or no.
    Flag,
    /// A size.
    Bytes,
    /// A length of time.
    Span,
    /// Percent.
    Percent,
    /// How bad a finding is.
    Severity,
}

/// A value of a setting; displayed as TOML that reads back as the same value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TomlValue {
    /// Yes or no.
    Flag(bool),
    /// A size.
    Bytes(Bytes),
    /// A length of time, in whole milliseconds.
    Span(Span),
    /// Percent.
    Percent(f64),
    /// How bad a finding is.
    Severity(Severity),
}

/// What a person wrote for a value, before it is known to be one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Written<'a> {
    /// `true` or `false`.
    Flag(bool),
    /// A number without quotes.
    Number(f64),
    /// Text in quotes.
    Text(&'a str),
    /// Anything else, by its name: an array, a table, a date.
    Other(&'static str),
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Other(name) => write!(f, "the {name}"),
        }
    }
}

impl ValueKind {
    /// How a value of this form is written.
    pub fn example(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Bytes => "a size such as \"1GiB\" or \"512MiB\"",
            Self::Span => "a duration such as \"30s\", \"10m\" or \"2h\", from 1s to 1d",
            Self::Percent => "a number of percent above 0 such as 20 (one core of CPU is 100)",
            Self::Severity => "\"info\", \"warning\" or \"critical\"",
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// What was written and how it is to be written, where it is of another form or out of bounds.
    pub fn read(self, written: Written<'_>) -> Result<TomlValue, String> {
        let value = match (self, written) {
            (Self::Flag, Written::Flag(flag)) => Some(TomlValue::Flag(flag)),
            (Self::Bytes, Written::Text(text)) => text.parse().ok().map(TomlValue::Bytes),
            (Self::Span, Written::Text(text)) => text
                .parse()
                .ok()
                .map(whole_milliseconds)
                .filter(|span: &Span| (1.0..=LONGEST_WINDOW_SECONDS).contains(&span.seconds()))
                .map(TomlValue::Span),
            (Self::Percent, Written::Number(number)) => Some(number)
                .filter(|number| *number > 0.0 && number.is_finite())
                .map(TomlValue::Percent),
            (Self::Severity, Written::Text(text)) => match text {
                "info" => Some(Severity::Info),
                "warning" => Some(Severity::Warning),
                "critical" => Some(Severity::Critical),
                _ => None,
            }
            .map(TomlValue::Severity),
            _ => None,
        };
        value.ok_or_else(|| format!("{written} is not allowed; write {}", self.example()))
    }
}

/// A span as it can be written again.
pub fn whole_milliseconds(span: Span) -> Span {
    Span::from_seconds((span.seconds() * 1000.0).round() / 1000.0)
}

impl fmt::Display for TomlValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Bytes(bytes) => write!(f, "\"{}\"", exact_bytes(*bytes)),
            Self::Span(span) => write!(f, "\"{}\"", exact_span(*span)),
            Self::Percent(percent) => write!(f, "{percent}"),
            Self::Severity(severity) => write!(f, "\"{severity}\""),
        }
    }
}

/// The size in the largest unit in which it is a whole number.
fn exact_bytes(Bytes(bytes): Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    units
        .iter()
        .find(|(_, bits)| bytes != 0 && bytes.trailing_zeros() >= *bits)
        .map_or_else(
            || format!("{bytes}B"),
            |(unit, bits)| format!("{}{unit}", bytes >> bits),
        )
}

/// The span in all the units that it takes.
fn exact_span(span: Span) -> String {
    let mut rest = span.0.as_millis();
    let mut text = String::new();
    for (unit, milliseconds) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ] {
        if rest >= milliseconds {
            text.push_str(&format!("{}{unit}", rest / milliseconds));
            rest %= milliseconds;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{GIB, MIB};

    #[test]
    fn what_is_displayed_reads_back() {
        for value in [
            TomlValue::Bytes(Bytes(GIB)),
            TomlValue::Bytes(Bytes(1536 * MIB)),
            TomlValue::Bytes(Bytes(1_000_001)),
            TomlValue::Bytes(Bytes(0)),
            TomlValue::Bytes(Bytes(1)),
            TomlValue::Span(Span::from_seconds(600.0)),
            TomlValue::Span(Span::from_seconds(86_400.0)),
            TomlValue::Span(Span::from_seconds(5_461.5)),
        ] {
            let text = value.to_string();
            let form = if matches!(value, TomlValue::Bytes(_)) {
                ValueKind::Bytes
            } else {
                ValueKind::Span
            };
            assert_eq!(
                form.read(Written::Text(text.trim_matches('"'))),
                Ok(value),
                "{text}"
            );
        }
        assert_eq!(
            TomlValue::Span(Span::from_seconds(5_461.5)).to_string(),
            "\"1h31m1s500ms\""
        );
        assert_eq!(
            TomlValue::Bytes(Bytes(1536 * MIB)).to_string(),
            "\"1536MiB\""
        );
        assert_eq!(TomlValue::Percent(12.5).to_string(), "12.5");
    }

    #[test]
    fn what_is_out_of_bounds_says_what_is_allowed() {
        for (form, written) in [
            (ValueKind::Span, Written::Number(10.0)),
            (ValueKind::Span, Written::Text("10 apples")),
            (ValueKind::Span, Written::Text("0s")),
            (ValueKind::Span, Written::Text("25h")),
            (ValueKind::Percent, Written::Number(-1.0)),
            (ValueKind::Percent, Written::Number(0.0)),
            (ValueKind::Percent, Written::Number(f64::NAN)),
            (ValueKind::Percent, Written::Text("20%")),
            (ValueKind::Bytes, Written::Number(1024.0)),
            (ValueKind::Bytes, Written::Text("8GB")),
            (ValueKind::Bytes, Written::Text("8")),
            (ValueKind::Severity, Written::Text("high")),
            (ValueKind::Flag, Written::Text("true")),
            (ValueKind::Flag, Written::Other("array")),
        ] {
            let error = form.read(written).unwrap_err();
            assert!(error.ends_with(form.example()), "{error}");
            assert!(error.contains(&written.to_string()), "{error}");
        }
    }
}
