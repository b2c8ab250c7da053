//! Rows of processes that are none any more: the pid is not in /proc, or is a zombie that cannot be told
//! for certain.
//!
//! A zombie that is known for certain has a [`ProcessHistory`](super::ProcessHistory) like any other.

use foldhash::HashMap;

use super::SampleTime;
use super::row::Began;
use super::streak::Streak;
use crate::model::Process;

/// More rows without a known process than this are not watched.
const MOST_UNLISTED: usize = 4096;

/// A pid that NVML lists on a GPU while there is no living process of that number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnlistedPid {
    /// Since when every list that was read showed it so.
    pub streak: Streak,
    /// `Z` or `X`; `None` where /proc does not know the pid.
    pub state: Option<char>,
}

/// The unlisted pids, by the place of their GPU and their pid.
#[derive(Clone, Debug, Default)]
pub(super) struct UnlistedPids(HashMap<(usize, u32), UnlistedPid>);

impl UnlistedPids {
    /// Takes in a row without a known process; `was_listed` where the list before this one was read too.
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

    /// Forgets those whose pid is a known process (`is_known`), and those that were not listed for longer
    /// than a gap may be.
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

/// The state of a process that is none any more: `Some(None)` where /proc does not know it. One that
/// was looked up and not believed has a reason, and may well be alive.
fn state_of_unlisted(process: &Process) -> Option<Option<char>> {
    match process.state {
        Some('Z' | 'X') => Some(process.state),
        Some(_) => None,
        None => (process.unresolved.is_none() && !process.identity().is_certain()).then_some(None),
    }
}
