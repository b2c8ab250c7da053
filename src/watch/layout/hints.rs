//! The bottom line's parts: the keys that have room, what is before them, and what after.
//!
//! Both what draws the keys and the mouse read their places from here, so that a click does what is
//! written there.

use super::{Layout, columns as table, page};
use crate::watch::keys::{self, Binding, Context, Hint, KeyAction};
use crate::watch::state::App;
use crate::watch::text::columns;

/// Blanks between one hint and the next.
pub const GAP: u16 = 1;
/// Blanks between the hints and what is before and after them.
const ASIDE: u16 = 2;

/// From this width on, the column that the rows are sorted by is told where it is folded away.
const SORT_SHOWN: u16 = 56;

/// A hint, and its columns.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Its first column.
    pub from: u16,
    /// The column after its last.
    pub to: u16,
    /// What is written there.
    pub hint: Hint,
    /// What it is the hint of.
    pub binding: &'static Binding,
}

/// The hints that are in the bottom line of a screen of so many columns.
pub fn shown(app: &App, layout: Option<&Layout>, width: u16) -> Vec<Spot> {
    // That there are marks, or rows out of sight, is worth more than another key.
    let kept = match (app.context(), columns(&after(app, layout, width))) {
        (Context::Plan | Context::Columns, _) | (_, 0) => 0,
        (_, after) => after + ASIDE,
    };
    let begin = before(app).map_or(0, |text| columns(&text) + ASIDE);
    let bindings = keys::table(app.context()).filter(|binding| {
        app.context() != Context::Page
            || binding.action != KeyAction::Reap
            || app.has_page_subject()
    });
    let mut spots = spots(bindings, width.saturating_sub(kept + begin));
    for spot in &mut spots {
        spot.from += begin;
        spot.to += begin;
    }
    spots
}

/// What is before the keys: how far an ending is.
pub fn before(app: &App) -> Option<String> {
    match app.context() {
        Context::Main => app.batch_hint(),
        Context::Page | Context::Plan | Context::Columns => None,
    }
}

/// What is at the end of the line.
pub fn after(app: &App, layout: Option<&Layout>, width: u16) -> String {
    match app.context() {
        Context::Main => {}
        Context::Page => return page::position(app),
        // What is scrolled there is not the table.
        Context::Plan | Context::Columns => return String::new(),
    }
    let height = layout.map_or(0, |layout| layout.table.height);
    let beyond = table::beyond(app, height);
    match table::hidden_sort(app, width) {
        Some(title) if width >= SORT_SHOWN => {
            format!("sorted by {title}  {beyond}").trim_end().to_owned()
        }
        _ => beyond,
    }
}

/// The hints of these keys that have room on a line of so many columns, from left to right. Where not
/// all have, they go one by one and whole, the least important first.
pub fn spots(bindings: impl Iterator<Item = &'static Binding>, width: u16) -> Vec<Spot> {
    let mut hinted: Vec<(Hint, &'static Binding)> =
        bindings.filter_map(|binding| Some((binding.hint?, binding))).collect();
    hinted.sort_by_key(|(hint, _)| hint.rank);
    let size = |hint: &Hint| columns(hint.key) + 1 + columns(hint.word);
    let mut used = 0;
    let fitting = hinted.iter().take_while(|(hint, _)| {
        let gap = if used == 0 { 0 } else { GAP };
        used += gap + size(hint);
        used <= width
    });
    let count = fitting.count();
    hinted.truncate(count);
    hinted.sort_by_key(|(hint, _)| hint.place);
    let mut from = 0;
    let spots = hinted.into_iter().map(|(hint, binding)| {
        let to = from + size(&hint);
        let spot = Spot { from, to, hint, binding };
        from = to + GAP;
        spot
    });
    spots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(context: Context, width: u16) -> String {
        let spots = spots(keys::table(context), width);
        assert!(spots.iter().all(|spot| spot.to <= width), "{width}");
        let words = spots.iter().map(|spot| format!("{} {}", spot.hint.key, spot.hint.word));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_way_out_stays_longest_where_something_is_open() {
        assert_eq!(line(Context::Page, 8), "Esc Back");
        assert_eq!(line(Context::Plan, 9), "Esc Leave");
        assert_eq!(line(Context::Columns, 10), "Enter Keep");
        let all = "Space Switch Left Right Move r Reset Enter Keep Esc Cancel";
        assert_eq!(line(Context::Columns, 60), all);
    }

    #[test]
    fn no_two_hints_of_a_line_have_the_same_place_or_rank() {
        for context in [Context::Main, Context::Page, Context::Plan, Context::Columns] {
            for of in [|hint: Hint| hint.place, |hint: Hint| hint.rank] {
                let mut all: Vec<u8> =
                    keys::table(context).filter_map(|it| it.hint).map(of).collect();
                all.sort_unstable();
                assert!(all.windows(2).all(|two| two[0] != two[1]), "{context:?}");
            }
        }
    }
}
