//! Holds pidfds for the processes that an act may signal: the target's members, its launcher, and new children of the
//! members.
//!
//! A process outside the plan is added only if it started after the act began, is a child of a living member, and holds
//! a GPU. It must also pass the checks in [`may_be_added`]. Sharing a session, process group, cgroup or name is not
//! enough, because unrelated processes can share them. This module sends no signals.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::guard::{Call, Guard, is_gpu_open};
use super::policy::WORKING_CPU_PERCENT;
use super::process_control::{ApprovedProcess, Handle, NotOpened, ProcessControl};
use super::respawn::Respawn;
use super::target::{LedgerProcess, Target, TargetProcess};
use crate::host::{Guarded, ListedProcess};
use crate::model::{self, GpuProcess, Snapshot, Time};
use crate::rules::exemption::may_exempt;

/// Minimum age, in seconds since its first observation, of an added process. Between fork and exec, a process still
/// has its parent's environment and open files.
const MIN_AGE_SECONDS: f64 = 1.0;

/// Maximum number of added processes. Without this limit, only the user's process limit would stop a fork bomb.
const MAX_ADOPTED: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct HeldProcess {
    pub pid: u32,
    pub start_ticks: u64,
    uid: u32,
    pub handle: Handle,
    /// Whether the process is a member or an added child, not the launcher.
    pub is_member: bool,
    /// Whether the process started after the act began and was added by [`Handles::adopt`].
    pub is_adopted: bool,
    /// Path of the program, from the last successful read.
    pub executable: Option<Arc<str>>,
}

impl HeldProcess {
    pub fn process(&self) -> LedgerProcess {
        LedgerProcess { pid: self.pid, start_ticks: self.start_ticks }
    }
}

#[derive(Debug, Default)]
pub(super) struct Handles {
    all: Vec<HeldProcess>,
    boot_id: Option<Arc<str>>,
    ended: HashSet<u32>,
    /// Pid and start ticks of each process that existed before the first action.
    present: HashSet<(u32, u64)>,
    /// When each new child was first observed.
    born: HashMap<(u32, u64), Time>,
    respawn: Respawn,
}

impl Handles {
    pub fn new(boot_id: Option<Arc<str>>) -> Self {
        Self { boot_id, ..Self::default() }
    }

