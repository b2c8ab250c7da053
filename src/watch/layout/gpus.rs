//! Where each GPU is in the GPUs' panel, and which lies under the mouse.

use ratatui::layout::{Position, Rect};

use super::{CARD_GAP, Gpus, Layout};
use crate::model::snapshot::Gpu;
use crate::watch::state::App;

/// The GPU at a place on the screen, by its number: in its panel, or where its charts are.
pub fn hit(app: &App, layout: &Layout, x: u16, y: u16) -> Option<u32> {
    let at = Position { x, y };
    let gpus = app.shown_gpus();
    let found = match layout.gpus.contains(at) {
        true => in_panel(&gpus, layout, at),
        false => in_charts(&gpus, layout, at),
    };
    gpus.get(found?).map(|gpu| gpu.index)
}

/// Which of the GPUs is at a place of their panel.
fn in_panel(gpus: &[&Gpu], layout: &Layout, at: Position) -> Option<usize> {
    let area = layout.gpus;
    match layout.gpu_form {
        Gpus::Cards { across, height } => (0..gpus.len()).rev().find(|&gpu| {
            let card = card(area, (across, height), gpus.len(), gpu);
            card.x <= at.x && card.y <= at.y
        }),
        Gpus::Lines => {
            let has_parts = has_room_for_parts(gpus, area);
            let lines = |gpu: &Gpu| 1 + if has_parts { gpu.mig_devices.len() } else { 0 };
            let mut end = 0;
            gpus.iter().position(|gpu| {
                end += lines(gpu);
                usize::from(at.y - area.y) < end
            })
        }
        Gpus::Totals => None,
    }
}

/// Which of the GPUs has its charts at a place.
fn in_charts(gpus: &[&Gpu], layout: &Layout, at: Position) -> Option<usize> {
    let grid = layout.chart_panes.gpus?;
    // One cell is of all of them.
    let has_each = grid.count == gpus.len();
    (0..grid.count).find(|&gpu| has_each && grid.cell(gpu).contains(at))
}

/// Where the card of a GPU is. Those of the last line are as wide as that line allows.
pub fn card(area: Rect, (across, height): (u16, u16), count: usize, at: usize) -> Rect {
    let (line, column) = (at / usize::from(across.max(1)), at % usize::from(across.max(1)));
    let here = count.saturating_sub(line * usize::from(across));
    let here = (here as u16).clamp(1, across.max(1));
    let width = ((area.width + CARD_GAP) / here).saturating_sub(CARD_GAP);
    let (line, column) = (line as u16, column as u16);
    Rect {
        x: area.x + column * (width + CARD_GAP),
        y: area.y.saturating_add(line.saturating_mul(height)),
        width,
        height,
    }
    .intersection(area)
}

/// Whether MIG devices have lines: all of them or none, for some would look like all.
pub fn has_room_for_parts(gpus: &[&Gpu], area: Rect) -> bool {
    let parts: usize = gpus.iter().map(|gpu| gpu.mig_devices.len()).sum();
    gpus.len() + parts <= usize::from(area.height)
}
