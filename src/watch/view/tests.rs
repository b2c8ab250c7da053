//! Compares screens with the files in `tests/data/screens/`. `GPUMEM_BLESS=1` rewrites the files.

mod explained;

use std::path::PathBuf;

use crossterm::event::KeyCode;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::*;
use crate::model::finding::{Finding, Severity, Undecided};
use crate::model::snapshot::{Jupyter, ProcessType, ReadError, Snapshot};
use crate::watch::findings;
use crate::watch::reaping::STILL_ENDING;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{events, keys, press, screen as app, show_sample};
use crate::watch::theme::Theme;
use crate::watch::update::update;
use crate::watch::view_model::Screenful;

mod charts;
mod gpus;
mod waste;

/// Tested screen sizes. The first is the smallest screen with panels.
pub(super) const SIZES: [(u16, u16); 3] = [(40, 10), (80, 24), (200, 60)];

/// Shows `snapshot` with the first process of GPU 0 idle.
pub(super) fn showing(snapshot: Snapshot, columns: u16, rows: u16) -> App {
    let mut app = app(columns, rows);
    let idle = snapshot.process(sample::pid(0, 0)).is_some();
    let findings = idle.then(|| sample::finding(&snapshot, 0, 0)).into_iter().collect();
    let time = snapshot.time;
    app.show(Screenful::new(snapshot, findings, Vec::new(), |identity, _| {
        (identity.pid % 3 > 0).then(|| time.plus_seconds(-f64::from(identity.pid)))
    }));
    app
}

pub(super) fn render(app: &App) -> Buffer {
    let mut canvas = Buffer::empty(app.area);
    draw(app, &mut canvas);
    canvas
}

pub(super) fn text(buffer: &Buffer) -> String {
    crate::watch::once::write_text(buffer, false)
}

pub(in crate::watch) fn check(name: &str, app: &App) {
    compare(name, &text(&render(app)));
}

fn compare(name: &str, actual: &str) {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.extend(["tests", "data", "screens", &format!("{name}.txt")]);
    if std::env::var_os("GPUMEM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; run the test with GPUMEM_BLESS=1 to write it", path.display())
    });
    assert!(
        actual == expected,
        "{name} has changed; if this is intended, run the test with GPUMEM_BLESS=1\n{actual}"
    );
}

#[test]
fn screens_with_any_number_of_gpus() {
    for (gpus, processes, columns, rows) in
        [(0, 0, 80, 24), (4, 4, 80, 24), (16, 1, 40, 10), (16, 1, 80, 24), (64, 1, 120, 40)]
    {
        let app = showing(sample::snapshot(gpus, processes), columns, rows);
        check(&format!("{gpus}-gpus-{columns}x{rows}"), &app);
    }
}

#[test]
fn a_selected_process_shows_its_finding_and_facts() {
    let mut app = showing(sample::snapshot(4, 4), 120, 40);
    keys(&mut app, "oxg");
    check("selected-120x40", &app);
}

#[test]
fn a_machine_with_errors() {
    let mut snapshot = sample::snapshot(4, 2);
    sample::lose(&mut snapshot, 1);
    snapshot.gpus[2].stale_seconds = Some(7.2);
    snapshot.gpus[2].gpu_percent = None;
    sample::entry(&mut snapshot, 3, 0).used_bytes = None;
    sample::entry(&mut snapshot, 3, 1).sm_percent = None;
    snapshot.gpus[3].power_watts = None;
    snapshot.gpus[3].temperature_celsius = None;
    snapshot.processes[1].unresolved = Some("this pid is of another namespace".into());
    snapshot.errors.push(ReadError {
        gpu: None,
        call: "/proc/4001/fd".into(),
        error: "permission denied".into(),
    });
    check("errors-120x40", &showing(snapshot, 120, 40));
}

