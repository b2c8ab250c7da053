//! Finds the notebook and the server of a kernel.
//!
//! [`read_kernel`] reads files and /proc. The kernel's command line names its connection file, which can name the
//! notebook. The kernel's environment contains the pid of the process that started it. A server that starts kernels
//! writes its address to a file. The paths of these files are resolved from the root directory of the process that
//! names them. [`Client`] sends requests to the server: for the state of its kernels, or to shut one down.
//! [`ShellChannel`] sends requests directly to a kernel. `reclaim` decides which requests are allowed.
//!
//! This module does not write or delete files, and does not send signals. It does not keep secrets such as signing
//! keys and environments, except a server's [`Token`], which is never displayed. Users' files can be on a file server
//! that hangs, and a notebook server may never answer, so `source::kernel_poller` uses a separate thread.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::http::{Endpoint, HeaderValue, Listener};
use super::proc::notebook::{
    connection_argument, is_hub_server, is_server, may_be_marimo, parse_batch,
    parse_child_of_marimo, parse_console, parse_fileless_server, parse_kernel,
};
use super::proc::opened_process::{Environment, OpenedProcess};
use super::{Roots, truncate};
use crate::model::snapshot::Jupyter;

mod channel;
mod client;
mod error;
mod files;
mod relation;
mod servers;

pub use channel::{Evaluated, ShellChannel};
pub use client::{Client, KernelState};
pub use error::{ChannelError, ServerError};
pub use servers::{FoundServer, find_runtime_folders};

use files::{ServerFile, read_connection, read_server_file, read_token};
use relation::{Starter, find_starter, find_twin};

const TEXT_BYTES: usize = 1024;

/// Environment variables that batch systems set. A job may have been submitted from a kernel on another machine and
/// have inherited its environment. The pid in that environment then does not refer to a process on this machine.
const BATCH_VARIABLES: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"];

/// Process that is a kernel, or may be one, according to its command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelCandidate {
    pub pid: u32,
    pub start_ticks: u64,
    /// Kernel described by the command line, or `None` if the process can be a kernel only because of its parent
    /// ([`may_be_kernel`]).
    pub jupyter: Option<Arc<Jupyter>>,
}

impl KernelCandidate {
    /// Reads the current command line of a process. Returns `None` if the process has exited or its command line is
    /// not that of a kernel. Reads only /proc.
    pub fn read(roots: &Roots, pid: u32, start_ticks: u64) -> Option<Self> {
        let process = OpenedProcess::open(roots, pid).ok()??;
        if process.start_ticks != start_ticks {
            return None;
        }
        let jupyter = parse_kernel(&process.command()?)?;
        Some(Self { pid, start_ticks, jupyter: Some(jupyter.into()) })
    }
}

#[derive(Clone, Debug)]
pub struct LocalKernel {
    pub jupyter: Jupyter,
    /// Server to which requests can be sent, or `None` if the kernel has no server or the server cannot be used
    /// (`server_error`).
    pub server: Option<Server>,
    candidate: KernelCandidate,
    /// Pid of the process that started the kernel, from the kernel's environment.
    number: Option<u32>,
    /// Whether `number` certainly refers to a process on this machine.
    is_number_ours: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    pub listener: Listener,
    base_url: String,
    token: Option<Token>,
}

impl Server {
    fn from_file(
        process: &OpenedProcess,
        environment: Option<&Environment>,
        file: ServerFile,
    ) -> Result<Self, ServerError> {
        let variable = |name| environment.and_then(|environment| environment.get(name));
        let mut token = file
            .token
            .or_else(|| variable("JUPYTERHUB_API_TOKEN").and_then(Token::new))
            .or_else(|| variable("JUPYTER_TOKEN").and_then(Token::new));
        if let (None, Some(path)) = (&token, variable("JUPYTER_TOKEN_FILE")) {
            token = read_token(process, path)?;
        }
        if token.is_none() && file.has_password {
            return Err(ServerError::Password);
        }
        Ok(Self {
            listener: Listener {
                pid: process.pid,
                start_ticks: process.start_ticks,
                endpoint: if file.sock.is_empty() {
                    Endpoint::Tcp { host: file.hostname, port: file.port }
                } else {
                    Endpoint::Unix(file.sock)
                },
                is_https: file.is_https,
            },
            base_url: file.base_url,
            token,
        })
    }
}

