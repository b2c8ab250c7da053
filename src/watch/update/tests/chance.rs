//! Random events in random order. The screen must be consistent after each event.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::rc::Rc;

use crossterm::event::{KeyEvent, MouseButton, MouseEvent, MouseEventKind};
use ratatui::buffer::Buffer;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::model::Time;
use crate::model::finding::Severity;
use crate::model::testing::rounds;
use crate::reclaim::target::Step;
use crate::reclaim::worker::TargetStage;
use crate::reclaim::{Outcome, Target};
use crate::watch::column::Columns;
use crate::watch::double_buffer::DoubleBuffer;
use crate::watch::keys::{self, Context, GROUPS};
use crate::watch::sample::dice::Dice;
use crate::watch::state::page::About;
use crate::watch::state::prompt::Purpose;
use crate::watch::state::reaping::Answer;
use crate::watch::state::reaping::Batch;
use crate::watch::testing::events;
use crate::watch::view::draw;
use crate::watch::view_model::{RowKey, Screenful};

/// Number of runs by default and in CI, where they reach every state in [`Run::states`].
const ROUNDS: u64 = 24;
const ROUNDS_FOR_ALL: u64 = 480;
/// Keys at the start of each run. They lead to states that random keys rarely reach.
const BEGINNINGS: &str = "j<Space><Enter> je <F2><Space> s j<Enter> jx j<Space><Space><Enter> <Space>jx / t? \
                          [[[ [jx <Tab> v n j<Enter>G <Tab>g<Enter>G <F2>jj ?G iG sG gxjjG @now o";

#[test]
fn random_events_never_break_the_screen() {
    let is_ci = rounds(1) > 1;
    let rounds = if is_ci { ROUNDS_FOR_ALL } else { ROUNDS };
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut states = BTreeMap::new();
    let mut themes = BTreeSet::new();
    for beginning in BEGINNINGS.split(' ').cycle().take(rounds as usize) {
        let mut run = Run::new(&mut dice);
        for key in events(beginning) {
            run.handle(Event::Key(key), &mut dice);
        }
        for _ in 0..24 {
            let next = run.next_towards_kill(&mut dice);
            let event = next.unwrap_or_else(|| run.event(&mut dice));
            run.handle(event, &mut dice);
            for (state, is_reached) in run.states() {
                *states.entry(state).or_insert(false) |= is_reached;
            }
            themes.insert(run.app.theme.name());
        }
        run.show_impossible_values(&mut dice);
    }
    if is_ci {
        states.retain(|_, is_reached| !*is_reached);
        assert!(states.is_empty(), "no run reached {states:?}");
        assert_eq!(themes.len(), Theme::ALL.len());
    }
}

struct Run {
    app: App,
    frames: DoubleBuffer<Sink>,
    written: Sink,
    snapshot: Snapshot,
    selected: Option<RowKey>,
    now: Duration,
    /// Number of the last requested plan.
    asked: u64,
    begun: Option<(u64, usize)>,
}

impl Run {
    fn new(dice: &mut Dice) -> Self {
        let mut app = screen(80, 24);
        app.setup.ascii = dice.chance();
        app.setup.replay = (dice.roll(2) == 0).then(|| dice.name().to_string());
        app.setup.has_color = dice.chance();
        app.theme = Theme::ALL[dice.roll(3) as usize];
        app.area = size(dice);
        let mut snapshot = dice.snapshot();
        snapshot.host.boot_id = Some("a".into());
        let written = Sink::default();
        let mut run = Self {
            frames: DoubleBuffer::new(written.clone(), app.area),
            written,
            app,
            snapshot,
            selected: None,
            now: Duration::ZERO,
            asked: 0,
            begun: None,
        };
        run.draw();
        for _ in 0..3 {
            run.advance(dice);
            let event = run.sample();
            run.handle(event, dice);
        }
        run
    }

