//! What ends a process where it runs: the command for its notebook, job, pod, container or unit.
//!
//! Whoever started a process may start it again, and a signal from outside is only the last way. The
//! names come from processes, so they are quoted for a shell, and a name that cannot be typed as it is
//! shown is left out, together with its command.

use std::sync::Arc;

use crate::model::Process;

/// A name is no longer than this; longer ones are not offered to be typed.
const LONGEST_NAME: usize = 253;

/// What the kernel of a notebook is told, after the words that name it.
const SHUT_DOWN: &str = "Kernel > Shut Down Kernel in Jupyter; interrupting it frees nothing";

/// Units that are not one person's work: stopping one would end what belongs to others, or the way in.
const SHARED_UNITS: &[&str] = &[
    "atd",
    "containerd",
    "code-server",
    "cri-docker",
    "crio",
    "cron",
    "crond",
    "dbus",
    "display-manager",
    "docker",
    "gdm",
    "gdm3",
    "init",
    "jupyter",
    "jupyter-lab",
    "jupyter-notebook",
    "jupyterhub",
    "jupyterlab",
    "k3s",
    "kubelet",
    "lightdm",
    "nomad",
    "podman",
    "rstudio-server",
    "sddm",
    "slurmd",
    "snapd",
    "ssh",
    "sshd",
    "supervisor",
    "supervisord",
];

/// What ends this process through what runs it, in words to type, gentlest first; a process that is
/// stopped is let go on first. Empty where nothing is known to run it.
pub fn place_lines(process: &Process) -> Vec<String> {
    let mut lines = Vec::new();
    if process.state == Some('T') {
        lines.push(format!(
            "it is stopped, let it go on: `kill -CONT {}`",
            process.pid
        ));
    }
    if is_notebook(process) {
        // Its container or unit is the server's, with everybody else's notebooks.
        lines.push(notebook(process));
        return lines;
    }
    let mut places = slurm(process);
    if places.is_empty() {
        places = pod(process);
    }
    if places.is_empty() {
        places.extend(container(process).or_else(|| unit(process)));
    }
    lines.extend(places);
    lines
}

/// Whether a person works in this process through a notebook; one that a program runs is a batch job.
pub(super) fn is_notebook(process: &Process) -> bool {
    process.jupyter.as_ref().is_some_and(|kernel| {
        !matches!(
            kernel.application.as_deref(),
            Some("papermill" | "nbconvert" | "batch")
        )
    })
}

fn notebook(process: &Process) -> String {
    if process.has_lost_server() {
        return format!(
            "end its kernel, `kill {}`: the server that could shut it down is gone",
            process.pid
        );
    }
    let kernel = process.jupyter.as_deref();
    let path = kernel
        .and_then(|kernel| kernel.notebook_path.as_deref())
        .filter(|path| is_plain(path))
        .map(|path| format!(" ({path})"))
        .unwrap_or_default();
    match kernel.and_then(|kernel| kernel.application.as_deref()) {
        Some("vscode") => format!(
            "shut the kernel down{path}: close the notebook in VS Code, or Jupyter: Restart Kernel; \
             interrupting it frees nothing"
        ),
        Some("marimo") => {
            format!(
                "shut the notebook's session down{path}: the power button on marimo's home page"
            )
        }
        Some("jupyter-console" | "jupyter-qtconsole" | "spyder") => {
            format!("shut the kernel down{path}: `exit` in its console, or close its window")
        }
        Some("colab") => {
            "end the session: Runtime > Disconnect and delete runtime in Colab".to_owned()
        }
        _ => format!("shut the kernel down{path}: {SHUT_DOWN}"),
    }
}

fn slurm(process: &Process) -> Vec<String> {
    let Some(slurm) = process.slurm.as_deref() else {
        return Vec::new();
    };
    let Some(job) = slurm.job_id.as_deref().and_then(quote) else {
        return Vec::new();
    };
    // Environments are taken along and made up; the cgroup is the kernel's word.
    let is_proved = process
        .cgroup
        .as_deref()
        .is_some_and(|cgroup| cgroup.split('/').any(|part| part == format!("job_{job}")));
    let first = if is_proved {
        String::new()
    } else {
        format!("see that it is of the job that it names (`scontrol listpids {job}`), then ")
    };
    let is_number = |step: &str| !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
    vec![match slurm.step_id.as_deref() {
        Some(step) if is_number(step) => format!(
            "{first}end its Slurm step: `scancel {job}.{step}`; or all of its job: `scancel {job}`"
        ),
        // Somebody typed it into the shell of an allocation, which is not to end with it.
        Some("interactive" | "extern") => format!(
            "end it where it was typed; `scancel {job}` would end all of the allocation, with its shell"
        ),
        _ => format!("{first}end its Slurm job: `scancel {job}`"),
    }]
}

