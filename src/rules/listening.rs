//! Decides whether a listening socket serves clients or has another purpose.
//!
//! A process that listens for clients is a server and is not ended. Training also listens: ranks of a run connect to
//! each other, a debugger waits for its editor, and Python's `multiprocessing` shares files through a socket.
//!
//! The address, command line and environment identify these sockets. Any other socket is assumed to serve clients,
//! because ending a server causes an outage, while keeping a training run only wastes memory.
//!
//! TensorBoard does not make the training run that it displays a server. A TensorBoard that holds GPU memory itself
//! is a server.

use crate::model::names::{NAMES, is_on};
use crate::model::pool::{self, tool};
use crate::model::process::Relative;
use crate::model::program::file_name;
use crate::model::server_name::is_kernel_command;
use crate::model::{Process, Snapshot};

/// Default rendezvous ports of torch and torchrun, and the port in PyTorch's tutorial.
const MEETING_PORTS: &[u16] = &[29_500, 29_400, 12_355];

/// First ephemeral port (`ip_local_port_range`). JAX on Slurm also chooses ports above it.
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

/// Arguments whose value is the rendezvous address.
const MEETING_ARGUMENTS: &[&str] = &[
    "dist-init-addr",
    "dist-url",
    "init-method",
    "main-process-port",
    "master-port",
    "rdzv-endpoint",
];

/// Directories with the programs of remote editors.
const EDITORS: &[&str] = &[".cursor-server", ".vscode-server", ".vscode-server-insiders"];

/// The helper process that connects debugpy to the editor.
const DEBUG_ADAPTER: &str = "debugpy/adapter";

/// Whether the process itself has a socket for clients; `None` if the addresses of its sockets are unknown.
pub(super) fn has_clients(process: &Process, snapshot: &Snapshot) -> Option<bool> {
    match process.listening {
        Some(false) => return Some(false),
        None => return None,
        Some(true) => {}
    }
    let command = process.command.as_deref().unwrap_or_default();
    // The title is sufficient here, because it prevents a process from being a server.
    let pool = process.pool().or_else(|| pool::named(command));
    if pool.is_some_and(|pool| pool.listens_for_itself) {
        return Some(false);
    }
    // Old recordings contain no addresses.
    let Some(addresses) = process.listening_on.as_deref() else {
        return if is_of_a_run(process, snapshot) { Some(false) } else { None };
    };
    let run = DistributedRun::detect(process, snapshot);
    Some(addresses.iter().any(|address| !run.explains(address, command)))
}

/// Whether a process of the same family has a socket for clients.
pub(super) fn has_listening_family(process: &Process, snapshot: &Snapshot) -> bool {
    let mut relatives = process.listening_relatives.iter().flat_map(|relatives| relatives.iter());
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
    let run = DistributedRun::detect(process, snapshot);
    let mut addresses = relative.listening_on.iter();
    // Clients cannot know a loopback port that the kernel chose, only workers can.
    addresses.any(|address| !is_chosen_loopback(address) && !run.explains(address, command))
}

/// Whether the program is known to provide access, monitor or supervise.
fn is_attendant<T: AsRef<str>>(command: &[T]) -> bool {
    let Some(title) = command.first().map(AsRef::as_ref) else {
        return false;
    };
    let is_known = |name: &str| is_on(&NAMES.attendants, name);
    // A process title begins with the program's name: `sshd: ann@pts/1`, `wandb-service(2-…)`.
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
    fn detect(process: &Process, snapshot: &Snapshot) -> Self {
        let relatives = process.listening_relatives.iter().flat_map(|relatives| relatives.iter());
        let other_addresses = relatives.flat_map(|relative| relative.listening_on.iter());
        let own_addresses = process.listening_on.iter().flat_map(|addresses| addresses.iter());
        let mut ports: Vec<u16> = meeting_ports(process).collect();
        ports.extend(family(process, snapshot).flat_map(meeting_ports));
        let meets = own_addresses
            .chain(other_addresses)
            .filter_map(|address| tcp_port(address))
            .any(|port| MEETING_PORTS.contains(&port) || ports.contains(&port));
        Self { is_one: meets || has_run_variables(process), ports }
    }

    /// Whether a socket at this address has a known purpose other than serving clients.
    fn explains<T: AsRef<str>>(&self, address: &str, command: &[T]) -> bool {
        if let Some(name) = address.strip_prefix("unix:") {
            return is_of_a_library(name);
        }
        let Some(port) = tcp_port(address) else {
            return false;
        };
        if self.ports.contains(&port) || is_of_a_debugger(port, command) {
            return true;
        }
        // A port on the command line is for clients.
        if names_port(port, command) {
            return false;
        }
        MEETING_PORTS.contains(&port) || (self.is_one && port >= FIRST_CHOSEN_PORT)
    }
}

