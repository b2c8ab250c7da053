//! `gpumem record`: what is observed, a JSON snapshot a line; or, with --store, a ring of recordings.

use std::num::NonZeroU32;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use super::args::{Global, RecordArgs};
use super::exit::Exit;
use super::{UsageError, config, live, signals, store, warn};
use crate::model::{Snapshot, Time};
use crate::recording::store::{StoreLimits, StoreWriter};
use crate::recording::{self, Rotation, Writer};
use crate::source::Source as _;
use crate::units::{MIB, Span, number_of};

/// Between samples for the store: what is stored for a day is looked at by the minute.
const STORE_INTERVAL: Span = Span(Duration::from_secs(5));
/// Less holds no history worth keeping.
const LEAST_STORE_AGE: Duration = Duration::from_secs(60);
const LEAST_STORE_BYTES: u64 = MIB;

/// Where it goes.
enum Sink {
    File(Writer),
    Store {
        // Boxed, for it is much larger than the other one.
        writer: Box<StoreWriter>,
        /// The last write failed, and that was said.
        failing: bool,
    },
}

/// The sink and how much went into it; locked while a snapshot is being written.
struct Recording {
    sink: Sink,
    snapshots: u64,
}

impl Recording {
    fn write(&mut self, snapshot: &Snapshot) -> Result<(), recording::RecordingError> {
        self.snapshots += 1;
        match &mut self.sink {
            Sink::File(writer) => writer.write(snapshot),
            Sink::Store { writer, failing } => {
                // A recorder that dies at night is worth nothing: it says so once and goes on.
                match (writer.write(snapshot), *failing) {
                    (Ok(()), false) | (Err(_), true) => {}
                    (Ok(()), true) if writer.is_behind() => {}
                    (Ok(()), true) => {
                        *failing = false;
                        warn(&format!("writing to the store {} again", writer.folder().display()));
                    }
                    (Err(error), false) => {
                        *failing = true;
                        warn(&format!("{error}; retrying"));
                    }
                }
                Ok(())
            }
        }
    }

    /// Writes what waits, and says what there is.
    fn end(&mut self) -> Result<(), recording::RecordingError> {
        let name = match &mut self.sink {
            Sink::File(writer) => writer.name().to_owned(),
            Sink::Store { writer, .. } => {
                let flushed = writer.flush();
                self.snapshots -= writer.lost();
                flushed?;
                format!("the store {}", writer.folder().display())
            }
        };
        let snapshots = number_of(self.snapshots, "snapshot");
        warn(&format!("recorded {snapshots} to {name}"));
        Ok(())
    }
}

pub(super) fn run(args: &RecordArgs, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let default = if args.store && !config.sets("sample.interval") {
        STORE_INTERVAL
    } else {
        config.sample.interval
    };
    let interval = args.interval.unwrap_or(default);
    let sink = if args.store { open_store(args, global)? } else { open_file(args)? };
    // Only once there is somewhere to write and something to read is there anything to end.
    let mut live = live(global, interval.0)?;
    let recording = Arc::new(Mutex::new(Recording { sink, snapshots: 0 }));
    end_between_snapshots(&recording)?;

    let mut first: Option<Time> = None;
    while let Some(snapshot) = live.next()? {
        let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
        match recording.write(&snapshot) {
            Err(recording::RecordingError::Closed { .. }) => return Ok(Exit::Clean),
            result => result?,
        }
        let elapsed = snapshot.time.seconds_since(*first.get_or_insert(snapshot.time));
        let due = elapsed + interval.seconds() / 2.0;
        if args.duration.is_some_and(|duration| due >= duration.seconds()) {
            recording.end()?;
            break;
        }
    }
    Ok(Exit::Clean)
}

fn open_file(args: &RecordArgs) -> anyhow::Result<Sink> {
    let keep = NonZeroU32::new(args.keep)
        .ok_or_else(|| UsageError("--keep must be at least 1; write 5".to_owned()))?;
    if args.max_size.0 == 0 {
        return Err(UsageError("--max-size must be larger than 0; write 100MiB".to_owned()).into());
    }
    let rotation = Rotation { max_bytes: args.max_size.0, keep };
    Ok(Sink::File(match &args.file {
        Some(path) if path.as_os_str() != "-" => Writer::append(path, Some(rotation))?,
        _ => Writer::to_stdout()?,
    }))
}

fn open_store(args: &RecordArgs, global: &Global) -> anyhow::Result<Sink> {
    if args.store_age.0 < LEAST_STORE_AGE {
        return Err(UsageError("--store-age must be at least 1m; write 24h".to_owned()).into());
    }
    if args.store_size.0 < LEAST_STORE_BYTES {
        return Err(
            UsageError("--store-size must be at least 1MiB; write 256MiB".to_owned()).into()
        );
    }
    let limits = StoreLimits { max_age: args.store_age.0, max_bytes: args.store_size.0 };
    let (folder, access) = store::to_write(global)?;
    Ok(Sink::Store {
        writer: Box::new(StoreWriter::open(&folder, limits, access)?),
        failing: false,
    })
}

/// On a signal, ends the program when no snapshot is being written.
fn end_between_snapshots(recording: &Arc<Mutex<Recording>>) -> anyhow::Result<()> {
    // Caught, a limit on file sizes is an error of the write, which the writer reports and survives.
    let caught = [SIGINT, SIGTERM, SIGHUP, SIGXFSZ];
    let recording = Arc::clone(recording);
    signals::on_thread(&caught, move |signal| {
        if signal == SIGXFSZ {
            return true;
        }
        let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
        let exit = match recording.end() {
            Ok(()) => Exit::Clean,
            Err(error) => {
                warn(&error.to_string());
                Exit::CannotMeasure
            }
        };
        process::exit(i32::from(exit.code()));
    })
}
