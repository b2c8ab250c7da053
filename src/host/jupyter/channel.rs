//! Sends requests directly to a kernel over its shell channel, without using its server.
//!
//! The kernel's command line names the connection file, which contains the address and the signing key. `files` checks
//! the connection file. As in `host::http`, the kernel's process is verified to hold the listening socket. Requests are
//! signed, and the signatures of answers are verified. The signature covers the four dictionaries of a message
//! (jupyter_client, "Messaging in Jupyter", "The wire protocol"). A hostile kernel can send any answer at any time, so
//! `zmtp` limits the size and duration of an exchange.
//!
//! The control channel is never used: a kernel answers there even while a cell runs, and the server would then
//! consider the kernel idle. Errors contain no secrets.

use std::collections::HashMap;
use std::time::Duration;

use ring::{hmac, rand};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::zmtp::{DealerSocket, is_late};
use super::files::{ShellEndpoint, read_shell_endpoint};
use super::{ChannelError, KernelCandidate, ServerError, clip};
use crate::deadline::{Deadline, Task};
use crate::host::Roots;
use crate::host::http::{HttpError, Listener, connect};
use crate::host::proc::opened_process::OpenedProcess;
use crate::units::system_message;

mod zmtp;

const READ_TIME: Duration = Duration::from_secs(1);
const MESSAGES: usize = 64;
const EXPRESSION: &str = "gpumem";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evaluated {
    Value(String),
    Raised(String),
    /// The kernel dropped the queued requests because an earlier cell failed.
    Aborted,
}

#[derive(Deserialize)]
struct KernelInfoReply {
    implementation: String,
}

#[derive(Deserialize)]
struct ExecuteReply {
    status: String,
    #[serde(default)]
    user_expressions: HashMap<String, ExpressionResult>,
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum ExpressionResult {
    Ok { data: HashMap<String, Value> },
    Error { ename: String, evalue: String },
}

pub struct ShellChannel {
    socket: DealerSocket,
    key: hmac::Key,
    session: String,
}

impl ShellChannel {
    /// Connects to the kernel that runs as this process. Returns an error if the process has exited, if the kernel
    /// must not be contacted, or if it sends no greeting by `until`.
    pub fn open(
        roots: &Roots,
        (pid, start_ticks): (u32, u64),
        until: Deadline,
    ) -> Result<Self, ChannelError> {
        let ShellEndpoint { endpoint, key } = read_endpoint(roots, pid, start_ticks)?;
        let listener = Listener { pid, start_ticks, endpoint, is_https: false };
        let time = until.left().max(Duration::from_millis(1));
        let stream = connect(roots, &listener, time).map_err(|error| match error {
            HttpError::Timeout => ChannelError::Silent,
            error => ServerError::from(error).into(),
        })?;
        let socket =
            DealerSocket::greet(stream, until).map_err(|error| to_channel_error(&error))?;
        Ok(Self { socket, key, session: new_id()? })
    }

    /// Returns the name of the kernel's implementation, such as `ipython`. Returns an error if there is no valid
    /// answer by `until`. A kernel does not answer while it runs a cell.
    pub fn implementation(&mut self, until: Deadline) -> Result<String, ChannelError> {
        let reply: KernelInfoReply = self.ask("kernel_info", &json!({}), until)?;
        Ok(clip(&reply.implementation))
    }

    /// Evaluates an expression in the user's namespace. The request contains no statements, and does not change the
    /// history. Returns an error if there is no valid answer by `until`. A request cannot be withdrawn, so the kernel
    /// may still evaluate the expression after an error.
    pub fn evaluate(
        &mut self,
        expression: &str,
        until: Deadline,
    ) -> Result<Evaluated, ChannelError> {
        let request = json!({
            "code": "",
            "silent": true,
            "store_history": false,
            "user_expressions": { EXPRESSION: expression },
            "allow_stdin": false,
            "stop_on_error": false,
        });
        let mut reply: ExecuteReply = self.ask("execute", &request, until)?;
        if reply.status == "aborted" {
            return Ok(Evaluated::Aborted);
        }
        match reply.user_expressions.remove(EXPRESSION) {
            Some(ExpressionResult::Ok { data }) => match data.get("text/plain") {
                Some(Value::String(text)) => Ok(Evaluated::Value(text.clone())),
                _ => Err(garbage("the value has no plain text")),
            },
            Some(ExpressionResult::Error { ename, evalue }) => {
                Ok(Evaluated::Raised(clip(&format!("{ename}: {evalue}"))))
            }
            None => Err(garbage("no value was returned")),
        }
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        about: &str,
        content: &Value,
        until: Deadline,
    ) -> Result<T, ChannelError> {
        let id = new_id()?;
        let request = sign(&self.key, (&self.session, &id), &format!("{about}_request"), content);
        let request = request.map_err(|error| garbage(&error.to_string()))?;
        self.socket.set_deadline(until);
        self.socket.write_message(&request).map_err(|error| to_channel_error(&error))?;
        let mut odd = None;
        for _ in 0..MESSAGES {
            let parts = match self.socket.read_message() {
                Ok(parts) => parts,
                Err(error) => {
                    return Err(match odd {
                        Some(why) if is_late(&error) => garbage(why),
                        _ => to_channel_error(&error),
                    });
                }
            };
            match verify(&self.key, &parts) {
                Ok(answer) if answer.parent_id == id => return reply(answer, about),
                Ok(_) => {}
                Err(why) => odd = Some(why),
            }
        }
        Err(garbage(odd.unwrap_or("too many unrelated messages")))
    }
}

fn reply<T: DeserializeOwned>(answer: Answer, about: &str) -> Result<T, ChannelError> {
    if answer.msg_type != format!("{about}_reply") {
        return Err(garbage(&format!("a {}", answer.msg_type)));
    }
    serde_json::from_value(answer.content).map_err(|_| garbage("unexpected fields"))
}

/// Reads the address and the key from the connection file named in the command line of the process.
fn read_endpoint(roots: &Roots, pid: u32, start_ticks: u64) -> Result<ShellEndpoint, ChannelError> {
    let kernel = KernelCandidate::read(roots, pid, start_ticks);
    let kernel = kernel.ok_or(ServerError::Replaced { pid })?;
    let path = kernel.jupyter.as_ref().and_then(|jupyter| jupyter.connection_file.clone());
    let path = path.filter(|path| path.starts_with('/'));
    let path = path.ok_or(ChannelError::NoFile)?;
    let roots = roots.clone();
    let reading = Task::start("notebook-files", move || {
        let process = match OpenedProcess::open(&roots, pid) {
            Ok(Some(process)) if process.start_ticks == start_ticks => process,
            _ => return Err(ServerError::Replaced { pid }.into()),
        };
        // A process forked by a kernel has the same command line and sockets as the kernel.
        let parent = process.ppid.and_then(|pid| OpenedProcess::open(&roots, pid).ok()?);
        if let Some(parent) = parent.filter(|parent| parent.command() == process.command()) {
            return Err(ServerError::Twin { pid: parent.pid }.into());
        }
        read_shell_endpoint(&process, &path)
    });
    let unread = |why: &str| ServerError::Unsure { why: why.to_owned() };
    let reading = reading.map_err(|error| unread(&system_message(&error)))?;
    let read = reading.wait(READ_TIME);
    read.map_err(|_| unread("its connection file could not be read in time"))?
}

fn garbage(why: &str) -> ChannelError {
    ChannelError::Garbage { why: clip(why) }
}

fn to_channel_error(error: &std::io::Error) -> ChannelError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, UnexpectedEof};
    match error.kind() {
        _ if is_late(error) => ChannelError::Silent,
        UnexpectedEof | ConnectionReset | BrokenPipe => ChannelError::Closed,
        InvalidData => garbage(&error.to_string()),
        _ => garbage(&format!("the connection failed ({})", system_message(error))),
    }
}

