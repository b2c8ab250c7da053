//! How an inference server gives memory back and goes on listening, by its own requests: one table, a row for
//! each server, read by `reclaim::release` to do it and by this room's tests to hold the words of `serving` to
//! it.
//!
//! A row has how the server is recognised, what proves that it is this server and that it rests, what unloads,
//! what shows that it is done, what wakes it, and what it takes (a version, a flag, a key). All of it is data and
//! pure functions: requests ([`ServerRequest`]) and judges of answers. Nothing here sends one.
//!
//! No question of a row loads, wakes or resets what it measures: llama.cpp's `/slots` counts as use, and is asked
//! just before the deed only. Sources are in each row. To add a server, add a row.

use std::borrow::Cow;
use std::sync::Arc;

mod answer;
mod engines;
mod images;
mod local;
#[cfg(test)]
mod tests;

use super::address::values;
use crate::model::pool::tool;
use crate::model::program::file_name;

pub use answer::{AnswerCheckResult, AnswerVerdict, UnloadAnswer};

/// What a server has said so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// Names of what it has loaded, as its requests take them. Chosen by others.
    pub models: Vec<String>,
    /// Its version: major, minor, patch.
    pub version: Option<(u32, u32, u32)>,
    /// What changes when it is used: two looks that differ in it have seen a request.
    pub marks: Vec<String>,
}

/// How something is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// `GET`
    Get,
    /// `POST`
    Post,
    /// `PUT`
    Put,
}

impl Verb {
    /// As in a request.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
        }
    }
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRequest {
    /// How.
    pub verb: Verb,
    /// From the root on, with what follows a `?`.
    pub path: Cow<'static, str>,
    /// JSON; `None` where it has none.
    pub body: Option<Cow<'static, str>>,
    /// Whether it goes to the port of the server's metrics, where that is another one.
    pub is_metrics: bool,
    /// What an older version has in its place (404 or 405).
    pub older: Option<(Verb, &'static str)>,
}

impl ServerRequest {
    fn get(path: &'static str) -> Self {
        Self { verb: Verb::Get, path: path.into(), body: None, is_metrics: false, older: None }
    }

    fn post(path: &'static str, body: Option<&'static str>) -> Self {
        Self { verb: Verb::Post, body: body.map(Cow::from), ..Self::get(path) }
    }

    /// The same as an older version has it.
    pub fn as_older(&self) -> Option<Self> {
        let (verb, path) = self.older?;
        Some(Self { verb, path: path.into(), older: None, ..self.clone() })
    }

    /// The words to type for it, at an address (with `--unix-socket PATH ` before it where it is none of TCP) and
    /// with a header that has a key. `None` where it has what cannot be typed.
    pub fn command(&self, base: &str, key: Option<&str>) -> Option<String> {
        let mut words = vec!["curl".to_owned()];
        if self.verb != Verb::Get && !(self.verb == Verb::Post && self.body.is_some()) {
            words.extend(["-X".to_owned(), self.verb.name().to_owned()]);
        }
        if let Some(key) = key {
            // In double quotes, so that a shell fills the variable in.
            words.extend(["-H".to_owned(), format!("\"{key}\"")]);
        }
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

/// Judges an answer, and keeps what it says.
pub type AnswerCheck = fn(&UnloadAnswer, &mut Known) -> AnswerCheckResult;

/// A request that changes nothing, and what its answer means.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// What is asked.
    pub ask: fn() -> ServerRequest,
    /// What it means.
    pub check: AnswerCheck,
}

/// A request about one of the models, and what its answer means.
#[derive(Clone, Copy, Debug)]
pub struct ModelQuestion {
    /// What is asked about the model of this name.
    pub ask: fn(&str) -> ServerRequest,
    /// What it means; [`AnswerVerdict::Skip`] where the model holds nothing.
    pub check: AnswerCheck,
}

/// How a server is recognised by what runs it. Names are compared whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerMarks {
    /// Programs, scripts and packages of modules.
    pub programs: &'static [&'static str],
    /// Beginnings of the titles that its workers give themselves.
    pub titles: &'static [&'static str],
    /// Whole arguments.
    pub arguments: &'static [&'static str],
    /// Folders that its script lies in.
    pub folders: &'static [&'static str],
    /// Names of scripts that others have too: only where it listens on the port that the server has by default.
    pub scripts: &'static [&'static str],
}

