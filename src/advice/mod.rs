//! Advice for users: how each framework allocates GPU memory, and how to free the memory.
//!
//! `frameworks.toml` contains the texts and their sources. `owner` finds the owner of a process, and describes how to
//! end the process through the owner. [`recipe`] is code that a process runs to free its caches, and [`unload`]
//! describes how servers unload models. This module reads nothing from the machine.

mod owner;
pub mod recipe;
#[cfg(test)]
mod tests;
pub mod unload;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::model::Process;
use crate::model::program::file_name;

use owner::is_notebook;
pub use owner::{continue_line, owner, owner_of, place_lines, quote, thaw};
use unload::{ServerListener, UnloadServer, server_of, unload_server};

/// Python code for users to paste into a program: a signal handler that frees memory on request.
/// The code is short and uses only the standard library, so that users can read and change it.
pub const SNIPPET: &str = include_str!("snippet.py");

/// Python code that trains in a child process, because TensorFlow frees its memory pool only at exit.
pub const TENSORFLOW_SNIPPET: &str = include_str!("snippet_tensorflow.py");

#[derive(PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceText {
    /// One line without a full stop, with commands in backquotes.
    pub text: String,
    pub source: String,
    /// The advice does not apply to processes with one of these settings, because these processes already follow the
    /// advice.
    #[serde(default)]
    unless_set: Settings,
    /// If present, the advice applies only to processes with one of these settings.
    only_if_set: Option<Settings>,
    #[serde(default)]
    is_for_notebooks: bool,
}

/// Environment variables with lower-case substrings of their values. One match suffices.
type Settings = BTreeMap<String, Vec<String>>;

impl AdviceText {
    /// Returns whether the advice applies to the process. An unreadable environment is treated as empty.
    pub fn applies(&self, process: &Process) -> bool {
        let environment = process.environment.as_deref();
        let is_set = |settings: &Settings| {
            settings.iter().any(|(variable, parts)| {
                let value = environment.and_then(|environment| environment.get(&**variable));
                let value = value.map(|value| value.to_lowercase());
                value.is_some_and(|value| parts.iter().any(|part| value.contains(part)))
            })
        };
        !is_set(&self.unless_set)
            && self.only_if_set.as_ref().is_none_or(is_set)
            && (!self.is_for_notebooks || is_notebook(process))
    }

    /// Returns the text with the address of the process's server, if known.
    pub fn text_for(&self, process: &Process) -> String {
        with_address(&self.text, server_address(process))
    }
}

/// Inserts the address of a server, if known.
fn with_address(text: &str, address: Option<(bool, u16, String)>) -> String {
    let Some((is_secure, default_port, host_and_port)) = address else {
        return text.to_owned();
    };
    let text = text.replace("HOST:PORT", &host_and_port);
    let text = text.replace(&format!("HOST:{default_port}"), &host_and_port);
    if is_secure { text.replace("http://", "https://") } else { text }
}

/// Returns whether the server uses TLS, its default port, and its `host:port`.
fn server_address(process: &Process) -> Option<(bool, u16, String)> {
    if process.listening_on.is_none() {
        return typed_address(process);
    }
    let (row, listener) = server_of(process)?;
    framework_of(process).filter(|framework| framework.name == row.name)?;
    address_of(process, row, listener?)
}

fn address_of(
    process: &Process,
    row: &UnloadServer,
    listener: ServerListener<'_>,
) -> Option<(bool, u16, String)> {
    let address = row.address(listener.command, listener.listening_on)?;
    let address: SocketAddr = address.strip_prefix("tcp:")?.parse().ok()?;
    // Only the owner of a container knows how the container's port is published.
    let host = match address.ip().to_canonical() {
        _ if process.container.is_some() => "HOST".to_owned(),
        ip if ip.is_loopback() || ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    Some((row.is_secure(listener.command), row.port, format!("{host}:{}", address.port())))
}

/// Determines the server's address from the command line, for use when sockets are not readable.
fn typed_address(process: &Process) -> Option<(bool, u16, String)> {
    let command = process.command.as_deref()?;
    let row = unload_server(process.framework.as_deref()?)?;
    let runs = row.runs(command, process.working_directory.as_deref(), &[]);
    let port = row.typed_port(command).filter(|_| runs)?;
    let host = if process.container.is_some() { "HOST" } else { "localhost" };
    Some((row.is_secure(command), row.port, format!("{host}:{port}")))
}

#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framework {
    pub name: String,
    pub title: String,
    #[serde(default)]
    spellings: Vec<String>,
    /// File names of programs that are recognised regardless of the libraries that they load.
    #[serde(default)]
    programs: Vec<String>,
    pub takes: AdviceText,
    /// How to free memory while the process runs. Short advice shows only the first line.
    #[serde(default)]
    pub inside: Vec<AdviceText>,
    #[serde(default)]
    pub at_start: Vec<AdviceText>,
    /// Common attempts that do not return memory to the driver.
    #[serde(default)]
    pub unchanged: Vec<AdviceText>,
    #[serde(default)]
    pub at_end: Vec<AdviceText>,
}

