//! `gpumem ps`: who holds GPU memory now.

use std::time::Duration;

use anyhow::Context as _;

use super::args::{Global, Ps};
use super::exit::Exit;
use super::selection::Selection;
use super::{
    Misuse, complain, live, print, recorded, style, terminal_width, unreadable, warn_of_damage,
};
use crate::model::Snapshot;
use crate::model::json;
use crate::report::processes;
use crate::source::Source as _;
use crate::source::replay::Pace;

pub(super) fn run(args: &Ps, global: &Global) -> anyhow::Result<Exit> {
    let mut snapshot = match recorded(&args.recorded, Pace::AsFast)? {
        Some(mut replay) => {
            let mut last = None;
            while let Some(snapshot) = replay.next()? {
                last = Some(snapshot);
            }
            warn_of_damage(&replay);
            last.context("the recording has no snapshot")?
        }
        None => live(global, Duration::from_secs(1))?
            .next()?
            .context("the driver gave no snapshot")?,
    };
    let unreadable = unreadable(&snapshot);
    let everyone = args.user.is_empty();
    let selection = Selection {
        gpus: args.gpu.clone(),
        users: args.user.clone(),
    };
    select(&mut snapshot, &selection)?;
    let is_blind = unreadable && !snapshot.gpus.is_empty();
    if args.json {
        if is_blind {
            complain("not every GPU could be read; the snapshot's errors say why");
        }
        print(&(json::to_string(&snapshot)? + "\n"))?;
    } else {
        for error in &snapshot.errors {
            let gpu = error
                .gpu
                .map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
            complain(&format!("{gpu}{}: {}", error.call, error.error));
        }
        let options = processes::Options {
            sort: args.sort,
            width: terminal_width(),
            style: style(global.color),
            everyone,
        };
        print(&processes::write(&snapshot, options))?;
    }
    // With no GPU at all there is nothing that was not measured.
    Ok(if is_blind { Exit::Blind } else { Exit::Clean })
}

/// Keeps only the GPUs and the users' processes that were asked for.
fn select(snapshot: &mut Snapshot, selection: &Selection) -> Result<(), Misuse> {
    // Who is listed on a GPU that is left out is no hidden holder of one that is left.
    let unlisted: Vec<u32> = snapshot.unlisted_holders().map(|it| it.pid).collect();
    selection.narrow_to_gpus(snapshot)?;
    selection.narrow_to_users(snapshot);
    if !selection.gpus.is_empty() {
        let rows: Vec<u32> = snapshot
            .gpus
            .iter()
            .flat_map(|gpu| gpu.processes.iter().flatten())
            .map(|row| row.pid)
            .collect();
        let left = &snapshot.gpus;
        snapshot.processes.retain(|process| {
            let is_holder = unlisted.contains(&process.pid);
            rows.contains(&process.pid)
                || (is_holder && left.iter().any(|gpu| gpu.is_open_in(process) == Some(true)))
        });
    }
    Ok(())
}
