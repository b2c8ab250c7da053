//! Selects the processes of a rule, override or exemption.
//!
//! The result of a match is yes, no or unknown. Rules and overrides require a yes. Exemptions also apply if the
//! result is unknown; see [`exemption`](super::exemption).

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::setting;
use crate::model::field::Field;
use crate::model::row::{CurrentUser, ProcessRow};
use crate::model::selector::Selector;
use crate::model::{GpuProcess, Process, Snapshot};

/// Fields that identify an owner. A scope must match their whole values, not substrings.
const OWNERS: [Field; 5] = [Field::User, Field::Container, Field::Pod, Field::Job, Field::Unit];

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scope {
    /// Selector with the syntax of `--where`. It is evaluated on a single snapshot, without history.
    pub selector: Option<Selector>,
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let terms = "terms such as \"user=ann gpu:0 mem>4GiB\"";
        let text = setting::parsed(deserializer, terms, setting::text)?;
        let wrong = |why: &str| de::Error::custom(format!("{text:?} {why}; write {terms}"));
        let selector = Selector::parse(&text).map_err(de::Error::custom)?;
        let selector = selector.ok_or_else(|| wrong("is not allowed"))?;
        for field in selector.fields() {
            match field {
                None => return Err(wrong("has a word that is not a field")),
                // Reject fields whose values depend on the rules (`idle`, `finding`) or on the user who runs the
                // query (`is`).
                Some(Field::Idle | Field::Finding | Field::Is) => {
                    return Err(wrong(
                        "uses idle, finding or is, which are allowed only in filters",
                    ));
                }
                Some(_) => {}
            }
        }
        // If substrings were allowed, a rule for ann's processes would also apply to hannah's.
        if let Some(field) = selector.fields_in_part().find(|field| OWNERS.contains(field)) {
            let name = field.spec().names[0];
            let why =
                format!("uses {name}: with a part of a name, which can also match other names");
            return Err(de::Error::custom(format!(
                "{text:?} {why}; write {name}= and the whole name, or a pattern such as {name}=ml-*"
            )));
        }
        Ok(Self { selector: Some(selector) })
    }
}

impl Scope {
    pub fn is_empty(&self) -> bool {
        self.selector.is_none()
    }

    /// Returns whether the scope only matches processes, so that findings on a GPU never match.
    pub fn is_of_processes(&self) -> bool {
        self.selector.as_ref().is_some_and(|selector| !selector.is_of_gpus())
    }

    pub fn fits(&self, input: &ScopeInput<'_>) -> bool {
        self.answer(input) == Some(true)
    }

    /// Returns whether the scope matches, or `None` if that is unknown.
    pub fn answer(&self, input: &ScopeInput<'_>) -> Option<bool> {
        // The result does not depend on the user who asks, because scopes cannot contain `is`.
        let matches = |selector: &Selector| {
            input.with_row(|row| selector.answer(row, &CurrentUser::default()))
        };
        self.selector.as_ref().map_or(Some(true), matches)
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

#[derive(Clone, Copy, Debug)]
pub struct ScopeInput<'a> {
    pub process: Option<&'a Process>,
    pub index: u32,
    /// Memory that the process holds on the GPU, in bytes, or `None` if unknown.
    pub held_bytes: Option<u64>,
    pub snapshot: &'a Snapshot,
}

impl ScopeInput<'_> {
    fn with_row<T>(&self, ask: impl FnOnce(&ProcessRow<'_>) -> T) -> T {
        let mut gpus = self.snapshot.gpus.iter();
        let gpu = gpus.find(|gpu| gpu.index == self.index);
        let is_own =
            |entry: &&GpuProcess| self.process.is_some_and(|process| process.pid == entry.pid);
        let entries = || gpu.into_iter().flat_map(|gpu| gpu.processes.iter().flatten());
        // A process can have several entries on a GPU, so prefer the entry that holds `held_bytes`.
        let has_size = |entry: &&GpuProcess| is_own(entry) && entry.used_bytes == self.held_bytes;
        let entry = entries().find(has_size).or_else(|| entries().find(is_own));
        let entry = entry.map(|entry| GpuProcess { used_bytes: self.held_bytes, ..*entry });
        ask(&ProcessRow {
            snapshot: self.snapshot,
            identity: self.process.map(Process::identity),
            gpu,
            entry: entry.as_ref(),
            process: self.process.ok_or("it is not a process"),
            ended: None,
            finding: None,
            suspect: None,
            idle_seconds: None,
            growth_bytes: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Gpu, Time};
    use crate::rules::testing::scope;

    #[test]
    fn a_scope_is_undecided_on_unknown_facts() {
        use crate::model::snapshot::Jupyter;
        use crate::units::GIB;
        let notebook = |path: Option<&str>| Jupyter {
            notebook_path: path.map(Arc::from),
            ..Jupyter::default()
        };
        let complete = Process {
            pid: 7,
            user: Some("ann".into()),
            uid: Some(1000),
            command: Some(["python".into()].into()),
            gpu_files: Some([].into()),
            jupyter: Some(Arc::new(notebook(Some("course/hw4.ipynb")))),
            ..Process::default()
        };
        let hidden =
            Process { pid: 8, jupyter: Some(Arc::new(notebook(None))), ..Process::default() };
        let plain = Process {
            uid: Some(1000),
            command: Some(["python".into()].into()),
            ..Process::default()
        };
        let listed = |used_bytes| GpuProcess { pid: 7, used_bytes, ..GpuProcess::default() };
        let gpu = Gpu {
            index: 3,
            uuid: Some("GPU-3".into()),
            processes: Some(vec![listed(Some(5 * GIB)), listed(Some(2 * GIB))]),
            ..Gpu::default()
        };
        let snapshot = Snapshot { gpus: vec![gpu], ..Snapshot::new(Time::default()) };
        const YES: Option<bool> = Some(true);
        const NO: Option<bool> = Some(false);
        // The four expected values are for a process with all facts, a process with few facts, a process outside a
        // notebook, and a GPU.
        for (text, expected) in [
            ("user:ANN", [YES, None, None, None]),
            ("user=ann", [YES, None, None, None]),
            ("!user:ann", [NO, None, None, None]),
            ("user:1000,bob", [YES, None, YES, None]),
            ("notebook:course/", [YES, None, NO, None]),
            ("framework:jax", [NO, None, None, None]),
            // The process has entries of 5 GiB and of 2 GiB on GPU 3. The input is about the smaller entry.
            ("mem<4GiB", [YES, None, None, None]),
            ("gpu:3 user:bob", [NO, None, None, None]),
            ("gpu:0", [NO, NO, NO, NO]),
            ("gpu:3", [YES, None, None, YES]),
        ] {
            let input = |process, held_bytes| ScopeInput {
                process,
                index: 3,
                held_bytes,
                snapshot: &snapshot,
            };
            let answers = [
                input(Some(&complete), Some(2 * GIB)),
                input(Some(&hidden), None),
                input(Some(&plain), Some(GIB)),
                input(None, None),
            ];
            let scope = scope(text);
            assert_eq!(answers.map(|input| scope.answer(&input)), expected, "{scope}");
            assert!(answers.iter().all(|input| scope.fits(input) == (scope.answer(input) == YES)));
            assert!(answers.iter().all(|input| Scope::default().fits(input)));
        }
    }

    #[test]
    fn a_displayed_scope_escapes_control_characters() {
        assert_eq!(scope("user:ann\u{1b} !gpu:0").to_string(), "\"user:ann\\u{1b} !gpu:0\"");
        assert_eq!(Scope::default().to_string(), "all processes");
    }
}
