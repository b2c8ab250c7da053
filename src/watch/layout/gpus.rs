//! Layout of the GPU panel: cards, lines or totals.

use ratatui::layout::Rect;

use super::LayoutNeeds;

/// Minimum width of a card beside other cards.
const CARD: u16 = 56;
const CARD_GAP: u16 = 2;
/// Number of lines above a card's chart: name, bar, figures, caption.
const CARD_LINES: u16 = 4;
const CHART_ROWS_MIN: u16 = 2;
const CHART_ROWS_MAX: u16 = 12;
/// Maximum number of GPUs for which cards are the default.
const CARDS_MAX: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    Cards,
    /// A line for each GPU and, if there is room, for each MIG device.
    Lines,
    Totals,
}

impl Form {
    /// Returns the form that follows `form` when the user switches forms. `None` is the automatic form.
    pub fn after(form: Option<Self>) -> Option<Self> {
        match form {
            None => Some(Self::Cards),
            Some(Self::Cards) => Some(Self::Lines),
            Some(Self::Lines) => Some(Self::Totals),
            Some(Self::Totals) => None,
        }
    }

    pub fn describe(form: Option<Self>) -> &'static str {
        match form {
            None => "GPUs: automatic",
            Some(Self::Cards) => "GPUs: cards, if they fit",
            Some(Self::Lines) => "GPUs: lines, if they fit",
            Some(Self::Totals) => "GPUs: totals",
        }
    }
}

/// Returns the first form in which all GPUs fit, and its number of rows: at most `max` for a form
/// that the user chose, otherwise at most `usual`.
pub fn gpu_form(area: Rect, max: u16, usual: u16, needs: &LayoutNeeds) -> (Form, u16) {
    let (cards, budget) = match needs.form {
        // On a short screen, rows are more useful to the other panels.
        None if needs.gpus <= CARDS_MAX => (cards(area, usual.min(area.height / 3), needs), usual),
        None => (None, usual),
        // If `usual` rows are too few, use the smallest number in which the cards fit.
        Some(Form::Cards) => ((usual..=max).find_map(|rows| cards(area, rows, needs)), max),
        Some(Form::Lines) => (None, max),
        Some(Form::Totals) => return (Form::Totals, 1),
    };
    if let Some(rows) = cards {
        return (Form::Cards, rows);
    }
    let count = needs.gpus.max(1);
    let mut rows = [count.saturating_add(needs.parts), count].into_iter();
    match rows.find(|rows| *rows <= usize::from(budget)) {
        Some(rows) => (Form::Lines, rows as u16),
        None => (Form::Totals, 1),
    }
}

/// Returns the number of rows for cards with charts as tall as `budget` allows, or `None` if the cards do not fit or
/// there are no GPUs.
fn cards(area: Rect, budget: u16, needs: &LayoutNeeds) -> Option<u16> {
    let count = u16::try_from(needs.gpus).ok().filter(|&count| count > 0)?;
    let down = count.div_ceil(cards_across(area.width, count));
    let lines = CARD_LINES.saturating_add(u16::try_from(needs.parts_max).ok()?);
    let chart = (budget / down).checked_sub(lines)?;
    (chart >= CHART_ROWS_MIN).then_some((lines + chart.min(CHART_ROWS_MAX)) * down)
}

/// Returns the smallest number of cards per row that does not need an additional row.
fn cards_across(width: u16, count: u16) -> u16 {
    let max = ((width + CARD_GAP) / (CARD + CARD_GAP)).clamp(1, count.max(1));
    count.div_ceil(count.div_ceil(max).max(1)).max(1)
}

pub fn card_area(area: Rect, count: usize, at: usize) -> Rect {
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    let across = cards_across(area.width, count);
    let (line, column) = (at / usize::from(across), at % usize::from(across));
    let width = (area.width + CARD_GAP) / across;
    let height = area.height / count.div_ceil(across).max(1);
    Rect {
        x: area.x + column as u16 * width,
        y: area.y.saturating_add((line as u16).saturating_mul(height)),
        width: width.saturating_sub(CARD_GAP),
        height,
    }
    .intersection(area)
}
