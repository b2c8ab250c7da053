//! Tests of the keys for findings and pages.

use std::sync::Arc;

use super::*;
use crate::history::testing::Scene;
use crate::model::snapshot::PidNamespace;
use crate::units::GIB;
use crate::watch::findings;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{keys, note, screen_of, selected_pid, show_sample};
use crate::watch::text::clock;
use crate::watch::update::findings::select;
use crate::watch::update::update;
use crate::watch::view_model::Screenful;

fn app() -> App {
    screen_of(None, 10, (80, 24))
}

/// Returns a machine where process 7 is idle and process 8 works on GPU 0. On GPU 1, 11 GiB are unattributed.
fn machine() -> Scene {
    let mut scene = Scene::new(2, 10.0);
    scene.memory(0, 22 * GIB, 80 * GIB);
    scene.memory(1, 11 * GIB, 80 * GIB);
    scene.holder(7, &[0], 20 * GIB);
    scene.holder(8, &[0], 2 * GIB);
    scene.row(0, 8).sm_percent = Some(90);
    scene.now.host.pid_namespace = Some(PidNamespace::Host);
    scene.now.host.unread_processes = Some(0);
    scene
}

fn app_after_300_samples(scene: &mut Scene) -> App {
    let mut app = app();
    for _ in 0..300 {
        show_sample(&mut app, 0, scene.step().clone());
    }
    app
}

fn app_with_open_page(scene: &mut Scene) -> App {
    let mut app = app_after_300_samples(scene);
    keys(&mut app, "g<Enter>");
    assert_eq!(app.mode, Mode::Page);
    app
}

fn text(app: &App) -> String {
    let lines = &app.page.as_ref().unwrap().lines;
    let plain = |line: &String| pieces(line).map(|(_, piece)| piece.to_owned()).collect();
    lines.iter().map(plain).collect::<Vec<String>>().join("\n")
}

/// Creates a screen with 80 columns and 24 rows, and with `count` findings about processes on one GPU.
fn finding(count: u32) -> App {
    let snapshot = sample::snapshot(1, count.max(1));
    let findings = (0..count).map(|at| sample::finding(&snapshot, 0, at)).collect();
    let mut app = app();
    app.show(Screenful::new(snapshot, findings, Vec::new(), |_, _| None));
    app
}

fn selected(app: &App) -> Option<usize> {
    app.selected_finding().map(|(at, _)| at)
}

#[test]
fn tab_switches_between_table_and_findings() {
    let mut app = finding(3);
    for leave in ["<Tab>", "<BackTab>", "<Esc>"] {
        assert_eq!(keys(&mut app, "<Tab>"), Some(Effect::Draw));
        assert_eq!((app.focus, selected(&app)), (Focus::Findings, Some(0)));
        assert_eq!(keys(&mut app, leave), Some(Effect::Draw));
        assert_eq!(app.focus, Focus::Table);
    }
    app.select_row(app.row_of(app.screenful.as_ref().unwrap().rows[2].key.identity));
    let pid = selected_pid(&app);
    keys(&mut app, "<Tab>");
    assert_eq!((selected(&app), selected_pid(&app)), (Some(2), pid));
}

#[test]
fn selecting_a_finding_selects_its_row() {
    let mut app = finding(40);
    keys(&mut app, "<Tab>");
    let window = |app: &App| findings::visible(app, &app.layout().unwrap()).unwrap();
    let shown = window(&app).shown;
    for (line, at) in [
        ("j", 1),
        ("<Down>", 2),
        ("k", 1),
        ("<Up><Up>", 0),
        ("<End>", 39),
        ("j", 39),
        ("g", 0),
        ("<PgDn>", shown),
        ("<PgUp>", 0),
    ] {
        keys(&mut app, line);
        assert_eq!(selected(&app), Some(at), "{line}");
        assert_eq!(selected_pid(&app), Some(sample::pid(0, at as u32)));
        let window = window(&app);
        let visible = window.first..window.first + window.shown;
        assert!(visible.contains(&at), "{at} in {visible:?}");
    }
}

#[test]
fn x_on_a_finding_plans_for_its_process_or_does_nothing() {
    let mut app = finding(3);
    keys(&mut app, "<Tab>jj");
    app.select(0);
    keys(&mut app, "x");
    assert_eq!(selected_pid(&app), Some(sample::pid(0, 2)));
    // On a finding about a GPU, `x` must not kill the process that is selected in the table.
    let snapshot = sample::snapshot(1, 2);
    let about_gpu = Finding { process: None, ..sample::finding(&snapshot, 0, 0) };
    app.show(Screenful::new(snapshot, vec![about_gpu], Vec::new(), |_, _| None));
    keys(&mut app, "<Esc>");
    app.focus = Focus::Findings;
    select(&mut app, 0);
    app.select(1);
    keys(&mut app, "x");
    assert_eq!((&app.mode, selected_pid(&app)), (&Mode::Main, None));
    assert_eq!(note(&app), "it is about a GPU; there is no process to kill");
}

#[test]
fn a_page_without_a_finding_shows_the_release_command() {
    let mut scene = machine();
    let environment = [("GPUMEM_RELEASE_SIGNAL".into(), "USR2".into())];
    scene.process(8).environment = Some(Arc::new(environment.into()));
    scene.process(8).uid = Some(1000);
    let mut app = app_after_300_samples(&mut scene);
    let shows_release_command = |app: &App, pid| {
        let identity = newest(app).unwrap().process(pid).unwrap().identity();
        let page = report(app, About::Process(identity), None, newest(app).unwrap()).unwrap();
        let style = PageStyle { width: 100, style: Style::default(), ascii: false };
        explain_text(&page, style).contains("to free cached memory: `gpumem release 8`")
    };
    // The page of process 7 has a finding, which already contains the command.
    assert!(shows_release_command(&app, 8) && !shows_release_command(&app, 7));
    // The user cannot release memory of another user's process.
    app.setup.me.uid = Some(4242);
    show_sample(&mut app, 0, scene.step().clone());
    assert!(!shows_release_command(&app, 8));
}

