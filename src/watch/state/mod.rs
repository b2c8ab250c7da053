//! The state of the screen, and its parts.
//!
//! Pure data: it draws nothing, reads no clock and starts nothing; time comes with the [`Event`]s, and what
//! must be done comes back as an [`Effect`]. What an event does to it is in `update/`; where it is on
//! the screen in `layout/`; what it looks like in `view/`. What a feature (a page, a plan, the findings, the list of
//! columns) has to remember is here; its keys and its drawing are in a file above, which this never names.

pub mod batch;
pub mod findings;
pub mod judged;
pub mod next_commands;
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
use self::next_commands::NextCommands;
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
use super::reclaim_worker::{ReclaimProgress, ReclaimRequest};
use super::text::{MESSAGE_CHARS, clean, clock};
use super::theme::Theme;
use super::view_model::{RowKey, Screenful, Sort, Subject};
use crate::model::finding::Finding;
use crate::model::row::Me;
use crate::model::snapshot::Gpu;
use crate::model::{Identity, Snapshot, Time};
use crate::rules::Engine;
use crate::source::remote::RemoteHost;

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
    /// A key.
    Key(KeyEvent),
    /// Text that the terminal says was pasted: never keys.
    Paste(String),
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
    /// Why nothing comes at the moment; `None` where it comes again.
    SourceTrouble(Option<String>),
    /// Time passed: the sample's age may read differently.
    Tick {
        /// Time since the screen started.
        now: Duration,
    },
    /// A signal was sent to gpumem.
    Signal(i32),
    /// The worker reports on what it was asked.
    Reclaim(ReclaimProgress),
    /// The state as it is now has been drawn.
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
    /// Have the worker do this, and draw what changed.
    Reclaim(ReclaimRequest),
    /// Give the terminal to this command on the host that is shown, which asks there what it has to, and take it again.
    OnHost(String),
    /// Show the list of hosts.
    Hosts,
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
    /// Which columns the table has is being chosen.
    Columns(ColumnList),
    /// What is being typed.
    Prompt(Prompt),
    /// The page of explanation, [`App::page`].
    Page,
    /// The plan, or what is being done by it, [`App::reaping`].
    Plan,
}

