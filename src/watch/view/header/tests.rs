//! What the first line says of time, at several widths.

use super::*;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{self, keys, screen_of, tick};
use crate::watch::theme::Theme;
use crate::watch::update::update;

fn app(replay: Option<&str>, samples: u64) -> App {
    let mut app = screen_of(replay, 1, (80, 24));
    (0..samples).for_each(|second| see(&mut app, second));
    app
}

fn see(app: &mut App, second: u64) {
    testing::see(app, second, sample::later(1, 1, second as f64));
}

fn line(app: &App, width: u16) -> String {
    let area = Rect::new(0, 0, width, 1);
    let mut buffer = Buffer::empty(area);
    draw(app, Styles { theme: Theme::default(), has_color: false }, area, &mut buffer);
    testing::lines(&buffer).concat().trim_end().to_owned()
}

/// That the line ends so, at these widths.
fn ends(app: &App, expected: &[(u16, &str)]) {
    for &(width, end) in expected {
        let line = line(app, width);
        assert!(line.ends_with(end), "{width}: {line:?}");
        assert!(columns(&line) <= width);
    }
}

#[test]
fn paused_late_and_silent_are_distinguished() {
    let mut app = app(None, 3);
    ends(&app, &[(80, "  2026-11-21 10:04:07 UTC, every 1s"), (40, " 10:04:07 UTC, every 1s")]);
    tick(&mut app, 4_000);
    ends(&app, &[(80, "10:04:07 UTC, 2s ago")]);
    tick(&mut app, 9_000);
    ends(&app, &[(80, " no answer for 7s"), (40, " no answer for 7s")]);
    keys(&mut app, "p");
    ends(&app, &[(80, "PAUSED, no answer for 7s"), (40, "PAUSED, no answer for 7s")]);
    for second in 10..210 {
        see(&mut app, second);
    }
    ends(&app, &[(80, " behind, L: now"), (40, " behind")]);
}

#[test]
fn of_a_recording_it_shows_where_and_how_fast() {
    let mut app = app(Some("r.jsonl"), 3);
    update(&mut app, Event::SourceRead(37));
    ends(&app, &[(80, "2026-11-21 10:04:07 UTC 37%, playing 1x"), (40, "10:04:07, playing 1x")]);
    keys(&mut app, "++");
    ends(&app, &[(40, "10:04:07, playing 4x")]);
    keys(&mut app, "p");
    ends(&app, &[(80, "37%, PAUSED, p plays"), (40, "10:04:07 PAUSED")]);
    keys(&mut app, "n");
    ends(&app, &[(80, "seeking, 2026-11-21 10:04:07 UTC 37%, Esc to stop"), (40, "seeking 37%")]);
    update(&mut app, Event::SourceEnded);
    ends(&app, &[(80, "37%, the end"), (40, "10:04:07, the end")]);
    keys(&mut app, "[");
    ends(&app, &[(80, "10:04:06 UTC 37%, PAUSED, p plays")]);
    let narrow = line(&app, 40);
    assert!(narrow.starts_with(" REPLAY   gpu26"), "{narrow}");
}

#[test]
fn no_width_breaks_it() {
    let mut paused = app(None, 30);
    keys(&mut paused, "[[[");
    let mut ended = app(Some("\u{1b}[31m年年"), 4);
    update(&mut ended, Event::SourceEnded);
    for app in [app(None, 0), app(Some("r"), 0), paused, ended] {
        for width in 0..130 {
            // A wide character is followed by a cell of its own.
            let shown = line(&app, width).chars().count();
            assert!(shown <= usize::from(width));
            assert!(shown > 0 || width < 20, "{width}");
        }
    }
}

#[test]
fn samples_without_any_gpu_are_no_calm_news() {
    let mut app = app(None, 1);
    for (ages, end) in
        [([Some(12.5), None], "every 1s"), ([Some(12.5), Some(70.0)], "no GPU answers for 12s")]
    {
        let mut snapshot = sample::later(2, 1, 30.0);
        for (gpu, age) in snapshot.gpus.iter_mut().zip(ages) {
            gpu.stale_seconds = age;
        }
        testing::see(&mut app, 1, snapshot);
        ends(&app, &[(80, end), (40, end)]);
    }
}
