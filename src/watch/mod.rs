//! The terminal screen.
//!
//! Four threads only send events on one bounded channel: one samples, one reads keys, one waits for
//! signals, and one makes plans and carries them out. The main thread owns state and terminal, and draws
//! when something has changed; so a driver that hangs freezes its own numbers and nothing else.
//!
//! - [`state`]: the state, in parts; [`mod@update`]: what each event does to it, which is pure;
//! - [`layout`]: where everything stands, read by the mouse and by the view alike;
//! - [`view`]: state and layout to cells, a file per panel, in the styles of [`theme`];
//! - [`keys`]: the table of keys; [`mod@column`]: the table of columns; [`command`] and [`text`]: what stands in
//!   them;
//! - [`picture`]: one snapshot with its verdicts, as rows; [`listing`]: which of them are shown, in which
//!   order, by the selector that is typed; [`trend`]: how a row's memory moved;
//! - [`reaping`]: ending processes, by the [`hand`];
//! - [`remember`]: what is kept from one run to the next;
//! - [`double_buffer`]: a frame, and what of it has changed;
//! - [`terminal`]: the terminal, taken and given back; `output`: what waits to be written to it; `signals`: those sent to gpumem; [`once`]: a
//!   picture instead.

pub mod column;
pub mod command;
pub mod double_buffer;
pub mod hand;
pub mod keys;
pub mod layout;
pub mod listing;
pub mod once;
mod output;
pub mod picture;
pub mod reaping;
pub mod remember;
#[cfg(test)]
pub(crate) mod sample;
mod signals;
pub mod state;
pub mod terminal;
pub mod text;
pub mod theme;
pub mod trend;
pub mod update;
pub mod view;

use std::io;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;

use crate::history::memory_series::Courses;
use crate::model::Selector;
use crate::model::row::Me;
use crate::rules::Engine;
pub use crate::source::Control;
use crate::source::{NextSnapshot, Origin, Source};
use hand::post::{Inbox, Letter, Outbox, post};
use hand::{Ask, Hand};
use remember::Remembered;
use signals::{SignalWatch, stop, stop_in_background, suspend};
use state::{App, Effect, Event, Setup};
use terminal::Screen;
use theme::{Depth, Theme};
use update::update;

/// How the screen is shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The user that gpumem runs as.
    pub me: Me,
    /// The filter that the screen starts with.
    pub filter: Option<Selector>,
    /// The time from one sample to the next; a sample older than three of them is an alarm.
    pub interval: Duration,
    /// How things look.
    pub theme: Theme,
    /// How many times as fast as it was made a recording plays.
    pub speed: f64,
    /// How many colours may be used.
    pub depth: Depth,
    /// Whether only ASCII may be written, as in a locale that is not UTF-8.
    pub ascii: bool,
    /// Whether clicks and the wheel are asked for; the terminal selects no text with them then,
    /// unless Shift is held.
    pub mouse: bool,
}

impl Options {
    /// A screen of this size that waits for its first sample, of the recording of this name or of this
    /// machine.
    fn start(self, replay: Option<String>, past: Past, columns: u16, rows: u16) -> App {
        let setup = Setup {
            replay,
            version: env!("CARGO_PKG_VERSION"),
            me: self.me,
            depth: self.depth,
            ascii: self.ascii,
        };
        let mut app = App::new(setup, past.engine, self.interval, columns, rows);
        app.courses = past.courses;
        app.choice.filter = self.filter;
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
        Self {
            engine,
            courses: Courses::default(),
        }
    }
}

/// How the screen ended. The terminal is given back by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A person left it.
    Quit,
    /// A signal ended it, or its terminal is gone (`SIGHUP`); the program should end as by that
    /// signal: `signal_hook::low_level::emulate_default_handler`.
    Signal(i32),
}

/// Why there is no screen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
enum Message {
    Event(Event),
    Failed(Error),
}

/// Messages that may wait; a source that is faster than the screen is held up.
const QUEUE: usize = 4;
/// How long the hand has to say what it did, once the screen is gone.
const LEAVE: Duration = Duration::from_secs(5);
/// A terminal that has not taken a frame is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Messages are taken in for so long before the screen is drawn again.
const BATCH: Duration = Duration::from_millis(8);

