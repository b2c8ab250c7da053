//! Defines a line in the table of fields, and its builder.

use super::Field;

/// How a field's typed value is parsed and compared.
#[derive(Clone, Copy, Debug)]
pub enum Notation {
    Text,
    /// One of these words, or a prefix of one.
    OneOf(fn() -> Vec<&'static str>),
    /// An index, a UUID, a MIG device or the name of a GPU.
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
    /// Rank on the screen. Columns with a higher rank are dropped first.
    pub need: usize,
    /// Order in which `ps` drops columns on a narrow terminal: 1 is first, [`STAYS`] is never, 0 means no column.
    pub gives_way: usize,
    /// Name and help text for `ps --sort`. Empty if `ps` cannot sort by this field.
    pub sort: (&'static str, &'static str),
    /// Name of the column in options if neither `sort` nor `names` has one; otherwise empty.
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

    /// Makes the field a right-aligned column; `descending` sorts large values first.
    pub(super) const fn number(self, title: &'static str, descending: bool) -> Self {
        Self { title, descending, right: true, ..self }
    }

    /// Sets the column's name in options, if it has no other name.
    pub(super) const fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// Returns the column's name in options, which is the same for every command.
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
