//! Tests of the GPU panel in each form, with a history.

use super::*;
use crate::units::GIB;
use crate::watch::charts::{self, Charted};
use crate::watch::layout::Form;

/// Shows nine minutes of samples with a gap of two minutes. Memory grows, and utilization varies.
pub(super) fn watched(snapshot: Snapshot, columns: u16, rows: u16) -> App {
    let mut app = showing(snapshot.clone(), columns, rows);
    for second in (0..=540).rev().step_by(5) {
        if (200..320).contains(&second) {
            continue;
        }
        let mut past = snapshot.clone();
        past.time = snapshot.time.plus_seconds(-f64::from(second));
        for gpu in &mut past.gpus {
            if let Some(memory) = &mut gpu.memory {
                let grown = u64::from(gpu.index % 4) * u64::from(540 - second) * GIB / 60;
                memory.used_bytes = memory.used_bytes / 4 + grown;
            }
            let wave = (second / 5 * 7 + gpu.index * 13) % 101;
            gpu.gpu_percent = gpu.gpu_percent.map(|_| if second < 100 { 0 } else { wave });
        }
        app.judged.all_series.observe(&past);
    }
    app.judged.all_series.observe(&snapshot);
    app
}

/// Shows ten minutes in which nothing changes.
pub(super) fn steady(snapshot: Snapshot) -> App {
    let mut app = showing(snapshot.clone(), 120, 40);
    for second in (0..=600).rev().step_by(30) {
        let mut past = snapshot.clone();
        past.time = snapshot.time.plus_seconds(-f64::from(second));
        app.judged.all_series.observe(&past);
    }
    app
}

#[test]
fn gpus_with_a_history() {
    check("history-1-gpus-80x24", &watched(sample::snapshot(1, 1), 80, 24));
    check("history-8-gpus-200x60", &watched(sample::snapshot(8, 1), 200, 60));
}

#[test]
fn hit_returns_the_gpu_at_a_position() {
    for (columns, rows) in SIZES {
        for count in [0, 1, 3, 8, 64] {
            let mut snapshot = sample::snapshot(count, 1);
            if count > 1 {
                sample::divide(&mut snapshot, 1);
            }
            let app = showing(snapshot, columns, rows);
            let layout = app.layout().unwrap();
            let area = layout.gpus;
            let mut hits = std::collections::BTreeSet::new();
            for y in 0..rows {
                for x in 0..columns {
                    let found = crate::watch::gpus::hit(&app, &layout, x, y);
                    let at = ratatui::layout::Position { x, y };
                    let is_inside = area.contains(at) || layout.charts.contains(at);
                    assert!(found.is_none() || is_inside && found < Some(count));
                    hits.extend(found);
                }
            }
            let charts = charts::shown(&app, &layout);
            let has_charts = charts.iter().any(|(_, charted)| matches!(charted, Charted::Gpu(_)));
            let all = match layout.gpu_form {
                Form::Totals if !has_charts => 0,
                _ => count as usize,
            };
            assert_eq!(hits.len(), all, "{layout:?}");
        }
    }
}