/// Shows what `source` yields, judged after the `past`, until a person or a signal ends it. What a person
/// asks to be ended `hand` ends; it is told to [leave](Ask::Leave) once the terminal is given back. The
/// screen is arranged as `remembered` says, which then says what was changed of that, and no more.
///
/// A thread that waits in `source` or for a key stays behind when this returns; the program is
/// expected to end soon after.
///
/// # Errors
///
/// Where there is no terminal, or where the source fails before its first snapshot. A source that
/// fails later leaves its last snapshot on the screen, and says so there.
pub fn run(
    source: Box<dyn Source>,
    past: Past,
    hand: Box<dyn Hand + Send>,
    options: Options,
    remembered: &mut Remembered,
) -> Result<Outcome, Error> {
    if !terminal::is_terminal() {
        return Err(Error::NotATerminal);
    }
    let (replay, can_rewind) = match source.origin() {
        Origin::Live => (None, false),
        Origin::Replay { name, can_rewind } => (Some(name), can_rewind),
    };
    let (columns, rows) = terminal::size();
    let mouse = options.mouse;
    let mut app = options.start(replay, past, columns, rows);
    app.playback.can_rewind = can_rewind;
    app.arrange(remembered);
    let arranged = app.remembered();
    let start = Instant::now();
    let (sender, messages) = sync_channel(QUEUE);
    // The thread that samples may hang in the driver; nobody who tells it something waits for it.
    let (controls, told) = channel();
    let (asks, to_do) = post();
    let (leaving, left) = sync_channel(0);

    let outcome = terminal::with_screen(mouse, |screen| {
        // Before the threads: a signal that comes now must find the terminal's keeper.
        let signals = SignalWatch::start(&sender)?;
        spawn("sampling", &sender, move |sender| {
            sample(source, &told, start, sender);
        })?;
        spawn("keyboard", &sender, move |sender| read_keys(start, sender))?;
        spawn("hand", &sender, move |sender| {
            let _leaving: SyncSender<()> = leaving;
            work(hand, &to_do, sender);
        })?;
        let telling = Telling {
            controls: &controls,
            asks: &asks,
        };
        drive(&mut app, screen, &messages, &telling, &signals, start)
    });
    *remembered = app.remembered().since(&arranged);
    // Nobody listens any more, so that nothing holds the hand up.
    drop(messages);
    asks.send(Ask::Leave, Instant::now());
    // It hangs up when it is done.
    let _ = left.recv_timeout(LEAVE);
    match outcome {
        Ok(Err(Error::Terminal(error))) | Err(error) if terminal::is_gone(&error) => {
            Ok(Outcome::Signal(SIGHUP))
        }
        Ok(outcome) => outcome,
        Err(error) => Err(Error::Terminal(error)),
    }
}

/// Whom the main thread tells something.
struct Telling<'a> {
    controls: &'a Sender<Control>,
    asks: &'a Outbox,
}

/// The loop: takes in what has come, carries effects out, draws if anything changed and the terminal has
/// taken what was drawn before.
fn drive(
    app: &mut App,
    screen: &mut Screen,
    messages: &Receiver<Message>,
    telling: &Telling<'_>,
    signals: &SignalWatch,
    start: Instant,
) -> Result<Outcome, Error> {
    let mut changed = true;
    loop {
        if screen.is_behind() {
            screen.catch_up().map_err(Error::Terminal)?;
        }
        if changed && !screen.is_behind() {
            screen
                .draw(|buffer| view::draw(app, buffer))
                .map_err(Error::Terminal)?;
            changed = false;
            update(app, Event::Drawn);
        }
        let mut tick = app.next_tick();
        if screen.is_behind() {
            let soon = start.elapsed() + TRY_AGAIN;
            tick = Some(tick.map_or(soon, |tick| tick.min(soon)));
        }
        let first = wait(messages, tick, start);
        let until = Instant::now() + BATCH;
        let in_time = || Instant::now() < until;
        let more = std::iter::from_fn(|| in_time().then(|| messages.try_recv().ok())?);
        for message in std::iter::once(first).chain(more) {
            let event = match message {
                Message::Event(event) => event,
                Message::Failed(error) => return Err(error),
            };
            let Some(effect) = update(app, event) else {
                continue;
            };
            changed = true;
            match effect {
                Effect::Draw => {}
                Effect::Repaint => screen.resize(app.area).map_err(Error::Terminal)?,
                Effect::Suspend => suspend()?,
                Effect::Stop => stop()?,
                Effect::Resume if terminal::is_foreground() => {
                    resume(app, screen).map_err(Error::Terminal)?;
                }
                // It would be stopped for its first touch of the terminal, and could then not even end.
                Effect::Resume if signals.is_to_end() => {}
                Effect::Resume => stop_in_background()?,
                Effect::Quit => return Ok(Outcome::Quit),
                Effect::Die(signal) => return Ok(Outcome::Signal(signal)),
                Effect::Fail(error) => return Err(Error::Source(error)),
                // A source that has failed listens to nobody.
                Effect::Control(control) => drop(telling.controls.send(control)),
                Effect::Hand(ask) => telling.asks.send(ask, Instant::now()),
            }
        }
    }
}

/// Takes the terminal again.
fn resume(app: &mut App, screen: &mut Screen) -> io::Result<()> {
    screen.retake()?;
    // The window may have changed meanwhile.
    let (columns, rows) = terminal::size();
    update(app, Event::Resize(columns, rows));
    screen.resize(app.area)
}

/// The next message; a tick where none comes in time.
fn wait(messages: &Receiver<Message>, tick: Option<Duration>, start: Instant) -> Message {
    const LONG: Duration = Duration::from_secs(3600);
    let patience = tick.map_or(LONG, |tick| tick.saturating_sub(start.elapsed()));
    messages.recv_timeout(patience).unwrap_or_else(|_| {
        Message::Event(Event::Tick {
            now: start.elapsed(),
        })
    })
}

