//! Keeps judged samples for stepping back, up to a maximum size in bytes.
//!
//! At the limit, older samples of a live machine are thinned out before the oldest are dropped. Recordings are never
//! thinned out, because they can be read again. Rewinding a recording does not change its sample numbers.

use std::collections::{HashSet, VecDeque};
use std::mem::size_of;
use std::sync::Arc;

use crate::model::snapshot::{GpuProcess, Process};
use crate::model::{Identity, Time};
use crate::units::MIB;
use crate::watch::view_model::{JudgedSample, Screenful};

/// Maximum size of one machine's samples: about an hour of a few dozen processes. Charts of CPU use
/// and host memory need these samples.
const BYTES_MAX: usize = 10 * MIB as usize;
const ALL_BYTES: usize = 64 * MIB as usize;
const FINDING_BYTES: usize = 4096;
const UNDECIDED_BYTES: usize = 512;
/// Thinning keeps every tenth sample, and every sample in which a finding began.
const THINNED: u64 = 10;
/// Maximum number of remembered beginnings of findings. A beginning is remembered even after its sample is dropped.
const BEGINNINGS_MAX: usize = 4096;

#[derive(Debug)]
pub struct Timeline {
    bytes_max: usize,
    entries: VecDeque<TimelineEntry>,
    count: u64,
    bytes: usize,
    /// Number of thinned samples at the front.
    thinned: usize,
    /// Numbers of the samples in which findings began.
    beginnings: VecDeque<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRef {
    pub number: u64,
    pub time: Time,
    /// Whether the sample has a finding that the previous sample lacks.
    pub has_beginning: bool,
}

#[derive(Debug)]
struct TimelineEntry {
    reference: FrameRef,
    sample: Arc<JudgedSample>,
    bytes: usize,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::with_limit(BYTES_MAX)
    }
}

