//! The role of a systemd unit for its processes: their own work, or a host for other people's work.
//!
//! `family` uses the role to decide whether a unit's processes belong together, the rule `orphan` whether an orphan
//! may be the unit's own daemon, and `advice::owner` whether the unit may be stopped for one of its processes.

use super::owners::OwnerEntry;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The unit is the work: stopping it ends that work and no other.
    Work,
    /// A daemon that runs many people's programs: logins, timers, jobs, notebooks, containers. Stopping it would
    /// end them all, or lock people out. A process that it started and left behind is not part of the daemon.
    Host { owner: &'static OwnerEntry },
    /// The unit starts daemons at boot and exits. Processes in it were meant to stay.
    Starter,
    /// Not a service: a login, a terminal, a slice, or a user's service manager.
    Login,
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
    match OwnerEntry::of_unit(name) {
        Some(owner) if owner.starts_services => Role::Starter,
        Some(owner) => Role::Host { owner },
        None => Role::Work,
    }
}
