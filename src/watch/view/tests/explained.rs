//! Tests of screens with findings, and of pages that explain findings.

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Kind;
use crate::model::snapshot::PidNamespace;
use crate::units::GIB;
use crate::watch::state::page::About;

/// Returns findings of every severity, worst first. The last finding is about a GPU.
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
        reason: "decided in 9m 55s (needs 10m of history)".to_owned(),
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
    keys(&mut app, "<Tab><Down><PgDn>");
    check("findings-40-selected-120x40", &app);
}

#[test]
fn the_highlighted_line_is_the_selected_finding() {
    let mut app = finding(40, 120, 40);
    keys(&mut app, "<Tab>");
    for key in ["<Down>", "<End>", "<Up>", "<Home>"] {
        keys(&mut app, key);
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
        show_sample(&mut app, 0, scene.step().clone());
    }
    (app, scene)
}

#[test]
fn explain_pages() {
    let (mut app, mut scene) = leaking(80, 24);
    keys(&mut app, "<Down><Enter>");
    check("page-80x24", &app);
    let before = text(&render(&app));
    scene.now.processes.clear();
    scene.rows(0).clear();
    show_sample(&mut app, 0, scene.step().clone());
    let gone = text(&render(&app));
    assert_ne!(gone, before, "the page reports that the process is gone");

    let (mut app, _) = leaking(120, 40);
    keys(&mut app, "<Tab><End><Enter>");
    assert_eq!(app.page.as_ref().unwrap().about, About::Gpu(1));
    check("page-gpu-120x40", &app);
}

#[test]
fn a_page_is_readable_without_colour_and_unicode() {
    let (mut app, _) = leaking(120, 40);
    app.setup.has_color = false;
    app.setup.ascii = true;
    keys(&mut app, "<Down><Enter>");
    let buffer = render(&app);
    let plain = |cell: &Cell| cell.fg == Color::Reset && cell.symbol().is_ascii();
    assert!(buffer.content.iter().all(plain));
    let text = text(&buffer);
    assert!(text.contains("critical: leak:") && text.contains('#'), "{text}");
    assert!(!text.contains('?'), "the chart is ASCII: {text}");
}