/// Token that the API of a server requires. It must not be displayed or written to a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.into()))
    }

    /// Returns the value of the `Authorization` header, or `None` if the token contains characters that are invalid
    /// in a header.
    fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("token {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

pub fn may_be_kernel(arguments: &[Arc<str>]) -> bool {
    may_be_marimo(arguments) || connection_argument(arguments).is_some()
}

/// Reads a kernel's files and its entries in /proc. Returns `None` if the process has exited or is not a kernel. Can
/// hang, because it reads users' files.
pub fn read_kernel(roots: &Roots, candidate: &KernelCandidate) -> Option<LocalKernel> {
    let process = OpenedProcess::open(roots, candidate.pid).ok()??;
    if process.start_ticks != candidate.start_ticks {
        return None;
    }
    let jupyter = match &candidate.jupyter {
        Some(jupyter) => (**jupyter).clone(),
        None => match read_child_of_marimo(roots, candidate, &process) {
            Some(kernel) => return Some(kernel),
            None => read_started_kernel(roots, &process)?,
        },
    };
    let mut kernel = LocalKernel {
        jupyter,
        server: None,
        candidate: candidate.clone(),
        number: None,
        is_number_ours: false,
    };
    // marimo writes no connection file.
    if kernel.jupyter.application.as_deref() == Some("marimo") {
        return Some(kernel);
    }
    if let Err(error) = kernel.read(roots, &process) {
        kernel.fail(&error);
    }
    Some(kernel)
}

/// Recognises a kernel whose command line matches no known kernel, for example a Julia kernel that papermill started.
/// One argument can be a connection file, and the parent is the process that the environment names. A program that the
/// kernel starts inherits the environment, but has another parent.
fn read_started_kernel(roots: &Roots, process: &OpenedProcess) -> Option<Jupyter> {
    let environment = process.environment()?;
    let number = environment.get("JPY_PARENT_PID")?.parse().ok()?;
    let Starter::Alive(starter) = find_starter(roots, process, number) else {
        return None;
    };
    let command = process.command()?;
    let file = connection_argument(&command).filter(|_| process.ppid == Some(starter.pid))?;
    let is_served = is_server(&starter.command().unwrap_or_default());
    Some(Jupyter {
        application: Some(if is_served { "jupyter" } else { "batch" }.into()),
        connection_file: Some(file.into()),
        ..Jupyter::default()
    })
}

fn read_child_of_marimo(
    roots: &Roots,
    candidate: &KernelCandidate,
    process: &OpenedProcess,
) -> Option<LocalKernel> {
    let parent = OpenedProcess::open(roots, process.ppid?).ok()??;
    let mut jupyter = parse_child_of_marimo(&parent.command()?)?;
    jupyter.notebook_path = jupyter.notebook_path.map(|path| absolute(&parent, &path).into());
    jupyter.server_pid = Some(parent.pid);
    Some(LocalKernel {
        jupyter,
        server: None,
        candidate: candidate.clone(),
        number: None,
        is_number_ours: false,
    })
}

impl LocalKernel {
    /// Updates whether the process that started the kernel still runs. Returns `false` if the kernel has exited.
    /// Reads only /proc.
    pub fn refresh(&mut self, roots: &Roots) -> bool {
        let Ok(Some(process)) = OpenedProcess::open(roots, self.candidate.pid) else {
            return false;
        };
        if process.start_ticks != self.candidate.start_ticks {
            return false;
        }
        let Some(number) = self.number else {
            return true;
        };
        let starter = find_starter(roots, &process, number);
        self.note_starter(&starter);
        if matches!(starter, Starter::Gone) && self.server.take().is_some() {
            self.fail(&ServerError::Gone { number });
        }
        true
    }

    /// Checks that this process is the kernel whose id the server knows. Returns an error if the process has exited
    /// or if another process may be the kernel. Reads only /proc.
    pub fn check(&self, roots: &Roots) -> Result<(), ServerError> {
        let KernelCandidate { pid, start_ticks, .. } = self.candidate;
        let current = KernelCandidate::read(roots, pid, start_ticks);
        let is_same = current.as_ref() == Some(&self.candidate);
        let process = OpenedProcess::open(roots, pid).ok().flatten();
        let Some(process) = process.filter(|process| is_same && process.start_ticks == start_ticks)
        else {
            return Err(ServerError::Replaced { pid });
        };
        let (Some(id), Some(server)) = (&self.jupyter.kernel_id, self.jupyter.server_pid) else {
            return Err(ServerError::UnknownKernel);
        };
        match find_twin(roots, &process, id, server)? {
            Some(pid) => Err(ServerError::Twin { pid }),
            None => Ok(()),
        }
    }

    fn note_starter(&mut self, starter: &Starter) {
        self.jupyter.server_alive = match starter {
            Starter::Alive(_) => Some(true),
            Starter::Gone if self.is_number_ours => Some(false),
            Starter::Gone | Starter::Unknown => None,
        };
    }

    fn fail(&mut self, error: &ServerError) {
        self.jupyter.server_error = Some(clip(&error.to_string()).into());
    }

    fn read(&mut self, roots: &Roots, process: &OpenedProcess) -> Result<(), ServerError> {
        let path = self.jupyter.connection_file.as_deref();
        let connection = path.map(|path| read_connection(process, path));
        let environment = process.environment();
        if let Some(Ok(connection)) = &connection {
            self.set_notebook(connection.jupyter_session.as_deref());
        }
        let Some(environment) = environment else {
            return Err(ServerError::Environment { pid: process.pid });
        };
        self.set_notebook(environment.get("JPY_SESSION_NAME"));
        let is_local = matches!(&connection, Some(Ok(connection)) if connection.is_local());
        let is_batch_job = BATCH_VARIABLES.iter().any(|name| environment.get(name).is_some());
        self.number = environment.get("JPY_PARENT_PID").and_then(|number| number.parse().ok());
        // VS Code, Positron and users start kernels directly. The pid in the environment of such a kernel is inherited from
        // another program.
        let application = self.jupyter.application.as_deref();
        if matches!(application, Some("vscode" | "ipykernel" | "positron")) {
            self.number = None;
        }
        if let (None, Some(Err(error))) = (&self.jupyter.notebook_path, &connection) {
            self.fail(error);
        }
        let Some(number) = self.number else {
            return Ok(());
        };
        self.is_number_ours = is_local && !is_batch_job;
        let starter = find_starter(roots, process, number);
        self.note_starter(&starter);
        let is_batch = self.jupyter.application.as_deref() == Some("batch");
        match starter {
            Starter::Alive(starter) => {
                // The user of the kernel can change this pid, so it must not lead to another user's server.
                // Otherwise, gpumem would query that server and attribute the answers to the kernel.
                if starter.uid != process.uid {
                    return Err(ServerError::Stranger { pid: starter.pid });
                }
                if is_batch {
                    self.read_batch(&starter);
                    return Ok(());
                }
                self.read_server(process, &environment, &starter, number)
            }
            Starter::Gone | Starter::Unknown if is_batch => Ok(()),
            Starter::Gone => Err(ServerError::Gone { number }),
            Starter::Unknown => Err(ServerError::Unseen { number }),
        }
    }

    fn set_notebook(&mut self, path: Option<&str>) {
        let path = path.filter(|path| !path.is_empty());
        if let (None, Some(path)) = (&self.jupyter.notebook_path, path) {
            self.jupyter.notebook_path = Some(clip(path).into());
        }
    }

    fn read_batch(&mut self, starter: &OpenedProcess) {
        let Some(command) = starter.command() else {
            return;
        };
        let (application, notebook) = parse_batch(&command);
        self.jupyter.application = Some(application.into());
        let path = notebook.map(|notebook| absolute(starter, notebook));
        self.set_notebook(path.as_deref());
    }

    fn read_server(
        &mut self,
        process: &OpenedProcess,
        environment: &Environment,
        server: &OpenedProcess,
        number: u32,
    ) -> Result<(), ServerError> {
        let server_environment = server.environment();
        let folders = self.folders(environment, server_environment.as_ref());
        let argv = server.command().unwrap_or_default();
        // If the kernel runs in a separate container, the server's file may be visible only below the kernel's root
        // directory.
        let server_file = match find_server_file(server, &folders, number)? {
            Some(server_file) => Some(server_file),
            None if server.shares_root(process) => None,
            None => find_server_file(process, &folders, number)?,
        };
        let Some(file) = server_file else {
            if let Some(console) = parse_console(&argv) {
                self.jupyter.application = Some(console.into());
            }
            // A program that wrote no file and is not a known server must not receive requests.
            if !is_server(&argv) {
                return Ok(());
            }
            self.jupyter.server_pid = Some(server.pid);
            if let Some(application) = parse_fileless_server(&argv) {
                self.jupyter.application = Some(application.into());
                return Err(ServerError::Fileless { pid: server.pid, application });
            }
            return Err(ServerError::NoFile {
                pid: server.pid,
                folder: folders.first().cloned().unwrap_or_default(),
            });
        };
        self.jupyter.server_pid = Some(server.pid);
        let prefix = server_environment
            .as_ref()
            .and_then(|environment| environment.get("JUPYTERHUB_SERVICE_PREFIX"));
        let is_hub = is_hub_server(&argv) || prefix.is_some();
        if is_hub && self.jupyter.application.as_deref() == Some("jupyter") {
            self.jupyter.application = Some("jupyterhub".into());
        }
        self.jupyter.server_url = Some(clip(&url(&file)).into());
        self.jupyter.server_root = file.root.as_deref().map(|root| clip(root).into());
        self.make_relative(file.root.as_deref());
        self.server = Some(Server::from_file(server, server_environment.as_ref(), file)?);
        Ok(())
    }

    fn make_relative(&mut self, root: Option<&str>) {
        let within = root
            .zip(self.jupyter.notebook_path.as_deref())
            .and_then(|(root, path)| Path::new(path).strip_prefix(root).ok()?.to_str());
        if let Some(path) = within.filter(|path| !path.is_empty()) {
            self.jupyter.notebook_path = Some(path.into());
        }
    }

    /// Returns the folders that can contain the server's file: the folder of the connection file, and the runtime
    /// folders named in the environments.
    fn folders(&self, environment: &Environment, server: Option<&Environment>) -> Vec<String> {
        let connection_file = self.jupyter.connection_file.as_deref().map(Path::new);
        let beside = connection_file.and_then(Path::parent).map(Path::to_path_buf);
        let runtime_folders =
            [beside, server.and_then(Environment::runtime_folder), environment.runtime_folder()];
        let mut folders = Vec::new();
        for folder in runtime_folders.into_iter().flatten() {
            let folder = folder.to_string_lossy().into_owned();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders
    }
}

fn find_server_file(
    process: &OpenedProcess,
    folders: &[String],
    number: u32,
) -> Result<Option<ServerFile>, ServerError> {
    for folder in folders {
        for name in ["jpserver", "nbserver"] {
            let path = format!("{folder}/{name}-{number}.json");
            if let Some(file) = read_server_file(process, &path, number)? {
                return Ok(Some(file));
            }
        }
    }
    Ok(None)
}

fn url(file: &ServerFile) -> String {
    let base = &file.base_url;
    if !file.sock.is_empty() {
        return format!("http+unix://{}{base}", file.sock.replace('/', "%2F"));
    }
    let scheme = if file.is_https { "https" } else { "http" };
    let host = match file.hostname.as_str() {
        "" | "*" => "localhost".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    format!("{scheme}://{host}:{}{base}", file.port)
}

fn absolute(process: &OpenedProcess, path: &str) -> String {
    let folder = process.link(c"cwd").filter(|_| !path.starts_with('/'));
    clip(&match folder {
        Some(folder) => format!("{folder}/{path}"),
        None => path.to_owned(),
    })
}

/// Truncates untrusted text, and marks truncated text with a final `…`.
fn clip(text: &str) -> String {
    if text.len() <= TEXT_BYTES {
        return text.to_owned();
    }
    format!("{}…", truncate(text, TEXT_BYTES))
}

#[cfg(test)]
mod tests;
