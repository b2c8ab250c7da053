//! Finds a snapshot's processes by pid, for many lookups.

use std::cell::OnceCell;

use foldhash::HashMap;

use super::{Process, Snapshot};

/// An index that is built at the first lookup.
#[derive(Debug)]
pub struct ProcessesByPid<'a> {
    snapshot: &'a Snapshot,
    all: OnceCell<HashMap<u32, &'a Process>>,
}

impl<'a> ProcessesByPid<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, all: OnceCell::new() }
    }

    /// As [`Snapshot::process`], which scans: of two with one pid the first.
    pub fn get(&self, pid: u32) -> Option<&'a Process> {
        let all = self.all.get_or_init(|| {
            let listed = self.snapshot.processes.iter().rev();
            listed.map(|it| (it.pid, it)).collect()
        });
        all.get(&pid).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Time;

    #[test]
    fn each_is_the_one_that_the_snapshot_finds() {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.processes = [7, 3, 9, 3]
            .into_iter()
            .zip(1..)
            .map(|(pid, start_ticks)| Process {
                pid,
                start_ticks: Some(start_ticks),
                ..Process::default()
            })
            .collect();
        let processes = ProcessesByPid::new(&snapshot);
        for pid in 0..12 {
            let found = processes.get(pid).map(std::ptr::from_ref);
            let plain = snapshot.process(pid).map(std::ptr::from_ref);
            assert_eq!(found, plain, "{pid}");
        }
    }
}
