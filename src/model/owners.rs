//! Owners of programs other than Slurm, pods, containers, units and pools: `owners.toml`, read once.
//!
//! An owner restarts a program that ended, or runs it as a job. It is recognised by the program of a living
//! ancestor, or by environment variables. Rules leave a process alone only if its ancestor is proved to belong to
//! root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Deserialize;

use super::Process;
use super::names::is_on;
use super::pool::tool;
use super::process::Parent;
use super::program::is_interpreter;

/// The kernel's limit for a short name, in bytes.
const COMM_BYTES: usize = 15;

/// An entry; the header of `owners.toml` explains each key.
#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramOwner {
    pub name: String,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    titles: Vec<String>,
    #[serde(default)]
    variables: Vec<String>,
    #[serde(default)]
    needs: Vec<String>,
    #[serde(default)]
    unless: BTreeMap<String, String>,
    pub shows: Option<String>,
    pub stop: Option<String>,
    pub check: Option<String>,
    pub unnamed: String,
    #[serde(default)]
    pub restarts: bool,
    #[serde(default)]
    pub is_batch: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Owners {
    ways_in: Vec<String>,
    owner: Vec<ProgramOwner>,
}

static OWNERS: LazyLock<Owners> = LazyLock::new(|| parse().unwrap_or_default());

fn parse() -> Result<Owners, toml::de::Error> {
    toml::from_str(include_str!("owners.toml"))
}

pub fn variables() -> BTreeSet<&'static str> {
    let of = |owner: &'static ProgramOwner| {
        let texts = [&owner.shows, &owner.stop, &owner.check].into_iter().flatten();
        let named = texts.flat_map(|text| placeholders(text)).filter(|name| is_variable(name));
        let listed = owner.variables.iter().chain(&owner.needs).map(String::as_str);
        named.chain(listed).collect::<Vec<&str>>()
    };
    OWNERS.owner.iter().flat_map(of).collect()
}

fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

fn is_variable(name: &str) -> bool {
    name != "PID" && name.parse::<usize>().is_err()
}

/// Whether an ancestor with this short name may be an owner, so that its argv is worth reading.
pub fn may_be_owner(comm: &str) -> bool {
    let is_cut = |name: &String| {
        let name = name.split(' ').next().unwrap_or_default();
        name.get(..COMM_BYTES).unwrap_or(name) == comm
    };
    let is_titled = |title: &String| comm.starts_with(title.get(..COMM_BYTES).unwrap_or(title));
    let is_it =
        |it: &ProgramOwner| it.parents.iter().any(is_cut) || it.titles.iter().any(is_titled);
    is_interpreter(comm) || OWNERS.owner.iter().any(is_it)
}

/// Whether people or unrelated programs start the processes below this ancestor.
pub fn is_way_in(ancestor: &Parent) -> bool {
    let is_cut =
        |name: &String| ancestor.comm.as_deref() == Some(name.get(..COMM_BYTES).unwrap_or(name));
    OWNERS.ways_in.iter().any(is_cut)
        || tool(ancestor.command.as_deref().unwrap_or_default())
            .is_some_and(|(tool, _)| is_on(&OWNERS.ways_in, tool))
}

