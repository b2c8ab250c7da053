//! Tests of typed keys and written frames.

use std::num::NonZero;
use std::time::Duration;

use crossterm::event::KeyModifiers;
use ratatui::style::{Color, Modifier};

use super::*;
use crate::config::Config;
use crate::model::row::CurrentUser;
use crate::rules::{Engine, RuleSet};
use crate::watch::once::visible;
use crate::watch::sample;
use crate::watch::theme::Theme;

fn options(theme: Theme, has_color: bool) -> Options {
    Options {
        speed: 1.0,
        mouse: false,
        me: CurrentUser::default(),
        filter: None,
        sort: None,
        columns: None,
        interval: Duration::from_secs(1),
        theme,
        asks_background: false,
        has_color,
        ascii: false,
    }
}

fn still(theme: Theme, has_color: bool, size: (u16, u16)) -> StillScreen {
    let engine = Engine::new(RuleSet::default());
    let mut still =
        StillScreen::new(options(theme, has_color), None, None, EarlierHistory::new(engine), size);
    let mut snapshot = sample::snapshot(2, 4);
    snapshot.processes[1].command = Some(vec!["日本語".into(), "<b>&\u{1b}[2J".into()].into());
    snapshot.processes[2].user = Some("שלום".into());
    still.add_sample(snapshot);
    still
}

fn press(still: &mut StillScreen, keys: &str) -> Result<(), OnceError> {
    still.press(Some(&keys.parse().unwrap()), &mut ReclaimWorker::new(&Config::default(), None))
}

#[test]
fn typed_keys_are_parsed() {
    let keys = |text: &str| -> Vec<KeyEvent> {
        let Keys(keys) = text.parse().unwrap();
        assert_eq!(keys.iter().map(|(name, _)| name.as_str()).collect::<String>(), text);
        keys.into_iter().map(|(_, key)| key).collect()
    };
    assert_eq!(
        keys("aé<Enter>G<lt><F10>>"),
        [
            KeyCode::Char('a'),
            KeyCode::Char('é'),
            KeyCode::Enter,
            KeyCode::Char('G'),
            KeyCode::Char('<'),
            KeyCode::F(10),
            KeyCode::Char('>'),
        ]
        .map(KeyEvent::from)
    );
    assert_eq!(
        keys("<ctrl-f><SPACE>"),
        [KeyEvent::new(KeyCode::Char('f'), KeyModifiers::CONTROL), KeyCode::Char(' ').into(),]
    );
    assert_eq!(keys(""), []);
    for (text, named) in [
        ("j<Entr>j", "<Entr> is"),
        ("<", "< is"),
        ("<F13>", "<F13> is"),
        ("<F0>", "<F0> is"),
        ("<>", "<> is"),
        ("<ctrl-fg>", "<ctrl-fg> is"),
        ("a\x1b[A", "\\e[A is"),
    ] {
        let error = text.parse::<Keys>().unwrap_err().to_string();
        assert!(error.starts_with(named) && error.contains("<lt>"), "{error}");
    }
}

#[test]
fn styled_text_looks_like_the_screen_on_a_terminal() {
    for theme in Theme::ALL {
        let mut still = still(theme, true, (100, 30));
        press(&mut still, "gj").unwrap();
        let mut terminal =
            vt100::Parser::new(NonZero::new(31).unwrap(), NonZero::new(100).unwrap(), 0);
        terminal.process(still.text(true).replace('\n', "\r\n").as_bytes());
        let drawn = still.draw();
        for y in 0..30 {
            let line = &drawn.content[usize::from(y) * 100..][..100];
            for (x, cell, _) in visible(line) {
                let shown = terminal.screen().cell(y, x as u16).unwrap();
                let symbol = if shown.contents().is_empty() { " " } else { shown.contents() };
                assert_eq!(symbol, cell.symbol(), "{x} {y}");
                if symbol != " " {
                    let bold = cell.modifier.contains(Modifier::BOLD);
                    let reversed = cell.modifier.contains(Modifier::REVERSED);
                    assert_eq!((shown.bold(), shown.inverse()), (bold, reversed), "{x} {y}");
                    let is_default = shown.fgcolor() == vt100::Color::Default;
                    assert_eq!(is_default, cell.fg == Color::Reset, "{x} {y}");
                }
            }
        }
    }
}

/// Returns the elements that start with `begin`. Each element is on a separate line.
fn elements<'a>(svg: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    svg.lines().filter(move |line| line.starts_with(begin))
}

#[test]
fn an_svg_is_well_formed_in_every_theme_and_size() {
    for theme in Theme::ALL {
        for size in [(1, 1), (40, 10), (120, 40)] {
            let mut still = still(theme, true, size);
            press(&mut still, "gj").unwrap();
            let svg = still.svg();
            assert!(svg.starts_with("<svg ") && svg.ends_with("</g>\n</svg>\n"));
            assert!(svg.chars().all(|c| c == '\n' || !c.is_control()));
            for line in svg.lines().skip(1) {
                let text = line.split_once('>').map_or("", |(_, rest)| rest);
                let text = text.rsplit_once("</").map_or(text, |(text, _)| text);
                assert!(!text.contains(['<', '>']), "{line}");
            }
            for cells in elements(&svg, "<text") {
                let number = |name: &str| -> usize {
                    let (_, rest) = cells.split_once(name).unwrap();
                    rest.split('"').next().unwrap().parse().unwrap()
                };
                let end = number("x=\"") + number("textLength=\"");
                assert!(end <= usize::from(size.0) * 8, "{cells}");
            }
        }
    }
}

#[test]
fn the_first_frame_has_charts_of_the_stored_history() {
    let first_frame = |hours_before: u32| {
        let mut past = EarlierHistory::new(Engine::new(RuleSet::default()));
        let mut snapshot = sample::snapshot(1, 1);
        let now = snapshot.time;
        for before in (1..=hours_before * 60).rev() {
            snapshot.time = now.plus_seconds(f64::from(before) * -60.0);
            past.engine.observe(&snapshot);
            past.all_series.follow(past.engine.history(), &snapshot);
        }
        snapshot.time = now;
        let options = options(Theme::Terminal, false);
        let mut still = StillScreen::new(options, None, None, past, (120, 40));
        still.add_sample(snapshot);
        still.text(false)
    };
    assert!(!first_frame(0).contains("2h"), "{}", first_frame(0));
    assert!(first_frame(2).contains("2h"), "{}", first_frame(2));
}
