//! Whether a process is the kernel that its server means, or only looks like it.
//!
//! What a kernel forks has its argv and its environment, and may outlive it in a session of its own:
//! by then the server has another kernel under the same id. What wraps a kernel (`conda run`) names its
//! connection file too. A server tells no pid, so that only descent can.

use std::collections::HashMap;

use super::super::Roots;
use super::super::proc::guarded::read_all;
use super::super::proc::notebook::parse_kernel;
use super::ServerError;
use crate::host::proc::opened_process::OpenedProcess;

/// How far up ancestors are followed.
const ANCESTORS: usize = 32;

/// Another process that could be the kernel of this id in `process`'s place; `None` where there is
/// none.
///
/// One whose argv may not be read is another user's, and so no kernel of this server's.
pub fn find_twin(
    roots: &Roots,
    process: &OpenedProcess,
    kernel_id: &str,
    server: u32,
) -> Result<Option<u32>, ServerError> {
    let all = read_all(roots).map_err(|error| ServerError::Unsure { why: error.to_string() })?;
    let parents: HashMap<u32, u32> = all.iter().filter_map(|it| Some((it.pid, it.ppid?))).collect();
    let is_below = |pid: u32, ancestor: u32| {
        let parent = |pid: &u32| parents.get(pid).copied();
        let mut above = std::iter::successors(parent(&pid), parent).take(ANCESTORS);
        above.any(|it| it == ancestor)
    };
    let own = process.command();
    let is_servers = is_below(process.pid, server);
    for it in all.iter().filter(|it| it.pid != process.pid) {
        let Ok(Some(other)) = OpenedProcess::open(roots, it.pid) else {
            continue;
        };
        let command = other.command();
        let kernel = command.as_deref().and_then(parse_kernel);
        if kernel.and_then(|kernel| kernel.kernel_id).as_deref() != Some(kernel_id) {
            continue;
        }
        let could_be = if is_below(process.pid, it.pid) {
            // It has forked this one, or only wraps it.
            command == own
        } else {
            // What this one has forked is not the kernel, nor is what is left of an earlier one.
            !is_below(it.pid, process.pid) && (!is_servers || is_below(it.pid, server))
        };
        if could_be {
            return Ok(Some(it.pid));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Proc;
    use super::*;

    const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";

    /// The twin of 90 among processes of (pid, parent, what runs the kernel, if anything).
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
    fn a_kernel_is_not_what_it_has_forked_or_what_wraps_it() {
        let (server, kernel) = ((50, 1, ""), (90, 50, "python"));
        assert_eq!(twin(&[server, kernel]), None);
        assert_eq!(twin(&[server, kernel, (95, 90, "python")]), None);
        let wrapper = (60, 50, "conda run python");
        assert_eq!(twin(&[server, wrapper, (90, 60, "python")]), None);
        // Left over from the kernel before.
        assert_eq!(twin(&[server, kernel, (80, 1, "python")]), None);
    }

    #[test]
    fn what_a_kernel_has_forked_is_not_the_kernel() {
        let server = (50, 1, "");
        let parent = (70, 50, "python");
        assert_eq!(twin(&[server, parent, (90, 70, "python")]), Some(70));
        let between = (75, 70, "");
        assert_eq!(twin(&[server, parent, between, (90, 75, "python")]), Some(70));
        // What is left of an earlier kernel, while the server has another.
        assert_eq!(twin(&[server, parent, (90, 1, "python")]), Some(70));
        // In a container the server takes in what others leave behind: either could be it.
        assert_eq!(twin(&[server, parent, (90, 50, "python")]), Some(70));
    }
}
