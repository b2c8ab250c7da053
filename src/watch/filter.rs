//! The filter: what is typed after `/`, as conditions on a row.
//!
//! Words, and terms as `user:ann gpu:0 idle>10m mem>4GiB`, with blanks between them; all of them have
//! to fit. A word fits where the row says it anywhere, whatever the case. `:` looks for a part of a
//! text (`=` for all of it) and commas part alternatives; `>`, `>=`, `<`, `<=` and `=` compare numbers,
//! `=` in whole units. `!` or `-` before a term turns it around. Quotes keep blanks, commas and signs
//! together, with `\` before a quote.
//!
//! What is not known fits no term, turned around or not: it is no evidence either way. A resolved
//! process that is in no container, though, is known to be in none.
//!
//! Pure. What is typed comes from `prompt.rs`; which rows are left is in `listing.rs`.

use std::fmt;

use super::app::Me;
use super::picture::Subject;
use crate::model::finding::Kind;
use crate::units::{Amount, Bytes, ParseError, Span};

mod look;
mod terms;

use look::Needle;
use terms::{ANY, Field, KINDS, STATES, TRAITS};
pub use terms::{TERMS, TermSpec};

/// Conditions on a row; shown as text that means the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Filter {
    terms: Vec<Term>,
}

/// What was typed is no filter, and what would be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoFilter {
    /// There is no such term.
    #[error(
        "no term is called {name:?}; put \"quotes\" around plain text, or use {}",
        terms::names()
    )]
    Unknown {
        /// As it was typed.
        name: String,
    },
    /// It does not say what to look for yet.
    #[error("{term} needs a value; write {example}")]
    Unfinished {
        /// As it was typed.
        term: String,
        /// A whole one.
        example: &'static str,
    },
    /// Its value is of another kind.
    #[error("{name}: {error}")]
    Quantity {
        /// The term.
        name: &'static str,
        /// What is wrong with the value.
        error: ParseError,
    },
    /// Its value is not a number.
    #[error("{name}: {value:?} is not a number; write {example}")]
    Number {
        /// The term.
        name: &'static str,
        /// As it was typed.
        value: String,
        /// A whole one.
        example: &'static str,
    },
    /// Its value is none of those that there are.
    #[error("no {name} begins with {value:?}; there are {there_are}")]
    NoneSuch {
        /// The term.
        name: &'static str,
        /// As it was typed.
        value: String,
        /// Those that there are.
        there_are: String,
    },
    /// Texts have no order.
    #[error("{name} cannot be compared; write {example}")]
    NoOrder {
        /// The term.
        name: &'static str,
        /// A whole one.
        example: &'static str,
    },
}

/// How a number is compared with the one that was typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
}

impl Order {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Less => value < limit,
            Self::AtMost => value <= limit,
            Self::Equal => value.floor() == limit.floor(),
            Self::AtLeast => value >= limit,
            Self::More => value > limit,
        }
    }
}

/// A number as it was typed, in the field's unit: bytes, percent, seconds.
#[derive(Clone, PartialEq, Debug)]
struct Quantity {
    number: f64,
    /// Whether it is a share of the GPU's memory.
    is_share: bool,
    typed: String,
}

#[derive(Clone, PartialEq, Debug)]
struct Term {
    is_turned: bool,
    test: Test,
}

#[derive(Clone, PartialEq, Debug)]
enum Test {
    Word(Needle),
    Text {
        spec: usize,
        whole: bool,
        any: Vec<Needle>,
    },
    Number {
        spec: usize,
        sign: Sign,
        any: Vec<Quantity>,
    },
}

/// The sign between name and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    Colon,
    Compare(Order),
}

impl Sign {
    fn order(self) -> Order {
        match self {
            Self::Colon => Order::Equal,
            Self::Compare(order) => order,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Colon => ":",
            Self::Compare(Order::Less) => "<",
            Self::Compare(Order::AtMost) => "<=",
            Self::Compare(Order::Equal) => "=",
            Self::Compare(Order::AtLeast) => ">=",
            Self::Compare(Order::More) => ">",
        }
    }
}

impl Filter {
    /// Understands what was typed; `None` where it hides nothing.
    ///
    /// # Errors
    ///
    /// The first term that makes no sense, with what would.
    pub fn parse(text: &str) -> Result<Option<Self>, NoFilter> {
        let mut terms = Vec::new();
        for (_, token) in tokens(text) {
            terms.push(Term::parse(&token)?);
        }
        Ok((!terms.is_empty()).then_some(Self { terms }))
    }