/// Whether the environment and command line show a distributed run.
fn is_of_a_run(process: &Process, snapshot: &Snapshot) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    has_run_variables(process)
        || meeting_ports(process).next().is_some()
        || tool(command).is_some_and(|(tool, _)| is_on(&NAMES.attendants, tool))
        || family(process, snapshot).any(has_run_variables)
}

fn has_run_variables(process: &Process) -> bool {
    let environment = process.environment.as_deref();
    environment
        .is_some_and(|environment| RUN_VARIABLES.iter().any(|name| environment.contains_key(*name)))
}

/// The process's parent, children and group members in the snapshot.
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

/// The rendezvous ports in the process's environment and command line.
fn meeting_ports(process: &Process) -> impl Iterator<Item = u16> {
    let environment = process.environment.as_deref();
    let announced =
        environment.and_then(|environment| environment.get("MASTER_PORT")?.parse().ok());
    let command = process.command.as_deref().unwrap_or_default();
    let named = named_ports(command, |name| MEETING_ARGUMENTS.contains(&name));
    announced.into_iter().chain(named)
}

fn names_port<T: AsRef<str>>(port: u16, command: &[T]) -> bool {
    let is_address = |name: &str| matches!(name, "port" | "bind" | "listen" | "http-port" | "p");
    named_ports(command, is_address).any(|named| named == port)
}

/// The ports in arguments with these names: `--port 80`, `--port=80`, `--bind 0.0.0.0:80`.
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
    // Arguments after the script belong to the script.
    let is_script = |argument: &T| argument.as_ref().ends_with(".py");
    let rest = &command[at + 1..];
    let end = rest.iter().position(is_script).unwrap_or(rest.len());
    port >= FIRST_CHOSEN_PORT || named_ports(&rest[..end], |_| true).any(|named| named == port)
}

