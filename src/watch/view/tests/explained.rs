//! Screens with findings, and with the page that explains one.

use crossterm::event::KeyCode;

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::{Finding, Kind};
use crate::model::snapshot::PidNamespace;
use crate::units::GIB;
use crate::watch::page::About;

fn press(app: &mut App, code: KeyCode) {
    update(app, Event::Key(code.into()));
}

/// Findings of every severity, worst first; the last one is about a GPU.
fn found(snapshot: &Snapshot, count: u32) -> Vec<Finding> {
    let mut findings: Vec<Finding> = (0..count)
        .map(|at| {
            let mut finding = sample::finding(snapshot, 0, at);
            (finding.severity, finding.kind) = match at % 3 {
                _ if count == 1 => (Severity::Warning, Kind::Idle),
                0 => (Severity::Critical, Kind::Leak),
                1 => (Severity::Warning, Kind::Idle),
                _ => (Severity::Info, Kind::Reserved),
            };
            finding
        })
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    if let Some(last) = findings.last_mut().filter(|_| count > 1) {
        last.process = None;
        last.kind = Kind::Pressure;
        last.memory_bytes = None;
    }
    findings
}

fn finding(count: u32, columns: u16, rows: u16) -> App {
    let snapshot = sample::snapshot(2, count);
    let undecided = vec![Undecided {
        rule: "hung".into(),
        pid: None,
        gpu: None,
        reason: "can tell in 9m 55s: it needs 10m of history".to_owned(),
    }];
    let mut app = app(columns, rows);
    let found = found(&snapshot, count);
    app.show(Screenful::new(snapshot, found, undecided, |_, _| None));
    app
}

#[test]
fn lists_of_findings() {
    check("findings-8-80x24", &finding(8, 80, 24));
    let mut app = finding(40, 120, 40);
    press(&mut app, KeyCode::Tab);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::PageDown);
    check("findings-40-selected-120x40", &app);
}

#[test]
fn the_marked_line_is_the_selected_finding() {
    let mut app = finding(40, 120, 40);
    press(&mut app, KeyCode::Tab);
    for key in [KeyCode::Down, KeyCode::End, KeyCode::Up, KeyCode::Home] {
        press(&mut app, key);
        let (at, finding) = app.selected_finding().unwrap();
        let window = findings::visible(&app, &app.layout().unwrap()).unwrap();
        let row = window.top + (at - window.first) as u16 * window.lines_each;
        let buffer = render(&app);
        let line: String = (0..120).map(|x| buffer[(x, row)].symbol()).collect();
        assert!(line.starts_with('▸'), "{line}");
        assert!(buffer[(5, row)].modifier.contains(Modifier::REVERSED));
        if let Some(process) = &finding.process {
            assert!(line.contains(&process.pid.to_string()), "{line}");
        }
    }
}

/// An app that has seen a process leak for long.
fn leaking(columns: u16, rows: u16) -> (App, Scene) {
    let mut scene = Scene::new(2, 10.0);
    scene.memory(0, 60 * GIB, 80 * GIB);
    scene.memory(1, 9 * GIB, 80 * GIB);
    scene.holder(7, &[0], GIB);
    let process = scene.process(7);
    process.framework = Some("pytorch".into());
    process.gpu_files = Some(["/dev/nvidia0".into()].into());
    scene.now.host.pid_namespace = Some(PidNamespace::Host);
    scene.now.host.unread_processes = Some(0);
    let mut app = app(columns, rows);
    for step in 0..120 {
        scene.row(0, 7).used_bytes = Some(GIB + step * GIB / 4);
        see(&mut app, scene.step().clone());
    }
    (app, scene)
}

fn see(app: &mut App, snapshot: Snapshot) {
    let event =
        Event::Snapshot { now: Duration::ZERO, snapshot: Box::new(snapshot), is_passing: false };
    update(app, event);
}

#[test]
fn pages_of_explanation() {
    let (mut app, mut scene) = leaking(80, 24);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    check("page-80x24", &app);
    let before = text(&render(&app));
    scene.now.processes.clear();
    scene.rows(0).clear();
    see(&mut app, scene.step().clone());
    let gone = text(&render(&app));
    assert_ne!(gone, before, "it says that the process is gone");

    let (mut app, _) = leaking(120, 40);
    press(&mut app, KeyCode::Tab);
    press(&mut app, KeyCode::End);
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.page.as_ref().unwrap().about, About::Gpu(1));
    check("page-gpu-120x40", &app);
}

#[test]
fn a_page_keeps_its_words_without_colour_and_without_unicode() {
    let (mut app, _) = leaking(120, 40);
    app.setup.has_color = false;
    app.setup.ascii = true;
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    let buffer = render(&app);
    let plain = |cell: &Cell| cell.fg == Color::Reset && cell.symbol().is_ascii();
    assert!(buffer.content.iter().all(plain));
    let text = text(&buffer);
    assert!(text.contains("critical: leak:") && text.contains('#'), "{text}");
    assert!(!text.contains('?'), "a chart of ASCII from the first: {text}");
}

#[test]
fn hostile_names_break_no_list_and_no_page() {
    for (columns, rows) in SIZES {
        let mut snapshot = hostile();
        for process in &mut snapshot.processes {
            process.framework_version = process.user.clone();
            process.systemd_unit = process.user.clone();
        }
        let mut found: Vec<Finding> = (0..7).map(|at| sample::finding(&snapshot, 0, at)).collect();
        for (finding, process) in found.iter_mut().zip(&snapshot.processes) {
            let name = process.user.clone().unwrap();
            finding.message = name.repeat(500);
            finding.advice = vec![name.repeat(500)];
        }
        let mut app = app(columns, rows);
        app.show(Screenful::new(snapshot, found, Vec::new(), |_, _| None));
        press(&mut app, KeyCode::Tab);
        for _ in 0..7 {
            press(&mut app, KeyCode::Enter);
            for key in [KeyCode::Null, KeyCode::End, KeyCode::Esc] {
                press(&mut app, key);
                for cell in &render(&app).content {
                    assert!(!cell.symbol().contains(char::is_control), "{cell:?}");
                }
            }
            press(&mut app, KeyCode::Down);
        }
    }
}
