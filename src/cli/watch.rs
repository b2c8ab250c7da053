//! `gpumem watch`: the terminal screen. What ends processes for it is in `hand`.

mod hand;

use std::io::IsTerminal as _;

use signal_hook::low_level::emulate_default_handler;

use super::args::{Global, Watch};
use super::exit::Exit;
use super::{Misuse, config, live, recorded, store, style};
use crate::rules::Engine;
use crate::source::Source;
use crate::source::replay::Pace;
use crate::watch::app::Me;
use crate::watch::view::look::Depth;
use crate::watch::{self, Options, Outcome};

pub(super) fn run(args: &Watch, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let interval = args.interval.unwrap_or(config.sample.interval).0;
    if !std::io::stdout().is_terminal() {
        // Before the driver is waited for.
        return Err(watch::Error::NotATerminal.into());
    }
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        let why = "TERM=dumb names a terminal without a screen; use `gpumem ps` or `gpumem check`";
        return Err(Misuse(why.to_owned()).into());
    }
    let is_recording = args.recorded.replay.is_some() || args.recorded.demo;
    let hand = hand::Acting::new(&config, is_recording);
    let needed = store::longest(&config.rules);
    let mut engine = Engine::new(config.rules);
    let source: Box<dyn Source> = match recorded(&args.recorded, Pace::Speed(args.speed))? {
        Some(replay) => Box::new(replay),
        None => {
            let live = live(global, interval)?;
            // What is stored is judged before the first frame, which shows what is so at once.
            let ask = store::Ask {
                global,
                stored: args.stored,
                needed,
                most_bytes: store::MOST_FOR_WATCH,
                quiet: false,
            };
            store::feed(&mut engine, &live, ask)?;
            Box::new(live)
        }
    };
    let options = Options {
        interval,
        me: Me {
            uid: Some(rustix::process::geteuid().as_raw()),
            name: std::env::var("USER").ok(),
        },
        depth: match style(global.color).color {
            true => Depth::Ansi16,
            false => Depth::Mono,
        },
        ascii: args.ascii || !locale_is_utf8(),
    };
    match watch::run(source, engine, Box::new(hand), options)? {
        Outcome::Quit => Ok(Exit::Clean),
        Outcome::Signal(signal) => {
            // Ends the program as by that signal, unless the signal has no such default.
            emulate_default_handler(signal)?;
            Ok(Exit::Clean)
        }
    }
}

/// Whether the locale of the environment writes UTF-8; POSIX gives the order of the variables.
pub(super) fn locale_is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(std::env::var_os)
        .find(|locale| !locale.is_empty())
        .is_some_and(|locale| {
            let locale = locale.to_string_lossy().to_ascii_uppercase();
            locale.contains("UTF-8") || locale.contains("UTF8")
        })
}
