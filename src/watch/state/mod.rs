//! State of the interactive screen.
//!
//! Pure data: nothing here draws, reads the clock or starts work. Time arrives in [`Event`]s, and requests to the
//! main loop are returned as [`Effect`]s. `update/` handles events, `layout/` positions the panels, and `view/`
//! draws. Each feature's key handling and drawing are in a module one level up; nothing here imports those modules.

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
use self::prompt::{Prompt, PromptHistory};
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

/// Note for a key that needs a sample, if none has arrived yet.
pub(super) const NOTHING_SEEN: &str = "there is no sample yet";
pub(super) const NOTHING_FOUND: &str = "nothing was found";
pub(super) const NO_FINDING: &str = "no finding is selected; j or k selects one";
pub(super) const GONE: &str = "the process is gone; there is nothing to kill";
pub(super) const HIDDEN: &str = "the table does not show the process; show all, then press x again";

/// An input to the state.
#[derive(Debug)]
pub enum Event {
    Key(KeyEvent),
    /// Pasted text, which must never be interpreted as key presses.
    Paste(String),
    Mouse {
        /// Time since the screen started.
        now: Duration,
        event: MouseEvent,
    },
    Resize(u16, u16),
    Snapshot {
        now: Duration,
        snapshot: Box<Snapshot>,
    },
    /// The recording restarts from the beginning; samples read so far are forgotten.
    SourceRewound,
    SourceRead(u8),
    SourceEnded,
    /// The source failed permanently with this error.
    SourceFailed(String),
    /// Why the source is temporarily not delivering samples; `None` once it recovers.
    SourceTrouble(Option<String>),
    /// Time has passed; texts that show an age may need redrawing.
    Tick {
        now: Duration,
    },
    Signal(i32),
    Reclaim(ReclaimProgress),
    Drawn,
}

/// A request to the main loop.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Draw,
    /// Draw every cell again.
    Repaint,
    /// Stop all processes of the terminal's job, as Ctrl-Z does outside raw mode.
    Suspend,
    /// Restore the terminal and stop this process.
    Stop,
    Resume,
    Quit,
    /// Restore the terminal and exit by this signal.
    Die(i32),
    /// Exit with this error; no sample ever arrived.
    Fail(String),
    /// Send this to the source, and redraw.
    Control(Control),
    /// Send this to the reclaim worker, and redraw.
    Reclaim(ReclaimRequest),
    /// Run this command on the shown host with this terminal, then take the terminal back.
    OnHost(String),
    Hosts,
}

/// The part of the screen that receives keyboard input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    Main,
    /// The help, scrolled by this many lines and opened over [`App::help_context`].
    Help(u16),
    /// Waiting for the letter of a sort column.
    ChooseSort,
    Columns(ColumnList),
    Prompt(Prompt),
    /// Shows [`App::page`].
    Page,
    /// Shows the plan or the batch of [`App::reaping`].
    Plan,
}

/// A GPU index that is being typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypedDigits {
    pub number: u32,
    /// When the last digit was typed, as time since the screen started.
    pub at: Duration,
}

/// The panel that navigation keys act on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    Table,
    Findings,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Complete,
    /// The source failed with this error.
    Failed(String),
}

/// Settings that do not change while the screen runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Name of the recording; `None` if live.
    pub replay: Option<String>,
    /// The remote host; `None` for the local machine.
    pub host: Option<RemoteHost>,
    pub version: &'static str,
    pub me: Me,
    pub has_color: bool,
    pub ascii: bool,
}

#[derive(Debug)]
pub struct App {
    pub setup: Setup,
    /// The displayed sample with its verdicts; `None` before the first sample.
    pub screenful: Option<Screenful>,
    pub table: TableState,
    pub findings: FindingsState,
    /// Prompt history.
    pub prompt_history: PromptHistory,
    pub digits: Option<TypedDigits>,
    pub focus: Focus,
    pub mode: Mode,
    /// Context that the help was opened from.
    pub help_context: Context,
    pub page: Option<Page>,
    pub next_commands: NextCommands,
    pub reaping: Reaping,
    pub playback: Playback,
    /// Why the last key had no effect, or an effect that the screen does not show. The next key clears it.
    pub note: Option<String>,
    /// Kept samples, for stepping back.
    pub timeline: Timeline,
    /// Rule engine, memory history and the current time.
    pub judged: JudgedState,
    pub theme: Theme,
    /// Chosen form of the GPU panel. `None` selects a form automatically.
    pub form: Option<Form>,
    /// Explains why the source ended.
    pub end: Option<End>,
    /// Explains why the source is temporarily not delivering samples.
    pub trouble: Option<String>,
    pub area: Rect,
}

