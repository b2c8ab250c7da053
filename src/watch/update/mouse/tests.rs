//! Tests of clicks and the wheel.

use crossterm::event::KeyModifiers;

use super::*;
use crate::model::Snapshot;
use crate::watch::charts;
use crate::watch::keys::Context;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{filter, keys as press_keys, screen};
use crate::watch::update::update;
use crate::watch::view_model::Screenful;

fn app_with(snapshot: Snapshot) -> App {
    let mut app = screen(120, 40);
    app.show(Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None));
    app
}

fn send(app: &mut App, kind: MouseEventKind, (x, y): (u16, u16), now: u64) -> Option<Effect> {
    let event = MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE };
    let now = Duration::from_millis(now);
    update(app, Event::Mouse { now, event })
}

fn click(app: &mut App, at: (u16, u16), now: u64) -> Option<Effect> {
    send(app, MouseEventKind::Down(MouseButton::Left), at, now)
}

fn wheel(app: &mut App, at: (u16, u16)) -> Option<Effect> {
    send(app, MouseEventKind::ScrollDown, at, 0)
}

fn row(app: &App, line: u16) -> (u16, u16) {
    (5, app.layout().unwrap().table.y + line)
}

fn heading(app: &App, column: Column) -> Option<(u16, u16)> {
    let layout = app.layout().unwrap();
    let y = layout.table_heading.y;
    let x = (0..120).find(|&x| columns::hit_column(app, &layout, x) == Some(column));
    x.map(|x| (x, y))
}

fn hint(context: Context, word: &str) -> (u16, u16) {
    let spots = hints::spots(keys::hints(context).collect(), 120);
    let spot = spots.iter().find(|spot| spot.hint.word == word).unwrap();
    (spot.from + 1, 39)
}

#[test]
fn clicks_on_a_heading_sort_and_reverse() {
    let mut app = app_with(sample::snapshot(2, 4));
    let mut shown = 0;
    for column in Column::ALL {
        let Some(at) = heading(&app, column) else {
            continue;
        };
        shown += 1;
        app.table.choice.sort.reversed = false;
        let mut reversed = app.table.choice.sort.column == column;
        for _ in 0..3 {
            assert_eq!(click(&mut app, at, 0), Some(Effect::Draw));
            assert_eq!(app.table.choice.sort, Sort { column, reversed });
            reversed ^= true;
        }
    }
    assert!(shown > 8, "{shown}");
    let y = app.layout().unwrap().table_heading.y;
    assert_eq!(click(&mut app, (0, y), 0), None, "the gutter is not a column");
}

#[test]
fn a_click_selects_the_row_under_it_or_nothing() {
    let mut app = app_with(sample::snapshot(1, 60));
    press_keys(&mut app, "G");
    let offset = app.table.offset;
    assert!(offset > 0);
    let at = row(&app, 2);
    assert_eq!(click(&mut app, at, 0), Some(Effect::Draw));
    assert_eq!(app.table.selected(), Some(offset + 2));
    assert_eq!(app.table.offset, offset, "the table does not scroll");

    let mut app = app_with(sample::snapshot(1, 2));
    let below = row(&app, 2);
    assert_eq!(click(&mut app, below, 0), None);
    assert!(!app.table.is_chosen());
    app.focus = Focus::Findings;
    let first = row(&app, 0);
    click(&mut app, first, 0);
    assert_eq!((app.focus, app.table.selected()), (Focus::Table, Some(0)));
}

#[test]
fn only_a_double_click_on_one_process_opens_it() {
    // Returns whether the next click can complete a double click.
    let is_pending = |app: &App| app.table.clicked.is_some();
    let mut app = app_with(sample::snapshot(1, 4));
    let (first, second) = (row(&app, 0), row(&app, 1));
    click(&mut app, first, 1_000);
    assert!(is_pending(&app));
    click(&mut app, first, 1_400);
    assert_eq!(app.mode, Mode::Page);
    press_keys(&mut app, "<Esc>");
    click(&mut app, first, 2_000);
    click(&mut app, first, 2_401);
    assert!(is_pending(&app), "too late");
    click(&mut app, second, 2_402);
    assert!(is_pending(&app), "another row");
    press_keys(&mut app, "r");
    click(&mut app, second, 2_403);
    assert!(is_pending(&app), "another process");
    let pid = heading(&app, Column::Pid).unwrap();
    click(&mut app, pid, 2_404);
    assert!(!is_pending(&app), "the heading was clicked");
}

