//! The query language for selecting rows. A query consists of words and terms.
//!
//! Blanks separate terms such as `user:ann gpu:0 idle>10m mem>4GiB`, and all terms must match. A word matches if the
//! row contains it anywhere, regardless of case. `:` matches a part of a text, and `=` matches the whole text. Commas
//! separate alternatives. `>`, `>=`, `<`, `<=` and `=` compare numbers; `=` compares in whole units. `!` or `-` before
//! a term negates it. In texts, `*` and `?` are wildcards. Pattern characters of other languages are rejected. Quoted
//! characters are taken literally, and `\"` is a quote.
//!
//! If a value is unknown, neither a term nor its negation matches.
//!
//! [`field`](super::field) defines the fields, and [`row`](super::row) defines the rows.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::field::{Field, Needle, any_has, is_called, selectable};
use super::row::{CurrentUser, ProcessRow};
use super::snapshot::{Gpu, Snapshot};
use super::{Finding, Identity};
use crate::units::ParseError;

mod parse;

use parse::tokens;
pub use parse::{is_begun, without_last};

/// Minimum similarity, from 0 to 1, of a name that an error message suggests.
const ALIKE: f64 = 0.85;

#[derive(Clone, PartialEq, Debug)]
pub struct Selector {
    typed: String,
    terms: Vec<Term>,
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SelectorError {
    #[error(
        "unknown field {name:?}{}; put \"quotes\" around plain text, or use {}",
        suggestion(name),
        names()
    )]
    Unknown { name: String },
    #[error("{term} needs a value; write {example}")]
    Unfinished { term: String, example: &'static str },
    #[error("{name}: {error}")]
    Quantity { name: &'static str, error: ParseError },
    #[error("{name}: {value:?} is not a number; write {example}")]
    Number { name: &'static str, value: String, example: &'static str },
    #[error("{name}: no value begins with {value:?}; use one of: {allowed}")]
    NoneSuch { name: &'static str, value: String, allowed: String },
    /// Pattern characters of other languages, which would match nothing here.
    #[error(
        "{name}: {sign:?} is not a wildcard; use * for any text and ? for one character, or put \"quotes\" around plain text"
    )]
    NoWildcard { name: &'static str, sign: char },
    #[error("{name} cannot be compared; write {example}")]
    NoOrder { name: &'static str, example: &'static str },
}

fn names() -> String {
    let names: Vec<&str> = selectable().map(|spec| spec.names[0]).collect();
    names.join(" ")
}

/// Returns `; did you mean user?` if a field has a similar name. Otherwise, returns an empty string.
fn suggestion(name: &str) -> String {
    let near = near(name, selectable().flat_map(|spec| spec.names).copied());
    near.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Returns the name in `names` that is most similar to an unknown name, or `None` if none is similar.
pub fn near<'k>(name: &str, names: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // A longer name resembles no known name, so it is not compared.
    let alike = names.filter(|_| name.len() <= 64);
    let alike = alike.map(|other| (strsim::jaro_winkler(name, other), other));
    let nearest = alike.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (nearest.0 >= ALIKE).then_some(nearest.1)
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Selected {
    /// Processes with a row on a GPU, or with GPU files open.
    pub processes: HashSet<Identity>,
    /// Pids and NVML GPU indices of the selected rows. Without a pid, the whole GPU is selected.
    pub on_gpus: HashSet<(Option<u32>, u32)>,
    pub findings: HashSet<Arc<str>>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct NamedGpus<'s, 'g> {
    pub typed: &'s str,
    /// Whether the text is a UUID or a prefix of one.
    pub is_uuid: bool,
    pub gpus: Vec<&'g Gpu>,
}

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

#[derive(Clone, PartialEq, Debug)]
struct Quantity {
    number: f64,
    is_share: bool,
}

#[derive(Clone, PartialEq, Debug)]
struct Term {
    is_negated: bool,
    test: Test,
}

#[derive(Clone, PartialEq, Debug)]
enum Test {
    Word(Needle),
    Text { field: Field, whole: bool, any: Vec<Needle> },
    Number { field: Field, order: Order, any: Vec<Quantity> },
}

impl Selector {
    /// Parses a selector. Returns `None` if the text is empty, so that it selects everything.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid term and shows a valid form.
    pub fn parse(text: &str) -> Result<Option<Self>, SelectorError> {
        let mut terms = Vec::new();
        for (_, token) in tokens(text) {
            terms.push(Term::parse(&token)?);
        }
        Ok((!terms.is_empty()).then(|| Self { typed: text.trim().to_owned(), terms }))
    }

    /// Returns a selector of the rows whose field contains one of these texts or, if `whole` is set, equals one.
    /// Returns `None` if there are no texts.
    pub fn of_field(field: Field, whole: bool, any: &[String]) -> Option<Self> {
        let is_plain = |c: char| c.is_alphanumeric() || "-_./".contains(c);
        let typed = any.iter().map(|value| match value.chars().all(is_plain) {
            true => value.clone(),
            false => format!("{value:?}"),
        });
        let typed: Vec<String> = typed.collect();
        let sign = if whole { "=" } else { ":" };
        let typed = format!("{}{sign}{}", field.spec().names[0], typed.join(","));
        let needles: Vec<Needle> = any.iter().map(Needle::new).collect();
        let term = Term { is_negated: false, test: Test::Text { field, whole, any: needles } };
        (!any.is_empty()).then(|| Self { typed, terms: vec![term] })
    }

    pub fn all(selectors: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let selectors = selectors.into_iter().flatten();
        selectors.reduce(|one, other| Self {
            typed: one.typed + " " + &other.typed,
            terms: [one.terms, other.terms].concat(),
        })
    }

    /// Returns whether a row certainly matches. `is:mine` matches the rows of `me`.
    pub fn fits(&self, row: &ProcessRow<'_>, me: &CurrentUser) -> bool {
        self.answer(row, me) == Some(true)
    }

    /// Returns whether a row matches, or `None` if the answer depends on unknown values.
    pub fn answer(&self, row: &ProcessRow<'_>, me: &CurrentUser) -> Option<bool> {
        let mut answer = Some(true);
        for term in &self.terms {
            match term.test.holds(row, me) {
                Some(holds) if holds == term.is_negated => return Some(false),
                Some(_) => {}
                None => answer = None,
            }
        }
        answer
    }

    /// Returns whether a process with these rows is selected. A row that `counts` accepts must match, and no row may be
    /// excluded by a negated term. For example, `!gpu:0` excludes a process that is on GPUs 0 and 1.
    fn selects(
        &self,
        rows: &[ProcessRow<'_>],
        counts: impl Fn(&ProcessRow<'_>) -> bool,
        me: &CurrentUser,
    ) -> bool {
        let is_left_out = |row: &ProcessRow<'_>| {
            let mut negated = self.terms.iter().filter(|term| term.is_negated);
            negated.any(|term| term.test.holds(row, me) == Some(true))
        };
        let mut counting = rows.iter().filter(|row| counts(row));
        counting.any(|row| self.fits(row, me)) && !rows.iter().any(is_left_out)
    }

    /// Selects the processes with these rows, and the findings in `found`.
    pub fn select<'f>(
        &self,
        snapshot: &Snapshot,
        rows: &[ProcessRow<'_>],
        found: impl Iterator<Item = &'f Finding>,
        me: &CurrentUser,
    ) -> Selected {
        let mut by_process: HashMap<Identity, Vec<ProcessRow<'_>>> = HashMap::new();
        for row in rows {
            let rows = row.identity.map(|identity| by_process.entry(identity).or_default());
            rows.into_iter().for_each(|rows| rows.push(*row));
        }
        let mut selected = Selected::default();
        for (identity, rows) in &by_process {
            if self.selects(rows, |_| true, me) {
                selected.processes.insert(*identity);
            }
            let indices = rows.iter().filter_map(|row| Some(row.gpu?.index));
            for index in indices {
                let is_on = |row: &ProcessRow<'_>| row.is_on(index) == Some(true);
                if self.selects(rows, is_on, me) {
                    selected.on_gpus.insert((Some(identity.pid), index));
                }
            }
        }
        for gpu in &snapshot.gpus {
            if self.fits(&ProcessRow::of_gpu(snapshot, gpu, None), me) {
                selected.on_gpus.insert((None, gpu.index));
            }
        }
        for finding in found {
            let is_about = |index: u32| finding.gpus.iter().any(|gpu| gpu.index == index);
            let mut gpus = snapshot.gpus.iter().filter(|gpu| is_about(gpu.index));
            let is_selected = match &finding.process {
                None => {
                    gpus.any(|gpu| self.fits(&ProcessRow::of_gpu(snapshot, gpu, Some(finding)), me))
                }
                Some(process) => {
                    let rows = by_process.get(&process.identity).map_or(&[][..], |rows| rows);
                    // An unlisted process has no row on the GPUs of its finding, so each of its rows counts.
                    let counts = |row: &ProcessRow<'_>| {
                        let index = row.gpu.map(|gpu| gpu.index);
                        finding.gpus.is_empty() || !row.is_listed() || index.is_some_and(is_about)
                    };
                    (finding.gpus.is_empty() || gpus.any(|gpu| self.allows_gpu(gpu)))
                        && self.selects(rows, counts, me)
                }
            };
            if is_selected {
                selected.findings.insert(Arc::clone(&finding.id));
            }
        }
        selected
    }

    /// Returns whether rows on this GPU can match, according to the terms about GPUs.
    pub fn allows_gpu(&self, gpu: &Gpu) -> bool {
        let mut of_gpus = self.terms.iter().filter(|term| term.test.is_of_gpus());
        of_gpus.all(|term| term.test.is_called(gpu, term.is_negated) != term.is_negated)
    }

    /// Returns the GPU names in the selector as typed, each with the GPUs that it matches.
    pub fn named_gpus<'g>(&self, gpus: &'g [Gpu]) -> Vec<NamedGpus<'_, 'g>> {
        let mut named = Vec::new();
        for term in self.terms.iter().filter(|term| !term.is_negated) {
            let Test::Text { field: Field::Gpu, whole, any } = &term.test else {
                continue;
            };
            named.extend(any.iter().map(|needle| NamedGpus {
                typed: needle.typed(),
                is_uuid: needle.is_uuid(),
                gpus: gpus.iter().filter(|gpu| is_called(gpu, needle, *whole, false)).collect(),
            }));
        }
        named
    }

    pub fn retain_gpus(&self, snapshot: &mut Snapshot) {
        snapshot.gpus.retain(|gpu| self.allows_gpu(gpu));
        let left = &snapshot.gpus;
        snapshot.errors.retain(|error| {
            error.gpu.is_none_or(|index| left.iter().any(|gpu| gpu.index == index))
        });
    }

    pub fn asks_for_gpus(&self) -> bool {
        self.terms.iter().any(|term| term.test.is_of_gpus())
    }

    /// Returns whether all terms are about GPUs, so that the selector matches everything on those GPUs.
    pub fn is_of_gpus(&self) -> bool {
        self.terms.iter().all(|term| term.test.is_of_gpus())
    }

    /// Returns whether the selector needs idle times or findings, and therefore several snapshots.
    pub fn needs_history(&self) -> bool {
        self.fields().any(|field| matches!(field, None | Some(Field::Idle | Field::Finding)))
    }

    pub fn fields(&self) -> impl Iterator<Item = Option<Field>> {
        self.terms.iter().map(|term| match &term.test {
            Test::Word(_) => None,
            Test::Text { field, .. } | Test::Number { field, .. } => Some(*field),
        })
    }

    /// Returns the fields that are compared with `:`, so that longer texts match as well.
    pub fn fields_in_part(&self) -> impl Iterator<Item = Field> {
        self.terms.iter().filter_map(|term| match &term.test {
            Test::Text { field, whole: false, .. } => Some(*field),
            _ => None,
        })
    }
}

impl Test {
    fn holds(&self, row: &ProcessRow<'_>, me: &CurrentUser) -> Option<bool> {
        match self {
            Self::Word(needle) => Some(any_has(row, needle)),
            Self::Text { field, whole, any } => {
                one_of(any.iter().map(|needle| field.has(row, me, needle, *whole)))
            }
            Self::Number { field, order, any } => one_of(any.iter().map(|quantity| {
                if *order == Order::Equal && *field == Field::Pid {
                    return field.is_number(row, quantity.number as u32);
                }
                let field = match quantity.is_share {
                    true => Field::MemoryPercent,
                    false => *field,
                };
                let value = field.number(row)?;
                Some(order.holds(value, quantity.number))
            })),
        }
    }

    fn is_of_gpus(&self) -> bool {
        match self {
            Self::Word(_) => false,
            Self::Text { field, .. } | Self::Number { field, .. } => *field == Field::Gpu,
        }
    }

    /// Returns whether the term names this GPU or, unless `all` is set, one of its MIG devices.
    fn is_called(&self, gpu: &Gpu, all: bool) -> bool {
        match self {
            Self::Word(_) => false,
            Self::Text { whole, any, .. } => {
                any.iter().any(|needle| is_called(gpu, needle, *whole, all))
            }
            Self::Number { order, any, .. } => {
                let holds = |quantity: &Quantity| order.holds(gpu.index.into(), quantity.number);
                any.iter().any(holds)
            }
        }
    }
}

/// Returns whether any answer is true. If none is true but one is unknown, returns `None`.
fn one_of(answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all_known = true;
    for answer in answers {
        match answer {
            Some(true) => return Some(true),
            Some(false) => {}
            None => all_known = false,
        }
    }
    all_known.then_some(false)
}

#[cfg(test)]
mod tests;
