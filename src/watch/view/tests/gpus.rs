//! The GPUs in each of their forms, with what was seen of them before.

use super::*;
use crate::units::GIB;
use crate::watch::charts::gpu_grid;
use crate::watch::layout::Form;

const FORMS: [Option<Form>; 4] = [None, Some(Form::Cards), Some(Form::Lines), Some(Form::Totals)];

/// An app that has seen `snapshot` for ten minutes, but for two of them: memory grows, and use comes and
/// goes.
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
        app.judged.courses.observe(&past);
    }
    app.judged.courses.observe(&snapshot);
    app
}

#[test]
fn gpus_with_a_history() {
    check("history-1-gpus-80x24", &watched(sample::snapshot(1, 1), 80, 24));
    check("history-8-gpus-200x60", &watched(sample::snapshot(8, 1), 200, 60));
}

#[test]
fn cards_of_gpus_that_are_divided_lost_silent_or_have_few_values() {
    let mut snapshot = sample::snapshot(4, 3);
    sample::divide(&mut snapshot, 0);
    sample::lose(&mut snapshot, 1);
    snapshot.gpus[2].stale_seconds = Some(7.2);
    snapshot.gpus[2].gpu_percent = None;
    snapshot.gpus[3].memory = None;
    snapshot.gpus[3].memory_unavailable = Some("it shares the machine's memory".into());
    let mut app = watched(snapshot, 120, 40);
    app.form = Some(Form::Cards);
    check("cards-errors-120x40", &app);
}

#[test]
fn names_that_are_hostile_stay_in_their_card() {
    let names = [
        "\x1b[2J\x1b[31mred\nH100".to_owned(),
        "とても長い名前のグラフィックスカードとその説明".to_owned(),
        "\u{202e}BG08 001H 🦀👩‍👩‍👧‍👦 כרטיס מסך".to_owned(),
        "x".repeat(10_000),
    ];
    let mut snapshot = sample::snapshot(4, 1);
    for (gpu, name) in snapshot.gpus.iter_mut().zip(&names) {
        gpu.name = Some(name.as_str().into());
    }
    for (columns, rows) in SIZES {
        let mut app = watched(snapshot.clone(), columns, rows);
        for form in FORMS {
            app.form = form;
            let buffer = render(&app);
            let is_tame = |c: char| !c.is_control() && c != '\u{202e}';
            let cells = &buffer.content;
            assert!(cells.iter().all(|cell| cell.symbol().chars().all(is_tame)));
        }
    }
}

#[test]
fn a_click_finds_the_gpu_under_it() {
    for (columns, rows) in SIZES {
        for count in [0, 1, 3, 8, 64] {
            for form in FORMS {
                let mut snapshot = sample::snapshot(count, 1);
                if count > 1 {
                    sample::divide(&mut snapshot, 1);
                }
                let mut app = showing(snapshot, columns, rows);
                app.form = form;
                let layout = app.layout().unwrap();
                let area = layout.gpus;
                let mut seen = std::collections::BTreeSet::new();
                for y in 0..rows {
                    for x in 0..columns {
                        let found = crate::watch::gpus::hit(&app, &layout, x, y);
                        let at = ratatui::layout::Position { x, y };
                        let is_inside = area.contains(at) || layout.charts.contains(at);
                        assert!(found.is_none() || is_inside && found < Some(count));
                        seen.extend(found);
                    }
                }
                let all = match layout.gpu_form {
                    Form::Totals if gpu_grid(&app, &layout).is_none() => 0,
                    _ => count as usize,
                };
                assert_eq!(seen.len(), all, "{layout:?}");
            }
        }
    }
    let mut app = showing(sample::snapshot(3, 1), 120, 40);
    app.form = Some(Form::Cards);
    let layout = app.layout().unwrap();
    let hit = |x, y| crate::watch::gpus::hit(&app, &layout, x, y);
    assert_eq!((hit(0, 1), hit(119, 1), hit(0, 8)), (Some(0), Some(1), Some(2)));
    assert_eq!(hit(119, 8), Some(2), "there is no fourth, and the third has its place");
}

#[test]
fn no_history_and_no_form_panics() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    for _ in 0..60 {
        let (columns, rows) = (dice.roll(221) as u16, dice.roll(71) as u16);
        let mut app = app(columns, rows);
        app.setup.ascii = dice.chance();
        for _ in 0..4 {
            let mut snapshot = dice.snapshot();
            snapshot.time = match dice.roll(3) {
                0 => crate::model::Time::from_unix_milliseconds(dice.bytes().unwrap_or(7) as i64),
                _ => snapshot.time.plus_seconds(dice.roll(10_000) as f64),
            };
            for gpu in &mut snapshot.gpus {
                gpu.gpu_percent = dice.bytes().map(|bits| bits as u32);
            }
            app.judged.courses.observe(&snapshot);
            app.show(Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None));
            for form in FORMS {
                app.form = form;
                draw(&app, &mut Buffer::empty(app.area));
            }
        }
    }
}