impl ProgramOwner {
    pub fn of(ancestor: &Parent) -> Option<&'static Self> {
        OWNERS.owner.iter().find(|it| it.is_run_by(ancestor))
    }

    /// Whether a program file with this name is the owner's program, or an interpreter for its script.
    pub fn may_run_from(&self, file: &str) -> bool {
        is_interpreter(file) || self.parents.iter().any(|it| it.split(' ').next() == Some(file))
    }

    fn is_run_by(&self, ancestor: &Parent) -> bool {
        let command = ancestor.command.as_deref().unwrap_or_default();
        let has = |word: &str| command.iter().skip(1).any(|argument| **argument == *word);
        let runs = |words: &String| {
            let mut words = words.split(' ');
            words.next().is_some_and(|name| ancestor.runs(name)) && words.all(has)
        };
        let title = command.first().map_or("", |title| title);
        self.parents.iter().any(runs) || self.titles.iter().any(|it| title.starts_with(&**it))
    }

    fn applies(&self, process: &Process) -> bool {
        let has = |name: &String| variable(process, name).is_some();
        let mut excluded = self.unless.iter();
        self.needs.iter().all(has)
            && !excluded.any(|(name, value)| variable(process, name) == Some(value))
    }

    fn is_named_by_environment(&self, process: &Process) -> bool {
        !self.variables.is_empty()
            && self.variables.iter().all(|name| variable(process, name).is_some())
    }

    /// Whether the command contains a name from the process's environment, which the process can forge.
    pub fn is_claimed(&self) -> bool {
        self.stop.as_deref().is_some_and(|stop| placeholders(stop).any(is_variable))
    }
}

fn variable<'a>(process: &'a Process, name: &str) -> Option<&'a str> {
    let value = process.environment.as_deref()?.get(name)?;
    Some(&**value).filter(|value| !value.is_empty())
}

/// The owner of a process, and the evidence for it.
#[derive(Clone, Copy, Debug)]
pub struct OwnedProgram<'a> {
    pub owner: &'static ProgramOwner,
    /// The ancestor; `None` if only the environment names the owner.
    pub ancestor: Option<&'a Parent>,
    process: &'a Process,
}

impl Process {
    /// The owner that would restart the process or miss it. An orphan has lost its owner.
    pub fn program_owner(&self) -> Option<OwnedProgram<'_>> {
        if self.is_left_behind() {
            return None;
        }
        let owner = |fits: &dyn Fn(&ProgramOwner) -> bool| {
            OWNERS.owner.iter().find(|it| fits(it) && it.applies(self))
        };
        // Recordings of earlier versions contain only the parent.
        let ancestor = self.supervisor.as_deref().or(self.parent.as_deref());
        let by_ancestor = ancestor.and_then(|it| Some((owner(&|entry| entry.is_run_by(it))?, it)));
        match by_ancestor {
            Some((owner, it)) => Some(OwnedProgram { owner, ancestor: Some(it), process: self }),
            None => owner(&|entry| entry.is_named_by_environment(self)).map(|owner| OwnedProgram {
                owner,
                ancestor: None,
                process: self,
            }),
        }
    }
}

impl OwnedProgram<'_> {
    /// Whether the owner is proved to run as root; rules then leave the process to it.
    pub fn is_roots(&self) -> bool {
        self.process.supervisor.is_some() && self.process.supervisor_is_roots == Some(true)
    }

    pub fn value(&self, name: &str) -> Option<String> {
        if name == "PID" {
            return Some(self.process.pid.to_string());
        }
        match name.parse::<usize>() {
            Ok(place) => Some(self.ancestor?.command.as_deref()?.get(place)?.to_string()),
            Err(_) => variable(self.process, name).map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_can_be_recognised_and_ends_something() {
        let owners = parse().unwrap();
        assert!(owners.owner.len() > 20 && !owners.ways_in.is_empty());
        for it in &owners.owner {
            assert!(!it.parents.is_empty() || !it.variables.is_empty(), "{}", it.name);
            assert!(it.restarts || it.is_batch, "{}", it.name);
            assert_eq!(it.unnamed.matches('`').count() % 2, 0, "{}", it.name);
            assert!(!it.unnamed.ends_with('.'), "{}", it.name);
            // People must be able to check a name that the process itself supplied.
            assert!(!it.is_claimed() || it.check.is_some(), "{}", it.name);
            for parent in it.parents.iter().filter(|it| !it.contains('.')) {
                let name = parent.split(' ').next().unwrap();
                assert!(may_be_owner(name.get(..COMM_BYTES).unwrap_or(name)), "{parent}");
            }
        }
    }
}
