//! The terminal screen.
//!
//! Four threads only send events on one bounded channel: one samples, one reads keys, one waits for
//! signals, and one makes plans and carries them out. The main thread owns state and terminal, and draws
//! when something has changed; so a driver that hangs freezes its own numbers and nothing else.
//!
//! - [`state`]: the state, in parts, those of features too; [`mod@update`]: what each event does to it, which is pure;
//! - [`layout`]: where everything is, read by the mouse and by the view alike;
//! - [`view`]: state and layout to cells, a file per panel, in the styles of [`theme`];
//! - [`gpus`], [`charts`], [`findings`]: a panel, its parts under the mouse, and its drawing;
//! - [`keys`]: the table of keys; [`mod@column`]: the table of columns; [`command`] and [`text`]: what is in
//!   them;
//! - [`view_model`]: one snapshot with its verdicts, as rows; [`listing`]: which of them are shown, in which
//!   order, by the selector that is typed;
//!   [`memory_shares`]: what a GPU's memory is in use for;
//! - [`reaping`]: ending processes, by the [`reclaim_worker`]; [`page`]: what explains a process or a GPU;
//!   [`column_list`]: which columns the table has;
//! - `hosts`: several machines: the list of them, and which one's screen is shown;
//! - [`ui_state`]: what is kept from one run to the next;
//! - [`double_buffer`]: what of a frame has changed;
//! - [`terminal`]: the terminal, taken and given back; `output`: what waits to be written to it; `keyboard`:
//!   what comes from it; `signals`: those sent to gpumem; [`once`]: a picture instead.

pub mod charts;
pub mod column;
pub mod column_list;
pub mod command;
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
pub mod reclaim_worker;
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
use crate::rules::Engine;
pub use crate::source::Control;
pub(crate) use crate::source::playback::{PlaybackClock, PlaybackPace};
use crate::source::remote::RemoteHost;
use crate::source::{NextSnapshot, Origin, Source, SourceError};
use column::{Column, Columns};
use hosts::{AppScreen, Stage};
use keyboard::Pausing;
use reclaim_worker::mailbox::{MailboxReceiver, Received, mailbox};
use reclaim_worker::{ReclaimRequest, ReclaimWorker};
use signals::{SignalWatch, stop, stop_in_background, suspend};
use state::timeline::Timeline;
use state::{App, Effect, Event, Setup};
use terminal::Screen;
use theme::Theme;
use ui_state::UiState;
use view_model::Sort;

/// How the screen is shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The user that gpumem runs as.
    pub me: Me,
    /// The filter that the screen starts with.
    pub filter: Option<Selector>,
    /// The column that the rows are sorted by; `None` leaves it as it was left, or by memory.
    pub sort: Option<Column>,
    /// The table's columns; `None` leaves them as they were left, or all of them.
    pub columns: Option<Columns>,
    /// The time from one sample to the next; a sample older than three of them is an alarm.
    pub interval: Duration,
    /// How things look.
    pub theme: Theme,
    /// How many times as fast as it was made a recording plays.
    pub speed: f64,
    /// Whether colours may be used.
    pub has_color: bool,
    /// Whether only ASCII may be written, as in a locale that is not UTF-8.
    pub ascii: bool,
    /// Whether clicks and the wheel are asked for; the terminal selects no text with them then,
    /// unless Shift is held.
    pub mouse: bool,
}

impl Options {
    /// A screen of this size that waits for its first sample, of the recording of this name, of another machine or of
    /// this one.
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

/// What was judged before the screen comes up, as of the stored history.
#[derive(Debug)]
pub struct Past {
    /// What the rules made of it.
    pub engine: Engine,
    /// How memory moved meanwhile.
    pub courses: Courses,
}

impl Past {
    /// Nothing was seen; what comes is judged by this engine.
    pub fn new(engine: Engine) -> Self {
        Self { engine, courses: Courses::default() }
    }
}

/// How the screen ended. The terminal is given back by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchOutcome {
    /// A person left it.
    Quit,
    /// A signal ended it, or its terminal is gone (`SIGHUP`); the program should end as by that
    /// signal: `signal_hook::low_level::emulate_default_handler`.
    Signal(i32),
}

