//! The role of a systemd unit: whether its processes are its own work, or other people's work that it hosts.
//!
//! With the role, `family` decides whether a unit's processes belong together, the rule `orphan` decides whether an
//! orphan may be the unit's daemon, and `advice::owner` decides whether the unit may be stopped for one process.

use super::owners::OwnerEntry;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The unit is a single piece of work. Stopping the unit stops nothing else.
    Work,
    /// A daemon that runs many people's programs: logins, timers, jobs, notebooks, containers. Stopping it would stop
    /// them all, or lock people out. A process that it started and left behind is not part of the daemon.
    Host { owner: &'static OwnerEntry },
    /// The unit starts daemons at boot and exits. Its remaining processes were meant to stay.
    Starter,
    /// Not a service: a login, a terminal, a slice, or a user's service manager.
    Login,
}

/// Returns the role of a unit, judging by its name: `llm.service`, `session-3.scope`.
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
