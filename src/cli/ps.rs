//! `gpumem ps`: who holds GPU memory now.

use std::time::Duration;

use anyhow::Context as _;

use super::args::{Global, Ps, Stored};
use super::exit::Exit;
use super::selection::Selection;
use super::{
    config, live, print, recorded, session, store, style, terminal_width, unreadable, warn,
};
use crate::model::Snapshot;
use crate::model::json;
use crate::report::processes;
use crate::rules::Engine;
use crate::source::Source as _;
use crate::source::replay::PlaybackPace;

pub(super) fn run(args: &Ps, global: &Global) -> anyhow::Result<Exit> {
    let selection = Selection::new(&args.gpu, &args.user, &args.terms);
    let mut engine = match selection.needs_history() {
        true => Some(Engine::new(config::load(global)?.rules)),
        false => None,
    };
    let mut snapshot = match recorded(&args.recorded, PlaybackPace::AsFast)? {
        Some(replay) => session::last(replay, |snapshot| {
            engine.iter_mut().for_each(|it| it.observe(snapshot));
        })?,
        None => now(global, engine.as_mut())?,
    };
    let unreadable = unreadable(&snapshot);
    selection.check_gpus(&snapshot.gpus)?;
    let everyone = selection.narrow(&mut snapshot, engine.as_ref());
    let is_blind = unreadable && !snapshot.gpus.is_empty();
    if args.json {
        if is_blind {
            warn("not every GPU could be read; see the snapshot's errors");
        }
        print(&(json::to_string(&snapshot)? + "\n"))?;
    } else {
        for error in &snapshot.errors {
            let gpu = error
                .gpu
                .map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
            warn(&format!("{gpu}{}: {}", error.call, error.error));
        }
        let options = processes::ProcessesOptions {
            sort: args.sort,
            width: terminal_width(),
            style: style(global.color),
            everyone,
        };
        print(&processes::write(&snapshot, options))?;
    }
    // With no GPU at all there is nothing that was not measured.
    Ok(if is_blind {
        Exit::CannotMeasure
    } else {
        Exit::Clean
    })
}

/// This machine now. Of what was before, the engine is told what is stored.
fn now(global: &Global, engine: Option<&mut Engine>) -> anyhow::Result<Snapshot> {
    let mut live = live(global, Duration::from_secs(1))?;
    let Some(engine) = engine else {
        return live.next()?.context("the driver gave no snapshot");
    };
    let ask = store::Ask {
        global,
        stored: Stored::default(),
        needed: store::longest(engine.settings()),
        most_bytes: store::MOST_FOR_CHECK,
        quiet: false,
    };
    if store::feed(engine, &live, ask)?.first.is_none() {
        warn(
            "idle times and findings need a stored history (gpumem record --store) or longer \
            sampling (gpumem check); unknown values never match",
        );
    }
    let snapshot = live.next()?.context("the driver gave no snapshot")?;
    engine.observe(&snapshot);
    Ok(snapshot)
}
