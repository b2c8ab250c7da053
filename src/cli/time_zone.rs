//! In which zone people are shown times: that of the machine or of `TZ`, unless they ask for UTC.

use std::env;

use jiff::tz::TimeZone;

use super::args::{Cli, Command, ConfigAction};
use super::warn;
use crate::model::time::show_times_in;

/// Chooses the time zone. Output for programs is in UTC, including text in it.
pub(super) fn choose(cli: &Cli) {
    if cli.global.utc || is_for_programs(cli) {
        return;
    }
    match TimeZone::try_system() {
        Ok(zone) => show_times_in(zone),
        // A machine that has no zone is in UTC, as for the C library; one that was named has to exist.
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

/// Whether output is a document, or contains no times.
fn is_for_programs(cli: &Cli) -> bool {
    match &cli.command {
        None => true,
        Some(command) => match command {
            Command::Ps(args) => args.json,
            Command::Check(args) => args.json,
            Command::Explain(args) => args.json,
            Command::Reap(args) => args.json,
            Command::Release(args) => args.json,
            Command::Rules(args) => args.json,
            Command::Doctor(args) => args.json,
            Command::Config(args) => matches!(args.action, ConfigAction::Test { json: true, .. }),
            Command::Watch(_) | Command::Kill(_) | Command::Record(_) | Command::Run(_) => false,
            Command::Metrics(_) | Command::Serve(_) => true,
            Command::Schema(_) | Command::Completions(_) | Command::Man(_) => true,
        },
    }
}

fn is_quiet(cli: &Cli) -> bool {
    matches!(&cli.command, Some(Command::Check(args)) if args.quiet)
}
