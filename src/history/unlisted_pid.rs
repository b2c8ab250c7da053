//! Rows whose pid has no living process: /proc does not list the pid, or shows a zombie whose identity is uncertain.
//! A zombie with a certain identity has a [`ProcessHistory`](super::ProcessHistory) like other processes.

use foldhash::HashMap;

use super::SampleTime;
use super::row::Began;
use super::streak::Streak;
use crate::model::Process;

/// Maximum number of rows without a living process that are watched.
const MOST_UNLISTED: usize = 4096;

/// A pid that NVML lists on a GPU although no living process has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnlistedPid {
    /// The period in which all lists that were read contained the pid, and no living process had it.
    pub streak: Streak,
    /// `Z` or `X`, or `None` if /proc does not list the pid.
    pub state: Option<char>,
}

/// Pids without a living process, by the index of the GPU in the history and by pid.
#[derive(Clone, Debug, Default)]
pub(super) struct UnlistedPids(HashMap<(usize, u32), UnlistedPid>);

impl UnlistedPids {
    /// Starts or extends the streak of a pid whose process no longer runs or is not in /proc. Removes a pid whose
    /// process may be alive, or that has no entry in the snapshot. `was_listed` tells whether the previous list was
    /// read, too.
    pub(super) fn observe(
        &mut self,
        device: usize,
        pid: u32,
        process: Option<&Process>,
        sample: SampleTime,
        was_listed: bool,
    ) {
        let Some(state) = process.and_then(state_of_unlisted) else {
            self.0.remove(&(device, pid));
            return;
        };
        if let Some(unlisted) = self.0.get_mut(&(device, pid)) {
            unlisted.streak.extend(sample, false);
            unlisted.state = state;
        } else if self.0.len() < MOST_UNLISTED {
            let began = if was_listed { Began::Witnessed } else { Began::Unwitnessed };
            let streak = Streak::new(sample.time, began);
            self.0.insert((device, pid), UnlistedPid { streak, state });
        }
    }

    /// Removes pids that belong to known processes (`is_known`), and pids that were not listed for longer than the
    /// allowed gap.
    pub(super) fn forget(&mut self, sample: SampleTime, is_known: impl Fn(u32) -> bool) {
        self.0.retain(|(_, pid), unlisted| {
            sample.time - unlisted.streak.until <= sample.allowed_gap && !is_known(*pid)
        });
    }

    pub(super) fn get(&self, device: usize, pid: u32) -> Option<&UnlistedPid> {
        self.0.get(&(device, pid))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the state of a dead process, or `Some(None)` if /proc does not list the pid. Returns `None` if the process
/// may be alive, because the process in /proc may be a different one.
fn state_of_unlisted(process: &Process) -> Option<Option<char>> {
    match process.state {
        Some('Z' | 'X') => Some(process.state),
        Some(_) => None,
        None => (process.unresolved.is_none() && !process.identity().is_certain()).then_some(None),
    }
}
