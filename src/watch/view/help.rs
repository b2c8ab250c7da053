//! The help: the keys from the very table that handles them, then what the marks mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::bar::{FREE, HELD, RESERVED, UNATTRIBUTED, UNTOLD};
use super::look::Look;
use super::pen::Pen;
use crate::watch::column::Column;
use crate::watch::keys::{self, GROUPS};

/// What the marks mean.
const MARKS: [(&str, &str); 12] = [
    (HELD, "memory that processes hold"),
    (UNATTRIBUTED, "used, but by no process that can be seen"),
    (UNTOLD, "used; by whom is not known"),
    (RESERVED, "reserved by the driver"),
    (FREE, "free"),
    ("—", "not known; 0 is an observed zero"),
    ("n/a", "this GPU or driver does not tell it"),
    ("0:3", "device 3 of GPU 0, under MIG"),
    (
        "unlisted",
        "holds a GPU's device file; NVML does not list it",
    ),
    ("stale 7s", "the GPU has not answered for so long"),
    ("~", "the last known value of such a GPU"),
    ("unresolved", "who is behind this pid could not be told"),
];

/// The columns that the keys' names take.
const LABEL: u16 = 14;

/// Lines of the whole help: each part has a heading and a blank before the next.
fn line_count() -> usize {
    keys::table().count() + 2 * GROUPS.len() + Column::ALL.len() + MARKS.len() + 3
}

/// The line that the help starts with when it is scrolled down to its end.
pub fn last_line(area: Rect) -> u16 {
    line_count().saturating_sub(usize::from(area.height)) as u16
}

/// Draws the help from line `first` on.
pub fn draw(look: Look, first: u16, area: Rect, buffer: &mut Buffer) {
    let first = first.min(last_line(area));
    let mut at = 0u16;
    let mut line = |label: &str, text: &str, heading: bool| {
        if at >= first && at - first < area.height {
            let mut pen = Pen::new(buffer, area, at - first);
            if heading {
                pen.skip(1).text(label, look.heading().patch(look.strong()));
            } else {
                pen.skip(1)
                    .left(label, LABEL, look.strong())
                    .skip(1)
                    .text(text, look.plain());
            }
        }
        at += 1;
    };
    for (title, bindings) in GROUPS {
        line(title, "", true);
        for binding in *bindings {
            line(binding.label, binding.does, false);
        }
        line("", "", false);
    }
    line("After o: sort by (a capital turns it around)", "", true);
    for column in Column::ALL {
        let spec = column.spec();
        line(spec.letter.encode_utf8(&mut [0; 4]), spec.title, false);
    }
    line("", "", false);
    line("Marks", "", true);
    for (mark, meaning) in MARKS {
        line(mark, meaning, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::view::look::{Depth, Theme};

    #[test]
    fn the_last_line_of_the_help_can_be_reached() {
        let area = Rect::new(0, 0, 80, 10);
        let mut buffer = Buffer::empty(area);
        draw(
            Look {
                theme: Theme::Dark,
                depth: Depth::Mono,
            },
            u16::MAX,
            area,
            &mut buffer,
        );
        let text: String = buffer
            .content
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect();
        assert!(text.contains(MARKS[MARKS.len() - 1].1), "{text}");
    }
}
