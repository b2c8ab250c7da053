//! The interactive screen of `gpumem watch`.
//!
//! Sampling, keyboard, signals and reclaiming have their own threads, which send events to the main thread over a
//! bounded channel. The main thread owns the state and the terminal. If the driver hangs, the displayed values become
//! outdated, but keys still work.
//!
//! - [`state`]: the state; [`mod@update`]: how each event changes it, without side effects
//! - [`layout`]: panel positions, for the mouse and for drawing
//! - [`view`]: draws the state, one file per panel, in the styles of [`theme`]
//! - [`gpus`], [`charts`], [`findings`]: one panel each, with its mouse handling and drawing
//! - [`keys`]: key bindings; [`mod@column`]: table columns; [`text`]: measures, truncates and wraps text
//! - [`view_model`]: a judged snapshot as rows; [`listing`]: which rows are shown, and their order;
//!   [`memory_shares`]: a GPU's memory, divided by use
//! - [`reaping`]: ends processes through the [worker](crate::reclaim::worker); [`page`]: explains a process or a
//!   GPU; [`column_list`]: chooses the table's columns
//! - `hosts`: the list of machines, and the screen of the selected machine
//! - [`ui_state`]: settings remembered between runs
//! - [`double_buffer`]: writes only the cells that changed
//! - [`terminal`]: takes and restores the terminal; `output`: output queue; `keyboard`: input; `signals`: signals
//!   sent to gpumem; [`once`]: prints a single frame

pub mod charts;
pub mod column;
pub mod column_list;
pub mod double_buffer;
pub mod findings;
pub mod gpus;
mod hosts;
mod keyboard;
pub mod keys;
pub mod layout;
pub mod listing;
pub mod memory_shares;
pub mod once;
mod output;
pub mod page;
pub mod reaping;
mod signals;
pub mod state;
pub mod terminal;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod theme;
pub mod ui_state;
pub mod update;
pub mod view;
pub mod view_model;

use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use signal_hook::consts::SIGHUP;

use crate::deadline::{Deadline, Task};
use crate::history::memory_series::AllSeries;
use crate::model::Selector;
use crate::model::row::CurrentUser;
use crate::reclaim::worker::mailbox::{MailboxReceiver, Received, mailbox};
use crate::reclaim::worker::{ReclaimRequest, ReclaimWorker};
use crate::rules::Engine;
pub use crate::source::Control;
use crate::source::remote::RemoteHost;
pub(crate) use crate::source::replay::PlaybackClock;
use crate::source::{NextSnapshot, Origin, Source, SourceError};
use crate::units::{system_message, without_error_numbers};
use column::{Column, Columns};
use hosts::{AppScreen, Stage};
use keyboard::Pausing;
use signals::{SignalWatch, stop, stop_in_background, suspend};
use state::timeline::Timeline;
use state::{App, Effect, Event, Setup};
use terminal::Screen;
use theme::Theme;
use ui_state::UiState;
use view_model::Sort;

#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    pub me: CurrentUser,
    pub filter: Option<Selector>,
    /// `None` restores the saved sort column, or sorts by memory if none was saved.
    pub sort: Option<Column>,
    /// `None` restores the saved columns, or shows all columns if none were saved.
    pub columns: Option<Columns>,
    /// Sampling interval. An alarm appears when the newest sample is older than both three intervals and 3 s.
    pub interval: Duration,
    pub theme: Theme,
    /// Whether to ask the terminal for its background colour, which determines the theme.
    pub asks_background: bool,
    /// Playback speed of a recording, relative to the recorded speed.
    pub speed: f64,
    pub has_color: bool,
    pub ascii: bool,
    /// Whether to handle clicks and the wheel. Selecting text in the terminal then requires Shift.
    pub mouse: bool,
}

