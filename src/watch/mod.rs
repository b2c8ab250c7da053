//! The terminal screen.
//!
//! Four threads only send events on one bounded channel: one samples, one reads keys, one waits for signals, and one
//! makes plans and carries them out. The main thread owns state and terminal, and draws when something has changed. So
//! a driver that hangs freezes its own numbers and nothing else.
//!
//! - [`state`]: the state and its parts; [`mod@update`]: how each event changes it, without side effects;
//! - [`layout`]: where everything is, for the mouse and for drawing;
//! - [`view`]: draws state and layout, a file per panel, in the styles of [`theme`];
//! - [`gpus`], [`charts`], [`findings`]: a panel each, with its parts under the mouse and its drawing;
//! - [`keys`]: the table of keys; [`mod@column`]: the columns; [`text`]: the text in them;
//! - [`view_model`]: a judged snapshot as rows; [`listing`]: which rows are shown, and in which order;
//!   [`memory_shares`]: what a GPU's memory is used for;
//! - [`reaping`]: ending processes, with the [worker](crate::reclaim::worker); [`page`]: explains a process or a GPU;
//!   [`column_list`]: chooses the table's columns;
//! - `hosts`: several machines: the list of them, and the screen that is shown;
//! - [`ui_state`]: what is remembered from one run to the next;
//! - [`double_buffer`]: writes only what changed in a frame;
//! - [`terminal`]: takes the terminal and gives it back; `output`: what waits to be written to it; `keyboard`: its
//!   input; `signals`: signals sent to gpumem; [`once`]: a picture instead of a screen.

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

use signal_hook::consts::SIGHUP;

use crate::deadline::{Deadline, Task};
use crate::history::memory_series::Courses;
use crate::model::Selector;
use crate::model::row::Me;
use crate::reclaim::worker::mailbox::{MailboxReceiver, Received, mailbox};
use crate::reclaim::worker::{ReclaimRequest, ReclaimWorker};
use crate::rules::Engine;
pub use crate::source::Control;
pub(crate) use crate::source::playback::PlaybackClock;
use crate::source::remote::RemoteHost;
use crate::source::{NextSnapshot, Origin, Source, SourceError};
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
    /// The user that gpumem runs as.
    pub me: Me,
    /// The initial filter.
    pub filter: Option<Selector>,
    /// The sort column; `None` restores the last one, or sorts by memory.
    pub sort: Option<Column>,
    /// The table's columns; `None` restores the last choice, or shows all.
    pub columns: Option<Columns>,
    /// The sampling interval; a newest sample older than three intervals raises an alarm.
    pub interval: Duration,
    pub theme: Theme,
    /// The speed of a recording; 1 is the speed at which it was made.
    pub speed: f64,
    pub has_color: bool,
    /// Whether to write only ASCII, as in a locale that is not UTF-8.
    pub ascii: bool,
    /// Whether to ask for clicks and the wheel. The terminal then selects text only with Shift held.
    pub mouse: bool,
}

