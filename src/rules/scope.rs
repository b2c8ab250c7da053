//! Which processes a rule, an override or an exemption is for.
//!
//! A scope answers yes, no or unknown. What is unknown leads to no finding: a rule and an override are for
//! processes that are known to match. What an exemption makes of it is in [`exemption`](super::exemption).

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::setting;
use crate::model::field::Field;
use crate::model::row::{Me, ProcessRow};
use crate::model::selector::Selector;
use crate::model::{GpuProcess, Process, Snapshot};

/// The fields that say whose a process is. A configuration names them whole.
const OWNERS: [Field; 5] = [Field::User, Field::Container, Field::Pod, Field::Job, Field::Unit];

/// Which processes a rule, an override or an exemption is for: a selector, or all.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scope {
    /// As `--where` has it, of what one snapshot tells.
    pub selector: Option<Selector>,
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let terms = "terms such as \"user=ann gpu:0 mem>4GiB\"";
        let text = setting::parsed(from, terms, setting::text)?;
        let wrong = |why: &str| de::Error::custom(format!("{text:?} {why}; write {terms}"));
        let selector = Selector::parse(&text).map_err(de::Error::custom)?;
        let selector = selector.ok_or_else(|| wrong("is not allowed"))?;
        for field in selector.fields() {
            match field {
                None => return Err(wrong("has a word that names no field")),
                // They are what rules conclude, and the caller is no user.
                Some(Field::Idle | Field::Finding | Field::Is) => {
                    return Err(wrong("asks for idle, finding or is, which no rule can be asked"));
                }
                Some(_) => {}
            }
        }
        // What is done about ann's processes must not be done about hannah's.
        if let Some(field) = selector.fields_in_part().find(|field| OWNERS.contains(field)) {
            let name = field.spec().names[0];
            let why = format!("has {name}: with a part of a name, which others may have in theirs");
            return Err(de::Error::custom(format!(
                "{text:?} {why}; write {name}= and the whole name"
            )));
        }
        // It would match nobody, and keep nobody.
        if let Some(field) = selector.fields_with_star().find(|field| OWNERS.contains(field)) {
            let name = field.spec().names[0];
            return Err(de::Error::custom(format!(
                "{text:?} has a * in {name}=, which compares whole names; leave the term out to mean everybody"
            )));
        }
        Ok(Self { selector: Some(selector) })
    }
}

impl Scope {
    /// Whether it has no selector, and so matches every process.
    pub fn is_empty(&self) -> bool {
        self.selector.is_none()
    }

    /// Whether only a process can be asked it; a finding about a GPU never fits it.
    pub fn is_of_processes(&self) -> bool {
        self.selector.as_ref().is_some_and(|it| !it.is_of_gpus())
    }

    /// Whether it is known to be for this one.
    pub fn fits(&self, input: &ScopeInput<'_>) -> bool {
        self.answer(input) == Some(true)
    }

    /// Whether it is for this one; `None` where what is known does not tell.
    pub fn answer(&self, input: &ScopeInput<'_>) -> Option<bool> {
        // There is no user who asks: `is:mine` is refused.
        let asks = |selector: &Selector| input.with_row(|row| selector.answer(row, &Me::default()));
        self.selector.as_ref().map_or(Some(true), asks)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.selector {
            Some(selector) => write!(f, "{:?}", selector.to_string()),
            None => f.write_str("all processes"),
        }
    }
}

/// What a rule is asked about, and when.
#[derive(Clone, Copy, Debug)]
pub struct ScopeInput<'a> {
    /// The process; `None` where it is about a GPU.
    pub process: Option<&'a Process>,
    /// The GPU, by NVML's index.
    pub index: u32,
    /// What the process holds there.
    pub held_bytes: Option<u64>,
    /// All that was seen with it.
    pub snapshot: &'a Snapshot,
}

impl ScopeInput<'_> {
    /// Asks of it as of a row of a table.
    fn with_row<T>(&self, ask: impl FnOnce(&ProcessRow<'_>) -> T) -> T {
        let mut gpus = self.snapshot.gpus.iter();
        let gpu = gpus.find(|gpu| gpu.index == self.index);
        let is_own = |entry: &&GpuProcess| self.process.is_some_and(|it| it.pid == entry.pid);
        let entries = || gpu.into_iter().flat_map(|gpu| gpu.processes.iter().flatten());
        // Of several on one GPU the one that is asked about.
        let is_it = |entry: &&GpuProcess| is_own(entry) && entry.used_bytes == self.held_bytes;
        let entry = entries().find(is_it).or_else(|| entries().find(is_own));
        let entry = entry.map(|entry| GpuProcess { used_bytes: self.held_bytes, ..*entry });
        ask(&ProcessRow {
            snapshot: self.snapshot,
            identity: self.process.map(Process::identity),
            gpu,
            entry: entry.as_ref(),
            process: self.process.ok_or("it is no process"),
            ended: None,
            finding: None,
            suspect: None,
            idle_seconds: None,
            growth_bytes: None,
        })
    }
}

#[cfg(test)]
mod tests;
