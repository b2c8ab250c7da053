//! Whether a listening socket serves clients, or has a known other purpose.
//!
//! A process that listens counts as a server and is not ended. Training listens, too: ranks of a run meet at a port
//! and keep others open for each other, a debugger waits for its editor, Python's `multiprocessing` shares files
//! through a socket.
//!
//! Such a socket is recognised by its address and by its process's command line and environment; any other counts
//! as a service. Ending a server that was mistaken for training causes an outage. The opposite mistake only wastes
//! memory.
//!
//! TensorBoard only displays training, so a TensorBoard next to a training does not make the training a server. A
//! TensorBoard that holds GPU memory itself is a server like any other.

use crate::model::names::{NAMES, is_on};
use crate::model::pool::{self, tool};
use crate::model::process::Relative;
use crate::model::program::file_name;
use crate::model::server_name::is_kernel_command;
use crate::model::{Process, Snapshot};

/// Default ports where torch's ranks and torchrun's agents meet, and the port in PyTorch's tutorial.
const MEETING_PORTS: &[u16] = &[29_500, 29_400, 12_355];

/// The start of the kernel's ephemeral ports (`ip_local_port_range`); JAX on Slurm also chooses above it.
const FIRST_CHOSEN_PORT: u16 = 32_768;

/// Variables that are set only in distributed runs.
const RUN_VARIABLES: &[&str] = &[
    "LOCAL_RANK",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "RANK",
    "SLURM_PROCID",
    "TORCHELASTIC_RUN_ID",
];

/// Arguments followed by the address where ranks meet.
const MEETING_ARGUMENTS: &[&str] = &[
    "dist-init-addr",
    "dist-url",
    "init-method",
    "main-process-port",
    "master-port",
    "rdzv-endpoint",
];

/// Folders that contain the programs of remote editors.
const EDITORS: &[&str] = &[".cursor-server", ".vscode-server", ".vscode-server-insiders"];

/// The helper process with which debugpy talks to the editor.
const DEBUG_ADAPTER: &str = "debugpy/adapter";

/// Whether the process itself has a socket for clients; `None` if its sockets' addresses are unknown.
pub(super) fn has_clients(process: &Process, snapshot: &Snapshot) -> Option<bool> {
    match process.listening {
        Some(false) => return Some(false),
        None => return None,
        Some(true) => {}
    }
    let command = process.command.as_deref().unwrap_or_default();
    // Also without the pool's starter: a title never makes a process a server.
    let pool = process.pool().or_else(|| pool::named(command));
    if pool.is_some_and(|pool| pool.listens_for_itself) {
        return Some(false);
    }
    // An old recording shows only whether any socket listens.
    let Some(on) = process.listening_on.as_deref() else {
        return if is_of_a_run(process, snapshot) { Some(false) } else { None };
    };
    let run = DistributedRun::of(process, snapshot);
    Some(on.iter().any(|place| !run.explains(place, command)))
}

/// Whether a process of the same family has a socket for clients.
pub(super) fn has_listening_family(process: &Process, snapshot: &Snapshot) -> bool {
    let mut relatives = process.listening_relatives.iter().flat_map(|it| it.iter());
    relatives.any(|relative| is_front_end(relative, process, snapshot))
}

fn is_front_end(relative: &Relative, process: &Process, snapshot: &Snapshot) -> bool {
    let command = relative.command.as_deref().unwrap_or_default();
    if is_attendant(command) || is_kernel_command(command) {
        return false;
    }
    if pool::named(command).is_some_and(|pool| pool.listens_for_itself) {
        return false;
    }
    let run = DistributedRun::of(process, snapshot);
    let mut places = relative.listening_on.iter();
    // A loopback port chosen by the kernel is known only to processes that were told, such as workers.
    places.any(|place| !is_chosen_loopback(place) && !run.explains(place, command))
}

/// Whether a program, by its name, gives access, monitors or supervises.
fn is_attendant<T: AsRef<str>>(command: &[T]) -> bool {
    let Some(title) = command.first().map(AsRef::as_ref) else {
        return false;
    };
    let is_known = |name: &str| is_on(&NAMES.attendants, name);
    // A title set by the process begins with the program's name: `sshd: ann@pts/1`, `wandb-service(2-…)`.
    let end = title.find([':', '(']).unwrap_or(title.len());
    if is_known(file_name(title)) || is_known(title[..end].trim_end()) {
        return true;
    }
    if tool(command).is_some_and(|(tool, _)| is_known(tool)) {
        return true;
    }
    let is_editors = |argument: &str| argument.split('/').any(|folder| EDITORS.contains(&folder));
    let mut programs = command.iter().take(3).map(AsRef::as_ref);
    programs.any(|argument| is_editors(argument) || argument.ends_with(DEBUG_ADAPTER))
}