impl App {
    /// Creates a screen of `columns` by `rows` that waits for its first sample.
    pub fn new(setup: Setup, engine: Engine, interval: Duration, columns: u16, rows: u16) -> Self {
        Self {
            setup,
            screenful: None,
            table: TableState::default(),
            findings: FindingsState::default(),
            prompt_history: PromptHistory::default(),
            digits: None,
            focus: Focus::Table,
            mode: Mode::Main,
            help_context: Context::Main,
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

    pub fn context(&self) -> Context {
        match self.mode {
            Mode::Page => Context::Page,
            Mode::Plan => Context::Plan,
            Mode::Help(_) => self.help_context,
            Mode::Columns(_) => Context::Columns,
            Mode::Main | Mode::ChooseSort | Mode::Prompt(_) => Context::Main,
        }
    }

    pub fn subject(&self) -> Option<Subject<'_>> {
        self.subject_at(self.table.selected()?)
    }

    /// Returns the row on `line` of the table. Lines are counted from the first line of the list, visible or not.
    pub fn subject_at(&self, line: usize) -> Option<Subject<'_>> {
        let line = self.table.listing.lines.get(line)?;
        self.screenful.as_ref()?.subject(line.row)
    }

    /// Whole seconds since the last sample, or since the start if there is no sample. `None` if no sample is due: in
    /// a recording or after the end.
    pub fn age_seconds(&self) -> Option<u64> {
        let live = self.setup.replay.is_none() && self.end.is_none();
        live.then(|| self.judged.age().as_secs())
    }

    /// Age of the newest sample, if the next sample is late.
    pub fn late_seconds(&self) -> Option<u64> {
        self.age_seconds().filter(|age| *age >= self.playback.late_from_seconds())
    }

    /// Whether the newest sample is older than three intervals.
    pub fn is_overdue(&self) -> bool {
        self.age_seconds().is_some_and(|age| Duration::from_secs(age) > self.playback.alarm_age())
    }

