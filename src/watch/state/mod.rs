//! The state of the screen, and its parts.
//!
//! Pure data: it draws nothing, reads no clock and starts nothing. Time comes with the [`Event`]s, and what must be
//! done comes back as an [`Effect`]. `update/` handles events, `layout/` says where things are, and `view/` draws. The
//! state of a feature (a page, a plan, the findings, the list of columns) is here; its keys and drawing are in a file
//! above, which this never names.

pub mod findings;
pub mod judged;
pub mod page;
pub mod playback;
pub mod prompt;
pub mod reaping;
pub mod table;
pub mod timeline;

use std::time::Duration;

use crossterm::event::{KeyEvent, MouseEvent};
use ratatui::layout::Rect;

use self::findings::{FindingsState, lines_wanted};
use self::judged::JudgedState;
use self::page::{Page, PageContent};
use self::playback::Playback;
use self::prompt::{Former, Prompt};
use self::reaping::Reaping;
use self::table::{ColumnList, TableState};
use self::timeline::Timeline;
use super::Control;
use super::keys::Context;
use super::layout::{Form, Layout, LayoutNeeds};
use super::listing::Choice;
use super::memory_shares::GpuShares;
use super::text::{MESSAGE_CHARS, clean, clock};
use super::theme::Theme;
use super::view_model::{RowKey, Screenful, Sort, Subject};
use crate::model::finding::Finding;
use crate::model::row::Me;
use crate::model::snapshot::Gpu;
use crate::model::{Identity, Snapshot, Time};
use crate::reclaim::worker::{ReclaimProgress, ReclaimRequest};
use crate::rules::Engine;
use crate::source::remote::RemoteHost;
use crate::watch::state::findings::NextCommands;

/// Why a key does nothing before the first sample.
pub(super) const NOTHING_SEEN: &str = "there is no sample so far";
/// Why a key about the findings does nothing.
pub(super) const NOTHING_FOUND: &str = "nothing was found";
/// Why a key about the selected finding does nothing.
pub(super) const NO_FINDING: &str = "no finding is selected; j or k selects one";
/// Why x does nothing about a process that is no more.
pub(super) const GONE: &str = "the process is gone; there is nothing to kill";
/// And about one that the table does not show.
pub(super) const HIDDEN: &str = "the table does not show the process; show all, then press x again";

/// Everything that can happen.
#[derive(Debug)]
pub enum Event {
    Key(KeyEvent),
    /// Pasted text: never taken for keys.
    Paste(String),
    Mouse {
        /// Time since the screen started.
        now: Duration,
        event: MouseEvent,
    },
    /// The terminal has a new size: columns and rows.
    Resize(u16, u16),
    /// A sample came.
    Snapshot {
        /// Time since the screen started.
        now: Duration,
        snapshot: Box<Snapshot>,
    },
    /// The recording starts over: everything seen of it is forgotten.
    SourceRewound,
    /// How much of the recording has been read, in percent.
    SourceRead(u8),
    SourceEnded,
    /// No more samples can come, and why.
    SourceFailed(String),
    /// Why no samples come at the moment; `None` when they come again.
    SourceTrouble(Option<String>),
    /// Time has passed, so texts such as the age may change.
    Tick {
        /// Time since the screen started.
        now: Duration,
    },
    Signal(i32),
    Reclaim(ReclaimProgress),
    /// The current state has been drawn.
    Drawn,
}

/// What the loop must do.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Draw,
    /// Draw everything again.
    Repaint,
    /// Stop the terminal's whole job, as Ctrl-Z does outside raw mode.
    Suspend,
    /// Give the terminal back and stop.
    Stop,
    /// Take the terminal again and draw everything.
    Resume,
    Quit,
    /// Give the terminal back and end by this signal.
    Die(i32),
    /// End with this error: there never was a sample.
    Fail(String),
    /// Tell the source, and draw what changed.
    Control(Control),
    /// Ask the worker, and draw what changed.
    Reclaim(ReclaimRequest),
    /// Run this command on the shown host, with this terminal, and take the terminal back after.
    OnHost(String),
    Hosts,
}

/// What the keys act on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    Main,
    /// The help, scrolled by this many lines; [`App::help_over`] is below it.
    Help(u16),
    /// The next letter chooses the sort column.
    ChooseSort,
    /// The list of columns.
    Columns(ColumnList),
    Prompt(Prompt),
    /// [`App::page`].
    Page,
    /// The plan or the batch of [`App::reaping`].
    Plan,
}

/// A GPU's number while it is typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypedDigits {
    pub number: u32,
    /// When the last digit was typed, as time since the screen started.
    pub at: Duration,
}

