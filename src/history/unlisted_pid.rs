//! Rows whose pid has no living process: /proc does not know it, or it is a zombie that cannot be identified
//! for certain.
//!
//! A zombie that is known for certain has a [`ProcessHistory`](super::ProcessHistory) like any other.

use foldhash::HashMap;

use super::SampleTime;
use super::row::Began;
use super::streak::Streak;
use crate::model::Process;

/// The most rows without a known process that are watched.
const MOST_UNLISTED: usize = 4096;

/// A pid that NVML lists on a GPU although no living process has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnlistedPid {
    /// Since when every list that was read showed it so.
    pub streak: Streak,
    /// `Z` or `X`; `None` if /proc does not know the pid.
    pub state: Option<char>,
}

/// By the GPU's index and the pid.
#[derive(Clone, Debug, Default)]
pub(super) struct UnlistedPids(HashMap<(usize, u32), UnlistedPid>);

impl UnlistedPids {
    /// Takes in a row without a known process; `was_listed` if the previous list was read too.
    pub(super) fn observe(
        &mut self,
        device: usize,
        pid: u32,
        process: Option<&Process>,
        moment: SampleTime,
        was_listed: bool,
    ) {
        let Some(state) = process.and_then(state_of_unlisted) else {
            self.0.remove(&(device, pid));
            return;
        };
        if let Some(known) = self.0.get_mut(&(device, pid)) {
            known.streak.extend(moment, false);
            known.state = state;
        } else if self.0.len() < MOST_UNLISTED {
            let began = if was_listed { Began::Witnessed } else { Began::Unwitnessed };
            let streak = Streak::new(moment.time, began);
            self.0.insert((device, pid), UnlistedPid { streak, state });
        }
    }

    /// Forgets pids that a known process has (`is_known`), and those unlisted for longer than a gap may be.
    pub(super) fn forget(&mut self, moment: SampleTime, is_known: impl Fn(u32) -> bool) {
        self.0.retain(|(_, pid), unlisted| {
            moment.time - unlisted.streak.until <= moment.allowed_gap && !is_known(*pid)
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

/// The state of a dead process: `Some(None)` if /proc does not know it. `None` for a pid that was looked up and
/// not believed: it has a reason, and may be alive.
fn state_of_unlisted(process: &Process) -> Option<Option<char>> {
    match process.state {
        Some('Z' | 'X') => Some(process.state),
        Some(_) => None,
        None => (process.unresolved.is_none() && !process.identity().is_certain()).then_some(None),
    }
}
