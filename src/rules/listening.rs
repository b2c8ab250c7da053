//! Decides whether clients use a listening process.
//!
//! Training jobs also listen: the ranks of a distributed run meet at a port, a debugger waits for its editor, and
//! Python's `multiprocessing` passes files through a socket. `listeners.toml` lists such sockets.
//!
//! Any other socket has clients if a process outside the job was connected to it ([`Process::client_addresses`]).
//! Without an observed connection, a socket on a loopback port has no clients unless the command line names the port.
//! Whether any other socket has clients is unknown.

use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use crate::model::names::{NAMES, is_on};
use crate::model::owners::{is_owners_program, pool_named};
use crate::model::process::Relative;
use crate::model::program::{file_name, tool};
use crate::model::server_name::{is_kernel_command, is_server_command};
use crate::model::{Process, Snapshot};

/// First port of the default `ip_local_port_range`, from which the kernel chooses ephemeral ports. JAX on Slurm also
/// chooses ports in this range.
const FIRST_CHOSEN_PORT: u16 = 32_768;
/// Number of leading words of a command line among which the program's name is searched, as in `python -m debugpy`.
const NAME_WORDS: usize = 4;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listeners {
    ranks: RankSockets,
    libraries: LibrarySockets,
    program: Vec<ProgramSockets>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RankSockets {
    ports: Vec<u16>,
    variables: Vec<String>,
    options: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LibrarySockets {
    sockets: Vec<String>,
}

/// An entry of `listeners.toml`, which describes the keys.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProgramSockets {
    names: Vec<String>,
    folders: Vec<String>,
    contains: Vec<String>,
    ports: Vec<u16>,
    chosen: bool,
}

/// A test checks that the table parses, so the default is never used in practice.
static LISTENERS: LazyLock<Listeners> = LazyLock::new(|| parse().unwrap_or_default());

fn parse() -> Result<Listeners, toml::de::Error> {
    toml::from_str(include_str!("listeners.toml"))
}

/// Returns whether clients use a socket of the process, or `None` if clients are possible but were not observed. An
/// old recording can contain only the fact that the process listens. The result is then `None` if an option names a
/// port, otherwise `Some(false)`.
pub(super) fn has_clients(process: &Process, snapshot: &Snapshot) -> Option<bool> {
    let command = process.command.as_deref().unwrap_or_default();
    match addresses_for_others(process, snapshot) {
        Some(addresses) => {
            are_used(addresses.into_iter(), process.client_addresses.as_deref(), command)
        }
        None if port_options(command).next().is_some() => None,
        None => Some(false),
    }
}

pub(super) fn listens_for_others(process: &Process, snapshot: &Snapshot) -> bool {
    let addresses = addresses_for_others(process, snapshot);
    addresses.is_none_or(|addresses| !addresses.is_empty())
}

/// Returns the addresses of the process's sockets that may have clients outside its job. Returns `None` if an old
/// recording contains only the fact that the process listens, unless the process belongs to a distributed run.
fn addresses_for_others<'a>(
    process: &'a Process,
    snapshot: &Snapshot,
) -> Option<Vec<&'a Arc<str>>> {
    let command = process.command.as_deref().unwrap_or_default();
    // Any process can set its title, but this check can only rule out a server.
    let pool = process.pool().or_else(|| pool_named(command));
    if process.listening != Some(true) || pool.is_some_and(|pool| pool.listens_for_itself) {
        return Some(Vec::new());
    }
    let Some(addresses) = process.listening_on.as_deref() else {
        return is_of_a_run(process, snapshot).then(Vec::new);
    };
    let run = DistributedRun::detect(process, snapshot);
    Some(addresses.iter().filter(|address| !run.explains(address, command)).collect())
}

/// Returns whether clients use a listening relative of the process, or `None` if clients are possible but were not
/// observed. A relative with a server's name is assumed to have clients.
pub(super) fn family_has_clients(process: &Process, snapshot: &Snapshot) -> Option<bool> {
    let relatives = process.listening_relatives.as_deref().unwrap_or_default();
    if relatives.is_empty() {
        return Some(false);
    }
    let run = DistributedRun::detect(process, snapshot);
    any(relatives.iter().map(|relative| relative_has_clients(relative, &run)))
}

