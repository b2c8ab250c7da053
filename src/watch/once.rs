//! `gpumem watch --once`: draws one frame without a terminal.
//!
//! A [`StillScreen`] is the normal screen, which receives samples and then [`Keys`] from its caller. Keys
//! that would carry out a plan or seek in a recording are refused.

mod svg;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::gpus::sum;
use super::keys::named;
use super::text::head;
use super::{Control, EarlierHistory, Options, view};
use crate::model::Snapshot;
use crate::reclaim::worker::{ReclaimRequest, ReclaimWorker};
use crate::report::escape::escape;
use crate::source::remote::RemoteHost;
use crate::units::number_of;
use crate::watch::state::{App, Effect, Event};
use crate::watch::text::columns;
use crate::watch::update::update;

/// Maximum length of the worst finding's message in an SVG's description.
const MESSAGE_CHARS: usize = 400;

/// Keys to press before the frame is drawn: single characters, and names such as `<Enter>`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keys(pub(super) Vec<(String, KeyEvent)>);

#[derive(Debug, thiserror::Error)]
#[error(
    "{0} is not a key; write characters, names like <Enter> <Esc> <Tab> <Space> <Down> <PgDn> <F6> \
     <Ctrl-F>, and <lt> for <"
)]
pub struct UnknownKey(String);

impl FromStr for Keys {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        let mut keys = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (key, after) = if first == '<' {
                let end = rest.find('>').ok_or_else(|| UnknownKey(rest.to_owned()))? + 1;
                let key = named(&rest[1..end - 1]);
                let key = key.ok_or_else(|| UnknownKey(rest[..end].to_owned()))?;
                (key, end)
            } else if first.is_control() {
                return Err(UnknownKey(escape(rest).into_owned()));
            } else {
                (KeyCode::Char(first).into(), first.len_utf8())
            };
            keys.push((rest[..after].to_owned(), key));
            rest = &rest[after..];
        }
        Ok(Self(keys))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    #[error("{key} leaves the screen; leave it out of --keys")]
    Leaves { key: String },
    /// The key needs a terminal, playback or a worker that carries out plans.
    #[error("{key} has no effect on a still frame; leave it out of --keys")]
    NotStill { key: String },
}

/// A screen without a terminal.
#[derive(Debug)]
pub struct StillScreen {
    app: App,
    interval: Duration,
    now: Duration,
}

impl StillScreen {
    /// Creates a screen for the recording `replay`, for a remote host, or for this machine.
    pub fn new(
        options: Options,
        replay: Option<String>,
        host: Option<RemoteHost>,
        past: EarlierHistory,
        (columns, rows): (u16, u16),
    ) -> Self {
        let interval = options.interval;
        Self {
            app: options.start(replay, host, past, columns, rows),
            interval,
            now: Duration::ZERO,
        }
    }

    pub fn add_sample(&mut self, snapshot: Snapshot) {
        self.now = self.now.saturating_add(self.interval);
        let snapshot = Box::new(snapshot);
        update(&mut self.app, Event::Snapshot { now: self.now, snapshot });
    }

    pub fn end(&mut self) {
        update(&mut self.app, Event::SourceEnded);
    }

    fn request_commands(&mut self, worker: &mut ReclaimWorker) {
        if let Some(request) = self.app.request_commands() {
            let mut answer = None;
            let request = Some((request, Duration::ZERO));
            worker.handle(request, &mut |progress| answer = Some(progress));
            answer.and_then(|progress| update(&mut self.app, Event::Reclaim(progress)));
        }
    }

    /// Presses the keys. The worker makes plans but does not carry them out.
    ///
    /// # Errors
    ///
    /// Returns an error for a key whose effect a still frame cannot show.
    pub fn press(
        &mut self,
        keys: Option<&Keys>,
        worker: &mut ReclaimWorker,
    ) -> Result<(), OnceError> {
        self.request_commands(worker);
        let mut keys = keys.into_iter().flat_map(|keys| &keys.0);
        keys.try_for_each(|(name, key)| {
            let effect = update(&mut self.app, Event::Key(*key));
            self.carry_out(effect, name, worker)
        })
    }

    fn carry_out(
        &mut self,
        effect: Option<Effect>,
        key: &str,
        worker: &mut ReclaimWorker,
    ) -> Result<(), OnceError> {
        let mut effects: VecDeque<Effect> = effect.into_iter().collect();
        while let Some(effect) = effects.pop_front() {
            let request = match effect {
                Effect::Reclaim(
                    request @ (ReclaimRequest::Plan(_) | ReclaimRequest::Environment(_)),
                ) => request,
                Effect::Draw
                | Effect::Repaint
                | Effect::Control(
                    Control::Interval(_)
                    | Control::Fast(_)
                    | Control::Speed(_)
                    | Control::Playing(_),
                )
                | Effect::Reclaim(
                    ReclaimRequest::Observe(_)
                    | ReclaimRequest::Stop { .. }
                    | ReclaimRequest::Commands(_)
                    | ReclaimRequest::Leave,
                ) => continue,
                Effect::Quit => return Err(OnceError::Leaves { key: key.to_owned() }),
                _ => return Err(OnceError::NotStill { key: key.to_owned() }),
            };
            let mut received = Vec::new();
            let request = Some((request, Duration::ZERO));
            worker.handle(request, &mut |progress| received.push(progress));
            let events = received.into_iter().map(Event::Reclaim);
            effects.extend(events.filter_map(|event| update(&mut self.app, event)));
        }
        self.request_commands(worker);
        Ok(())
    }

