//! `gpumem reap --watch`: a service that notifies the owners of findings, and kills processes as configured, without
//! asking.
//!
//! The sampling, notifying and signal threads send events to the main loop over a channel. The main loop waits for the
//! sampling thread's lock for at most [`DISK_TIME`], and exits only between two actions. [`crate::reclaim::scheduler`]
//! decides which actions are due. `service` sends messages to the service manager.

mod notify_command;
mod service;

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use self::service::Service;
use super::execute::tools;
use super::observe::policy_from_args;
use crate::cli::args::{Global, ReapArgs as Args};
use crate::cli::exit::Exit;
use crate::cli::record::{self, Recording};
use crate::cli::{config, live, park, signals, store, unreadable, warn};
use crate::config::Config;
use crate::config::reap::Response;
use crate::deadline::Deadline;
use crate::host::{Roots, read_host};
use crate::model::{Snapshot, Time};
use crate::reclaim::ledger;
use crate::reclaim::park::journal::ParkRecord;
use crate::reclaim::prepare::{PlanSource, plan_live};
use crate::reclaim::scheduler::{Notice, ReapScheduler, System, no_room_json};
use crate::reclaim::{Guard, Plan, Policy, Targets, Tools, Warnings};
use crate::report::escape::command_line;
use crate::rules::Engine;
use crate::source::live::Live;

const WARNINGS: &str = "reap-warnings.json";
/// Interval between samples during an action.
const ACTING_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum time between two watchdog checks of the main loop.
const TURN: Duration = Duration::from_secs(1);
/// Maximum time that the main loop waits for a disk.
const DISK_TIME: Duration = Duration::from_secs(1);
const MOST_EVENTS: usize = 16;
const MOST_NOTICES: usize = 64;

enum ServiceEvent {
    /// The driver could not be opened, with the error message.
    NotOpened(String),
    /// The driver was opened, and the stored history was read.
    Opened {
        engine: Box<Engine>,
        boot_id: Option<Arc<str>>,
    },
    Sample {
        snapshot: Box<Snapshot>,
        at: Instant,
    },
    /// A notice, and whether the notify command succeeded.
    Delivered(Box<Notice>, Result<(), String>),
    Signal(i32),
}