    /// Whether a row fits; `me` is who looks.
    pub fn fits(&self, subject: &Subject<'_>, me: &Me) -> bool {
        self.terms.iter().all(|term| {
            // What is not known is neither.
            term.test.holds(subject, me) == Some(!term.is_turned)
        })
    }
}

/// Whether the last word that was typed may be the beginning of a term.
pub fn is_begun(text: &str) -> bool {
    let tokens = tokens(text);
    let Some((_, last)) = tokens
        .last()
        .filter(|_| !text.ends_with(char::is_whitespace))
    else {
        return false;
    };
    let typed: String = last.iter().map(|&(c, _)| c.to_ascii_lowercase()).collect();
    let begun = typed.trim_start_matches(['!', '-']);
    last.iter().all(|&(_, is_quoted)| !is_quoted)
        && TERMS
            .iter()
            .flat_map(|term| term.names)
            .any(|name| name.starts_with(begun))
}

/// What was typed before the last word or term.
pub fn without_last(text: &str) -> &str {
    let tokens = tokens(text);
    tokens.last().map_or("", |&(start, _)| &text[..start])
}

/// A character, and whether it stood in quotes.
type Typed = (char, bool);

/// What blanks part, with the byte where each begins. A quote that is not closed ends with the text.
fn tokens(text: &str) -> Vec<(usize, Vec<Typed>)> {
    let mut tokens = Vec::new();
    let mut token: Vec<Typed> = Vec::new();
    let mut start = None;
    let mut quoted = false;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c.is_whitespace() && !quoted {
            let begun = start.take();
            tokens.extend(begun.map(|start| (start, std::mem::take(&mut token))));
            continue;
        }
        start.get_or_insert(at);
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => token.extend(chars.next().map(|(_, c)| (c, true))),
            c => token.push((c, quoted)),
        }
    }
    tokens.extend(start.map(|start| (start, token)));
    // An empty pair of quotes is no word.
    tokens.retain(|(_, token)| !token.is_empty());
    tokens
}

fn text_of(typed: &[Typed]) -> String {
    typed.iter().map(|&(c, _)| c).collect()
}

impl Term {
    fn parse(token: &[Typed]) -> Result<Self, NoFilter> {
        let (is_turned, rest) = match token {
            [('!' | '-', false), rest @ ..] => (true, rest),
            all => (false, all),
        };
        if rest.is_empty() {
            return Err(NoFilter::Unfinished {
                term: text_of(token),
                example: "!user:ann",
            });
        }
        Test::parse(rest).map(|test| Self { is_turned, test })
    }
}

impl Test {
    fn parse(token: &[Typed]) -> Result<Self, NoFilter> {
        let is_sign = |(c, quoted): &Typed| matches!(c, ':' | '<' | '=' | '>') && !quoted;
        let word = || Ok(Self::Word(Needle::new(text_of(token))));
        let Some(at) = token.iter().position(is_sign) else {
            return word();
        };
        let name = text_of(&token[..at]).to_lowercase();
        let (sign, length) = match (token[at].0, token.get(at + 1)) {
            (':', _) => (Sign::Colon, 1),
            ('<', Some(('=', false))) => (Sign::Compare(Order::AtMost), 2),
            ('>', Some(('=', false))) => (Sign::Compare(Order::AtLeast), 2),
            ('<', _) => (Sign::Compare(Order::Less), 1),
            ('>', _) => (Sign::Compare(Order::More), 1),
            _ => (Sign::Compare(Order::Equal), 1),
        };
        let known = TERMS
            .iter()
            .position(|term| term.names.contains(&name.as_str()));
        let Some(spec) = known else {
            // `--lr=3` and `10:04` are text; `usr:ann` is a slip.
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
            return if is_name && sign != Sign::Compare(Order::Equal) {
                Err(NoFilter::Unknown { name })
            } else {
                word()
            };
        };
        let alternatives: Vec<String> = token[at + length..]
            .split(|&typed| typed == (',', false))
            .map(text_of)
            .filter(|text| !text.is_empty())
            .collect();
        let example = TERMS[spec].example;
        if alternatives.is_empty() {
            return Err(NoFilter::Unfinished {
                term: text_of(token),
                example,
            });
        }
        let field = TERMS[spec].field;
        let is_number = match field {
            Field::Pid
            | Field::Memory
            | Field::Sm
            | Field::Cpu
            | Field::Rss
            | Field::Idle
            | Field::Runtime => true,
            // A GPU has a name as well.
            Field::Gpu => alternatives.iter().all(|text| text.parse::<u32>().is_ok()),
            _ => false,
        };
        if is_number {
            let any = alternatives
                .into_iter()
                .map(|typed| Quantity::parse(spec, typed))
                .collect::<Result<Vec<_>, _>>()?;
            return Ok(Self::Number { spec, sign, any });
        }
        let whole = match sign {
            Sign::Colon => false,
            Sign::Compare(Order::Equal) => true,
            Sign::Compare(_) => {
                return Err(NoFilter::NoOrder {
                    name: TERMS[spec].names[0],
                    example,
                });
            }
        };
        for value in &alternatives {
            known_value(spec, value)?;
        }
        let any = alternatives.into_iter().map(Needle::new).collect();
        Ok(Self::Text { spec, whole, any })
    }
}

