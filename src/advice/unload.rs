//! How inference servers release memory on request and keep listening.
//!
//! An entry of `servers.toml` defines how to recognise a server, what unloading requires (a version, a flag, a key),
//! and the requests that identify the server, check that it is idle, unload it, check the result, and wake it.
//! `reclaim::release` sends the requests, and this module judges the answers. Answers are untrusted, so their size is
//! limited, and only explicit evidence proves that a server is idle.

use std::mem::discriminant;
use std::slice;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::Value;

#[cfg(test)]
mod tests;

use crate::model::Process;
use crate::model::process::Relation;
use crate::model::program::file_name;
use crate::model::program::tool;

/// Maximum number of models in an answer.
const MOST_MODELS: usize = 256;
/// Maximum length of a model's name in bytes.
const NAME_BYTES: usize = 512;
/// Placeholder for a model's name in paths and bodies.
const MODEL: &str = "{model}";

/// An entry of `servers.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnloadServer {
    pub name: String,
    pub title: String,
    programs: Vec<String>,
    /// Prefixes of the process titles of workers.
    titles: Vec<String>,
    arguments: Vec<String>,
    /// Names of the directories that contain the scripts.
    folders: Vec<String>,
    /// Names of scripts that unrelated programs also use. A process that runs such a script is recognised if the script
    /// is in one of `folders`, or if the process listens on the default port.
    scripts: Vec<String>,
    pub port: u16,
    port_flags: Vec<String>,
    metrics_port: Option<u16>,
    metrics_port_flag: Option<String>,
    tls_flags: Vec<String>,
    /// Advice for users of a server that gpumem cannot unload.
    pub advice: Option<String>,
    pub unload: Option<UnloadApi>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnloadApi {
    pub identify: Vec<Question>,
    /// Requests whose answers show whether the server is idle.
    pub idle: Vec<Question>,
    /// If true, a server with open connections counts as busy, because its answers to `idle` do not prove that it is
    /// idle.
    pub is_idle_unconnected: bool,
    /// A check that the server treats as use of the model. It is sent once for each model, just before unloading.
    pub at_deed: Option<Question>,
    pub hold: Option<PauseApi>,
    /// The request that unloads. If it contains the placeholder, it is sent once for each model.
    deed: Question,
    /// Check of the result. By default, the answer to `deed` suffices.
    pub done: Option<Question>,
    /// Command or event that makes the server load its model again. `BASE` stands for the address.
    pub wake: String,
    /// Whether unloading moves the weights to host memory, which must have room for them.
    pub needs_host_memory: bool,
    /// Why gpumem unloads the server only if the user names it.
    pub risk: Option<String>,
    /// First version in which unloading is safe.
    pub since: Option<(u32, u32)>,
    /// Command-line flag without which unloading frees nothing.
    pub flag: Option<String>,
    /// How to start the server so that it accepts the requests.
    pub start: String,
    /// Header with the key. The default is a bearer token.
    key: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseApi {
    /// First version in which `pause` does not abort running requests.
    pub since: (u32, u32, u32),
    pub pause: Question,
    pub resume: Question,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    ask: String,
    /// Verb and path for older versions, which answer `ask` with 404 or 405.
    older: Option<String>,
    body: Option<String>,
    is_metrics: bool,
    may_be_absent: bool,
    text: Option<String>,
    version: Option<String>,
    expect: Vec<Expect>,
    /// Requirement for each item, if the answer is a list.
    each: Option<Expect>,
    models: Option<ModelList>,
    zero: Vec<String>,
    /// Metric that changes with each use. It may be missing before the first use.
    mark: Option<String>,
    /// JSON pointer to a value that changes with each use. The value may be missing.
    mark_at: Option<String>,
}

/// A requirement for a JSON value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    at: String,
    is: Option<Value>,
    contains: Option<Value>,
    #[serde(default)]
    is_optional: bool,
    /// Verdict if the value has the right type but is wrong. The default is `Another`.
    r#else: Option<AnswerVerdict>,
}

/// JSON pointers to the models in an answer. All pointers except `list` are relative to a model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelList {
    list: String,
    name: String,
    mark: Option<String>,
    state: Option<String>,
    loaded: Option<Value>,
    unloaded: Option<Value>,
    busy: Option<Value>,
    without_state: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    server: Vec<UnloadServer>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("servers.toml"))
}

