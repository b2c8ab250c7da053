//! The bottom line: the keys that have room, and how much of the table is out of sight.
//!
//! Both what draws the keys and the mouse read their places from here, so that a click does what is
//! written there.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::look::Look;
use super::pen::{Pen, clean, columns};
use super::table;
use crate::watch::app::{App, Mode};
use crate::watch::column::Column;
use crate::watch::keys::{self, Action, Binding, Context};
use crate::watch::{page, reaping};

/// Blanks between one hint and the next.
const GAP: u16 = 2;
/// Hints at the end that stand before all others have room: the help, and the way out.
const ALWAYS: usize = 2;

/// From this width on, the column that the rows are sorted by is told where it is folded away.
const SORT_TOLD: u16 = 56;

/// A hint, and its columns.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Its first column.
    pub from: u16,
    /// The column after its last.
    pub to: u16,
    /// The key as it is written there, and its word.
    pub hint: (&'static str, &'static str),
    /// What it is the hint of.
    pub binding: &'static Binding,
}

/// The hints that stand in the bottom line of a screen of so many columns.
pub fn shown(app: &App, width: u16) -> Vec<Spot> {
    // That there are marks, or rows out of sight, is worth more than another key.
    let kept = match (app.context(), columns(&after(app, width))) {
        (Context::Plan, _) | (_, 0) => 0,
        (_, told) => told + GAP,
    };
    let begin = before(app).map_or(0, |text| columns(&text) + GAP);
    let bindings = keys::table(app.context()).filter(|binding| {
        app.context() != Context::Page || binding.action != Action::Reap || page::has_subject(app)
    });
    let mut spots = spots(bindings, width.saturating_sub(kept + begin));
    for spot in &mut spots {
        spot.from += begin;
        spot.to += begin;
    }
    spots
}

/// What stands before the keys: how far an ending is.
fn before(app: &App) -> Option<String> {
    match app.context() {
        Context::Main => reaping::hint(app),
        Context::Page | Context::Plan => None,
    }
}

/// What stands at the end of the line.
fn after(app: &App, width: u16) -> String {
    match app.context() {
        Context::Main => {}
        Context::Page => return super::page::place(app),
        // What is scrolled there is the plan.
        Context::Plan => return String::new(),
    }
    let height = app.layout().map_or(0, |layout| layout.table.height);
    let beyond = table::beyond(app, height);
    match table::hidden_sort(app, width) {
        Some(title) if width >= SORT_TOLD => {
            format!("sorted by {title}  {beyond}").trim_end().to_owned()
        }
        _ => beyond,
    }
}

/// The hints of these keys that have room on a line of so many columns, from left to right.
pub fn spots(bindings: impl Iterator<Item = &'static Binding>, width: u16) -> Vec<Spot> {
    let hinted: Vec<_> = bindings
        .filter_map(|binding| Some((binding.hint?, binding)))
        .collect();
    let size = |(key, word): (&str, &str)| columns(key) + 1 + columns(word);
    let (others, always) = hinted.split_at(hinted.len().saturating_sub(ALWAYS));
    let kept: u16 = always.iter().map(|(hint, _)| size(*hint) + GAP).sum();
    let mut room = (width + GAP).saturating_sub(kept);
    let mut spots: Vec<Spot> = Vec::with_capacity(hinted.len());
    let fitting = others.iter().take_while(|(hint, _)| {
        let fits = size(*hint) + GAP <= room;
        room = room.saturating_sub(size(*hint) + GAP);
        fits
    });
    let mut from = 0;
    for &(hint, binding) in fitting.chain(always) {
        let to = from + size(hint);
        if to > width {
            break;
        }
        spots.push(Spot {
            from,
            to,
            hint,
            binding,
        });
        from = to + GAP;
    }
    spots
}

/// Draws the line; while a column is being chosen, the columns' letters.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    if app.mode == Mode::ChooseSort {
        return letters(app.choice.sort.column, look, Pen::new(buffer, area, 0));
    }
    if let Some(note) = &app.note {
        Pen::new(buffer, area, 0).text(&clean(note, area.width), look.caution());
        return;
    }
    if let Some(text) = before(app) {
        Pen::new(buffer, area, 0).text(&text, look.caution());
    }
    let mut pen = write(&shown(app, area.width), look, area, buffer);
    pen.at_end(&after(app, area.width), look.faint());
}