impl Framework {
    pub fn returns(&self, process: &Process) -> bool {
        self.inside.iter().any(|line| line.applies(process))
    }
}

/// The way to end a kernel that an application in `of` has started.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotebookEnd {
    of: Vec<String>,
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kernel: AdviceText,
    notebook: Vec<NotebookEnd>,
    end: AdviceText,
    framework: Vec<Framework>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("frameworks.toml"))
}

/// A test checks that the table parses, so the default is never used.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

pub fn frameworks() -> &'static [Framework] {
    &TABLE.framework
}

/// Finds a framework by its name, ignoring case and punctuation.
pub fn find(name: &str) -> Option<&'static Framework> {
    // Exact names are the common case: each sample looks up a name for every process with a finding.
    let mut rows = frameworks().iter();
    rows.find(|row| row.name == name).or_else(|| {
        let wanted = plain(name);
        let is_title =
            |row: &&Framework| [&row.name, &row.title].map(|name| plain(name)).contains(&wanted);
        let is_spelling = |row: &&Framework| row.spellings.contains(&wanted);
        let rows = frameworks();
        rows.iter().find(is_title).or_else(|| rows.iter().find(is_spelling))
    })
}

fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// Returns the framework that holds the process's memory.
pub fn framework_of(process: &Process) -> Option<&'static Framework> {
    let program =
        process.command.as_deref().and_then(<[_]>::first).map(|program| file_name(program));
    let is_language =
        |row: &&Framework| row.programs.iter().any(|argument| Some(&**argument) == program);
    if let Some(row) = frameworks().iter().find(is_language) {
        return Some(row);
    }
    let name = process.framework.as_deref()?;
    let is_first = process
        .framework_version
        .as_deref()
        .is_some_and(|version| version.split('.').next() == Some("1"));
    find(match name {
        "tensorflow" if is_first => "tensorflow1",
        name => name,
    })
}

/// Returns the frameworks that a process has loaded in addition to its main framework.
pub fn beside(process: &Process) -> Vec<&'static Framework> {
    let libraries = process.libraries.as_deref().unwrap_or_default();
    libraries.iter().filter_map(|name| find(name)).collect()
}

/// Returns a warning if another framework in the process frees its memory only at exit.
pub fn stays_beside(process: &Process) -> Option<String> {
    let mut rows = beside(process).into_iter();
    // Launchers and communication libraries allocate memory through a framework.
    let takes = |row: &Framework| !matches!(&*row.name, "deepspeed" | "nccl" | "ray");
    let row = rows.find(|row| takes(row) && !row.returns(process))?;
    let title = &row.title;
    Some(format!("{title} is loaded too and returns its memory only when the process ends"))
}

/// Returns short advice: how to free memory while the process runs, and how to end the process.
pub fn lines(process: &Process) -> Vec<&'static AdviceText> {
    let is_kernel = is_notebook(process) && !process.has_lost_server();
    let end = if is_kernel { &TABLE.kernel } else { &TABLE.end };
    inside(process).into_iter().chain([end]).collect()
}

/// Returns short advice for a finding, with the command that ends the process through its owner.
pub fn steps(process: &Process) -> Vec<String> {
    let owner_steps = place_lines(process);
    let ends = if owner_steps.is_empty() { vec![TABLE.end.text.clone()] } else { owner_steps };
    server_line(process)
        .or_else(|| inside(process).map(|line| line.text_for(process)))
        .into_iter()
        .chain(stays_beside(process))
        .chain(ends)
        .collect()
}

/// Returns how the process's server unloads its models, if gpumem cannot ask the server to do so.
pub fn server_line(process: &Process) -> Option<String> {
    // An abandoned worker has no server that could answer.
    let (row, listener) = server_of(process).filter(|_| !process.has_lost_starter())?;
    let address = listener.and_then(|listener| address_of(process, row, listener));
    Some(with_address(row.advice.as_ref()?, address))
}

fn inside(process: &Process) -> Option<&'static AdviceText> {
    let mut lines = framework_of(process)?.inside.iter();
    lines.find(|line| line.applies(process))
}

/// Returns the first setting that would make the process reserve less memory after a restart.
pub fn at_start(process: &Process) -> Option<&'static AdviceText> {
    let mut lines = framework_of(process)?.at_start.iter();
    lines.find(|line| line.applies(process))
}
