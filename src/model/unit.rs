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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_host_others_differ_from_units_that_are_the_work() {
        for unit in [
            "cron.service",
            "docker.service",
            "jupyter-ann-singleuser.service",
            "jupyterhub.service",
            "k3s-agent.service",
            "podman.service",
            "slurmd.service",
            "ssh.service",
            "sshd@3-10.0.0.1:22-10.0.0.2:999.service",
            "serial-getty@ttyS0.service",
            "systemd-logind.service",
            "supervisor.service",
        ] {
            assert_eq!(role(unit), Role::Host { way: None }, "{unit}");
        }
        for (unit, place) in [
            ("gitlab-runner.service", "GitLab"),
            ("actions.runner.acme-llm.gpu7.service", "GitHub"),
            ("rstudio-server.service", "RStudio"),
        ] {
            let Role::Host { way: Some(way) } = role(unit) else {
                panic!("{unit}");
            };
            assert!(way.words.contains(place), "{unit}");
        }
        for unit in ["llm.service", "train@7.service", "sshtunnel.service", "vllm.service"] {
            assert_eq!(role(unit), Role::Work, "{unit}");
        }
        for unit in ["user@1000.service", "session-3.scope", "run-u7.scope", "x"] {
            assert_eq!(role(unit), Role::Login, "{unit}");
        }
        assert_eq!(role("rc-local.service"), Role::Starter);
    }
}