#[test]
fn a_page_scrolls_to_its_end_and_stops_there() {
    let mut app = app_with_open_page(&mut machine());
    update(&mut app, Event::Resize(80, 12));
    let lines = app.page.as_ref().unwrap().lines.len();
    let height = usize::from(body(&app, app.area).height);
    assert!(lines > 2 * height, "{lines}");
    let last = lines - height;
    for (line, at) in [
        ("<Up>", 0),
        ("j", 1),
        ("<Down>", 2),
        ("k", 1),
        ("<PgDn>", height),
        ("<PgUp>", 1),
        (" ", height),
        ("G", last),
        ("j<PgDn>", last),
        ("g", 0),
        ("<End>", last),
    ] {
        assert_eq!(keys(&mut app, line), Some(Effect::Draw));
        assert_eq!(app.page.as_ref().unwrap().offset, at, "{line}");
    }
    // A taller screen shows no blank lines after the end. A narrower screen wraps lines again.
    update(&mut app, Event::Resize(40, 60));
    let page = app.page.as_ref().unwrap();
    let height = usize::from(body(&app, app.area).height);
    assert!(page.offset <= page.lines.len().saturating_sub(height));
    assert!(text(&app).lines().all(|line| line.chars().count() <= 40), "{}", text(&app));
    assert_eq!(keys(&mut app, "t"), None);
    assert!(!app.table.choice.tree);
}

#[test]
fn an_open_page_is_updated_until_its_process_is_gone() {
    let mut scene = machine();
    let mut app = app_with_open_page(&mut scene);
    assert!(text(&app).contains("(300 samples)"));
    show_sample(&mut app, 0, scene.step().clone());
    assert!(text(&app).contains("(301 samples)"));
    assert_eq!(notice(&app), None);
    // A process with another start time is a different process.
    scene.process(7).start_ticks = Some(1);
    show_sample(&mut app, 0, scene.step().clone());
    let since = app.screenful.as_ref().unwrap().snapshot.time;
    show_sample(&mut app, 0, scene.step().clone());
    assert!(text(&app).contains("(301 samples)"));
    assert_eq!(notice(&app), Some(format!("gone since {}; this is its last state", clock(since))));
    keys(&mut app, "x");
    assert_eq!(note(&app), "the process is gone; there is nothing to kill");
    assert_eq!(app.mode, Mode::Page);
    assert_eq!(keys(&mut app, "t"), Some(Effect::Draw));
    assert_eq!(note(&app), "", "the next key clears the note");
}

#[test]
fn x_on_a_page_plans_only_for_its_process() {
    let mut scene = machine();
    let mut app = app_with_open_page(&mut scene);
    app.select(1);
    keys(&mut app, "x");
    assert_eq!(app.page, None);
    assert_eq!(selected_pid(&app), Some(7));
    keys(&mut app, "<Esc><Enter>");
    app.table.listing.lines.retain(|line| line.row != 0);
    keys(&mut app, "x");
    assert!(note(&app).starts_with("the table does not show"));
    assert_eq!((&app.mode, selected_pid(&app)), (&Mode::Page, None));
}

#[test]
fn a_finding_about_a_gpu_opens_the_gpu_page() {
    let mut scene = machine();
    let mut app = app_after_300_samples(&mut scene);
    keys(&mut app, "<Tab>");
    let findings = &app.screenful.as_ref().unwrap().findings;
    let at = findings.iter().position(|finding| finding.process.is_none());
    select(&mut app, at.unwrap());
    assert_eq!(selected_pid(&app), None);
    keys(&mut app, "<Enter>");
    assert_eq!(app.page.as_ref().unwrap().about, About::Gpu(1));
    assert!(text(&app).starts_with("GPU 1: "), "{}", text(&app));
    assert!(text(&app).contains("unattributed"), "{}", text(&app));
    keys(&mut app, "x");
    assert!(note(&app).contains("not about a process"));
    // A finding whose process is missing opens the page of its GPU.
    let mut app = finding(1);
    let screenful = app.screenful.as_mut().unwrap();
    let snapshot = &mut Arc::make_mut(&mut screenful.sample).snapshot;
    snapshot.processes.clear();
    snapshot.gpus[0].processes = None;
    keys(&mut app, "<Tab><Enter>");
    assert_eq!(app.page.as_ref().unwrap().about, About::Gpu(0));
}

#[test]
fn a_page_notes_a_time_that_differs_from_the_screen() {
    let mut scene = machine();
    let mut app = app_after_300_samples(&mut scene);
    let past = app.screenful.as_ref().unwrap().snapshot.clone();
    keys(&mut app, "g<Enter>");
    show_sample(&mut app, 0, scene.step().clone());
    assert_eq!(notice(&app), None);
    // The user steps back while the page is open.
    app.show(Screenful::new(past.clone(), Vec::new(), Vec::new(), |_, _| None));
    let newest = clock(app.judged.engine.history().last_time().unwrap());
    let past = clock(past.time);
    assert_eq!(notice(&app), Some(format!("as of {newest}; the screen shows {past}")));
    // The user steps back and then opens the page.
    keys(&mut app, "<Esc><Enter>");
    assert_eq!(notice(&app), Some(format!("as of {past}; findings of {newest}")));
}
