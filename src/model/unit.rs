//! The role of a systemd unit: whether its processes are the unit's own work, or other people's
//! work that the unit runs.
//!
//! The role decides three questions: whether a unit's processes belong together (`family`), whether
//! an orphan may be the unit's daemon (the rule `orphan`), and whether the unit may be stopped to
//! end one process (`advice::owner`).

use super::owners::OwnerEntry;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A unit that does a single piece of work. Stopping the unit stops nothing else.
    Work,
    /// A daemon that runs the programs of many people: logins, timers, jobs, notebooks, containers.
    /// Stopping the unit would end all these programs, or lock people out. A process that the
    /// daemon left behind is not part of the daemon.
    Host { owner: &'static OwnerEntry },
    /// A unit that starts daemons at boot and exits. Its remaining processes were meant to stay.
    Starter,
    /// Not a service: a login, a terminal, a slice, or a user's service manager.
    Login,
}

/// Returns the role of a unit, judging by its name, such as `llm.service` or `session-3.scope`.
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