/// Refuses what is none of the values that a field can have, where those are known.
fn known_value(spec: usize, value: &str) -> Result<(), NoFilter> {
    let lower = value.to_lowercase();
    let values: Vec<&str> = match TERMS[spec].field {
        Field::State if state_letter(value).is_some() => return Ok(()),
        Field::State => STATES.map(|(name, _)| name).to_vec(),
        Field::Kind => KINDS.to_vec(),
        Field::Is => TRAITS.to_vec(),
        Field::Finding => Kind::ALL
            .iter()
            .map(|kind| kind.name())
            .chain([ANY])
            .collect(),
        _ => return Ok(()),
    };
    if values.iter().any(|name| name.starts_with(&lower)) {
        return Ok(());
    }
    Err(NoFilter::NoneSuch {
        name: TERMS[spec].names[0],
        value: value.to_owned(),
        there_are: values.join(" "),
    })
}

/// The state that a single letter is; `T` is stopped and `t` traced, as for ps.
fn state_letter(value: &str) -> Option<char> {
    let mut chars = value.chars();
    let letter = chars.next()?;
    let is_state = STATES.iter().any(|&(_, state)| state == letter);
    (chars.next().is_none() && is_state).then_some(letter)
}

impl Quantity {
    fn parse(spec: usize, typed: String) -> Result<Self, NoFilter> {
        let TermSpec {
            names,
            example,
            field,
            ..
        } = TERMS[spec];
        let name = names[0];
        let wrong = |error| NoFilter::Quantity { name, error };
        let no_number = || NoFilter::Number {
            name,
            value: typed.clone(),
            example,
        };
        let mut is_share = false;
        let number = match field {
            Field::Memory => match typed.parse().map_err(wrong)? {
                Amount::Size(bytes) => bytes.0 as f64,
                Amount::Share(percent) => {
                    is_share = true;
                    percent
                }
            },
            Field::Rss => typed.parse::<Bytes>().map_err(wrong)?.0 as f64,
            Field::Idle | Field::Runtime => typed.parse::<Span>().map_err(wrong)?.seconds(),
            Field::Sm | Field::Cpu => {
                let digits = typed.strip_suffix('%').unwrap_or(&typed).trim_end();
                let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
                let number = digits.parse::<f64>().ok().filter(|_| plain);
                number.ok_or_else(no_number)?
            }
            _ => f64::from(typed.parse::<u32>().map_err(|_| no_number())?),
        };
        Ok(Self {
            number,
            is_share,
            typed,
        })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            if term.is_turned {
                f.write_str("!")?;
            }
            match &term.test {
                Test::Word(needle) => quote(&needle.typed, needs_quotes(&needle.typed), f)?,
                Test::Text { spec, whole, any } => {
                    f.write_str(TERMS[*spec].names[0])?;
                    f.write_str(if *whole { "=" } else { ":" })?;
                    list(any.iter().map(|needle| &*needle.typed), f)?;
                }
                Test::Number { spec, sign, any } => {
                    f.write_str(TERMS[*spec].names[0])?;
                    f.write_str(sign.text())?;
                    list(any.iter().map(|quantity| &*quantity.typed), f)?;
                }
            }
        }
        Ok(())
    }
}

fn list<'a>(values: impl Iterator<Item = &'a str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, value) in values.enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        quote(
            value,
            value.contains([' ', '"', ',']) || has_blank(value),
            f,
        )?;
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

#[cfg(test)]
mod tests;