/// The number that digits have made so far, and when the last one was typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypedDigits {
    /// The number.
    pub number: u32,
    /// Time since the start of the screen.
    pub at: Duration,
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
    /// The other machine that this is, where it is one.
    pub host: Option<RemoteHost>,
    /// gpumem's own version.
    pub version: &'static str,
    /// The user that gpumem runs as, by number and name.
    pub me: Me,
    /// How many colours may be used.
    pub has_color: bool,
    /// Whether only ASCII may be written.
    pub ascii: bool,
}

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// What does not change.
    pub setup: Setup,
    /// The sample that is shown, judged; `None` before the first.
    pub screenful: Option<Screenful>,
    /// The process table.
    pub table: TableState,
    /// The list of findings.
    pub findings: FindingsState,
    /// What was typed before.
    pub former: Former,
    /// The number of a GPU, while it is being typed.
    pub digits: Option<TypedDigits>,
    /// Which panel the keys move in.
    pub focus: Focus,
    /// What the keys act on.
    pub mode: Mode,
    /// What the help was opened from.
    pub help_over: Context,
    /// What is explained.
    pub page: Option<Page>,
    /// What to type about what is found.
    pub next_commands: NextCommands,
    /// What is to be ended, or being ended.
    pub reaping: Reaping,
    /// Whether the screen is paused, and how fast time goes.
    pub playback: Playback,
    /// Why the last key did nothing, or what it did where the screen does not show that; until the next.
    pub note: Option<String>,
    /// The samples that one can go back to.
    pub timeline: Timeline,
    /// What the rules have judged, and what time it is.
    pub judged: JudgedState,
    /// How things look.
    pub theme: Theme,
    /// How the GPUs are shown; `None` leaves it to the room that there is.
    pub form: Option<Form>,
    /// Why no more samples come.
    pub end: Option<End>,
    /// Why none come at the moment.
    pub trouble: Option<String>,
    /// The screen.
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

    /// Which keys hold now, or are explained by the help.
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

    /// The row on a line of the table, counted from its first, visible or not.
    pub fn subject_at(&self, line: usize) -> Option<Subject<'_>> {
        let line = self.table.listing.lines.get(line)?;
        self.screenful.as_ref()?.subject(line.row)
    }

    /// Whole seconds since the last sample (or since the start, before the first); `None` where no
    /// answer is due: in a recording, and after the end.
    pub fn age_seconds(&self) -> Option<u64> {
        let live = self.setup.replay.is_none() && self.end.is_none();
        live.then(|| self.judged.age().as_secs())
    }

    /// The age, where another sample should have come by now.
    pub fn late_seconds(&self) -> Option<u64> {
        self.age_seconds().filter(|age| *age >= self.playback.late_from_seconds())
    }

    /// Whether the sample is older than three intervals, shown or not.
    pub fn is_overdue(&self) -> bool {
        self.age_seconds().is_some_and(|age| Duration::from_secs(age) > self.playback.patience())
    }

    /// What is wrong with the samples themselves, each with the lines that it may take.
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

    /// When a text on the screen changes next, as time since the start of the screen.
    pub fn next_tick(&self) -> Option<Duration> {
        let late = self.age_seconds().map(|age| {
            let age = (age + 1).max(self.playback.late_from_seconds());
            self.judged.sampled_at() + Duration::from_secs(age)
        });
        let played = self.plays_timeline().then(|| self.next_played().unwrap_or_default());
        let ticks = [late, played, self.reaping.next_tick(self.judged.now())];
        ticks.into_iter().flatten().min()
    }

    /// Whether a machine is what is shown, this one or another, and no recording.
    pub fn is_live(&self) -> bool {
        self.setup.replay.is_none()
    }

    /// Whether it is this machine.
    pub fn is_here(&self) -> bool {
        self.is_live() && self.setup.host.is_none()
    }

    /// The time of the sample that is shown.
    pub fn shown_time(&self) -> Option<Time> {
        Some(self.screenful.as_ref()?.snapshot.time)
    }

    /// Whether a newer sample than the one that is shown is there.
    pub fn is_behind(&self) -> bool {
        match (self.playback.shown, self.timeline.newest()) {
            (Some(shown), Some(newest)) => shown < newest.number,
            _ => false,
        }
    }

    /// Seconds from the sample that is shown to the newest one; `None` where it is the newest.
    pub fn behind_seconds(&self) -> Option<f64> {
        let newest = self.timeline.newest()?;
        let shown = self.shown_time()?;
        self.is_behind().then(|| newest.time.seconds_since(shown).max(0.0))
    }

    /// Whether the end of a recording is what is shown.
    pub fn is_at_end(&self) -> bool {
        self.end.is_some() && !self.is_behind()
    }

    /// Whether what plays is the timeline, on the way from where a person went back to to where the source
    /// is.
    pub fn plays_timeline(&self) -> bool {
        let playback = &self.playback;
        !self.is_live() && !playback.is_paused && !playback.is_seeking() && self.is_behind()
    }

    /// When the next sample of the timeline is due; `None` where that is not known yet.
    fn next_played(&self) -> Option<Duration> {
        let next = self.timeline.after(self.playback.shown?)?;
        let now = self.judged.now();
        let wait = self.playback.clock.as_ref()?.wait(next.time, now)?;
        Some(now + wait)
    }

    /// How old the plan is that is shown; `None` of a recording, where nothing is sent.
    pub fn plan_age_seconds(&self) -> Option<f64> {
        let asked = self.reaping.dialog.as_ref()?.asked?;
        Some(self.judged.clock()?.seconds_since(asked)).filter(|_| self.is_live())
    }

    /// How far the plan that is being carried out is, in a few words; `None` where there is none or it is open.
    pub fn batch_hint(&self) -> Option<String> {
        let batch = self.reaping.batch.as_ref()?;
        (self.mode != Mode::Plan).then(|| batch.hint(self.judged.clock()))
    }

    /// What to ask the worker now about what to type; nothing of a sample that is only passed over.
    pub fn request_commands(&mut self) -> Option<ReclaimRequest> {
        let screenful = self.screenful.as_ref().filter(|_| !self.playback.is_seeking())?;
        let is_report = |page: &&Page| matches!(page.content, PageContent::Report(_));
        let page = self.page.as_ref().filter(is_report).map(|page| page.about);
        self.next_commands.request(screenful, page)
    }

    /// The selected finding and its place; `None` where it is no more.
    pub fn selected_finding(&self) -> Option<(usize, &Finding)> {
        self.findings.selected_of(&self.screenful.as_ref()?.findings)
    }

    /// The first row of the process that the selected finding is about, shown rows before hidden ones;
    /// `None` where it is about a GPU, or its process is not in the sample.
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

    /// The GPUs that are shown, in their order: where the filter asks for some of them, those.
    pub fn shown_gpus(&self) -> Vec<&Gpu> {
        self.shown_shares().into_iter().map(|(gpu, _)| gpu).collect()
    }

    /// The same, with what the memory of each is in use for.
    pub fn shown_shares(&self) -> Vec<(&Gpu, &GpuShares)> {
        let Some(screenful) = &self.screenful else {
            return Vec::new();
        };
        let filter = self.table.choice.filter.as_ref();
        let filter = filter.filter(|filter| filter.asks_for_gpus());
        let is_shown = |gpu: &Gpu| filter.is_none_or(|filter| filter.allows_gpu(gpu));
        let shown: Vec<_> = screenful.gpus().filter(|(gpu, _)| is_shown(gpu)).collect();
        match shown.is_empty() {
            // There is no such GPU; all are shown instead.
            true => screenful.gpus().collect(),
            false => shown,
        }
    }

    /// The panels' places; `None` where the screen is too small for panels.
    pub fn layout(&self) -> Option<Layout> {
        self.layout_of(self.area)
    }

    /// The panels' places on a screen of this size.
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
            // A filter that nothing fits does not move the panels.
            let has_rows = !screenful.rows.is_empty();
            needs.table = Some(lines.len().max(usize::from(has_rows)));
            needs.findings = lines_wanted(screenful, self.alarms().len());
        }
        Layout::new(area, &needs)
    }

    /// Says in the bottom line why a key does nothing.
    pub(super) fn refuse(&mut self, why: &str) -> Option<Effect> {
        self.note = Some(why.to_owned());
        Some(Effect::Draw)
    }

    /// Puts a judged snapshot on show; the selection follows its process.
    pub(super) fn show(&mut self, screenful: Screenful) {
        self.screenful = Some(screenful);
        self.list();
    }

    /// Makes the table's rows anew, after the sample or the choice has changed.
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

    /// Rows of the table that are visible at once.
    pub(super) fn page_rows(&self) -> usize {
        self.layout().map_or(1, |layout| usize::from(layout.table.height))
    }

    /// Selects the row on this line of the table, or the last one.
    pub(super) fn select(&mut self, at: usize) {
        if let Some(screenful) = &self.screenful {
            self.table.select(at, screenful);
        }
    }

    /// Selects the row of this key; nothing where the table has no such row. Says whether it has.
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

    /// Selects `steps` rows on. The first step selects the row where the cursor is, or was.
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

    /// Marks the selected row, or takes its mark away, and selects the next. Where the selected process is gone,
    /// nothing is marked that moved into its row.
    pub(super) fn tag(&mut self) {
        self.table.toggle_tag();
        self.move_by(1);
    }
}