/// A test checks that the table parses, so the default is never used.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

/// Returns the table of servers. Servers that start other servers come first.
pub fn unload_servers() -> &'static [UnloadServer] {
    &TABLE.server
}

pub fn unload_server(name: &str) -> Option<&'static UnloadServer> {
    unload_servers().iter().find(|row| row.name == name)
}

/// A listening process: the process that holds the memory, or a relative of that process.
#[derive(Clone, Copy, Debug)]
pub struct ServerListener<'a> {
    pub pid: u32,
    pub start_ticks: u64,
    pub command: &'a [Arc<str>],
    working_directory: Option<&'a str>,
    pub listening_on: &'a [Arc<str>],
}

/// Returns the server of a process and, if known, the listening process. A server that starts other servers takes
/// precedence, because it also unloads the other servers.
pub fn server_of(process: &Process) -> Option<(&'static UnloadServer, Option<ServerListener<'_>>)> {
    let listeners = listeners(process);
    let command = process.command.as_deref().unwrap_or_default();
    let working_directory = process.working_directory.as_deref();
    unload_servers().iter().find_map(|row| {
        let mut running = listeners.iter().filter(|listener| {
            row.runs(listener.command, listener.working_directory, listener.listening_on)
        });
        let listener = running.next().copied();
        let is_match = listener.is_some()
            || (row.advice.is_some() && row.runs(command, working_directory, &[]));
        is_match.then_some((row, listener))
    })
}

/// Returns the listening processes: ancestors, then the process itself unless it is a worker of a server, then
/// descendants. Ancestors come first, because the port of a worker is not the server's.
fn listeners(process: &Process) -> Vec<ServerListener<'_>> {
    let relatives = process.listening_relatives.as_deref().unwrap_or_default();
    let related = |wanted| {
        let related = relatives.iter().filter(move |relative| relative.relation == wanted);
        related.filter_map(|relative| {
            Some(ServerListener {
                pid: relative.pid,
                start_ticks: relative.start_ticks?,
                command: relative.command.as_deref()?,
                working_directory: relative.working_directory.as_deref(),
                listening_on: &relative.listening_on,
            })
        })
    };
    let process_listener = process.start_ticks.zip(process.listening_on.as_deref());
    let process_listener = process_listener.filter(|_| !process.is_worker_of_a_server());
    let process_listener = process_listener.map(|(start_ticks, listening_on)| ServerListener {
        pid: process.pid,
        start_ticks,
        command: process.command.as_deref().unwrap_or_default(),
        working_directory: process.working_directory.as_deref(),
        listening_on,
    });
    related(Relation::Ancestor)
        .chain(process_listener)
        .chain(related(Relation::Descendant))
        .collect()
}

/// Returns the values of a flag, each given in the next word or after `=`.
fn values<'a>(words: &'a [Arc<str>], flag: &'a str) -> impl Iterator<Item = &'a str> {
    words.iter().enumerate().filter_map(move |(at, word)| match word.strip_prefix(flag)? {
        "" => words.get(at + 1).map(|word| &**word),
        rest => rest.strip_prefix('='),
    })
}

impl UnloadServer {
    /// Returns whether a process belongs to this server.
    pub fn runs(
        &self,
        command: &[Arc<str>],
        working_directory: Option<&str>,
        listening_on: &[Arc<str>],
    ) -> bool {
        let has = |names: &[String], word: &str| names.iter().any(|name| name == word);
        let words = || command.iter().map(|word| &**word);
        let Some(title) = words().next() else {
            return false;
        };
        if self.titles.iter().any(|start| title.starts_with(start))
            || words().any(|word| has(&self.arguments, word))
        {
            return true;
        }
        let Some((run, _)) = tool(command) else {
            return false;
        };
        let package = run.split('.').next().unwrap_or(run);
        let path = words().find(|word| file_name(word) == run).unwrap_or_default();
        let is_in_folder = || {
            let folder = folder_name(path, working_directory);
            folder.is_some_and(|folder| has(&self.folders, folder))
        };
        let is_on_port = || listening_on.iter().any(|address| port_of(address) == Some(self.port));
        has(&self.programs, run)
            || has(&self.programs, package)
            || has(&self.scripts, run) && (is_in_folder() || is_on_port())
    }