fn relative_has_clients(relative: &Relative, run: &DistributedRun) -> Option<bool> {
    let command = relative.command.as_deref().unwrap_or_default();
    if is_kernel_command(command) {
        return Some(false);
    }
    if pool_named(command).is_some_and(|pool| pool.listens_for_itself) {
        return Some(false);
    }
    let addresses = relative.listening_on.iter();
    // On a loopback address, only the process's workers know a port that the kernel chose, so the socket has no
    // clients.
    let mut addresses = addresses
        .filter(|address| !is_chosen_loopback(address) && !run.explains(address, command))
        .peekable();
    if addresses.peek().is_some() && is_server_command(command) {
        return Some(true);
    }
    if is_attendant(command) {
        return Some(false);
    }
    are_used(addresses, relative.client_addresses.as_deref(), command)
}

/// Returns whether clients use any of these addresses of a process with this command line. `clients` lists the
/// addresses with observed connections, or is `None` if connections could not be read.
fn are_used<'a>(
    addresses: impl Iterator<Item = &'a Arc<str>>,
    clients: Option<&[Arc<str>]>,
    command: &[Arc<str>],
) -> Option<bool> {
    any(addresses.map(|address| match clients {
        Some(clients) if clients.contains(address) => Some(true),
        Some(_) => {
            let is_named = || tcp_port(address).is_some_and(|port| names_port(port, command));
            (is_loopback(address) && !is_named()).then_some(false)
        }
        None => None,
    }))
}

/// Returns the logical OR of three-valued answers.
fn any(answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let order = |answer: &Option<bool>| match answer {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    };
    answers.max_by_key(order).unwrap_or(Some(false))
}

/// Returns whether the program is known to provide access to a machine, or to monitor or supervise other programs.
fn is_attendant<T: AsRef<str>>(command: &[T]) -> bool {
    let Some(title) = command.first().map(AsRef::as_ref) else {
        return false;
    };
    let is_known = |name: &str| is_on(&NAMES.attendants, name) || is_owners_program(name);
    // A process title begins with the program's name and a delimiter, as in `sshd: ann@pts/1` and `wandb-service(2-…)`.
    let end = title.find([':', '(']).unwrap_or(title.len());
    is_known(file_name(title))
        || is_known(title[..end].trim_end())
        || tool(command).is_some_and(|(tool, _)| is_known(tool))
        || LISTENERS.program.iter().any(|program| program.is_whole() && program.runs_as(command))
}

impl ProgramSockets {
    /// Returns whether the entry covers all sockets of the program.
    fn is_whole(&self) -> bool {
        self.ports.is_empty() && !self.chosen
    }

    fn is_anyones(&self) -> bool {
        self.names.is_empty() && self.folders.is_empty() && self.contains.is_empty()
    }

    fn runs_as<T: AsRef<str>>(&self, command: &[T]) -> bool {
        let has = |names: &[String], word: &str| names.iter().any(|name| name == word);
        let mut first = command.iter().take(NAME_WORDS).map(AsRef::as_ref);
        let mut arguments = command.iter().map(AsRef::as_ref);
        first.any(|word| {
            has(&self.names, file_name(word))
                || word.split('/').any(|part| has(&self.folders, part))
        }) || arguments.any(|word| self.contains.iter().any(|text| word.contains(&**text)))
    }

    /// Returns whether the entry explains the socket at this port, which therefore has no clients.
    fn explains<T: AsRef<str>>(&self, port: u16, command: &[T]) -> bool {
        if self.is_anyones() {
            return self.ports.contains(&port);
        }
        self.runs_as(command)
            && (self.is_whole()
                || self.ports.contains(&port)
                || self.chosen && port >= FIRST_CHOSEN_PORT
                || self.own_options_name(port, command))
    }