impl Options {
    /// A screen of this size that waits for its first sample: of this machine, of a recording, or of another machine.
    fn start(
        self,
        replay: Option<String>,
        host: Option<RemoteHost>,
        past: Past,
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
        app.judged.courses = past.courses;
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

/// What was judged before the screen starts, such as the stored history.
#[derive(Debug)]
pub struct Past {
    pub engine: Engine,
    /// Memory over that time.
    pub courses: Courses,
}

impl Past {
    /// No past: `engine` judges what comes.
    pub fn new(engine: Engine) -> Self {
        Self { engine, courses: Courses::default() }
    }
}

/// How the screen ended. The terminal has been given back by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchOutcome {
    /// The user quit.
    Quit,
    /// A signal ended it, or its terminal is gone (`SIGHUP`). The program should end by that signal:
    /// `signal_hook::low_level::emulate_default_handler`.
    Signal(i32),
}

#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(
        "standard output is not a terminal; use `gpumem ps` or `gpumem check` for files and pipes"
    )]
    NotATerminal,
    /// The terminal cannot be taken or written to.
    #[error("cannot use the terminal; run gpumem watch in one, or use `gpumem ps`")]
    Terminal(#[source] io::Error),
    #[error("cannot read keys from the terminal; run gpumem watch in one, or use `gpumem ps`")]
    Keyboard(#[source] io::Error),
    /// Threads or signal handlers cannot be set up.
    #[error("cannot set up {what}; check the limits on processes and memory")]
    Setup {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    /// The source failed before its first snapshot.
    #[error("{0}")]
    Source(String),
    /// A bug; its message has been printed.
    #[error("the {thread} thread panicked; this is a bug in gpumem, please report it")]
    Panicked { thread: &'static str },
}

/// What a thread sends to the main thread.
enum ThreadMessage {
    /// For what is shown.
    Event(Event),
    /// For the screen with this number, shown or not.
    Of(usize, Event),
    Failed(WatchError),
}

/// How many messages may wait; a source faster than the screen has to wait.
const QUEUE: usize = 4;
/// How long the worker may take to report what it did, after the screen has ended.
const LEAVE: Duration = Duration::from_secs(5);
/// When to retry a terminal that has not taken a frame.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How long to take in messages before drawing again.
const BATCH: Duration = Duration::from_millis(8);

/// What is watched: this machine, a recording, or another machine.
pub struct Watched {
    pub host: Option<RemoteHost>,
    pub source: Box<dyn Source>,
    pub past: Past,
    /// Carries out what a person asks for.
    pub worker: ReclaimWorker,
}

/// Shows each source's snapshots, judged after its past, until the user quits or a signal ends it; several sources
/// begin with a list. Tells the workers to [leave](ReclaimRequest::Leave) once the terminal is given back. `ui_state`
/// arranges the screen, and returns with what the user changed; `warn` gets what a worker left unfinished.
///
/// A thread that waits in a source or for a key stays behind when this returns; the program is expected to end soon
/// after.
///
/// # Errors
///
/// If there is no terminal, or if the only source fails before its first snapshot. A source that fails later leaves its
/// last snapshot and the reason on the screen.
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
    let is_elsewhere = watched.iter().any(|it| it.host.is_some());
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
        // The sampling thread may hang in the driver; sending to it must never wait.
        let (control_sender, controls) = channel();
        let (reclaim, requests) = mailbox();
        stage.screens.push(AppScreen { app, controls: control_sender, reclaim });
        sources.push((source, controls, worker, requests));
    }
    let arranged = stage.app().ui_state();
    let mut reclaiming = Vec::new();

    let outcome = terminal::with_screen(options.mouse, |screen| {
        // Before the threads start, so that a signal that comes now still gives the terminal back.
        let signals = SignalWatch::start(&sender)?;
        for (at, (source, controls, worker, requests)) in sources.into_iter().enumerate() {
            spawn("sampling", &sender, move |sender| {
                let send = |event| sender.send(ThreadMessage::Of(at, event)).is_ok();
                sample(source, &controls, start, send);
            })?;
            reclaiming.push(spawn("reclaim", &sender, move |sender| {
                let send = |event| sender.send(ThreadMessage::Of(at, event)).is_ok();
                work(worker, &requests, send)
            })?);
        }
        let keys = Pausing::default();
        let keyboard = keys.clone();
        spawn("keyboard", &sender, move |sender| {
            keyboard::read(start, sender, is_elsewhere.then_some(&keyboard));
        })?;
        drive(&mut stage, screen, &messages, &keys, &signals, start)
    });
    *ui_state = stage.app().ui_state();
    ui_state.retain(|name, value| arranged.get(name) != Some(&*value));
    // Without a receiver, nothing holds the worker up.
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

/// The loop: takes in messages, carries out effects, and draws if something changed and the terminal has taken the last
/// frame.
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
            let (of, effect) = match message {
                ThreadMessage::Event(event) => stage.update(event),
                ThreadMessage::Of(at, event) => (at, stage.update_of(at, event)),
                ThreadMessage::Failed(error) => return Err(error),
            };
            let Some(effect) = effect else {
                continue;
            };
            changed |= stage.shows(of);
            match effect {
                Effect::Draw => {}
                Effect::Repaint => screen.resize(stage.app().area),
                Effect::Suspend => suspend()?,
                Effect::Stop if signals.is_to_stop() => stop()?,
                Effect::Stop => {}
                Effect::Resume => {
                    // In the background, its first touch of the terminal would stop it, and then it could not even end.
                    let is_to_go_on = terminal::is_foreground() || signals.is_to_end();
                    // It may be back in the foreground by now.
                    if terminal::is_foreground() {
                        resume(stage, screen).map_err(WatchError::Terminal)?;
                    } else if !is_to_go_on {
                        stop_in_background()?;
                    }
                }
                Effect::Quit => return Ok(WatchOutcome::Quit),
                Effect::Die(signal) => return Ok(WatchOutcome::Signal(signal)),
                Effect::Fail(error) => return Err(WatchError::Source(error)),
                // A source that has failed receives nothing.
                Effect::Control(control) => drop(stage.screens[of].controls.send(control)),
                Effect::Reclaim(ask) => stage.screens[of].reclaim.send(ask, Instant::now()),
                Effect::Hosts => stage.show_list(),
                Effect::OnHost(command) => {
                    keys.while_paused(|| {
                        on_host(stage.app().setup.host.as_ref(), &command, signals);
                    });
                    // Otherwise its event is on the way.
                    if !signals.is_asked() {
                        resume(stage, screen).map_err(WatchError::Terminal)?;
                    }
                }
            }
        }
    }
}