/// A server's own way to unload, and what it takes.
#[derive(Clone, Copy, Debug)]
pub struct UnloadApi {
    /// What proves that it is this server.
    pub identify: &'static [Question],
    /// What proves that it rests.
    pub idle: &'static [Question],
    /// The same of each model.
    pub idle_models: Option<ModelQuestion>,
    /// Whether it has to rest in two looks, two seconds apart.
    pub is_looked_at_twice: bool,
    /// It has no request that shows whether it rests, or unloading ends what runs: nothing may be connected.
    pub is_idle_unconnected: bool,
    /// What counts as use, and so is asked of each model just before the deed, once.
    pub at_deed: Option<ModelQuestion>,
    /// What keeps requests waiting during the deed: since which version, how, and how they go on.
    pub hold: Option<Hold>,
    /// What unloads what is known to be loaded.
    pub unload: fn(&Known) -> Vec<ServerRequest>,
    /// What shows that it is done; where there is none, its answer is the end of it.
    pub done: Option<Question>,
    /// What makes it load again, to be typed or waited for; `BASE` is its address.
    pub wake: &'static str,
    /// The weights go to the host's memory, which must have room for them.
    pub needs_host_memory: bool,
    /// Why only a person may ask for it.
    pub risk: Option<&'static str>,
    /// The first version in which it is safe.
    pub since: Option<(u32, u32)>,
    /// A flag of its command line without which it frees nothing.
    pub flag: Option<&'static str>,
    /// What it has to be started with, for where it knows no such request.
    pub start: &'static str,
    /// The header that has its key, for where it wants one.
    pub key: &'static str,
}

/// What keeps requests waiting.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// The first version whose request does not end what runs.
    pub since: (u32, u32, u32),
    /// Has them wait.
    pub pause: fn() -> ServerRequest,
    /// Has them go on; it is part of waking, and is sent where nothing came of it.
    pub resume: fn() -> ServerRequest,
}

/// A row: one server.
#[derive(Clone, Copy, Debug)]
pub struct UnloadServer {
    /// As a way names it, lower case: `vllm`.
    pub name: &'static str,
    /// As it names itself: `vLLM`.
    pub title: &'static str,
    /// How it is recognised.
    pub marks: ServerMarks,
    /// Flags of its command line that name its port.
    pub port_flags: &'static [&'static str],
    /// The port that it has otherwise.
    pub usual_port: u16,
    /// The same for its metrics, where they have a port of their own.
    pub metrics_port: Option<(&'static str, u16)>,
    /// Flags that make it serve by TLS.
    pub tls_flags: &'static [&'static str],
    /// How it unloads. Err: why it does not, in words.
    pub api: Result<UnloadApi, &'static str>,
}

const API: UnloadApi = UnloadApi {
    identify: &[],
    idle: &[],
    idle_models: None,
    is_looked_at_twice: false,
    is_idle_unconnected: false,
    at_deed: None,
    hold: None,
    unload: |_| Vec::new(),
    done: None,
    wake: "its next request loads it again",
    needs_host_memory: false,
    risk: None,
    since: None,
    flag: None,
    start: "",
    key: "Authorization: Bearer $KEY",
};

/// Of those that end what runs when they are asked, and are seen to rest only a moment before.
const MAY_LOSE_A_REQUEST: &str = "a request that comes at that very moment may be lost";

const SERVER: UnloadServer = UnloadServer {
    name: "",
    title: "",
    marks: ServerMarks { programs: &[], titles: &[], arguments: &[], folders: &[], scripts: &[] },
    port_flags: &["--port"],
    usual_port: 0,
    metrics_port: None,
    tls_flags: &[],
    api: Err(""),
};

