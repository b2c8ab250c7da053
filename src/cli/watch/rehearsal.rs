//! A kill on the demo, for a picture that plays: the same plan and the same executor, and processes that are
//! those of the recording.
//!
//! Nothing is sent to any process of this machine, and nothing is written to the audit log. Who is killed in
//! it is left out of the samples that follow, and the memory is free there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::{Guarded, ListedProcess};
use crate::model::Snapshot;
use crate::model::snapshot::{Gpu, GpuProcess, Memory};
use crate::reclaim::ledger::{LedgerEntry, LedgerError, LedgerSink};
use crate::reclaim::process_control::{Approved, Handle, NotOpened, NotSent, RequestResult};
use crate::reclaim::release::ReleaseAnswer;
use crate::reclaim::target::Request;
use crate::reclaim::{ProcessControl, Signal, Tools, guarded_by_snapshot};

/// The processes of a recording, and who of them was killed.
#[derive(Clone, Debug, Default)]
pub(super) struct Rehearsal(Arc<Mutex<RecordedProcesses>>);

#[derive(Debug, Default)]
struct RecordedProcesses {
    alive: BTreeMap<u32, Guarded>,
    killed: BTreeSet<(u32, u64)>,
}

impl Rehearsal {
    /// What carries a plan out there.
    pub(super) fn tools(&self) -> Tools {
        let control = RecordedControl {
            processes: self.clone(),
            opened: Vec::new(),
            answer: RequestResult::Done,
        };
        Tools::new(Box::new(control), Box::new(NoLedger))
    }

    /// Takes a sample of the recording, without those who were killed.
    pub(super) fn apply(&self, snapshot: &mut Snapshot) {
        let mut processes = self.lock();
        let killed: Vec<u32> = snapshot
            .processes
            .iter()
            .filter(|it| {
                it.start_ticks.is_some_and(|start| processes.killed.contains(&(it.pid, start)))
            })
            .map(|it| it.pid)
            .collect();
        snapshot.processes.retain(|it| !killed.contains(&it.pid));
        for gpu in &mut snapshot.gpus {
            free(gpu, |row| killed.contains(&row.pid));
        }
        let alive = snapshot.processes.iter();
        processes.alive = alive
            .filter_map(|process| Some((process.pid, guarded_by_snapshot(process)?)))
            .collect();
    }

    fn kill(&self, pid: u32) {
        let mut processes = self.lock();
        if let Some(process) = processes.alive.remove(&pid) {
            processes.killed.insert((pid, process.start_ticks));
        }
    }

    fn is_alive(&self, who: &Approved) -> bool {
        let processes = self.lock();
        let process = processes.alive.get(&who.pid);
        process.is_some_and(|it| it.start_ticks == who.start_ticks)
    }

    fn lock(&self) -> MutexGuard<'_, RecordedProcesses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes rows off a GPU's list, with their memory.
fn free(gpu: &mut Gpu, is_killed: impl Fn(&GpuProcess) -> bool) {
    let Some(rows) = &mut gpu.processes else {
        return;
    };
    let killed = rows.iter().filter(|row| is_killed(row));
    let bytes: u64 = killed.filter_map(|row| row.used_bytes).sum();
    rows.retain(|row| !is_killed(row));
    if let Some(Memory { used_bytes, free_bytes, .. }) = &mut gpu.memory {
        let freed = bytes.min(*used_bytes);
        *used_bytes -= freed;
        *free_bytes += freed;
    }
}

/// Control of the processes of a recording.
struct RecordedControl {
    processes: Rehearsal,
    opened: Vec<Approved>,
    answer: RequestResult,
}

impl ProcessControl for RecordedControl {
    fn open(&mut self, who: &Approved) -> Result<Handle, NotOpened> {
        if !self.processes.is_alive(who) {
            return Err(NotOpened::Gone(who.pid));
        }
        self.opened.push(who.clone());
        Ok(Handle(self.opened.len() - 1))
    }

    fn read_guarded(&mut self, pid: u32) -> Option<Guarded> {
        self.processes.lock().alive.get(&pid).cloned()
    }

    fn signal(&mut self, handle: Handle, signal: Signal) -> Result<(), NotSent> {
        let who = self.opened.get(handle.0).ok_or(NotSent::Gone)?;
        if !self.processes.is_alive(who) {
            return Err(NotSent::Gone);
        }
        if signal != Signal::Cont {
            self.processes.kill(who.pid);
        }
        Ok(())
    }

    fn has_exited(&mut self, handle: Handle) -> bool {
        let who = self.opened.get(handle.0);
        who.is_none_or(|who| !self.processes.is_alive(who))
    }

    fn list(&mut self) -> Vec<ListedProcess> {
        let processes = self.processes.lock();
        let listed = processes.alive.iter().map(|(&pid, facts)| ListedProcess {
            pid,
            start_ticks: facts.start_ticks,
            ppid: facts.ppid,
            process_group: facts.process_group,
            session: facts.session,
        });
        listed.collect()
    }

    fn held_up(&mut self, _: u32) -> Option<String> {
        None
    }

    fn start_request(&mut self, request: Request) {
        self.answer = match &request {
            Request::Release { .. } => {
                let why = "a recorded process cannot be asked".to_owned();
                RequestResult::Released(ReleaseAnswer::NoWayIn(why))
            }
            _ => RequestResult::Done,
        };
        for pid in request.pids() {
            self.processes.kill(pid);
        }
    }

    fn answer(&mut self) -> RequestResult {
        self.answer.clone()
    }

    fn release(&mut self) {
        self.opened.clear();
    }
}

/// Nothing is done of which there had to be a record.
struct NoLedger;

impl LedgerSink for NoLedger {
    fn write(&mut self, _: &LedgerEntry) -> Result<(), LedgerError> {
        Ok(())
    }
}