    /// Returns the address with the port on the command line. If the command line contains no port, returns the address
    /// with the server's default port. If no address has this port, returns the only address.
    pub fn address(&self, command: &[Arc<str>], listening_on: &[Arc<str>]) -> Option<Arc<str>> {
        let named = self.typed_port(command);
        let on_port = |port| {
            let mut addresses = listening_on.iter();
            addresses.find(|address| port_of(address) == Some(port)).cloned()
        };
        let only = match listening_on {
            [only] => Some(only.clone()),
            _ => None,
        };
        // A server that does not listen on its configured port is not ready, or is another server.
        match named {
            Some(port) => on_port(port),
            None => on_port(self.port).or(only),
        }
    }

    pub fn typed_port(&self, command: &[Arc<str>]) -> Option<u16> {
        let named = self.port_flags.iter().flat_map(|flag| values(command, flag));
        named.filter_map(|value| value.rsplit(':').next()?.parse::<u16>().ok()).last()
    }

    pub fn is_secure(&self, command: &[Arc<str>]) -> bool {
        command.iter().any(|word| {
            let name = word.split('=').next().unwrap_or_default();
            self.tls_flags.iter().any(|flag| flag == name)
        })
    }

    pub fn metrics_port(&self, command: &[Arc<str>]) -> Option<u16> {
        let flag = self.metrics_port_flag.as_deref();
        let named = flag.into_iter().flat_map(|flag| values(command, flag));
        named.filter_map(|value| value.parse().ok()).last().or(self.metrics_port)
    }
}

impl UnloadApi {
    pub fn deeds(&self, facts: &ServerFacts) -> Vec<ServerRequest> {
        let is_of_models = [Some(&self.deed.ask), self.deed.body.as_ref()];
        match is_of_models.iter().flatten().any(|part| part.contains(MODEL)) {
            true => facts.models.iter().map(|model| self.deed.request(model)).collect(),
            false => vec![self.deed.request("")],
        }
    }

    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("Authorization: Bearer $KEY")
    }
}

fn folder_name<'a>(path: &'a str, working_directory: Option<&'a str>) -> Option<&'a str> {
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    let base = working_directory.filter(|_| !path.starts_with('/')).unwrap_or_default();
    let mut names = folder.rsplit('/').chain(base.rsplit('/'));
    names.find(|name| !matches!(*name, "" | "."))
}

fn port_of(address: &str) -> Option<u16> {
    address.strip_prefix("tcp:")?.rsplit(':').next()?.parse().ok()
}

/// Percent-encodes a name as a path segment (RFC 3986).
fn encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRequest {
    pub verb: String,
    pub path: String,
    pub body: Option<String>,
    pub is_metrics: bool,
    /// Verb and path for older versions, which answer the request with 404 or 405.
    older: Option<(String, String)>,
}

impl ServerRequest {
    pub fn as_older(&self) -> Option<Self> {
        let (verb, path) = self.older.clone()?;
        Some(Self { verb, path, older: None, ..self.clone() })
    }

    /// Formats the curl command for the request. `base` is the address, after `--unix-socket PATH `
    /// for a Unix socket, and `key` is a header. Returns `None` if a part cannot be typed as shown.
    pub fn command(&self, base: &str, key: &str) -> Option<String> {
        let mut words = vec!["curl".to_owned()];
        if self.verb != "GET" && !(self.verb == "POST" && self.body.is_some()) {
            words.extend(["-X".to_owned(), self.verb.clone()]);
        }
        // Double quotes let the shell expand the variable with the key.
        words.extend(["-H".to_owned(), format!("\"{key}\"")]);
        if let Some(body) = &self.body {
            let json = "'Content-Type: application/json'".to_owned();
            words.extend(["-H".to_owned(), json, "-d".to_owned(), super::quote(body)?]);
        }
        let (options, address) = base.rsplit_once(' ').unwrap_or(("", base));
        words.extend((!options.is_empty()).then(|| options.to_owned()));
        words.push(super::quote(&format!("{address}{}", self.path))?);
        Some(words.join(" "))
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerFacts {
    /// Names of the loaded models, which are untrusted.
    pub models: Vec<String>,
    pub version: Option<(u32, u32, u32)>,
    /// Values that change with each use of the server.
    pub marks: Vec<String>,
}

/// Why an answer is insufficient.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerVerdict {
    Busy(String),
    /// Unloading would free nothing.
    Nothing(String),
    /// The answer is from a different server.
    Another(String),
    /// It is unknown whether the server is idle, for this reason.
    Unknown(String),
    Key,
    Absent,
    /// The server refuses with this message.
    Declined(String),
    NotYet,
}

pub type AnswerCheckResult = Result<(), AnswerVerdict>;

fn other_server<T>(observed: impl Into<String>) -> Result<T, AnswerVerdict> {
    Err(AnswerVerdict::Another(observed.into()))
}

impl Question {
    pub fn request(&self, model: &str) -> ServerRequest {
        let split = |ask: &str| {
            let (verb, path) = ask.split_once(' ').unwrap_or_default();
            (verb.to_owned(), path.replace(MODEL, &encoded(model)))
        };
        let (verb, path) = split(&self.ask);
        let quoted = Value::from(model).to_string();
        let body = self.body.as_ref();
        ServerRequest {
            verb,
            path,
            body: body.map(|body| body.replace(&format!("\"{MODEL}\""), &quoted)),
            is_metrics: self.is_metrics,
            older: self.older.as_deref().map(split),
        }
    }

