//! How each framework allocates GPU memory and how to free it, as NVML shows it, as advice for people.
//!
//! The table is `frameworks.toml`: prose with its sources, used by findings, by `explain` and by recipes. Nothing
//! here reads from the machine. `address` fills in a server's address, `owner` finds the owner of a process, and
//! `place` describes how to end it there. [`recipe`] is code that a process runs to free its caches; [`unload`]
//! describes how servers unload. To add a framework, add its row here and its marks in `host::framework`.

mod address;
mod owner;
mod place;
pub mod recipe;
#[cfg(test)]
mod tests;
pub mod unload;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::model::Process;
use crate::model::program::file_name;

pub use owner::{owner, owner_of};
pub use place::{place_lines, quote, thaw};

/// Python for people to paste into their program: a signal handler that frees memory on request. A process that
/// announces a signal (`GPUMEM_RELEASE_SIGNAL`) and handles it is sent that signal. Short, and standard library
/// only, so that people can read and change it.
pub const SNIPPET: &str = include_str!("snippet.py");

/// The same for TensorFlow, which frees its pool only at exit: a child process trains, saves and exits.
pub const TENSORFLOW_SNIPPET: &str = include_str!("snippet_tensorflow.py");

#[derive(PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remark {
    /// One line without a full stop; commands are in backquotes.
    pub text: String,
    pub source: String,
    /// Skips processes started with one of these settings, which already do what the line advises.
    #[serde(default)]
    unless_set: Settings,
    /// Applies only to processes started with one of these settings.
    only_if_set: Option<Settings>,
    #[serde(default)]
    is_for_notebooks: bool,
}

/// Environment variables, each with lower-case parts of its value; one match is enough.
type Settings = BTreeMap<String, Vec<String>>;

impl Remark {
    /// Whether the line applies to this process. If the environment cannot be read, no variable counts as set.
    pub fn applies(&self, process: &Process) -> bool {
        let environment = process.environment.as_deref();
        let is_set = |settings: &Settings| {
            settings.iter().any(|(variable, parts)| {
                let value = environment.and_then(|it| it.get(&**variable));
                let value = value.map(|value| value.to_lowercase());
                value.is_some_and(|value| parts.iter().any(|part| value.contains(part)))
            })
        };
        !is_set(&self.unless_set)
            && self.only_if_set.as_ref().is_none_or(is_set)
            && (!self.is_for_notebooks || place::is_notebook(process))
    }
}

#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framework {
    /// The name in snapshots, lower case: `pytorch`.
    pub name: String,
    /// The framework's own spelling: `PyTorch`.
    pub title: String,
    /// Other spellings, letters and digits only.
    #[serde(default)]
    spellings: Vec<String>,
    /// Programs in another language than Python. They use this row whatever libraries are loaded.
    #[serde(default)]
    programs: Vec<String>,
    /// How the framework allocates memory, and how NVML shows it.
    pub takes: Remark,
    /// How to free memory while the process runs. The first line alone is the short advice; the others cover other
    /// holders of memory.
    #[serde(default)]
    pub inside: Vec<Remark>,
    /// How to use less memory from the next start on.
    #[serde(default)]
    pub at_start: Vec<Remark>,
    /// Common attempts that return nothing to the driver, and what they are useful for.
    #[serde(default)]
    pub unchanged: Vec<Remark>,
    /// How to end the process without leftovers, if a signal is not enough.
    #[serde(default)]
    pub at_end: Vec<Remark>,
}

impl Framework {
    /// Whether memory can be returned to the driver while this process runs.
    pub fn returns(&self, process: &Process) -> bool {
        self.inside.iter().any(|line| line.applies(process))
    }
}

/// How to end a kernel that one of these applications started.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotebookEnd {
    of: Vec<String>,
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kernel: Remark,
    /// The same for kernels that an application other than Jupyter started.
    notebook: Vec<NotebookEnd>,
    end: Remark,
    framework: Vec<Framework>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("frameworks.toml"))
}

/// A test parses the table too, so the default is never used.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

pub fn frameworks() -> &'static [Framework] {
    &TABLE.framework
}

/// The row of a framework by any usual spelling, ignoring case and punctuation: `torch`, `llama-cpp`.
pub fn find(name: &str) -> Option<&'static Framework> {
    // Try the exact name first, because every sample looks it up for every process with a finding.
    let mut rows = frameworks().iter();
    rows.find(|row| row.name == name).or_else(|| {
        let wanted = plain(name);
        let is_title =
            |row: &&Framework| [&row.name, &row.title].map(|it| plain(it)).contains(&wanted);
        let is_spelling = |row: &&Framework| row.spellings.contains(&wanted);
        let rows = frameworks();
        rows.iter().find(is_title).or_else(|| rows.iter().find(is_spelling))
    })
}

fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// The row of the framework that holds a process's memory, by name and version, or by the program's language.
pub fn of(process: &Process) -> Option<&'static Framework> {
    let program = process.command.as_deref().and_then(<[_]>::first).map(|it| file_name(it));
    let is_language = |row: &&Framework| row.programs.iter().any(|it| Some(&**it) == program);
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

/// The rows of the other libraries that a process has loaded.
pub fn beside(process: &Process) -> Vec<&'static Framework> {
    let libraries = process.libraries.as_deref().unwrap_or_default();
    libraries.iter().filter_map(|name| find(name)).collect()
}

/// Warns that another framework in this process keeps its memory to the end; `None` if all can free it.
pub fn stays_beside(process: &Process) -> Option<String> {
    let mut rows = beside(process).into_iter();
    // Launchers and communication libraries allocate through the framework.
    let takes = |row: &Framework| !matches!(&*row.name, "deepspeed" | "nccl" | "ray");
    let row = rows.find(|row| takes(row) && !row.returns(process))?;
    let title = &row.title;
    Some(format!("{title} is loaded too: what that has taken goes back only when the process ends"))
}

/// Short advice, gentlest first: how to free memory while the process runs, then how to end it.
pub fn lines(process: &Process) -> Vec<&'static Remark> {
    let is_kernel = place::is_notebook(process) && !process.has_lost_server();
    let end = if is_kernel { &TABLE.kernel } else { &TABLE.end };
    inside(process).into_iter().chain([end]).collect()
}

/// The same for a finding, with the right way to end the process where it runs.
pub fn steps(process: &Process) -> Vec<String> {
    let places = place_lines(process);
    let ends = if places.is_empty() { vec![TABLE.end.text.clone()] } else { places };
    inside(process)
        .map(|line| line.text_for(process))
        .into_iter()
        .chain(stays_beside(process))
        .chain(ends)
        .collect()
}

/// The first way to free memory while this process runs.
fn inside(process: &Process) -> Option<&'static Remark> {
    let mut lines = of(process)?.inside.iter();
    lines.find(|line| line.applies(process))
}

/// The first setting missing from the environment that makes the next start reserve less memory.
pub fn at_start(process: &Process) -> Option<&'static Remark> {
    let mut lines = of(process)?.at_start.iter();
    lines.find(|line| line.applies(process))
}