const DELIMITER: &[u8] = b"<IDS|MSG>";
/// Protocol version in the headers of gpumem's messages. Version 5.3 has all features that gpumem uses.
const VERSION: &str = "5.3";

#[derive(Serialize)]
struct Header<'a> {
    msg_id: &'a str,
    session: &'a str,
    username: &'a str,
    date: String,
    msg_type: &'a str,
    version: &'a str,
}

/// Received message whose signature is valid.
struct Answer {
    parent_id: String,
    msg_type: String,
    content: Value,
}

fn new_id() -> Result<String, ChannelError> {
    let bytes = rand::generate::<[u8; 16]>(&rand::SystemRandom::new());
    let bytes =
        bytes.map_err(|_| garbage("the system provides no random bytes for a request id"))?;
    Ok(hex(&bytes.expose()))
}

fn sign(
    key: &hmac::Key,
    (session, msg_id): (&str, &str),
    msg_type: &str,
    content: &Value,
) -> serde_json::Result<Vec<Vec<u8>>> {
    let date = jiff::Timestamp::now().to_string();
    let header = Header { msg_id, session, username: "gpumem", date, msg_type, version: VERSION };
    let signed = [
        serde_json::to_vec(&header)?,
        b"{}".to_vec(),
        b"{}".to_vec(),
        serde_json::to_vec(content)?,
    ];
    let signature = hex(hmac::sign(key, &signed.concat()).as_ref());
    let mut parts = vec![DELIMITER.to_vec(), signature.into_bytes()];
    parts.extend(signed);
    Ok(parts)
}

fn verify(key: &hmac::Key, parts: &[Vec<u8>]) -> Result<Answer, &'static str> {
    const NOT_JUPYTER: &str = "not a Jupyter message";
    const FIELDS: &str = "unexpected fields";
    let at = parts.iter().position(|part| part == DELIMITER).ok_or(NOT_JUPYTER)?;
    let [signature, header, parent, metadata, content, ..] = &parts[at + 1..] else {
        return Err(NOT_JUPYTER);
    };
    let signed = [header, parent, metadata, content].map(Vec::as_slice).concat();
    unhex(signature)
        .filter(|tag| hmac::verify(key, &signed, tag).is_ok())
        .ok_or("it is not signed with the key in the connection file")?;
    let parse = |part: &[u8]| serde_json::from_slice::<Value>(part).map_err(|_| FIELDS);
    let msg_type = parse(header)?["msg_type"].as_str().ok_or(FIELDS)?.to_owned();
    // The parent header is empty if the message is not an answer.
    let parent_id = parse(parent)?["msg_id"].as_str().unwrap_or_default().to_owned();
    Ok(Answer { parent_id, msg_type, content: parse(content)? })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    digits.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_messages_with_a_valid_signature_are_accepted() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        let other_key = hmac::Key::new(hmac::HMAC_SHA256, b"yek");
        let parts = sign(&key, ("s", "m"), "kernel_info_request", &json!({"a": 1})).unwrap();
        let answer = verify(&key, &parts).ok().unwrap();
        assert_eq!(
            (answer.msg_type.as_str(), &answer.content),
            ("kernel_info_request", &json!({"a": 1}))
        );
        assert!(verify(&other_key, &parts).is_err());
        for at in 1..parts.len() {
            for change in [&b""[..], b"x", b"{\"b\":1}", "\u{e9}\u{e9}".as_bytes()] {
                let mut changed = parts.clone();
                changed[at] = change.to_vec();
                assert!(verify(&key, &changed).is_err(), "{at}");
            }
            assert!(verify(&key, &parts[..at]).is_err());
        }
    }
}