    /// Judges an answer, and adds the facts in it to `facts`.
    pub fn check(&self, answer: &UnloadAnswer, facts: &mut ServerFacts) -> AnswerCheckResult {
        match answer.success() {
            Err(AnswerVerdict::Absent) if self.may_be_absent => return Ok(()),
            success => success?,
        }
        if let Some(text) = &self.text {
            return match String::from_utf8_lossy(&answer.body).trim() == text {
                true => Ok(()),
                false => other_server("the page of another server"),
            };
        }
        if !self.zero.is_empty() || self.mark.is_some() {
            let count = answer.metrics(&self.zero)?;
            if count != 0.0 {
                let why = format!("{count} requests running or waiting");
                return Err(AnswerVerdict::Busy(why));
            }
            if let Some(mark) = &self.mark {
                let count = answer.metrics(slice::from_ref(mark)).map(|count| count.to_string());
                // A counter may be missing before the first use if another metric identifies the server.
                let may_be_absent = !self.zero.is_empty();
                facts.marks.push(count.or_else(|error| match may_be_absent {
                    true => Ok(String::new()),
                    false => Err(error),
                })?);
            }
            return Ok(());
        }
        let value = serde_json::from_slice(&answer.body);
        let value = value.or_else(|_| other_server("an answer that is not JSON"))?;
        self.expect.iter().try_for_each(|expect| expect.check(&value))?;
        if let Some(each) = &self.each {
            match list(&value, "")?.as_slice() {
                [] => return other_server("an empty list"),
                items => items.iter().try_for_each(|item| each.check(item))?,
            }
        }
        if let Some(at) = &self.version {
            facts.version = version(text(&value, at)?);
        }
        if let Some(at) = &self.mark_at {
            facts.marks.push(value.pointer(at).map(Value::to_string).unwrap_or_default());
        }
        match &self.models {
            Some(models) => models.load(&value, facts),
            None => Ok(()),
        }
    }

