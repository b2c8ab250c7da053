//! The state of the screen, and what each event does to it.
//!
//! [`update`] is a pure function of state and event: it draws nothing, reads no clock and starts
//! nothing; time comes with the events and what must be done comes back as an [`Effect`]. The keys
//! are in `keys.rs`, the panels in `view/`, the loop that carries effects out in `mod.rs`.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGCONT, SIGTSTP};

use super::column::Column;
use super::keys::{self, Action};
use super::layout::Layout;
use super::picture::{Picture, RowKey, Sort, Subject};
use super::view::help;
use crate::model::Snapshot;
use crate::rules::Engine;

/// Everything that can happen.
#[derive(Debug)]
pub enum Event {
    /// A key.
    Key(KeyEvent),
    /// The terminal has this many columns and rows now.
    Resize(u16, u16),
    /// The next sample came, `now` after the start of the screen.
    Snapshot {
        /// Time since the screen started.
        now: Duration,
        /// What was observed.
        snapshot: Box<Snapshot>,
    },
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
}

/// What the loop has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
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
}

/// What the keys act on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The table.
    Table,
    /// The help, scrolled down by so many lines.
    Help(u16),
    /// The next letter names a column to sort by.
    ChooseSort,
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The recording's name; `None` for this machine, now.
    pub replay: Option<String>,
    /// gpumem's own version.
    pub version: &'static str,
    /// The time from one sample to the next.
    pub interval: Duration,
    /// Whether colours may be used.
    pub color: bool,
    /// Whether only ASCII may be written.
    pub ascii: bool,
}

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// What does not change.
    pub setup: Setup,
    /// The last sample, judged; `None` before the first.
    pub picture: Option<Picture>,
    /// The order of the table.
    pub sort: Sort,
    /// The table's first visible row.
    pub offset: usize,
    /// What the keys act on.
    pub mode: Mode,
    /// Why no more samples come.
    pub end: Option<End>,
    /// The screen.
    pub area: Rect,
    selected: Option<RowKey>,
    // Where the selected row is, or was when its process went away.
    cursor: usize,
    engine: Engine,
    sampled_at: Duration,
    now: Duration,
}

impl App {
    /// A screen of `columns` by `rows` that waits for its first sample.
    pub fn new(setup: Setup, engine: Engine, columns: u16, rows: u16) -> Self {
        Self {
            setup,
            picture: None,
            sort: Sort {
                column: Column::Memory,
                reversed: false,
            },
            offset: 0,
            mode: Mode::Table,
            end: None,
            area: Rect::new(0, 0, columns, rows),
            selected: None,
            cursor: 0,
            engine,
            sampled_at: Duration::ZERO,
            now: Duration::ZERO,
        }
    }

    /// The position of the selected row; `None` where none is selected.
    pub fn selected(&self) -> Option<usize> {
        self.selected.is_some().then_some(self.cursor)
    }

    /// The selected row.
    pub fn subject(&self) -> Option<Subject<'_>> {
        self.picture.as_ref()?.subject(self.selected()?)
    }

    /// Whole seconds since the last sample (or since the start, before the first); `None` where no
    /// answer is due: in a recording, and after the end.
    pub fn age_seconds(&self) -> Option<u64> {
        let live = self.setup.replay.is_none() && self.end.is_none();
        live.then(|| self.now.saturating_sub(self.sampled_at).as_secs())
    }

    /// Whether the sample is older than three intervals.
    pub fn is_overdue(&self) -> bool {
        self.age_seconds()
            .is_some_and(|age| Duration::from_secs(age) > self.setup.interval * 3)
    }

    /// When the age will read differently, as time since the start of the screen.
    pub fn next_tick(&self) -> Option<Duration> {
        let age = self.age_seconds()?;
        Some(self.sampled_at + Duration::from_secs(age + 1))
    }

    /// The panels' places; `None` where the screen is too small for panels.
    pub fn layout(&self) -> Option<Layout> {
        self.layout_of(self.area)
    }

    /// The panels' places on a screen of this size.
    pub fn layout_of(&self, area: Rect) -> Option<Layout> {
        let gpus = self.picture.as_ref().map(|it| &it.snapshot.gpus);
        let count = gpus.map_or(0, Vec::len);
        let parts: usize = gpus
            .into_iter()
            .flatten()
            .map(|gpu| gpu.mig_devices.len())
            .sum();
        Layout::new(area, count, parts)
    }

    /// Puts a judged snapshot on show; the selection follows its process.
    pub(super) fn show(&mut self, mut picture: Picture) {
        picture.sort(self.sort);
        self.picture = Some(picture);
        self.follow();
    }

    /// Finds the selected process again. Where it is gone, nothing is selected: a key must not act on
    /// whoever moved into its row.
    fn follow(&mut self) {
        let Some(picture) = &self.picture else {
            return;
        };
        match self.selected.and_then(|key| picture.position(&key)) {
            Some(at) => self.cursor = at,
            None => {
                self.selected = None;
                self.cursor = self.cursor.min(picture.rows.len().saturating_sub(1));
            }
        }
        self.scroll();
    }

    /// Keeps the selected row in view, and the table full.
    fn scroll(&mut self) {
        let height = self.page();
        let count = self.picture.as_ref().map_or(0, |it| it.rows.len());
        if self.selected.is_some() {
            self.offset = self
                .offset
                .clamp((self.cursor + 1).saturating_sub(height), self.cursor);
        }
        self.offset = self.offset.min(count.saturating_sub(height));
    }

    /// Rows of the table that are visible at once.
    fn page(&self) -> usize {
        self.layout()
            .map_or(1, |layout| usize::from(layout.table.height))
    }

    fn select(&mut self, at: usize) {
        let Some(picture) = &self.picture else {
            return;
        };
        let at = at.min(picture.rows.len().saturating_sub(1));
        self.cursor = at;
        self.selected = picture.rows.get(at).map(|row| row.key);
        self.scroll();
    }

    /// Selects `steps` rows on. The first step selects the row where the cursor is, or was.
    fn move_by(&mut self, steps: isize) {
        match self.selected() {
            Some(at) => self.select(at.saturating_add_signed(steps)),
            None => self.select(self.cursor),
        }
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        if let Some(picture) = &mut self.picture {
            picture.sort(sort);
        }
        self.follow();
    }
}