struct DistributedRun {
    is_one: bool,
    ports: Vec<u16>,
}

impl DistributedRun {
    fn of(process: &Process, snapshot: &Snapshot) -> Self {
        let relatives = process.listening_relatives.iter().flat_map(|it| it.iter());
        let others = relatives.flat_map(|it| it.listening_on.iter());
        let own = process.listening_on.iter().flat_map(|it| it.iter());
        let mut ports: Vec<u16> = meeting_ports(process).collect();
        ports.extend(family(process, snapshot).flat_map(meeting_ports));
        let meets = own
            .chain(others)
            .filter_map(|place| tcp_port(place))
            .any(|port| MEETING_PORTS.contains(&port) || ports.contains(&port));
        Self { is_one: meets || has_run_variables(process), ports }
    }

    /// Whether a socket at this address, of a process with this command, has a purpose other than clients.
    fn explains<T: AsRef<str>>(&self, place: &str, command: &[T]) -> bool {
        if let Some(name) = place.strip_prefix("unix:") {
            return is_of_a_library(name);
        }
        let Some(port) = tcp_port(place) else {
            return false;
        };
        if self.ports.contains(&port) || is_of_a_debugger(port, command) {
            return true;
        }
        // A port named on the command line is for clients.
        if names_port(port, command) {
            return false;
        }
        MEETING_PORTS.contains(&port) || (self.is_one && port >= FIRST_CHOSEN_PORT)
    }
}

/// Whether a process is in a distributed run, by its environment and command line.
fn is_of_a_run(process: &Process, snapshot: &Snapshot) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    has_run_variables(process)
        || meeting_ports(process).next().is_some()
        || tool(command).is_some_and(|(tool, _)| is_on(&NAMES.attendants, tool))
        || family(process, snapshot).any(has_run_variables)
}

fn has_run_variables(process: &Process) -> bool {
    let environment = process.environment.as_deref();
    environment.is_some_and(|it| RUN_VARIABLES.iter().any(|name| it.contains_key(*name)))
}

/// Parents, children and group members in the snapshot.
fn family<'a>(process: &'a Process, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Process> {
    snapshot.processes.iter().filter(move |other| {
        other.pid != process.pid
            && other.uid == process.uid
            && (other.ppid == Some(process.pid)
                || process.ppid == Some(other.pid)
                || (process.process_group.is_some()
                    && other.process_group == process.process_group))
    })
}

/// The ports where the ranks of a process's run meet, by its environment and command line.
fn meeting_ports(process: &Process) -> impl Iterator<Item = u16> {
    let environment = process.environment.as_deref();
    let announced = environment.and_then(|it| it.get("MASTER_PORT")?.parse().ok());
    let command = process.command.as_deref().unwrap_or_default();
    let named = named_ports(command, |name| MEETING_ARGUMENTS.contains(&name));
    announced.into_iter().chain(named)
}

fn names_port<T: AsRef<str>>(port: u16, command: &[T]) -> bool {
    let is_address = |name: &str| matches!(name, "port" | "bind" | "listen" | "http-port" | "p");
    named_ports(command, is_address).any(|it| it == port)
}

/// The ports after the arguments with these names: `--port 80`, `--port=80`, `--bind 0.0.0.0:80`.
fn named_ports<T: AsRef<str>>(
    command: &[T],
    is_wanted: impl Fn(&str) -> bool,
) -> impl Iterator<Item = u16> {
    command.iter().enumerate().filter_map(move |(at, argument)| {
        let name = argument.as_ref().strip_prefix('-')?.trim_start_matches('-');
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, value),
            None => (name, command.get(at + 1)?.as_ref()),
        };
        if !is_wanted(&name.replace('_', "-")) {
            return None;
        }
        value.rsplit([':', '/']).next()?.parse().ok()
    })
}

/// Whether a debugger that waits for its editor uses this port.
fn is_of_a_debugger<T: AsRef<str>>(port: u16, command: &[T]) -> bool {
    let is_debugger = |argument: &T| {
        let name = file_name(argument.as_ref());
        matches!(name, "debugpy" | "pydevd" | "pydevd.py" | "ptvsd")
    };
    let Some(at) = command.iter().position(is_debugger) else {
        return false;
    };
    // Arguments after the program's name belong to the program.
    let is_script = |argument: &T| argument.as_ref().ends_with(".py");
    let rest = &command[at + 1..];
    let end = rest.iter().position(is_script).unwrap_or(rest.len());
    port >= FIRST_CHOSEN_PORT || named_ports(&rest[..end], |_| true).any(|it| it == port)
}

