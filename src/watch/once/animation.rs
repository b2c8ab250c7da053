//! A screen of a recording that is filmed: how it fills, and what keys lead to, frame by frame.
//!
//! Time is that of the frames, so that the same recording and the same keys give the same picture.

use std::time::Duration;

use super::svg::animation::{self, Frame};
use super::{Keys, OnceError, Still};
use crate::model::Snapshot;
use crate::watch::reclaim_worker::ReclaimWorker;
use crate::watch::state::{Event, Mode};

/// While the screen fills, in milliseconds.
const FILLING: u32 = 600;
/// A frame in which nothing changed, and what each changed line adds, for it is read.
const LEAST: u32 = 900;
const LINE: u32 = 60;
const MOST: u32 = 2800;
/// While something is killed a frame is a second, as on the screen.
const RUNNING: u32 = 1000;
/// The last frame, before all begins again.
const LAST: u32 = 4000;
/// Samples that a kill has to come to its end.
const MOST_SAMPLES: usize = 100;

/// Gives the next sample of a recording; `None` at its end.
pub type NextSample<'a> = &'a mut dyn FnMut() -> Option<Snapshot>;

/// A screen and its frames so far.
#[derive(Debug)]
pub struct Animation {
    still: Still,
    frames: Vec<Frame>,
    /// Frames in which the screen fills.
    filling: usize,
}

impl Animation {
    /// Begins with the frame that a screen shows.
    pub fn new(mut still: Still) -> Self {
        // Whoever plans on it carries plans out on the recording.
        still.app.reaping.is_rehearsal = true;
        Self { still, frames: Vec::new(), filling: 0 }
    }

    /// Takes a sample in while the screen fills; with a frame of it where one is wanted.
    pub fn add_sample(&mut self, snapshot: Snapshot, has_frame: bool) {
        self.still.add_sample(snapshot, !has_frame);
        if has_frame {
            self.frame(FILLING);
            self.filling = self.frames.len();
        }
    }

    /// Presses keys, each with a frame after it; of what goes on by itself then, all is seen.
    ///
    /// # Errors
    ///
    /// As [`Still::press`].
    pub fn press(
        &mut self,
        keys: &Keys,
        worker: &mut dyn ReclaimWorker,
        next: NextSample<'_>,
    ) -> Result<(), OnceError> {
        if let Some(last) = self.frames.last_mut() {
            last.milliseconds = MOST;
        }
        for key in &keys.0 {
            let before = self.frames.len();
            self.still.press_key(key, worker)?;
            self.frame(LEAST);
            self.follow(worker, next)?;
            if self.frames.len() == before + 1 {
                self.give_time_to_read();
            }
        }
        if let Some(last) = self.frames.last_mut() {
            last.milliseconds = LAST;
        }
        Ok(())
    }

    /// Counts down and kills, as far as that was asked for.
    fn follow(
        &mut self,
        worker: &mut dyn ReclaimWorker,
        next: NextSample<'_>,
    ) -> Result<(), OnceError> {
        let second = Duration::from_secs(1);
        let is_counting = |still: &Still| {
            still.app.reaping.dialog.as_ref().is_some_and(|it| it.countdown.is_some())
        };
        // The yes is dated by the first tick.
        let mut passed = Duration::ZERO;
        while is_counting(&self.still) {
            self.still.tick(passed, worker)?;
            passed = second;
            self.frame(RUNNING);
        }
        let mut samples = 0;
        while self.still.app.reaping.is_running() && samples < MOST_SAMPLES {
            let Some(snapshot) = next() else {
                break;
            };
            self.still.add_sample_with(snapshot, worker)?;
            self.frame(RUNNING);
            samples += 1;
        }
        if samples > 0 && self.still.app.mode == Mode::Plan {
            self.give_time_to_read();
        }
        Ok(())
    }

    /// Takes a frame, unless it is as the last one, which is then seen for longer.
    fn frame(&mut self, milliseconds: u32) {
        let buffer = self.still.draw();
        self.still.update(Event::Drawn);
        match self.frames.last_mut() {
            Some(last) if last.buffer == buffer => last.milliseconds += milliseconds,
            _ => self.frames.push(Frame { buffer, milliseconds }),
        }
    }

    /// The last frame is shown for as long as what is new in it takes to read.
    fn give_time_to_read(&mut self) {
        let [.., before, last] = &mut self.frames[..] else {
            return;
        };
        let width = usize::from(last.buffer.area.width).max(1);
        let lines = last.buffer.content.chunks(width);
        let changed = lines.zip(before.buffer.content.chunks(width));
        let changed = changed.filter(|(now, then)| now != then).count() as u32;
        last.milliseconds = (LEAST + changed.saturating_mul(LINE)).min(MOST);
    }

    /// All frames in turn, as an SVG document; where nothing moves it shows the screen that was filled.
    pub fn svg(&self) -> String {
        let still = self.filling.saturating_sub(1);
        let description = format!("{}; keys are pressed on it", self.still.description());
        animation::write(&self.frames, still, self.still.app.theme, &description)
    }
}