/// Takes in an event; says what has to be done about it, if anything.
pub fn update(app: &mut App, event: Event) -> Option<Effect> {
    match event {
        Event::Key(key) => on_key(app, &key),
        Event::Resize(columns, rows) => {
            app.area = Rect::new(0, 0, columns, rows);
            app.scroll();
            Some(Effect::Repaint)
        }
        Event::Snapshot { now, snapshot } => {
            app.now = app.now.max(now);
            app.sampled_at = now;
            app.engine.observe(&snapshot);
            app.show(Picture::new(
                *snapshot,
                app.engine.findings().to_vec(),
                app.engine.undecided(),
                |identity, gpu| app.engine.history().idle_since(identity, gpu),
            ));
            Some(Effect::Draw)
        }
        Event::SourceEnded => {
            app.end = Some(End::Complete);
            Some(Effect::Draw)
        }
        Event::SourceFailed(error) if app.picture.is_none() => Some(Effect::Fail(error)),
        Event::SourceFailed(error) => {
            app.end = Some(End::Failed(error));
            Some(Effect::Draw)
        }
        Event::Tick { now } => {
            let before = app.age_seconds();
            app.now = app.now.max(now);
            (app.age_seconds() != before).then_some(Effect::Draw)
        }
        Event::Signal(SIGTSTP) => Some(Effect::Stop),
        Event::Signal(SIGCONT) => Some(Effect::Resume),
        Event::Signal(signal) => Some(Effect::Die(signal)),
    }
}

fn on_key(app: &mut App, key: &KeyEvent) -> Option<Effect> {
    let action = keys::action(key);
    match (app.mode, action) {
        (_, Some(Action::Repaint)) => return Some(Effect::Repaint),
        (_, Some(Action::Suspend)) => return Some(Effect::Suspend),
        (_, Some(Action::QuitAtOnce)) => return Some(Effect::Quit),
        (Mode::Table, _) => {}
        (Mode::Help(line), _) => {
            let last = help::last_line(app.area);
            app.mode = match action {
                Some(Action::Down) => Mode::Help(last.min(line + 1)),
                Some(Action::Up) => Mode::Help(line.saturating_sub(1)),
                Some(Action::PageDown | Action::Last) => Mode::Help(last),
                Some(Action::PageUp | Action::First) => Mode::Help(0),
                // Any other key leaves the help, and only that.
                _ if key.is_release() => return None,
                _ => Mode::Table,
            };
            return Some(Effect::Draw);
        }
        (Mode::ChooseSort, _) => {
            if key.is_release() {
                return None;
            }
            app.mode = Mode::Table;
            if let KeyCode::Char(letter) = key.code
                && let Some(column) = Column::by_letter(letter.to_ascii_lowercase())
            {
                // A capital turns the order around, as in nvitop.
                let reversed = letter.is_ascii_uppercase();
                app.sort_by(Sort { column, reversed });
            }
            return Some(Effect::Draw);
        }
    }
    let page = app.page() as isize;
    match action? {
        Action::Down => app.move_by(1),
        Action::Up => app.move_by(-1),
        Action::PageDown => app.move_by(page),
        Action::PageUp => app.move_by(-page),
        Action::First => app.select(0),
        Action::Last => app.select(usize::MAX),
        Action::ChooseSort => app.mode = Mode::ChooseSort,
        Action::SortRight => app.sort_by(Sort {
            column: app.sort.column.step(1),
            reversed: false,
        }),
        Action::SortLeft => app.sort_by(Sort {
            column: app.sort.column.step(-1),
            reversed: false,
        }),
        Action::SortBy(column) => app.sort_by(Sort {
            column,
            reversed: false,
        }),
        Action::Reverse => app.sort_by(Sort {
            reversed: !app.sort.reversed,
            ..app.sort
        }),
        Action::Help => app.mode = Mode::Help(0),
        Action::Back if app.selected.is_some() => app.selected = None,
        Action::Back | Action::Quit | Action::QuitAtOnce => return Some(Effect::Quit),
        Action::Repaint => return Some(Effect::Repaint),
        Action::Suspend => return Some(Effect::Suspend),
    }
    Some(Effect::Draw)
}

#[cfg(test)]
mod tests;
