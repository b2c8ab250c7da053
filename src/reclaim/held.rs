//! Whom an act holds on to: the members of its target, their launcher, and whom they start meanwhile.
//!
//! A process that is started while its family is being ended is one of it where that can be told for
//! certain: it is a child of one who is alive, or of the group or session that a member leads and
//! another still lives in. Who was there before is not. Nothing is sent here; see `act`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::guard::{Call, Guard};
use super::hands::{Approved, Handle, Hands, NotOpened};
use super::ledger::Process;
use super::target::Member;
use crate::host::{Listed, parse_kernel};

/// How many are taken hold of besides the target: a fork bomb is bounded by its user's limit.
const MOST_ADOPTED: usize = 4096;

/// A process that is held.
#[derive(Clone, Debug)]
pub(super) struct One {
    pub pid: u32,
    pub start_ticks: u64,
    uid: u32,
    handle: Handle,
    /// Of the family, and not its launcher.
    pub is_member: bool,
    process_group: Option<u32>,
    session: Option<u32>,
    /// What it ran when it still told.
    pub executable: Option<Arc<str>>,
}

impl One {
    /// As it is written down.
    pub fn process(&self) -> Process {
        Process {
            pid: self.pid,
            start_ticks: self.start_ticks,
        }
    }
}

/// What a process that takes another's place has in common with it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    ppid: u32,
    command: Arc<[Arc<str>]>,
    /// The command is that of one kernel of a notebook, whoever starts it: a server may start it through
    /// a wrapper, which is another one each time.
    is_kernel: bool,
}

/// Everybody who is held.
#[derive(Debug, Default)]
pub(super) struct Held {
    all: Vec<One>,
    /// How many of them were not in the target.
    adopted: usize,
    boot_id: Option<Arc<str>>,
    /// Who was gone before anything was done, or has exited since.
    ended: HashSet<u32>,
    /// Who there was before anything was done.
    present: HashSet<(u32, u64)>,
    /// Process groups, and sessions, that are the family's own.
    groups: HashSet<u32>,
    sessions: HashSet<u32>,
    places: Vec<Place>,
}

impl Held {
    /// Nobody, in a boot.
    pub fn new(boot_id: Option<Arc<str>>) -> Self {
        Self {
            boot_id,
            ..Self::default()
        }
    }

    /// Takes hold of a member, or the launcher, of a target.
    pub fn open(
        &mut self,
        member: &Member,
        is_member: bool,
        hands: &mut dyn Hands,
    ) -> Result<(), NotOpened> {
        let opened = hands.open(&Approved {
            pid: member.pid,
            start_ticks: member.start_ticks,
            uid: member.uid,
            boot_id: self.boot_id.clone(),
        });
        if let Err(NotOpened::Gone(pid)) = opened {
            self.ended.insert(pid);
        }
        self.all.push(One {
            pid: member.pid,
            start_ticks: member.start_ticks,
            uid: member.uid,
            handle: opened?,
            is_member,
            process_group: member.process_group,
            session: member.session,
            executable: None,
        });
        Ok(())
    }

    /// Remembers what a process ran.
    pub fn remember(&mut self, pid: u32, executable: Option<Arc<str>>) {
        if let Some(one) = self.all.iter_mut().find(|one| one.pid == pid) {
            one.executable = executable;
        }
    }

    /// Looks who there is before anything is done, and what the family's own groups are: those that a
    /// member leads, or whose leader is gone.
    pub fn look_around(&mut self, hands: &mut dyn Hands) {
        let listed = hands.list();
        let leads = |number: u32| {
            self.all
                .iter()
                .any(|one| one.is_member && one.pid == number)
                || listed.iter().all(|it| it.pid != number)
        };
        let members = || self.all.iter().filter(|one| one.is_member);
        let groups = members().filter_map(|one| one.process_group);
        let groups: HashSet<u32> = groups.filter(|&number| leads(number)).collect();
        let sessions = members().filter_map(|one| one.session);
        let sessions: HashSet<u32> = sessions.filter(|&number| leads(number)).collect();
        (self.groups, self.sessions) = (groups, sessions);
        self.present = listed.iter().map(|it| (it.pid, it.start_ticks)).collect();
        for one in self.all.iter().filter(|one| one.is_member) {
            let facts = hands.look(one.pid);
            let facts = facts.filter(|it| it.start_ticks == one.start_ticks);
            if let Some((ppid, command)) = facts.and_then(|it| it.ppid.zip(it.command)) {
                let kernel = parse_kernel(&command).and_then(|kernel| kernel.kernel_id);
                self.places.push(Place {
                    ppid,
                    command,
                    is_kernel: kernel.is_some(),
                });
            }
        }
    }

    /// Who is held by a handle.
    pub fn get(&self, handle: Handle) -> Option<&One> {
        self.all.iter().find(|one| one.handle == handle)
    }

