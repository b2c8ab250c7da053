//! Layout of the bottom line, for the view and the mouse: the hints that fit, with text on both sides.

use super::{Layout, columns as table};
use crate::watch::keys::{self, Context, Hint};
use crate::watch::page;
use crate::watch::state::App;
use crate::watch::state::page::Page;
use crate::watch::text::columns;

pub const GAP: u16 = 1;
/// Blanks between the hints and the text beside them.
const ASIDE: u16 = 2;

#[derive(Clone, Copy, Debug)]
pub struct HintPosition {
    pub from: u16,
    /// First screen column after the hint.
    pub to: u16,
    pub hint: Hint,
}

pub fn shown(app: &App, layout: Option<&Layout>, width: u16) -> Vec<HintPosition> {
    // The text after the hints is more important than another hint.
    let kept = match (app.context(), columns(&after(app, layout))) {
        (Context::Plan | Context::Columns, _) | (_, 0) => 0,
        (_, after) => after + ASIDE,
    };
    let start = before(app).map_or(0, |text| columns(&text) + ASIDE);
    let context = app.context();
    // Only a page about a process has a process to kill.
    let applies = |hint: &Hint| {
        context != Context::Page
            || !["Kill", "Release"].contains(&hint.word)
            || app.page.as_ref().is_some_and(Page::has_subject)
    };
    let hints = keys::hints(context).filter(applies).collect();
    let mut spots = spots(hints, width.saturating_sub(kept + start));
    for spot in &mut spots {
        spot.from += start;
        spot.to += start;
    }
    spots
}

pub fn before(app: &App) -> Option<String> {
    match app.context() {
        Context::Main => app.batch_hint(),
        Context::Page | Context::Plan | Context::Columns => None,
    }
}

pub fn after(app: &App, layout: Option<&Layout>) -> String {
    match app.context() {
        Context::Main => {
            let height = layout.map_or(0, |layout| layout.table.height);
            table::beyond(app, height)
        }
        Context::Page => page::position(app),
        Context::Plan | Context::Columns => String::new(),
    }
}

/// Places the hints that fit. Hints with the highest rank are dropped first.
pub fn spots(mut hinted: Vec<Hint>, width: u16) -> Vec<HintPosition> {
    let size = |hint: &Hint| columns(hint.key) + 1 + columns(hint.word);
    let needed = |hints: &[Hint]| hints.iter().map(|hint| size(hint) + GAP).sum::<u16>();
    while needed(&hinted) > width + GAP {
        let last = hinted.iter().map(|hint| hint.rank).max();
        hinted.retain(|hint| Some(hint.rank) != last);
    }
    let mut from = 0;
    let spots = hinted.into_iter().map(|hint| {
        let to = from + size(&hint);
        let spot = HintPosition { from, to, hint };
        from = to + GAP;
        spot
    });
    spots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_that_closes_is_dropped_last() {
        let line = |context, width| {
            let spots = spots(keys::hints(context).collect(), width);
            assert!(spots.iter().all(|spot| spot.to <= width), "{width}");
            let words = spots.iter().map(|spot| format!("{} {}", spot.hint.key, spot.hint.word));
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line(Context::Page, 8), "Esc Back");
        assert_eq!(line(Context::Plan, 9), "Esc Leave");
        assert_eq!(line(Context::Columns, 10), "Enter Keep");
        let all = "Space Switch Left Right Move r Reset Enter Keep Esc Cancel";
        assert_eq!(line(Context::Columns, 60), all);
        assert_eq!(line(Context::Main, 0), "");
    }
}
