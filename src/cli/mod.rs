//! Arguments, subcommands and exit codes. No other module uses anyhow.
//!
//! [`args`] defines the arguments, and each subcommand has its own file. `session` opens the source of samples,
//! `signals` handles signals, and [`exit`] converts errors to exit codes. Data goes to standard output, and messages go
//! to standard error. A closed pipe is not an error.

pub mod args;
mod backtest;
mod check;
mod complete;
mod config;
mod devices;
mod doctor;
pub mod exit;
mod explain;
pub mod hosts;
mod man;
mod metrics;
mod output;
mod park;
mod ps;
pub mod reap;
mod record;
mod rules;
mod run;
mod selection;
mod serve;
mod session;
mod signals;
mod store;
mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};

use self::args::{Cli, Command, Global};
use self::exit::{Exit, UsageError};
use self::output::{print, print_usage_error, style, terminal_width, warn};
use self::session::{live, nvml_options, recorded, unreadable, warn_of_damage};
use crate::host;
use crate::reclaim;
use crate::report::SCHEMAS;
use crate::source::nvml;

pub fn main() -> ExitCode {
    if host::serves_memory(std::env::args_os()) {
        return Exit::Clean.into();
    }
    if reclaim::park::run_if_requested(std::env::args_os()) {
        return Exit::Clean.into();
    }
    if let Some(words) = complete::requested(std::env::args_os()) {
        return complete::run(words).into();
    }
    let cli = match Cli::try_parse_from(help_as_flag(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Clean };
            print_usage_error(error);
            return exit.into();
        }
    };
    let checked = check_privileges(cli.global.nvml_library.as_deref());
    let _reading = checked.is_ok().then(|| {
        output::choose_time_zone(&cli);
        host::read_memory_by_child()
    });
    match checked.and_then(|()| run(cli)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            warn(&format!("{error:#}"));
            Exit::from_error(&error).into()
        }
    }
}

/// Rewrites `gpumem help kill` to `gpumem kill --help`.
fn help_as_flag(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let global = &cli.global;
    let may_park = |command: &Command| {
        use Command::{Kill, Park, Reap, Unpark, Watch};
        matches!(command, Park(_) | Unpark(_) | Kill(_) | Reap(_) | Watch(_))
    };
    if cli.command.as_ref().is_none_or(may_park) {
        park::install(global);
    }
    match cli.command {
        _ if cli.version => print_version(global),
        None => run_bare(global),
        Some(Command::Ps(args)) => ps::run(&args, global),
        Some(Command::Check(args)) => check::run(&args, global),
        Some(Command::Explain(args)) => explain::run(&args, global),
        Some(Command::Watch(args)) => watch::run(&args, global),
        Some(Command::Reap(args)) => reap::run(&args, global),
        Some(Command::Kill(args)) => reap::kill(args, global),
        Some(Command::Release(args)) => reap::release(args, global),
        Some(Command::Park(args)) => park::run(args, global),
        Some(Command::Unpark(args)) => park::unpark(&args, global),
        Some(Command::Run(args)) => run::run(&args, global),
        Some(Command::Record(args)) => record::run(&args, global),
        Some(Command::Metrics(args)) => metrics::run(&args, global),
        Some(Command::Serve(args)) => serve::run(&args, global),
        Some(Command::Rules(args)) => rules::run(&args, global),
        Some(Command::Config(args)) => config::run(&args, global),
        Some(Command::Doctor(args)) => doctor::run(&args, global),
        Some(Command::Schema(args)) => print_schema(&args.name),
        Some(Command::Completions(args)) => {
            print(complete::script(args.shell)).map(|()| Exit::Clean)
        }
        Some(Command::Man(args)) => man::run(&args),
    }
}

/// Runs `gpumem watch` if the terminal can show a screen, and prints the help otherwise.
fn run_bare(global: &Global) -> anyhow::Result<Exit> {
    let typed = ["gpumem", "watch"];
    match Cli::try_parse_from(typed).map(|cli| cli.command) {
        Ok(Some(Command::Watch(args))) if watch::has_screen() => watch::run(&args, global),
        _ => print(&Cli::command().render_help().to_string()).map(|()| Exit::Clean),
    }
}

/// Prevents a caller from misusing a gpumem that has more privileges than the caller. Refuses setuid and setgid bits,
/// refuses `--nvml-library` if the program file has capabilities, and drops the capabilities for reading other users'
/// files. Call this function before other threads start, because each thread has its own capabilities.
/// `LD_LIBRARY_PATH` needs no check, because the loader ignores it for such a program (ld.so(8)).
fn check_privileges(library: Option<&Path>) -> anyhow::Result<()> {
    if host::has_gained_ids() {
        let why = "gpumem does not run with the setuid or setgid bit, because every caller could write \
        files as its owner; remove the bit (chmod ug-s), and use sudo";
        return Err(UsageError(why.to_owned()).into());
    }
    if !host::has_gained_rights() {
        return Ok(());
    }
    if let Some(library) = library {
        let name = library.display();
        return Err(UsageError(format!(
            "--nvml-library {name} is refused: gpumem has capabilities that its caller lacks, and \
            the library would gain them; leave the option out, or use it as root (sudo)"
        ))
        .into());
    }
    host::give_up_reading().context("cannot drop capabilities; gpumem does not run with them")
}

fn print_version(global: &Global) -> anyhow::Result<Exit> {
    let mut text = format!("gpumem {}\n", env!("CARGO_PKG_VERSION"));
    match nvml::versions(&nvml_options(global)?) {
        Ok(driver) => {
            let or_unknown = |version: &Option<std::sync::Arc<str>>| {
                version.as_deref().unwrap_or("unknown").to_owned()
            };
            text.push_str(&format!(
                "NVML {}, driver {}, CUDA {}\n",
                or_unknown(&driver.nvml_version),
                or_unknown(&driver.version),
                or_unknown(&driver.cuda_version)
            ));
        }
        Err(error) => text.push_str(&format!("{error}\n")),
    }
    print(&text)?;
    Ok(Exit::Clean)
}

fn print_schema(name: &str) -> anyhow::Result<Exit> {
    let schema = SCHEMAS.iter().find(|(known, ..)| *known == name);
    // The parser rejects all other names.
    print(schema.map_or("", |(_, _, text)| text)).map(|()| Exit::Clean)
}
