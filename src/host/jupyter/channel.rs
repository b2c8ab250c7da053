//! Sends requests directly to a kernel over its shell channel, without using its server.
//!
//! The kernel's command line names the connection file, which contains the address and the signing key. `files`
//! checks the connection file. As in `host::http`, the kernel's process is verified to hold the listening socket. A
//! hostile kernel can send any answer at any time. Messages are therefore signed and verified (`message`), and the
//! size and duration of an exchange are limited (`zmtp`).
//!
//! The control channel is never used: a kernel answers there even while a cell runs, and the server would then
//! consider the kernel idle. Errors contain no secrets.

use std::collections::HashMap;
use std::time::Duration;

use ring::hmac;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::message::{Answer, sign, unique_id, verify};
use self::zmtp::{DealerSocket, is_late};
use super::files::{ShellEndpoint, read_shell_endpoint};
use super::{ChannelError, KernelCandidate, ServerError, clip};
use crate::deadline::{Deadline, Task};
use crate::host::Roots;
use crate::host::http::{HttpError, Listener, connect};
use crate::host::proc::opened_process::OpenedProcess;

mod message;
mod zmtp;

const READ_TIME: Duration = Duration::from_secs(1);
const MESSAGES: usize = 64;
const EXPRESSION: &str = "gpumem";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evaluated {
    /// Value of the expression as printed by `repr`.
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

    /// Evaluates an expression in the user's namespace. No code is executed, and the history does not change. Returns
    /// an error if there is no valid answer by `until`. A request cannot be withdrawn, so the kernel may evaluate the
    /// expression later.
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
                        // Messages arrived, but none was a valid answer.
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

fn new_id() -> Result<String, ChannelError> {
    unique_id().ok_or_else(|| garbage("the system provides no random bytes for a request id"))
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
    let reading = reading.map_err(|error| unread(&error.to_string()))?;
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
        _ => garbage(&format!("the connection failed ({error})")),
    }
}
