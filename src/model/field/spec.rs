//! A line of the table of fields, and its builder.

use super::Field;

/// How a field's typed value is parsed and compared.
#[derive(Clone, Copy, Debug)]
pub enum Notation {
    Text,
    /// One of a list of words, or its prefix.
    OneOf(fn() -> Vec<&'static str>),
    /// An index, a UUID, a MIG device or a name.
    Gpu,
    Number,
    Percent,
    Bytes,
    /// A size, or a share of the GPU's memory.
    BytesOrShare,
    Seconds,
}

#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Names in a selector, the usual one first. A field without names cannot be selected.
    pub names: &'static [&'static str],
    pub example: &'static str,
    pub meaning: &'static str,
    pub notation: Notation,
    pub field: Field,
    /// The column heading; empty if the field is not a column.
    pub title: &'static str,
    /// Whether the largest value comes first when sorted by this field.
    pub descending: bool,
    pub right: bool,
    /// The key after `o` that sorts the screen by this field; a blank if it is not a column there.
    pub letter: char,
    /// The width on the screen in terminal columns; 0 means as wide as the widest text.
    pub width: u16,
    /// The rank on the screen; columns of a higher rank are dropped first.
    pub need: usize,
    /// When `ps` drops the column on a narrow terminal: 1 is dropped first, [`STAYS`] never; 0 if it is not a column.
    pub gives_way: usize,
    /// The key and help text in `ps --sort`; empty if `ps` cannot sort by it.
    pub sort: (&'static str, &'static str),
    /// The column's name in options if neither `sort` nor `names` has one; otherwise empty.
    pub called: &'static str,
}

/// The `gives_way` of a `ps` column that is never dropped.
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
    pub(super) const fn text(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    /// Adds a right-aligned column; see the field `descending`.
    pub(super) const fn number(self, title: &'static str, descending: bool) -> Self {
        Self { title, descending, right: true, ..self }
    }

    /// Names the column, if it has no other name.
    pub(super) const fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// The column's name in options, the same for every command.
    pub fn column_name(&self) -> &'static str {
        match (self.sort.0, self.names.first()) {
            ("", None) => self.called,
            ("", Some(name)) => name,
            (name, _) => name,
        }
    }

    pub(super) const fn most_first(self) -> Self {
        Self { descending: true, ..self }
    }

    pub(super) const fn on_screen(self, letter: char, need: usize, width: u16) -> Self {
        Self { letter, need, width, ..self }
    }

    pub(super) const fn in_ps(self, gives_way: usize) -> Self {
        Self { gives_way, ..self }
    }

    pub(super) const fn sorts(self, key: &'static str, help: &'static str) -> Self {
        Self { sort: (key, help), ..self }
    }
}
