//! What a process is by the name of its program: an interpreter, a monitor, a display.
//!
//! Here are also the programs that are never killed. Monitors, the driver's own daemons and displays hold a GPU open and are no job. That is a guess that
//! protects, by the name of the program file, else by what the process calls itself. Names are compared
//! whole: a part of a name is somebody else's.

use std::sync::Arc;

use super::Process;

/// What watches GPUs or serves the driver. They open device files and hold no memory of their own.
const MONITORS: &[&str] = &[
    "nvidia-persistenced",
    "nvidia-smi",
    "nv-hostengine",
    "dcgm",
    "dcgmi",
    "dcgm-exporter",
    "nvidia-fabricmanager",
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-powerd",
    "nvidia-topologyd",
    "nvidia-device-plugin",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia_gpu_exporter",
    "nvtop",
    "nvitop",
    "nviwatch",
    "nvidia-settings",
    "gpustat",
    "gpumem",
    "btop",
    "all-smi",
    "gpud",
    "netdata",
    "telegraf",
    "prometheus-node-exporter",
    "node_exporter",
];

/// What draws a desktop.
pub const DISPLAYS: &[&str] = &[
    "Xorg",
    "X",
    "Xwayland",
    "Xvfb",
    "Xvnc",
    "gnome-shell",
    "gnome-remote-desktop-daemon",
    "mutter",
    "kwin",
    "kwin_x11",
    "kwin_wayland",
    "plasmashell",
    "ksmserver",
    "gamescope",
    "budgie-wm",
    "marco",
    "muffin",
    "xfdesktop",
    "picom",
    "labwc",
    "niri",
    "river",
    "wayfire",
    "Xorg.bin",
    "Xtigervnc",
    "sway",
    "weston",
    "Hyprland",
    "cinnamon",
    "xfwm4",
    "gdm-x-session",
    "gdm-wayland-session",
    "sddm",
    "sddm-greeter",
    "lightdm",
    "cosmic-comp",
];

/// Programs that a machine, a desktop or other people's work rests on.
const NEVER_KILLED: &[&str] = &[
    // First processes.
    "init",
    "systemd",
    "runit",
    "s6-svscan",
    "openrc-init",
    "tini",
    "docker-init",
    "dumb-init",
    "catatonit",
    // Displays, besides those above.
    "gdm",
    "gdm3",
    // The driver's own.
    "nvidia-persistenced",
    "nvidia-powerd",
    "nvidia-fabricmanager",
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-topologyd",
    "nvidia-device-plugin",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nv-hostengine",
    "dcgm-exporter",
    // Containers.
    "dockerd",
    "docker-proxy",
    "containerd",
    "conmon",
    "conmonrs",
    "crio",
    "crun",
    "runc",
    "podman",
    "buildkitd",
    "lxc-start",
    "kubelet",
    "kube-proxy",
    "k3s",
    // Schedulers.
    "slurmd",
    "slurmstepd",
    "slurmctld",
    "slurmdbd",
    "munged",
    "pbs_mom",
    "sge_execd",
    "condor_startd",
    "condor_starter",
    // Ways in.
    "sshd",
    "sshd-session",
    "dropbear",
    "login",
    "agetty",
    "su",
    "sudo",
    "cron",
    "crond",
    "atd",
    "dbus-daemon",
    "dbus-broker",
    "dbus-broker-launch",
    "tmux",
    "tmux: server",
    "screen",
    "SCREEN",
    "zellij",
    "mosh-server",
    // Ourselves, another time.
    "gpumem",
];

/// Beginnings of names that are families of programs.
const NEVER_KILLED_FAMILIES: &[&str] = &["systemd-", "containerd-shim", "gdm-"];

/// The kernel keeps so many bytes of a short name.
const COMM_BYTES: usize = 15;

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// Whether a program runs what its arguments name.
pub fn is_interpreter(program: &str) -> bool {
    let name = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    matches!(
        name,
        "python"
            | "pypy"
            | "bash"
            | "sh"
            | "zsh"
            | "perl"
            | "ruby"
            | "node"
            | "java"
            | "julia"
            | "Rscript"
            | "accelerate"
            | "torchrun"
            | "deepspeed"
    )
}

