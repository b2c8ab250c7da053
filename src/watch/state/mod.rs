//! State of the interactive screen.
//!
//! The state does not draw, read a clock or start work. Time arrives in [`Event`]s, and requests to the main loop are
//! returned as [`Effect`]s. `update/` handles events, `layout/` positions the panels, and `view/` draws them.

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
use self::prompt::Prompt;
use self::reaping::Reaping;
use self::table::{ColumnList, TableState};
use self::timeline::Timeline;
use super::Control;
use super::keys::Context;
use super::layout::{Layout, LayoutNeeds};
use super::listing::Choice;
use super::memory_shares::GpuShares;
use super::text::{MESSAGE_CHARS, clean, clock};
use super::theme::Theme;
use super::view_model::{RowKey, Screenful, Sort, Subject};
use crate::model::finding::Finding;
use crate::model::row::CurrentUser;
use crate::model::snapshot::Gpu;
use crate::model::{Identity, Snapshot, Time};
use crate::reclaim::worker::{ReclaimProgress, ReclaimRequest};
use crate::rules::Engine;
use crate::source::remote::RemoteHost;
use crate::watch::state::findings::NextCommands;

/// Note about a key that has no effect before the first sample.
pub(super) const NOTHING_SEEN: &str = "there is no sample yet";
pub(super) const NOTHING_FOUND: &str = "nothing was found";
pub(super) const NO_FINDING: &str = "no finding is selected; j or k selects one";
pub(super) const GONE: &str = "the process is gone; there is nothing to kill";
pub(super) const HIDDEN: &str = "the table does not show the process; show all, then press x again";

#[derive(Debug)]
pub enum Event {
    Key(KeyEvent),
    /// Pasted text, which must not act as key presses.
    Paste(String),
    Mouse {
        /// Time since the screen started.
        now: Duration,
        event: MouseEvent,
    },
    Resize(u16, u16),
    /// The theme for the background that the terminal has reported.
    Background(Theme),
    Snapshot {
        now: Duration,
        snapshot: Box<Snapshot>,
    },
    /// The recording restarts from the beginning. The samples so far are forgotten.
    SourceRewound,
    SourceRead(u8),
    SourceEnded,
    SourceFailed(String),
    /// Why the source currently delivers no samples, or `None` after it has recovered.
    SourceTrouble(Option<String>),
    /// Time has passed. Texts that show an age may have changed.
    Tick {
        now: Duration,
    },
    Signal(i32),
    Reclaim(ReclaimProgress),
    Drawn,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Draw,
    /// Draw every cell, even cells that did not change.
    Repaint,
    /// Stop all processes of gpumem's job, as Ctrl-Z does outside raw mode.
    Suspend,
    /// Restore the terminal and stop gpumem.
    Stop,
    Resume,
    Quit,
    /// Restore the terminal, and end gpumem by this signal.
    Die(i32),
    /// End gpumem with this error, because no sample has ever arrived.
    Fail(String),
    /// Redraw, and send the control to the source.
    Control(Control),
    /// Redraw, and send the request to the reclaim worker.
    Reclaim(ReclaimRequest),
    /// Run the command on the shown host in this terminal, then take over the terminal again.
    OnHost(String),
    Hosts,
}

/// The part of the screen that receives keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    Main,
    /// The help, with its scroll offset. Closing the help returns to [`App::help_context`].
    Help(u16),
    /// The next letter chooses the sort column.
    ChooseSort,
    Columns(ColumnList),
    Prompt(Prompt),
    Page,
    Plan,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypedDigits {
    pub number: u32,
    /// When the last digit was typed, as time since the screen started.
    pub at: Duration,
}

/// The panel that receives navigation keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    Table,
    Findings,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Complete,
    Failed(String),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Name of the recording, or `None` for a live source.
    pub replay: Option<String>,
    /// `None` for the local machine.
    pub host: Option<RemoteHost>,
    pub version: &'static str,
    pub me: CurrentUser,
    pub has_color: bool,
    pub ascii: bool,
}