    /// Alarms about the samples themselves, each with its maximum number of lines.
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
            let source = self.setup.host.as_ref().map_or("the driver", |host| &host.name);
            let text = format!("{source} does not answer; the last sample is from {time}");
            alarms.push((text, 1));
        }
        alarms
    }

    /// Returns when text on the screen next changes without an event, as time since the start.
    pub fn next_tick(&self) -> Option<Duration> {
        let late = self.age_seconds().map(|age| {
            let age = (age + 1).max(self.playback.late_from_seconds());
            self.judged.sampled_at() + Duration::from_secs(age)
        });
        let played = self.plays_timeline().then(|| self.next_played().unwrap_or_default());
        let ticks = [late, played, self.reaping.next_tick(self.judged.now())];
        ticks.into_iter().flatten().min()
    }

    pub fn is_live(&self) -> bool {
        self.setup.replay.is_none()
    }

    pub fn is_local(&self) -> bool {
        self.is_live() && self.setup.host.is_none()
    }

    pub fn shown_time(&self) -> Option<Time> {
        Some(self.screenful.as_ref()?.snapshot.time)
    }

    /// Whether the timeline contains a newer sample than the shown one.
    pub fn is_behind(&self) -> bool {
        match (self.playback.shown, self.timeline.newest()) {
            (Some(shown), Some(newest)) => shown < newest.number,
            _ => false,
        }
    }

    /// Seconds between the shown sample and the newest one. `None` if the newest sample is shown.
    pub fn behind_seconds(&self) -> Option<f64> {
        let newest = self.timeline.newest()?;
        let shown = self.shown_time()?;
        self.is_behind().then(|| newest.time.seconds_since(shown).max(0.0))
    }

    /// Whether the source has ended and its last sample is shown.
    pub fn is_at_end(&self) -> bool {
        self.end.is_some() && !self.is_behind()
    }

    /// Whether playback shows samples from the timeline: the user stepped back, and playback has not caught up yet.
    pub fn plays_timeline(&self) -> bool {
        let playback = &self.playback;
        !self.is_live() && !playback.is_paused && !playback.is_seeking() && self.is_behind()
    }

    /// Returns when the next sample on the timeline is due. `None` if unknown.
    fn next_played(&self) -> Option<Duration> {
        let next = self.timeline.after(self.playback.shown?)?;
        let now = self.judged.now();
        let wait = self.playback.clock.as_ref()?.wait(next.time, now)?;
        Some(now + wait)
    }

    /// Age of the displayed plan in seconds. `None` for a recording, whose plans cannot be carried out.
    pub fn plan_age_seconds(&self) -> Option<f64> {
        let asked = self.reaping.dialog.as_ref()?.asked?;
        Some(self.judged.clock()?.seconds_since(asked)).filter(|_| self.is_live())
    }

    /// Short progress text for the batch; `None` if there is no batch or its panel is open.
    pub fn batch_hint(&self) -> Option<String> {
        let batch = self.reaping.batch.as_ref()?;
        (self.mode != Mode::Plan).then(|| batch.hint(self.judged.clock()))
    }

    /// Builds the request for the commands that the findings and the page show; `None` while seeking.
    pub fn request_commands(&mut self) -> Option<ReclaimRequest> {
        let screenful = self.screenful.as_ref().filter(|_| !self.playback.is_seeking())?;
        let is_report = |page: &&Page| matches!(page.content, PageContent::Report(_));
        let page = self.page.as_ref().filter(is_report).map(|page| page.about);
        self.next_commands.request(screenful, page)
    }

    /// Returns the selected finding and its index, or `None` if it is no longer reported.
    pub fn selected_finding(&self) -> Option<(usize, &Finding)> {
        self.findings.selected_of(&self.screenful.as_ref()?.findings)
    }

    /// Returns the first row of the selected finding's process, preferring visible rows. `None` if the finding is
    /// about a GPU or the process is not in the sample.
    pub fn subject_of_finding(&self) -> Option<RowKey> {
        let (_, finding) = self.selected_finding()?;
        self.row_of(finding.process.as_ref()?.identity)
    }

    /// Returns the first row of a process, preferring visible rows.
    pub fn row_of(&self, identity: Identity) -> Option<RowKey> {
        let rows = &self.screenful.as_ref()?.rows;
        let shown = self.table.listing.lines.iter();
        let shown = shown.filter_map(|line| rows.get(line.row));
        let mut rows = shown.chain(rows);
        rows.find(|row| row.key.identity == identity).map(|row| row.key)
    }

    /// Returns the GPUs that the filter names, or all GPUs, in order.
    pub fn shown_gpus(&self) -> Vec<&Gpu> {
        self.shown_shares().into_iter().map(|(gpu, _)| gpu).collect()
    }

    pub fn shown_shares(&self) -> Vec<(&Gpu, &GpuShares)> {
        let Some(screenful) = &self.screenful else {
            return Vec::new();
        };
        let filter = self.table.choice.filter.as_ref();
        let filter = filter.filter(|filter| filter.asks_for_gpus());
        let is_shown = |gpu: &Gpu| filter.is_none_or(|filter| filter.allows_gpu(gpu));
        let shown: Vec<_> = screenful.gpus().filter(|(gpu, _)| is_shown(gpu)).collect();
        match shown.is_empty() {
            // The filter names no existing GPU, so show all.
            true => screenful.gpus().collect(),
            false => shown,
        }
    }

    pub fn layout(&self) -> Option<Layout> {
        self.layout_of(self.area)
    }

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
                needs.parts_max = needs.parts_max.max(gpu.mig_devices.len());
            }
            let lines = &self.table.listing.lines;
            // A filter without matches must not move the panels.
            let has_rows = !screenful.rows.is_empty();
            needs.table = Some(lines.len().max(usize::from(has_rows)));
            needs.findings = lines_wanted(screenful, self.alarms().len());
        }
        Layout::new(area, &needs)
    }

    /// Shows in the bottom line why a key had no effect.
    pub(super) fn refuse(&mut self, why: &str) -> Option<Effect> {
        self.note = Some(why.to_owned());
        Some(Effect::Draw)
    }

    /// Displays a judged sample; the selection follows its process.
    pub(super) fn show(&mut self, screenful: Screenful) {
        self.screenful = Some(screenful);
        self.list();
    }

    /// Rebuilds the table's lines after a new sample or a changed choice.
    pub(super) fn list(&mut self) {
        if let Some(screenful) = &self.screenful {
            let me = &self.setup.me;
            self.table.list(screenful, &self.judged.courses, me);
        }
    }

    /// Keeps the selected row visible and the table filled.
    pub(super) fn scroll(&mut self) {
        let height = self.page_rows();
        self.table.scroll(height);
    }

    pub(super) fn page_rows(&self) -> usize {
        self.layout().map_or(1, |layout| usize::from(layout.table.height))
    }

    /// Selects the row on line `at`, or the last row if there are fewer lines.
    pub(super) fn select(&mut self, at: usize) {
        if let Some(screenful) = &self.screenful {
            self.table.select(at, screenful);
        }
    }

    /// Selects the row with this key; returns false if the table does not contain it.
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

    /// Moves the selection by `steps`. Without a selection, the first step selects the row at the cursor.
    pub(super) fn move_by(&mut self, steps: isize) {
        self.select(self.table.line_after(steps));
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.table.choice.sort = sort;
        self.list();
    }

    /// Changes which rows the table lists, and in which order.
    pub(super) fn choose(&mut self, change: impl FnOnce(&mut Choice)) {
        change(&mut self.table.choice);
        self.table.reset_selection();
        self.list();
    }

    /// Toggles the mark on the selected row and selects the next one. If the selected process is gone, no other row
    /// is marked.
    pub(super) fn tag(&mut self) {
        self.table.toggle_tag();
        self.move_by(1);
    }
}
