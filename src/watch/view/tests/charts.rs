//! Tests of charts: their values can be read from the picture.

use super::*;
use crate::units::GIB;
use crate::watch::charts;
use crate::watch::theme::Styles;
use ratatui::layout::Rect;

/// Shows four GPUs. The process on GPU 0 is selected and has been idle for `idle` seconds.
fn selected(idle: f64) -> App {
    let snapshot = sample::snapshot(4, 1);
    let time = snapshot.time;
    let mut app = gpus::watched(snapshot.clone(), 200, 60);
    let finding = sample::finding(&snapshot, 0, 0);
    app.show(Screenful::new(snapshot, vec![finding], Vec::new(), |_, _| {
        Some(time.plus_seconds(-idle))
    }));
    let key = app.screenful.as_ref().unwrap().rows[0].key;
    assert!(app.select_row(Some(key)));
    app
}

#[test]
fn charts_beside_the_table_show_memory_utilization_and_the_idle_time() {
    check("charts-beside-200x60", &selected(300.0));
    let short_idle = text(&render(&selected(30.0)));
    assert!(!short_idle.contains("unused for"), "{short_idle}");
}

/// Reads memory, utilization and reclaimable memory from a chart, as shares of its height.
fn read_chart(canvas: &Buffer, styles: Styles) -> [f64; 3] {
    let inside = canvas.area.inner(ratatui::layout::Margin::new(1, 1));
    let share =
        |y: u16, part: f64| (f64::from(inside.bottom() - 1 - y) + part) / f64::from(inside.height);
    let mut read = [0.0f64; 3];
    for x in inside.x + 4..inside.right() {
        // Below the uppermost cell, whole cells are reclaimable or in use.
        let mut reclaimable = 0;
        for y in inside.top()..inside.bottom() {
            let cell = &canvas[(x, y)];
            let symbol = cell.symbol().chars().next().unwrap();
            let is_line = cell.fg == styles.load().fg.unwrap();
            let part = match symbol {
                '▁' if is_line => 1.0 / 6.0,
                '─' if is_line => 0.5,
                '▔' if is_line => 5.0 / 6.0,
                '▁'..='▇' => f64::from(symbol as u32 - '▁' as u32 + 1) / 8.0,
                '█' | '■' | '▒' => 1.0,
                _ => continue,
            };
            let at = usize::from(is_line);
            read[at] = read[at].max(share(y, part));
            reclaimable += u16::from(!is_line && cell.fg == styles.reclaimable().fg.unwrap());
        }
        read[2] = read[2].max(f64::from(reclaimable) / f64::from(inside.height));
    }
    read
}

#[test]
fn values_can_be_read_from_a_chart_within_5_percent() {
    let styles = Styles { theme: Theme::Terminal, has_color: true };
    for (width, height) in [(36, 6), (40, 8), (80, 14), (120, 22)] {
        for used in (0..=100).step_by(5) {
            for percent in [0, 3, 10, 50, 85, 93, 100, used, (used + 8).min(100)] {
                let mut snapshot = sample::snapshot(1, 1);
                let bytes = 80 * GIB * u64::from(used) / 100;
                snapshot.gpus[0].memory.as_mut().unwrap().used_bytes = bytes;
                snapshot.gpus[0].gpu_percent = Some(percent);
                sample::entry(&mut snapshot, 0, 0).used_bytes = Some(bytes / 2);
                let app = gpus::steady(snapshot);
                let screenful = app.screenful.as_ref().unwrap();
                let window = charts::window(&app.judged.all_series, &screenful.snapshot);
                let gpu = &screenful.snapshot.gpus[0];
                let mut canvas = Buffer::empty(Rect::new(0, 0, width, height));
                let area = canvas.area;
                charts::draw_gpu(&app, gpu, (window, styles), area, &mut canvas);
                let [memory, load, reclaimable] = read_chart(&canvas, styles);
                let picture = text(&canvas);
                let used = f64::from(used) / 100.0;
                assert!((memory - used).abs() <= 0.05, "{used} {memory}\n{picture}");
                let share = f64::from(percent) / 100.0;
                assert!((load - share).abs() <= 0.05, "{share} {load}\n{picture}");
                // The border between two layers is rounded to a row.
                if height >= 14 && percent < 50 {
                    assert!((reclaimable - used / 2.0).abs() <= 0.05 + 1.0 / 24.0, "{picture}");
                }
            }
        }
    }
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