#[derive(Debug)]
pub struct App {
    pub setup: Setup,
    /// The displayed sample, or `None` before the first sample.
    pub screenful: Option<Screenful>,
    pub table: TableState,
    pub findings: FindingsState,
    /// The text of the last search.
    pub searched: String,
    pub digits: Option<TypedDigits>,
    pub focus: Focus,
    pub mode: Mode,
    pub help_context: Context,
    pub page: Option<Page>,
    pub next_commands: NextCommands,
    pub reaping: Reaping,
    pub playback: Playback,
    /// Explains why the last key had no effect, or describes an effect that is not visible. The next key clears the
    /// note.
    pub note: Option<String>,
    /// Samples for stepping back.
    pub timeline: Timeline,
    pub judged: JudgedState,
    pub theme: Theme,
    /// Number of columns by which the user widened the charts beside the table.
    pub border: i16,
    pub end: Option<End>,
    pub trouble: Option<String>,
    pub area: Rect,
}

impl App {
    pub fn new(setup: Setup, engine: Engine, interval: Duration, columns: u16, rows: u16) -> Self {
        Self {
            setup,
            screenful: None,
            table: TableState::default(),
            findings: FindingsState::default(),
            searched: String::new(),
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
            border: 0,
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

    pub fn subject_at(&self, line: usize) -> Option<Subject<'_>> {
        let line = self.table.listing.lines.get(line)?;
        self.screenful.as_ref()?.subject(line.row)
    }

    /// Returns the seconds since the last sample, or since the start. Returns `None` if no sample
    /// is due: in a recording, or after the end of the source.
    pub fn age_seconds(&self) -> Option<u64> {
        let live = self.setup.replay.is_none() && self.end.is_none();
        live.then(|| self.judged.age().as_secs())
    }

    /// Returns the age of the newest sample if the next sample is late.
    pub fn late_seconds(&self) -> Option<u64> {
        self.age_seconds().filter(|age| *age >= self.playback.late_from_seconds())
    }

    /// Returns whether the newest sample is so old that an alarm is shown.
    pub fn is_overdue(&self) -> bool {
        self.age_seconds().is_some_and(|age| Duration::from_secs(age) > self.playback.alarm_age())
    }

    /// Returns the alarms about missing samples, each with a maximum number of lines.
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

    /// Returns when the screen must next be redrawn without an event. Times count from the start of the screen.
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

    /// Returns whether the timeline contains a newer sample than the displayed sample.
    pub fn is_behind(&self) -> bool {
        match (self.playback.shown, self.timeline.newest()) {
            (Some(shown), Some(newest)) => shown < newest.number,
            _ => false,
        }
    }

    /// Returns the seconds between the displayed and the newest sample, if they differ.
    pub fn behind_seconds(&self) -> Option<f64> {
        let newest = self.timeline.newest()?;
        let shown = self.shown_time()?;
        self.is_behind().then(|| newest.time.seconds_since(shown).max(0.0))
    }

    /// Returns whether the source has ended and its last sample is displayed.
    pub fn is_at_end(&self) -> bool {
        self.end.is_some() && !self.is_behind()
    }

    /// Returns whether the timeline is playing: the user stepped back, and playback has not caught up.
    pub fn plays_timeline(&self) -> bool {
        let playback = &self.playback;
        !self.is_live() && !playback.is_paused && !playback.is_seeking() && self.is_behind()
    }

    fn next_played(&self) -> Option<Duration> {
        let next = self.timeline.after(self.playback.shown?)?;
        let now = self.judged.now();
        let wait = self.playback.clock.as_ref()?.wait(next.time, now)?;
        Some(now + wait)
    }

    /// Returns the age of the displayed plan in seconds. Plans for a recording cannot be carried out and have no age.
    pub fn plan_age_seconds(&self) -> Option<f64> {
        let asked = self.reaping.dialog.as_ref()?.asked?;
        Some(self.judged.clock()?.seconds_since(asked)).filter(|_| self.is_live())
    }

    /// Describes the progress of the batch, unless the batch's panel is open.
    pub fn batch_hint(&self) -> Option<String> {
        let batch = self.reaping.batch.as_ref()?;
        (self.mode != Mode::Plan).then(|| batch.hint(self.judged.clock()))
    }

    /// Returns a request for the commands of the findings and the open page, unless seeking.
    pub fn request_commands(&mut self) -> Option<ReclaimRequest> {
        let screenful = self.screenful.as_ref().filter(|_| !self.playback.is_seeking())?;
        let is_report = |page: &&Page| matches!(page.content, PageContent::Report(_));
        let page = self.page.as_ref().filter(is_report).map(|page| page.about);
        self.next_commands.request(screenful, page)
    }

    /// Returns the selected finding and its index, unless the finding is no longer reported.
    pub fn selected_finding(&self) -> Option<(usize, &Finding)> {
        self.findings.selected_of(&self.screenful.as_ref()?.findings)
    }

    /// Returns a row of the selected finding's process, if the sample contains the process.
    pub fn subject_of_finding(&self) -> Option<RowKey> {
        let (_, finding) = self.selected_finding()?;
        self.row_of(finding.process.as_ref()?.identity)
    }

    /// Returns a row of the process, preferably a row that the table lists.
    pub fn row_of(&self, identity: Identity) -> Option<RowKey> {
        let rows = &self.screenful.as_ref()?.rows;
        let shown = self.table.listing.lines.iter();
        let shown = shown.filter_map(|line| rows.get(line.row));
        let mut rows = shown.chain(rows);
        rows.find(|row| row.key.identity == identity).map(|row| row.key)
    }

    /// Returns the GPUs that the filter names, or all GPUs if the filter names none.
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
            // A filter that names no existing GPU hides no GPU.
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
            border: self.border,
            ..LayoutNeeds::default()
        };
        if let Some(screenful) = &self.screenful {
            needs.has_load = screenful.snapshot.host.load.is_some();
            let gpus = self.shown_gpus();
            needs.gpus = gpus.len();
            for gpu in gpus {
                needs.parts += gpu.mig_devices.len();
            }
            let lines = &self.table.listing.lines;
            // A filter without matches must not move the panels.
            let has_rows = !screenful.rows.is_empty();
            needs.table = Some(lines.len().max(usize::from(has_rows)));
            (needs.findings, needs.notes) = lines_wanted(screenful, self.alarms().len());
        }
        Layout::new(area, &needs)
    }

    /// Explains in the bottom line why a key had no effect.
    pub(super) fn refuse(&mut self, why: &str) -> Option<Effect> {
        self.note = Some(why.to_owned());
        Some(Effect::Draw)
    }

    /// Displays a judged sample. The process that was selected stays selected.
    pub(super) fn show(&mut self, screenful: Screenful) {
        self.screenful = Some(screenful);
        self.list();
    }

    pub(super) fn list(&mut self) {
        if let Some(screenful) = &self.screenful {
            let me = &self.setup.me;
            self.table.list(screenful, &self.judged.all_series, me);
        }
    }

    pub(super) fn scroll(&mut self) {
        let height = self.page_rows();
        self.table.scroll(height);
    }

    pub(super) fn page_rows(&self) -> usize {
        self.layout().map_or(1, |layout| usize::from(layout.table.height))
    }

    pub(super) fn select(&mut self, at: usize) {
        if let Some(screenful) = &self.screenful {
            self.table.select(at, screenful);
        }
    }

    /// Selects the row with this key. Returns false if the table does not list the row.
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

    /// Moves the selection by `steps`. If nothing is selected, the row at the cursor is selected.
    pub(super) fn move_by(&mut self, steps: isize) {
        self.select(self.table.line_after(steps));
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.table.choice.sort = sort;
        self.list();
    }

    pub(super) fn choose(&mut self, change: impl FnOnce(&mut Choice)) {
        change(&mut self.table.choice);
        self.table.reset_selection();
        self.list();
    }

    /// Toggles the mark on the selected row and selects the next row. If the selected process is
    /// gone, no row is marked.
    pub(super) fn tag(&mut self) {
        self.table.toggle_tag();
        self.move_by(1);
    }
}