impl Timeline {
    /// Creates an empty timeline. The newest sample is kept even if it exceeds the limit.
    pub fn with_limit(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            entries: VecDeque::new(),
            count: 0,
            bytes: 0,
            thinned: 0,
            beginnings: VecDeque::new(),
        }
    }

    pub fn one_of(count: usize) -> Self {
        Self::with_limit(BYTES_MAX.min(ALL_BYTES / count.max(1)))
    }

    pub fn push(&mut self, sample: Arc<JudgedSample>, is_live: bool) -> FrameRef {
        let before = self.entries.back().into_iter().flat_map(|entry| &entry.sample.findings);
        let before: HashSet<&str> = before.map(|finding| &*finding.id).collect();
        let has_beginning = sample.findings.iter().any(|finding| !before.contains(&*finding.id));
        let time = sample.snapshot.time;
        let frame = FrameRef { number: self.count, time, has_beginning };
        self.count += 1;
        if has_beginning {
            self.beginnings.push_back(frame.number);
            if self.beginnings.len() > BEGINNINGS_MAX {
                self.beginnings.pop_front();
            }
        }
        let bytes = bytes(&sample);
        self.bytes += bytes;
        self.entries.push_back(TimelineEntry { reference: frame, sample, bytes });
        self.make_room(is_live);
        frame
    }

    fn make_room(&mut self, is_live: bool) {
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            let dense = self.entries.len() - self.thinned;
            let is_thinning = is_live && dense > self.thinned;
            let oldest_dense = self.entries.get(self.thinned).map(|entry| entry.reference);
            match oldest_dense.filter(|_| is_thinning) {
                Some(frame) if frame.number.is_multiple_of(THINNED) || frame.has_beginning => {
                    self.thinned += 1;
                }
                Some(_) => self.remove(self.thinned),
                None => self.remove(0),
            }
        }
    }

    fn remove(&mut self, at: usize) {
        let Some(entry) = self.entries.remove(at) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        if at < self.thinned {
            self.thinned -= 1;
        }
    }

    pub fn clear(&mut self) {
        *self = Self::with_limit(self.bytes_max);
    }

    pub fn oldest(&self) -> Option<FrameRef> {
        self.entries.front().map(|entry| entry.reference)
    }

    pub fn newest(&self) -> Option<FrameRef> {
        self.entries.back().map(|entry| entry.reference)
    }

    pub fn before(&self, number: u64) -> Option<FrameRef> {
        let at = self.index_of(number).checked_sub(1)?;
        Some(self.entries[at].reference)
    }

    pub fn after(&self, number: u64) -> Option<FrameRef> {
        let entry = self.entries.get(self.index_of(number.saturating_add(1)))?;
        Some(entry.reference)
    }

    pub fn frame_at(&self, time: Time) -> Option<FrameRef> {
        let mut frames = self.entries.iter().map(|entry| entry.reference);
        frames.find(|frame| frame.time >= time)
    }

    /// Returns the first sample after `number` at or after `time`. A sample before `from` also matches: the clock was
    /// set back and may not reach `time` for a long while.
    pub fn leap_on(&self, number: u64, from: Time, time: Time) -> Option<FrameRef> {
        let after = self.index_of(number.saturating_add(1));
        let mut frames = self.entries.range(after..).map(|entry| entry.reference);
        frames.find(|frame| frame.time >= time || frame.time < from)
    }

    /// Returns the earliest sample that a leap back from `number` to `time` reaches. The leap stops where the clock
    /// was set back, but covers at least one sample. The flag is false if the timeline does not reach back far enough
    /// to tell.
    pub fn leap_back(&self, number: u64, from: Time, time: Time) -> (Option<FrameRef>, bool) {
        let frames = self.entries.range(..self.index_of(number)).rev();
        let (mut last, mut later): (Option<FrameRef>, Time) = (None, from);
        for frame in frames.map(|entry| entry.reference) {
            if frame.time > later {
                return (last.or(Some(frame)), true);
            }
            if frame.time < time {
                return (last.or(Some(frame)), true);
            }
            (last, later) = (Some(frame), frame.time);
        }
        (last, last.is_some_and(|frame| frame.time <= time))
    }

    pub fn beginning_after(&self, number: u64) -> Option<FrameRef> {
        let from = self.index_of(number.saturating_add(1));
        let mut frames = self.entries.range(from..).map(|entry| entry.reference);
        frames.find(|frame| frame.has_beginning)
    }

    /// Returns the last sample before `number` in which a finding began, even if the sample was dropped.
    pub fn beginning_before(&self, number: u64) -> Option<u64> {
        let at = self.beginnings.partition_point(|&beginning| beginning < number);
        self.beginnings.get(at.checked_sub(1)?).copied()
    }

    pub fn frame(&self, number: u64) -> Option<FrameRef> {
        let entry = self.entries.get(self.index_of(number))?;
        Some(entry.reference).filter(|frame| frame.number == number)
    }

    pub fn screenful(&self, number: u64) -> Option<Screenful> {
        let entry = self.entries.get(self.index_of(number))?;
        if entry.reference.number != number {
            return None;
        }
        Some(Screenful::from_sample(Arc::clone(&entry.sample)))
    }

    pub fn samples_of(&self, identity: Identity) -> impl Iterator<Item = (Time, &Process)> {
        self.entries.iter().filter_map(move |entry| {
            let process = entry.sample.snapshot.process(identity.pid)?;
            (process.identity() == identity).then_some((entry.reference.time, process))
        })
    }

    fn index_of(&self, number: u64) -> usize {
        self.entries.partition_point(|entry| entry.reference.number < number)
    }
}

/// Estimates a sample's size. Most texts are shared with the previous sample. Command lines are
/// counted, because they can be long.
fn bytes(sample: &JudgedSample) -> usize {
    let snapshot = &sample.snapshot;
    let rows: usize = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes).map(Vec::len).sum();
    let arguments = snapshot.processes.iter().filter_map(|process| process.command.as_ref());
    let arguments: usize =
        arguments.flat_map(|command| command.iter()).map(|word| word.len()).sum();
    size_of::<JudgedSample>()
        + rows * size_of::<GpuProcess>()
        + snapshot.processes.len() * size_of::<Process>()
        + arguments
        + sample.findings.len() * FINDING_BYTES
        + (sample.undecided.len() + sample.suspects.len()) * UNDECIDED_BYTES
}

#[cfg(test)]
mod tests;