    fn own_options_name<T: AsRef<str>>(&self, port: u16, command: &[T]) -> bool {
        let is_name = |word: &T| self.names.iter().any(|name| name == file_name(word.as_ref()));
        let is_script = |word: &T| word.as_ref().ends_with(".py");
        let Some(at) = command.iter().position(is_name) else {
            return false;
        };
        let rest = &command[at + 1..];
        let end = rest.iter().position(is_script).unwrap_or(rest.len());
        named_ports(&rest[..end], |_| true).any(|named| named == port)
    }
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
            .any(|port| LISTENERS.ranks.ports.contains(&port) || ports.contains(&port));
        Self { is_one: meets || has_run_variables(process), ports }
    }

    /// Returns whether the socket at this address is explained by the run or by the process's program, and therefore
    /// has no clients.
    fn explains<T: AsRef<str>>(&self, address: &str, command: &[T]) -> bool {
        if let Some(name) = address.strip_prefix("unix:") {
            return LISTENERS.libraries.sockets.iter().any(|pattern| matches(pattern, name))
                || LISTENERS
                    .program
                    .iter()
                    .any(|program| program.is_whole() && program.runs_as(command));
        }
        let Some(port) = tcp_port(address) else {
            return false;
        };
        let by_program = || LISTENERS.program.iter().any(|program| program.explains(port, command));
        if self.ports.contains(&port) || by_program() {
            return true;
        }
        // A port in the command line is usually meant for clients.
        if names_port(port, command) {
            return false;
        }
        LISTENERS.ranks.ports.contains(&port) || (self.is_one && port >= FIRST_CHOSEN_PORT)
    }
}

/// Returns whether a name matches a pattern. `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, "")) => name.starts_with(start),
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let mut ends = name.char_indices().map(|(at, _)| at);
            ends.any(|at| matches(rest, &name[at..]))
        }),
    }
}

fn is_of_a_run(process: &Process, snapshot: &Snapshot) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    has_run_variables(process)
        || meeting_ports(process).next().is_some()
        || tool(command).is_some_and(|(tool, _)| is_on(&NAMES.attendants, tool))
        || family(process, snapshot).any(has_run_variables)
}

fn has_run_variables(process: &Process) -> bool {
    let environment = process.environment.as_deref();
    environment.is_some_and(|variables| {
        LISTENERS.ranks.variables.iter().any(|name| variables.contains_key(&**name))
    })
}

/// Returns the process's parent, its children and the members of its process group, if they have the same user.
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

/// Returns the rendezvous ports in the process's environment and command line.
fn meeting_ports(process: &Process) -> impl Iterator<Item = u16> {
    let environment = process.environment.as_deref();
    let announced = environment.and_then(|variables| variables.get("MASTER_PORT")?.parse().ok());
    let command = process.command.as_deref().unwrap_or_default();
    let named =
        named_ports(command, |name| LISTENERS.ranks.options.iter().any(|option| option == name));
    announced.into_iter().chain(named)
}

fn names_port<T: AsRef<str>>(port: u16, command: &[T]) -> bool {
    port_options(command).any(|named| named == port)
}

fn port_options<T: AsRef<str>>(command: &[T]) -> impl Iterator<Item = u16> {
    let is_address = |name: &str| matches!(name, "port" | "bind" | "listen" | "http-port" | "p");
    named_ports(command, is_address)
}

/// Returns the ports in the options whose names `is_wanted` accepts, such as `--port 80`, `--port=80` or `--bind
/// 0.0.0.0:80`.
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

fn tcp_port(address: &str) -> Option<u16> {
    address.strip_prefix("tcp:")?.rsplit(':').next()?.parse().ok()
}

fn is_loopback(address: &str) -> bool {
    address.starts_with("tcp:127.") || address.starts_with("tcp:[::1]")
}

