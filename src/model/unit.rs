//! What a unit of systemd is to the processes in it: their work, or a roof over the work of others.
//!
//! One table for all who ask: `family` (do the processes of a unit belong together), the rule `orphan`
//! (may one that lost its parent be the unit's own daemon), `advice::owner` (may the unit be stopped for
//! one of its processes).

use serde::Deserialize;

use super::names::{NAMES, is_on};

/// What a unit is to a process in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The unit is the work: to stop it ends that work and no other.
    Work,
    /// A daemon under which the programs of many run: logins, timetables, jobs, notebooks, containers.
    /// To stop it would end them all, or the way in. What it started and left is not its own.
    Host {
        /// How one of those programs is ended through the daemon; `None` where that takes no daemon.
        way: Option<&'static Way>,
    },
    /// It starts daemons at boot and is done: what runs in it was meant to stay.
    Starter,
    /// No service: a login, a terminal, a slice, or the manager of a user's units.
    Login,
}

/// How a program is ended through the daemon that runs it.
#[derive(PartialEq, Eq, Debug, Deserialize)]
pub struct Way {
    /// The daemon's units.
    units: Vec<String>,
    /// Who runs it, in words: `GitLab's runner`.
    pub by: String,
    /// What to do, as one does it: `cancel its job in GitLab`.
    pub words: String,
}

/// What a unit is to the processes in it, by its name: `llm.service`, `session-3.scope`.
pub fn role(unit: &str) -> Role {
    let Some(name) = unit.strip_suffix(".service") else {
        return Role::Login;
    };
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    if name == "user" {
        return Role::Login;
    }
    if is_on(&NAMES.starters, name) {
        return Role::Starter;
    }
    let fits = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    let way = NAMES.runners.iter().find(|way| way.units.iter().any(fits));
    if way.is_some() || NAMES.hosts.iter().any(fits) { Role::Host { way } } else { Role::Work }
}