impl Options {
    fn start(
        self,
        replay: Option<String>,
        host: Option<RemoteHost>,
        past: EarlierHistory,
        columns: u16,
        rows: u16,
    ) -> App {
        let setup = Setup {
            replay,
            host,
            version: env!("CARGO_PKG_VERSION"),
            me: self.me,
            has_color: self.has_color,
            ascii: self.ascii,
        };
        let mut app = App::new(setup, past.engine, self.interval, columns, rows);
        app.judged.all_series = past.all_series;
        app.table.choice.filter = self.filter;
        if let Some(column) = self.sort {
            app.table.choice.sort = Sort { column, reversed: false };
        }
        app.table.columns = self.columns.unwrap_or_default();
        app.theme = self.theme;
        app.playback.speed = self.speed;
        app
    }
}

/// History from before the screen started, such as from a recording store.
#[derive(Debug)]
pub struct EarlierHistory {
    pub engine: Engine,
    /// Memory and utilization over the period that `engine` covers.
    pub all_series: AllSeries,
}

impl EarlierHistory {
    pub fn new(engine: Engine) -> Self {
        Self { engine, all_series: AllSeries::default() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchOutcome {
    Quit,
    /// A signal arrived, or the terminal closed (`SIGHUP`). The caller should end the program by
    /// this signal with `signal_hook::low_level::emulate_default_handler`.
    Signal(i32),
}

#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(
        "standard output is not a terminal; use `gpumem ps` or `gpumem check` for files and pipes"
    )]
    NotATerminal,
    #[error("cannot use the terminal; run gpumem watch in one, or use `gpumem ps`")]
    Terminal(#[source] io::Error),
    #[error("cannot read keys from the terminal; run gpumem watch in one, or use `gpumem ps`")]
    Keyboard(#[source] io::Error),
    #[error("cannot set up {what}; check the limits on processes and memory")]
    Setup {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("{0}")]
    Source(String),
    /// A bug. The panic hook has already printed the message.
    #[error("the {thread} thread panicked; this is a bug in gpumem, please report it")]
    Panicked { thread: &'static str },
}

enum ThreadMessage {
    /// An event for the shown screen or the list. Ticks, resizes and the background apply to all screens.
    Event(Event),
    /// An event for the screen with this index.
    ForScreen(usize, Event),
    Failed(WatchError),
}

/// Maximum number of queued messages. Senders block while the queue is full.
const QUEUE: usize = 4;
/// Time limit for reports about unfinished actions after the screen has closed.
const LEAVE: Duration = Duration::from_secs(5);
/// Minimum time to read the terminal's answer before gpumem exits. The shell would take a later answer for input.
const BACKGROUND_TIME: Duration = Duration::from_millis(200);
/// Delay before another attempt, such as writing to a terminal that has not accepted a whole frame.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Maximum time to collect messages before the next frame is drawn.
const BATCH: Duration = Duration::from_millis(8);

pub struct Watched {
    pub host: Option<RemoteHost>,
    pub source: Box<dyn Source>,
    pub past: EarlierHistory,
    pub worker: ReclaimWorker,
}

/// Shows snapshots until the user quits or a signal ends the screen. With several sources, starts with a list of
/// machines.
///
/// On return, `ui_state` contains the settings that the user changed. Each worker receives [`ReclaimRequest::Leave`]
/// after the terminal has been restored; `warn` receives a description of each unfinished action. Threads that are
/// blocked in a source or in a read of the keyboard outlive this call.
///
/// # Errors
///
/// Returns an error if there is no terminal or it fails, if a thread cannot be started or panics, or if a source fails
/// before its first snapshot.
pub fn run(
    watched: Vec<Watched>,
    options: &Options,
    ui_state: &mut UiState,
    warn: fn(&str),
) -> Result<WatchOutcome, WatchError> {
    if !terminal::is_terminal() {
        return Err(WatchError::NotATerminal);
    }
    let (columns, rows) = terminal::size();
    let has_remote = watched.iter().any(|watched| watched.host.is_some());
    let start = Instant::now();
    let (sender, messages) = sync_channel(QUEUE);
    let count = watched.len();
    let mut stage = Stage::new(options, count);
    let mut sources = Vec::new();
    for Watched { host, source, past, worker } in watched {
        let (replay, can_rewind) = match source.origin() {
            Origin::Live => (None, false),
            Origin::Replay { name, can_rewind } => (Some(name), can_rewind),
        };
        let mut app = options.clone().start(replay, host, past, columns, rows);
        app.playback.can_rewind = can_rewind;
        app.timeline = Timeline::one_of(count);
        app.restore(ui_state);
        // The sampling thread can hang in the driver, so its channel is unbounded: sending never blocks.
        let (control_sender, controls) = channel();
        let (reclaim, requests) = mailbox();
        stage.screens.push(AppScreen { app, controls: control_sender, reclaim });
        sources.push((source, controls, worker, requests));
    }
    let mut initial = stage.app().ui_state();
    let mut reclaiming = Vec::new();

    let outcome = terminal::with_screen(options.mouse, options.asks_background, |screen| {
        // Handle signals before any thread starts: even an early signal must restore the terminal.
        let signals = SignalWatch::start(&sender)?;
        for (at, (source, controls, worker, requests)) in sources.into_iter().enumerate() {
            spawn("sampling", &sender, move |sender| {
                let send = |event| sender.send(ThreadMessage::ForScreen(at, event)).is_ok();
                sample(source, &controls, start, send);
            })?;
            reclaiming.push(spawn("reclaim", &sender, move |sender| {
                let send = |event| sender.send(ThreadMessage::ForScreen(at, event)).is_ok();
                handle_requests(worker, &requests, send)
            })?);
        }
        let keys = Pausing::default();
        let keyboard = keys.clone();
        spawn("keyboard", &sender, move |sender| {
            keyboard::read(start, sender, has_remote.then_some(&keyboard));
        })?;
        let outcome = drive(&mut stage, screen, &messages, &keys, &signals, start);
        if options.asks_background && stage.background.is_none() {
            thread::sleep(BACKGROUND_TIME.saturating_sub(start.elapsed()));
        }
        outcome
    });
    if let Some(theme) = stage.background {
        initial.insert("theme".to_owned(), json!(theme));
    }
    *ui_state = stage.app().ui_state();
    ui_state.retain(|name, value| initial.get(name) != Some(&*value));
    // Without a receiver, sending fails, so no worker blocks on a full channel.
    drop(messages);
    for screen in &stage.screens {
        screen.reclaim.send(ReclaimRequest::Leave, Instant::now());
    }
    let deadline = Deadline::after(LEAVE);
    for task in reclaiming {
        if let Ok(Some(unfinished)) = task.wait(deadline.left()) {
            warn(&unfinished);
        }
    }
    match outcome {
        Ok(Err(WatchError::Terminal(error))) | Err(error) if terminal::is_gone(&error) => {
            Ok(WatchOutcome::Signal(SIGHUP))
        }
        Ok(outcome) => outcome,
        Err(error) => Err(WatchError::Terminal(error)),
    }
}

/// Handles messages, and draws a frame when the state has changed and the terminal has accepted the previous frame.
fn drive(
    stage: &mut Stage,
    screen: &mut Screen,
    messages: &Receiver<ThreadMessage>,
    keys: &Pausing,
    signals: &SignalWatch,
    start: Instant,
) -> Result<WatchOutcome, WatchError> {
    let mut changed = true;
    loop {
        stage.request_commands();
        if screen.is_behind() {
            screen.catch_up().map_err(WatchError::Terminal)?;
        }
        if changed && !screen.is_behind() {
            screen.draw(|canvas| stage.draw(canvas)).map_err(WatchError::Terminal)?;
            changed = false;
            stage.drawn();
        }
        let mut tick = stage.next_tick();
        if screen.is_behind() {
            let soon = start.elapsed() + TRY_AGAIN;
            tick = Some(tick.map_or(soon, |tick| tick.min(soon)));
        }
        let first = wait(messages, tick, start);
        let until = Instant::now() + BATCH;
        let in_time = || Instant::now() < until;
        let more = std::iter::from_fn(|| in_time().then(|| messages.try_recv().ok())?);
        for message in std::iter::once(first).chain(more).flat_map(timed(start)).flatten() {
            let (index, effect) = match message {
                ThreadMessage::Event(event) => stage.update(event),
                ThreadMessage::ForScreen(at, event) => (at, stage.update_screen(at, event)),
                ThreadMessage::Failed(error) => return Err(error),
            };
            let Some(effect) = effect else {
                continue;
            };
            changed |= stage.shows(index);
            match effect {
                Effect::Draw => {}
                Effect::Repaint => screen.resize(stage.app().area),
                Effect::Suspend => suspend()?,
                Effect::Stop if signals.should_stop() => stop()?,
                Effect::Stop => {}
                Effect::Resume => {
                    // In the background, accessing the terminal would stop gpumem.
                    let may_continue = terminal::is_foreground() || signals.must_exit_soon();
                    // The shell may have moved gpumem to the foreground in the meantime.
                    if terminal::is_foreground() {
                        resume(stage, screen).map_err(WatchError::Terminal)?;
                    } else if !may_continue {
                        stop_in_background()?;
                    }
                }
                Effect::Quit => return Ok(WatchOutcome::Quit),
                Effect::Die(signal) => return Ok(WatchOutcome::Signal(signal)),
                Effect::Fail(error) => return Err(WatchError::Source(error)),
                // The receiver is gone if the source has failed.
                Effect::Control(control) => drop(stage.screens[index].controls.send(control)),
                Effect::Reclaim(ask) => stage.screens[index].reclaim.send(ask, Instant::now()),
                Effect::Hosts => stage.show_list(),
                Effect::OnHost(command) => {
                    keys.while_paused(|| {
                        run_on_host(stage.app().setup.host.as_ref(), &command, signals);
                    });
                    // After a terminating signal, the queued event ends gpumem.
                    if !signals.must_exit() {
                        resume(stage, screen).map_err(WatchError::Terminal)?;
                    }
                }
            }
        }
    }
}

/// Runs a command on a remote host in this terminal, and waits until the user presses Enter.
fn run_on_host(host: Option<&RemoteHost>, command: &str, signals: &SignalWatch) {
    let Some(host) = host else { return };
    terminal::restore();
    // Ignore the error: the next frame fails too if the terminal is gone.
    let print = |text: &str| drop(io::stdout().write_all(text.as_bytes()));
    print(&format!("{}\n", host.typed(command)));
    match host.on_terminal(command).spawn() {
        Ok(mut ssh) => {
            // Until ssh sets raw mode, Ctrl-C and Ctrl-Z reach gpumem as well as ssh.
            while let Ok(None) = ssh.try_wait() {
                if signals.must_exit() {
                    drop(ssh.kill().and_then(|()| ssh.wait()));
                    return;
                }
                signals.stop_if_requested();
                thread::sleep(TRY_AGAIN);
            }
        }
        Err(error) => {
            let why = system_message(&error);
            print(&format!("ssh cannot be started: {why}; install an OpenSSH client\n"));
        }
    }
    if !signals.must_exit() {
        print("\nPress Enter to return to the screen.");
        let _ = io::stdout().flush();
    }
    while !signals.must_exit() {
        signals.stop_if_requested();
        if terminal::has_input(TRY_AGAIN) {
            let _ = io::stdin().lines().next();
            return;
        }
    }
}

/// Inserts a tick with the current time before each key, because two digits form one number only in quick succession.
fn timed(start: Instant) -> impl Fn(ThreadMessage) -> [Option<ThreadMessage>; 2] {
    move |message| {
        let is_key = matches!(&message, ThreadMessage::Event(Event::Key(_)));
        let tick = is_key.then(|| ThreadMessage::Event(Event::Tick { now: start.elapsed() }));
        [tick, Some(message)]
    }
}

fn resume(stage: &mut Stage, screen: &mut Screen) -> io::Result<()> {
    screen.retake()?;
    let (columns, rows) = terminal::size();
    stage.update(Event::Resize(columns, rows));
    screen.resize(stage.app().area);
    Ok(())
}

/// Waits for a message. Returns a tick event if no message arrives by the time `tick`.
fn wait(
    messages: &Receiver<ThreadMessage>,
    tick: Option<Duration>,
    start: Instant,
) -> ThreadMessage {
    const LONG: Duration = Duration::from_secs(3600);
    let timeout = tick.map_or(LONG, |tick| tick.saturating_sub(start.elapsed()));
    messages
        .recv_timeout(timeout)
        .unwrap_or_else(|_| ThreadMessage::Event(Event::Tick { now: start.elapsed() }))
}

/// Sends snapshots and applies controls until the source fails or the channel closes.
fn sample(
    mut source: Box<dyn Source>,
    controls: &Receiver<Control>,
    start: Instant,
    send: impl Fn(Event) -> bool,
) {
    let mut percent = None;
    let mut trouble = None;
    let mut step = || -> Result<bool, SourceError> {
        let due = source.due(Instant::now())?;
        if source.trouble() != trouble {
            trouble = source.trouble();
            if !send(Event::SourceTrouble(trouble.clone())) {
                return Ok(false);
            }
        }
        let control = match due {
            NextSnapshot::In(wait) => controls.recv_timeout(wait),
            NextSnapshot::Ended if !send(Event::SourceEnded) => return Ok(false),
            NextSnapshot::OnRequest | NextSnapshot::Ended => controls.recv().map_err(Into::into),
        };
        match control {
            Ok(control) => {
                source.steer(control, Instant::now())?;
                if control == Control::Rewind {
                    percent = None;
                    return Ok(send(Event::SourceRewound));
                }
                return Ok(true);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(snapshot) = source.take(Instant::now())? else {
            return Ok(true);
        };
        let read = source.share_read().map(|share| (share * 100.0).floor() as u8);
        if let Some(read) = read.filter(|_| read != percent) {
            percent = Some(read);
            if !send(Event::SourceRead(read)) {
                return Ok(false);
            }
        }
        Ok(send(Event::Snapshot { now: start.elapsed(), snapshot: Box::new(snapshot) }))
    };
    let error = loop {
        match step() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => break error,
        }
    };
    send(Event::SourceFailed(error_with_causes(&error)));
}

/// Handles requests until the mailbox closes or [`ReclaimRequest::Leave`] arrives. Returns a description of
/// unfinished actions, if there are any.
fn handle_requests(
    mut worker: ReclaimWorker,
    requests: &MailboxReceiver,
    send: impl Fn(Event) -> bool,
) -> Option<String> {
    let mut timeout = None;
    loop {
        let request = match requests.receive(timeout) {
            Received::Request(request, at) => Some((request, at.elapsed())),
            Received::TimedOut => None,
            Received::Closed => return None,
        };
        if matches!(request, Some((ReclaimRequest::Leave, _))) {
            return worker.leave();
        }
        timeout = worker.handle(request, &mut |progress| {
            // If the send fails, the main thread is ending, and `Leave` follows.
            send(Event::Reclaim(progress));
        });
    }
}

fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    without_error_numbers(&text)
}

/// Starts a thread that reports its own panic to the main thread.
fn spawn<T: Send + 'static>(
    name: &'static str,
    sender: &SyncSender<ThreadMessage>,
    work: impl FnOnce(&SyncSender<ThreadMessage>) -> T + Send + 'static,
) -> Result<Task<T>, WatchError> {
    struct PanicReporter(SyncSender<ThreadMessage>, &'static str);
    impl Drop for PanicReporter {
        fn drop(&mut self) {
            if thread::panicking() {
                let error = WatchError::Panicked { thread: self.1 };
                // If the channel is closed, gpumem is already exiting.
                let _ = self.0.send(ThreadMessage::Failed(error));
            }
        }
    }
    let reporter = PanicReporter(sender.clone(), name);
    Task::start(name, move || work(&reporter.0))
        .map_err(|error| WatchError::Setup { what: "a thread", error })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::sample;
