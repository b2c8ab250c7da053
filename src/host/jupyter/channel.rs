//! A kernel's shell channel: what it is asked directly, without its server.
//!
//! How it is reached, and the key that messages are signed with, are in the file that the kernel's own argv
//! names; it is read with care (`files`). The connection is made and proved as those to servers are
//! (`host::http`): the process that is meant itself listens, before and after. Messages are signed and verified
//! (`message`) and go over a socket (`zmtp`) that bounds them: a hostile kernel may answer whatever it likes, as long
//! and as late as it likes.
//!
//! Nothing is ever asked on the control channel: it is answered while a cell runs, and the server then takes
//! the kernel for idle. No secret is in any error.

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

/// How long its files are waited for.
const READ_TIME: Duration = Duration::from_secs(1);
/// After so many messages that are no answer it will not come.
const MESSAGES: usize = 64;
/// The name of the one expression that is evaluated.
const EXPRESSION: &str = "gpumem";

/// What came of an expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evaluated {
    /// Its value, as Python writes it (`repr`).
    Value(String),
    /// It raised this.
    Raised(String),
    /// It was not evaluated: a cell before it failed, and the kernel drops what waits behind one.
    Aborted,
}

/// What is read of a `kernel_info_reply`.
#[derive(Deserialize)]
struct KernelInfoReply {
    implementation: String,
}

/// What is read of an `execute_reply`.
#[derive(Deserialize)]
struct ExecuteReply {
    status: String,
    #[serde(default)]
    user_expressions: HashMap<String, ExpressionResult>,
}

/// What an expression came to.
#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum ExpressionResult {
    Ok { data: HashMap<String, Value> },
    Error { ename: String, evalue: String },
}

/// A connection to a kernel's shell channel.
pub struct ShellChannel {
    socket: DealerSocket,
    key: hmac::Key,
    session: String,
}

impl ShellChannel {
    /// Connects to the kernel that is this process.
    ///
    /// # Errors
    ///
    /// Where it is not there, must not be talked to, or does not greet by `until`.
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
        let socket = DealerSocket::greet(stream, until).map_err(|error| of_io(&error))?;
        Ok(Self { socket, key, session: new_id()? })
    }

    /// What its kernel calls itself: `"ipython"`. A kernel that runs a cell does not answer.
    ///
    /// # Errors
    ///
    /// Where it does not answer by `until`, or not as Jupyter does.
    pub fn implementation(&mut self, until: Deadline) -> Result<String, ChannelError> {
        let reply: KernelInfoReply = self.ask("kernel_info", &json!({}), until)?;
        Ok(clip(&reply.implementation))
    }

    /// Has it evaluate an expression in the user's namespace: silently, with no code, no history and no
    /// prompt. A request cannot be taken back: one that is not answered by `until` may be evaluated later.
    ///
    /// # Errors
    ///
    /// Where it does not answer by `until`, or not as Jupyter does.
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
                _ => Err(garbage("it has no text")),
            },
            Some(ExpressionResult::Error { ename, evalue }) => {
                Ok(Evaluated::Raised(clip(&format!("{ename}: {evalue}"))))
            }
            None => Err(garbage("it has evaluated nothing")),
        }
    }

    /// Sends a request, and takes the reply to it.
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
        self.socket.write_message(&request).map_err(|error| of_io(&error))?;
        let mut odd = None;
        for _ in 0..MESSAGES {
            let parts = match self.socket.read_message() {
                Ok(parts) => parts,
                Err(error) => {
                    return Err(match odd {
                        // What has come was no message of the kernel's.
                        Some(why) if is_late(&error) => garbage(why),
                        _ => of_io(&error),
                    });
                }
            };
            match verify(&self.key, &parts) {
                Ok(answer) if answer.parent_id == id => return reply(answer, about),
                Ok(_) => {}
                Err(why) => odd = Some(why),
            }
        }
        Err(garbage(odd.unwrap_or("there are too many of them")))
    }
}

fn reply<T: DeserializeOwned>(answer: Answer, about: &str) -> Result<T, ChannelError> {
    if answer.msg_type != format!("{about}_reply") {
        return Err(garbage(&format!("a {}", answer.msg_type)));
    }
    serde_json::from_value(answer.content).map_err(|_| garbage("it is not of that shape"))
}

fn new_id() -> Result<String, ChannelError> {
    unique_id().ok_or_else(|| garbage("the system gives no random bytes to name a request with"))
}

/// How the kernel that a process is, is talked to, by the file that its own argv names.
fn read_endpoint(roots: &Roots, pid: u32, start_ticks: u64) -> Result<ShellEndpoint, ChannelError> {
    let kernel = KernelCandidate::read(roots, pid, start_ticks);
    let kernel = kernel.ok_or(ServerError::Replaced { pid })?;
    let path = kernel.jupyter.as_ref().and_then(|it| it.connection_file.clone());
    let path = path.filter(|path| path.starts_with('/'));
    let path = path.ok_or(ChannelError::NoFile)?;
    let roots = roots.clone();
    let reading = Task::start("notebook-files", move || {
        let process = match OpenedProcess::open(&roots, pid) {
            Ok(Some(process)) if process.start_ticks == start_ticks => process,
            _ => return Err(ServerError::Replaced { pid }.into()),
        };
        // What a kernel forks has its argv, and its sockets too.
        let parent = process.ppid.and_then(|pid| OpenedProcess::open(&roots, pid).ok()?);
        if let Some(parent) = parent.filter(|it| it.command() == process.command()) {
            return Err(ServerError::Twin { pid: parent.pid }.into());
        }
        read_shell_endpoint(&process, &path)
    });
    let unread = |why: &str| ServerError::Unsure { why: why.to_owned() };
    let reading = reading.map_err(|error| unread(&error.to_string()))?;
    let read = reading.wait(READ_TIME);
    read.map_err(|_| unread("its file is not read in time"))?
}

fn garbage(why: &str) -> ChannelError {
    ChannelError::Garbage { why: clip(why) }
}

fn of_io(error: &std::io::Error) -> ChannelError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, UnexpectedEof};
    match error.kind() {
        _ if is_late(error) => ChannelError::Silent,
        UnexpectedEof | ConnectionReset | BrokenPipe => ChannelError::Closed,
        InvalidData => garbage(&error.to_string()),
        _ => garbage(&format!("the connection failed ({error})")),
    }
}