    fn handle(&mut self, event: Event, dice: &mut Dice) {
        let context = match &event {
            // A whole snapshot would fill several screens of a failure message.
            Event::Snapshot { now, .. } => format!("a snapshot at {now:?}"),
            event => format!("{event:?}"),
        };
        let context = format!("{context} in {:?}", self.app.mode);
        let is_sample = matches!(event, Event::Snapshot { .. });
        // The row that was selected before the event, or before its process disappeared.
        let selected = self.app.table.selected_key().or(self.selected);
        self.selected = selected;
        let had_row = self.app.table.selected_key().is_some();
        let shown = self.app.reaping.dialog.clone();
        let effect = update(&mut self.app, event);

        self.check_selection(&context);
        if is_sample {
            let now = self.app.table.selected_key();
            // If nothing was selected before, the first row is selected.
            let is_first = !had_row && !self.app.table.is_chosen();
            let is_same = now.is_none()
                || is_first
                || now.zip(selected).is_some_and(|(now, before)| now.may_be(&before));
            assert!(is_same, "a sample selected another process: {context}");
            if let (Some(before), Some(now)) = (shown, &self.app.reaping.dialog)
                && before.proposal().is_some()
            {
                assert_eq!(now.answer, before.answer, "a sample changed the plan");
            }
        }
        match &effect {
            Some(Effect::Repaint) => self.frames.resize(self.app.area),
            Some(Effect::Reclaim(ReclaimRequest::Plan(request))) => self.asked = request.number,
            Some(Effect::Reclaim(ReclaimRequest::Begin { number, plan })) => {
                self.begun = Some((*number, plan.targets.len()));
            }
            _ => {}
        }
        let written = self.draw();
        // During a seek, only some samples are drawn.
        let is_passing = is_sample && self.app.playback.is_seeking();
        assert!(
            effect.is_some() || is_passing || written == 0,
            "no redraw, although the frame changed: {context}"
        );
        if dice.chance() {
            assert_eq!(self.draw(), 0, "the same frame was written twice: {context}");
        }
        assert_eq!(update(&mut self.app, Event::Drawn), None);
    }

    /// Returns the next event of a sequence that ends in a kill. Random keys almost never complete the sequence.
    fn next_towards_kill(&mut self, dice: &mut Dice) -> Option<Event> {
        if self.app.mode != Mode::Plan || dice.roll(6) == 0 {
            return None;
        }
        let press = |key| Some(Event::Key(KeyCode::Char(key).into()));
        match &self.app.reaping.dialog {
            None if dice.roll(3) == 0 => press('q'),
            None => Some(Event::Reclaim(self.progress(dice))),
            Some(dialog) if dialog.countdown.is_some() => {
                self.now += Duration::from_secs(2);
                Some(Event::Tick { now: self.now })
            }
            Some(dialog) => match dialog.answer {
                Answer::Plan(_) if dialog.ends() > 0 => {
                    press(['y', 'y', 'y', 's', '?'][dice.roll(5) as usize])
                }
                Answer::Asked => Some(Event::Reclaim(ReclaimProgress::Planned {
                    number: self.asked,
                    plan: match dice.roll(8) {
                        0 => Err(dice.name().to_string()),
                        _ => Ok(proposal(dice)),
                    },
                })),
                _ => None,
            },
        }
    }

