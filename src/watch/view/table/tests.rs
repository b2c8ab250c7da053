//! Tests of the table's columns, and of screens with a tree, a filter, marks, a history and a prompt.

use std::sync::Arc;

use super::super::tests::{check, hostile, render, showing, text};
use super::*;
use crate::model::process::Parent;
use crate::model::row::CurrentUser;
use crate::model::snapshot::Process;
use crate::units::MIB;
use crate::watch::column::Columns;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::keys;
use crate::watch::update::update;
use crate::watch::view_model::Widths;

/// Shows two GPUs with a launcher that has a rank on each GPU (one with a child), a notebook, a
/// process on both GPUs, and a process that leaks.
fn job() -> App {
    let mut snapshot = sample::snapshot(2, 4);
    for process in &mut snapshot.processes {
        process.uid = Some(1000);
        process.user = Some("ann".into());
        process.process_group = Some(process.pid);
        process.ppid = Some(1);
    }
    snapshot.processes.push(Process {
        pid: 3000,
        start_ticks: Some(1),
        comm: Some("torchrun".into()),
        uid: Some(1000),
        process_group: Some(3000),
        state: Some('S'),
        ..Process::default()
    });
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
    let all_series = sample::all_series(&snapshot, 20);
    let mut first = snapshot.clone();
    first.time = snapshot.time.plus_seconds(-1200.0);
    let mut app = showing(snapshot, 80, 24);
    app.judged.engine.observe(&first);
    app.judged.all_series = all_series;
    app.setup.me = CurrentUser { uid: Some(1000), name: Some("ann".into()) };
    app
}

#[test]
fn screens_with_a_tree_a_filter_a_prompt_and_marks() {
    for (name, line, columns, rows) in [
        ("tree", "t", 80, 24),
        ("filter", "/mem>4GiB<Enter>", 80, 24),
        ("prompt", "/gpu:0 idle>10", 40, 10),
        ("marked", "g  jjk", 80, 24),
    ] {
        let mut app = job();
        update(&mut app, Event::Resize(columns, rows));
        keys(&mut app, line);
        check(&format!("{name}-{columns}x{rows}"), &app);
    }
}

#[test]
fn names_of_any_width_do_not_move_columns() {
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
    keys(&mut app, "/pid:4002<Enter>");
    let end = |app: &App| text(&render(app)).contains("openai.api_server");
    assert!(!end(&app));
    keys(&mut app, &"l".repeat(50));
    assert!(end(&app));
    let farthest = app.table.scrolled;
    keys(&mut app, "l");
    assert_eq!(app.table.scrolled, farthest);
    keys(&mut app, "<Left>");
    assert_eq!(app.table.scrolled, 0);
}

#[test]
fn columns_are_dropped_by_priority_and_never_overflow() {
    let widths = Widths { gpu: 4, pid: 7, user: 8, framework: 10, place: 12, finding: 8 };
    for width in 0..=220u16 {
        let columns = chosen(&Columns::default(), widths, width);
        let used: u16 = columns.iter().map(|(_, width)| width + 1).sum();
        assert!(used <= width.max(1) + 1, "{width}: {columns:?}");
        let count = columns.len();
        let mut kept = Column::BY_NEED[..count].to_vec();
        kept.retain(|column| !columns.iter().any(|(shown, _)| shown == column));
        assert_eq!(kept, [], "{width}");
    }
    assert_eq!(chosen(&Columns::default(), widths, 220).len(), Column::ALL.len());
}