/// Every row. Those that start others stand first: what runs below one is unloaded by it.
static SERVERS: &[UnloadServer] = &[
    local::LLAMA_SWAP,
    local::LOCALAI,
    local::LM_STUDIO,
    local::OLLAMA,
    engines::VLLM,
    engines::APHRODITE,
    engines::SGLANG,
    engines::LMDEPLOY,
    engines::TRITON,
    engines::TORCHSERVE,
    local::LLAMA_CPP,
    local::TEXT_GENERATION_WEBUI,
    local::TABBYAPI,
    images::COMFYUI,
    images::STABLE_DIFFUSION_WEBUI,
    images::INVOKEAI,
    engines::TGI,
    engines::TENSORRT_LLM,
    engines::INFINITY,
    engines::XINFERENCE,
];

/// Every row of the table.
pub fn unload_servers() -> &'static [UnloadServer] {
    SERVERS
}

/// The row of this name.
pub fn unload_server(name: &str) -> Option<&'static UnloadServer> {
    SERVERS.iter().find(|row| row.name == name)
}

impl UnloadServer {
    /// Whether a process with this command line, which listens on these places, is this server or a part of it.
    pub fn runs<T: AsRef<str>>(&self, command: &[T], listening_on: &[Arc<str>]) -> bool {
        let marks = &self.marks;
        let Some(title) = command.first().map(AsRef::as_ref) else {
            return false;
        };
        if marks.titles.iter().any(|start| title.starts_with(start)) {
            return true;
        }
        let mut words = command.iter().map(AsRef::as_ref);
        if words.any(|word| marks.arguments.contains(&word)) {
            return true;
        }
        let Some((run, _)) = tool(command) else {
            return false;
        };
        let package = run.split('.').next().unwrap_or(run);
        if marks.programs.contains(&run) || marks.programs.contains(&package) {
            return true;
        }
        // Where the script lies, if its path has that.
        let path = command.iter().map(AsRef::as_ref).find(|word| file_name(word) == run);
        let mut folders = path.unwrap_or_default().split('/');
        if folders.any(|folder| marks.folders.contains(&folder)) {
            return true;
        }
        marks.scripts.contains(&run)
            && listening_on.iter().any(|place| port_of(place) == Some(self.usual_port))
    }

    /// Of the places where it listens, the one where it is asked: the port that its command line names, or the
    /// one that it has by default, or the only one.
    pub fn address<T: AsRef<str>>(
        &self,
        command: &[T],
        listening_on: &[Arc<str>],
    ) -> Option<Arc<str>> {
        let words: Vec<Arc<str>> = command.iter().map(|word| word.as_ref().into()).collect();
        let named = self
            .port_flags
            .iter()
            .flat_map(|flag| values(&words, flag))
            .filter_map(|value| value.rsplit(':').next()?.parse::<u16>().ok())
            .last();
        let on_port = |port| {
            let mut places = listening_on.iter();
            places.find(|place| port_of(place) == Some(port)).cloned()
        };
        let only = match listening_on {
            [only] => Some(only.clone()),
            _ => None,
        };
        // Whoever was told a port and does not listen there is not ready, or no such server.
        match named {
            Some(port) => on_port(port),
            None => on_port(self.usual_port).or(only),
        }
    }

    /// Whether its command line makes it serve by TLS.
    pub fn is_secure<T: AsRef<str>>(&self, command: &[T]) -> bool {
        command.iter().any(|word| {
            let name = word.as_ref().split('=').next().unwrap_or_default();
            self.tls_flags.contains(&name)
        })
    }

    /// The port of its metrics, where they have one of their own.
    pub fn metrics_port<T: AsRef<str>>(&self, command: &[T]) -> Option<u16> {
        let (flag, usual) = self.metrics_port?;
        let words: Vec<Arc<str>> = command.iter().map(|word| word.as_ref().into()).collect();
        let named = values(&words, flag).filter_map(|value| value.parse().ok());
        Some(named.last().unwrap_or(usual))
    }
}

/// The port of a place of TCP.
fn port_of(place: &str) -> Option<u16> {
    place.strip_prefix("tcp:")?.rsplit(':').next()?.parse().ok()
}

/// A name as a part of a path (RFC 3986).
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

/// A request about a model, in JSON.
fn post_json(path: &'static str, body: &serde_json::Value) -> ServerRequest {
    ServerRequest { body: Some(body.to_string().into()), ..ServerRequest::post(path, None) }
}
