//! The order of rows: by values, never by text made of them. Unknown comes last in both directions.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Field, Notation};
use crate::model::row::{ProcessRow, notebook};
use crate::model::snapshot::LastKnown;

/// A cell's sort key.
#[derive(Clone, Debug)]
pub enum SortValue<'a> {
    Number(f64),
    Text(&'a str),
    /// A composed text.
    Made(String),
    /// The words of a command.
    Words(&'a [Arc<str>]),
    /// Unknown, or none.
    Unknown,
}

impl<'a> SortValue<'a> {
    /// A row's key for a field. Findings sort by their `rank`, the first being the most.
    pub fn new(field: Field, row: &ProcessRow<'a>, rank: Option<usize>) -> Self {
        let process = row.process.ok();
        let text = |value: Option<&'a Arc<str>>| value.map_or(Self::Unknown, |it| Self::Text(it));
        match field {
            Field::User => text(row.user()),
            Field::Finding => rank.map_or(Self::Unknown, |at| Self::Number(-(at as f64))),
            Field::Command => match process {
                None => match row.ended {
                    Some(LastKnown { command: Some(words), .. }) => Self::Words(words),
                    ended => text(ended.and_then(|it| it.comm.as_ref())),
                },
                Some(process) => match (notebook(process), process.command.as_deref()) {
                    (Some(path), _) => Self::Text(path),
                    (None, Some(words)) if !words.is_empty() => Self::Words(words),
                    (None, _) => text(process.comm.as_ref()),
                },
            },
            _ => match (field.number(row), field.spec().notation) {
                (Some(number), _) => Self::Number(number),
                (None, Notation::Text) => field.text(row).map_or(Self::Unknown, Self::Made),
                (None, _) => Self::Unknown,
            },
        }
    }

    /// The order of two; `descending` puts the most first.
    pub fn compare(&self, other: &Self, descending: bool) -> Ordering {
        let turn = |ordering: Ordering| match descending {
            true => ordering.reverse(),
            false => ordering,
        };
        match (self, other) {
            (Self::Unknown, Self::Unknown) => Ordering::Equal,
            (Self::Unknown, _) => Ordering::Greater,
            (_, Self::Unknown) => Ordering::Less,
            (Self::Number(left), Self::Number(right)) => turn(left.total_cmp(right)),
            _ => turn(self.words().cmp(other.words())),
        }
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        let (one, many): (Option<&str>, &[Arc<str>]) = match self {
            Self::Text(text) => (Some(text), &[]),
            Self::Made(text) => (Some(text), &[]),
            Self::Words(words) => (None, words),
            Self::Number(_) | Self::Unknown => (None, &[]),
        };
        one.into_iter().chain(many.iter().map(|word| &**word))
    }
}
