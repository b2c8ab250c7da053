//! Makes untrusted text safe to display on one line of a terminal, email or log.
//!
//! Command lines, process names, paths and notebook names can contain escape sequences, newlines, and characters that
//! reorder or hide other text. Such characters are written as `\n`, `\e` or `\u{…}`. No character is dropped, so that
//! different names stay different. Escaping twice has the same result as escaping once.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::json::is_hostile;

/// Escapes control characters and the invisible characters of [`is_hostile`].
pub fn escape(text: &str) -> Cow<'_, str> {
    // Nearly all text is printable ASCII, which is checked faster.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain || !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{1b}' => out.push_str("\\e"),
            c if is_hostile(c) => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        assert_eq!(escape("plain — ünïcode 日本"), "plain — ünïcode 日本");
        assert_eq!(
            escape("a\x1b[31mred\nb\u{202e}c\u{9b}0m\x7f"),
            "a\\e[31mred\\nb\\u{202e}c\\u{9b}0m\\u{7f}"
        );
        assert_eq!(escape("❤\u{fe0f} 👍\u{1f3fd} \u{2067}x"), "❤\\u{fe0f} 👍\\u{1f3fd} \\u{2067}x");
    }
}
