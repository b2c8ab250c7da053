//! Which processes a rule, an override or an exemption is for.
//!
//! A scope answers yes, no or unknown. What is unknown leads to no finding: a rule and an override are for
//! processes that are known to match. What an exemption makes of it is in [`exemption`](super::exemption).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use toml::Value;

use super::hours::Hours;
use super::setting;
use crate::advice;
use crate::model::field::Field;
use crate::model::row::{Me, ProcessRow};
use crate::model::selector::Selector;
use crate::model::{GpuProcess, Process, Snapshot};
use crate::units::Bytes;

/// So much of a command line is compared.
const LONGEST_COMMAND: usize = 4096;
/// So many digits of a container's id name it; fewer are hardly meant as one.
pub const SHORTEST_CONTAINER_ID: usize = 12;

/// Which processes a rule, an override or an exemption is for: every selector that is set has to match. In a
/// pattern `*` matches any text.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Scope {
    /// The owner's name or uid.
    #[serde(deserialize_with = "user")]
    pub user: Option<Arc<str>>,
    /// A pattern of the whole command line, arguments joined by spaces.
    #[serde(deserialize_with = "name")]
    pub command: Option<Arc<str>>,
    /// The GPU.
    pub gpu: Option<GpuName>,
    /// `pytorch`, `tensorflow` …, as a snapshot names it.
    #[serde(deserialize_with = "framework")]
    pub framework: Option<Arc<str>>,
    /// A pattern of the container's runtime or id, or the first digits of its id.
    #[serde(deserialize_with = "container")]
    pub container: Option<Arc<str>>,
    /// A pattern of the notebook's path.
    #[serde(deserialize_with = "name")]
    pub notebook: Option<Arc<str>>,
    /// It holds more than this on the GPU.
    pub memory_above: Option<Bytes>,
    /// It holds less than this on the GPU.
    pub memory_below: Option<Bytes>,
    /// As `--where` has it, of what one snapshot tells.
    #[serde(rename = "where", deserialize_with = "selector")]
    pub selector: Option<Selector>,
    /// At these hours, which take several keys.
    #[serde(skip)]
    pub hours: Option<Hours>,
}

/// Whether a process or a GPU matches a scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// Every selector that is set matches.
    Yes,
    /// One that is set does not.
    No,
    /// What is known matches, and the value of one that is set is not known.
    Unknown,
}

impl From<bool> for Match {
    fn from(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// A GPU by its index or its uuid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GpuName {
    /// NVML's index.
    Index(u32),
    /// `"GPU-…"`.
    Uuid(Arc<str>),
}

impl<'de> Deserialize<'de> for GpuName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let example = "an index such as 0 or a uuid such as \"GPU-89d1f0e5-…\"";
        setting::parsed(from, example, |written| match written {
            Value::String(text) if text.starts_with("GPU-") => Some(Self::Uuid((&**text).into())),
            written => whole(written).map(Self::Index),
        })
    }
}

impl Serialize for GpuName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Index(index) => index.serialize(to),
            Self::Uuid(uuid) => uuid.serialize(to),
        }
    }
}

