//! Writes JSON without characters that control a terminal, are invisible, or reorder other text.
//!
//! serde_json escapes only control characters below U+0020, as RFC 8259, section 7, requires. Other control characters
//! and invisible characters would make `cat` or an editor show a different text. This module escapes them as well
//! (`\u202e`). Parsers still read the same string. `escape` does the same for plain text.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Result;

/// Returns whether displaying a character is dangerous, because the character
/// - controls the terminal;
/// - is invisible and hides or reorders other text (bidirectional controls, zero-width characters, line separators,
///   fillers, tags);
/// - changes the width of another character, but only in some terminals (variation selectors, skin tones).
pub fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}' | '\u{13430}'..='\u{1345f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{1f3fb}'..='\u{1f3ff}'
            | '\u{e0000}'..='\u{e0fff}')
}

pub fn to_string<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map(harmless)
}

/// Serializes a value as an indented document that ends with a newline.
///
/// # Errors
///
/// Returns the error of serde_json, for example if a map key is not text.
pub fn document<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string_pretty(value).map(|text| harmless(text) + "\n")
}

/// Appends a value as JSON on one line.
///
/// # Errors
///
/// Returns the error of serde_json and appends nothing.
pub fn append<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, value: &T) -> Result<()> {
    bytes.extend_from_slice(to_string(value)?.as_bytes());
    Ok(())
}

/// Escapes hostile characters in the whole document. Such characters occur only within strings.
fn harmless(json: String) -> String {
    // serde_json has already escaped lower control characters within strings, and writes line feeds between values.
    let is_meant = |c: char| c >= '\u{7f}' && is_hostile(c);
    if !json.bytes().any(|byte| byte >= 0x7f) || !json.contains(is_meant) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if !is_meant(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\u{1}\n\u{7f}\u{85}\u{9b}31m\u{61c}\u{200b}\u{200d}\u{200e}\u{202e}\u{2028}\
         \u{2029}\u{2066}\u{2069}\u{feff}\u{fe0f}\u{e0041}\u{3164}\"\\";

    #[test]
    fn hostile_characters_are_escaped_and_read_back() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE, "日本 é 👍", 1] });
        let mut appended = b"before".to_vec();
        append(&mut appended, &value).unwrap();
        let appended = String::from_utf8(appended).unwrap();
        let texts = [
            to_string(&value).unwrap(),
            document(&value).unwrap(),
            appended.strip_prefix("before").unwrap().to_owned(),
        ];
        for text in texts {
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read, value);
            assert!(!text.contains(|c| c != '\n' && is_hostile(c)), "{text:?}");
            assert!(text.contains("日本 é 👍") && text.contains("\\u202e"), "{text}");
            assert!(text.contains("\\udb40\\udc41"), "{text}");
        }
    }

    #[test]
    fn plain_text_is_written_as_serde_json_writes_it() {
        let value = serde_json::json!({"a": "b\u{1b}", "é": 1.5});
        assert_eq!(to_string(&value).unwrap(), serde_json::to_string(&value).unwrap());
        assert_eq!(document(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap() + "\n");
    }
}
