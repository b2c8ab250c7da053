//! What a unit of systemd is to the processes in it: their work, or a roof over the work of others.
//!
//! One table for all who ask: `family` (do the processes of a unit belong together), the rule `orphan`
//! (may one that lost its parent be the unit's own daemon), `advice::owner` (may the unit be stopped for
//! one of its processes).

/// What a unit is to a process in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The unit is the work: to stop it ends that work and no other.
    Work,
    /// A daemon under which the programs of many run: logins, timetables, jobs, notebooks, containers.
    /// To stop it would end them all, or the way in. What it started and left is not its own.
    Host {
        /// How one of those programs is ended through the daemon; `None` where that takes no daemon.
        way: Option<Way>,
    },
    /// It starts daemons at boot and is done: what runs in it was meant to stay.
    Starter,
    /// No service: a login, a terminal, a slice, or the manager of a user's units.
    Login,
}

/// How a program is ended through the daemon that runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Who runs it, in words: `GitLab's runner`.
    pub by: &'static str,
    /// What to do, as one does it: `cancel its job in GitLab`.
    pub words: &'static str,
}

const fn way(by: &'static str, words: &'static str) -> Option<Way> {
    Some(Way { by, words })
}

/// Daemons that run what others ask them to, by their names without what follows `@` and without
/// `.service`; `*` at the end stands for the rest.
#[rustfmt::skip]
const HOSTS: &[(&str, Option<Way>)] = &[
    // Continuous integration: the server shows the job as failed, and whose it is.
    ("actions.runner.*", way("GitHub's runner", "cancel its workflow run in GitHub")),
    ("actions-runner*", way("GitHub's runner", "cancel its workflow run in GitHub")),
    ("buildkite-agent*", way("Buildkite's agent", "cancel its build in Buildkite")),
    ("gitlab-runner*", way("GitLab's runner", "cancel its job in GitLab")),
    ("jenkins*", way("Jenkins", "abort its build in Jenkins")),
    ("rstudio-server*", way("RStudio", "end its session in RStudio: Session > Terminate R")),
    // Notebooks, editors in a browser: their servers hold everybody's.
    ("code-server*", None),
    ("code-tunnel*", None),
    ("jupyter*", None),
    ("vscode*", None),
    // Timetables.
    ("anacron", None),
    ("atd", None),
    ("cron", None),
    ("cronie", None),
    ("crond", None),
    ("fcron", None),
    // Logins, remote shells and screens.
    ("amazon-ssm-agent", None),
    ("cockpit*", None),
    ("dcvserver", None),
    ("dropbear", None),
    ("getty", None),
    ("inetd", None),
    ("nxserver", None),
    ("ssh", None),
    ("sshd", None),
    ("tailscaled", None),
    ("teleport", None),
    ("tigervncserver", None),
    ("vncserver*", None),
    ("x2goserver*", None),
    ("xinetd", None),
    ("xrdp*", None),
    ("console-getty", None),
    ("container-getty", None),
    ("serial-getty", None),
    // Desktops, and what a person's programs are started by.
    ("dbus*", None),
    ("display-manager", None),
    ("emacs", None),
    ("gdm*", None),
    ("gnome-*", None),
    ("greetd", None),
    ("konsole", None),
    ("lightdm", None),
    ("org.gnome.*", None),
    ("plasma*", None),
    ("screen", None),
    ("sddm", None),
    ("tmux", None),
    ("xdg-*", None),
    // Schedulers' daemons.
    ("condor", None),
    ("htcondor", None),
    ("lsfd", None),
    ("munge", None),
    ("nomad", None),
    ("pbs*", None),
    ("sgeexecd*", None),
    ("slurm*", None),
    // Containers and machines.
    ("containerd*", None),
    ("cri-docker*", None),
    ("crio", None),
    ("docker*", None),
    ("incus*", None),
    ("k3s*", None),
    ("kubelet", None),
    ("libvirtd", None),
    ("lxc*", None),
    ("lxd*", None),
    ("podman*", None),
    ("rke2*", None),
    ("snap.docker.*", None),
    ("snap.lxd.*", None),
    // Whatever they were told to keep up.
    ("circus*", None),
    ("init", None),
    ("monit", None),
    ("pm2-*", None),
    ("snapd", None),
    ("supervisor", None),
    ("supervisord", None),
    ("systemd-*", None),
];

/// Units that start what they were told to at boot, and leave it to itself.
const STARTERS: &[&str] = &[
    "cloud-config",
    "cloud-final",
    "cloud-init",
    "google-startup-scripts",
    "rc-local",
    "walinuxagent",
];

/// What a unit is to the processes in it, by its name: `llm.service`, `session-3.scope`.
pub fn role(unit: &str) -> Role {
    let Some(name) = unit.strip_suffix(".service") else {
        return Role::Login;
    };
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    if name == "user" {
        return Role::Login;
    }
    if STARTERS.contains(&name) {
        return Role::Starter;
    }
    let fits = |pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    match HOSTS.iter().find(|(pattern, _)| fits(pattern)) {
        Some(&(_, way)) => Role::Host { way },
        None => Role::Work,
    }
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
