//! Checks whether a process is the kernel that its server refers to, or only resembles it.
//!
//! A process forked by a kernel has the same command line and environment as the kernel. It can outlive the kernel,
//! and the server may then have started a new kernel with the same id. A wrapper such as `conda run` has the
//! connection file in its command line, too. Servers do not report pids, so only the relation to parent processes can
//! identify the kernel.

use std::collections::HashMap;

use super::super::Roots;
use super::super::proc::guarded::read_all;
use super::super::proc::notebook::parse_kernel;
use super::ServerError;
use crate::host::proc::opened_process::OpenedProcess;

const ANCESTORS: usize = 32;

/// Returns a process that may be the kernel with this id instead of `process`, or `None` if there is none. Processes
/// whose command lines cannot be read are ignored, because they belong to other users.
pub fn find_twin(
    roots: &Roots,
    process: &OpenedProcess,
    kernel_id: &str,
    server: u32,
) -> Result<Option<u32>, ServerError> {
    let all = read_all(roots).map_err(|error| ServerError::Unsure { why: error.to_string() })?;
    let parents: HashMap<u32, u32> =
        all.iter().filter_map(|process| Some((process.pid, process.ppid?))).collect();
    let is_below = |pid: u32, ancestor: u32| {
        let parent = |pid: &u32| parents.get(pid).copied();
        let mut above = std::iter::successors(parent(&pid), parent).take(ANCESTORS);
        above.any(|pid| pid == ancestor)
    };
    let own_command = process.command();
    let is_servers = is_below(process.pid, server);
    for listed in all.iter().filter(|listed| listed.pid != process.pid) {
        let Ok(Some(other)) = OpenedProcess::open(roots, listed.pid) else {
            continue;
        };
        let command = other.command();
        let kernel = command.as_deref().and_then(parse_kernel);
        if kernel.and_then(|kernel| kernel.kernel_id).as_deref() != Some(kernel_id) {
            continue;
        }
        let could_be = if is_below(process.pid, listed.pid) {
            // The other process is an ancestor. It forked this process if the command lines are equal, and wraps it
            // otherwise.
            command == own_command
        } else {
            // A descendant of this process is not the kernel, and neither is a remnant of an earlier kernel.
            !is_below(listed.pid, process.pid) && (!is_servers || is_below(listed.pid, server))
        };
        if could_be {
            return Ok(Some(listed.pid));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Proc;

    const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";

    /// Returns the twin of process 90. `processes` contains pid, parent and program. A process with an empty program
    /// name runs no kernel.
    fn twin(processes: &[(u32, u32, &str)]) -> Option<u32> {
        let proc = Proc::new();
        for &(pid, parent, program) in processes {
            proc.process(pid, parent, u64::from(pid) * 10, &[]);
            if !program.is_empty() {
                let line = format!("{program} -m ipykernel_launcher -f /r/kernel-{ID}.json");
                proc.command(pid, &line);
            }
        }
        let process = OpenedProcess::open(&proc.roots(), 90).unwrap().unwrap();
        find_twin(&proc.roots(), &process, ID, 50).unwrap()
    }

    #[test]
    fn forks_and_wrappers_of_a_kernel_are_not_twins() {
        let (server, kernel) = ((50, 1, ""), (90, 50, "python"));
        assert_eq!(twin(&[server, kernel]), None);
        assert_eq!(twin(&[server, kernel, (95, 90, "python")]), None);
        let wrapper = (60, 50, "conda run python");
        assert_eq!(twin(&[server, wrapper, (90, 60, "python")]), None);
        // A process of the previous kernel has remained.
        assert_eq!(twin(&[server, kernel, (80, 1, "python")]), None);
    }

    #[test]
    fn a_fork_of_a_kernel_is_not_the_kernel() {
        let server = (50, 1, "");
        let parent = (70, 50, "python");
        assert_eq!(twin(&[server, parent, (90, 70, "python")]), Some(70));
        let between = (75, 70, "");
        assert_eq!(twin(&[server, parent, between, (90, 75, "python")]), Some(70));
        // A process of the previous kernel has remained, and the server has another kernel.
        assert_eq!(twin(&[server, parent, (90, 1, "python")]), Some(70));
        // In a container, orphans become children of the server. Either process may thus be the kernel.
        assert_eq!(twin(&[server, parent, (90, 50, "python")]), Some(70));
    }
}
