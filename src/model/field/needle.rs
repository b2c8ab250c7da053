//! A text to search for in a row.

use std::ops::RangeInclusive;

/// A text to search for, ignoring case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needle {
    typed: String,
    lower: String,
}

impl Needle {
    pub fn new(typed: impl Into<String>) -> Self {
        let typed = typed.into();
        let lower = typed.to_lowercase();
        Self { typed, lower }
    }

    /// As it was typed.
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether a text contains it.
    pub fn is_in(&self, text: &str) -> bool {
        if self.lower.is_ascii() {
            let (text, part) = (text.as_bytes(), self.lower.as_bytes());
            return part.is_empty()
                || text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
        }
        text.to_lowercase().contains(&self.lower)
    }

    /// Whether a text equals it.
    pub fn is(&self, text: &str) -> bool {
        if self.lower.is_ascii() {
            return text.eq_ignore_ascii_case(&self.lower);
        }
        text.to_lowercase() == self.lower
    }

    pub(super) fn is_in_or_is(&self, text: &str, whole: bool) -> bool {
        if whole { self.is(text) } else { self.is_in(text) }
    }

    /// Whether a word, in any case, begins with it.
    pub(super) fn begins(&self, word: &str) -> bool {
        word.get(..self.lower.len()).is_some_and(|start| start.eq_ignore_ascii_case(&self.lower))
    }

    /// Its value as a number.
    pub(super) fn number(&self) -> Option<u32> {
        let is_digits = self.typed.bytes().all(|byte| byte.is_ascii_digit());
        self.typed.parse().ok().filter(|_| is_digits)
    }

    /// Its value as a range of numbers: `2`, `2-4`.
    pub(super) fn numbers(&self) -> Option<RangeInclusive<u32>> {
        match self.typed.split_once('-') {
            Some((first, last)) => Some(Self::new(first).number()?..=Self::new(last).number()?),
            None => self.number().map(|number| number..=number),
        }
    }

    /// The needle of a word that can only mean a GPU: `gpu:0`, `gpu:GPU-3f`, `GPU-3f`.
    pub fn of_gpu(word: &str) -> Option<Self> {
        let needle = Self::new(word);
        match needle.lower.strip_prefix("gpu:") {
            Some(rest) => Some(Self::new(rest)),
            None => needle.is_uuid().then_some(needle),
        }
    }

    /// Whether a UUID equals it, or begins with it.
    pub fn is_uuid_of(&self, uuid: &str, whole: bool) -> bool {
        if whole { self.is(uuid) } else { self.begins(uuid) }
    }

    /// Whether it can only mean a UUID.
    pub fn is_uuid(&self) -> bool {
        self.lower.starts_with("gpu-") || self.lower.starts_with("mig-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_begins_in_any_case_and_never_splits_a_character() {
        let begins = |uuid: &str, typed: &str| Needle::new(typed).is_uuid_of(uuid, false);
        assert!(begins("GPU-3F", "gpu-3"));
        assert!(begins("GPU-3f", "GPU-3F"));
        assert!(!begins("GPU-3", "gpu-3f"));
        assert!(!begins("GPU-é", "gpu-\u{e9}x"));
        assert!(!begins("GPU-é", "gpu-e"));
    }
}
