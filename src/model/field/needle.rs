//! Text that a selector searches for in rows.

use std::ops::RangeInclusive;

use crate::model::device_file::minor_number_of;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needle {
    typed: String,
    lower: String,
    pattern: Option<Vec<Glyph>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Glyph {
    Char(char),
    One,
    Any,
}

impl Needle {
    pub fn new(typed: impl Into<String>) -> Self {
        let typed = typed.into();
        let lower = typed.to_lowercase();
        Self { typed, lower, pattern: None }
    }

    /// Creates a needle from characters, each with a flag that tells whether it was quoted. Unquoted `*` and `?` are
    /// wildcards.
    pub(in crate::model) fn of_typed(typed: &[(char, bool)]) -> Self {
        let glyphs = typed.iter().map(|typed| match typed {
            ('*', false) => Glyph::Any,
            ('?', false) => Glyph::One,
            &(c, _) => Glyph::Char(c),
        });
        let ends = || std::iter::once(Glyph::Any);
        let pattern: Vec<Glyph> = ends().chain(glyphs).chain(ends()).collect();
        let inner = &pattern[1..pattern.len() - 1];
        let is_pattern = inner.iter().any(|glyph| !matches!(glyph, Glyph::Char(_)));
        let plain = Self::new(typed.iter().map(|(c, _)| c).collect::<String>());
        Self { pattern: is_pattern.then_some(pattern), ..plain }
    }

    pub fn typed(&self) -> &str {
        &self.typed
    }

    pub(super) fn is_pattern(&self) -> bool {
        self.pattern.is_some()
    }

    pub fn is_in(&self, text: &str) -> bool {
        if let Some(pattern) = &self.pattern {
            return matches(pattern, text, true);
        }
        if self.lower.is_ascii() {
            let (text, part) = (text.as_bytes(), self.lower.as_bytes());
            return part.is_empty()
                || text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
        }
        text.to_lowercase().contains(&self.lower)
    }

    pub fn equals(&self, text: &str) -> bool {
        if let Some(pattern) = &self.pattern {
            return matches(&pattern[1..pattern.len() - 1], text, true);
        }
        if self.lower.is_ascii() {
            return text.eq_ignore_ascii_case(&self.lower);
        }
        text.to_lowercase() == self.lower
    }

    pub(super) fn is_exactly(&self, text: &str) -> bool {
        match &self.pattern {
            Some(pattern) => matches(&pattern[1..pattern.len() - 1], text, false),
            None => text == self.typed,
        }
    }

    pub(super) fn is_in_or_is(&self, text: &str, whole: bool) -> bool {
        if whole { self.equals(text) } else { self.is_in(text) }
    }

    pub(super) fn begins(&self, word: &str) -> bool {
        if let Some(pattern) = &self.pattern {
            return matches(&pattern[1..], word, true);
        }
        word.get(..self.lower.len()).is_some_and(|start| start.eq_ignore_ascii_case(&self.lower))
    }

    pub(super) fn number(&self) -> Option<u32> {
        let is_digits = self.typed.bytes().all(|byte| byte.is_ascii_digit());
        self.typed.parse().ok().filter(|_| is_digits)
    }

    pub(super) fn numbers(&self) -> Option<RangeInclusive<u32>> {
        match self.typed.split_once('-') {
            Some((first, last)) => Some(Self::new(first).number()?..=Self::new(last).number()?),
            None => self.number().map(|number| number..=number),
        }
    }

    pub(super) fn device_number(&self) -> Option<u32> {
        minor_number_of(&self.typed)
    }

    /// Returns the needle for a word that can only name a GPU, such as `gpu:0`, `gpu:GPU-3f` or `GPU-3f`. Returns
    /// `None` for other words.
    pub fn of_gpu(word: &str) -> Option<Self> {
        let needle = Self::new(word);
        match needle.lower.strip_prefix("gpu:") {
            Some(rest) => Some(Self::new(rest)),
            None => needle.is_uuid().then_some(needle),
        }
    }

    /// Returns whether a UUID equals the needle or, unless `whole` is set, begins with it.
    pub fn is_uuid_of(&self, uuid: &str, whole: bool) -> bool {
        if whole { self.equals(uuid) } else { self.begins(uuid) }
    }

    pub fn is_uuid(&self) -> bool {
        self.lower.starts_with("gpu-") || self.lower.starts_with("mig-")
    }
}

/// Returns whether the pattern matches the whole text. Backtracks only to the last `*`, so the time is at most
/// proportional to the product of both lengths.
fn matches(pattern: &[Glyph], text: &str, ignores_case: bool) -> bool {
    let is_same = |one: char, other: char| {
        one == other || (ignores_case && one.to_lowercase().eq(other.to_lowercase()))
    };
    let (mut at, mut rest) = (0, text.chars());
    let mut last_star = None;
    loop {
        let mut after = rest.clone();
        match (pattern.get(at), after.next()) {
            (None, None) => return true,
            (Some(Glyph::Any), _) => {
                at += 1;
                last_star = Some((at, rest.clone()));
                continue;
            }
            (Some(Glyph::One), Some(_)) => {
                (at, rest) = (at + 1, after);
                continue;
            }
            (Some(&Glyph::Char(wanted)), Some(c)) if is_same(wanted, c) => {
                (at, rest) = (at + 1, after);
                continue;
            }
            _ => {}
        }
        let Some((behind, from)) = &mut last_star else { return false };
        if from.next().is_none() {
            return false;
        }
        (at, rest) = (*behind, from.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_texts_and_parts_of_them() {
        let needle = |typed: &str| {
            let typed: Vec<_> = typed.chars().map(|c| (c, false)).collect();
            Needle::of_typed(&typed)
        };
        for (typed, text, is, is_in) in [
            ("a*c", "abbc", true, true),
            ("A*C", "xabbcx", false, true),
            ("a?c", "abc", true, true),
            ("a?c", "ac", false, false),
            ("*.py", "train.py", true, true),
            ("*.py", "train.pyc", false, true),
            ("*", "", true, true),
            ("*a*a*b", "aaaaaaaaaaaaaaaaaaaa", false, false),
            ("é*", "ÉT", true, true),
        ] {
            assert_eq!(
                (needle(typed).equals(text), needle(typed).is_in(text)),
                (is, is_in),
                "{typed}"
            );
        }
        assert!(needle("st-*").is_exactly("st-ann") && !needle("st-*").is_exactly("ST-ann"));
        assert!(needle("gpu-3*9").is_uuid_of("GPU-3f9a", false));
        assert!(!needle("gpu-3*9").is_uuid_of("GPU-3f9a", true));
        for (uuid, typed, begins) in
            [("GPU-3F", "gpu-3", true), ("GPU-3", "gpu-3f", false), ("GPU-é", "gpu-\u{e9}x", false)]
        {
            assert_eq!(Needle::new(typed).is_uuid_of(uuid, false), begins, "{uuid} {typed}");
        }
        let quoted = Needle::of_typed(&[('a', false), ('*', true)]);
        assert!(quoted.equals("a*") && !quoted.equals("ab"));
    }
}
