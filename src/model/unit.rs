//! Determines the role of a systemd unit: whether its processes do the work of the unit or run the programs of users.
//!
//! The role determines whether a unit's processes belong together (`family`), whether an apparent orphan may be the
//! unit's daemon (the rule `orphan`), and whether the unit can be stopped to end one process (`advice::owner`).

use super::owners::OwnerEntry;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A unit that does a single piece of work. Stopping it stops nothing else.
    Work,
    /// A daemon that runs the programs of many people: logins, timers, jobs, notebooks, containers. Stopping the unit
    /// would end all these programs, or lock people out. Processes that the daemon left behind do not belong to it.
    Host { owner: &'static OwnerEntry },
    /// A unit that starts daemons at boot and exits. The daemons that it leaves behind are intended.
    Starter,
    /// A unit that is not a service: a login, a terminal, a slice, or the service manager of a user.
    Login,
}

/// Returns the role of a unit according to its name, such as `llm.service` or `session-3.scope`.
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