    pub fn text(&self, has_styles: bool) -> String {
        write_text(&self.draw(), has_styles)
    }

    pub fn svg(&self) -> String {
        svg::write(&self.draw(), self.app.theme, &self.description())
    }

    fn draw(&self) -> Buffer {
        let mut canvas = Buffer::empty(self.app.area);
        view::draw(&self.app, &mut canvas);
        canvas
    }

    fn description(&self) -> String {
        let Some(screenful) = &self.app.screenful else {
            return "the screen of gpumem watch, waiting for its first sample".to_owned();
        };
        let snapshot = &screenful.snapshot;
        let rows = number_of(screenful.rows.len(), "row");
        let findings = number_of(screenful.findings.len(), "finding");
        let mut text = format!(
            "the screen of gpumem watch at {}: {}, {rows} of processes, {findings}",
            snapshot.time,
            sum(&snapshot.gpus.iter().collect::<Vec<_>>())
        );
        if let Some(worst) = screenful.findings.first() {
            text.push_str(": ");
            text.push_str(head(&worst.message, MESSAGE_CHARS));
        }
        escape(&text).into_owned()
    }
}

/// Formats a frame as text, without invisible blanks at the end of lines.
pub fn write_text(buffer: &Buffer, has_styles: bool) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut out = String::with_capacity(buffer.content.len() * 2);
    for line in buffer.content.chunks(width) {
        let end = line
            .iter()
            .rposition(|cell| cell.symbol() != " " || has_styles && is_painted(cell))
            .map_or(0, |at| at + 1);
        let mut style = String::new();
        for (_, cell, _) in visible(&line[..end]) {
            if has_styles {
                let wanted = codes(cell);
                if wanted != style {
                    out.push_str("\x1b[0");
                    out.push_str(&wanted);
                    out.push('m');
                    style = wanted;
                }
            }
            out.push_str(cell.symbol());
        }
        if !style.is_empty() {
            out.push_str("\x1b[0m");
        }
        out.push('\n');
    }
    out
}

fn is_painted(cell: &Cell) -> bool {
    let visible = Modifier::REVERSED | Modifier::UNDERLINED | Modifier::CROSSED_OUT;
    cell.bg != Color::Reset || cell.modifier.intersects(visible)
}

/// Returns the SGR codes for a cell, to be written after code 0, which resets the style.
pub(in crate::watch) fn codes(cell: &Cell) -> String {
    const MODIFIERS: [(Modifier, &str); 6] = [
        (Modifier::BOLD, ";1"),
        (Modifier::DIM, ";2"),
        (Modifier::ITALIC, ";3"),
        (Modifier::UNDERLINED, ";4"),
        (Modifier::REVERSED, ";7"),
        (Modifier::CROSSED_OUT, ";9"),
    ];
    let mut codes = String::new();
    for (modifier, code) in MODIFIERS {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    color(&mut codes, cell.fg, 30);
    color(&mut codes, cell.bg, 40);
    codes
}

fn color(codes: &mut String, color: Color, base: u8) {
    if let Some(number) = number(color) {
        let bright = if number < 8 { 0 } else { 60 - 8 };
        let _ = write!(codes, ";{}", base + bright + number);
    }
}

/// Returns the number of a terminal colour. Themes use only the sixteen named colours.
fn number(color: Color) -> Option<u8> {
    Some(match color {
        Color::Reset | Color::Rgb(..) | Color::Indexed(_) => return None,
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        Color::DarkGray => 8,
        Color::LightRed => 9,
        Color::LightGreen => 10,
        Color::LightYellow => 11,
        Color::LightBlue => 12,
        Color::LightMagenta => 13,
        Color::LightCyan => 14,
        Color::White => 15,
    })
}

/// Returns cells with their columns and widths. The cell after a wide character is skipped.
fn visible(line: &[Cell]) -> impl Iterator<Item = (usize, &Cell, usize)> {
    let mut next = 0;
    line.iter().enumerate().filter_map(move |(at, cell)| {
        if at < next {
            return None;
        }
        let width = usize::from(columns(cell.symbol())).max(1);
        next = at + width;
        Some((at, cell, width))
    })
}

#[cfg(test)]
mod tests;
