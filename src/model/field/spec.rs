//! Defines the fields of the table, and functions that build the definitions.

use super::Field;

/// Notation of the values that users enter for a field. It determines how values are parsed and compared.
#[derive(Clone, Copy, Debug)]
pub enum Notation {
    Text,
    /// One of these words, or a prefix of one.
    OneOf(fn() -> Vec<&'static str>),
    Gpu,
    Number,
    Percent,
    Bytes,
    BytesOrShare,
    Seconds,
}

#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Names in a selector, most common first. If there are none, the field cannot be selected.
    pub names: &'static [&'static str],
    pub example: &'static str,
    pub meaning: &'static str,
    pub notation: Notation,
    pub field: Field,
    /// Column heading, or an empty string if no table has this column.
    pub title: &'static str,
    /// Whether rows sorted by this field start with the largest value.
    pub descending: bool,
    pub right: bool,
    /// Key that sorts the screen by this field when typed after `o`, or a blank if the screen has no such column.
    pub letter: char,
    /// Width on the screen, in terminal columns. If 0, the column is as wide as its longest text.
    pub width: u16,
    /// Rank on the screen. On a narrow terminal, the column with the highest rank is dropped first.
    pub need: usize,
    /// When `ps` drops the column on a narrow terminal: 1 is dropped first, [`STAYS`] never. 0 if `ps` has no such
    /// column.
    pub gives_way: usize,
    /// Name and help text for `ps --sort`, or empty strings if `ps` cannot sort by this field.
    pub sort: (&'static str, &'static str),
    /// Name of the column in options, if `sort` and `names` are empty.
    pub called: &'static str,
}

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

    pub(super) const fn number(self, title: &'static str, descending: bool) -> Self {
        Self { title, descending, right: true, ..self }
    }

    pub(super) const fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// Returns the name of the column in options.
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