    /// Checks the result of unloading: the answer must not list a loaded model.
    pub fn check_done(&self, answer: &UnloadAnswer, facts: &mut ServerFacts) -> AnswerCheckResult {
        match (self.check(answer, facts), &self.models) {
            (Err(AnswerVerdict::Nothing(_)), Some(_)) => Ok(()),
            (Ok(()), Some(_)) => Err(AnswerVerdict::NotYet),
            (judged, _) => judged,
        }
    }
}

impl Expect {
    fn check(&self, value: &Value) -> AnswerCheckResult {
        let at = &self.at;
        let Some(found) = value.pointer(at).filter(|value| !value.is_null()) else {
            return if self.is_optional {
                Ok(())
            } else {
                other_server(format!("nothing at {at}"))
            };
        };
        if let Some(wanted) = &self.contains {
            let has = found.as_array().is_some_and(|list| list.contains(wanted));
            return if has { Ok(()) } else { other_server(format!("no {wanted} at {at}")) };
        }
        match (&self.is, &self.r#else) {
            (Some(wanted), _) if found == wanted => Ok(()),
            (Some(wanted), Some(verdict)) if discriminant(found) == discriminant(wanted) => {
                Err(verdict.clone())
            }
            (Some(_), _) => other_server(format!("an unexpected value at {at}")),
            (None, _) => Ok(()),
        }
    }
}

impl ModelList {
    fn load(&self, value: &Value, facts: &mut ServerFacts) -> AnswerCheckResult {
        facts.models.clear();
        let models = list(value, &self.list)?;
        if models.len() > MOST_MODELS {
            return other_server("an unexpected list of models");
        }
        for model in models {
            let state = self.state.as_ref().and_then(|at| model.pointer(at));
            match (state, &self.without_state) {
                (None, Some(why)) => return Err(AnswerVerdict::Nothing(why.clone())),
                (Some(state), _) if Some(state) == self.busy.as_ref() => {
                    return Err(AnswerVerdict::Busy("it is loading a model".to_owned()));
                }
                (Some(state), _) if Some(state) == self.unloaded.as_ref() => continue,
                (Some(state), _) if self.loaded.as_ref().is_some_and(|loaded| loaded != state) => {
                    continue;
                }
                _ => {}
            }
            let name = text(model, &self.name)?;
            if name.is_empty() || name.len() > NAME_BYTES {
                return other_server("an unexpected list of models");
            }
            if let Some(at) = &self.mark {
                let mark = model.pointer(at).and_then(Value::as_str).unwrap_or_default();
                facts.marks.push(format!("{name} {mark}"));
            }
            facts.models.push(name.to_owned());
        }
        match facts.models.is_empty() {
            true => Err(AnswerVerdict::Nothing("it has no model loaded".to_owned())),
            false => Ok(()),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnloadAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl UnloadAnswer {
    pub fn success(&self) -> AnswerCheckResult {
        match self.status {
            200..=299 => Ok(()),
            300..=399 => other_server("a redirect, which is not followed"),
            401 | 403 => Err(AnswerVerdict::Key),
            404 | 405 | 501 => Err(AnswerVerdict::Absent),
            status => Err(AnswerVerdict::Declined(match self.message() {
                Some(message) => format!("status {status}, {message}"),
                None => format!("status {status}"),
            })),
        }
    }

    fn message(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.body).ok()?;
        let pointers = ["/error/message", "/error", "/detail", "/message"];
        let text = pointers.iter().find_map(|at| value.pointer(at)?.as_str())?;
        let line = text.lines().next()?;
        Some(line.chars().take(200).collect())
    }

    /// Returns the sum of metrics in Prometheus text, or an error if a metric is missing.
    fn metrics(&self, wanted: &[String]) -> Result<f64, AnswerVerdict> {
        let text = std::str::from_utf8(&self.body);
        let text = text.or_else(|_| other_server("an answer that is not text"))?;
        let missing = |name| AnswerVerdict::Unknown(format!("its metrics have no {name}"));
        wanted.iter().map(|name| metric(text, name).ok_or_else(|| missing(name))).sum()
    }
}

/// Returns the sum of a metric over all labels. Returns `None` if the metric is missing, or if a value is negative or
/// not a finite number.
fn metric(text: &str, name: &str) -> Option<f64> {
    let mut sum = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else {
            continue;
        };
        let value = match rest.as_bytes().first() {
            Some(b'{') => &rest[rest.rfind('}')? + 1..],
            Some(b' ' | b'\t') => rest,
            _ => continue,
        };
        let value: f64 = value.split_ascii_whitespace().next()?.parse().ok()?;
        if !value.is_finite() || value < 0.0 {
            return None;
        }
        sum = Some(sum.unwrap_or(0.0) + value);
    }
    sum
}

/// Parses a version: `0.17.1rc2+cu129` becomes 0, 17, 1.
fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let number = |part: Option<&str>| {
        let part = part?;
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse::<u32>().ok()
    };
    Some((number(parts.next())?, number(parts.next())?, number(parts.next()).unwrap_or(0)))
}

fn list<'v>(value: &'v Value, at: &str) -> Result<&'v Vec<Value>, AnswerVerdict> {
    let list = value.pointer(at).and_then(Value::as_array);
    list.map_or_else(|| other_server(format!("no list at {at}")), Ok)
}

fn text<'v>(value: &'v Value, at: &str) -> Result<&'v str, AnswerVerdict> {
    let text = value.pointer(at).and_then(Value::as_str);
    text.map_or_else(|| other_server(format!("no text at {at}")), Ok)
}