pub(super) fn run(args: &Args, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load_to_act(global)?;
    let folder = store::state()?;
    fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create the directory {}", folder.display()))?;
    let (events, events_received) = sync_channel(MOST_EVENTS);
    let (notices, notices_to_send) = sync_channel(MOST_NOTICES);
    let (ask, asks) = sync_channel(1);
    let service = Service::from_environment();
    listen_for_signals(events.clone())?;
    let results = events.clone();
    spawn("notifying", move || {
        send_notices(&notices_to_send, &results);
    })?;
    let restoring = global.clone();
    spawn("restoring", move || restore_notebooks(&restoring))?;
    let sampling = events.clone();
    // A watchdog notification requires a sample, so samples must be at least as frequent as notifications.
    let longest = service.watchdog().unwrap_or(Duration::MAX);
    let interval = record::interval(&args.store, &config).0.min(longest);
    let store = record::open_store(&args.store, global)?;
    let recording = Recording::new(store, args.serve, &config, args.stored, interval)?;
    let recording = Arc::new(Mutex::new(recording));
    let open = opening(args, global, &config, interval, &recording);
    let recorded = Arc::clone(&recording);
    let sample = move |live: &mut Live| {
        let snapshot = live.sample();
        let at = Instant::now();
        if let Err(error) = lock(&recorded).write(&snapshot) {
            warn(&error.to_string());
        }
        ServiceEvent::Sample { snapshot: Box::new(snapshot), at }
    };
    spawn("sampling", move || {
        keep_sampling(open, sample, interval, &asks, &sampling);
    })?;
    let mut watch = ServiceLoop {
        global,
        service,
        config,
        machine: LocalSystem { args, folder, notices },
        scheduler: None,
        last: None,
        last_warning: None,
        recording,
        status: String::new(),
        is_ready: false,
        is_sampled: false,
        pulse: Instant::now(),
    };
    watch.announce();
    loop {
        let is_acting = watch.scheduler.as_ref().is_some_and(ReapScheduler::is_acting);
        let turn = if is_acting { ACTING_INTERVAL } else { TURN };
        match events_received.recv_timeout(turn) {
            Ok(ServiceEvent::Signal(SIGHUP)) => watch.reload(),
            Ok(ServiceEvent::Signal(_)) => break,
            Ok(event) => watch.handle(event)?,
            Err(RecvTimeoutError::Timeout) if is_acting => {
                // If the channel is full, an earlier request is still pending.
                let _ = ask.try_send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        watch.pulse();
    }
    watch.service.stopping();
    match lock_soon(&watch.recording).map(|mut recording| recording.end()) {
        Some(Ok(())) => {}
        Some(Err(error)) => warn(&error.to_string()),
        None => warn("the store's disk does not answer; its last snapshots are lost"),
    }
    if let Some(target) = watch.scheduler.as_ref().and_then(ReapScheduler::target) {
        warn(&format!(
            "stopped while killing {}: signals already sent are in the audit log, no more will be sent",
            target.leader
        ));
    }
    Ok(Exit::Clean)
}

/// Returns a function that opens the driver and reads the stored history.
fn opening(
    args: &Args,
    global: &Global,
    config: &Config,
    interval: Duration,
    recording: &Arc<Mutex<Recording>>,
) -> impl FnMut() -> Result<(Live, ServiceEvent), String> + use<> {
    let (global, rules) = (global.clone(), config.rules.clone());
    let stored = args.stored;
    let recording = Arc::clone(recording);
    move || {
        let live = live(&global, interval).map_err(|error| format!("{error:#}"))?;
        let mut engine = Engine::new(rules.clone());
        let ask = store::Ask::new(&global, stored, store::MOST_FOR_CHECK);
        if let Err(error) = store::feed(&mut engine, &live, ask) {
            warn(&format!("{error}; starting without history"));
        } else if let Err(error) = lock(&recording).feed(&live, &global) {
            warn(&format!("{error:#}; serving without history"));
        }
        let opened =
            ServiceEvent::Opened { engine: Box::new(engine), boot_id: live.host().boot_id.clone() };
        Ok((live, opened))
    }
}

/// Runs the notify command for each notice. This function needs its own thread, because the command can hang. If the
/// command fails, the owner counts as not notified.
fn send_notices(notices: &Receiver<Notice>, events: &SyncSender<ServiceEvent>) {
    for notice in notices {
        let done = notify_command::run(&notice.command, &notice.json(), notify_command::DEADLINE);
        let result = done.map_err(|error| format!("{error:#}"));
        if events.send(ServiceEvent::Delivered(Box::new(notice), result)).is_err() {
            return;
        }
    }
}

/// Restores parked notebooks that run a cell. If there is no room, runs the notify command.
fn restore_notebooks(global: &Global) {
    let tell_owner = |record: &ParkRecord, why: &str| {
        let host = read_host(&Roots::default()).hostname;
        let notice = no_room_json(record, host.as_deref(), why);
        let notify = config::load_to_act(global).map(|config| config.reap.notify);
        let command = notify.unwrap_or_default();
        if !command.is_empty()
            && let Err(error) = notify_command::run(&command, &notice, notify_command::DEADLINE)
        {
            warn(&format!("{}: the owner was not notified: {error:#}", record.process.pid));
        }
    };
    loop {
        if let Err(error) = park::restore_busy_notebooks(global, tell_owner) {
            warn(&format!("parked notebooks are not restored: {error:#}; retrying"));
        }
        thread::sleep(LAST_PAUSE);
    }
}

fn lock(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the recording. Returns `None` if the sampling thread holds the lock for too long because of a slow disk.
fn lock_soon(recording: &Mutex<Recording>) -> Option<MutexGuard<'_, Recording>> {
    let deadline = Deadline::after(DISK_TIME);
    loop {
        match recording.try_lock() {
            Ok(recording) => return Some(recording),
            Err(TryLockError::Poisoned(left)) => return Some(left.into_inner()),
            Err(TryLockError::WouldBlock) if deadline.left().is_zero() => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).with_context(|| format!("cannot start a thread for {name}"))
}

fn listen_for_signals(events: SyncSender<ServiceEvent>) -> anyhow::Result<()> {
    // If SIGXFSZ is caught, a write beyond the file size limit fails instead of killing the service.
    let caught = [SIGINT, SIGTERM, SIGHUP, SIGXFSZ];
    signals::on_thread(&caught, move |signal| {
        signal == SIGXFSZ || events.send(ServiceEvent::Signal(signal)).is_ok()
    })
}

struct ServiceLoop<'a> {
    global: &'a Global,
    service: Service,
    config: Config,
    machine: LocalSystem<'a>,
    scheduler: Option<ReapScheduler>,
    /// The timestamp of the last sample, and the time of its arrival.
    last: Option<(Time, Instant)>,
    last_warning: Option<String>,
    /// The store and the HTTP server, to which the sampling thread writes each sample.
    recording: Arc<Mutex<Recording>>,
    status: String,
    is_ready: bool,
    /// Set by each sample and cleared by each watchdog notification.
    is_sampled: bool,
    pulse: Instant,
}

impl ServiceLoop<'_> {
    /// Logs the configuration: the rules by action, the users whose processes are included, the notify command, and the
    /// path of the audit log.
    fn announce(&self) {
        let reap = &self.config.reap;
        let rules = |response: Response| {
            let enabled = self.config.rules.rules().iter().filter(|rule| rule.settings.enabled);
            let rules = enabled.filter(|rule| reap.response(&rule.name) == response);
            let names: Vec<String> = rules
                .map(|rule| match rule.scope.is_empty() {
                    true => rule.name.to_string(),
                    false => format!("{} (for {})", rule.name, rule.scope),
                })
                .collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        match rules(Response::Reap) {
            Some(rules) => warn(&format!(
                "kills processes found by these rules, {} after the first warning and {} after the last one, at most \
                 {} within {}: {rules}",
                reap.warn, reap.grace, reap.most, reap.within
            )),
            None => warn("kills nothing: no rule has action = \"reap\""),
        }
        if let Some(rules) = rules(Response::Park) {
            warn(&format!(
                "parks notebooks found by these rules, after the same warnings (experimental): {rules}"
            ));
        }
        if let Some(rules) = rules(Response::Release) {
            warn(&format!("asks processes found by these rules to release memory: {rules}"));
        }
        if let Some(rules) = rules(Response::Notify) {
            warn(&format!("only notifies owners of findings of these rules: {rules}"));
        }
        let owners = match self.machine.args.how.all_users {
            true => "of every user",
            false => "only your own; --all-users includes other users' processes",
        };
        warn(&format!("processes: {owners}"));
        match reap.notify.is_empty() {
            true => {
                warn("sends no notices and kills nothing: [reap] has no notify command");
            }
            false => warn(&format!("notices go to {}", command_line(&reap.notify))),
        }
        warn(&format!("audit log: {}", self.machine.folder.join(ledger::FILE_NAME).display()));
    }

    fn handle(&mut self, event: ServiceEvent) -> anyhow::Result<()> {
        match event {
            ServiceEvent::NotOpened(error) => {
                self.set_status(&error);
                self.print_once(Some(format!("{error}; retrying")));
            }
            ServiceEvent::Opened { mut engine, boot_id } => {
                engine.set_settings(self.config.rules.clone());
                let boot_id = boot_id.context("the boot id of this machine cannot be read")?;
                let path = self.machine.folder.join(WARNINGS);
                let (warnings, error) = Warnings::open(&path, boot_id);
                if let Some(error) = error {
                    warn(&error.to_string());
                }
                let reap = self.config.reap.clone();
                self.scheduler = Some(ReapScheduler::new(*engine, reap, warnings));
            }
            ServiceEvent::Sample { snapshot, at } => self.take_in(*snapshot, at),
            ServiceEvent::Delivered(notice, result) => {
                if let (Some(scheduler), Some((time, at))) = (&mut self.scheduler, self.last) {
                    let now = time.plus_seconds(at.elapsed().as_secs_f64());
                    scheduler.delivered(&notice, result, now, &mut self.machine);
                }
            }
            ServiceEvent::Signal(_) => {}
        }
        Ok(())
    }

    fn take_in(&mut self, snapshot: Snapshot, at: Instant) {
        self.last = Some((snapshot.time, at));
        self.is_sampled = true;
        let blind = unreadable(&snapshot).then(|| {
            let error = snapshot.errors.first();
            let error = error.map_or_else(String::new, |error| format!(" ({error})"));
            format!("cannot read every GPU{error}; nothing is killed without a sample")
        });
        let is_blind = blind.is_some();
        self.print_once(blind.clone());
        let Some(scheduler) = &mut self.scheduler else {
            return;
        };
        scheduler.observe(snapshot, &mut self.machine);
        let status = match blind {
            Some(blind) if is_blind => blind,
            _ => scheduler.status(),
        };
        self.set_status(&status);
        if !self.is_ready {
            self.is_ready = true;
            self.service.ready();
        }
    }

    /// Prints a warning, unless it repeats the previous one. When the warnings end, prints that every GPU can be read.
    fn print_once(&mut self, text: Option<String>) {
        match &text {
            Some(text) if self.last_warning.as_ref() != Some(text) => warn(text),
            None if self.last_warning.is_some() => warn("every GPU can be read"),
            _ => {}
        }
        self.last_warning = text;
    }

    fn set_status(&mut self, text: &str) {
        if self.status != text {
            self.status = text.to_owned();
            self.service.status(text);
        }
    }

    /// Notifies the watchdog if a notification is due and a sample has arrived since the last notification.
    fn pulse(&mut self) {
        let is_due = |every| self.pulse.elapsed() >= every;
        if self.is_sampled && self.service.watchdog().is_some_and(is_due) {
            self.service.alive();
            (self.is_sampled, self.pulse) = (false, Instant::now());
        }
    }

    /// Reloads the configuration. An invalid configuration changes nothing.
    fn reload(&mut self) {
        self.service.reloading();
        match config::load_to_act(self.global) {
            Ok(config) => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.reconfigure(config.rules.clone(), config.reap.clone());
                }
                match lock_soon(&self.recording) {
                    Some(mut recording) => recording.set_rules(&config.rules),
                    None => {
                        warn(
                            "the store's disk does not answer; the server keeps the previous rules",
                        );
                    }
                }
                self.config = config;
                warn("the configuration was reloaded");
                self.announce();
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                warn(&format!("{error:#}; the previous configuration remains in effect"));
            }
        }
        if self.is_ready {
            self.service.ready();
        }
    }
}

