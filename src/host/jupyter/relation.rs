//! Finds the process that started a kernel, and determines whether that process still runs.
//!
//! The process that starts a kernel passes its pid in the kernel's environment (`JPY_PARENT_PID`; jupyter_client:
//! `launcher.py`). The pid is the one in the pid namespace of the starting process. It is therefore compared with the
//! innermost pids of the kernel's ancestors. For example, a server in a container can have pid 1 in the container and
//! a different pid here. If a shell or conda wraps the kernel, the server is a more distant ancestor than the parent.
//!
//! The starter has exited if no ancestor matches, if no process with that pid is older than the kernel, and if all
//! candidates could be read. A younger process with that pid has reused the pid.
//!
//! A process forked by a kernel has the same command line and environment as the kernel. It can outlive the kernel,
//! and the server may then have started a new kernel with the same id. A wrapper such as `conda run` has the
//! connection file in its command line, too. Servers do not report pids, so only the relation to parent processes can
//! identify the kernel ([`find_twin`]).

use std::collections::HashMap;

use rustix::fs::{Access, access};

use super::ServerError;
use crate::host::Roots;
use crate::host::proc::folder::Folder;
use crate::host::proc::guarded::read_all;
use crate::host::proc::notebook::parse_kernel;
use crate::host::proc::opened_process::OpenedProcess;

const ANCESTORS: usize = 32;

#[derive(Debug)]
pub enum Starter {
    Alive(OpenedProcess),
    Gone,
    Unknown,
}

/// Finds the process that started `kernel`. `number` is the pid of that process in its pid namespace.
pub fn find_starter(roots: &Roots, kernel: &OpenedProcess, number: u32) -> Starter {
    let mut parent = kernel.ppid;
    for _ in 0..ANCESTORS {
        let Some(pid) = parent else {
            return find_elsewhere(roots, kernel, number);
        };
        let Ok(Some(ancestor)) = OpenedProcess::open(roots, pid) else {
            return Starter::Unknown;
        };
        if ancestor.numbers.is_empty() {
            return Starter::Unknown;
        }
        if is_parent_server(&ancestor, kernel, number) {
            return Starter::Alive(ancestor);
        }
        parent = ancestor.ppid;
    }
    Starter::Unknown
}

fn is_parent_server(process: &OpenedProcess, kernel: &OpenedProcess, number: u32) -> bool {
    process.numbers.last() == Some(&number) && process.start_ticks <= kernel.start_ticks
}

/// Searches all processes, because the starter is not an ancestor if it started the kernel through a daemon.
fn find_elsewhere(roots: &Roots, kernel: &OpenedProcess, number: u32) -> Starter {
    // The first process of a pid namespace outlives all its other processes. If the starter has pid 1 but is not an
    // ancestor, it is therefore in a different namespace.
    let is_whole = access(roots.proc.join("1"), Access::EXISTS).is_ok();
    if !is_whole || number <= 1 || kernel.numbers.is_empty() {
        return Starter::Unknown;
    }
    if let [_] = *kernel.numbers {
        return match OpenedProcess::open(roots, number) {
            Ok(None) => Starter::Gone,
            Ok(Some(process)) if process.start_ticks > kernel.start_ticks => Starter::Gone,
            // A zombie is neither running nor completely gone.
            Ok(Some(process)) if !matches!(process.state, 'Z' | 'X') => Starter::Alive(process),
            Ok(Some(_)) | Err(_) => Starter::Unknown,
        };
    }
    find_in_namespace(roots, kernel, number)
}

fn find_in_namespace(roots: &Roots, kernel: &OpenedProcess, number: u32) -> Starter {
    let Some(namespace) = kernel.link(c"ns/pid") else {
        return Starter::Unknown;
    };
    let Ok(listing) = Folder::list(&roots.proc).and_then(|proc| proc.processes()) else {
        return Starter::Unknown;
    };
    for listed in listing {
        let process = match OpenedProcess::open(roots, listed.pid) {
            Ok(Some(process)) => process,
            Ok(None) => continue,
            Err(_) => return Starter::Unknown,
        };
        if !is_parent_server(&process, kernel, number) {
            continue;
        }
        // The kernel's namespace may be nested in the namespace of the starter.
        if process.numbers.len() < kernel.numbers.len() {
            return Starter::Unknown;
        }
        match process.link(c"ns/pid") {
            Some(process_namespace)
                if process_namespace == namespace && !matches!(process.state, 'Z' | 'X') =>
            {
                return Starter::Alive(process);
            }
            Some(process_namespace) if process_namespace != namespace => {}
            _ => return Starter::Unknown,
        }
    }
    Starter::Gone
}