    pub fn open(
        &mut self,
        process: &TargetProcess,
        is_member: bool,
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Result<(), NotOpened> {
        let TargetProcess { pid, start_ticks, uid, .. } = *process;
        let opened = self.hold((pid, start_ticks, uid), control);
        if let Err(NotOpened::Gone(pid)) = opened {
            self.ended.insert(pid);
        }
        let shown = snapshot.same_process(pid, start_ticks).filter(|_| is_member);
        let executable = shown.and_then(|process| process.executable.clone());
        self.all.push(HeldProcess { is_member, executable, ..opened? });
        Ok(())
    }

    fn hold(
        &self,
        (pid, start_ticks, uid): (u32, u64, u32),
        control: &mut dyn ProcessControl,
    ) -> Result<HeldProcess, NotOpened> {
        let boot_id = self.boot_id.clone();
        let handle = control.open(&ApprovedProcess { pid, start_ticks, uid, boot_id })?;
        let (is_member, is_adopted, executable) = (true, false, None);
        Ok(HeldProcess { pid, start_ticks, uid, handle, is_member, is_adopted, executable })
    }

    /// Records, before the first action, which processes exist and what a successor of each member would look like.
    pub fn record_existing(&mut self, snapshot: &Snapshot, control: &mut dyn ProcessControl) {
        let listed = control.list();
        self.present = listed.iter().map(|process| (process.pid, process.start_ticks)).collect();
        for held in self.all.iter().filter(|held| held.is_member) {
            let facts = control.read_guarded(held.pid);
            if let Some(facts) = facts.filter(|facts| facts.start_ticks == held.start_ticks) {
                self.respawn.expect(held.pid, facts, snapshot);
            }
        }
    }

    /// Returns whether the process has exited, or did not exist when the act began.
    pub fn has_ended(&self, pid: u32) -> bool {
        self.ended.contains(&pid)
    }

    /// Returns the living processes. An added process is included only if it may hold a GPU.
    pub fn concerned(
        &mut self,
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Vec<HeldProcess> {
        let mut alive = self.alive(control);
        alive.retain(|held| {
            let holds = |facts| holds_gpu(held.pid, &facts, snapshot) != Some(false);
            !held.is_adopted || control.read_guarded(held.pid).is_none_or(holds)
        });
        alive
    }

    /// Returns all living processes, including the launcher.
    pub fn alive(&mut self, control: &mut dyn ProcessControl) -> Vec<HeldProcess> {
        let mut alive = self.all.clone();
        alive.retain(|held| {
            let has_exited = control.has_exited(held.handle);
            if has_exited {
                self.ended.insert(held.pid);
            }
            !has_exited
        });
        alive
    }

    /// Opens handles on the members' new children that hold a GPU and pass the checks of the guard.
    pub fn adopt(
        &mut self,
        call: Call,
        guard: &Guard,
        now: Time,
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) {
        let listed = control.list();
        // Check which parents are alive only after listing the processes. A parent that is alive now already had its
        // pid when the list was made, so the listed children are really its children.
        let alive = self.alive(control);
        let parents: HashSet<u32> =
            alive.iter().filter(|held| held.is_member).map(|held| held.pid).collect();
        let uids: HashSet<u32> = self.all.iter().map(|held| held.uid).collect();
        let adopted = self.all.iter().filter(|held| held.is_adopted).count();
        let mut found = Vec::new();
        for child in &listed {
            let key = (child.pid, child.start_ticks);
            let Some(parent) = child.ppid.filter(|ppid| parents.contains(ppid)) else {
                continue;
            };
            if self.present.contains(&key) || self.is_held(child) {
                continue;
            }
            let first_seen = *self.born.entry(key).or_insert(now);
            if now.seconds_since(first_seen) < MIN_AGE_SECONDS {
                continue;
            }
            let facts = control.read_guarded(child.pid);
            let is_same = |facts: &Guarded| {
                facts.start_ticks == child.start_ticks && facts.ppid == Some(parent)
            };
            let Some(facts) = facts.filter(is_same) else {
                continue;
            };
            let Some(uid) = facts.uid.filter(|uid| uids.contains(uid)) else {
                continue;
            };
            if adopted + found.len() < MAX_ADOPTED
                && holds_gpu(child.pid, &facts, snapshot) == Some(true)
                && may_be_added(call, guard, child, &facts, snapshot)
            {
                found.push((*child, uid));
            }
        }
        for (child, uid) in found {
            // A child that has exited since it was listed cannot be opened.
            if let Ok(held) = self.hold((child.pid, child.start_ticks, uid), control) {
                self.all.push(HeldProcess { is_adopted: true, ..held });
            }
        }
    }

    /// Returns the pids of living descendants that may hold a GPU and have no handle. These processes could end
    /// together with their ancestor.
    pub fn descendants_not_held(
        &self,
        parents: impl Iterator<Item = u32>,
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Vec<u32> {
        let listed = control.list();
        let mut queue: Vec<u32> = parents.collect();
        let mut visited: HashSet<u32> = queue.iter().copied().collect();
        let mut found = Vec::new();
        while let Some(parent) = queue.pop() {
            for process in listed.iter().filter(|process| process.ppid == Some(parent)) {
                if !visited.insert(process.pid) {
                    continue;
                }
                queue.push(process.pid);
                let facts = control.read_guarded(process.pid);
                let facts = facts.filter(|facts| facts.start_ticks == process.start_ticks);
                let holds =
                    |facts: Guarded| holds_gpu(process.pid, &facts, snapshot) != Some(false);
                if !self.is_held(process) && facts.is_some_and(holds) {
                    found.push(process.pid);
                }
            }
        }
        found.sort_unstable();
        found
    }

    pub fn successor(
        &self,
        target: &Target,
        snapshot: &Snapshot,
        control: &mut dyn ProcessControl,
    ) -> Option<u32> {
        let listed = control.list();
        let is_new = |process: &&ListedProcess| {
            !self.present.contains(&(process.pid, process.start_ticks)) && !self.is_held(process)
        };
        let new: Vec<&ListedProcess> = listed.iter().filter(is_new).collect();
        self.respawn.find(target, &new, snapshot, control)
    }

    fn is_held(&self, process: &ListedProcess) -> bool {
        let key = (process.pid, process.start_ticks);
        self.all.iter().any(|held| (held.pid, held.start_ticks) == key)
    }
}

/// Returns whether a process holds a GPU: NVML lists it in the newest snapshot, or it has a device file open. Returns
/// `None` if NVML does not list the process and its file descriptors cannot be read.
pub(super) fn holds_gpu(pid: u32, facts: &Guarded, snapshot: &Snapshot) -> Option<bool> {
    let shown = snapshot.same_process(pid, facts.start_ticks);
    if shown.is_some() && snapshot.rows_of(pid).next().is_some() {
        return Some(true);
    }
    let files = facts.gpu_files.as_deref()?;
    Some(files.iter().any(|path| is_gpu_open(path)))
}

/// Returns whether a new child may be added to the target. Its facts are checked as for a process that rules found,
/// even if a person named the target.
fn may_be_added(
    call: Call,
    guard: &Guard,
    child: &ListedProcess,
    facts: &Guarded,
    snapshot: &Snapshot,
) -> bool {
    if guard.by_facts(Call::Rule, child.pid, Some(facts), None).is_some() {
        return false;
    }
    let process = newborn(child, facts, snapshot);
    let uses_gpu = |row: &GpuProcess| row.sm_percent.is_some_and(|percent| percent > 0);
    let is_at_work = call == Call::Rule
        && (process.cpu_percent.is_some_and(|percent| percent >= WORKING_CPU_PERCENT)
            || snapshot.rows_of(child.pid).any(uses_gpu));
    // The environment of an added process must be readable, even if a person named the target.
    facts.environment.is_some()
        && !is_at_work
        && guard.by_snapshot(call, &process, snapshot).is_none()
        && !may_exempt(&guard.policy.keeps, &process, snapshot)
}

/// Returns a new process as a snapshot would show it. Facts that were not read are copied from its parent, or unknown
/// if the parent's would be misleading.
fn newborn(child: &ListedProcess, facts: &Guarded, snapshot: &Snapshot) -> model::Process {
    if let Some(shown) = snapshot.same_process(child.pid, child.start_ticks) {
        return model::Process { environment: facts.environment.clone(), ..shown.clone() };
    }
    let parent = facts.ppid.and_then(|ppid| snapshot.process(ppid));
    model::Process {
        pid: child.pid,
        start_ticks: Some(child.start_ticks),
        start_time: None,
        ppid: facts.ppid,
        process_group: facts.process_group,
        session: facts.session,
        state: facts.state,
        uid: facts.uid,
        comm: facts.comm.clone(),
        command: facts.command.clone(),
        environment: facts.environment.clone(),
        executable: facts.executable.clone(),
        cpu_percent: None,
        cpu_seconds: None,
        listening: None,
        // The libraries and open files of the parent may not be those of the new process.
        gpu_files: None,
        framework: None,
        framework_version: None,
        jupyter: None,
        ..parent.cloned().unwrap_or_default()
    }
}