fn whole(written: &Value) -> Option<u32> {
    match written {
        Value::Integer(number) => u32::try_from(*number).ok(),
        Value::Float(number) if *number == f64::from(*number as u32) => Some(*number as u32),
        _ => None,
    }
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<str>>, D::Error> {
    setting::name(from).map(Some)
}

fn user<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<str>>, D::Error> {
    let written = Value::deserialize(from)?;
    let uid = |written: &Value| Some(whole(written)?.to_string().into());
    let user = match written {
        Value::String(_) => setting::expect(&written, "a name in quotes", setting::text),
        _ => setting::expect(&written, "a name in quotes or a uid", uid),
    };
    user.map(Some)
}

fn framework<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<str>>, D::Error> {
    Ok(Some(advice::meant(&setting::name(from)?).into()))
}

fn selector<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Selector>, D::Error> {
    let terms = "terms such as \"user:ann gpu:0 mem>4GiB\"";
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
    Ok(Some(selector))
}

fn container<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<str>>, D::Error> {
    let name = setting::name(from)?;
    if is_container_id(&name) && name.len() < SHORTEST_CONTAINER_ID {
        return Err(de::Error::custom(format!(
            "{name:?} is too short for an id; write at least {SHORTEST_CONTAINER_ID} digits of it, or a \
             runtime such as \"docker\""
        )));
    }
    Ok(Some(name))
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

/// Whether a process can be of a framework of this name.
pub fn is_framework(name: &str) -> bool {
    advice::find(name).is_some()
}

/// The frameworks that processes can be of.
pub fn frameworks() -> impl Iterator<Item = &'static str> {
    advice::frameworks().iter().map(|row| &*row.name)
}

impl Scope {
    /// Whether it has no selector, and so matches every process.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What of it only a process can be asked, by its key; a finding about a GPU never fits it.
    pub fn asks_of_processes(&self) -> Option<&'static str> {
        let mut named = setting::values(self).into_iter().map(|(key, _)| key);
        let selector = self.selector.as_ref();
        named.find(|key| match *key {
            "gpu" => false,
            "where" => selector.is_some_and(|it| !it.is_of_gpus()),
            _ => true,
        })
    }

    /// Whether it is known to be for this one.
    pub fn fits(&self, input: &ScopeInput<'_>) -> bool {
        self.answer(input) == Match::Yes
    }

    /// Whether it is for this one.
    pub fn answer(&self, input: &ScopeInput<'_>) -> Match {
        // The cheapest first.
        let parts: [fn(&Self, &ScopeInput<'_>) -> Match; 9] = [
            Self::gpu_fits,
            Self::memory_fits,
            Self::user_fits,
            Self::framework_fits,
            Self::container_fits,
            Self::notebook_fits,
            Self::hours_fit,
            Self::selector_fits,
            Self::command_fits,
        ];
        let mut answer = Match::Yes;
        for part in parts {
            match part(self, input) {
                Match::Yes => {}
                Match::Unknown => answer = Match::Unknown,
                Match::No => return Match::No,
            }
        }
        answer
    }

    fn gpu_fits(&self, input: &ScopeInput<'_>) -> Match {
        match (&self.gpu, input.uuid) {
            (None, _) => Match::Yes,
            (Some(GpuName::Index(wanted)), _) => (*wanted == input.index).into(),
            (Some(GpuName::Uuid(wanted)), Some(uuid)) => (**wanted == *uuid).into(),
            (Some(GpuName::Uuid(_)), None) => Match::Unknown,
        }
    }

    fn memory_fits(&self, input: &ScopeInput<'_>) -> Match {
        if self.memory_above.is_none() && self.memory_below.is_none() {
            return Match::Yes;
        }
        match (input.process, input.held_bytes) {
            (None, _) => Match::No,
            (_, None) => Match::Unknown,
            (_, Some(held)) => {
                let is_above = self.memory_above.is_none_or(|bytes| held > bytes.0);
                let is_below = self.memory_below.is_none_or(|bytes| held < bytes.0);
                (is_above && is_below).into()
            }
        }
    }

    fn user_fits(&self, input: &ScopeInput<'_>) -> Match {
        of_process(self.user.as_deref(), input, |wanted, process| {
            let wanted_uid: Option<u32> = wanted.parse().ok();
            match (&process.user, process.uid) {
                (Some(user), _) if **user == *wanted => Match::Yes,
                (_, Some(uid)) if wanted_uid.is_some() => (wanted_uid == Some(uid)).into(),
                (Some(_), _) if wanted_uid.is_none() => Match::No,
                _ => Match::Unknown,
            }
        })
    }

    fn framework_fits(&self, input: &ScopeInput<'_>) -> Match {
        of_process(self.framework.as_deref(), input, |wanted, process| {
            match &process.framework {
                Some(framework) => {
                    let is_row = || advice::of(process).is_some_and(|row| row.name == wanted);
                    (**framework == *wanted || is_row()).into()
                }
                // Whose descriptors may be read, its libraries were read as well: it has none.
                None if process.gpu_files.is_some() => Match::No,
                None => Match::Unknown,
            }
        })
    }

    fn container_fits(&self, input: &ScopeInput<'_>) -> Match {
        of_process(self.container.as_deref(), input, |wanted, process| {
            // Anybody may read in which container a process is; where none is told, it is in none.
            let Some(container) = &process.container else {
                return Match::No;
            };
            let is_runtime = |runtime: &Arc<str>| matches(wanted, runtime);
            let is_id = |id: &Arc<str>| {
                matches(wanted, id)
                    || (is_container_id(wanted)
                        && wanted.len() >= SHORTEST_CONTAINER_ID
                        && id.starts_with(wanted))
            };
            if container.runtime.as_ref().is_some_and(is_runtime)
                || container.id.as_ref().is_some_and(is_id)
            {
                Match::Yes
            } else if container.runtime.is_none() || container.id.is_none() {
                Match::Unknown
            } else {
                Match::No
            }
        })
    }

    fn notebook_fits(&self, input: &ScopeInput<'_>) -> Match {
        of_process(self.notebook.as_deref(), input, |wanted, process| {
            match &process.jupyter {
                Some(jupyter) => match &jupyter.notebook_path {
                    Some(path) => matches(wanted, path).into(),
                    None => Match::Unknown,
                },
                // A kernel is told by its command line.
                None if process.command.is_some() => Match::No,
                None => Match::Unknown,
            }
        })
    }

    fn hours_fit(&self, input: &ScopeInput<'_>) -> Match {
        let hours = self.hours.as_ref();
        hours.is_none_or(|hours| hours.hold(input.snapshot.time)).into()
    }

    fn selector_fits(&self, input: &ScopeInput<'_>) -> Match {
        let Some(selector) = &self.selector else {
            return Match::Yes;
        };
        // There is no user who asks: `is:mine` is refused.
        match input.with_row(|row| selector.answer(row, &Me::default())) {
            Some(fits) => fits.into(),
            None => Match::Unknown,
        }
    }

    fn command_fits(&self, input: &ScopeInput<'_>) -> Match {
        of_process(self.command.as_deref(), input, |wanted, process| {
            command_line(process).map_or(Match::Unknown, |line| matches(wanted, &line).into())
        })
    }
}

/// What is wanted of a process fits no GPU.
fn of_process(
    wanted: Option<&str>,
    about: &ScopeInput<'_>,
    fits: impl FnOnce(&str, &Process) -> Match,
) -> Match {
    match (wanted, about.process) {
        (None, _) => Match::Yes,
        (Some(_), None) => Match::No,
        (Some(wanted), Some(process)) => fits(wanted, process),
    }
}

/// Whether a text can only be meant as digits of a container's id.
pub fn is_container_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl fmt::Display for Scope {
    /// In words, in a line: `user "ann", GPU 0, 22:00-06:00`; names are quoted and escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            ("user", &self.user),
            ("command", &self.command),
            ("framework", &self.framework),
            ("container", &self.container),
            ("notebook", &self.notebook),
        ];
        let mut words: Vec<String> = names
            .iter()
            .filter_map(|(key, name)| name.as_ref().map(|name| format!("{key} {name:?}")))
            .collect();
        match &self.gpu {
            Some(GpuName::Index(index)) => words.push(format!("GPU {index}")),
            Some(GpuName::Uuid(uuid)) => words.push(format!("GPU {uuid:?}")),
            None => {}
        }
        words.extend(self.memory_above.map(|bytes| format!("above {bytes}")));
        words.extend(self.memory_below.map(|bytes| format!("below {bytes}")));
        let selector = self.selector.as_ref();
        words.extend(selector.map(|it| format!("where {:?}", it.to_string())));
        words.extend(self.hours.as_ref().map(ToString::to_string));
        if words.is_empty() {
            words.push("all processes".to_owned());
        }
        f.write_str(&words.join(", "))
    }
}

/// What a rule is asked about, and when.
#[derive(Clone, Copy, Debug)]
pub struct ScopeInput<'a> {
    /// The process; `None` where it is about a GPU.
    pub process: Option<&'a Process>,
    /// The GPU, by NVML's index.
    pub index: u32,
    /// The same by its uuid.
    pub uuid: Option<&'a str>,
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

fn command_line(process: &Process) -> Option<String> {
    let Some(command) = process.command.as_ref().filter(|command| !command.is_empty()) else {
        return process.comm.as_deref().map(str::to_owned);
    };
    let mut line = String::new();
    for argument in command.iter() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(argument);
        if line.len() > LONGEST_COMMAND {
            let mut end = LONGEST_COMMAND;
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            line.truncate(end);
            break;
        }
    }
    Some(line)
}

/// Whether the whole of `text` fits `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    // There is always a first part; without a star it is the whole.
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // The leftmost place of each part leaves the most for those after it.
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests;