/// Why there is no screen.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Standard output goes elsewhere.
    #[error(
        "standard output is not a terminal; use `gpumem ps` or `gpumem check` for files and pipes"
    )]
    NotATerminal,
    /// The terminal cannot be taken or written to.
    #[error("cannot use the terminal; run gpumem watch in one, or use `gpumem ps`")]
    Terminal(#[source] io::Error),
    /// Keys cannot be read.
    #[error("cannot read keys from the terminal; run gpumem watch in one, or use `gpumem ps`")]
    Keyboard(#[source] io::Error),
    /// Threads or signal handlers cannot be set up.
    #[error("cannot set up {what}; check the limits on processes and memory")]
    Setup {
        /// What.
        what: &'static str,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// Nothing was ever seen.
    #[error("{0}")]
    Source(String),
    /// A bug; its message has been printed.
    #[error("the {thread} thread panicked; this is a bug in gpumem, please report it")]
    Panicked {
        /// Which.
        thread: &'static str,
    },
}

/// What a thread tells the main thread.
enum ThreadMessage {
    /// For what is shown.
    Event(Event),
    /// For the screen of what is watched there, shown or not.
    Of(usize, Event),
    Failed(WatchError),
}

/// Messages that may wait; a source that is faster than the screen is held up.
const QUEUE: usize = 4;
/// How long the worker has to say what it did, once the screen is gone.
const LEAVE: Duration = Duration::from_secs(5);
/// A terminal that has not taken a frame is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Messages are taken in for so long before the screen is drawn again.
const BATCH: Duration = Duration::from_millis(8);

/// What is watched: this machine, a recording, or another machine.
pub struct Watched {
    /// The other machine, where it is one.
    pub host: Option<RemoteHost>,
    pub source: Box<dyn Source>,
    pub past: Past,
    /// Ends what a person asks to be ended.
    pub worker: Box<dyn ReclaimWorker + Send>,
}

/// Shows what each source yields, judged after its past, until a person or a signal ends it; of several, a list first.
/// The workers are told to [leave](ReclaimRequest::Leave) once the terminal is given back. The screen is arranged as
/// `ui_state` says, which then says what was changed of that, and no more.
///
/// A thread that waits in a source or for a key stays behind when this returns; the program is
/// expected to end soon after.
///
/// # Errors
///
/// Where there is no terminal, or where the only source fails before its first snapshot. A source that
/// fails later leaves its last snapshot on the screen, and says so there.
pub fn run(
    watched: Vec<Watched>,
    options: &Options,
    ui_state: &mut UiState,
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
        // The thread that samples may hang in the driver; no one who tells it something waits for it.
        let (control_sender, controls) = channel();
        let (reclaim, requests) = mailbox();
        stage.screens.push(AppScreen { app, controls: control_sender, reclaim });
        sources.push((source, controls, worker, requests));
    }
    let arranged = stage.app().ui_state();
    let mut reclaiming = Vec::new();

    let outcome = terminal::with_screen(options.mouse, |screen| {
        // Before the threads: a signal that comes now must find the terminal's keeper.
        let signals = SignalWatch::start(&sender)?;
        for (at, (source, controls, worker, requests)) in sources.into_iter().enumerate() {
            spawn("sampling", &sender, move |sender| {
                let send = |event| sender.send(ThreadMessage::Of(at, event)).is_ok();
                sample(source, &controls, start, send);
            })?;
            reclaiming.push(spawn("reclaim", &sender, move |sender| {
                let send = |event| sender.send(ThreadMessage::Of(at, event)).is_ok();
                work(worker, &requests, send);
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
    // No receiver is left, so that nothing holds the worker up.
    drop(messages);
    for screen in &stage.screens {
        screen.reclaim.send(ReclaimRequest::Leave, Instant::now());
    }
    let deadline = Deadline::after(LEAVE);
    for task in reclaiming {
        let _ = task.wait(deadline.left());
    }
    match outcome {
        Ok(Err(WatchError::Terminal(error))) | Err(error) if terminal::is_gone(&error) => {
            Ok(WatchOutcome::Signal(SIGHUP))
        }
        Ok(outcome) => outcome,
        Err(error) => Err(WatchError::Terminal(error)),
    }
}

/// The loop: takes in what has come, carries effects out, draws if anything changed and the terminal has
/// taken what was drawn before.
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
                    // In the background it would be stopped for its first touch of the terminal, and could then not
                    // even end.
                    let is_to_go_on = terminal::is_foreground() || signals.is_to_end();
                    // It may have come to the foreground meanwhile.
                    if terminal::is_foreground() {
                        resume(stage, screen).map_err(WatchError::Terminal)?;
                    } else if !is_to_go_on {
                        stop_in_background()?;
                    }
                }
                Effect::Quit => return Ok(WatchOutcome::Quit),
                Effect::Die(signal) => return Ok(WatchOutcome::Signal(signal)),
                Effect::Fail(error) => return Err(WatchError::Source(error)),
                // A source that has failed listens to no one.
                Effect::Control(control) => drop(stage.screens[of].controls.send(control)),
                Effect::Reclaim(ask) => stage.screens[of].reclaim.send(ask, Instant::now()),
                Effect::Hosts => stage.show_list(),
                Effect::OnHost(command) => {
                    keys.while_paused(|| {
                        on_host(stage.app().setup.host.as_ref(), &command, signals);
                    });
                    // Else its event is on its way.
                    if !signals.is_asked() {
                        resume(stage, screen).map_err(WatchError::Terminal)?;
                    }
                }
            }
        }
    }
}

/// Gives the terminal to a command on another machine, until it has ended and what it said has been read, or until
/// gpumem is to end.
fn on_host(host: Option<&RemoteHost>, command: &str, signals: &SignalWatch) {
    let Some(host) = host else { return };
    terminal::give_back();
    // Where the terminal is gone, the next thing that is written to it says so.
    let say = |text: &str| drop(io::stdout().write_all(text.as_bytes()));
    say(&format!("{}\n", host.typed(command)));
    match host.on_terminal(command).spawn() {
        Ok(mut ssh) => {
            // As long as ssh does not have the terminal raw, its Ctrl-C and Ctrl-Z are for both of them.
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

/// Before a key it is said what time it is: two digits in a moment are one number.
fn timed(start: Instant) -> impl Fn(ThreadMessage) -> [Option<ThreadMessage>; 2] {
    move |message| {
        let is_key = matches!(&message, ThreadMessage::Event(Event::Key(_)));
        let tick = is_key.then(|| ThreadMessage::Event(Event::Tick { now: start.elapsed() }));
        [tick, Some(message)]
    }
}

/// Takes the terminal again.
fn resume(stage: &mut Stage, screen: &mut Screen) -> io::Result<()> {
    screen.retake()?;
    // The window may have changed meanwhile.
    let (columns, rows) = terminal::size();
    stage.update(Event::Resize(columns, rows));
    screen.resize(stage.app().area);
    Ok(())
}

/// The next message; a tick where none comes in time.
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

/// Sends what `source` yields when it is due, and does what is told at once; until the source fails or
/// no one listens.
fn sample(
    mut source: Box<dyn Source>,
    controls: &Receiver<Control>,
    start: Instant,
    send: impl Fn(Event) -> bool,
) {
    let mut percent = None;
    let mut trouble = None;
    // Whether to go on.
    let mut step = || -> Result<bool, SourceError> {
        // Whichever comes first: the next sample is due, or something is told.
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
        let Some(taken) = source.take(Instant::now())? else {
            return Ok(true);
        };
        let read = source.share_read().map(|share| (share * 100.0).floor() as u8);
        if let Some(read) = read.filter(|_| read != percent) {
            percent = Some(read);
            if !send(Event::SourceRead(read)) {
                return Ok(false);
            }
        }
        let (now, snapshot) = (start.elapsed(), Box::new(taken.snapshot));
        Ok(send(Event::Snapshot { now, snapshot, is_passing: taken.is_passing }))
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

/// Does what is requested, until the mailbox is closed or the request is to leave.
fn work(
    mut worker: Box<dyn ReclaimWorker + Send>,
    requests: &MailboxReceiver,
    send: impl Fn(Event) -> bool,
) {
    let mut patience = None;
    loop {
        let request = match requests.receive(patience) {
            Received::Request(request, at) => Some((request, at.elapsed())),
            Received::TimedOut => None,
            Received::Closed => return,
        };
        let is_last = matches!(request, Some((ReclaimRequest::Leave, _)));
        patience = worker.handle(request, &mut |progress| {
            // Where the main thread has ended, a request to leave comes next.
            send(Event::Reclaim(progress));
        });
        if is_last {
            return;
        }
    }
}

/// An error with what caused it.
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

/// Starts a thread that sends messages; a panic of it is one, too.
fn spawn(
    name: &'static str,
    sender: &SyncSender<ThreadMessage>,
    work: impl FnOnce(&SyncSender<ThreadMessage>) + Send + 'static,
) -> Result<Task<()>, WatchError> {
    struct PanicReporter(SyncSender<ThreadMessage>, &'static str);
    impl Drop for PanicReporter {
        fn drop(&mut self) {
            if thread::panicking() {
                let error = WatchError::Panicked { thread: self.1 };
                // Where no one listens, the program is ending already.
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
