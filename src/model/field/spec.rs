//! A line of the table of fields, and how one is written.

use super::Field;

/// How what is typed for a field is read and compared.
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
    /// What it may be called in a selector; the first is its name. Without any it cannot be asked for.
    pub names: &'static [&'static str],
    /// A term of it as it may be typed.
    pub example: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// How a value is typed, and shown.
    pub notation: Notation,
    /// Which it is.
    pub field: Field,
    /// The heading of its column; empty where it has none.
    pub title: &'static str,
    /// Whether the most comes first where rows are sorted by it.
    pub descending: bool,
    /// Whether it stands at the right edge of its column.
    pub right: bool,
    /// On the screen, the key after `o` that sorts by it; a blank where it is no column there.
    pub letter: char,
    /// On the screen, its width in terminal columns; the widest text decides where this is 0.
    pub width: u16,
    /// On the screen, its place from the one that stays longest to the one that goes first.
    pub need: usize,
    /// In `ps`, when it gives way to a narrow terminal: 1 goes first, [`STAYS`] never; 0 where it is no
    /// column there.
    pub gives_way: usize,
    /// What `ps --sort` calls it, and says of it; empty where it cannot sort.
    pub sort: (&'static str, &'static str),
    /// What options call its column where neither `sort` nor `names` has a word for it; else empty.
    pub called: &'static str,
}

/// A column of `ps` that never gives way.
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
    /// With a heading, at the left edge and sorted upwards.
    pub(super) const fn text(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    /// With a heading, at the right edge; `descending` as in the field of this name.
    pub(super) const fn number(self, title: &'static str, descending: bool) -> Self {
        Self { title, descending, right: true, ..self }
    }

    /// With a name for its column, where it has no other.
    pub(super) const fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// What options call its column: the same word for every command.
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