#[test]
fn mig_devices_unlisted_processes_and_missing_figures() {
    let mut divided = sample::snapshot(2, 3);
    sample::divide(&mut divided, 0);
    check("mig-80x24", &showing(divided, 80, 24));

    let mut hidden = sample::snapshot(2, 2);
    hidden.gpus[1].memory.as_mut().unwrap().used_bytes += 8 * crate::units::GIB;
    let worker = sample::hide(&mut hidden);
    hidden.host.unread_processes = Some(312);
    let mut app = showing(hidden, 120, 40);
    let at = app.screenful.as_ref().unwrap().rows.len() - 1;
    let subject = app.screenful.as_ref().unwrap().subject(at).unwrap();
    assert_eq!(subject.row.key.identity.pid, worker, "rows with unknown memory are last");
    keys(&mut app, "G");
    check("hidden-selected-120x40", &app);

    let mut bare = sample::snapshot(2, 2);
    bare.gpus[0].memory = None;
    bare.gpus[0].memory_unavailable =
        Some("it shares the machine's memory; NVML gives no framebuffer figure".into());
    for at in 0..2 {
        sample::entry(&mut bare, 1, at).used_bytes = None;
    }
    bare.gpus[1].process_memory_unavailable =
        Some("the driver does not report memory by process".into());
    bare.gpus[1].processes.as_mut().unwrap()[1].kind = ProcessType::Mps;
    check("not-available-80x24", &showing(bare, 80, 24));
}

/// Covers each form of the GPU panel, the findings and their pages, a tree, scrolled commands and a prompt.
#[test]
fn hostile_names_are_escaped_in_every_panel() {
    check("hostile-80x24", &showing(hostile(), 80, 24));
    let mut snapshot = Snapshot { gpus: sample::snapshot(4, 7).gpus, ..hostile() };
    let names = [
        "\x1b[2J\x1b[31mred\nH100",
        "とても長い名前のグラフィックスカードとその説明",
        "\u{202e}BG08 001H 🦀👩‍👩‍👧‍👦 כרטיס מסך",
        &"x".repeat(10_000),
    ];
    for (gpu, name) in snapshot.gpus.iter_mut().zip(names) {
        gpu.name = Some(name.into());
    }
    let mut found = Vec::new();
    for at in 0..7 {
        let process = &mut snapshot.processes[at as usize];
        process.framework_version = process.user.clone();
        process.systemd_unit = process.user.clone();
        let message = process.user.clone().unwrap().repeat(500);
        let advice = vec![message.clone()];
        found.push(Finding { message, advice, ..sample::finding(&snapshot, 0, at) });
    }
    for (columns, rows) in SIZES {
        let mut app = gpus::watched(snapshot.clone(), columns, rows);
        app.show(Screenful::new(snapshot.clone(), found.clone(), Vec::new(), |_, _| None));
        let pages = "<Enter><End><Esc><Down>".repeat(7);
        let prompt = "tl/\u{202e}日本\u{1b}e\u{301}👩\u{200d}👩:";
        let typed = prompt.chars().map(|key| KeyCode::Char(key).into());
        for key in events(&format!("<Tab>{pages}<Esc>")).chain(typed) {
            press(&mut app, key);
            for cell in &render(&app).content {
                assert!(!cell.symbol().contains(is_hostile), "{cell:?} after {key:?}");
            }
        }
    }
}

fn is_hostile(c: char) -> bool {
    c.is_control() || c == '\u{202e}'
}

#[test]
fn waiting_small_help_replay_failed_and_ascii_screens() {
    let snapshot = || sample::snapshot(2, 3);
    check("waiting-80x24", &app(80, 24));
    check("small-39x9", &showing(snapshot(), 39, 9));

    let mut help = showing(snapshot(), 80, 60);
    help.mode = Mode::Help(0);
    check("help-80x60", &help);

    let mut replay = showing(snapshot(), 80, 24);
    replay.setup.replay = Some("demo".to_owned());
    update(&mut replay, Event::SourceEnded);
    check("replay-ended-80x24", &replay);

    let mut failed = showing(snapshot(), 80, 24);
    update(&mut failed, Event::SourceFailed("driver/library version mismatch".to_owned()));
    check("failed-80x24", &failed);

    let mut ascii = showing(hostile(), 80, 24);
    ascii.setup.ascii = true;
    let buffer = render(&ascii);
    assert!(buffer.content.iter().all(|cell| cell.symbol().is_ascii()));
    check("ascii-80x24", &ascii);
}

