//! The state of the screen, and what each event does to it.
//!
//! [`update`] is a pure function of state and event: it draws nothing, reads no clock and starts
//! nothing; time comes with the events and what must be done comes back as an [`Effect`]. What a key
//! does is in `act.rs`, and which keys there are in `keys.rs`; the mouse in `mouse.rs`; which rows the
//! table has in `listing.rs`; what is typed in `prompt.rs`; time in `play.rs`; a page of explanation in
//! `page.rs`; ending processes in `reaping.rs`; the panels in `view/`, the loop that carries effects
//! out in `mod.rs`.

mod act;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyEvent, MouseEvent};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGCONT, SIGTSTP};

use super::hand::{Ask, News};
use super::keys::Context;
use super::layout::{Form, Layout, Needs};
use super::listing::{Choice, Listing};
use super::mouse::{self, Mouse};
use super::page::{self, Page};
use super::picture::{Picture, RowKey, Sort, Subject};
use super::play::{self, Control, Play};
use super::prompt::{Former, Prompt};
use super::reaping::{self, Reaping};
use super::tape::Tape;
use super::view::look::{Depth, Theme};
use crate::history::memory_series::Courses;
pub use crate::model::row::Me;
use crate::model::{Snapshot, Time};
use crate::rules::Engine;

/// Why a key does nothing before the first sample.
pub(super) const NOTHING_SEEN: &str = "there is no sample so far";

/// Everything that can happen.
#[derive(Debug)]
pub enum Event {
    /// A key.
    Key(KeyEvent),
    /// The mouse.
    Mouse {
        /// Time since the screen started.
        now: Duration,
        /// What it did, and where.
        event: MouseEvent,
    },
    /// The terminal has this many columns and rows now.
    Resize(u16, u16),
    /// The next sample came, `now` after the start of the screen.
    Snapshot {
        /// Time since the screen started.
        now: Duration,
        /// What was observed.
        snapshot: Box<Snapshot>,
        /// Whether more follow at once, so that this one need not be shown.
        is_passing: bool,
    },
    /// The recording begins again: what was seen of it is forgotten.
    SourceRewound,
    /// So many percent of the recording have been read.
    SourceRead(u8),
    /// The recording is over.
    SourceEnded,
    /// Nothing more can come, and why.
    SourceFailed(String),
    /// Time passed: the sample's age may read differently.
    Tick {
        /// Time since the screen started.
        now: Duration,
    },
    /// A signal was sent to gpumem.
    Signal(i32),
    /// Something came of what was asked of the hand.
    Hand(News),
    /// What is so now has been drawn.
    Drawn,
}

/// What the loop has to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Draw what changed.
    Draw,
    /// Draw everything again.
    Repaint,
    /// Have the terminal's whole job stopped, as it does itself where Ctrl-Z is not taken.
    Suspend,
    /// Give the terminal back and stop.
    Stop,
    /// Take the terminal again and draw everything.
    Resume,
    /// End.
    Quit,
    /// Give the terminal back and end as by this signal.
    Die(i32),
    /// End: nothing was ever seen, and why.
    Fail(String),
    /// Have the source do this, and draw what changed.
    Control(Control),
    /// Have the hand do this, and draw what changed.
    Hand(Ask),
}

/// What the keys act on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The table and the findings.
    Main,
    /// The help, scrolled down by so many lines; [`App::help_over`] is below it.
    Help(u16),
    /// The next letter names a column to sort by.
    ChooseSort,
    /// What is being typed.
    Prompt(Prompt),
    /// The page of explanation, [`App::page`].
    Page,
    /// The plan, or what is being done by it, [`App::reaping`].
    Plan,
}

/// Which of the panels the keys move in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// The process table.
    Table,
    /// The findings.
    Findings,
}

/// Why no more samples come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The recording is over.
    Complete,
    /// The source failed, and how.
    Failed(String),
}

