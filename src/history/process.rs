//! What is known of one process over time: its CPU use, whether it was stopped, its rows on GPUs.

use super::cpu::Cpu;
use super::row::Row;
use super::{BRIDGED_GAP_MILLISECONDS, Moment};
use crate::model::{Gpu, GpuProcess, Identity, Process, Time};

/// A row per GPU, and under MIG per instance: no process has more.
const MOST_ROWS: usize = 256;

/// What is known of one process.
#[derive(Clone, Debug)]
pub struct ProcessHistory {
    identity: Identity,
    first_seen: Time,
    last_seen: Time,
    state: Option<(char, Time)>,
    resumed_at: Option<Time>,
    cpu: Cpu,
    rows: Vec<Row>,
}

impl ProcessHistory {
    pub(super) fn new(identity: Identity, time: Time) -> Self {
        Self {
            identity,
            first_seen: time,
            last_seen: time,
            state: None,
            resumed_at: None,
            cpu: Cpu::default(),
            rows: Vec::new(),
        }
    }

    pub(super) fn observe(&mut self, process: &Process, moment: Moment) {
        self.last_seen = moment.time;
        self.cpu.observe(
            moment.time,
            process.cpu_seconds,
            process.cpu_percent,
            moment.allowed_gap,
        );
        let Some(state) = process.state else {
            return;
        };
        match self.state {
            Some((known, _)) if known == state => {}
            before => {
                if before.is_some_and(|(known, _)| is_stopped(known)) && !is_stopped(state) {
                    self.resumed_at = Some(moment.time);
                }
                self.state = Some((state, moment.time));
            }
        }
    }

    pub(super) fn observe_row(
        &mut self,
        device: usize,
        gpu: &Gpu,
        row: &GpuProcess,
        moment: Moment,
        was_listed: bool,
    ) {
        let cpu_total = self.cpu.total_at(moment.time);
        let known = match self.rows.iter().position(|known| known.is(device, row)) {
            Some(known) => known,
            None if self.rows.len() < MOST_ROWS => {
                // Most processes are on one GPU, and never get a second row.
                self.rows.reserve_exact(1);
                // The process appeared with its row, or the row in a list that was being read: either
                // way its beginning was seen.
                self.rows
                    .push(Row::new(device, row, moment.time, was_listed));
                self.rows.len() - 1
            }
            None => return,
        };
        self.rows[known].observe(gpu, row, moment, cpu_total);
    }

    /// Lets time pass over what this snapshot did not show; `is_listed` says whether it showed a GPU's
    /// processes. `false` where nothing of the process is worth keeping.
    pub(super) fn observe_what_is_missing(
        &mut self,
        moment: Moment,
        is_listed: impl Fn(usize) -> bool,
    ) -> bool {
        let cpu_total = self.cpu.total_at(moment.time);
        let mut may_be_hidden = false;
        self.rows.retain_mut(|row| {
            if row.last_seen() == moment.time {
                return true;
            }
            row.pass(moment, cpu_total);
            let is_hidden = !is_listed(row.device());
            may_be_hidden |= is_hidden;
            is_hidden || moment.time - row.last_seen() <= moment.allowed_gap
        });
        let gone = moment.time - self.last_seen;
        let keep = if may_be_hidden {
            moment.allowed_gap.max(BRIDGED_GAP_MILLISECONDS)
        } else {
            moment.allowed_gap
        };
        gone <= keep
    }

    /// Who it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// When a snapshot first showed it.
    pub fn first_seen(&self) -> Time {
        self.first_seen
    }

    /// When a snapshot last showed it.
    pub fn last_seen(&self) -> Time {
        self.last_seen
    }

    /// Its state as in /proc, and since when every sample showed that one; `None` while unknown.
    pub fn state(&self) -> Option<(char, Time)> {
        self.state
    }

    /// When it was last seen running again after it had been stopped by a signal or a debugger.
    pub fn resumed_at(&self) -> Option<Time> {
        self.resumed_at
    }

    /// Its CPU use.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Its rows on GPUs.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// Whether a state is that of a process stopped by a signal or a terminal (`T`) or a debugger (`t`).
fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}

#[cfg(test)]
impl ProcessHistory {
    /// Bytes held, by capacity.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.cpu.size() + self.rows.capacity() * size_of::<Row>()
    }
}
