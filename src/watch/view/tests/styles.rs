//! What everything looks like, in each theme and with as many colours as a terminal has: a line of text,
//! and below it a letter for the style of each cell.

use ratatui::style::Style;

use super::*;
use crate::watch::theme::Theme;

/// Something of every kind: findings of each severity, a GPU that is lost and one that is stale, a marked
/// process, a selected one, a recording that stands still.
fn everything() -> App {
    let mut snapshot = sample::snapshot(3, 3);
    sample::divide(&mut snapshot, 0);
    sample::lose(&mut snapshot, 1);
    snapshot.gpus[2].stale_seconds = Some(7.2);
    let findings = [Severity::Critical, Severity::Warning, Severity::Info];
    let findings = (0..).zip(findings).map(|(at, severity)| {
        let mut finding = sample::finding(&snapshot, [0, 0, 2][at as usize], at);
        finding.severity = severity;
        finding
    });
    let findings: Vec<_> = findings.collect();
    let courses = sample::courses(&snapshot, 20);
    let mut app = app(80, 24);
    app.setup.replay = Some("old.jsonl".to_owned());
    app.judged.courses = courses;
    app.playback.is_paused = true;
    app.show(Screenful::new(snapshot, findings, Vec::new(), |_, _| None));
    keys(&mut app, "j j");
    app
}

/// The screen with its styles, and a legend of them; the style of a blank line is a blank.
fn styled(buffer: &Buffer) -> String {
    const LETTERS: &[u8] = b" abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let width = usize::from(buffer.area.width);
    let mut lines = buffer.content.chunks(width);
    let blank = lines.find(|line| line.iter().all(|cell| cell.symbol() == " "));
    let mut styles: Vec<Style> = blank.map(|line| line[0].style()).into_iter().collect();
    let mut out = String::new();
    for (line, words) in buffer.content.chunks(width).zip(text(buffer).lines()) {
        let letters = line.iter().map(|cell| {
            let style = cell.style();
            let place = styles.iter().position(|it| *it == style);
            let place = place.unwrap_or_else(|| {
                styles.push(style);
                styles.len() - 1
            });
            char::from(LETTERS[place])
        });
        let letters: String = letters.collect();
        out.push_str(&format!("{words}\n{}\n", letters.trim_end()));
    }
    for (style, letter) in styles.iter().zip(LETTERS) {
        let letter = char::from(*letter);
        let (fg, bg) = (style.fg.unwrap_or_default(), style.bg.unwrap_or_default());
        let line = format!("{letter}: {fg} on {bg} {:?}", style.add_modifier);
        out.push_str(line.trim_end_matches(" NONE"));
        out.push('\n');
    }
    out
}

#[test]
fn styles_with_and_without_colours() {
    let mut app = everything();
    compare("styles-terminal-80x24", &styled(&render(&app)));
    app.setup.has_color = false;
    compare("styles-mono-80x24", &styled(&render(&app)));
}

#[test]
fn a_theme_changes_no_word() {
    let mut app = everything();
    let plain = text(&render(&app));
    for theme in Theme::ALL {
        for has_color in [false, true] {
            (app.theme, app.setup.has_color) = (theme, has_color);
            assert_eq!(text(&render(&app)), plain, "{theme:?} {has_color}");
        }
    }
}