/// What does not change while the screen is up.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// The recording's name; `None` for this machine, now.
    pub replay: Option<String>,
    /// gpumem's own version.
    pub version: &'static str,
    /// The user that gpumem runs as, by number and name.
    pub me: Me,
    /// How many colours may be used.
    pub depth: Depth,
    /// Whether only ASCII may be written.
    pub ascii: bool,
}

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// What does not change.
    pub setup: Setup,
    /// The sample that is shown, judged; `None` before the first.
    pub picture: Option<Picture>,
    /// Which rows the table is to have, and in which order.
    pub choice: Choice,
    /// The rows that it has.
    pub listing: Listing,
    /// What was typed before.
    pub former: Former,
    /// The table's first visible row.
    pub offset: usize,
    /// The columns of the commands that are scrolled away to the left.
    pub scrolled: u16,
    /// The marked rows.
    pub tagged: HashSet<RowKey>,
    /// Which panel the keys move in.
    pub focus: Focus,
    /// The selected finding's id.
    pub finding: Option<Arc<str>>,
    /// The first finding that is visible.
    pub findings_offset: usize,
    /// What the keys act on.
    pub mode: Mode,
    /// What the help was opened from.
    pub help_over: Context,
    /// What is remembered of the mouse.
    pub mouse: Mouse,
    /// What is explained.
    pub page: Option<Page>,
    /// What is to be ended, or being ended.
    pub reaping: Reaping,
    /// Whether the screen stands still, and how fast time goes.
    pub play: Play,
    /// Why the last key did nothing, or what it did where the screen does not show that; until the next.
    pub note: Option<String>,
    /// The samples that one can go back to.
    pub tape: Tape,
    /// How memory moved, as far as the engine has judged.
    pub courses: Courses,
    /// What the rules have judged.
    pub engine: Engine,
    /// How things look.
    pub theme: Theme,
    /// How the GPUs are shown; `None` leaves it to the room that there is.
    pub form: Option<Form>,
    /// Why no more samples come.
    pub end: Option<End>,
    /// The screen.
    pub area: Rect,
    selected: Option<RowKey>,
    // Where the selected row is, or was when its process went away.
    cursor: usize,
    sampled_at: Duration,
    now: Duration,
}

impl App {
    /// A screen of `columns` by `rows` that waits for its first sample.
    pub fn new(setup: Setup, engine: Engine, interval: Duration, columns: u16, rows: u16) -> Self {
        Self {
            setup,
            picture: None,
            choice: Choice::default(),
            listing: Listing::default(),
            former: Former::default(),
            offset: 0,
            scrolled: 0,
            tagged: HashSet::new(),
            focus: Focus::Table,
            finding: None,
            findings_offset: 0,
            mode: Mode::Main,
            help_over: Context::Main,
            mouse: Mouse::default(),
            page: None,
            reaping: Reaping::default(),
            play: Play::new(interval),
            note: None,
            tape: Tape::default(),
            courses: Courses::default(),
            engine,
            theme: Theme::default(),
            form: None,
            end: None,
            area: Rect::new(0, 0, columns, rows),
            selected: None,
            cursor: 0,
            sampled_at: Duration::ZERO,
            now: Duration::ZERO,
        }
    }

    /// Which keys hold now, or are explained by the help.
    pub fn context(&self) -> Context {
        match self.mode {
            Mode::Page => Context::Page,
            Mode::Plan => Context::Plan,
            Mode::Help(_) => self.help_over,
            Mode::Main | Mode::ChooseSort | Mode::Prompt(_) => Context::Main,
        }
    }

    /// The position of the selected row; `None` where none is selected.
    pub fn selected(&self) -> Option<usize> {
        self.selected.is_some().then_some(self.cursor)
    }