impl Process {
    /// Whether it watches GPUs or is a daemon of the driver.
    pub fn is_monitor(&self) -> bool {
        is_one_of(self, MONITORS)
    }

    /// Whether it draws a desktop.
    pub fn is_display(&self) -> bool {
        is_one_of(self, DISPLAYS)
    }
}

/// The name under which a program is on the list of those that are never killed, or on one's `own`: that of
/// the file that it runs, else what it calls itself. Whole names only.
pub fn never_killed<'a>(
    executable: Option<&'a str>,
    comm: Option<&'a str>,
    own: &[Arc<str>],
) -> Option<&'a str> {
    let own = own.iter().map(|name| &**name);
    let names = || {
        let known = NEVER_KILLED.iter().chain(DISPLAYS).copied();
        known.chain(own.clone())
    };
    let families = NEVER_KILLED_FAMILIES;
    let is_family = |name: &str| families.iter().any(|family| name.starts_with(family));
    match executable {
        Some(path) => {
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            let name = path.rsplit('/').next().unwrap_or(path);
            (names().any(|it| it == name) || is_family(name)).then_some(name)
        }
        None => comm.filter(|comm| {
            names().any(|name| name.get(..COMM_BYTES).unwrap_or(name) == *comm) || is_family(comm)
        }),
    }
}

fn is_one_of(process: &Process, names: &[&str]) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    let file = process.executable.as_deref().map(|path| {
        // What an update has replaced goes on under its old name.
        file_name(path.strip_suffix(" (deleted)").unwrap_or(path))
    });
    let own_name = command.first().map(|program| file_name(program));
    // The program is the script, not the interpreter.
    let script = own_name
        .filter(|program| is_interpreter(program))
        .and_then(|_| command.iter().skip(1).find(|it| !it.starts_with('-')))
        .map(|script| file_name(script));
    let is_named = |name: Option<&str>| name.is_some_and(|name| names.contains(&name));
    if is_named(file) || is_named(own_name) || is_named(script) {
        return true;
    }
    command.is_empty()
        && process.comm.as_deref().is_some_and(|comm| {
            names.iter().any(|name| name.get(..COMM_BYTES).unwrap_or(name) == comm)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &[&str], executable: Option<&str>, comm: Option<&str>) -> Process {
        Process {
            command: Some(command.iter().map(|it| Arc::from(*it)).collect()),
            executable: executable.map(Arc::from),
            comm: comm.map(Arc::from),
            ..Process::default()
        }
    }

    #[test]
    fn monitors_are_known_by_file_name_script_or_short_name() {
        for process in [
            of(&["/usr/bin/nvidia-persistenced", "--user", "x"], None, None),
            of(&["watcher"], Some("/usr/bin/nvtop"), None),
            of(&["x"], Some("/usr/bin/nv-hostengine (deleted)"), None),
            of(&["python3", "-u", "/home/ann/.local/bin/nvitop"], None, None),
            of(&[], None, Some("nvidia-persiste")),
        ] {
            assert!(process.is_monitor() && !process.is_display(), "{process:?}");
        }
        let display = of(&["/usr/lib/xorg/Xorg", ":0"], None, None);
        assert!(display.is_display() && !display.is_monitor());
    }

    #[test]
    fn a_part_of_a_name_or_an_argument_matches_no_program() {
        for process in [
            of(&["nvtop2"], None, None),
            of(&["python", "train.py", "nvtop"], None, None),
            of(&["python", "nvtop_like.py"], Some("/usr/bin/python3"), None),
            of(&["train"], None, Some("nvtop")),
            of(&[], None, None),
            Process::default(),
        ] {
            assert!(!process.is_monitor() && !process.is_display(), "{process:?}");
        }
    }
}