    fn states(&self) -> [(&'static str, bool); 31] {
        let app = &self.app;
        let (dialog, batch) = (&app.reaping.dialog, &app.reaping.batch);
        let answer = dialog.as_ref().map(|dialog| &dialog.answer);
        let is_on = |mode: &Mode| app.mode == *mode;
        let is_prompt =
            |wanted| matches!(&app.mode, Mode::Prompt(prompt) if prompt.purpose == wanted);
        let is_help = |over| matches!(app.mode, Mode::Help(_)) && app.help_context == over;
        let is_about =
            |test: &dyn Fn(About) -> bool| app.page.as_ref().is_some_and(|page| test(page.about));
        let has_marks = !app.table.tagged.is_empty();
        let is_over = |batch: &Batch| batch.over.is_some();
        let past = app.playback.is_paused && app.behind_seconds().is_some();
        [
            ("findings", !app.judged.engine.findings().is_empty()),
            ("focus on findings", app.focus == Focus::Findings),
            ("help", is_help(Context::Main)),
            ("help on a page", is_help(Context::Page)),
            ("help on a plan", is_help(Context::Plan)),
            ("choice of a column", is_on(&Mode::ChooseSort)),
            ("list of columns", matches!(app.mode, Mode::Columns(_))),
            ("columns hidden", app.table.columns != Columns::default()),
            ("totals", is_about(&|about| about == About::Totals)),
            ("environment", is_about(&|about| matches!(about, About::Environment(_)))),
            ("filter", is_prompt(Purpose::Filter)),
            ("search", is_prompt(Purpose::Search)),
            ("prompt for a time", is_prompt(Purpose::Seek)),
            ("page", is_on(&Mode::Page)),
            (
                "page of a process that is gone",
                app.page.as_ref().is_some_and(|page| page.gone.is_some()),
            ),
            ("requested plan", answer == Some(&Answer::Asked)),
            ("plan", matches!(answer, Some(Answer::Plan(_)))),
            ("plan that failed", matches!(answer, Some(Answer::Failed(_)))),
            ("countdown", dialog.as_ref().is_some_and(|dialog| dialog.countdown.is_some())),
            ("batch", is_on(&Mode::Plan) && batch.as_ref().is_some_and(|batch| !is_over(batch))),
            ("batch that is over", batch.as_ref().is_some_and(is_over)),
            ("batch behind the table", is_on(&Mode::Main) && batch.is_some()),
            ("marks", has_marks),
            ("marks and a page", has_marks && is_on(&Mode::Page)),
            ("tree", app.table.choice.tree),
            ("only findings", app.table.choice.only_findings),
            ("hidden", app.table.choice.is_limited() && app.screenful.is_some()),
            ("past", past),
            ("seeking", app.playback.is_seeking()),
            ("end", app.end.is_some()),
            ("recording", app.setup.replay.is_some()),
        ]
    }

    /// Returns a worker's report, possibly about a request that was never sent.
    fn progress(&self, dice: &mut Dice) -> ReclaimProgress {
        let (begun, count) = self.begun.unwrap_or((dice.roll(3), 3));
        let number = if dice.chance() { dice.roll(5) } else { begun };
        let place = dice.roll(count as u64 + 1) as usize;
        if let Some(About::Environment(of)) = self.app.page.as_ref().map(|page| page.about)
            && dice.chance()
        {
            let variables = match dice.chance() {
                true => Ok(vec![(dice.name().to_string(), dice.name().to_string())]),
                false => Err(dice.name().to_string()),
            };
            return ReclaimProgress::Environment { of, variables };
        }
        match dice.roll(9) {
            0..4 => ReclaimProgress::Planned {
                number: if dice.chance() { dice.roll(3) } else { self.asked },
                plan: if dice.chance() { Err(dice.name().to_string()) } else { Ok(proposal(dice)) },
            },
            4 => ReclaimProgress::Begun { number },
            5 => ReclaimProgress::Target {
                number,
                place,
                stage: match dice.roll(2) {
                    0 => TargetStage::Waiting { until: dice_time(dice), saving: None },
                    _ => TargetStage::Ended {
                        outcome: Outcome::AlreadyGone,
                        words: dice.name().to_string(),
                    },
                },
            },
            6 => ReclaimProgress::Sent { number, place, words: dice.name().to_string() },
            _ => ReclaimProgress::Finished {
                number,
                error: dice.chance().then(|| dice.name().to_string()),
            },
        }
    }

    fn event(&mut self, dice: &mut Dice) -> Event {
        match dice.roll(28) {
            0..6 if self.app.end.is_none() => {
                self.advance(dice);
                self.sample()
            }
            0..17 => Event::Key(key(dice)),
            17..20 => Event::Mouse {
                now: self.now,
                event: MouseEvent {
                    kind: match dice.roll(5) {
                        0 => MouseEventKind::ScrollDown,
                        1 => MouseEventKind::ScrollUp,
                        2 => MouseEventKind::Drag(MouseButton::Left),
                        3 => MouseEventKind::Down(MouseButton::Right),
                        _ => MouseEventKind::Down(MouseButton::Left),
                    },
                    column: if dice.chance() { u16::MAX } else { dice.roll(140) as u16 },
                    row: if dice.chance() { self.app.area.height } else { dice.roll(50) as u16 },
                    modifiers: KeyModifiers::NONE,
                },
            },
            20 => {
                let area = size(dice);
                Event::Resize(area.width, area.height)
            }
            21 | 23 => {
                self.now += Duration::from_millis(dice.roll(9_000));
                Event::Tick { now: self.now }
            }
            22 if dice.chance() => Event::SourceFailed(dice.name().to_string()),
            22 if dice.chance() => Event::SourceEnded,
            22 if dice.chance() => Event::SourceRewound,
            _ => Event::Reclaim(self.progress(dice)),
        }
    }

    /// Shows values that no rule produces.
    fn show_impossible_values(&mut self, dice: &mut Dice) {
        let mut snapshot = dice.snapshot();
        snapshot.time = Time::from_unix_milliseconds(dice.bytes().unwrap_or(7) as i64);
        for gpu in &mut snapshot.gpus {
            gpu.gpu_percent = dice.bytes().map(|bits| bits as u32);
        }
        let mut findings = Vec::new();
        if snapshot.gpus.first().is_some_and(|gpu| gpu.processes.is_some())
            && snapshot.processes.first().is_some_and(|process| process.pid == sample::pid(0, 0))
        {
            findings = vec![sample::finding(&snapshot, 0, 0); dice.roll(12) as usize];
            for finding in &mut findings {
                finding.severity = Severity::Critical;
                finding.message = dice.name().to_string();
                finding.advice.push(dice.name().to_string());
                finding.duration_seconds = f64::from_bits(dice.next());
            }
        }
        self.app.judged.all_series.observe(&snapshot);
        self.app.show(Screenful::new(snapshot, findings, Vec::new(), |identity, _| {
            Some(Time::from_unix_milliseconds(i64::from(identity.pid)))
        }));
        self.draw();
        press(&mut self.app, key(dice).code);
    }

    fn sample(&self) -> Event {
        Event::Snapshot { now: self.now, snapshot: Box::new(self.snapshot.clone()) }
    }

    fn advance(&mut self, dice: &mut Dice) {
        let seconds = dice.roll(120);
        self.now += Duration::from_secs(seconds);
        let time = self.snapshot.time.plus_seconds(seconds as f64);
        if dice.roll(12) == 0 {
            self.snapshot = dice.snapshot();
        }
        self.snapshot.time = time;
        for gpu in &mut self.snapshot.gpus {
            for entry in gpu.processes.iter_mut().flatten() {
                match dice.roll(6) {
                    0 => entry.used_bytes = dice.bytes(),
                    1 => entry.sm_percent = None,
                    _ => entry.sm_percent = Some(0),
                }
            }
            if dice.chance() && dice.chance() {
                gpu.processes.iter_mut().for_each(Vec::clear);
            }
        }
        for process in &mut self.snapshot.processes {
            process.cpu_percent = Some(0.0);
            process.cpu_seconds = process.cpu_seconds.or(Some(100.0));
        }
    }

    /// Checks that no row is listed twice and that the selected row is visible.
    fn check_selection(&self, context: &str) {
        let app = &self.app;
        let rows = app.screenful.as_ref().map_or(0, |screenful| screenful.rows.len());
        let mut shown: Vec<usize> = app.table.listing.lines.iter().map(|line| line.row).collect();
        let count = shown.len();
        shown.sort_unstable();
        shown.dedup();
        assert_eq!(shown.len(), count, "a row is listed twice: {context}");
        assert!(shown.iter().all(|&row| row < rows), "{context}");
        assert!(app.table.offset <= count, "{context}");
        let Some(at) = app.table.selected() else {
            return;
        };
        let subject = app.subject().expect(context);
        let selected = app.table.selected_key();
        assert!(selected.is_some_and(|key| key.may_be(&subject.row.key)), "{context}");
        if app.layout().is_some() {
            let visible = app.table.offset..app.table.offset + app.page_rows();
            assert!(visible.contains(&at), "{at} is not in {visible:?}: {context}");
        }
    }

    fn draw(&mut self) -> usize {
        let (app, before) = (&self.app, self.written.0.get());
        self.frames
            .draw(|canvas| {
                draw(app, canvas);
                check_cells(canvas);
                // The canvas must not contain anything from the previous frame.
                let mut blank = Buffer::empty(app.area);
                draw(app, &mut blank);
                assert_eq!(*canvas, blank);
            })
            .unwrap();
        self.written.0.get() - before
    }
}

fn proposal(dice: &mut Dice) -> crate::reclaim::worker::Proposal {
    let mut targets: Vec<Target> = Vec::new();
    for at in 0..dice.roll(8) {
        targets.push(sample::target(4000 + at as u32));
        if dice.chance() {
            targets[at as usize].steps = vec![Step::Advise { command: dice.name() }];
        }
        targets[at as usize].bytes = dice.bytes();
    }
    let mut proposal = sample::proposal(targets);
    for line in proposal.lines.iter_mut().chain(&mut proposal.titles) {
        *line = crate::report::escape::escape(&dice.name()).into_owned();
    }
    proposal
}

fn dice_time(dice: &mut Dice) -> Time {
    Time::from_unix_milliseconds(dice.roll(u64::MAX) as i64)
}

#[derive(Clone, Debug, Default)]
struct Sink(Rc<Cell<usize>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set(self.0.get() + bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that no cell contains a control character or extends beyond its line.
fn check_cells(buffer: &Buffer) {
    let width = usize::from(buffer.area.width).max(1);
    for line in buffer.content.chunks(width) {
        for (at, cell) in line.iter().enumerate() {
            let symbol = cell.symbol();
            assert!(!symbol.contains(char::is_control), "{cell:?}");
            assert!(at + symbol.width() <= width, "{cell:?} at {at} of {width}");
        }
    }
}

/// Returns a random size. Some sizes are at the limits of the layout.
fn size(dice: &mut Dice) -> Rect {
    let edges = [0, 1, 9, 10, 11, 24, 39, 40, 41, 70, 220];
    let (columns, rows) = match dice.roll(7) {
        6 => (edges[dice.place(11)], edges[dice.place(10)]),
        0 => (dice.roll(221), dice.roll(71)),
        1 => (dice.roll(45), dice.roll(12)),
        _ => (40 + dice.roll(80), 10 + dice.roll(30)),
    };
    Rect::new(0, 0, columns as u16, rows as u16)
}

fn key(dice: &mut Dice) -> KeyEvent {
    let bindings = GROUPS.iter().flat_map(|group| group.2);
    let bound: Vec<KeyEvent> = bindings.flat_map(|binding| keys::events(binding.0)).collect();
    match dice.roll(5) {
        0 => KeyEvent::new(KeyCode::Char(char::from(dice.roll(128) as u8)), KeyModifiers::NONE),
        1 => KeyCode::Enter.into(),
        _ => bound[dice.roll(bound.len() as u64) as usize],
    }
}
