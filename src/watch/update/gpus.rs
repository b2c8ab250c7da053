//! Keys and clicks that filter the table by a GPU or open the page of a GPU.

use std::time::Duration;

use crate::model::Selector;
use crate::watch::page;
use crate::watch::state::page::About;
use crate::watch::state::{App, Effect, Mode, NOTHING_SEEN, TypedDigits};

/// Maximum time between two digits of one number.
const SECOND_DIGIT: Duration = Duration::from_secs(1);

/// Handles a digit: filters by the GPU with this number or, if that filter is already set, removes it. If another
/// digit was typed just before, and a GPU with both digits exists, filters by that GPU. On a page, opens the page of
/// the GPU instead.
pub fn on_digit(app: &mut App, digit: u8) -> Option<Effect> {
    let Some(screenful) = &app.screenful else {
        return app.refuse(NOTHING_SEEN);
    };
    let gpus = &screenful.snapshot.gpus;
    let exists = |number: u32| gpus.iter().any(|gpu| gpu.index == number);
    let now = app.judged.now();
    let digit = u32::from(digit);
    let typed = app.digits.take();
    let typed = typed.filter(|typed| now.saturating_sub(typed.at) <= SECOND_DIGIT);
    let both = typed.and_then(|typed| typed.number.checked_mul(10)?.checked_add(digit));
    // Typing `00` toggles the filter of GPU 0 twice.
    let both = both.filter(|both| *both >= 10 && exists(*both));
    let number = both.unwrap_or(digit);
    if !exists(number) {
        let last = gpus.iter().map(|gpu| gpu.index).max();
        let message = match last {
            Some(last) => format!("there is no GPU {number}; the last is GPU {last}"),
            None => "there is no GPU".to_owned(),
        };
        return app.refuse(&message);
    }
    app.digits = Some(TypedDigits { number, at: now });
    if app.mode == Mode::Page {
        return page::open_about(app, About::Gpu(number), None);
    }
    match both {
        // Replace the filter that the first digit set.
        Some(_) => set_filter(app, filter_of(number)),
        None => toggle_filter(app, number),
    }
}

pub fn toggle_filter(app: &mut App, index: u32) -> Option<Effect> {
    let filter = filter_of(index);
    let is_active = app.table.choice.filter == filter;
    set_filter(app, filter.filter(|_| !is_active))
}

fn set_filter(app: &mut App, filter: Option<Selector>) -> Option<Effect> {
    app.choose(|choice| choice.filter = filter);
    Some(Effect::Draw)
}

fn filter_of(index: u32) -> Option<Selector> {
    Selector::parse(&format!("gpu:{index}")).ok().flatten()
}

/// Shows a note if the filter from the command line names a GPU that does not exist.
pub fn note_missing(app: &mut App) {
    let (Some(screenful), Some(filter)) = (&app.screenful, &app.table.choice.filter) else {
        return;
    };
    let gpus = &screenful.snapshot.gpus;
    let mut named = filter.named_gpus(gpus).into_iter();
    let Some(missing) = named.find(|named| named.gpus.is_empty()) else {
        return;
    };
    let existing: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let existing = match existing.is_empty() {
        true => "none".to_owned(),
        false => existing.join(", "),
    };
    let typed = missing.typed;
    app.note = Some(format!("gpu:{typed}: there is no such GPU; there are {existing}"));
}

/// Opens the page of a GPU: the GPU of the selected row or finding, the GPU in the filter, or the
/// first GPU. On a GPU's page, opens the page of the next GPU.
pub fn open_page(app: &mut App) -> Option<Effect> {
    let Some(screenful) = &app.screenful else {
        return app.refuse(NOTHING_SEEN);
    };
    let gpus = &screenful.snapshot.gpus;
    let Some(first) = gpus.first() else {
        return app.refuse("there is no GPU");
    };
    let after = |index: u32| {
        let at = gpus.iter().position(|gpu| gpu.index == index);
        let next = at.and_then(|at| gpus.get(at + 1));
        next.unwrap_or(first).index
    };
    let of_filter = || {
        let filter = app.table.choice.filter.as_ref()?;
        let named = filter.named_gpus(gpus).into_iter().next()?;
        named.gpus.first().map(|gpu| gpu.index)
    };
    let of_finding = || Some(app.selected_finding()?.1.gpus.first()?.index);
    let of_row = || app.subject()?.row.key.gpu;
    let index = match app.page.as_ref().map(|page| page.about) {
        Some(About::Gpu(index)) => after(index),
        Some(About::Process(_) | About::Environment(_)) | None => {
            of_row().or_else(of_finding).or_else(of_filter).unwrap_or(first.index)
        }
        Some(About::Totals) => of_filter().unwrap_or(first.index),
    };
    page::open_about(app, About::Gpu(index), None)
}
