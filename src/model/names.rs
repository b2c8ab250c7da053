//! The names of known programs and servers, from `names.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    pub monitors: Vec<String>,
    pub displays: Vec<String>,
    pub never_killed: Vec<String>,
    pub server_frameworks: Vec<String>,
    pub server_programs: Vec<String>,
    pub server_modules: Vec<String>,
    pub server_workers: Vec<String>,
    pub server_words: Vec<String>,
    pub attendants: Vec<String>,
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

pub fn is_on(list: &[String], name: &str) -> bool {
    list.iter().any(|listed| listed == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_is_read_and_has_names() {
        let names = parse().unwrap();
        for list in [
            &names.monitors,
            &names.displays,
            &names.never_killed,
            &names.server_frameworks,
            &names.server_programs,
            &names.server_modules,
            &names.server_workers,
            &names.server_words,
            &names.attendants,
        ] {
            assert!(!list.is_empty() && list.iter().all(|name| !name.is_empty()), "{list:?}");
        }
        assert!(!names.hypervisors.is_empty());
    }
}
