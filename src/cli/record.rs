//! `gpumem record`: writes one JSON snapshot per line or, with `--store`, fills a store of limited size. `gpumem reap
//! --watch` also uses [`Recording`], so that the service can also record and serve its samples.

use std::net::SocketAddr;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use super::args::{Global, RecordArgs, Recorded, StoreArgs, Stored};
use super::exit::Exit;
use super::serve::Service;
use super::{UsageError, config, live, signals, store, warn};
use crate::config::Config;
use crate::model::{Snapshot, Time};
use crate::recording::store::{StoreLimits, StoreWriter};
use crate::recording::{self, Writer};
use crate::rules::RuleSet;
use crate::source::Source as _;
use crate::source::live::Live;
use crate::units::{MIB, Span, number_of};

/// Default interval with `--store`. A history of a day needs less detail than a file.
const STORE_INTERVAL: Span = Span(Duration::from_secs(5));
/// Minimum of `--store-age`. The rules cannot use a shorter history.
const LEAST_STORE_AGE: Duration = Duration::from_secs(60);
const LEAST_STORE_BYTES: u64 = MIB;

pub(super) enum Sink {
    File(Writer),
    Store {
        writer: Box<StoreWriter>,
        /// Set by a failed write, and cleared once the store is written again.
        failing: bool,
    },
}

/// Destinations of snapshots. In `gpumem record`, the signal thread locks this value before it ends gpumem, so that no
/// write is interrupted.
pub(super) struct Recording {
    /// `None` if snapshots are not written.
    sink: Option<Sink>,
    snapshots: u64,
    service: Option<Service>,
}

impl Recording {
    pub(super) fn new(
        sink: Option<Sink>,
        serve: Option<SocketAddr>,
        config: &Config,
        stored: Stored,
        interval: Duration,
    ) -> anyhow::Result<Self> {
        let open = |address| Service::open(address, config, &Recorded::default(), stored, interval);
        let has_store = matches!(sink, Some(Sink::Store { .. }));
        let configured = config.sample.serve.filter(|_| has_store);
        let service = match (serve, configured) {
            (Some(address), _) => Some(open(address)?),
            // A recorder with another store may already use the configured address.
            (None, Some(address)) => open(address)
                .map_err(|error| warn(&format!("not serving: {error:#} ([sample] serve)")))
                .ok(),
            (None, None) => None,
        };
        Ok(Self { sink, snapshots: 0, service })
    }

    pub(super) fn feed(&mut self, live: &Live, global: &Global) -> anyhow::Result<()> {
        self.service.as_mut().map_or(Ok(()), |service| service.publisher.feed(live, global))
    }

    pub(super) fn set_rules(&mut self, rules: &RuleSet) {
        self.service.iter_mut().for_each(|service| service.publisher.set_rules(rules));
    }

    pub(super) fn write(&mut self, snapshot: &Snapshot) -> Result<(), recording::RecordingError> {
        self.snapshots += 1;
        if let Some(service) = &mut self.service
            && let Err(error) = service.serve(snapshot)
        {
            warn(&format!("{error:#}"));
        }
        match &mut self.sink {
            None => Ok(()),
            Some(Sink::File(writer)) => writer.write(snapshot),
            Some(Sink::Store { writer, failing }) => {
                // After a write error, warn once and continue, so that a full disk does not end the recorder.
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

    pub(super) fn end(&mut self) -> Result<(), recording::RecordingError> {
        let name = match &mut self.sink {
            None => return Ok(()),
            Some(Sink::File(writer)) => writer.name().to_owned(),
            Some(Sink::Store { writer, .. }) => {
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
    let interval = args.interval.unwrap_or_else(|| interval(&args.store, &config));
    let sink = match open_store(&args.store, global)? {
        Some(store) => store,
        None => open_file(args)?,
    };
    let mut recording =
        Recording::new(Some(sink), args.serve, &config, Stored::default(), interval.0)?;
    // Until `end_between_snapshots` is called below, a signal ends gpumem immediately.
    let mut live = live(global, interval.0)?;
    recording.feed(&live, global)?;
    if let Some(history) = args.history_span {
        let part = store::StoredPart {
            reach: history.seconds(),
            until: live.now(),
            most_bytes: Some(store::MOST_FOR_WATCH),
        };
        match store::each_stored(global, &live, part, true, |snapshot| recording.write(&snapshot)) {
            Err(recording::RecordingError::Closed { .. }) => return Ok(Exit::Clean),
            result => drop(result?),
        }
    }
    let recording = Arc::new(Mutex::new(recording));
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

pub(super) fn interval(store: &StoreArgs, config: &Config) -> Span {
    match store.store && !config.sets("sample.interval") {
        true => STORE_INTERVAL,
        false => config.sample.interval,
    }
}

fn open_file(args: &RecordArgs) -> anyhow::Result<Sink> {
    Ok(Sink::File(match &args.file {
        Some(path) if path.as_os_str() != "-" => Writer::append(path)?,
        _ => Writer::to_stdout()?,
    }))
}

pub(super) fn open_store(args: &StoreArgs, global: &Global) -> anyhow::Result<Option<Sink>> {
    if !args.store {
        return Ok(None);
    }
    if args.store_age.0 < LEAST_STORE_AGE {
        return Err(
            UsageError("--store-age must be at least 1m, for example 24h".to_owned()).into()
        );
    }
    if args.store_size.0 < LEAST_STORE_BYTES {
        return Err(UsageError(
            "--store-size must be at least 1MiB, for example 256MiB".to_owned(),
        )
        .into());
    }
    let limits = StoreLimits { max_age: args.store_age.0, max_bytes: args.store_size.0 };
    let (folder, access) = store::to_write(global)?;
    Ok(Some(Sink::Store {
        writer: Box::new(StoreWriter::open(&folder, limits, access)?),
        failing: false,
    }))
}

/// Ends gpumem on a signal, but never while a snapshot is written.
fn end_between_snapshots(recording: &Arc<Mutex<Recording>>) -> anyhow::Result<()> {
    // If SIGXFSZ is caught, a write beyond the file size limit fails instead of killing gpumem.
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
