//! The findings and the page, key by key.

use std::sync::Arc;
use std::time::Duration;

use crossterm::event::KeyCode;

use super::*;
use crate::history::testing::Scene;
use crate::model::finding::Severity;
use crate::model::snapshot::PidNamespace;
use crate::model::{Identity, Start};
use crate::units::GIB;
use crate::watch::findings;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{press, screen_of};
use crate::watch::text::clock;
use crate::watch::update::update;
use crate::watch::view_model::Screenful;

fn app() -> App {
    screen_of(None, 10, (80, 24))
}

fn type_in(app: &mut App, keys: &str) {
    for key in keys.chars() {
        press(app, KeyCode::Char(key));
    }
}

fn see(app: &mut App, snapshot: Snapshot) {
    let event =
        Event::Snapshot { now: Duration::ZERO, snapshot: Box::new(snapshot), is_passing: false };
    assert_eq!(update(app, event), Some(Effect::Draw));
}

/// A machine on which 7 has been idle for long, 8 works, and 11 GiB of GPU 1 are no one's.
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

/// An app that has seen it for long enough.
fn watching(scene: &mut Scene) -> App {
    let mut app = app();
    for _ in 0..300 {
        see(&mut app, scene.step().clone());
    }
    app
}

fn text(app: &App) -> String {
    let lines = &app.page.as_ref().unwrap().lines;
    let plain = |line: &String| -> String {
        let pieces = pieces(line);
        pieces.map(|(_, piece)| piece).collect()
    };
    let lines: Vec<String> = lines.iter().map(plain).collect();
    lines.join("\n")
}

/// An app of 80 by 24 that shows so many findings about the processes of one GPU.
fn finding(count: u32) -> App {
    let snapshot = sample::snapshot(1, count.max(1));
    let findings = (0..count).map(|at| sample::finding(&snapshot, 0, at)).collect();
    let mut app = app();
    app.show(Screenful::new(snapshot, findings, Vec::new(), |_, _| None));
    app
}

/// Why the last key did nothing.
fn note(app: &App) -> &str {
    app.note.as_deref().unwrap_or_default()
}

fn selected(app: &App) -> Option<usize> {
    app.selected_finding().map(|(at, _)| at)
}

fn selected_pid(app: &App) -> Option<u32> {
    app.subject().map(|subject| subject.row.key.identity.pid)
}

#[test]
fn tab_goes_to_the_findings_and_back() {
    let mut app = finding(3);
    for leave in [KeyCode::Tab, KeyCode::BackTab, KeyCode::Esc] {
        assert_eq!(press(&mut app, KeyCode::Tab), Some(Effect::Draw));
        assert_eq!((app.focus, selected(&app)), (Focus::Findings, Some(0)));
        assert_eq!(press(&mut app, leave), Some(Effect::Draw));
        assert_eq!(app.focus, Focus::Table);
    }
    // The finding of the selected process is the first that is selected.
    app.select_row(app.row_of(app.screenful.as_ref().unwrap().rows[2].key.identity));
    let pid = selected_pid(&app);
    press(&mut app, KeyCode::Tab);
    assert_eq!(selected(&app), Some(2));
    assert_eq!(selected_pid(&app), pid);
}

#[test]
fn where_nothing_is_found_the_keys_stay_in_the_table() {
    for mut app in [app(), finding(0)] {
        press(&mut app, KeyCode::Tab);
        assert_eq!(app.focus, Focus::Table);
        assert!(!note(&app).is_empty());
    }
}

#[test]
fn the_selection_moves_in_the_list_and_its_row_with_it() {
    let mut app = finding(40);
    press(&mut app, KeyCode::Tab);
    for (key, at) in [
        (KeyCode::Char('j'), 1),
        (KeyCode::Down, 2),
        (KeyCode::Char('k'), 1),
        (KeyCode::Up, 0),
        (KeyCode::Up, 0),
        (KeyCode::End, 39),
        (KeyCode::Char('j'), 39),
        (KeyCode::Char('g'), 0),
    ] {
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        assert_eq!(selected(&app), Some(at), "{key:?}");
        assert_eq!(selected_pid(&app), Some(sample::pid(0, at as u32)));
        let window = findings::visible(&app, &app.layout().unwrap()).unwrap();
        assert!(window.shown > 0);
        let seen = window.first..window.first + window.shown;
        assert!(seen.contains(&at), "{at} in {seen:?}");
    }
    let shown = findings::visible(&app, &app.layout().unwrap()).unwrap().shown;
    press(&mut app, KeyCode::PageDown);
    assert_eq!(selected(&app), Some(shown));
    press(&mut app, KeyCode::PageUp);
    assert_eq!((selected(&app), app.findings.offset), (Some(0), 0));
}

