//! What a systemd unit is to its processes: their own work, or a host for others' work.
//!
//! One table for `family` (do a unit's processes belong together), the rule `orphan` (may an orphan be the
//! unit's own daemon), and `advice::owner` (may the unit be stopped for one of its processes).

use serde::Deserialize;

use super::names::{NAMES, is_on};

/// What a unit is to its processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The unit is the work: stopping it ends that work and no other.
    Work,
    /// A daemon that runs many people's programs: logins, timers, jobs, notebooks, containers. Stopping it
    /// would end them all, or lock people out. What it started and left behind is not its own.
    Host {
        /// How to end one of those programs through the daemon; `None` if it is not needed.
        way: Option<&'static Way>,
    },
    /// It starts daemons at boot and is done: processes in it were meant to stay.
    Starter,
    /// No service: a login, a terminal, a slice, or a user's service manager.
    Login,
}

/// How to end a program through the daemon that runs it.
#[derive(PartialEq, Eq, Debug, Deserialize)]
pub struct Way {
    /// The daemon's units.
    units: Vec<String>,
    /// Who runs it, in words: `GitLab's runner`.
    pub by: String,
    /// What to do, as an imperative: `cancel its job in GitLab`.
    pub words: String,
}

/// A unit's role, by its name: `llm.service`, `session-3.scope`.
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
