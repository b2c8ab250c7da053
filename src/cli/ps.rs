//! `gpumem ps`: who holds GPU memory now.

use std::time::Duration;

use anyhow::Context as _;

use super::args::{Global, Ps};
use super::exit::Exit;
use super::{
    Misuse, complain, live, print, recorded, style, terminal_width, unreadable, warn_of_damage,
};
use crate::model::{Gpu, Process, Snapshot};
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
    select(&mut snapshot, &args.gpu, &args.user)?;
    if args.json {
        print(&(serde_json::to_string(&snapshot)? + "\n"))?;
    } else {
        for error in &snapshot.errors {
            let gpu = error
                .gpu
                .map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
            complain(&format!("{gpu}{}: {}", error.call, error.error));
        }
        let width = terminal_width();
        print(&processes::write(
            &snapshot,
            args.sort,
            width,
            style(global.color),
        ))?;
    }
    // With no GPU at all there is nothing that was not measured.
    Ok(if unreadable && !snapshot.gpus.is_empty() {
        Exit::Blind
    } else {
        Exit::Clean
    })
}

/// Keeps only the GPUs and the users' processes that were asked for.
fn select(snapshot: &mut Snapshot, gpus: &[String], users: &[String]) -> Result<(), Misuse> {
    for wanted in gpus {
        if !snapshot.gpus.iter().any(|gpu| is_gpu(gpu, wanted)) {
            let known: Vec<_> = snapshot
                .gpus
                .iter()
                .map(|gpu| gpu.index.to_string())
                .collect();
            return Err(Misuse(format!(
                "--gpu {wanted}: there is no such GPU; there are {}",
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            )));
        }
    }
    if !gpus.is_empty() {
        snapshot
            .gpus
            .retain(|gpu| gpus.iter().any(|wanted| is_gpu(gpu, wanted)));
        let left = &snapshot.gpus;
        snapshot.errors.retain(|error| {
            error
                .gpu
                .is_none_or(|index| left.iter().any(|gpu| gpu.index == index))
        });
    }
    if !users.is_empty() {
        snapshot
            .processes
            .retain(|process| users.iter().any(|user| is_owner(process, user)));
        let left = &snapshot.processes;
        for gpu in &mut snapshot.gpus {
            if let Some(rows) = &mut gpu.processes {
                rows.retain(|row| left.iter().any(|process| process.pid == row.pid));
            }
        }
    }
    if !gpus.is_empty() {
        let rows: Vec<u32> = snapshot
            .gpus
            .iter()
            .flat_map(|gpu| gpu.processes.iter().flatten())
            .map(|row| row.pid)
            .collect();
        snapshot
            .processes
            .retain(|process| rows.contains(&process.pid));
    }
    Ok(())
}

fn is_gpu(gpu: &Gpu, wanted: &str) -> bool {
    wanted.parse() == Ok(gpu.index) || gpu.uuid.as_deref().is_some_and(|uuid| uuid == wanted)
}

fn is_owner(process: &Process, wanted: &str) -> bool {
    process.user.as_deref() == Some(wanted)
        || process.uid.is_some_and(|uid| wanted.parse() == Ok(uid))
}
