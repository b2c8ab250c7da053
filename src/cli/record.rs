//! `gpumem record`: what is observed, a JSON snapshot a line.

use std::io;
use std::num::NonZeroU32;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::args::{Global, Record};
use super::exit::Exit;
use super::{Misuse, complain, config, live};
use crate::model::Time;
use crate::recording::{self, Rotation, Writer};
use crate::source::Source as _;

/// The writer and how much it has written; locked while a line is being written.
struct Recording {
    writer: Writer,
    snapshots: u64,
}

impl Recording {
    fn farewell(&self) {
        let s = if self.snapshots == 1 { "" } else { "s" };
        complain(&format!(
            "recorded {} snapshot{s} to {}",
            self.snapshots,
            self.writer.name()
        ));
    }
}

pub(super) fn run(args: &Record, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let interval = args.interval.unwrap_or(config.sample.interval);
    let keep = NonZeroU32::new(args.keep)
        .ok_or_else(|| Misuse("--keep must be at least 1; write 5".to_owned()))?;
    if args.max_size.0 == 0 {
        return Err(Misuse("--max-size must be larger than 0; write 100MiB".to_owned()).into());
    }
    let rotation = Rotation {
        max_bytes: args.max_size.0,
        keep,
    };
    let writer = match &args.file {
        Some(path) if path.as_os_str() != "-" => Writer::append(path, Some(rotation))?,
        _ => Writer::to_stdout()?,
    };
    // Only once there is somewhere to write and something to read is there anything to end.
    let mut live = live(global, interval.0)?;
    let recording = Arc::new(Mutex::new(Recording {
        writer,
        snapshots: 0,
    }));
    end_between_lines(&recording)?;

    let mut first: Option<Time> = None;
    while let Some(snapshot) = live.next()? {
        let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
        match recording.writer.write(&snapshot) {
            Err(recording::Error::Closed { .. }) => return Ok(Exit::Clean),
            result => result?,
        }
        recording.snapshots += 1;
        let elapsed = snapshot
            .time
            .seconds_since(*first.get_or_insert(snapshot.time));
        let due = elapsed + interval.seconds() / 2.0;
        if args
            .duration
            .is_some_and(|duration| due >= duration.seconds())
        {
            recording.farewell();
            break;
        }
    }
    Ok(Exit::Clean)
}

/// On a signal, ends the program when no line is being written.
fn end_between_lines(recording: &Arc<Mutex<Recording>>) -> anyhow::Result<()> {
    // Caught, a limit on file sizes is an error of the write, which the writer reports and survives.
    let caught = [SIGINT, SIGTERM, SIGHUP, SIGXFSZ];
    let mut signals = Signals::new(caught).context("cannot catch signals")?;
    let recording = Arc::clone(recording);
    let spawned = thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().any(|signal| signal != SIGXFSZ) {
                let recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
                recording.farewell();
                process::exit(i32::from(Exit::Clean.code()));
            }
        });
    spawned
        .map(drop)
        .map_err(|error: io::Error| error)
        .context("cannot start a thread for signals")
}