/// Gives the terminal to a command on another machine, until the command has ended and the user has read its output, or
/// until gpumem must end.
fn on_host(host: Option<&RemoteHost>, command: &str, signals: &SignalWatch) {
    let Some(host) = host else { return };
    terminal::give_back();
    // If the terminal is gone, the next write to it reports that.
    let say = |text: &str| drop(io::stdout().write_all(text.as_bytes()));
    say(&format!("{}\n", host.typed(command)));
    match host.on_terminal(command).spawn() {
        Ok(mut ssh) => {
            // While ssh has not put the terminal into raw mode, Ctrl-C and Ctrl-Z go to both.
            while let Ok(None) = ssh.try_wait() {
                if signals.is_asked() {
                    drop(ssh.kill().and_then(|()| ssh.wait()));
                    return;
                }
                signals.stop_if_told();
                thread::sleep(TRY_AGAIN);
            }
        }
        Err(error) => say(&format!("ssh cannot be started: {error}; install an OpenSSH client\n")),
    }
    if !signals.is_asked() {
        say("\nEnter goes back to the screen.");
        let _ = io::stdout().flush();
    }
    while !signals.is_asked() {
        signals.stop_if_told();
        if terminal::has_input(TRY_AGAIN) {
            let _ = io::stdin().lines().next();
            return;
        }
    }
}

/// Puts the time before a key, because two digits in quick succession are one number.
fn timed(start: Instant) -> impl Fn(ThreadMessage) -> [Option<ThreadMessage>; 2] {
    move |message| {
        let is_key = matches!(&message, ThreadMessage::Event(Event::Key(_)));
        let tick = is_key.then(|| ThreadMessage::Event(Event::Tick { now: start.elapsed() }));
        [tick, Some(message)]
    }
}

fn resume(stage: &mut Stage, screen: &mut Screen) -> io::Result<()> {
    screen.retake()?;
    // The window may have a new size.
    let (columns, rows) = terminal::size();
    stage.update(Event::Resize(columns, rows));
    screen.resize(stage.app().area);
    Ok(())
}

/// The next message, or a tick if none comes in time.
fn wait(
    messages: &Receiver<ThreadMessage>,
    tick: Option<Duration>,
    start: Instant,
) -> ThreadMessage {
    const LONG: Duration = Duration::from_secs(3600);
    let patience = tick.map_or(LONG, |tick| tick.saturating_sub(start.elapsed()));
    messages
        .recv_timeout(patience)
        .unwrap_or_else(|_| ThreadMessage::Event(Event::Tick { now: start.elapsed() }))
}

/// Sends the source's snapshots when they are due, and carries out controls at once, until the source fails or the
/// channel closes.
fn sample(
    mut source: Box<dyn Source>,
    controls: &Receiver<Control>,
    start: Instant,
    send: impl Fn(Event) -> bool,
) {
    let mut percent = None;
    let mut trouble = None;
    // Returns whether to continue.
    let mut step = || -> Result<bool, SourceError> {
        // Waits for the next sample or a control, whichever comes first.
        let due = source.due(Instant::now())?;
        if source.trouble() != trouble {
            trouble = source.trouble();
            if !send(Event::SourceTrouble(trouble.clone())) {
                return Ok(false);
            }
        }
        let told = match due {
            NextSnapshot::In(wait) => controls.recv_timeout(wait),
            NextSnapshot::Ended if !send(Event::SourceEnded) => return Ok(false),
            NextSnapshot::OnRequest | NextSnapshot::Ended => controls.recv().map_err(Into::into),
        };
        match told {
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
    send(Event::SourceFailed(in_full(&error)));
}

/// Carries out requests until the mailbox is closed or a request says to leave; returns what that left unfinished.
fn work(
    mut worker: ReclaimWorker,
    requests: &MailboxReceiver,
    send: impl Fn(Event) -> bool,
) -> Option<String> {
    let mut patience = None;
    loop {
        let request = match requests.receive(patience) {
            Received::Request(request, at) => Some((request, at.elapsed())),
            Received::TimedOut => None,
            Received::Closed => return None,
        };
        if matches!(request, Some((ReclaimRequest::Leave, _))) {
            return worker.leave();
        }
        patience = worker.handle(request, &mut |progress| {
            // If the main thread has ended, a request to leave comes next.
            send(Event::Reclaim(progress));
        });
    }
}

/// An error with its causes.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Starts a thread that sends messages; a panic becomes a message too.
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
                // If the channel is closed, the program is already ending.
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