pub(super) fn hostile() -> Snapshot {
    let mut snapshot = sample::snapshot(1, 7);
    let names: [&str; 7] = [
        "\x1b[2J\x1b[31mred\n",
        "日本語のとても長い名前のプログラム.py",
        "\u{202e}gnp.exe",
        "🦀🦀🦀👩‍👩‍👧‍👦 family",
        "שלום עולם",
        "e\u{301}\u{302}\u{303}\u{304}",
        "a\tb\rc\u{9b}2J",
    ];
    for (process, name) in snapshot.processes.iter_mut().zip(names) {
        process.command = Some(vec![name.into(), "x".repeat(500).into()].into());
        process.user = Some(name.into());
        process.framework = Some(name.into());
    }
    snapshot.processes[6].jupyter = Some(
        Jupyter {
            notebook_path: Some("my \x1b]0;title\x07 notebook.ipynb".into()),
            ..Jupyter::default()
        }
        .into(),
    );
    snapshot.host.hostname = Some("h\u{1b}[5mst".into());
    snapshot.gpus[0].name = Some("NVIDIA \u{1b}c".into());
    snapshot
}

#[test]
fn a_screen_too_small_for_a_bottom_line_shows_notes() {
    for (columns, rows) in [(39, 9), (20, 3)] {
        let mut app = showing(sample::snapshot(2, 3), columns, rows);
        assert!(!text(&render(&app)).contains("still killing"));
        app.note = Some(STILL_ENDING.to_owned());
        let shown = text(&render(&app));
        assert!(shown.starts_with("still killing; q"), "{shown}");
    }
}

#[test]
fn findings_of_an_unread_gpu_are_unknown() {
    let reason = Undecided {
        rule: "idle".into(),
        pid: None,
        gpu: Some(0),
        reason: "the process list of GPU 0 could not be read".into(),
    };
    let mut app = app(80, 24);
    let mut lost = sample::snapshot(2, 3);
    lost.gpus[0].processes = None;
    let count = lost.gpus.len();
    app.show(Screenful::new(lost.clone(), Vec::new(), vec![reason.clone()], |_, _| None));
    let title = findings::title(&app, &app.layout().unwrap());
    assert!(title.starts_with("findings: none known, "), "{title}");
    assert!(title.ends_with(" not be read"), "{title}");
    for gpu in &mut lost.gpus {
        gpu.stale_seconds = Some(9.0);
    }
    app.show(Screenful::new(lost, Vec::new(), vec![reason], |_, _| None));
    let title = findings::title(&app, &app.layout().unwrap());
    assert_eq!(title.contains(&format!("{count} GPUs could")), count > 1, "{title}");
}

#[test]
fn themes_change_no_text_and_colour_can_be_disabled() {
    let mut snapshot = sample::snapshot(4, 2);
    sample::lose(&mut snapshot, 1);
    let mut app = showing(snapshot, 120, 40);
    app.setup.replay = Some("demo".to_owned());
    keys(&mut app, "g j");
    let plain = text(&render(&app));
    for theme in Theme::ALL {
        for has_color in [true, false] {
            (app.theme, app.setup.has_color) = (theme, has_color);
            assert_eq!(text(&render(&app)), plain, "{theme:?} {has_color}");
        }
    }
    let buffer = render(&app);
    assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    // Without colour, words and bold text carry the information.
    assert!(text(&buffer).contains("IDLE 29m") && text(&buffer).contains("lost: "));
    assert!(buffer.content.iter().any(|cell| cell.modifier.contains(Modifier::BOLD)));
}
