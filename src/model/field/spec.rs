//! A line of the table of fields, with its builder.

use super::Field;

/// How a field's typed value is parsed and compared.
#[derive(Clone, Copy, Debug)]
pub enum Notation {
    /// A text, or a part of one.
    Text,
    /// One of some words, or the beginning of one.
    OneOf(fn() -> Vec<&'static str>),
    /// An index, a UUID, a part or a name.
    Gpu,
    /// A whole number.
    Number,
    /// A number, with or without `%`.
    Percent,
    /// A size with its unit.
    Bytes,
    /// A size, or a share of the GPU's memory.
    BytesOrShare,
    /// A duration with its unit.
    Seconds,
}

/// A field's line in the table.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Its names in a selector, the usual one first. Without any it cannot be selected.
    pub names: &'static [&'static str],
    /// An example of a term.
    pub example: &'static str,
    pub meaning: &'static str,
    /// How a value is typed and shown.
    pub notation: Notation,
    pub field: Field,
    /// The heading of its column; empty if it has none.
    pub title: &'static str,
    /// Whether sorting by it puts the most first.
    pub descending: bool,
    /// Whether it is aligned to the right.
    pub right: bool,
    /// On the screen, the key after `o` that sorts by it; a blank if it is no column.
    pub letter: char,
    /// On the screen, its width in terminal columns; 0 means as wide as the widest text.
    pub width: u16,
    /// On the screen, its rank: the higher, the sooner it is dropped.
    pub need: usize,
    /// When `ps` drops it on a narrow terminal: 1 is dropped first, [`STAYS`] never; 0 if it is no column.
    pub gives_way: usize,
    /// Its key and help in `ps --sort`; empty if it cannot sort.
    pub sort: (&'static str, &'static str),
    /// Its column's name in options if neither `sort` nor `names` has one; otherwise empty.
    pub called: &'static str,
}

/// The rank of a `ps` column that is never dropped.
pub const STAYS: usize = usize::MAX;

pub(super) const fn field(
    field: Field,
    names: &'static [&'static str],
    notation: Notation,
    example: &'static str,
    meaning: &'static str,
) -> FieldSpec {
    FieldSpec {
        names,
        example,
        meaning,
        notation,
        field,
        title: "",
        descending: false,
        right: false,
        letter: ' ',
        width: 0,
        need: 0,
        gives_way: 0,
        sort: ("", ""),
        called: "",
    }
}

impl FieldSpec {
    /// With a heading, left-aligned and sorted ascending.
    pub(super) const fn text(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    /// With a heading, right-aligned; `descending` as in the field.
    pub(super) const fn number(self, title: &'static str, descending: bool) -> Self {
        Self { title, descending, right: true, ..self }
    }

    /// With a name for its column, if it has no other.
    pub(super) const fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// Its column's name in options: one word for every command.
    pub fn column_name(&self) -> &'static str {
        match (self.sort.0, self.names.first()) {
            ("", None) => self.called,
            ("", Some(name)) => name,
            (name, _) => name,
        }
    }

    /// With the most first.
    pub(super) const fn most_first(self) -> Self {
        Self { descending: true, ..self }
    }

    /// As a column of the screen.
    pub(super) const fn on_screen(self, letter: char, need: usize, width: u16) -> Self {
        Self { letter, need, width, ..self }
    }

    /// As a column of `ps`.
    pub(super) const fn in_ps(self, gives_way: usize) -> Self {
        Self { gives_way, ..self }
    }

    /// As an order of `ps`.
    pub(super) const fn sorts(self, key: &'static str, help: &'static str) -> Self {
        Self { sort: (key, help), ..self }
    }
}
