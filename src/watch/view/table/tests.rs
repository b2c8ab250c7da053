//! The table's columns, and what it looks like with a tree, a filter, marks, a history, a prompt.

use std::sync::Arc;

use crossterm::event::KeyCode;

use super::super::tests::{check, hostile, render, showing, text};
use super::*;
use crate::model::process::Parent;
use crate::model::row::Me;
use crate::model::snapshot::Process;
use crate::units::MIB;
use crate::watch::column::Columns;
use crate::watch::layout::columns::{beyond, hit_column};
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::update::update;
use crate::watch::view_model::Widths;

const SIZES: [(u16, u16); 5] = [(40, 10), (60, 15), (80, 24), (120, 40), (200, 60)];

fn type_in(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        update(app, Event::Key(code.into()));
    }
}

/// Two GPUs: a launcher of a run with a rank on each, one of which has a child; a notebook, and a
/// process on both GPUs. A leak climbs.
fn job() -> App {
    let mut snapshot = sample::snapshot(2, 4);
    for process in &mut snapshot.processes {
        process.uid = Some(1000);
        process.user = Some("ann".into());
        process.process_group = Some(process.pid);
        process.ppid = Some(1);
    }
    let mut launcher = Process {
        pid: 3000,
        start_ticks: Some(1),
        comm: Some("torchrun".into()),
        uid: Some(1000),
        process_group: Some(3000),
        gpu_files: None,
        ..Process::default()
    };
    launcher.state = Some('S');
    snapshot.processes.push(launcher);
    for (child, parent, ticks) in [(0, 3000, 1), (4, 3000, 1), (5, 4100, 1000)] {
        let process = &mut snapshot.processes[child];
        process.ppid = Some(parent);
        process.process_group = Some(3000);
        process.parent =
            Some(Arc::new(Parent { pid: parent, start_ticks: Some(ticks), ..Parent::default() }));
    }
    snapshot.processes[3].uid = Some(1001);
    snapshot.processes[3].user = Some("bob".into());
    sample::entry(&mut snapshot, 1, 3).pid = 4002;
    sample::entry(&mut snapshot, 1, 2).used_bytes = Some(3 * MIB);
    let courses = sample::courses(&snapshot, 20);
    let mut first = snapshot.clone();
    first.time = snapshot.time.plus_seconds(-1200.0);
    let mut app = showing(snapshot, 80, 24);
    app.judged.engine.observe(&first);
    app.judged.courses = courses;
    app.setup.me = Me { uid: Some(1000), name: Some("ann".into()) };
    app
}

fn check_all(name: &str, keys: &str) {
    for (columns, rows) in SIZES {
        let mut app = job();
        update(&mut app, Event::Resize(columns, rows));
        type_in(&mut app, keys);
        check(&format!("{name}-{columns}x{rows}"), &app);
    }
}

#[test]
fn a_tree_joins_families() {
    check_all("tree", "t");
}

#[test]
fn what_is_filtered_away_is_counted() {
    check_all("filter", "/mem>4GiB\n");
    check_all("prompt", "/gpu:0 idle>10");
    check_all("filtered-away", "/nowhere\n");
}

#[test]
fn marked_rows_are_seen_and_counted() {
    check_all("marked", "j  jjk");
}

#[test]
fn hostile_names_in_trees_prompts_and_scrolled_commands() {
    for (columns, rows) in SIZES {
        let mut app = showing(hostile(), columns, rows);
        type_in(&mut app, "tl/\u{202e}日本\u{1b}e\u{301}👩\u{200d}👩:");
        for cell in &render(&app).content {
            assert!(!cell.symbol().contains(char::is_control), "{cell:?}");
            assert!(!cell.symbol().contains('\u{202e}'), "{cell:?}");
        }
        check(&format!("hostile-prompt-{columns}x{rows}"), &app);
    }
}

#[test]
fn names_of_any_width_leave_the_columns_where_they_are() {
    let app = showing(hostile(), 120, 40);
    let screen = text(&render(&app));
    let lines: Vec<&str> = screen.lines().collect();
    let heading = lines.iter().position(|line| line.contains("MEMORY▼")).unwrap();
    let end_of = |line: &str, mark: &str| {
        let at = line.find(mark).map(|at| at + mark.len());
        columns(&line[..at.unwrap()])
    };
    let right = end_of(lines[heading], "MEMORY▼");
    for line in &lines[heading + 1..heading + 8] {
        assert_eq!(end_of(line, " GiB"), right, "{line}");
    }
}

#[test]
fn commands_scroll_to_their_end_and_back() {
    let mut app = job();
    type_in(&mut app, "/pid:4002\n");
    let end = |app: &App| text(&render(app)).contains("openai.api_server");
    assert!(!end(&app));
    type_in(&mut app, &"l".repeat(50));
    assert!(end(&app));
    let farthest = app.table.scrolled;
    type_in(&mut app, "l");
    assert_eq!(app.table.scrolled, farthest);
    update(&mut app, Event::Key(KeyCode::Left.into()));
    assert_eq!(app.table.scrolled, 0);
}