    /// The selected row.
    pub fn subject(&self) -> Option<Subject<'_>> {
        self.subject_at(self.selected()?)
    }

    /// The row on a line of the table, counted from its first, visible or not.
    pub fn subject_at(&self, line: usize) -> Option<Subject<'_>> {
        let line = self.listing.lines.get(line)?;
        self.picture.as_ref()?.subject(line.row)
    }

    /// Whole seconds since the last sample (or since the start, before the first); `None` where no
    /// answer is due: in a recording, and after the end.
    pub fn age_seconds(&self) -> Option<u64> {
        let live = self.setup.replay.is_none() && self.end.is_none();
        live.then(|| self.now.saturating_sub(self.sampled_at).as_secs())
    }

    /// The age, where another sample should have come by now.
    pub fn told_age_seconds(&self) -> Option<u64> {
        self.age_seconds()
            .filter(|age| *age >= self.play.told_age_seconds())
    }

    /// Whether the sample is older than three intervals, shown or not.
    pub fn is_overdue(&self) -> bool {
        self.age_seconds()
            .is_some_and(|age| Duration::from_secs(age) > self.play.patience())
    }

    /// When something will read differently, as time since the start of the screen.
    pub fn next_tick(&self) -> Option<Duration> {
        let told = self.age_seconds().map(|age| {
            let age = (age + 1).max(self.play.told_age_seconds());
            self.sampled_at + Duration::from_secs(age)
        });
        let ticks = [told, play::next_tick(self), reaping::next_tick(self)];
        ticks.into_iter().flatten().min()
    }

    /// Time since the screen started, by the last event that told it.
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// Now, by the clock of the samples; `None` before the first.
    pub(super) fn clock(&self) -> Option<Time> {
        let since = self.now.saturating_sub(self.sampled_at);
        let last = self.engine.history().last_time()?;
        Some(last.plus_seconds(since.as_secs_f64()))
    }

    /// The panels' places; `None` where the screen is too small for panels.
    pub fn layout(&self) -> Option<Layout> {
        self.layout_of(self.area)
    }

    /// The panels' places on a screen of this size.
    pub fn layout_of(&self, area: Rect) -> Option<Layout> {
        let mut needs = Needs {
            is_in_findings: self.focus == Focus::Findings,
            form: self.form,
            ..Needs::default()
        };
        if let Some(picture) = &self.picture {
            needs.gpus = picture.snapshot.gpus.len();
            for gpu in &picture.snapshot.gpus {
                needs.parts += gpu.mig_devices.len();
                needs.parts_most = needs.parts_most.max(gpu.mig_devices.len());
            }
            needs.table = Some(self.listing.lines.len());
            let errors = usize::from(!picture.snapshot.errors.is_empty());
            needs.findings = picture.findings.len() + picture.undecided.len() + errors;
        }
        Layout::new(area, &needs)
    }

    /// Says in the bottom line why a key does nothing.
    pub(super) fn refuse(&mut self, why: &str) -> Option<Effect> {
        self.note = Some(why.to_owned());
        Some(Effect::Draw)
    }

    /// Puts a judged snapshot on show; the selection follows its process.
    pub(super) fn show(&mut self, picture: Picture) {
        self.picture = Some(picture);
        self.list();
    }

    /// Makes the table's rows anew, after the sample or the choice has changed.
    pub(super) fn list(&mut self) {
        if let Some(picture) = &self.picture {
            self.listing = Listing::new(picture, &self.courses, &self.choice, &self.setup.me);
        }
        self.follow();
    }

    /// Finds the selected process again. Where it is gone, nothing is selected: a key must not act on
    /// whoever moved into its row.
    fn follow(&mut self) {
        let Some(picture) = &self.picture else {
            return;
        };
        match self
            .selected
            .and_then(|key| self.listing.position(picture, &key))
        {
            Some(at) => self.cursor = at,
            None => {
                self.selected = None;
                self.cursor = self.cursor.min(self.listing.lines.len().saturating_sub(1));
            }
        }
        self.scroll();
    }

    /// Keeps the selected row in view, and the table full.
    fn scroll(&mut self) {
        let height = self.page_rows();
        let count = self.listing.lines.len();
        if self.selected.is_some() {
            self.offset = self
                .offset
                .clamp((self.cursor + 1).saturating_sub(height), self.cursor);
        }
        self.offset = self.offset.min(count.saturating_sub(height));
    }

    /// Rows of the table that are visible at once.
    fn page_rows(&self) -> usize {
        self.layout()
            .map_or(1, |layout| usize::from(layout.table.height))
    }

    /// Selects the row on this line of the table, or the last one.
    pub(super) fn select(&mut self, at: usize) {
        let Some(picture) = &self.picture else {
            return;
        };
        let at = at.min(self.listing.lines.len().saturating_sub(1));
        self.cursor = at;
        let line = self.listing.lines.get(at);
        self.selected = line.and_then(|line| Some(picture.rows.get(line.row)?.key));
        self.scroll();
    }

    /// Selects the row of this key; nothing where the table has no such row. Says whether it has.
    pub(super) fn select_row(&mut self, key: Option<RowKey>) -> bool {
        let picture = self.picture.as_ref();
        let at = picture.and_then(|picture| self.listing.position(picture, &key?));
        match at {
            Some(at) => self.select(at),
            None => self.selected = None,
        }
        at.is_some()
    }

    /// Selects `steps` rows on. The first step selects the row where the cursor is, or was.
    fn move_by(&mut self, steps: isize) {
        match self.selected() {
            Some(at) => self.select(at.saturating_add_signed(steps)),
            None => self.select(self.cursor),
        }
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.choice.sort = sort;
        self.list();
    }

    /// Changes which rows the table has.
    pub(super) fn choose(&mut self, change: impl FnOnce(&mut Choice)) {
        change(&mut self.choice);
        self.list();
    }

    /// Marks the selected row, or takes its mark away, and selects the next.
    fn tag(&mut self) {
        if let Some(key) = self.selected {
            if !self.tagged.remove(&key) {
                self.tagged.insert(key);
            }
            self.select(self.cursor + 1);
        } else {
            self.select(self.cursor);
        }
    }

    /// Forgets what was judged, and what is remembered of it.
    pub(super) fn forget(&mut self) {
        self.engine.forget();
        self.courses.forget();
    }

    /// Judges a snapshot, and remembers it.
    fn observe(&mut self, snapshot: &Snapshot) {
        self.engine.observe(snapshot);
        self.courses.follow(self.engine.history(), snapshot);
    }
}

