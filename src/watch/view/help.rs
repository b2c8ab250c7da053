//! Draws the help, which `layout/help.rs` lays out.

use ratatui::layout::Rect;

use ratatui::buffer::Buffer;

use super::line_writer::LineWriter;
use crate::watch::keys::Context;
use crate::watch::layout::help::{GAP, HelpPage, LABEL, body};
use crate::watch::theme::Styles;

pub fn draw(context: Context, styles: Styles, first: u16, area: Rect, canvas: &mut Buffer) {
    let help = HelpPage::new(context, area.width);
    let body = body(area);
    let last = help.height().saturating_sub(usize::from(body.height));
    let first = usize::from(first).min(last);
    for (at, column) in help.columns.iter().enumerate() {
        let left = Rect { x: body.x + help.width * at as u16, width: help.width, ..body };
        let visible = column.iter().skip(first).take(usize::from(body.height));
        for (row, line) in visible.enumerate() {
            let mut writer = LineWriter::new(canvas, left, row as u16);
            writer.skip(GAP);
            match &line.text {
                None => writer.text(&line.label, styles.heading().patch(styles.strong())),
                Some(text) => writer
                    .left(&line.label, LABEL, styles.strong())
                    .skip(1)
                    .text(text, styles.plain()),
            };
        }
    }
    if body.height < area.height {
        let more = match (first > 0, first < last) {
            (false, false) => "",
            (false, true) => "j k scroll, more below; ",
            (true, false) => "j k scroll, end; ",
            (true, true) => "j k scroll; ",
        };
        let text = format!("{more}any other key closes this help");
        LineWriter::new(canvas, area, body.height).skip(GAP).text(&text, styles.faint());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::field::selectable;
    use crate::watch::keys::GROUPS;
    use crate::watch::layout::help::{FILTER, MARKS, MOUSE, last_line};
    use crate::watch::memory_shares::MemoryShare;
    use crate::watch::testing::lines;
    use crate::watch::theme::Theme;

    fn text(context: Context, first: u16, area: Rect) -> Vec<String> {
        let styles = Styles { theme: Theme::default(), has_color: false };
        let mut canvas = Buffer::empty(area);
        draw(context, styles, first, area, &mut canvas);
        lines(&canvas)
    }

    fn whole(context: Context, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut out = Vec::new();
        for first in 0..=last_line(context, area) {
            let mut lines = text(context, first, area);
            lines.pop();
            let new = if first == 0 { 0 } else { lines.len() - 1 };
            out.extend(lines.drain(new..));
        }
        let words = out.join(" ");
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn all_help_entries_are_reachable_at_the_smallest_size() {
        for context in [Context::Main, Context::Page, Context::Plan] {
            let words = whole(context, 40, 10);
            assert!(!words.contains('…'), "nothing is cut: {words}");
            for (_, title, bindings) in GROUPS {
                assert!(words.contains(title), "{title}");
                for (keys, does, _) in *bindings {
                    let line = format!("{keys} {does}");
                    // `whole` joins lines, so a name that continues on the next line is found.
                    assert!(words.contains(&line), "{line} in {words}");
                }
            }
            let kinds = crate::rules::KINDS.map(|rule| (rule.kind.name(), rule.meaning));
            for (mark, meaning) in [
                &MARKS[..],
                &kinds,
                &MemoryShare::ALL.map(|share| (share.glyph(), share.meaning())),
                &FILTER,
                &MOUSE,
                &selectable().map(|field| (field.example, field.meaning)).collect::<Vec<_>>(),
            ]
            .concat()
            {
                assert!(words.contains(&format!("{mark} {meaning}")), "{mark}");
            }
        }
    }

    #[test]
    fn the_keys_of_the_current_context_are_first() {
        let area = Rect::new(0, 0, 80, 24);
        for (context, ..) in GROUPS {
            let first = GROUPS.iter().find(|group| group.0 == *context);
            let lines = text(*context, 0, area);
            assert_eq!(lines[0].trim(), first.unwrap().1);
        }
    }
}