    /// Whether a process was not there, or has exited.
    pub fn has_ended(&self, pid: u32) -> bool {
        self.ended.contains(&pid)
    }

    /// Whether there are some who were not in the target.
    pub fn has_adopted(&self) -> bool {
        self.adopted > 0
    }

    /// Those who have not exited, the launcher among them.
    pub fn alive(&mut self, hands: &mut dyn Hands) -> Vec<Handle> {
        let mut alive = Vec::new();
        for one in &self.all {
            if hands.has_exited(one.handle) {
                self.ended.insert(one.pid);
            } else {
                alive.push(one.handle);
            }
        }
        alive
    }

    /// Takes hold of those whom the family has started since, and says who they are.
    pub fn adopt(&mut self, guard: &Guard, hands: &mut dyn Hands) -> Vec<Handle> {
        let listed = hands.list();
        // Asked after the list was made: whoever is alive now had its number all the while, and so
        // had its group.
        let alive = self.alive(hands);
        let alive: Vec<&One> = self
            .all
            .iter()
            .filter(|one| alive.contains(&one.handle))
            .collect();
        let parents: HashSet<u32> = alive.iter().map(|one| one.pid).collect();
        let lives = |number: Option<u32>, own: &HashSet<u32>, of: fn(&One) -> Option<u32>| {
            number.is_some_and(|number| {
                own.contains(&number) && alive.iter().any(|one| of(one) == Some(number))
            })
        };
        let known: HashSet<(u32, u64)> = self
            .all
            .iter()
            .map(|one| (one.pid, one.start_ticks))
            .collect();
        let uids: HashSet<u32> = self.all.iter().map(|one| one.uid).collect();
        let mut found = Vec::new();
        for it in &listed {
            let key = (it.pid, it.start_ticks);
            let is_kin = it.ppid.is_some_and(|ppid| parents.contains(&ppid))
                || lives(it.process_group, &self.groups, |one| one.process_group)
                || lives(it.session, &self.sessions, |one| one.session);
            if !is_kin || self.present.contains(&key) || known.contains(&key) {
                continue;
            }
            let facts = hands
                .look(it.pid)
                .filter(|facts| facts.start_ticks == it.start_ticks);
            let Some(uid) = facts.as_ref().and_then(|facts| facts.uid) else {
                continue;
            };
            let is_free = guard
                .by_facts(Call::Rule, it.pid, facts.as_ref(), None)
                .is_none();
            if is_free && uids.contains(&uid) && self.adopted + found.len() < MOST_ADOPTED {
                found.push((*it, uid));
            }
        }
        let mut adopted = Vec::new();
        for (it, uid) in found {
            adopted.extend(self.adopt_one(&it, uid, hands));
        }
        adopted
    }

    fn adopt_one(&mut self, it: &Listed, uid: u32, hands: &mut dyn Hands) -> Option<Handle> {
        // One that has gone meanwhile is no loss.
        let handle = hands.open(&Approved {
            pid: it.pid,
            start_ticks: it.start_ticks,
            uid,
            boot_id: self.boot_id.clone(),
        });
        let handle = handle.ok()?;
        self.all.push(One {
            pid: it.pid,
            start_ticks: it.start_ticks,
            uid,
            handle,
            is_member: true,
            process_group: it.process_group,
            session: it.session,
            executable: None,
        });
        self.adopted += 1;
        Some(handle)
    }

    /// A process that was started since, by whoever had started a member, with the same command; of a
    /// notebook's kernel, by anybody.
    pub fn successor(&self, hands: &mut dyn Hands) -> Option<u32> {
        let parents: HashMap<u32, Vec<&Place>> =
            self.places.iter().fold(HashMap::new(), |mut by, place| {
                by.entry(place.ppid).or_default().push(place);
                by
            });
        let is_held = |it: &Listed| {
            self.all
                .iter()
                .any(|one| (one.pid, one.start_ticks) == (it.pid, it.start_ticks))
        };
        let kernels: Vec<&Place> = self.places.iter().filter(|it| it.is_kernel).collect();
        let listed = hands.list();
        let new = listed
            .iter()
            .filter(|it| !self.present.contains(&(it.pid, it.start_ticks)) && !is_held(it));
        for it in new {
            let siblings = it.ppid.and_then(|ppid| parents.get(&ppid));
            let mut places = siblings.into_iter().flatten().chain(&kernels).peekable();
            if places.peek().is_none() {
                continue;
            }
            let command = hands
                .look(it.pid)
                .filter(|facts| facts.start_ticks == it.start_ticks)
                .and_then(|facts| facts.command);
            if places.any(|place| Some(&place.command) == command.as_ref()) {
                return Some(it.pid);
            }
        }
        None
    }
}
