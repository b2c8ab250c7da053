//! No large part of a screen is blank while there is something to draw.

use std::ops::Range;

use super::*;
use crate::watch::layout::Gpus;

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
                        check_blanks(
                            &app,
                            &format!("{gpus} GPUs, {processes} processes, {key:?}"),
                        );
                    }
                }
            }
        }
    }
}

fn check_blanks(app: &App, of: &str) {
    let buffer = render(app);
    let (columns, half) = (app.area.width, app.area.width / 2);
    let layout = app.layout().unwrap();
    let count = app.screenful.as_ref().unwrap().snapshot.gpus.len();
    // Cards that a person asked for may be an odd number.
    let from = match layout.gpu_form {
        Gpus::Cards { across, .. } if !count.is_multiple_of(usize::from(across)) => {
            layout.gpus.bottom()
        }
        _ => 0,
    };
    // Half of a line says that there are no rows, and what is said of a process is as short.
    let to = match app.table.listing.lines.len() {
        0 => from,
        _ => layout.status.y,
    };
    for (part, rows) in [
        (0..columns, 0..app.area.height),
        (0..half, from..layout.status.y),
        (columns - half..columns, from..to),
    ] {
        let (blank, last) = blank_rows(&buffer, part.clone(), rows);
        assert!(
            blank <= MOST_BLANK,
            "{of}, {:?}: {blank} rows to {last} of columns {part:?}\n{}",
            app.form,
            text(&buffer)
        );
    }
}
