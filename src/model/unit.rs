//! The role of a systemd unit for its processes: their own work, or a host for other people's work.
//!
//! `family` uses the role to decide whether a unit's processes belong together, the rule `orphan` whether an orphan
//! may be the unit's own daemon, and `advice::owner` whether the unit may be stopped for one of its processes.

use serde::Deserialize;

use super::names::{NAMES, is_on};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The unit is the work: stopping it ends that work and no other.
    Work,
    /// A daemon that runs many people's programs: logins, timers, jobs, notebooks, containers. Stopping it would
    /// end them all, or lock people out. A process that it started and left behind is not part of the daemon.
    Host {
        /// How to end one of those programs through the daemon; `None` if no special way is needed.
        way: Option<&'static Way>,
    },
    /// The unit starts daemons at boot and exits. Processes in it were meant to stay.
    Starter,
    /// Not a service: a login, a terminal, a slice, or a user's service manager.
    Login,
}

/// How to end a program through the daemon that runs it.
#[derive(PartialEq, Eq, Debug, Deserialize)]
pub struct Way {
    units: Vec<String>,
    /// The daemon in words: `GitLab's runner`.
    pub by: String,
    /// An imperative: `cancel its job in GitLab`.
    pub words: String,
}

/// The role of a unit by its name: `llm.service`, `session-3.scope`.
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
