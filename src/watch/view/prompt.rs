//! Draws the prompt in the bottom line, with its error.

use ratatui::layout::Rect;
use ratatui::style::Modifier;
use unicode_width::UnicodeWidthChar;

use ratatui::buffer::Buffer;

use super::line_writer::{LineWriter, clear};
use super::table;
use crate::report::escape::escape;
use crate::watch::state::App;
use crate::watch::state::prompt::{Prompt, Purpose};
use crate::watch::text::{columns, scrolled};
use crate::watch::theme::Styles;

/// Minimum number of columns for the text beside an error.
const TYPED_MIN: u16 = 16;

pub fn draw(app: &App, prompt: &Prompt, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let area = area.intersection(canvas.area);
    if area.is_empty() {
        return;
    }
    let line = Rect::new(area.x, area.bottom() - 1, area.width, 1);
    clear(canvas, line);
    let label = match prompt.purpose {
        Purpose::Filter => "filter: ",
        Purpose::Search => "find: ",
        Purpose::Seek => "go to: ",
    };
    let mut writer = LineWriter::new(canvas, line, 0);
    writer.text(label, styles.key());

    // Pasted text can be as malicious as a process's name.
    let before = escape(&prompt.text[..prompt.cursor]);
    let after = escape(&prompt.text[prompt.cursor..]);
    let wanted = columns(&before).saturating_add(columns(&after)) + 1;
    let (note, style) = match &prompt.error {
        Some(error) => (escape(error).into_owned(), styles.caution()),
        None if prompt.purpose == Purpose::Filter => (table::count(app), styles.faint()),
        None if prompt.purpose == Purpose::Search => {
            ("F3 next, Shift-F3 previous".to_owned(), styles.faint())
        }
        None => (String::new(), styles.faint()),
    };
    let room = writer.room();
    let kept = wanted.max(TYPED_MIN).min(room);
    let note_width = match columns(&note) {
        0 => 0,
        width => (width + 2).min(room - kept),
    };
    // If the text is too long, show only the end of the part before the cursor.
    let typed_width = room - note_width;
    let (under, rest) = split_first(&after);
    let under_width = columns(under).max(1);
    let room = typed_width.saturating_sub(under_width);
    let before = scrolled(&before, columns(&before).saturating_sub(room));
    writer.text(&before, styles.plain());
    let cursor = styles.plain().add_modifier(Modifier::REVERSED);
    writer.text(if under.is_empty() { " " } else { under }, cursor);
    let left = typed_width.saturating_sub(columns(&before)).saturating_sub(under_width);
    writer.left(rest, left, styles.plain());
    if note_width > 2 {
        writer.skip(2).text(&note, style);
    }
}

/// Splits a text after its first character, including combining marks.
fn split_first(text: &str) -> (&str, &str) {
    let mut next = text.char_indices().skip(1);
    let end = next.find(|(_, c)| c.width().unwrap_or(0) > 0);
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_on_a_whole_character() {
        assert_eq!(split_first("e\u{301}x"), ("e\u{301}", "x"));
        assert_eq!(split_first("日"), ("日", ""));
        assert_eq!(split_first(""), ("", ""));
    }
}
