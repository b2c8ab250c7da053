//! Draws the bottom line, which `layout/hints.rs` lays out.

use ratatui::layout::Rect;

use ratatui::buffer::Buffer;

use super::line_writer::{LineWriter, clear};
use crate::watch::column::Column;
use crate::watch::keys::Hint;
use crate::watch::layout::Layout;
use crate::watch::layout::hints::{HintPosition, after, before, shown};
use crate::watch::state::{App, Mode};
use crate::watch::text::{clean, columns};
use crate::watch::theme::Styles;

const GAP: u16 = 2;
const SORT_BY: &str = "sort by";

/// Draws the hints, a note, or the letters for choosing a sort column.
pub fn draw(app: &App, styles: Styles, layout: &Layout, area: Rect, canvas: &mut Buffer) {
    if app.mode == Mode::ChooseSort {
        return letters(app.table.choice.sort.column, styles, area, canvas);
    }
    if let Some(note) = &app.note {
        LineWriter::new(canvas, area, 0).text(&clean(note, area.width), styles.caution());
        return;
    }
    if let Some(text) = before(app) {
        LineWriter::new(canvas, area, 0).text(&text, styles.caution());
    }
    let mut writer = write(&shown(app, Some(layout), area.width), styles, area, canvas);
    writer.at_end(&after(app, Some(layout)), styles.faint());
}

fn letters(chosen: Column, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let mut lines: Vec<Vec<Column>> = vec![Vec::new()];
    let mut used = columns(SORT_BY) + 1;
    for column in Column::ALL {
        let wide = columns(column.spec().title) + 2;
        if used + wide > area.width {
            lines.push(Vec::new());
            used = columns(SORT_BY) + 1;
        }
        used += wide + GAP;
        lines.last_mut().into_iter().for_each(|line| line.push(column));
    }
    let above = (lines.len() as u16 - 1).min(area.y - canvas.area.y);
    let letters_area = Rect { y: area.y - above, height: above + 1, ..area };
    clear(canvas, letters_area);
    for (at, line) in (0..).zip(lines) {
        let mut writer = LineWriter::new(canvas, letters_area, at);
        match at {
            0 => writer.text(SORT_BY, styles.strong()),
            _ => writer.skip(columns(SORT_BY)),
        };
        writer.skip(1);
        for column in line {
            letter(column, chosen, styles, &mut writer);
        }
    }
}

fn letter(column: Column, chosen: Column, styles: Styles, writer: &mut LineWriter<'_>) {
    let spec = column.spec();
    let style = match column == chosen {
        true => styles.selected(),
        false => styles.plain(),
    };
    writer
        .text(spec.letter.encode_utf8(&mut [0; 4]), styles.key())
        .skip(1)
        .text(&spec.title.to_lowercase(), style)
        .skip(GAP);
}

/// Writes hints on the first line of `area`. The caller can continue the line.
fn write<'a>(
    spots: &[HintPosition],
    styles: Styles,
    area: Rect,
    canvas: &'a mut Buffer,
) -> LineWriter<'a> {
    let mut writer = LineWriter::new(canvas, area, 0);
    let mut end = 0;
    for HintPosition { from, to, hint: Hint { key, word, .. }, .. } in spots {
        writer.skip(from - end).text(key, styles.key()).skip(1).text(word, styles.faint());
        end = *to;
    }
    writer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::theme::Theme;

    #[test]
    fn every_column_letter_is_shown_at_any_width() {
        let styles = Styles { theme: Theme::default(), has_color: false };
        for width in [40, 80, 200] {
            let mut canvas = Buffer::empty(Rect::new(0, 0, width, 10));
            letters(Column::Gpu, styles, Rect::new(0, 9, width, 1), &mut canvas);
            let text = crate::watch::testing::lines(&canvas).concat();
            for spec in Column::ALL.map(Column::spec) {
                let word = format!("{} {}", spec.letter, spec.title.to_lowercase());
                assert!(text.contains(&word), "{word} at {width}");
            }
        }
    }
}