#[test]
fn clicks_on_a_gpu_set_and_remove_the_filter() {
    let mut snapshot = sample::snapshot(3, 4);
    // The filter uses the index of a GPU, not its position in the list.
    snapshot.gpus[2].index = 7;
    let mut app = app_with(snapshot);
    let y = app.layout().unwrap().gpus.y;
    assert_eq!(click(&mut app, (3, y), 0), Some(Effect::Draw));
    assert_eq!(filter(&app), "gpu:0");
    assert_eq!((app.table.listing.lines.len(), app.table.listing.hidden), (4, 8));
    // The panel shows only the GPU in the filter.
    click(&mut app, (3, y), 0);
    assert_eq!(filter(&app), "", "the only GPU shown was clicked");
    let (chart, _) = charts::shown(&app, &app.layout().unwrap())[1];
    click(&mut app, (chart.x + 1, chart.bottom() - 1), 0);
    assert_eq!(filter(&app), "gpu:1");
    click(&mut app, (3, y), 0);
    click(&mut app, (3, y + 2), 0);
    assert_eq!(filter(&app), "gpu:7", "another GPU");
    click(&mut app, (3, y), 0);
    assert_eq!((filter(&app).as_str(), app.table.listing.hidden), ("", 0));

    // A click on the GPU also removes a typed filter, but keeps other limits.
    press_keys(&mut app, "u/gpu:1<Enter>");
    assert_eq!(filter(&app), "gpu:1");
    click(&mut app, (3, y), 0);
    assert_eq!((filter(&app).as_str(), app.table.choice.mine), ("", true));

    assert_eq!(click(&mut app, (3, y - 1), 0), None, "the heading is not a GPU");
    let mut app = app_with(sample::snapshot(64, 1));
    update(&mut app, Event::Resize(40, 10));
    assert_eq!(click(&mut app, (3, 1), 0), None, "the totals are not a GPU");
}

#[test]
fn every_hint_can_be_clicked_at_every_width() {
    for (width, words) in [
        (40, &["Help", "Filter", "Kill", "Quit"][..]),
        (60, &["Help", "Columns", "Filter", "Sort", "Kill", "Quit"]),
        (80, &["Totals", "Find", "Tree"]),
        (200, &["Explain", "Mark", "Pause"]),
    ] {
        for word in words {
            let opened = || {
                let mut app = app_with(sample::snapshot(1, 2));
                update(&mut app, Event::Resize(width, 24));
                app.select(0);
                app
            };
            let app = opened();
            let layout = app.layout();
            let spots = hints::shown(&app, layout.as_ref(), width);
            let spot = spots.iter().find(|spot| spot.hint.word == *word);
            let spot = *spot.unwrap_or_else(|| panic!("{word} at {width}"));
            let mut pressed = opened();
            let by_key =
                update(&mut pressed, Event::Key(keys::events(spot.hint.key).next().unwrap()));
            assert!(by_key.is_some(), "{word}");
            for x in [spot.from, spot.to - 1] {
                let mut clicked = opened();
                assert_eq!(click(&mut clicked, (x, 23), 0), by_key, "{word} at {width}");
                assert_eq!(clicked.mode, pressed.mode, "{word} at {width}");
            }
        }
    }
}

#[test]
fn a_click_toggles_an_entry_of_the_column_list() {
    let mut app = app_with(sample::snapshot(1, 2));
    press_keys(&mut app, "<F2>");
    let Mode::Columns(list) = &app.mode else { panic!("{:?}", app.mode) };
    let (third, _) = list.entries[2];
    let at = (app.area.width - 40, 4);
    assert_eq!(click(&mut app, at, 0), Some(Effect::Draw));
    assert!(!app.table.columns.has(third));
    assert_eq!(click(&mut app, at, 0), Some(Effect::Draw));
    assert!(app.table.columns.has(third));
    assert_eq!(click(&mut app, (0, 5), 0), None, "beside the list");
    assert!(matches!(app.mode, Mode::Columns(_)));
    wheel(&mut app, at);
    assert!(matches!(&app.mode, Mode::Columns(list) if list.cursor == 5));
}

#[test]
fn the_wheel_scrolls_the_panel_under_it() {
    let mut app = app_with(sample::snapshot(1, 60));
    let over = row(&app, 3);
    wheel(&mut app, over);
    wheel(&mut app, over);
    assert_eq!(app.table.selected(), Some(6));
    send(&mut app, MouseEventKind::ScrollUp, over, 0);
    assert_eq!(app.table.selected(), Some(3));
    assert_eq!(wheel(&mut app, (3, 0)), None, "the header does not scroll");
    assert_eq!(app.table.selected(), Some(3));
    app.mode = Mode::Help(0);
    app.area.height = 12;
    wheel(&mut app, (3, 0));
    assert_eq!(app.mode, Mode::Help(3));
}

#[test]
fn a_prompt_ignores_clicks_and_other_buttons_do_nothing() {
    let mut app = app_with(sample::snapshot(1, 2));
    let at = row(&app, 1);
    for kind in [
        MouseEventKind::Up(MouseButton::Left),
        MouseEventKind::Down(MouseButton::Right),
        MouseEventKind::Down(MouseButton::Middle),
        MouseEventKind::Drag(MouseButton::Left),
        MouseEventKind::Moved,
    ] {
        assert_eq!(send(&mut app, kind, at, 0), None, "{kind:?}");
    }
    press_keys(&mut app, "/us");
    let before = app.mode.clone();
    let (typed_over, heading) = (row(&app, 0), heading(&app, Column::Pid).unwrap());
    for at in [typed_over, heading, hint(Context::Main, "Quit")] {
        assert_eq!(click(&mut app, at, 0), None);
        assert_eq!(wheel(&mut app, at), None);
    }
    assert_eq!((&app.mode, app.table.is_chosen()), (&before, false));
}
