//! Parses the text of a selector into terms.

use super::{Order, Quantity, SelectorError, Term, Test};
use crate::model::field::{FieldSpec, Needle, Notation, selectable};
use crate::units::{Amount, Bytes, Span};

/// Special characters of other pattern languages, which have no special meaning here.
const UNSUPPORTED: [char; 7] = ['[', ']', '{', '}', '^', '$', '|'];

/// Returns whether the last word can be completed to a term.
pub fn is_begun(text: &str) -> bool {
    let tokens = tokens(text);
    let Some((_, last)) = tokens.last().filter(|_| !text.ends_with(char::is_whitespace)) else {
        return false;
    };
    let typed: String = last.iter().map(|&(c, _)| c.to_ascii_lowercase()).collect();
    let begun = typed.trim_start_matches(['!', '-']);
    last.iter().all(|&(_, is_quoted)| !is_quoted)
        && selectable().flat_map(|spec| spec.names).any(|name| name.starts_with(begun))
}

pub fn without_last(text: &str) -> &str {
    let tokens = tokens(text);
    tokens.last().map_or("", |&(start, _)| &text[..start])
}

pub(super) type Typed = (char, bool);

/// Splits text at blanks into tokens, each with its byte offset. A quote that is still open ends with the text.
pub(super) fn tokens(text: &str) -> Vec<(usize, Vec<Typed>)> {
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
    tokens.retain(|(_, token)| !token.is_empty());
    tokens
}

fn text_of(typed: &[Typed]) -> String {
    typed.iter().map(|&(c, _)| c).collect()
}

impl Term {
    pub(super) fn parse(token: &[Typed]) -> Result<Self, SelectorError> {
        let (is_negated, rest) = match token {
            [('!' | '-', false), rest @ ..] => (true, rest),
            all => (false, all),
        };
        if rest.is_empty() {
            return Err(SelectorError::Unfinished { term: text_of(token), example: "!user:ann" });
        }
        Test::parse(rest).map(|test| Self { is_negated, test })
    }
}

impl Test {
    fn parse(token: &[Typed]) -> Result<Self, SelectorError> {
        let is_sign = |(c, quoted): &Typed| matches!(c, ':' | '<' | '=' | '>') && !quoted;
        let word = || Ok(Self::Word(Needle::of_typed(token)));
        let Some(at) = token.iter().position(is_sign) else {
            return word();
        };
        let name = text_of(&token[..at]).to_lowercase();
        let (sign, length) = match (token[at].0, token.get(at + 1)) {
            (':', _) => (None, 1),
            ('<', Some(('=', false))) => (Some(Order::AtMost), 2),
            ('>', Some(('=', false))) => (Some(Order::AtLeast), 2),
            ('<', _) => (Some(Order::Less), 1),
            ('>', _) => (Some(Order::More), 1),
            _ => (Some(Order::Equal), 1),
        };
        let spec = selectable().find(|spec| spec.names.contains(&name.as_str()));
        let Some(spec) = spec else {
            // `--lr=3` and `10:04` are plain words, but `usr:ann` is a typing error.
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
            return if is_name && sign != Some(Order::Equal) {
                Err(SelectorError::Unknown { name })
            } else {
                word()
            };
        };
        let alternatives: Vec<&[Typed]> = token[at + length..]
            .split(|&typed| typed == (',', false))
            .filter(|typed| !typed.is_empty())
            .collect();
        if alternatives.is_empty() {
            return Err(SelectorError::Unfinished { term: text_of(token), example: spec.example });
        }
        Self::from_spec(spec, sign, &alternatives)
    }

    /// `sign` is the comparison, or `None` for `:`.
    fn from_spec(
        spec: &FieldSpec,
        sign: Option<Order>,
        typed: &[&[Typed]],
    ) -> Result<Self, SelectorError> {
        let field = spec.field;
        let alternatives: Vec<String> = typed.iter().map(|typed| text_of(typed)).collect();
        let is_number = match (spec.notation, sign) {
            (Notation::Text | Notation::OneOf(_), _) => false,
            // With `:` and `=`, the text can also name a GPU. The other signs compare only indices.
            (Notation::Gpu, None | Some(Order::Equal)) => false,
            (Notation::Gpu, _) => alternatives.iter().all(|text| text.parse::<u32>().is_ok()),
            _ => true,
        };
        if is_number {
            let any = alternatives
                .into_iter()
                .map(|typed| Quantity::parse(spec, &typed))
                .collect::<Result<Vec<_>, _>>()?;
            return Ok(Self::Number { field, order: sign.unwrap_or(Order::Equal), any });
        }
        let whole = match sign {
            None => false,
            Some(Order::Equal) => true,
            Some(_) => {
                return Err(SelectorError::NoOrder { name: spec.names[0], example: spec.example });
            }
        };
        let any: Vec<Needle> = typed.iter().map(|typed| Needle::of_typed(typed)).collect();
        for needle in &any {
            spec.allows(needle).map_err(|allowed| SelectorError::NoneSuch {
                name: spec.names[0],
                value: needle.typed().to_owned(),
                allowed: allowed.join(", "),
            })?;
        }
        let is_unsupported = |&&(c, quoted): &&Typed| !quoted && UNSUPPORTED.contains(&c);
        if let Some(&(sign, _)) = typed.iter().copied().flatten().find(is_unsupported) {
            return Err(SelectorError::NoWildcard { name: spec.names[0], sign });
        }
        Ok(Self::Text { field, whole, any })
    }
}

impl Quantity {
    fn parse(spec: &FieldSpec, typed: &str) -> Result<Self, SelectorError> {
        let name = spec.names[0];
        let wrong = |error| SelectorError::Quantity { name, error };
        let no_number =
            || SelectorError::Number { name, value: typed.to_owned(), example: spec.example };
        let mut is_share = false;
        let number = match spec.notation {
            Notation::BytesOrShare => match typed.parse().map_err(wrong)? {
                Amount::Size(bytes) => bytes.0 as f64,
                Amount::Share(percent) => {
                    is_share = true;
                    percent
                }
            },
            Notation::Bytes => typed.parse::<Bytes>().map_err(wrong)?.0 as f64,
            Notation::Seconds => typed.parse::<Span>().map_err(wrong)?.seconds(),
            Notation::Percent => {
                let digits = typed.strip_suffix('%').unwrap_or(typed).trim_end();
                let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
                let number = digits.parse::<f64>().ok().filter(|_| plain);
                number.ok_or_else(no_number)?
            }
            _ => f64::from(typed.parse::<u32>().map_err(|_| no_number())?),
        };
        Ok(Self { number, is_share })
    }
}