/// Returns a process that may be the kernel with this id instead of `process`, or `None` if there is none. Processes
/// whose command lines cannot be read are ignored.
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
    use std::fs;

    use super::*;
    use crate::host::testing::{FakeProc, Proc, StatLine};

    type Seen = (u32, u32, u64, char, &'static str, &'static str);

    const INIT: Seen = (1, 0, 1, 'S', "1", "a");

    #[derive(PartialEq, Debug)]
    enum Found {
        Alive(u32, u64),
        Gone,
        Unknown,
    }

    fn find(processes: &[Seen], number: u32) -> Found {
        let proc = FakeProc::new();
        fs::remove_dir(proc.folder(1)).unwrap();
        for &(pid, ppid, start, state, numbers, namespace) in processes {
            proc.stat(pid, &StatLine { state, ppid, start, ..StatLine::ASLEEP });
            let numbers = numbers.replace(' ', "\t");
            proc.put(pid, "status", format!("Uid:\t0\t0\nNSpid:\t{numbers}\n"));
            proc.link(pid, "ns/pid", namespace);
        }
        let kernel = OpenedProcess::open(&proc, 90).unwrap().unwrap();
        match find_starter(&proc, &kernel, number) {
            Starter::Alive(process) => Found::Alive(process.pid, process.start_ticks),
            Starter::Gone => Found::Gone,
            Starter::Unknown => Found::Unknown,
        }
    }

    #[test]
    fn a_server_is_found_among_the_ancestors() {
        let server = (50, 1, 500, 'S', "50", "a");
        let expected = Found::Alive(50, 500);
        assert_eq!(find(&[INIT, server, (90, 50, 900, 'S', "90", "a")], 50), expected);
        let wrapped = [INIT, server, (60, 50, 600, 'S', "60", "a"), (90, 60, 900, 'S', "90", "a")];
        assert_eq!(find(&wrapped, 50), expected);
        // A daemon started the kernel. The server is older than the kernel, but not an ancestor.
        assert_eq!(find(&[INIT, server, (90, 1, 900, 'S', "90", "a")], 50), expected);
    }

    #[test]
    fn a_containers_server_is_found_by_its_innermost_pid() {
        let container = [INIT, (50, 1, 500, 'S', "50 1", "b"), (90, 50, 900, 'S', "90 7", "b")];
        let expected = Found::Alive(50, 500);
        assert_eq!(find(&container, 1), expected);
    }

    #[test]
    fn a_server_is_gone_if_no_older_process_has_its_pid() {
        let orphan = (90, 1, 900, 'S', "90", "a");
        assert_eq!(find(&[INIT, orphan], 50), Found::Gone);
        let younger = (50, 1, 901, 'S', "50", "a");
        assert_eq!(find(&[INIT, orphan, younger], 50), Found::Gone);
        // The wrapper outlived the server.
        let wrapped = [INIT, (60, 1, 600, 'S', "60", "a"), (90, 60, 900, 'S', "90", "a")];
        assert_eq!(find(&wrapped, 50), Found::Gone);
    }

    #[test]
    fn only_processes_of_the_kernels_container_can_be_its_server() {
        let first = (40, 1, 400, 'S', "40 1", "b");
        let orphan = (90, 40, 900, 'S', "90 9", "b");
        let elsewhere = (50, 1, 500, 'S', "50 7", "c");
        assert_eq!(find(&[INIT, first, orphan, elsewhere], 7), Found::Gone);
        let inside = (51, 40, 500, 'S', "51 7", "b");
        assert_eq!(find(&[INIT, first, orphan, elsewhere, inside], 7), Found::Alive(51, 500));
        // The host has an older process with this pid, which may have started the kernel in the container.
        let host = (7, 1, 70, 'S', "7", "a");
        assert_eq!(find(&[INIT, first, orphan, host], 7), Found::Unknown);
    }

    #[test]
    fn invisible_processes_make_the_starter_unknown() {
        let orphan = (90, 1, 900, 'S', "90", "a");
        // Other users' processes are hidden, or an ancestor has just exited.
        assert_eq!(find(&[(90, 0, 900, 'S', "90", "a")], 50), Found::Unknown);
        assert_eq!(find(&[INIT, (90, 60, 900, 'S', "90", "a")], 50), Found::Unknown);
        // The server is a zombie.
        let zombie = (50, 1, 500, 'Z', "50", "a");
        assert_eq!(find(&[INIT, orphan, zombie], 50), Found::Unknown);
        assert_eq!(find(&[INIT, (90, 1, 900, 'S', "", "a")], 50), Found::Unknown);
        assert_eq!(find(&[INIT, orphan], 0), Found::Unknown);
    }

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
