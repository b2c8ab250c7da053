//! Whatever comes and whatever is pressed, in any order: the screen stays whole.

use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;

use crossterm::event::{MouseButton, MouseEventKind};
use ratatui::buffer::Buffer;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::watch::canvas::Canvas;
use crate::watch::keys::{Context, Key, table};
use crate::watch::sample::dice::Dice;
use crate::watch::view::draw;

#[test]
fn nothing_that_happens_breaks_the_screen() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut found = 0;
    for _ in 0..18 {
        let mut run = Run::new(&mut dice);
        for _ in 0..24 {
            run.step(&mut dice);
        }
        found += usize::from(run.has_findings);
    }
    assert!(found > 0, "no run came to a finding; the dice are too kind");
}

/// A screen, what is written to it, and what it shows.
struct Run {
    app: App,
    canvas: Canvas<Sink>,
    written: Sink,
    snapshot: Snapshot,
    now: Duration,
    has_findings: bool,
}

impl Run {
    fn new(dice: &mut Dice) -> Self {
        let mut app = app();
        app.setup.ascii = dice.chance();
        app.setup.replay = dice.chance().then(|| dice.name().to_string());
        app.setup.depth = [Depth::Mono, Depth::Ansi16][dice.roll(2) as usize];
        app.area = size(dice);
        let mut snapshot = dice.snapshot();
        snapshot.host.boot_id = Some("a".into());
        let written = Sink::default();
        let mut run = Self {
            canvas: Canvas::new(written.clone(), app.area),
            written,
            app,
            snapshot,
            now: Duration::ZERO,
            has_findings: false,
        };
        run.draw();
        run
    }

    /// Something happens; all that has to hold afterwards is looked at.
    fn step(&mut self, dice: &mut Dice) {
        let event = self.event(dice);
        let what = format!("{event:?}");
        let is_sample = matches!(event, Event::Snapshot { .. });
        let selected = self.app.selected;
        let effect = update(&mut self.app, event);

        self.look_at_selection(&what);
        if is_sample && let Some(key) = self.app.selected {
            assert_eq!(Some(key), selected, "a sample selected somebody: {what}");
        }
        if matches!(effect, Some(Effect::Repaint)) {
            self.canvas.resize(self.app.area);
        }
        let written = self.draw();
        assert!(
            effect.is_some() || written == 0,
            "not drawn, though it shows: {what}"
        );
        assert_eq!(self.draw(), 0, "another frame of the same: {what}");
        self.has_findings |= !self.app.engine.findings().is_empty();
    }

    fn event(&mut self, dice: &mut Dice) -> Event {
        match dice.roll(24) {
            0..6 => {
                self.live_on(dice);
                Event::Snapshot {
                    now: self.now,
                    snapshot: Box::new(self.snapshot.clone()),
                    is_passing: dice.chance() && dice.chance(),
                }
            }
            6..17 => Event::Key(key(dice)),
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
                    column: dice.roll(140) as u16,
                    row: dice.roll(50) as u16,
                    modifiers: KeyModifiers::NONE,
                },
            },
            20 => {
                let area = size(dice);
                Event::Resize(area.width, area.height)
            }
            21 => Event::Tick {
                now: self.now + Duration::from_millis(dice.roll(9_000)),
            },
            22 if dice.chance() => Event::SourceFailed(dice.name().to_string()),
            22 if dice.chance() => Event::SourceEnded,
            22 if dice.chance() => Event::SourceRewound,
            _ => Event::Hand(News::Planned {
                number: dice.roll(3),
                plan: Err(dice.name().to_string()),
            }),
        }
    }

    /// Time passes on the machine, or another one comes in its place.
    fn live_on(&mut self, dice: &mut Dice) {
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

    /// What is selected is there, once, and in sight.
    fn look_at_selection(&self, what: &str) {
        let app = &self.app;
        let rows = app.picture.as_ref().map_or(0, |it| it.rows.len());
        let mut shown: Vec<usize> = app.listing.lines.iter().map(|line| line.row).collect();
        let count = shown.len();
        shown.sort_unstable();
        shown.dedup();
        assert_eq!(shown.len(), count, "a row is listed twice: {what}");
        assert!(shown.iter().all(|&row| row < rows), "{what}");
        assert!(app.offset <= count, "{what}");
        let Some(at) = app.selected() else {
            return;
        };
        let subject = app.subject().expect(what);
        assert_eq!(Some(subject.row.key), app.selected, "{what}");
        if app.layout().is_some() {
            let visible = app.offset..app.offset + app.page_rows();
            assert!(visible.contains(&at), "{at} is not in {visible:?}: {what}");
        }
    }

    /// Draws a frame; says how much of it was new.
    fn draw(&mut self) -> usize {
        let (app, before) = (&self.app, self.written.0.get());
        self.canvas
            .draw(|buffer| {
                draw(app, buffer);
                whole(buffer);
            })
            .unwrap();
        self.written.0.get() - before
    }
}

/// Counts what is written.
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

/// No cell holds what a terminal would obey, and none reaches beyond its line.
fn whole(buffer: &Buffer) {
    let width = usize::from(buffer.area.width).max(1);
    for line in buffer.content.chunks(width) {
        for (at, cell) in line.iter().enumerate() {
            let symbol = cell.symbol();
            assert!(!symbol.contains(char::is_control), "{cell:?}");
            assert!(at + symbol.width() <= width, "{cell:?} at {at} of {width}");
        }
    }
}

/// From no screen at all to a large one; most are of a middle size.
fn size(dice: &mut Dice) -> Rect {
    let (columns, rows) = match dice.roll(6) {
        0 => (dice.roll(221), dice.roll(71)),
        1 => (dice.roll(45), dice.roll(12)),
        _ => (40 + dice.roll(80), 10 + dice.roll(30)),
    };
    Rect::new(0, 0, columns as u16, rows as u16)
}

/// One that does something, or any character.
fn key(dice: &mut Dice) -> KeyEvent {
    let bindings: Vec<Key> = [Context::Main, Context::Page, Context::Plan]
        .into_iter()
        .flat_map(table)
        .flat_map(|binding| binding.keys)
        .copied()
        .collect();
    match dice.roll(5) {
        0 => KeyEvent::new(
            KeyCode::Char(char::from(dice.roll(128) as u8)),
            KeyModifiers::NONE,
        ),
        1 => KeyCode::Enter.into(),
        _ => match bindings[dice.roll(bindings.len() as u64) as usize] {
            Key::Plain(code) => code.into(),
            Key::Ctrl(letter) => KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL),
        },
    }
}