struct LocalSystem<'a> {
    args: &'a Args,
    folder: PathBuf,
    notices: SyncSender<Notice>,
}

impl System for LocalSystem<'_> {
    fn plan(&mut self, targets: Targets, source: PlanSource<'_>) -> Result<(Plan, Guard), String> {
        let policy = Policy { targets, ..policy_from_args(self.args) };
        plan_live(policy, source).map_err(|error| error.to_string())
    }

    fn notify(&mut self, notice: Notice) -> bool {
        self.notices.try_send(notice).is_ok()
    }

    fn log(&mut self, text: &str) {
        warn(text);
    }

    fn tools(&mut self) -> Result<Tools, String> {
        tools(&self.folder).map_err(|error| format!("{error:#}"))
    }
}

/// Pause after the first failed attempt to open the driver. The pause doubles after each later attempt, up to
/// [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Takes samples until the main loop ends. A message on `asks` requests an immediate sample.
fn keep_sampling<M>(
    mut open: impl FnMut() -> Result<(M, ServiceEvent), String>,
    mut sample: impl FnMut(&mut M) -> ServiceEvent,
    interval: Duration,
    asks: &Receiver<()>,
    events: &SyncSender<ServiceEvent>,
) {
    let mut pause = FIRST_PAUSE;
    let mut machine = loop {
        match open() {
            Ok((machine, opened)) => {
                if events.send(opened).is_err() {
                    return;
                }
                break machine;
            }
            Err(error) => {
                if events.send(ServiceEvent::NotOpened(error)).is_err()
                    || !wait_for_request(asks, pause)
                {
                    return;
                }
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    };
    loop {
        let begun = Instant::now();
        if events.send(sample(&mut machine)).is_err() {
            return;
        }
        if !wait_for_request(asks, interval.saturating_sub(begun.elapsed())) {
            return;
        }
    }
}

/// Waits until `time` has passed or a request arrives. Returns `false` if the channel is closed.
fn wait_for_request(asks: &Receiver<()>, time: Duration) -> bool {
    let asked = asks.recv_timeout(time);
    // One sample serves all pending requests.
    while asks.try_recv().is_ok() {}
    asked != Err(RecvTimeoutError::Disconnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Snapshot, Time};
    use std::sync::mpsc::sync_channel;
    use std::thread;

    #[test]
    fn a_missing_driver_is_retried_until_it_opens() {
        let (ask, asks) = sync_channel(8);
        let (events, received) = sync_channel(8);
        let mut left = 2;
        let open = move || match left {
            0 => Ok((7, ServiceEvent::NotOpened("opened".to_owned()))),
            _ => {
                left -= 1;
                Err(format!("no driver, {left}"))
            }
        };
        let sample = |number: &mut i64| {
            *number += 1;
            ServiceEvent::Sample {
                snapshot: Box::new(Snapshot::new(Time::from_unix_milliseconds(*number))),
                at: Instant::now(),
            }
        };
        let hour = Duration::from_secs(3600);
        let thread = thread::spawn(move || keep_sampling(open, sample, hour, &asks, &events));
        let next = || received.recv().unwrap();
        for expected in ["no driver, 1", "no driver, 0", "opened"] {
            let ServiceEvent::NotOpened(text) = next() else { panic!("{expected}") };
            assert_eq!(text, expected);
            // A request ends the pause, which would take an hour.
            ask.send(()).unwrap();
        }
        for expected in [8, 9] {
            let ServiceEvent::Sample { snapshot, .. } = next() else { panic!("no sample") };
            assert_eq!(snapshot.time, Time::from_unix_milliseconds(expected));
            ask.send(()).unwrap();
        }
        drop(ask);
        while received.recv().is_ok() {}
        thread.join().unwrap();
    }
}
