//! The terminal: colours, Unicode, size. What the environment says may hold anything.

use std::env;
use std::io::{self, IsTerminal as _};

use super::super::args::Color;
use super::super::watch::locale_is_utf8;
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic};

/// The longest that is shown of a variable.
const MOST_CHARACTERS: usize = 64;
/// `watch` draws from this size on.
const LEAST_SIZE: (u16, u16) = (40, 10);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Terminal {
    is_terminal: bool,
    /// Columns and lines.
    size: Option<(u16, u16)>,
    term: Option<String>,
    colorterm: Option<String>,
    no_color: bool,
    asked: Color,
    /// The variable that decides, as it is set.
    locale: Option<String>,
    is_utf8: bool,
}

pub(super) fn read(asked: Color) -> Terminal {
    let stdout = io::stdout();
    let size = rustix::termios::tcgetwinsize(&stdout).ok();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| variable(name).map(|value| format!("{name}={value}")));
    Terminal {
        is_terminal: stdout.is_terminal(),
        size: size
            .map(|size| (size.ws_col, size.ws_row))
            .filter(|&(columns, lines)| columns > 0 && lines > 0),
        term: variable("TERM"),
        colorterm: variable("COLORTERM"),
        no_color: variable("NO_COLOR").is_some(),
        asked,
        locale,
        is_utf8: locale_is_utf8(),
    }
}

/// A variable that is set and not empty, cut where it is longer than any that is meant.
fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name).filter(|value| !value.is_empty())?;
    let value = value.to_string_lossy();
    let mut text: String = value.chars().take(MOST_CHARACTERS).collect();
    if text.len() < value.len() {
        text.push('…');
    }
    Some(text)
}

pub(super) fn checks(terminal: &Terminal) -> [DoctorCheck; 2] {
    [colour(terminal), screen(terminal)]
}

fn colour(terminal: &Terminal) -> DoctorCheck {
    let topic = Topic::Colour;
    let ok = |seen: String| DoctorCheck::new(topic, CheckStatus::Ok, seen);
    let term = terminal.term.as_deref().unwrap_or_default();
    match terminal.asked {
        Color::Always => return ok("on, by --color".to_owned()),
        Color::Never => return ok("off, by --color".to_owned()),
        Color::Auto => {}
    }
    if term == "dumb" {
        return DoctorCheck::new(topic, CheckStatus::Limited, "off, TERM=dumb")
            .means("a terminal without a screen: watch does not start on it")
            .next("export TERM=xterm-256color, where the terminal can do more");
    }
    if terminal.no_color {
        return ok("off, by NO_COLOR".to_owned());
    }
    if !terminal.is_terminal {
        let seen = "off, standard output is no terminal";
        let seen = match term {
            "" => seen.to_owned(),
            term => format!("{seen}; TERM={term}"),
        };
        return DoctorCheck::new(topic, CheckStatus::NotApplicable, seen);
    }
    if term.is_empty() {
        return DoctorCheck::new(topic, CheckStatus::Limited, "on, though TERM is not set")
            .means("what the terminal can do is not known")
            .next("export TERM=xterm-256color");
    }
    let depth = match terminal.colorterm.as_deref() {
        Some("truecolor" | "24bit") => "24 bits",
        _ if term.contains("256color") => "256 colours",
        _ => "8 colours or more",
    };
    ok(format!("on, {depth}, TERM={term}"))
}

fn screen(terminal: &Terminal) -> DoctorCheck {
    let topic = Topic::Screen;
    let locale = terminal.locale.as_deref().unwrap_or("no locale is set");
    let size = terminal
        .size
        .map_or_else(|| "no terminal".to_owned(), |(columns, lines)| format!("{columns}x{lines}"));
    if !terminal.is_utf8 {
        return DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            format!("{size}, {locale}, not UTF-8"),
        )
        .means("watch draws with ASCII only")
        .next("export LC_ALL=C.UTF-8");
    }
    let seen = format!("{size}, Unicode, {locale}");
    match terminal.size {
        Some((columns, lines)) if columns < LEAST_SIZE.0 || lines < LEAST_SIZE.1 => {
            let (columns, lines) = LEAST_SIZE;
            DoctorCheck::new(topic, CheckStatus::Limited, seen)
                .means(format!("watch shows its tables from {columns}x{lines} on"))
                .next("make the terminal larger")
        }
        _ => DoctorCheck::new(topic, CheckStatus::Ok, seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal() -> Terminal {
        Terminal {
            is_terminal: true,
            size: Some((120, 40)),
            term: Some("xterm-256color".to_owned()),
            colorterm: None,
            no_color: false,
            asked: Color::Auto,
            locale: Some("LANG=en_US.UTF-8".to_owned()),
            is_utf8: true,
        }
    }

    fn with(change: impl FnOnce(&mut Terminal)) -> [(CheckStatus, String); 2] {
        let mut terminal = terminal();
        change(&mut terminal);
        checks(&terminal).map(|check| (check.verdict, check.seen))
    }

    #[test]
    fn a_usual_terminal_is_well() {
        let [colour, screen] = with(|_| {});
        assert_eq!(colour, (CheckStatus::Ok, "on, 256 colours, TERM=xterm-256color".to_owned()));
        assert_eq!(screen, (CheckStatus::Ok, "120x40, Unicode, LANG=en_US.UTF-8".to_owned()));
    }

    #[test]
    fn what_was_asked_for_comes_before_what_the_terminal_can() {
        let colour = |change: fn(&mut Terminal)| with(change)[0].clone();
        for (change, verdict, seen) in [
            (
                (|it| it.asked = Color::Never) as fn(&mut Terminal),
                CheckStatus::Ok,
                "off, by --color",
            ),
            (|it| it.no_color = true, CheckStatus::Ok, "off, by NO_COLOR"),
            (|it| it.term = Some("dumb".to_owned()), CheckStatus::Limited, "off, TERM=dumb"),
            (|it| it.term = None, CheckStatus::Limited, "on, though TERM is not set"),
            (
                |it| it.is_terminal = false,
                CheckStatus::NotApplicable,
                "off, standard output is no terminal; TERM=xterm-256color",
            ),
            (
                |it| it.colorterm = Some("truecolor".to_owned()),
                CheckStatus::Ok,
                "on, 24 bits, TERM=xterm-256color",
            ),
        ] {
            assert_eq!(colour(change), (verdict, seen.to_owned()));
        }
    }

    #[test]
    fn a_small_screen_and_a_locale_without_unicode_are_limits() {
        assert_eq!(with(|it| it.size = Some((39, 40)))[1].0, CheckStatus::Limited);
        assert_eq!(with(|it| it.size = Some((40, 10)))[1].0, CheckStatus::Ok);
        let [_, screen] = with(|it| {
            it.is_utf8 = false;
            it.locale = None;
        });
        assert_eq!(screen.1, "120x40, no locale is set, not UTF-8");
    }
}