fn pod(process: &Process) -> Vec<String> {
    let Some(pod) = process.kubernetes.as_deref() else {
        return Vec::new();
    };
    // What a process says of itself may name another's pod; its uid is the kernel's word. Where both
    // names may be the process's own, the pod has to be looked up.
    let is_said = |name: &str, value: &Option<Arc<str>>| {
        let environment = process.environment.as_deref();
        environment.is_some_and(|it| it.get(name).is_some() && it.get(name) == value.as_ref())
    };
    let is_certain = !is_said("POD_NAMESPACE", &pod.namespace);
    let name = pod
        .pod_name
        .as_deref()
        .and_then(quote)
        .filter(|_| is_certain);
    let space = pod.namespace.as_deref().and_then(quote);
    match (name, space, pod.pod_uid.as_deref().and_then(quote)) {
        (Some(name), Some(space), _) => vec![format!(
            "scale down what owns its pod; a pod that nothing owns: `kubectl delete pod -n {space} {name}`"
        )],
        (_, _, Some(uid)) => vec![format!(
            "find its pod: `kubectl get pods -A -o \
             custom-columns=UID:.metadata.uid,NS:.metadata.namespace,NAME:.metadata.name | grep {uid}`, \
             and scale down what owns it, or delete it"
        )],
        _ => Vec::new(),
    }
}

fn container(process: &Process) -> Option<String> {
    let container = process.container.as_deref()?;
    let name = container.name.as_deref().and_then(quote);
    let id = container.id.as_deref().and_then(short_id).and_then(quote);
    let which = name.or(id)?;
    Some(match container.runtime.as_deref() {
        Some("docker") => {
            format!("stop its container, and all that runs in it: `docker stop {which}`")
        }
        Some("podman") => {
            format!(
                "stop its container, and all that runs in it, as the user who started it: `podman stop {which}`"
            )
        }
        Some("nerdctl") => {
            format!("stop its container, and all that runs in it: `nerdctl stop {which}`")
        }
        Some("containerd" | "cri-o") => {
            let id = container.id.as_deref().and_then(short_id).and_then(quote)?;
            format!("stop its container, and all that runs in it, as root: `crictl stop {id}`")
        }
        Some("lxc") => format!(
            "stop its container, and all that runs in it: `lxc-stop -n {which}`, or `lxc stop {which}` under LXD, \
             `incus stop {which}` under Incus"
        ),
        _ => format!("stop its container, {which}, and all that runs in it, with what started it"),
    })
}

/// As container programs take it: the first twelve of 64 digits; LXC's are names.
fn short_id(id: &str) -> Option<&str> {
    let is_digest = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { id.get(..12) } else { Some(id) }
}

fn unit(process: &Process) -> Option<String> {
    let unit = process.systemd_unit.as_deref()?;
    // A session's scope ends a person's login, and a slice everything in it.
    let name = unit.strip_suffix(".service")?;
    let name = name.split('@').next()?;
    if name == "user" || name.contains("getty") || name.starts_with("systemd-") {
        return None;
    }
    if SHARED_UNITS.contains(&name) {
        return None;
    }
    let unit = quote(unit)?;
    let is_users = process
        .cgroup
        .as_deref()
        .is_some_and(|cgroup| cgroup.contains("/user@"));
    Some(if is_users {
        format!("stop its unit, as its user: `systemctl --user stop {unit}`")
    } else {
        format!("stop its unit, as root: `systemctl stop {unit}`")
    })
}

/// A name as a POSIX shell takes it, in single quotes where it needs them. `None` where it cannot be
/// typed as it is shown: nothing in it, too long, a control or an invisible character, or a `-` at its
/// start, which is an option wherever it is put.
pub fn quote(name: &str) -> Option<String> {
    if !is_plain(name) || name.starts_with('-') {
        return None;
    }
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@%+,-".contains(&byte);
    Some(if name.bytes().all(is_bare) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    })
}

/// Whether a person sees every character of a name.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || c == ' ' || c.is_ascii_graphic())
}
