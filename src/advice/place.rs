//! Describes how to end a process through its owner, because a supervisor would restart a killed process.
//!
//! Processes choose names, so names are quoted for a shell. A command is omitted if a name in it
//! cannot be typed as shown.

use super::owner::owner;
use super::{NotebookEnd, TABLE};
use crate::model::Process;

/// Maximum length of a name in a command.
const LONGEST_NAME: usize = 253;

/// Describes how to continue the process if it is stopped or frozen, and how to end it through its owner. Returns no
/// lines if neither applies.
pub fn place_lines(process: &Process) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(line) = thaw(process) {
        lines.push(line);
    } else if process.is_stopped() {
        lines.push(format!("it is stopped; continue it: `kill -CONT {}`", process.pid));
    }
    if is_notebook(process) {
        // The container or unit belongs to the server, which can also run other users' kernels.
        lines.push(notebook(process));
        return lines;
    }
    let job = process.slurm.as_deref();
    if let Some(job) = job.filter(|job| job.over == Some(true)) {
        let job = job.id().as_deref().and_then(quote);
        let job = job.map_or_else(String::new, |job| format!(" {job}"));
        lines.push(format!(
            "end it, `kill {}`: its Slurm job{job} has ended, and no step of the job is left on this machine",
            process.pid
        ));
        return lines;
    }
    lines.extend(owner(process).map(|owner| owner.line));
    lines
}

/// Describes how to thaw a process, or returns `None` if its cgroup is not frozen.
pub fn thaw(process: &Process) -> Option<String> {
    let cgroup = process.cgroup.as_deref().filter(|_| process.frozen == Some(true))?;
    let file = quote(&format!("/sys/fs/cgroup{cgroup}/cgroup.freeze"));
    let by_hand = file.map_or_else(String::new, |file| format!(", or `echo 0 > {file}`"));
    Some(format!(
        "thaw it with the tool that froze it: `docker unpause`, `podman unpause`, `systemctl thaw`{by_hand}"
    ))
}

/// Returns whether the process is an interactive notebook, rather than a batch run by papermill or nbconvert.
pub(super) fn is_notebook(process: &Process) -> bool {
    process.jupyter.as_ref().is_some_and(|kernel| {
        !matches!(kernel.application.as_deref(), Some("papermill" | "nbconvert" | "batch"))
    })
}

pub(super) fn notebook(process: &Process) -> String {
    if process.has_lost_server() {
        return format!(
            "end its kernel, `gpumem kill {}`: the server that could shut the kernel down has exited",
            process.pid
        );
    }
    let kernel = process.jupyter.as_deref();
    let path = kernel.and_then(|kernel| kernel.notebook_path.as_deref());
    let path = path.filter(|path| is_plain(path)).map(|path| format!(" ({path})"));
    let application = kernel.and_then(|kernel| kernel.application.as_deref());
    let is_match = |end: &&NotebookEnd| {
        application.is_some_and(|name| end.of.iter().any(|application| application == name))
    };
    let notebook_end = TABLE.notebook.iter().find(is_match);
    let text = notebook_end.map_or(&*TABLE.kernel.text, |end| &*end.text);
    let shut = format!("shut the kernel down{}", path.as_deref().unwrap_or_default());
    text.replace("shut the kernel down", &shut).replace("PID", &process.pid.to_string())
}

/// Quotes a name for a POSIX shell if needed. Returns `None` for a name that is empty or too long,
/// contains control or invisible characters, or starts with `-` like an option.
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

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(|c| c.is_alphanumeric() || c == ' ' || c.is_ascii_graphic())
}