/// Takes in an event; says what has to be done about it, if anything.
pub fn update(app: &mut App, event: Event) -> Option<Effect> {
    match event {
        Event::Key(key) => act::on_key(app, &key),
        Event::Mouse { now, event } => mouse::on_mouse(app, event, now),
        Event::Hand(news) => reaping::hear(app, news),
        Event::Resize(columns, rows) => {
            app.area = Rect::new(0, 0, columns, rows);
            app.scroll();
            page::lay_out(app);
            reaping::turned(app);
            Some(Effect::Repaint)
        }
        Event::Snapshot { now, snapshot, .. } => {
            app.now = app.now.max(now);
            app.sampled_at = now;
            app.observe(&snapshot);
            let renewed = match app.play.is_seeking() {
                true => None,
                false => page::renew(app, &snapshot),
            };
            let asked = reaping::see(app, &snapshot);
            let shown = play::take(app, *snapshot);
            both(both(asked, shown), renewed)
        }
        Event::SourceRewound => play::rewound(app),
        Event::SourceRead(percent) => {
            app.play.percent = Some(percent);
            None
        }
        Event::SourceEnded => {
            app.end = Some(End::Complete);
            play::ended(app);
            Some(Effect::Draw)
        }
        Event::SourceFailed(error) if app.picture.is_none() => Some(Effect::Fail(error)),
        Event::SourceFailed(error) => {
            app.end = Some(End::Failed(error));
            play::failed(app);
            reaping::failed(app);
            Some(Effect::Draw)
        }
        Event::Tick { now } => {
            let before = app.told_age_seconds();
            app.now = app.now.max(now);
            let aged = (app.told_age_seconds() != before).then_some(Effect::Draw);
            let (reaped, played) = (reaping::tick(app), play::tick(app));
            both(both(reaped, played), aged)
        }
        Event::Drawn => {
            reaping::drawn(app);
            None
        }
        Event::Signal(SIGTSTP) => {
            reaping::suspended(app);
            Some(Effect::Stop)
        }
        Event::Signal(SIGCONT) => Some(Effect::Resume),
        Event::Signal(signal) => Some(Effect::Die(signal)),
    }
}

/// One effect of two things that one event did: of two that only draw, one does. More is never asked
/// for at once: what time in a recording asks of the source, and what an ending asks of the hand, which
/// there is only on this machine.
fn both(one: Option<Effect>, other: Option<Effect>) -> Option<Effect> {
    match (one, other) {
        (None | Some(Effect::Draw), Some(more)) => Some(more),
        (one, None | Some(Effect::Draw)) => one,
        (Some(one), Some(other)) => {
            debug_assert!(false, "two effects at once: {one:?} and {other:?}");
            Some(one)
        }
    }
}

#[cfg(test)]
mod tests;