#[test]
fn a_row_of_the_screen_is_the_finding_that_is_drawn_there() {
    let mut app = finding(40);
    press(&mut app, KeyCode::Tab);
    type_in(&mut app, "jjjjjj");
    let window = findings::visible(&app, &app.layout().unwrap()).unwrap();
    let top = app.layout().unwrap().status.y;
    assert_eq!(window.top, top + 1, "below the title");
    assert_eq!(findings::at_row(&app, &app.layout().unwrap(), top), None);
    assert_eq!(findings::at_row(&app, &app.layout().unwrap(), window.top), Some(window.first));
    let below = window.top + window.shown as u16 * window.lines_each;
    assert_eq!(
        findings::at_row(&app, &app.layout().unwrap(), below - 1),
        Some(window.first + window.shown - 1)
    );
    assert_eq!(findings::at_row(&app, &app.layout().unwrap(), below), None);
}

#[test]
fn the_selection_follows_the_finding_and_no_row_moves_into_its_place() {
    let mut app = finding(3);
    press(&mut app, KeyCode::Tab);
    type_in(&mut app, "j");
    let id = app.findings.selected.clone();
    let show = |app: &mut App, keep: &[u32]| {
        let snapshot = sample::snapshot(1, 3);
        let findings = keep.iter().map(|&at| sample::finding(&snapshot, 0, at));
        let findings = findings.collect();
        app.show(Screenful::new(snapshot, findings, Vec::new(), |_, _| None));
    };
    show(&mut app, &[2, 0, 1]);
    assert_eq!((selected(&app), &app.findings.selected), (Some(2), &id));
    show(&mut app, &[2, 0]);
    assert_eq!(selected(&app), None);
    assert_eq!(app.subject_of_finding(), None);
    // The next step selects the first that is seen.
    type_in(&mut app, "j");
    assert_eq!(selected(&app), Some(0));
}

#[test]
fn x_on_a_finding_is_about_its_process_or_does_nothing() {
    let mut app = finding(3);
    press(&mut app, KeyCode::Tab);
    type_in(&mut app, "jj");
    app.select(0);
    type_in(&mut app, "x");
    assert_eq!(selected_pid(&app), Some(sample::pid(0, 2)));
    // A finding about a GPU must not end whoever is selected in the table.
    let snapshot = sample::snapshot(1, 2);
    let mut about_gpu = sample::finding(&snapshot, 0, 0);
    about_gpu.process = None;
    app.show(Screenful::new(snapshot, vec![about_gpu], Vec::new(), |_, _| None));
    press(&mut app, KeyCode::Esc);
    app.focus = Focus::Findings;
    crate::watch::update::findings::select(&mut app, 0);
    app.select(1);
    type_in(&mut app, "x");
    assert_eq!((&app.mode, selected_pid(&app)), (&Mode::Main, None));
    assert_eq!(note(&app), "it is about a GPU; there is no process to kill");
}

#[test]
fn enter_opens_the_page_of_explain_and_three_keys_leave_it() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    press(&mut app, KeyCode::Enter);
    assert_eq!(note(&app), "no process is selected; j or k selects one");
    assert_eq!(app.mode, Mode::Main);
    type_in(&mut app, "j");
    for leave in [KeyCode::Esc, KeyCode::Char('q'), KeyCode::Enter] {
        assert_eq!(press(&mut app, KeyCode::Enter), Some(Effect::Draw));
        assert_eq!(app.mode, Mode::Page);
        let shown = text(&app);
        for part in [
            "python train.py (pid 7)",
            "warning: idle:",
            "(`gpumem kill 7`);",
            "the same for 49m 50s (300 samples)",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(press(&mut app, leave), Some(Effect::Draw));
        assert_eq!((&app.mode, &app.page), (&Mode::Main, &None));
        assert_eq!(selected_pid(&app), Some(7), "the selection stays");
    }
}

#[test]
fn the_page_is_the_text_that_the_command_prints() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    type_in(&mut app, "j");
    press(&mut app, KeyCode::Enter);
    let known = KnownSoFar {
        engine: &app.judged.engine,
        courses: &app.judged.courses,
        last: &app.screenful.as_ref().unwrap().snapshot,
        needed: app.judged.engine.settings().longest(),
        more: More::ByWaiting,
        commands: &|findings, process| {
            app.next_commands.fill_in(findings.iter_mut());
            let last = &app.screenful.as_ref().unwrap().snapshot;
            commands::release_of(process?, last, serves, app.setup.me.uid)
        },
    };
    let styles = PageStyle {
        width: usize::from(text_area(app.area).width),
        style: Style::default(),
        ascii: false,
    };
    let printed = explain_text(&explain::process(known, 7, None), styles);
    assert_eq!(text(&app), printed.trim_end());
}