#[test]
fn a_heading_is_hit_where_it_is_drawn() {
    let app = job();
    let screen = text(&render(&app));
    let line = screen.lines().find(|line| line.contains("MEMORY▼")).unwrap();
    for (word, column) in [
        ("GPU", Column::Gpu),
        ("PID", Column::Pid),
        ("USER", Column::User),
        ("MEMORY", Column::Memory),
        ("SM%", Column::SmPercent),
        ("IDLE", Column::Idle),
        ("COMMAND", Column::Command),
    ] {
        let x = columns(&line[..line.find(word).unwrap()]);
        assert_eq!(hit_column(&app, &app.layout().unwrap(), x), Some(column), "{word}");
        assert_eq!(
            hit_column(&app, &app.layout().unwrap(), x + columns(word) - 1),
            Some(column),
            "{word}"
        );
    }
    assert_eq!(hit_column(&app, &app.layout().unwrap(), 79), Some(Column::Command));
    assert_eq!(hit_column(&app, &app.layout().unwrap(), 80), None);
}

#[test]
fn what_is_marked_but_hidden_is_counted() {
    let mut app = job();
    type_in(&mut app, "j  ");
    assert_eq!(beyond(&app, 50), "2 marked");
    type_in(&mut app, "/nowhere\n");
    assert_eq!(beyond(&app, 50), "2 marked, 2 not shown");
}

#[test]
fn columns_leave_in_order_of_need_and_never_overflow() {
    let widths = Widths { gpu: 4, pid: 7, user: 8, framework: 10, place: 12, finding: 8 };
    for width in 0..=220u16 {
        let columns = chosen(&Columns::default(), widths, width);
        let used: u16 = columns.iter().map(|(_, width)| width + 1).sum();
        assert!(used <= width.max(1) + 1, "{width}: {columns:?}");
        let count = columns.len();
        let mut kept = Column::BY_NEED[..count].to_vec();
        kept.retain(|it| !columns.iter().any(|(shown, _)| shown == it));
        assert_eq!(kept, [], "{width}");
    }
    assert_eq!(chosen(&Columns::default(), widths, 220).len(), Column::ALL.len());
}

#[test]
fn chosen_columns_keep_their_order_and_the_command_takes_what_is_left() {
    let widths = Widths { gpu: 4, pid: 7, ..Widths::default() };
    let order = [Column::Command, Column::Pid, Column::Memory];
    let columns = Columns::new(order).unwrap();
    for width in [40, 80, 200] {
        let shown = chosen(&columns, widths, width);
        let names: Vec<Column> = shown.iter().map(|(column, _)| *column).collect();
        assert_eq!(names, order, "{width}");
        let used: u16 = shown.iter().map(|(_, width)| width + 1).sum();
        assert_eq!(used, width - GUTTER, "{width}: all of the room is used");
    }
    let without = Columns::new([Column::Pid, Column::Memory]).unwrap();
    assert_eq!(chosen(&without, widths, 200).len(), 2);
}

#[test]
fn only_the_halted_are_marked_so() {
    for (state, marked) in [('R', false), ('S', false), ('I', false), ('D', false), ('T', true)] {
        assert_eq!(is_halted(state), marked, "{state}");
    }
}

#[test]
fn what_limits_the_rows_is_shown_beside_the_headings() {
    let lines = |width, height, count, filter: &str| {
        let mut app = showing(sample::snapshot(4, count), width, height);
        type_in(&mut app, filter);
        let y = usize::from(app.layout().unwrap().table_heading.y);
        let screen = text(&render(&app));
        let line = |at: usize| screen.lines().nth(at).unwrap().trim().to_owned();
        (line(y - 1), line(y))
    };
    // On the line above, where there is one.
    let long = "/gpu:2 pid>1 mem>1GiB runtime>1s user:ann,bob,hana !user:nobody\n";
    for (width, height) in [(40, 20), (80, 24), (120, 40)] {
        let (above, heading) = lines(width, height, 75, long);
        assert!(above.starts_with("75 of 300 (filter: gpu:2 p"), "{above}");
        assert_eq!(above.ends_with('…'), width < 100, "{above}");
        assert!(heading.ends_with("COMMAND"), "{heading}");
    }
    // In the heading where there is none: the count is whole whatever else is cut.
    for (width, count, expected) in [
        (100, 75, "COMMAND 75 of 300 (filter: gp…"),
        (60, 75, "COMMAND 75 of 300"),
        (40, 1, "COMMAND 1/4"),
        (40, 75, "FINDING  75 of 300"),
    ] {
        let (_, heading) = lines(width, 12, count, "/gpu:2\n");
        assert!(heading.ends_with(expected), "{heading}");
    }
    let (above, heading) = lines(80, 24, 75, "");
    assert!(above.is_empty() && heading.ends_with("COMMAND"), "{above}");
}
