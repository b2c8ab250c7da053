//! A selector as text that means the same.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Selector, Test};
use crate::model::field::Needle;

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            if term.is_negated {
                f.write_str("!")?;
            }
            match &term.test {
                Test::Word(needle) => quote(needle.typed(), needs_quotes(needle.typed()), f)?,
                Test::Text { field, whole, any } => {
                    f.write_str(field.spec().names[0])?;
                    f.write_str(if *whole { "=" } else { ":" })?;
                    list(any.iter().map(Needle::typed), f)?;
                }
                Test::Number { field, sign, any } => {
                    f.write_str(field.spec().names[0])?;
                    f.write_str(sign.text())?;
                    list(any.iter().map(|quantity| &*quantity.typed), f)?;
                }
            }
        }
        Ok(())
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

fn list<'a>(values: impl Iterator<Item = &'a str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, value) in values.enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        quote(value, value.contains([' ', '"', ',']) || has_blank(value), f)?;
    }
    Ok(())
}

fn has_blank(text: &str) -> bool {
    text.contains(char::is_whitespace)
}

fn needs_quotes(word: &str) -> bool {
    has_blank(word) || word.contains(['"', ':', '<', '=', '>']) || word.starts_with(['!', '-'])
}

fn quote(text: &str, quoted: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !quoted {
        return f.write_str(text);
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    write!(f, "\"{escaped}\"")
}
