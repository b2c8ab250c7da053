//! The names of known programs and servers, from `names.toml`, and the facts that follow from the names of a process.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::Process;
use super::owners::OwnerEntry;
use super::program::never_killed;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    pub monitors: Vec<String>,
    pub displays: Vec<String>,
    pub interpreters: Vec<String>,
    pub never_killed: Vec<String>,
    pub server_frameworks: Vec<String>,
    pub server_programs: Vec<String>,
    pub server_modules: Vec<String>,
    pub server_workers: Vec<String>,
    pub server_words: Vec<String>,
    pub attendants: Vec<String>,
    pub kernels: BTreeMap<String, String>,
    pub placeholders: BTreeMap<String, Vec<String>>,
    pub hypervisors: Vec<Hypervisor>,
}

#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hypervisor {
    pub programs: Vec<String>,
    pub by: String,
    /// Instruction for shutting down a virtual machine: an imperative without a full stop.
    pub words: String,
}

impl Hypervisor {
    pub fn of_program(name: &str) -> Option<&'static Self> {
        NAMES.hypervisors.iter().find(|hypervisor| is_on(&hypervisor.programs, name))
    }

    pub fn advice(&self) -> String {
        let (by, words) = (&self.by, &self.words);
        format!("it is a virtual machine ({by}), which a signal would power off: {words}")
    }
}

pub static NAMES: LazyLock<Names> = LazyLock::new(|| parse().unwrap_or_default());

fn parse() -> Result<Names, toml::de::Error> {
    toml::from_str(include_str!("names.toml"))
}

/// Facts that follow from the names of a process alone. Callers cache these facts until a name changes, because
/// comparing a name with hundreds of entries takes long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NameFacts {
    pub is_display: bool,
    pub hypervisor: Option<&'static Hypervisor>,
    pub is_kernel: bool,
    pub is_worker_of_a_server: bool,
    pub looks_like_a_server: bool,
    /// Whether [`Process::mps_role`] returns a role even without NVML's list.
    pub has_mps_role: bool,
    /// Whether [`never_killed`] lists the program's name, regardless of who owns the program file.
    pub is_never_killed: bool,
    pub placeholder: Option<&'static str>,
    pub pool: Option<&'static OwnerEntry>,
}

impl NameFacts {
    pub fn new(process: &Process) -> Self {
        let (executable, comm) = (process.executable.as_deref(), process.comm.as_deref());
        Self {
            is_display: process.is_display(),
            hypervisor: process.hypervisor(),
            is_kernel: process.is_kernel(),
            is_worker_of_a_server: process.is_worker_of_a_server(),
            looks_like_a_server: process.looks_like_a_server(),
            has_mps_role: process.mps_role(None).is_some(),
            is_never_killed: never_killed(executable, None, comm, &[]).is_some(),
            placeholder: process.placeholder(),
            pool: process.pool(),
        }
    }
}

pub fn is_on(list: &[String], name: &str) -> bool {
    list.iter().any(|listed| listed == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_is_read_and_has_names() {
        parse().unwrap();
        let lists: toml::Table = include_str!("names.toml").parse().unwrap();
        for (name, list) in lists {
            assert!(list.as_array().is_none_or(|list| !list.is_empty()), "{name}");
        }
    }
}
