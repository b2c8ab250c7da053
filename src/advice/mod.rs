//! How each framework takes GPU memory and what returns it, as NVML sees it, in words to type.
//!
//! The table is `frameworks.toml`: prose with its sources, read by findings, by `explain` and by recipes. Nothing here
//! looks at a machine. Where a server is spoken to is filled in by `address`; what ends a process where it runs in a
//! container, a job, a unit or a notebook is in `place`, and who owns it in `owner`. What a process itself runs to give
//! back what it caches is [`recipe`], how servers unload is [`unload`], what they print when memory runs out in
//! [`out_of_memory`]. To add a framework, write its row, and its
//! marks in `host::framework`.

mod address;
pub mod out_of_memory;
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

pub use owner::{owner, owner_of};
pub use place::{place_lines, quote, thaw};

/// What a program is given to give memory back by itself when it is asked: a signal's handler in Python, to paste.
/// A process that has announced a signal (`GPUMEM_RELEASE_SIGNAL`) and handles it is sent that; this is the other end.
/// It is code for people to read and change: short, of the standard library, and without gpumem.
pub const SNIPPET: &str = include_str!("snippet.py");

/// The same for TensorFlow, whose pool is given back with its process only: a child that saves and ends.
pub const TENSORFLOW_SNIPPET: &str = include_str!("snippet_tensorflow.py");

/// One thing to know or to do.
#[derive(PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remark {
    /// One line, what is to be typed in backquotes, without a full stop.
    pub text: String,
    /// Where it is documented or was seen.
    pub source: String,
    /// It does not hold of processes that were started with one of these, because what it asks for is done.
    #[serde(default)]
    unless_set: Settings,
    /// It holds only of processes that were started with one of these.
    only_if_set: Option<Settings>,
}

/// Environment variables, each with parts of its value in lower case, of which one is enough.
type Settings = BTreeMap<String, Vec<String>>;

impl Remark {
    /// Whether the line holds of this process. Where its environment may not be read, nothing counts as set.
    pub fn applies(&self, process: &Process) -> bool {
        let environment = process.environment.as_deref();
        let is_set = |settings: &Settings| {
            settings.iter().any(|(variable, parts)| {
                let value = environment.and_then(|it| it.get(&**variable));
                let value = value.map(|value| value.to_lowercase());
                value.is_some_and(|value| parts.iter().any(|part| value.contains(part)))
            })
        };
        !is_set(&self.unless_set) && self.only_if_set.as_ref().is_none_or(is_set)
    }
}

/// What there is to know of a framework.
#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framework {
    /// As a snapshot names it, lower case: `pytorch`.
    pub name: String,
    /// As it names itself: `PyTorch`.
    pub title: String,
    /// What else people call it, letters and digits only.
    #[serde(default)]
    spellings: Vec<String>,
    /// How it takes memory, and what NVML shows of that.
    pub takes: Remark,
    /// What returns memory to the driver while the process lives. The first line is the whole way in brief; those
    /// after it go into what else holds memory.
    #[serde(default)]
    pub inside: Vec<Remark>,
    /// What makes it take less when it starts the next time.
    #[serde(default)]
    pub at_start: Vec<Remark>,
    /// What people try that returns nothing to the driver, and what it is good for.
    #[serde(default)]
    pub unchanged: Vec<Remark>,
    /// How to end it without leftovers, where there is more to it than a signal.
    #[serde(default)]
    pub at_end: Vec<Remark>,
}

impl Framework {
    /// Whether anything returns memory to the driver while this process lives.
    pub fn returns(&self, process: &Process) -> bool {
        self.inside.iter().any(|line| line.applies(process))
    }
}

/// How a kernel is ended that one of these applications started.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotebookEnd {
    of: Vec<String>,
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// How a notebook's kernel is ended.
    kernel: Remark,
    /// The same where another application than Jupyter started it.
    notebook: Vec<NotebookEnd>,
    /// How any other process is ended.
    end: Remark,
    framework: Vec<Framework>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("frameworks.toml"))
}

/// A test reads it as well, so the default is never seen.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

/// Every row of the table.
pub fn frameworks() -> &'static [Framework] {
    &TABLE.framework
}

/// The row of a framework by its name, its title or another usual spelling, in any case and with or
/// without what joins its words: `torch`, `TF`, `llama-cpp`. `None` where the table has none.
pub fn find(name: &str) -> Option<&'static Framework> {
    // As snapshots name it: that is asked of every process of which something is found, in every sample.
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

/// Letters and digits only, in lower case.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// The row of what holds a process's memory, by framework and version. `None` where that is unknown.
pub fn of(process: &Process) -> Option<&'static Framework> {
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

/// The rows of what a process has loaded beside its framework.
pub fn beside(process: &Process) -> Vec<&'static Framework> {
    let libraries = process.libraries.as_deref().unwrap_or_default();
    libraries.iter().filter_map(|name| find(name)).collect()
}

/// That what another framework of this process has taken stays until its end, whatever the one does that
/// holds the most; `None` where all of them can return it.
pub fn stays_beside(process: &Process) -> Option<String> {
    let mut rows = beside(process).into_iter();
    // What launches and links takes through the framework.
    let takes = |row: &Framework| !matches!(&*row.name, "deepspeed" | "nccl" | "ray");
    let row = rows.find(|row| takes(row) && !row.returns(process))?;
    let title = &row.title;
    Some(format!("{title} is loaded too: what that has taken goes back only when the process ends"))
}

/// What gives this process's memory back, gentlest first, in brief: what returns it while the process
/// lives, if anything does, and its end.
pub fn lines(process: &Process) -> Vec<&'static Remark> {
    let is_kernel = place::is_notebook(process) && !process.has_lost_server();
    let end = if is_kernel { &TABLE.kernel } else { &TABLE.end };
    inside(process).into_iter().chain([end]).collect()
}

/// The same for a finding: its end as it is right where the process runs.
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

/// The first thing that returns memory while this process lives.
fn inside(process: &Process) -> Option<&'static Remark> {
    let mut lines = of(process)?.inside.iter();
    lines.find(|line| line.applies(process))
}

/// What makes this process reserve less when it starts the next time: the first way that its
/// environment does not show to be taken. `None` where its framework is unknown or all is done.
pub fn at_start(process: &Process) -> Option<&'static Remark> {
    let mut lines = of(process)?.at_start.iter();
    lines.find(|line| line.applies(process))
}
