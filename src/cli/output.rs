//! Prints data to standard output, and messages to standard error.

use std::env;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue};
use jiff::tz::TimeZone;
use unicode_width::UnicodeWidthStr as _;

use super::args::Color;
use crate::cli::args::{Cli, Command, ConfigAction};
use crate::model::time::show_times_in;
use crate::report::escape::escape;
use crate::report::style::{Style, broken};
use crate::units::without_error_numbers;

/// Prints data. A closed pipe is not an error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Returns whether the terminal can show Unicode. POSIX defines the precedence of the locale variables.
pub(super) fn shows_unicode() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(env::var_os)
        .find(|locale| !locale.is_empty())
        .is_some_and(|locale| {
            let locale = locale.to_string_lossy().to_ascii_uppercase();
            locale.contains("UTF-8") || locale.contains("UTF8")
        })
        // The font of the Linux console has at most 512 characters, so it lacks many symbols.
        && env::var_os("TERM").is_none_or(|term| term != "linux")
}

/// Prints a message to standard error. Ignores errors, because standard error may be closed.
pub(super) fn warn(text: &str) {
    let text = format!("gpumem: {}\n", escape(&without_error_numbers(text)));
    let text = match width_of(&io::stderr()) {
        Some(width) => broken(&text, width),
        None => text,
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

pub(super) fn print_usage_error(mut error: clap::Error) {
    let is_recorded = |typed: &ContextValue| matches!(typed, ContextValue::String(typed) if ["--demo", "--replay"].contains(&&**typed));
    if error.get(ContextKind::InvalidArg).is_some_and(is_recorded) {
        let tip = "only ps, watch, check, explain, reap, metrics, serve and config test accept --demo and --replay";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    let plain = error.render().to_string();
    let width = width_of(&io::stderr()).filter(|_| error.use_stderr());
    // Ignore the error: the stream may be closed.
    let _ = match width.filter(|&width| plain.lines().any(|line| line.width() > width)) {
        Some(width) => io::stderr().write_all(broken(&plain, width).as_bytes()),
        None => error.print(),
    };
}

pub(super) fn style(color: Color) -> Style {
    let color = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            io::stdout().is_terminal()
                && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    };
    Style { color }
}

pub(super) fn terminal_width() -> Option<usize> {
    width_of(&io::stdout())
}

pub(super) fn terminal_width_of_errors() -> Option<usize> {
    width_of(&io::stderr())
}

/// Returns the width of the terminal. If the stream is not a terminal, returns `COLUMNS`, which watch(1) sets.
fn width_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let columns = match stream.is_terminal() {
        true => rustix::termios::tcgetwinsize(stream).ok()?.ws_col,
        false => env::var("COLUMNS").ok()?.parse().ok()?,
    };
    Some(usize::from(columns)).filter(|&columns| columns > 0)
}

/// Sets the time zone of printed times, unless the output is machine-readable.
pub(super) fn choose_time_zone(cli: &Cli) {
    if cli.global.utc || is_for_programs(cli) {
        return;
    }
    match TimeZone::try_system() {
        Ok(zone) => show_times_in(zone),
        // Like the C library, gpumem uses UTC if the system has no time zone. Warn only if TZ names an unknown zone.
        Err(_) => {
            let named = env::var_os("TZ").filter(|named| !named.is_empty());
            if let Some(named) = named.filter(|_| !is_quiet(cli)) {
                warn(&format!(
                    "TZ={}: no such time zone here (is tzdata installed?); times are in UTC",
                    named.to_string_lossy()
                ));
            }
        }
    }
}

/// Returns whether the output is machine-readable or never contains times.
fn is_for_programs(cli: &Cli) -> bool {
    match &cli.command {
        // Without a command, gpumem runs `watch` on a terminal.
        None => cli.version,
        Some(command) => match command {
            Command::Ps(args) => args.json,
            Command::Check(args) => args.json,
            Command::Explain(args) => args.json,
            Command::Reap(args) => args.json,
            Command::Release(args) => args.json,
            Command::Doctor(args) => args.json,
            Command::Config(args) => matches!(args.action, ConfigAction::Test { json: true, .. }),
            Command::Watch(_) | Command::Kill(_) | Command::Record(_) | Command::Run(_) => false,
            Command::Park(_) | Command::Unpark(_) => false,
            Command::Metrics(_) | Command::Serve(_) => true,
            Command::Rules(_) | Command::Schema(_) | Command::Completions(_) => true,
            Command::Man(_) => true,
        },
    }
}

fn is_quiet(cli: &Cli) -> bool {
    matches!(&cli.command, Some(Command::Check(args)) if args.quiet)
}