/// Sends what `source` yields when it is due, and does what is told at once; until the source fails or
/// nobody listens.
fn sample(
    mut source: Box<dyn Source>,
    told: &Receiver<Control>,
    start: Instant,
    sender: &SyncSender<Message>,
) {
    let send = |event| sender.send(Message::Event(event)).is_ok();
    let mut percent = None;
    loop {
        let next = match source.due(Instant::now()) {
            Ok(due) => {
                if due == NextSnapshot::Ended && !send(Event::SourceEnded) {
                    return;
                }
                next_step(due, told)
            }
            Err(error) => Next::Fail(error),
        };
        let failed = match next {
            Next::Leave => return,
            Next::Fail(error) => Some(error),
            Next::Obey(control) => match source.steer(control, Instant::now()) {
                Ok(()) if control == Control::Rewind => {
                    percent = None;
                    if !send(Event::SourceRewound) {
                        return;
                    }
                    None
                }
                steered => steered.err(),
            },
            Next::Take => match source.take(Instant::now()) {
                Err(error) => Some(error),
                Ok(None) => None,
                Ok(Some(taken)) => {
                    let share = source.share_read();
                    let read = share.map(|share| (share * 100.0).floor() as u8);
                    if let Some(read) = read.filter(|_| read != percent) {
                        percent = Some(read);
                        if !send(Event::SourceRead(read)) {
                            return;
                        }
                    }
                    let event = Event::Snapshot {
                        now: start.elapsed(),
                        snapshot: Box::new(taken.snapshot),
                        is_passing: taken.is_passing,
                    };
                    if !send(event) {
                        return;
                    }
                    None
                }
            },
        };
        if let Some(error) = failed {
            send(Event::SourceFailed(in_full(&error)));
            return;
        }
    }
}

/// Does what is asked, until nobody asks any more or it is told to leave.
fn work(mut hand: Box<dyn Hand + Send>, asks: &Inbox, sender: &SyncSender<Message>) {
    let mut patience = None;
    loop {
        let asked = match asks.next(patience) {
            Letter::Ask(ask, at) => Some((ask, at.elapsed())),
            Letter::Nothing => None,
            Letter::Closed => return,
        };
        let is_last = matches!(asked, Some((Ask::Leave, _)));
        patience = hand.go_on(asked, &mut |news| {
            // Where nobody listens, it will be told to leave.
            let _ = sender.send(Message::Event(Event::Hand(news)));
        });
        if is_last {
            return;
        }
    }
}

/// What the thread that samples does next.
enum Next {
    Take,
    Obey(Control),
    Fail(crate::source::SourceError),
    Leave,
}

/// Waits until the next sample is due or something is told, whichever comes first.
fn next_step(due: NextSnapshot, told: &Receiver<Control>) -> Next {
    match due {
        NextSnapshot::In(Duration::ZERO) => match told.try_recv() {
            Ok(control) => Next::Obey(control),
            Err(TryRecvError::Empty) => Next::Take,
            Err(TryRecvError::Disconnected) => Next::Leave,
        },
        NextSnapshot::In(wait) => match told.recv_timeout(wait) {
            Ok(control) => Next::Obey(control),
            Err(RecvTimeoutError::Timeout) => Next::Take,
            Err(RecvTimeoutError::Disconnected) => Next::Leave,
        },
        NextSnapshot::OnRequest | NextSnapshot::Ended => {
            told.recv().map_or(Next::Leave, Next::Obey)
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

/// Sends keys, clicks and sizes, until nobody listens.
fn read_keys(start: Instant, sender: &SyncSender<Message>) {
    loop {
        let message = match crossterm::event::read() {
            Ok(crossterm::event::Event::Key(key)) => Message::Event(Event::Key(key)),
            Ok(crossterm::event::Event::Mouse(event)) => {
                let now = start.elapsed();
                Message::Event(Event::Mouse { now, event })
            }
            Ok(crossterm::event::Event::Resize(..)) => {
                let (columns, rows) = terminal::size();
                Message::Event(Event::Resize(columns, rows))
            }
            Ok(_) => continue,
            Err(error) => Message::Failed(Error::Keyboard(error)),
        };
        let failed = matches!(message, Message::Failed(_));
        if sender.send(message).is_err() || failed {
            return;
        }
    }
}

/// Starts a thread that sends messages; a panic of it is one, too.
fn spawn(
    name: &'static str,
    sender: &SyncSender<Message>,
    work: impl FnOnce(&SyncSender<Message>) + Send + 'static,
) -> Result<(), Error> {
    struct Tell(SyncSender<Message>, &'static str);
    impl Drop for Tell {
        fn drop(&mut self) {
            if thread::panicking() {
                let error = Error::Panicked { thread: self.1 };
                // Where nobody listens, the program is ending already.
                let _ = self.0.send(Message::Failed(error));
            }
        }
    }
    let tell = Tell(sender.clone(), name);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || work(&tell.0))
        .map(drop)
        .map_err(|error| Error::Setup {
            what: "a thread",
            error,
        })
}

#[cfg(test)]
mod tests;