/// Whether a library opens a socket of this name for a program's own processes.
fn is_of_a_library(name: &str) -> bool {
    // Python's `multiprocessing`: managers, shared descriptors, the fork server.
    if let Some(own) = name.strip_prefix("@listener-") {
        return own.chars().all(|c| c.is_ascii_digit() || c == '-');
    }
    // Sockets of the CUDA library and NCCL.
    if name.starts_with("@cuda-uvmfd-") || name.starts_with("@/tmp/nccl-socket-") {
        return true;
    }
    let mut parts = name.rsplit('/');
    let file = parts.next().unwrap_or_default();
    let folder = parts.next().unwrap_or_default();
    (file.starts_with("listener-") && folder.starts_with("pymp-"))
        || (file == "manager.sock" && folder.starts_with("torch-shm-dir-"))
        || file.starts_with("nccl-socket-")
}

fn tcp_port(place: &str) -> Option<u16> {
    place.strip_prefix("tcp:")?.rsplit(':').next()?.parse().ok()
}

fn is_chosen_loopback(place: &str) -> bool {
    let is_loopback = place.starts_with("tcp:127.") || place.starts_with("tcp:[::1]");
    is_loopback && tcp_port(place).is_some_and(|port| port >= FIRST_CHOSEN_PORT)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Time;
    use crate::model::process::Relation;

    fn words(command: &str) -> Arc<[Arc<str>]> {
        command.split(' ').map(Arc::from).collect()
    }

    fn process(command: &str, on: &[&str]) -> Process {
        Process {
            pid: 70,
            command: Some(words(command)),
            listening: Some(!on.is_empty()),
            listening_on: (!on.is_empty()).then(|| on.iter().copied().map(Arc::from).collect()),
            ..Process::default()
        }
    }

    fn rank(command: &str, on: &[&str]) -> Process {
        let environment = [("RANK", "1"), ("MASTER_PORT", "23456")];
        let environment = environment.map(|(name, value)| (Arc::from(name), Arc::from(value)));
        Process { environment: Some(Arc::new(environment.into())), ..process(command, on) }
    }

    fn beside(process: Process, command: &str, on: &[&str]) -> Process {
        Process {
            listening_relatives: Some(
                [Relative {
                    start_ticks: None,
                    pid: 60,
                    relation: Relation::Ancestor,
                    command: Some(words(command)),
                    listening_on: on.iter().copied().map(Arc::from).collect(),
                }]
                .into(),
            ),
            ..process
        }
    }

    fn empty() -> Snapshot {
        Snapshot::new(Time::default())
    }

    #[test]
    fn a_process_that_listens_for_clients_is_a_server_whatever_its_name() {
        for (command, on) in [
            ("python app.py", "tcp:0.0.0.0:8000"),
            ("python app.py", "tcp:[::]:41234"),
            ("python", "tcp:127.0.0.1:7860"),
            ("python train.py", "unix:/run/app.sock"),
            ("/opt/engine", "unix:@engine"),
            // A port from the command line, although it is a default port for ranks.
            ("python app.py --port 29500", "tcp:0.0.0.0:29500"),
            ("python app.py --bind=0.0.0.0:29400", "tcp:0.0.0.0:29400"),
            // A name is no proof, because another program may use it.
            ("python x.py", "unix:/tmp/listener-x"),
            ("python x.py", "unix:@listener-x"),
        ] {
            assert_eq!(
                has_clients(&process(command, &[on]), &empty()),
                Some(true),
                "{command} {on}"
            );
        }
        let configured = rank("python app.py --port 40000", &["tcp:0.0.0.0:40000"]);
        assert_eq!(has_clients(&configured, &empty()), Some(true));
        let beside_the_rest = rank("python x.py", &["tcp:0.0.0.0:8000", "tcp:0.0.0.0:40000"]);
        assert_eq!(has_clients(&beside_the_rest, &empty()), Some(true));
    }

    #[test]
    fn sockets_of_ranks_debuggers_and_libraries_have_no_clients() {
        let none = |process: &Process| has_clients(process, &empty()) == Some(false);
        for (command, on) in [
            ("python train.py", "tcp:[::]:29500"),
            ("python train.py --master_port 1234", "tcp:[::]:1234"),
            ("python train.py --main-process-port=1234", "tcp:[::]:1234"),
            ("python train.py --dist-url tcp://127.0.0.1:1234", "tcp:127.0.0.1:1234"),
            ("python -m debugpy --listen 0.0.0.0:5678 train.py", "tcp:0.0.0.0:5678"),
            ("python -m debugpy --listen 5678 train.py", "tcp:127.0.0.1:45678"),
            ("python train.py", "unix:/tmp/pymp-x1_y/listener-0abc"),
            ("python train.py", "unix:@listener-4242-0"),
            ("python train.py", "unix:/tmp/torch-shm-dir-AbC/manager.sock"),
            ("python train.py", "unix:@cuda-uvmfd-4026531836-77"),
            ("ray::Trainer.step", "tcp:0.0.0.0:10005"),
            ("python /v/bin/dask worker tcp://x:8786", "tcp:10.0.0.1:41000"),
        ] {
            assert!(none(&process(command, &[on])), "{command} {on}");
        }
        // Sockets of a rank: NCCL's and Gloo's, the run's meeting point, and a sibling's, which is unknown.
        assert!(none(&rank("python t.py", &["tcp:10.0.0.1:40001", "tcp:[::]:23456"])));
        assert!(none(&process("python t.py", &["tcp:[::]:12355", "tcp:10.0.0.1:40001"])));
        let mut snapshot = empty();
        snapshot.processes = vec![Process { pid: 71, ppid: Some(70), ..rank("python t.py", &[]) }];
        let first = process("python t.py", &["tcp:[::]:23456", "tcp:10.0.0.1:40001"]);
        assert_eq!(has_clients(&first, &snapshot), Some(false));
        assert_eq!(has_clients(&first, &empty()), Some(true), "the purpose of the port is unknown");
        // The port that the debugged program itself was given.
        let served =
            process("python -m debugpy --listen 5678 app.py --port 8000", &["tcp:0.0.0.0:8000"]);
        assert_eq!(has_clients(&served, &empty()), Some(true));
    }

    #[test]
    fn unreported_sockets_are_unknown() {
        let unknown = Process { listening: None, ..process("python app.py", &[]) };
        let old = Process { listening: Some(true), ..process("python app.py", &[]) };
        let old_rank = Process { listening: Some(true), ..rank("python t.py", &[]) };
        assert_eq!(has_clients(&unknown, &empty()), None);
        assert_eq!(has_clients(&old, &empty()), None);
        assert_eq!(has_clients(&old_rank, &empty()), Some(false));
        assert_eq!(has_clients(&process("python app.py", &[]), &empty()), Some(false));
    }

    #[test]
    fn a_front_end_that_listens_makes_its_engine_a_server_and_an_attendant_does_not() {
        let engine = || process("python engine.py", &[]);
        for (command, on) in [
            ("python front.py", "tcp:0.0.0.0:8000"),
            ("node index.js", "unix:/run/x.sock"),
            ("python -m uvicorn app:app --workers 2", "tcp:127.0.0.1:8000"),
            ("", "tcp:0.0.0.0:40000"),
        ] {
            let process = beside(engine(), command, &[on]);
            assert!(has_listening_family(&process, &empty()), "{command} {on}");
        }
        for (command, on) in [
            ("tmux: server", "unix:/tmp/tmux-0/default"),
            ("sshd: ann@pts/1", "tcp:0.0.0.0:6010"),
            ("/usr/bin/python3 /v/bin/jupyter-lab --port 8888", "tcp:127.0.0.1:8888"),
            ("python -m ipykernel_launcher -f k.json", "tcp:127.0.0.1:9000"),
            (
                "/home/a/.vscode-server/bin/x/node /home/a/.vscode-server/out/server-main.js",
                "tcp:127.0.0.1:9",
            ),
            ("python /v/lib/debugpy/adapter --port 5678", "tcp:127.0.0.1:5678"),
            ("python /v/bin/torchrun --nproc-per-node 2 t.py", "tcp:[::]:23456"),
            ("python -m torch.distributed.run t.py", "tcp:[::]:40123"),
            ("python /v/bin/tensorboard --logdir x", "tcp:127.0.0.1:6006"),
            ("/v/bin/wandb-core --port-filename x", "unix:/tmp/wandb-1.sock"),
            ("wandb-service(2-77-x)", "tcp:127.0.0.1:5000"),
            ("/v/ray/raylet --x", "tcp:0.0.0.0:6380"),
            ("ray::IDLE", "tcp:0.0.0.0:10003"),
            ("python anything.py", "tcp:127.0.0.1:40000"),
            ("python anything.py", "unix:/tmp/pymp-a/listener-b"),
        ] {
            let process = beside(engine(), command, &[on]);
            assert!(!has_listening_family(&process, &empty()), "{command} {on}");
        }
        let rank = beside(rank("python t.py", &[]), "python t.py", &["tcp:10.0.0.1:40000"]);
        assert!(!has_listening_family(&rank, &empty()), "another rank");
        assert!(!has_listening_family(&engine(), &empty()));
    }
}
