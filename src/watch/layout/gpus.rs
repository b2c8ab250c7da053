//! Where each GPU is in the GPUs' panel, and which lies under the mouse.

use ratatui::layout::{Position, Rect};

use super::{CARD_GAP, DENSE_CELL, GRID_CELL, Gpus, Layout};
use crate::model::snapshot::{Gpu, Snapshot};
use crate::watch::state::App;

/// Blank columns at the end of a cell.
pub const CELL_GAP: u16 = 2;

/// The GPU at a place on the screen, by its position in the snapshot.
pub fn hit(app: &App, layout: &Layout, x: u16, y: u16) -> Option<usize> {
    let snapshot = &app.screenful.as_ref()?.snapshot;
    let area = layout.gpus;
    if !area.contains(Position { x, y }) {
        return None;
    }
    let (x, y) = (x - area.x, y - area.y);
    // A blank at the end of the line belongs to the last cell on it.
    let at = |x: u16, width: u16, across: u16| usize::from((x / width.max(1)).min(across - 1));
    let cell = |x: u16, width: u16| {
        let across = (area.width / width).max(1);
        usize::from(y) * usize::from(across) + at(x, width, across)
    };
    let found = match layout.gpu_form {
        Gpus::Cards { across, height } => {
            let down = usize::from(y / height.max(1));
            down * usize::from(across) + at(x, card_width(area, across) + CARD_GAP, across)
        }
        Gpus::Lines => {
            let has_parts = has_room_for_parts(snapshot, area);
            let lines = |gpu: &Gpu| 1 + if has_parts { gpu.mig_devices.len() } else { 0 };
            let mut end = 0;
            snapshot.gpus.iter().position(|gpu| {
                end += lines(gpu);
                usize::from(y) < end
            })?
        }
        Gpus::Grid => cell(x, GRID_CELL),
        Gpus::Dense => {
            let indent = dense_indent(snapshot, layout.gpu_heading);
            cell(x.saturating_sub(indent), DENSE_CELL)
        }
        Gpus::Sum => return None,
    };
    (found < snapshot.gpus.len()).then_some(found)
}

/// Columns of each of the cards that share a line.
pub fn card_width(area: Rect, across: u16) -> u16 {
    ((area.width + CARD_GAP) / across.max(1)).saturating_sub(CARD_GAP)
}

/// Whether MIG devices have lines: all of them or none, for some would look like all.
pub fn has_room_for_parts(snapshot: &Snapshot, area: Rect) -> bool {
    let parts: usize = snapshot.gpus.iter().map(|gpu| gpu.mig_devices.len()).sum();
    snapshot.gpus.len() + parts <= usize::from(area.height)
}

/// Columns that the dense grid is further right, which is as many as its last gap has: where there
/// is no heading, the word of what the numbers are has room before the first index then, if that has one
/// digit.
pub fn dense_indent(snapshot: &Snapshot, heading: Rect) -> u16 {
    let is_short = snapshot.gpus.first().is_some_and(|gpu| gpu.index < 10);
    if heading.is_empty() && is_short {
        CELL_GAP
    } else {
        0
    }
}