/// Whether a socket of this name belongs to a library and connects only the program's own processes.
fn is_of_a_library(name: &str) -> bool {
    // Python's `multiprocessing`: managers, shared descriptors, the fork server.
    if let Some(digits) = name.strip_prefix("@listener-") {
        return digits.chars().all(|c| c.is_ascii_digit() || c == '-');
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

fn tcp_port(address: &str) -> Option<u16> {
    address.strip_prefix("tcp:")?.rsplit(':').next()?.parse().ok()
}

fn is_chosen_loopback(address: &str) -> bool {
    let is_loopback = address.starts_with("tcp:127.") || address.starts_with("tcp:[::1]");
    is_loopback && tcp_port(address).is_some_and(|port| port >= FIRST_CHOSEN_PORT)
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

    fn process(command: &str, addresses: &[&str]) -> Process {
        Process {
            pid: 70,
            command: Some(words(command)),
            listening: Some(!addresses.is_empty()),
            listening_on: (!addresses.is_empty())
                .then(|| addresses.iter().copied().map(Arc::from).collect()),
            ..Process::default()
        }
    }

    fn rank(command: &str, addresses: &[&str]) -> Process {
        let environment = [("RANK", "1"), ("MASTER_PORT", "23456")];
        let environment = environment.map(|(name, value)| (Arc::from(name), Arc::from(value)));
        Process { environment: Some(Arc::new(environment.into())), ..process(command, addresses) }
    }

    fn with_relative(process: Process, command: &str, addresses: &[&str]) -> Process {
        Process {
            listening_relatives: Some(
                [Relative {
                    start_ticks: None,
                    pid: 60,
                    relation: Relation::Ancestor,
                    command: Some(words(command)),
                    listening_on: addresses.iter().copied().map(Arc::from).collect(),
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
    fn a_client_socket_makes_any_program_a_server() {
        for (command, address) in [
            ("python app.py", "tcp:0.0.0.0:8000"),
            ("python app.py", "tcp:[::]:41234"),
            ("python", "tcp:127.0.0.1:7860"),
            ("python train.py", "unix:/run/app.sock"),
            ("/opt/engine", "unix:@engine"),
            // A port from the command line, although it is a default port for ranks.
            ("python app.py --port 29500", "tcp:0.0.0.0:29500"),
            ("python app.py --bind=0.0.0.0:29400", "tcp:0.0.0.0:29400"),
            // A similar name is not proof.
            ("python x.py", "unix:/tmp/listener-x"),
            ("python x.py", "unix:@listener-x"),
        ] {
            assert_eq!(
                has_clients(&process(command, &[address]), &empty()),
                Some(true),
                "{command} {address}"
            );
        }
        let configured = rank("python app.py --port 40000", &["tcp:0.0.0.0:40000"]);
        assert_eq!(has_clients(&configured, &empty()), Some(true));
        let with_other_ports = rank("python x.py", &["tcp:0.0.0.0:8000", "tcp:0.0.0.0:40000"]);
        assert_eq!(has_clients(&with_other_ports, &empty()), Some(true));
    }

    #[test]
    fn sockets_of_ranks_debuggers_and_libraries_have_no_clients() {
        let none = |process: &Process| has_clients(process, &empty()) == Some(false);
        for (command, address) in [
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
            assert!(none(&process(command, &[address])), "{command} {address}");
        }
        // Sockets of NCCL and Gloo, and the rendezvous port, which only a sibling's environment names.
        assert!(none(&rank("python t.py", &["tcp:10.0.0.1:40001", "tcp:[::]:23456"])));
        assert!(none(&process("python t.py", &["tcp:[::]:12355", "tcp:10.0.0.1:40001"])));
        let mut snapshot = empty();
        snapshot.processes = vec![Process { pid: 71, ppid: Some(70), ..rank("python t.py", &[]) }];
        let first = process("python t.py", &["tcp:[::]:23456", "tcp:10.0.0.1:40001"]);
        assert_eq!(has_clients(&first, &snapshot), Some(false));
        assert_eq!(has_clients(&first, &empty()), Some(true), "the purpose of the port is unknown");
        // A port of the debugged program.
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
    fn a_listening_front_end_makes_its_engine_a_server() {
        let engine = || process("python engine.py", &[]);
        for (command, address) in [
            ("python front.py", "tcp:0.0.0.0:8000"),
            ("node index.js", "unix:/run/x.sock"),
            ("python -m uvicorn app:app --workers 2", "tcp:127.0.0.1:8000"),
            ("", "tcp:0.0.0.0:40000"),
        ] {
            let process = with_relative(engine(), command, &[address]);
            assert!(has_listening_family(&process, &empty()), "{command} {address}");
        }
        for (command, address) in [
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
            let process = with_relative(engine(), command, &[address]);
            assert!(!has_listening_family(&process, &empty()), "{command} {address}");
        }
        let rank = with_relative(rank("python t.py", &[]), "python t.py", &["tcp:10.0.0.1:40000"]);
        assert!(!has_listening_family(&rank, &empty()), "another rank");
        assert!(!has_listening_family(&engine(), &empty()));
    }
}
