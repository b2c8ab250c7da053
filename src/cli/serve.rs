//! `gpumem serve`: serves the newest sample for Prometheus and the newest verdict as JSON, over HTTP.
//!
//! One thread takes samples and publishes documents, which the server returns unchanged. `gpumem record --store
//! --serve` and `gpumem reap --watch --serve` use the same [`Service`].

mod server;

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::server::Server;
use super::args::{Global, Recorded, ServeArgs, Stored};
use super::exit::Exit;
use super::metrics::Publisher;
use super::{config, live, recorded, session, signals, store, warn};
use crate::config::Config;
use crate::model::Snapshot;
use crate::source::replay::Replay;
use crate::source::{NextSnapshot, Source as _};
use crate::units::Span;

/// Default interval between samples, shorter than common scrape intervals such as 15 s.
const INTERVAL: Span = Span(Duration::from_secs(5));
/// Maximum age of a served sample, in sampling intervals.
const FRESH_INTERVALS: u32 = 3;
/// Lower bound of the maximum age, because a slow GPU may delay the next sample.
const LEAST_FRESH: Duration = Duration::from_secs(10);

pub(super) struct Service {
    pub(super) publisher: Publisher,
    server: Server,
    /// Maximum age of a served sample, or `None` for a recording.
    fresh_for: Option<Duration>,
}

impl Service {
    /// Starts to listen. Call this function before sampling, so that an address in use is reported immediately.
    pub(super) fn open(
        address: SocketAddr,
        config: &Config,
        recorded: &Recorded,
        stored: Stored,
        interval: Duration,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address}; choose another address"))?;
        let at = listener.local_addr().unwrap_or(address);
        let server = Server::start(listener)?;
        warn(&format!("serving http://{at}/metrics and http://{at}/check"));
        if !at.ip().is_loopback() {
            warn(
                "everyone who can reach this address can see users, programs and findings; use a reverse \
                proxy with TLS and a password (gpumem man serve)",
            );
        }
        Ok(Self {
            publisher: Publisher::new(config, recorded, stored)?,
            server,
            fresh_for: recorded.is_live().then_some((interval * FRESH_INTERVALS).max(LEAST_FRESH)),
        })
    }

    pub(super) fn serve(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        self.publisher.observe(snapshot);
        self.publish(snapshot)
    }

    /// Plays a recording to its end, and serves the snapshots that are not overdue.
    fn play(&mut self, mut replay: Replay) -> anyhow::Result<()> {
        while let Some(snapshot) = replay.next()? {
            self.publisher.observe(&snapshot);
            if replay.due(Instant::now())? != NextSnapshot::In(Duration::ZERO) {
                self.publish(&snapshot)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        self.server.publish(self.publisher.publish(snapshot)?, self.fresh_for);
        Ok(())
    }
}

pub(super) fn run(args: &ServeArgs, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let interval = args.interval.unwrap_or(INTERVAL);
    let mut service = Service::open(args.listen, &config, &args.recorded, args.stored, interval.0)?;
    let end_by_signals =
        || signals::on_thread(&[SIGINT, SIGTERM, SIGHUP], |_| std::process::exit(0));
    if let Some(replay) = recorded(&args.recorded)? {
        if args.recorded.demo {
            end_by_signals()?;
            // The counters restart at 0 with each repetition, as after a restart of the service.
            loop {
                service.publisher = Publisher::new(&config, &args.recorded, args.stored)?;
                service.play(Replay::demo()?.at_speed(1.0))?;
            }
        }
        let last = session::last(replay, |snapshot| service.publisher.observe(snapshot))?;
        service.publish(&last)?;
        end_by_signals()?;
        loop {
            std::thread::park();
        }
    }
    let mut live = live(global, interval.0)?;
    if store::survey(global, live.host(), live.now()).is_fresh {
        warn(
            "a recorder already samples this machine; start it with --serve ADDRESS instead (gpumem man serve)",
        );
    }
    service.publisher.feed(&live, global)?;
    end_by_signals()?;
    while let Some(snapshot) = live.next()? {
        service.serve(&snapshot)?;
    }
    Ok(Exit::Clean)
}