#[test]
fn a_page_without_a_finding_names_the_way_to_release_memory() {
    let mut scene = machine();
    let environment = [("GPUMEM_RELEASE_SIGNAL".into(), "USR2".into())];
    scene.process(8).environment = Some(Arc::new(environment.into()));
    scene.process(8).uid = Some(1000);
    let mut app = watching(&mut scene);
    let page = |app: &App, pid| {
        let who = newest(app).unwrap().process(pid).unwrap().identity();
        report(app, About::Process(who), None, newest(app).unwrap()).unwrap()
    };
    let styles = PageStyle { width: 100, style: Style::default(), ascii: false };
    let line = "to free what it caches: `gpumem release 8`";
    let printed = explain_text(&page(&app, 8), styles);
    assert!(printed.contains(line), "{printed}");
    let printed = explain_text(&page(&app, 7), styles);
    assert!(!printed.contains("gpumem release"), "{printed}");
    // Nobody else's is named, and a finding's own command is not said twice.
    app.setup.me.uid = Some(4242);
    scene.process(8).uid = Some(1000);
    see(&mut app, scene.step().clone());
    let printed = explain_text(&page(&app, 8), styles);
    assert!(!printed.contains("gpumem release"), "{printed}");
}

#[test]
fn a_page_scrolls_to_its_end_and_no_further() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    type_in(&mut app, "j");
    press(&mut app, KeyCode::Enter);
    update(&mut app, Event::Resize(80, 12));
    let offset = |app: &App| app.page.as_ref().unwrap().offset;
    let lines = app.page.as_ref().unwrap().lines.len();
    let height = usize::from(body(&app, app.area).height);
    assert!(lines > 2 * height, "{lines}");
    let last = lines - height;
    for (key, at) in [
        (KeyCode::Up, 0),
        (KeyCode::Char('j'), 1),
        (KeyCode::Down, 2),
        (KeyCode::Char('k'), 1),
        (KeyCode::PageDown, height),
        (KeyCode::PageUp, 1),
        (KeyCode::Char(' '), height),
        (KeyCode::Char('G'), last),
        (KeyCode::Char('j'), last),
        (KeyCode::PageDown, last),
        (KeyCode::Char('g'), 0),
        (KeyCode::End, last),
    ] {
        assert_eq!(press(&mut app, key), Some(Effect::Draw));
        assert_eq!(offset(&app), at, "{key:?}");
    }
    // A higher screen leaves no blank below the end, a narrower one breaks lines anew.
    update(&mut app, Event::Resize(40, 60));
    let page = app.page.as_ref().unwrap();
    let height = usize::from(body(&app, app.area).height);
    assert!(page.offset <= page.lines.len().saturating_sub(height));
    let widest = text(&app).lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(40), "{widest:?}");
    // Keys that mean nothing here do nothing.
    assert_eq!(press(&mut app, KeyCode::Char('t')), None);
    assert!(!app.table.choice.tree);
}

#[test]
fn an_open_page_goes_on_with_the_samples_until_its_process_is_gone() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    type_in(&mut app, "j");
    press(&mut app, KeyCode::Enter);
    assert!(text(&app).contains("(300 samples)"));
    see(&mut app, scene.step().clone());
    assert!(text(&app).contains("(301 samples)"));
    assert_eq!(notice(&app), None);
    // Another process of the same number is not it.
    scene.process(7).start_ticks = Some(1);
    see(&mut app, scene.step().clone());
    let since = app.screenful.as_ref().unwrap().snapshot.time;
    see(&mut app, scene.step().clone());
    assert!(text(&app).contains("(301 samples)"));
    assert_eq!(notice(&app), Some(format!("gone since {}: as it was", clock(since))));
    press(&mut app, KeyCode::Char('x'));
    assert_eq!(note(&app), "the process is gone; there is nothing to kill");
    assert_eq!(app.mode, Mode::Page);
    assert_eq!(press(&mut app, KeyCode::Char('t')), Some(Effect::Draw));
    assert_eq!(app.note, None, "until the next key");
}

