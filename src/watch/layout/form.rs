//! How the GPUs are shown, and which form they take in the rows that they have.
//!
//! The forms fold in the order that the table of [`layout`](super) states: cards with charts, a line each, totals.

use ratatui::layout::Rect;

use super::LayoutNeeds;

/// Columns that a card is to have where there are several of them; each has this many blanks after it.
const CARD: u16 = 56;
/// Blank columns between two cards.
pub const CARD_GAP: u16 = 2;
/// Lines of a card above its chart: name, bar, figures, and the chart's caption.
pub const CARD_LINES: u16 = 4;
/// Lines of a card's chart, at the least.
pub const CHART_ROWS_MIN: u16 = 2;
/// Lines of a card's chart, at the most.
pub const CHART_ROWS_MAX: u16 = 8;
/// GPUs that have cards before a person asks for them.
const CARDS_MOST: usize = 2;

/// How the GPUs are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// A card for each, with charts: so many side by side, and each so many lines high.
    Cards {
        /// Cards side by side, 1 or more.
        across: u16,
        /// Lines of each, with those of its MIG devices.
        height: u16,
    },
    /// A line for each.
    Lines,
    /// One line for all of them.
    Totals,
}

/// The forms of the GPUs' panel that a person can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A card with charts for each, where there is room.
    Cards,
    /// At most a line for each, with one for each MIG device.
    Lines,
    /// One line for all of them.
    Totals,
}

impl Form {
    /// What the key goes on to; `None` leaves it to the room that there is.
    pub fn after(form: Option<Self>) -> Option<Self> {
        match form {
            None => Some(Self::Cards),
            Some(Self::Cards) => Some(Self::Lines),
            Some(Self::Lines) => Some(Self::Totals),
            Some(Self::Totals) => None,
        }
    }

    /// What was asked for, in words.
    pub fn describe(form: Option<Self>) -> &'static str {
        match form {
            None => "GPUs: as there is room",
            Some(Self::Cards) => "GPUs: cards, where there is room",
            Some(Self::Lines) => "GPUs: lines, where there is room",
            Some(Self::Totals) => "GPUs: totals",
        }
    }
}

/// The first form in which all GPUs fit, and the rows that it takes. They have `usual` rows, or `most`
/// where a person asked for a form.
pub(super) fn gpu_form(area: Rect, most: u16, usual: u16, needs: &LayoutNeeds) -> (Gpus, u16) {
    let count = needs.gpus.max(1);
    let (cards, budget) = match needs.form {
        // A screen that is not tall has better use for its lines.
        None if needs.gpus <= CARDS_MOST => (cards(area, usual.min(area.height / 3), needs), usual),
        None => (None, usual),
        Some(Form::Cards) => {
            // Where their half is too little for the lowest of them, they have no more than that takes.
            let lowest = || (usual..=most).find_map(|rows| cards(area, rows, needs));
            (cards(area, usual, needs).or_else(lowest), most)
        }
        Some(Form::Lines) => (None, most),
        Some(Form::Totals) => return (Gpus::Totals, 1),
    };
    if let Some(cards) = cards {
        return cards;
    }
    for rows in [count.saturating_add(needs.parts), count] {
        if rows <= usize::from(budget) {
            return (Gpus::Lines, rows as u16);
        }
    }
    (Gpus::Totals, 1)
}

/// Cards for all GPUs in at most `budget` rows, with charts as high as that allows; `None` where it
/// does not.
fn cards(area: Rect, budget: u16, needs: &LayoutNeeds) -> Option<(Gpus, u16)> {
    let count = u16::try_from(needs.gpus).ok().filter(|&count| count > 0)?;
    let across = ((area.width + CARD_GAP) / (CARD + CARD_GAP)).clamp(1, count);
    let down = count.div_ceil(across);
    // As wide as they can be without taking more lines.
    let across = count.div_ceil(down);
    let lines = CARD_LINES.saturating_add(u16::try_from(needs.parts_most).ok()?);
    let chart = (budget / down).checked_sub(lines)?;
    if chart < CHART_ROWS_MIN {
        return None;
    }
    let height = lines + chart.min(CHART_ROWS_MAX);
    Some((Gpus::Cards { across, height }, height * down))
}