/// The panel that the keys move in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    Table,
    Findings,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The recording is over.
    Complete,
    /// The source failed; the error.
    Failed(String),
}

/// What does not change while the screen is up.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// The recording's name; `None` if live.
    pub replay: Option<String>,
    /// The other machine, if it is one.
    pub host: Option<RemoteHost>,
    pub version: &'static str,
    /// The user that gpumem runs as.
    pub me: Me,
    pub has_color: bool,
    /// Whether to write only ASCII.
    pub ascii: bool,
}

#[derive(Debug)]
pub struct App {
    pub setup: Setup,
    /// The sample shown, judged; `None` before the first.
    pub screenful: Option<Screenful>,
    pub table: TableState,
    pub findings: FindingsState,
    /// Lines typed before.
    pub former: Former,
    /// The GPU number that is being typed.
    pub digits: Option<TypedDigits>,
    pub focus: Focus,
    pub mode: Mode,
    /// What the help was opened from.
    pub help_over: Context,
    /// The open page.
    pub page: Option<Page>,
    /// The commands for the findings.
    pub next_commands: NextCommands,
    /// The plan and the batch.
    pub reaping: Reaping,
    /// Pause and speed.
    pub playback: Playback,
    /// Why the last key did nothing, or what it did if the screen does not show that; cleared by the next key.
    pub note: Option<String>,
    /// The samples to go back to.
    pub timeline: Timeline,
    /// What the rules have judged, and the time.
    pub judged: JudgedState,
    pub theme: Theme,
    /// The chosen form of the GPU panel; `None` is automatic.
    pub form: Option<Form>,
    /// Why no more samples come.
    pub end: Option<End>,
    /// Why no samples come at the moment.
    pub trouble: Option<String>,
    /// The area of the screen.
    pub area: Rect,
}

impl App {
    /// A screen of `columns` by `rows` that waits for its first sample.
    pub fn new(setup: Setup, engine: Engine, interval: Duration, columns: u16, rows: u16) -> Self {
        Self {
            setup,
            screenful: None,
            table: TableState::default(),
            findings: FindingsState::default(),
            former: Former::default(),
            digits: None,
            focus: Focus::Table,
            mode: Mode::Main,
            help_over: Context::Main,
            page: None,
            next_commands: NextCommands::default(),
            reaping: Reaping::default(),
            playback: Playback::new(interval),
            note: None,
            timeline: Timeline::default(),
            judged: JudgedState::new(engine),
            theme: Theme::default(),
            form: None,
            end: None,
            trouble: None,
            area: Rect::new(0, 0, columns, rows),
        }
    }

    /// The keys that work now, or those that the open help explains.
    pub fn context(&self) -> Context {
        match self.mode {
            Mode::Page => Context::Page,
            Mode::Plan => Context::Plan,
            Mode::Help(_) => self.help_over,
            Mode::Columns(_) => Context::Columns,
            Mode::Main | Mode::ChooseSort | Mode::Prompt(_) => Context::Main,
        }
    }