fn is_chosen_loopback(address: &str) -> bool {
    is_loopback(address) && tcp_port(address).is_some_and(|port| port >= FIRST_CHOSEN_PORT)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Time;
    use crate::model::process::Relation;

    fn words(command: &str) -> Arc<[Arc<str>]> {
        command.split(' ').map(|word| word.replace('#', " ").into()).collect()
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
                    working_directory: None,
                    listening_on: addresses.iter().copied().map(Arc::from).collect(),
                    client_addresses: None,
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
    fn the_table_can_be_read() {
        let listeners = parse().unwrap();
        assert!(!listeners.ranks.ports.is_empty() && !listeners.libraries.sockets.is_empty());
        for program in &listeners.program {
            assert!(!program.is_anyones() || !program.is_whole(), "covers every socket");
        }
    }

    fn with_clients(process: Process) -> Process {
        Process { client_addresses: process.listening_on.clone(), ..process }
    }

    #[test]
    fn clients_make_a_server_of_any_program() {
        for (command, address) in [
            ("python app.py", "tcp:0.0.0.0:8000"),
            ("python app.py", "tcp:[::]:41234"),
            ("python", "tcp:127.0.0.1:7860"),
            ("/opt/engine", "tcp:10.0.0.1:9000"),
            // The command line names these ports, so they have clients although distributed runs use them by default.
            ("python app.py --port 29500", "tcp:0.0.0.0:29500"),
            ("python app.py --bind=0.0.0.0:29400", "tcp:0.0.0.0:29400"),
        ] {
            let listening = process(command, &[address]);
            assert_eq!(
                has_clients(&listening, &empty()),
                None,
                "not observed: {command} {address}"
            );
            let used = with_clients(listening);
            assert_eq!(has_clients(&used, &empty()), Some(true), "{command} {address}");
        }
        let configured = rank("python app.py --port 40000", &["tcp:0.0.0.0:40000"]);
        assert_eq!(has_clients(&with_clients(configured), &empty()), Some(true));
        let among_others = rank("python x.py", &["tcp:0.0.0.0:8000", "tcp:0.0.0.0:40000"]);
        assert_eq!(has_clients(&with_clients(among_others.clone()), &empty()), Some(true));
        let ranks_only =
            Process { client_addresses: Some(["tcp:0.0.0.0:40000".into()].into()), ..among_others };
        assert_eq!(has_clients(&ranks_only, &empty()), None, "another rank is no client");
    }

    #[test]
    fn without_clients_a_loopback_port_proves_nothing() {
        for (command, address, clients) in [
            ("python app.py", "tcp:127.0.0.1:8000", Some(false)),
            ("python app.py", "tcp:[::1]:41234", Some(false)),
            ("python app.py --port 8000", "tcp:127.0.0.1:8000", None),
            ("python app.py", "tcp:0.0.0.0:8000", None),
            ("python app.py", "tcp:10.0.0.1:8000", None),
            ("python app.py", "unix:/run/app.sock", None),
        ] {
            let process =
                Process { client_addresses: Some([].into()), ..process(command, &[address]) };
            assert_eq!(has_clients(&process, &empty()), clients, "{command} {address}");
        }
    }

    #[test]
    fn sockets_of_ranks_debuggers_and_libraries_have_no_clients() {
        let none = |process: Process| has_clients(&with_clients(process), &empty()) == Some(false);
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
            ("python prepare.py", "tcp:0.0.0.0:8787"),
            ("python /opt/pycharm/helpers/pydev/pydevconsole.py --port=33500", "tcp:[::]:33500"),
            ("julia -e using#Pluto;Pluto.run()", "tcp:127.0.0.1:1234"),
            ("julia /home/a/.julia/packages/Malt/Ab1/src/worker.jl", "tcp:127.0.0.1:9001"),
            ("/usr/local/MATLAB/R2026a/bin/glnxa64/MATLAB -nosplash", "tcp:0.0.0.0:31515"),
            (
                "java -cp x org.apache.spark.executor.CoarseGrainedExecutorBackend",
                "tcp:10.0.0.1:38211",
            ),
            ("python -m pyspark.daemon pyspark-shell", "tcp:10.0.0.1:4040"),
            ("python -m mpi4py.futures.server", "tcp:0.0.0.0:1034"),
            ("python /v/bin/tensorboard --logdir x", "tcp:0.0.0.0:6006"),
            ("./lammps -in x", "tcp:0.0.0.0:1024"),
        ] {
            assert!(none(process(command, &[address])), "{command} {address}");
        }
        // The sockets of a rank: one opened by NCCL or Gloo, the run's rendezvous, and an unknown socket explained
        // only by a sibling.
        assert!(none(rank("python t.py", &["tcp:10.0.0.1:40001", "tcp:[::]:23456"])));
        assert!(none(process("python t.py", &["tcp:[::]:12355", "tcp:10.0.0.1:40001"])));
        let mut snapshot = empty();
        snapshot.processes = vec![Process { pid: 71, ppid: Some(70), ..rank("python t.py", &[]) }];
        let first = process("python t.py", &["tcp:[::]:23456", "tcp:10.0.0.1:40001"]);
        assert_eq!(has_clients(&first, &snapshot), Some(false));
        assert_eq!(has_clients(&first, &empty()), None, "the purpose of the port is unknown");
        // The option `--port` belongs to the debugged program, so the port is not the debugger's.
        let debugged =
            process("python -m debugpy --listen 5678 app.py --port 8000", &["tcp:0.0.0.0:8000"]);
        assert_eq!(has_clients(&with_clients(debugged), &empty()), Some(true));
    }

    #[test]
    fn unreadable_sockets_have_no_clients_unless_a_port_is_named() {
        let unknown = Process { listening: None, ..process("python app.py", &[]) };
        let old = Process { listening: Some(true), ..process("python app.py", &[]) };
        let named = Process { listening: Some(true), ..process("python app.py --port 80", &[]) };
        let old_rank = Process { listening: Some(true), ..rank("python t.py --port 80", &[]) };
        assert_eq!(has_clients(&unknown, &empty()), Some(false));
        assert_eq!(has_clients(&old, &empty()), Some(false));
        assert_eq!(has_clients(&named, &empty()), None);
        assert_eq!(has_clients(&old_rank, &empty()), Some(false));
        assert_eq!(has_clients(&process("python app.py", &[]), &empty()), Some(false));
    }

    #[test]
    fn a_front_end_makes_its_engine_a_server_and_an_attendant_does_not() {
        let engine = || process("python engine.py", &[]);
        for (command, address, clients) in [
            ("python front.py", "tcp:0.0.0.0:8000", None),
            ("node index.js", "unix:/run/x.sock", None),
            ("python -m uvicorn app:app --workers 2", "tcp:127.0.0.1:8000", Some(true)),
            ("", "tcp:0.0.0.0:40000", None),
            ("tmux: server", "unix:/tmp/tmux-0/default", Some(false)),
            ("sshd: ann@pts/1", "tcp:0.0.0.0:6010", Some(false)),
            ("/usr/bin/python3 /v/bin/jupyter-lab --port 8888", "tcp:127.0.0.1:8888", Some(false)),
            ("python -m ipykernel_launcher -f k.json", "tcp:127.0.0.1:9000", Some(false)),
            (
                "/home/a/.vscode-server/bin/x/node /home/a/.vscode-server/out/server-main.js",
                "tcp:127.0.0.1:9",
                Some(false),
            ),
            ("python /v/lib/debugpy/adapter --port 5678", "tcp:127.0.0.1:5678", Some(false)),
            ("python /v/bin/torchrun --nproc-per-node 2 t.py", "tcp:[::]:23456", Some(false)),
            ("python -m torch.distributed.run t.py", "tcp:[::]:40123", Some(false)),
            ("python /v/bin/tensorboard --logdir x", "tcp:127.0.0.1:6006", Some(false)),
            ("/v/bin/wandb-core --port-filename x", "unix:/tmp/wandb-1.sock", Some(false)),
            ("wandb-service(2-77-x)", "tcp:127.0.0.1:5000", Some(false)),
            ("/v/ray/raylet --x", "tcp:0.0.0.0:6380", Some(false)),
            (
                "/home/a/.windsurf-server/bin/x/node /home/a/.windsurf-server/out/server-main.js",
                "tcp:0.0.0.0:9001",
                Some(false),
            ),
            ("python /v/bin/jupyter-server --port 8888", "tcp:0.0.0.0:8888", Some(false)),
            ("boinc --dir /x", "tcp:127.0.0.1:31416", Some(false)),
            // These supervisors are servers as well.
            ("/usr/lib/postgresql/16/bin/postgres -D /x", "tcp:127.0.0.1:5432", Some(true)),
            ("python /v/bin/gpustack start", "tcp:0.0.0.0:80", Some(true)),
            ("/opt/lm-studio/lm-studio", "tcp:127.0.0.1:1234", Some(true)),
            ("ray::IDLE", "tcp:0.0.0.0:10003", Some(false)),
            ("julia -e import#Pluto;Pluto.run()", "tcp:127.0.0.1:1234", Some(false)),
            ("python anything.py", "tcp:127.0.0.1:40000", Some(false)),
            ("python anything.py", "unix:/tmp/pymp-a/listener-b", Some(false)),
        ] {
            let process = with_relative(engine(), command, &[address]);
            assert_eq!(family_has_clients(&process, &empty()), clients, "{command} {address}");
        }
        let rank = with_relative(rank("python t.py", &[]), "python t.py", &["tcp:10.0.0.1:40000"]);
        assert_eq!(family_has_clients(&rank, &empty()), Some(false), "another rank");
        assert_eq!(family_has_clients(&engine(), &empty()), Some(false));
    }
}
