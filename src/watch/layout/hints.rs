//! The bottom line's parts: the keys that have room, what is before them, and what after.
//!
//! Both what draws the keys and the mouse read their places from here, so that a click does what is
//! written there.

use super::{Layout, columns as table, page};
use crate::watch::keys::{self, Binding, Context, KeyAction};
use crate::watch::state::App;
use crate::watch::text::columns;

/// Blanks between one hint and the next.
pub const GAP: u16 = 2;
/// Hints at the end that are before all others have room: the help, and the way out.
const ALWAYS: usize = 2;

/// From this width on, the column that the rows are sorted by is told where it is folded away.
const SORT_SHOWN: u16 = 56;

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

/// The hints that are in the bottom line of a screen of so many columns.
pub fn shown(app: &App, layout: Option<&Layout>, width: u16) -> Vec<Spot> {
    // That there are marks, or rows out of sight, is worth more than another key.
    let kept = match (app.context(), columns(&after(app, layout, width))) {
        (Context::Plan, _) | (_, 0) => 0,
        (_, after) => after + GAP,
    };
    let begin = before(app).map_or(0, |text| columns(&text) + GAP);
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
        Context::Page | Context::Plan => None,
    }
}

/// What is at the end of the line.
pub fn after(app: &App, layout: Option<&Layout>, width: u16) -> String {
    match app.context() {
        Context::Main => {}
        Context::Page => return page::place(app),
        // What is scrolled there is the plan.
        Context::Plan => return String::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_quit_are_shown_where_others_have_no_room() {
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
}