    /// The selected row.
    pub fn subject(&self) -> Option<Subject<'_>> {
        self.subject_at(self.table.selected()?)
    }

    /// The row on a line of the table, counted from the first line, visible or not.
    pub fn subject_at(&self, line: usize) -> Option<Subject<'_>> {
        let line = self.table.listing.lines.get(line)?;
        self.screenful.as_ref()?.subject(line.row)
    }

    /// Whole seconds since the last sample (before the first, since the start); `None` if no sample is due, in a
    /// recording or after the end.
    pub fn age_seconds(&self) -> Option<u64> {
        let live = self.setup.replay.is_none() && self.end.is_none();
        live.then(|| self.judged.age().as_secs())
    }

    /// The age, if the next sample is late.
    pub fn late_seconds(&self) -> Option<u64> {
        self.age_seconds().filter(|age| *age >= self.playback.late_from_seconds())
    }

    /// Whether the newest sample is older than three intervals.
    pub fn is_overdue(&self) -> bool {
        self.age_seconds().is_some_and(|age| Duration::from_secs(age) > self.playback.patience())
    }

    /// Alarms about the samples themselves, each with its greatest number of lines.
    pub fn alarms(&self) -> Vec<(String, u16)> {
        let mut alarms = Vec::new();
        if let Some(End::Failed(error)) = &self.end {
            let text = format!("no more samples: {}", clean(error, MESSAGE_CHARS));
            alarms.push((text, 2));
        }
        if let Some(trouble) = &self.trouble {
            alarms.push((format!("trying again: {}", clean(trouble, MESSAGE_CHARS)), 2));
        }
        if let (Some(screenful), true) = (&self.screenful, self.is_overdue()) {
            let time = clock(screenful.snapshot.time);
            let who = self.setup.host.as_ref().map_or("the driver", |host| &host.name);
            let text = format!("{who} does not answer; all of this is from {time}");
            alarms.push((text, 1));
        }
        alarms
    }

    /// When a text on the screen changes next, as time since the start.
    pub fn next_tick(&self) -> Option<Duration> {
        let late = self.age_seconds().map(|age| {
            let age = (age + 1).max(self.playback.late_from_seconds());
            self.judged.sampled_at() + Duration::from_secs(age)
        });
        let played = self.plays_timeline().then(|| self.next_played().unwrap_or_default());
        let ticks = [late, played, self.reaping.next_tick(self.judged.now())];
        ticks.into_iter().flatten().min()
    }

    /// Whether this shows a live machine, here or elsewhere, and not a recording.
    pub fn is_live(&self) -> bool {
        self.setup.replay.is_none()
    }

    /// Whether this shows the machine that gpumem runs on.
    pub fn is_here(&self) -> bool {
        self.is_live() && self.setup.host.is_none()
    }

    /// The time of the shown sample.
    pub fn shown_time(&self) -> Option<Time> {
        Some(self.screenful.as_ref()?.snapshot.time)
    }

    /// Whether there is a newer sample than the one shown.
    pub fn is_behind(&self) -> bool {
        match (self.playback.shown, self.timeline.newest()) {
            (Some(shown), Some(newest)) => shown < newest.number,
            _ => false,
        }
    }

    /// Seconds from the shown sample to the newest; `None` if it is the newest.
    pub fn behind_seconds(&self) -> Option<f64> {
        let newest = self.timeline.newest()?;
        let shown = self.shown_time()?;
        self.is_behind().then(|| newest.time.seconds_since(shown).max(0.0))
    }

    /// Whether this shows the end of a recording.
    pub fn is_at_end(&self) -> bool {
        self.end.is_some() && !self.is_behind()
    }

    /// Whether samples come from the timeline, between the point that a person went back to and the point that the
    /// source has reached.
    pub fn plays_timeline(&self) -> bool {
        let playback = &self.playback;
        !self.is_live() && !playback.is_paused && !playback.is_seeking() && self.is_behind()
    }

    /// When the next sample of the timeline is due; `None` if unknown yet.
    fn next_played(&self) -> Option<Duration> {
        let next = self.timeline.after(self.playback.shown?)?;
        let now = self.judged.now();
        let wait = self.playback.clock.as_ref()?.wait(next.time, now)?;
        Some(now + wait)
    }

    /// The age of the shown plan; `None` for a recording, which sends nothing.
    pub fn plan_age_seconds(&self) -> Option<f64> {
        let asked = self.reaping.dialog.as_ref()?.asked?;
        Some(self.judged.clock()?.seconds_since(asked)).filter(|_| self.is_live())
    }

    /// The progress of the batch in a few words; `None` if there is none or it is open.
    pub fn batch_hint(&self) -> Option<String> {
        let batch = self.reaping.batch.as_ref()?;
        (self.mode != Mode::Plan).then(|| batch.hint(self.judged.clock()))
    }

    /// What to ask the worker about commands; nothing while seeking.
    pub fn request_commands(&mut self) -> Option<ReclaimRequest> {
        let screenful = self.screenful.as_ref().filter(|_| !self.playback.is_seeking())?;
        let is_report = |page: &&Page| matches!(page.content, PageContent::Report(_));
        let page = self.page.as_ref().filter(is_report).map(|page| page.about);
        self.next_commands.request(screenful, page)
    }

    /// The selected finding and its position; `None` if it has ended.
    pub fn selected_finding(&self) -> Option<(usize, &Finding)> {
        self.findings.selected_of(&self.screenful.as_ref()?.findings)
    }

    /// The first row of the selected finding's process, shown rows before hidden ones; `None` if it is about a GPU, or
    /// the process is not in the sample.
    pub fn subject_of_finding(&self) -> Option<RowKey> {
        let (_, finding) = self.selected_finding()?;
        self.row_of(finding.process.as_ref()?.identity)
    }

    /// The first row of a process, shown rows before hidden ones.
    pub fn row_of(&self, who: Identity) -> Option<RowKey> {
        let rows = &self.screenful.as_ref()?.rows;
        let shown = self.table.listing.lines.iter();
        let shown = shown.filter_map(|line| rows.get(line.row));
        let mut rows = shown.chain(rows);
        rows.find(|row| row.key.identity == who).map(|row| row.key)
    }

    /// The GPUs that are shown, in order: those that the filter names, if any.
    pub fn shown_gpus(&self) -> Vec<&Gpu> {
        self.shown_shares().into_iter().map(|(gpu, _)| gpu).collect()
    }

    /// The same, with their memory shares.
    pub fn shown_shares(&self) -> Vec<(&Gpu, &GpuShares)> {
        let Some(screenful) = &self.screenful else {
            return Vec::new();
        };
        let filter = self.table.choice.filter.as_ref();
        let filter = filter.filter(|filter| filter.asks_for_gpus());
        let is_shown = |gpu: &Gpu| filter.is_none_or(|filter| filter.allows_gpu(gpu));
        let shown: Vec<_> = screenful.gpus().filter(|(gpu, _)| is_shown(gpu)).collect();
        match shown.is_empty() {
            // The filter names no existing GPU, so all are shown.
            true => screenful.gpus().collect(),
            false => shown,
        }
    }

    /// The panels' areas; `None` if the screen is too small for panels.
    pub fn layout(&self) -> Option<Layout> {
        self.layout_of(self.area)
    }

    /// The panels' areas on a screen of this size.
    pub fn layout_of(&self, area: Rect) -> Option<Layout> {
        let mut needs = LayoutNeeds {
            is_in_findings: self.focus == Focus::Findings,
            is_selected: self.table.is_chosen(),
            is_limited: self.table.choice.is_limited(),
            form: self.form,
            ..LayoutNeeds::default()
        };
        if let Some(screenful) = &self.screenful {
            let gpus = self.shown_gpus();
            needs.gpus = gpus.len();
            for gpu in gpus {
                needs.parts += gpu.mig_devices.len();
                needs.parts_most = needs.parts_most.max(gpu.mig_devices.len());
            }
            let lines = &self.table.listing.lines;
            // A filter that matches nothing does not move the panels.
            let has_rows = !screenful.rows.is_empty();
            needs.table = Some(lines.len().max(usize::from(has_rows)));
            needs.findings = lines_wanted(screenful, self.alarms().len());
        }
        Layout::new(area, &needs)
    }

    /// Shows in the bottom line why a key does nothing.
    pub(super) fn refuse(&mut self, why: &str) -> Option<Effect> {
        self.note = Some(why.to_owned());
        Some(Effect::Draw)
    }

    /// Shows a judged snapshot; the selection follows its process.
    pub(super) fn show(&mut self, screenful: Screenful) {
        self.screenful = Some(screenful);
        self.list();
    }

    /// Rebuilds the table's rows after a new sample or choice.
    pub(super) fn list(&mut self) {
        if let Some(screenful) = &self.screenful {
            let me = &self.setup.me;
            self.table.list(screenful, &self.judged.courses, me);
        }
    }

    /// Keeps the selected row in view, and the table full.
    pub(super) fn scroll(&mut self) {
        let height = self.page_rows();
        self.table.scroll(height);
    }

    /// How many rows of the table are visible.
    pub(super) fn page_rows(&self) -> usize {
        self.layout().map_or(1, |layout| usize::from(layout.table.height))
    }

    /// Selects the row on this line of the table, or the last one.
    pub(super) fn select(&mut self, at: usize) {
        if let Some(screenful) = &self.screenful {
            self.table.select(at, screenful);
        }
    }

    /// Selects the row with this key, if the table has it; returns whether it does.
    pub(super) fn select_row(&mut self, key: Option<RowKey>) -> bool {
        let screenful = self.screenful.as_ref();
        let at = screenful.and_then(|screenful| self.table.listing.position(screenful, &key?));
        match at {
            Some(at) => self.select(at),
            None => {
                self.table.unselect();
            }
        }
        at.is_some()
    }

    /// Selects the row `steps` away. Without a selection, the first step selects the row at the cursor.
    pub(super) fn move_by(&mut self, steps: isize) {
        self.select(self.table.line_after(steps));
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.table.choice.sort = sort;
        self.list();
    }

    /// Changes which rows the table has.
    pub(super) fn choose(&mut self, change: impl FnOnce(&mut Choice)) {
        change(&mut self.table.choice);
        self.table.begin();
        self.list();
    }

    /// Marks or unmarks the selected row and selects the next. If the selected process is gone, the row that moved into
    /// its place is not marked.
    pub(super) fn tag(&mut self) {
        self.table.toggle_tag();
        self.move_by(1);
    }
}
