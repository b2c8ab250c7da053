//! No large part of a screen is blank while there is something to draw.

use std::ops::Range;

use super::*;

/// So many rows may be blank, one below the other.
const MOST_BLANK: usize = 6;

/// The most rows of these columns that are blank, one below the other, and the last of them.
fn blank_rows(buffer: &Buffer, columns: Range<u16>, rows: Range<u16>) -> (usize, u16) {
    let is_blank = |x: u16, y: u16| buffer[(x, y)].symbol().trim().is_empty();
    let (mut most, mut count) = ((0, 0), 0);
    for y in rows {
        let all = columns.clone().all(|x| is_blank(x, y));
        count = if all { count + 1 } else { 0 };
        most = most.max((count, y));
    }
    most
}

#[test]
fn no_large_part_is_blank_while_there_is_something_to_draw() {
    let mut blank = Vec::new();
    for gpus in [1, 2, 3, 4, 8, 64] {
        for processes in [0, 1, 3, 12] {
            // All of them on the first GPU, and none on the others.
            let mut snapshot = sample::snapshot(gpus, 0);
            let few = sample::snapshot(1, processes);
            snapshot.gpus[0].processes = few.gpus[0].processes.clone();
            snapshot.processes = few.processes;
            let mut app = gpus::watched(snapshot, 80, 40);
            for key in [None, Some('j')] {
                if let Some(key) = key {
                    let key = crossterm::event::KeyCode::Char(key);
                    update(&mut app, Event::Key(key.into()));
                }
                for form in gpus::FORMS {
                    app.form = form;
                    for (columns, rows) in [(80, 40), (120, 40), (160, 50), (200, 60), (240, 70)] {
                        app.area = Rect::new(0, 0, columns, rows);
                        app.list();
                        let of = format!("{gpus} GPUs, {processes} processes, {key:?}");
                        blank.extend(blanks(&app, &of));
                    }
                }
            }
        }
    }
    let places: Vec<&String> = blank.iter().map(|(place, _)| place).collect();
    assert!(blank.is_empty(), "{places:#?}\n{}", blank[0].1);
}

/// The parts of a screen that are blank and ought not to be, each with the screen.
fn blanks(app: &App, of: &str) -> Vec<(String, String)> {
    let buffer = render(app);
    let (columns, half) = (app.area.width, app.area.width / 2);
    // Below the last panel are the keys.
    let rows = 0..app.area.height - 1;
    let parts = [0..columns, 0..half, columns - half..columns];
    let blank = parts.into_iter().filter_map(|part| {
        let (blank, last) = blank_rows(&buffer, part.clone(), rows.clone());
        let size = (columns, app.area.height);
        let form = app.form;
        let place = format!("{of}, {form:?}, {size:?}: {blank} rows to {last} of {part:?}");
        (blank > MOST_BLANK).then(|| (place, text(&buffer)))
    });
    blank.collect()
}