#[test]
fn x_on_a_page_asks_for_the_plan_of_its_process_and_of_no_other() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    type_in(&mut app, "j");
    press(&mut app, KeyCode::Enter);
    app.select(1);
    press(&mut app, KeyCode::Char('x'));
    assert_eq!(app.page, None);
    assert_eq!(selected_pid(&app), Some(7));
    // Where the table does not show it, there is no plan.
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Enter);
    app.table.listing.lines.retain(|line| line.row != 0);
    press(&mut app, KeyCode::Char('x'));
    assert!(note(&app).starts_with("the table does not show"));
    assert_eq!((&app.mode, selected_pid(&app)), (&Mode::Page, None));
}

#[test]
fn a_finding_about_a_gpu_opens_the_page_of_the_gpu() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    press(&mut app, KeyCode::Tab);
    let findings = &app.screenful.as_ref().unwrap().findings;
    let at = findings.iter().position(|finding| finding.process.is_none());
    crate::watch::update::findings::select(&mut app, at.unwrap());
    assert_eq!(selected_pid(&app), None);
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.page.as_ref().unwrap().about, About::Gpu(1));
    assert!(text(&app).starts_with("GPU 1: "), "{}", text(&app));
    assert!(text(&app).contains("unattributed"), "{}", text(&app));
    press(&mut app, KeyCode::Char('x'));
    assert!(note(&app).contains("about no process"));
    // A process that cannot be seen has its GPU for a page.
    let mut app = finding(1);
    let screenful = app.screenful.as_mut().unwrap();
    let snapshot = &mut Arc::make_mut(&mut screenful.sample).snapshot;
    snapshot.processes.clear();
    snapshot.gpus[0].processes = None;
    press(&mut app, KeyCode::Tab);
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.page.as_ref().unwrap().about, About::Gpu(0));
}

#[test]
fn a_page_notes_where_it_is_of_another_time_than_the_screen() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    let past = app.screenful.as_ref().unwrap().snapshot.clone();
    type_in(&mut app, "j");
    press(&mut app, KeyCode::Enter);
    see(&mut app, scene.step().clone());
    assert_eq!(notice(&app), None);
    // Stepped back behind the page.
    app.show(Screenful::new(past.clone(), Vec::new(), Vec::new(), |_, _| None));
    let newest = clock(app.judged.engine.history().last_time().unwrap());
    let past = clock(past.time);
    assert_eq!(notice(&app), Some(format!("as of {newest}; the screen shows {past}")));
    // Opened there.
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Enter);
    assert_eq!(notice(&app), Some(format!("as of {past}; findings of {newest}")));
}

#[test]
fn an_unresolved_pid_has_a_page_that_gives_the_reason_and_shows_no_process() {
    let mut scene = machine();
    let process = scene.process(7);
    process.start_ticks = None;
    process.start_time = None;
    process.unresolved = Some("it started after NVML named the pid".into());
    let mut app = watching(&mut scene);
    type_in(&mut app, "j");
    press(&mut app, KeyCode::Enter);
    let who = app.page.as_ref().unwrap().about;
    assert_eq!(who, About::Process(Identity { pid: 7, start: Start::Unknown }));
    assert!(text(&app).starts_with("pid 7: not resolved"));
    assert!(!text(&app).contains("train.py"), "{}", text(&app));
}

#[test]
fn no_page_and_no_list_panics_at_any_size() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    press(&mut app, KeyCode::Tab);
    for severity in [Severity::Info, Severity::Critical] {
        for finding in &mut Arc::make_mut(&mut app.screenful.as_mut().unwrap().sample).findings {
            finding.severity = severity;
        }
        for columns in [0, 1, 39, 40, 41, 72, 100, 220] {
            for rows in [0, 1, 9, 10, 11, 24, 70] {
                update(&mut app, Event::Resize(columns, rows));
                for key in ["G", "g", "j"] {
                    type_in(&mut app, key);
                    press(&mut app, KeyCode::Enter);
                    let mut canvas = Buffer::empty(app.area);
                    crate::watch::view::draw(&app, &mut canvas);
                    press(&mut app, KeyCode::Esc);
                    crate::watch::view::draw(&app, &mut canvas);
                    press(&mut app, KeyCode::Tab);
                }
            }
        }
    }
}

#[test]
fn p_holds_still_what_is_being_read() {
    let mut scene = machine();
    let mut app = watching(&mut scene);
    app.select(0);
    press(&mut app, KeyCode::Enter);
    assert_eq!(press(&mut app, KeyCode::Char('p')), Some(Effect::Draw));
    assert!(app.playback.is_paused);
    assert_eq!(app.mode, Mode::Page);
}
