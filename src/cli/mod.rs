//! Arguments, subcommands, exit codes: the only place that prints, and the only one with anyhow.
//!
//! [`args`] is what a person may type; each subcommand is a file; [`exit`] says what a failure ends
//! with. Data goes to standard output and talk to standard error; a closed pipe ends quietly.

pub mod args;
mod check;
mod config;
mod doctor;
pub mod exit;
mod explain;
pub mod generate;
mod ps;
pub mod reap;
mod record;
mod rules;
pub mod schema;
mod selection;
mod store;
mod trial;
mod version;
mod watch;

use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};

use self::args::{Cli, Color, Command, Global, Recorded};
use self::exit::Exit;
use crate::host;
use crate::report::escape::escape;
use crate::report::style::{Style, broken};
use crate::source::replay::{PlaybackPace, Replay};
use crate::source::{live, nvml};

/// What a person typed makes no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

/// Runs the program: arguments in, exit code out.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // To standard error, or standard output for --help; if that is closed, so be it.
            let _ = error.print();
            if !error.use_stderr() {
                return Exit::Clean.into();
            }
            check::report_misuse(&error, std::env::args_os());
            return Exit::Usage.into();
        }
    };
    match mind_rights(&cli.global).and_then(|()| run(cli)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            warn(&format!("{error:#}"));
            Exit::of(&error).into()
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let global = &cli.global;
    match cli.command {
        _ if cli.version => version::run(global),
        None => print(&Cli::command().render_help().to_string()).map(|()| Exit::Clean),
        Some(Command::Ps(args)) => ps::run(&args, global),
        Some(Command::Check(args)) => check::run(&args, global),
        Some(Command::Explain(args)) => explain::run(&args, global),
        Some(Command::Watch(args)) => watch::run(&args, global),
        Some(Command::Reap(args)) => reap::run(&args, global),
        Some(Command::Kill(args)) => reap::kill(args, global),
        Some(Command::Record(args)) => record::run(&args, global),
        Some(Command::Rules(args)) => rules::run(&args, global),
        Some(Command::Config(args)) => config::run(&args, global),
        Some(Command::Doctor(args)) => doctor::run(&args, global),
        Some(Command::Schema(args)) => schema::run(&args),
        Some(Command::Completions(args)) => {
            print(&generate::completions(args.shell)).map(|()| Exit::Clean)
        }
        Some(Command::Man(args)) => {
            let page = generate::man_page(args.command.as_deref()).map_err(UsageError)?;
            print(&page).map(|()| Exit::Clean)
        }
    }
}

/// Who starts a program that has more rights than they have must not lead it: by a library of theirs, by
/// files that they may not read. To be called while there is but one thread.
///
/// The loader leaves `LD_LIBRARY_PATH` and its like out by itself then (ld.so(8)).
fn mind_rights(global: &Global) -> anyhow::Result<()> {
    if host::has_gained_ids() {
        let why = "the program has the bit for setuid or setgid, and does nothing with it: who may \
                   start it could write files as its owner; remove it (chmod ug-s), and use sudo";
        return Err(UsageError(why.to_owned()).into());
    }
    if !host::has_gained_rights() {
        return Ok(());
    }
    if let Some(library) = &global.nvml_library {
        let name = library.display();
        return Err(UsageError(format!(
            "--nvml-library {name} is not loaded: the program has capabilities that its caller has \
             not, and what it loads has them too; leave it out, or name it as root (sudo)"
        ))
        .into());
    }
    host::give_up_reading().context("capabilities cannot be given up; nothing is done with them")
}

/// Data, to standard output. A reader that has seen enough and closed the pipe is no error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Talk, to standard error. There is nowhere to say that standard error is closed.
fn warn(text: &str) {
    let text = format!("gpumem: {}\n", escape(text));
    let text = match width_of(&io::stderr()) {
        Some(width) => broken(&text, width),
        None => text,
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

fn style(color: Color) -> Style {
    let color = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    };
    Style { color }
}

/// The terminal's width, where standard output is one.
fn terminal_width() -> Option<usize> {
    width_of(&io::stdout())
}

fn width_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

fn nvml_options(global: &Global) -> anyhow::Result<nvml::NvmlOptions> {
    if global.nvml_timeout.0.is_zero() {
        return Err(UsageError("--nvml-timeout must be longer than 0; write 2s".to_owned()).into());
    }
    Ok(nvml::NvmlOptions {
        library: global.nvml_library.clone(),
        timeout: global.nvml_timeout.0,
    })
}

/// A recording, if one was named.
fn recorded(recorded: &Recorded, pace: PlaybackPace) -> anyhow::Result<Option<Replay>> {
    Ok(match (&recorded.replay, recorded.demo) {
        (Some(path), _) => Some(Replay::open(path, pace)?),
        (None, true) => Some(Replay::demo(pace)?),
        (None, false) => None,
    })
}

/// This machine, sampled at an interval.
fn live(global: &Global, interval: std::time::Duration) -> anyhow::Result<live::Live> {
    if interval.is_zero() {
        return Err(UsageError("--interval must be longer than 0; write 1s".to_owned()).into());
    }
    live::Live::open(nvml_options(global)?, interval).map_err(Into::into)
}

/// Whether the machine's snapshot lacks a GPU's memory or its processes.
fn unreadable(snapshot: &crate::model::Snapshot) -> bool {
    let driver = snapshot.errors.iter().any(|error| error.gpu.is_none());
    let gpu = |gpu: &crate::model::Gpu| gpu.processes.is_none() || gpu.stale_seconds.is_some();
    snapshot.gpus.is_empty()
        || (driver && snapshot.gpus.iter().all(gpu))
        || snapshot.gpus.iter().any(gpu)
}

/// Says what was skipped of a recording, once it has been read to its end.
fn warn_of_damage(replay: &Replay) {
    const SHOWN: usize = 3;
    for damage in replay.damage().iter().take(SHOWN) {
        warn(&format!("{}: {damage}", replay.name()));
    }
    let more = replay.damage_count().saturating_sub(SHOWN as u64);
    if more > 0 {
        warn(&format!(
            "{}: {more} more damaged lines were skipped",
            replay.name()
        ));
    }
}