/// The columns with their letters, from the first on with which the chosen one has room.
fn letters(chosen: Column, look: Look, mut pen: Pen<'_>) {
    let size = |column: &Column| columns(column.spec().title) + 2 + GAP;
    pen.text("sort by", look.strong()).skip(1);
    let mut shown = &Column::ALL[..];
    let end = Column::ALL.iter().position(|it| *it == chosen);
    let mut wide: u16 = Column::ALL
        .iter()
        .take(end.unwrap_or(0) + 1)
        .map(size)
        .sum();
    // The ends of the row stay free to say that there is more.
    while let [first, rest @ ..] = shown
        && wide + GAP > pen.room()
        && *first != chosen
    {
        wide -= size(first);
        shown = rest;
    }
    if shown.len() < Column::ALL.len() {
        pen.text("…", look.faint()).skip(1);
    }
    for (at, column) in shown.iter().enumerate() {
        let spec = column.spec();
        let word = spec.title.to_lowercase();
        let is_last = at + 1 == shown.len();
        if columns(&word) + 2 + if is_last { 0 } else { GAP } > pen.room() {
            pen.text("…", look.faint());
            break;
        }
        let style = match *column == chosen {
            true => look.selected(),
            false => look.plain(),
        };
        pen.text(spec.letter.encode_utf8(&mut [0; 4]), look.key())
            .skip(1)
            .text(&word, style)
            .skip(GAP);
    }
}

/// Writes hints on the first line of `area`, from its left end; what follows them is the caller's.
fn write<'a>(spots: &[Spot], look: Look, area: Rect, buffer: &'a mut Buffer) -> Pen<'a> {
    let mut pen = Pen::new(buffer, area, 0);
    let mut end = 0;
    for Spot {
        from,
        to,
        hint: (key, word),
        ..
    } in spots
    {
        pen.skip(from - end)
            .text(key, look.key())
            .skip(1)
            .text(word, look.faint());
        end = *to;
    }
    pen
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Cell;

    use super::*;
    use crate::watch::view::look::{Depth, Theme};

    #[test]
    fn hints_stand_where_they_are_said_to_stand() {
        let look = Look {
            theme: Theme::default(),
            depth: Depth::Mono,
        };
        for context in [Context::Main, Context::Page, Context::Plan] {
            for width in 0..200 {
                let area = Rect::new(0, 0, width, 1);
                let mut buffer = Buffer::empty(area);
                let spots = spots(keys::table(context), width);
                let _ = write(&spots, look, area, &mut buffer);
                let text: String = buffer.content.iter().map(Cell::symbol).collect();
                for spot in spots {
                    let (key, word) = spot.hint;
                    let there = &text[usize::from(spot.from)..usize::from(spot.to)];
                    assert_eq!(there, format!("{key} {word}"), "{width}");
                }
            }
        }
    }

    #[test]
    fn the_help_and_the_way_out_stand_where_others_have_no_room() {
        let words = |width| -> Vec<&str> {
            let spots = spots(keys::table(Context::Main), width);
            spots.iter().map(|spot| spot.hint.1).collect()
        };
        assert_eq!(words(30), ["select", "help", "quit"]);
        assert_eq!(words(14), ["help", "quit"]);
        assert_eq!(words(6), ["help"]);
        let all = words(200);
        assert!(all.len() > 6 && all.ends_with(&["help", "quit"]), "{all:?}");
    }

    #[test]
    fn the_chosen_column_is_seen_at_any_width() {
        let look = Look {
            theme: Theme::default(),
            depth: Depth::Mono,
        };
        let line = |chosen, width| {
            let mut buffer = Buffer::empty(Rect::new(0, 0, width, 1));
            letters(
                chosen,
                look,
                Pen::new(&mut buffer, Rect::new(0, 0, width, 1), 0),
            );
            let text: String = buffer.content.iter().map(Cell::symbol).collect();
            text.trim_end().to_owned()
        };
        for width in [40, 60, 80, 120, 200] {
            for column in Column::ALL {
                let spec = column.spec();
                let word = format!("{} {}", spec.letter, spec.title.to_lowercase());
                assert!(line(column, width).contains(&word), "{word} at {width}");
            }
        }
        assert_eq!(
            line(Column::Gpu, 40),
            "sort by g gpu  p pid  u user  m mem  …"
        );
        assert!(line(Column::Command, 40).starts_with("sort by … "));
        assert!(!line(Column::Gpu, 200).contains('…'));
    }
}
