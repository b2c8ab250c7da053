//! Tests of the selected process's charts and their marks.

use super::*;
use crate::model::finding::Evidence;
use crate::rules::leak::LeakEvidence;
use crate::units::GIB;

/// Returns a leak that fills its GPU in `seconds`.
fn leak(snapshot: &Snapshot, seconds: f64) -> Finding {
    let mut finding = sample::finding(snapshot, 0, 0);
    finding.evidence = Evidence::new(LeakEvidence {
        bytes_per_second: 1e6,
        span_seconds: 1500.0,
        samples: 300,
        grown_bytes: GIB,
        free_bytes: Some(70 * GIB),
        out_of_memory_seconds: Some(seconds),
    });
    finding
}

/// Selects the first process of GPU 0, which has the finding and has been idle for `idle` seconds.
fn selected(found: impl FnOnce(&Snapshot) -> Finding, idle: f64) -> App {
    let snapshot = sample::snapshot(4, 1);
    let time = snapshot.time;
    let mut app = gpus::watched(snapshot.clone(), 200, 60);
    let finding = found(&snapshot);
    app.show(Screenful::new(snapshot, vec![finding], Vec::new(), |_, _| {
        Some(time.plus_seconds(-idle))
    }));
    let key = app.screenful.as_ref().unwrap().rows[0].key;
    assert!(app.select_row(Some(key)));
    app
}

#[test]
fn process_charts_show_the_forecast_and_the_idle_time() {
    let app = selected(|snapshot| leak(snapshot, 36_000.0), 300.0);
    check("charts-leak-200x60", &app);
    let short_idle = text(&render(&selected(|snapshot| leak(snapshot, 300.0), 30.0)));
    assert!(!short_idle.contains("unused for"), "{short_idle}");
}

#[test]
fn selecting_a_row_does_not_move_the_table() {
    for (columns, rows) in SIZES {
        for gpus in [1, 2, 4, 8] {
            let mut app = gpus::watched(sample::snapshot(gpus, 1), columns, rows);
            app.list();
            let before = app.layout().unwrap();
            keys(&mut app, "j");
            let after = app.layout().unwrap();
            assert_eq!(before.table_heading, after.table_heading);
            assert_eq!(before.table.y, after.table.y);
        }
    }
}
