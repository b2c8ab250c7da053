//! A kernel's shell channel: what it is asked directly, without its server.
//!
//! How it is reached, and the key that messages are signed with, are in the file that the kernel's own argv
//! names; it is read with care (`files`). The connection is made and proved as those to servers are
//! (`host::http`): the process that is meant itself listens, before and after. Then messages go over it by
//! jupyter-zmq-client, which signs and verifies them, with a socket of this crate's (`zmtp`): a hostile kernel
//! may answer whatever it likes, as long and as late as it likes.
//!
//! Nothing is ever asked on the control channel: it is answered while a cell runs, and the server then takes
//! the kernel for idle. No secret is in any error.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use jupyter_protocol::media::MediaType;
use jupyter_protocol::messaging::{
    ExecuteRequest, ExpressionResult, JupyterMessage, JupyterMessageContent, KernelInfoRequest,
    ReplyStatus,
};
use jupyter_zmq_client::{Connection, RuntimeError};
use zeromq::ZmqError;

use self::zmtp::{DealerSocket, is_late};
use super::files::{ShellEndpoint, read_shell_endpoint};
use super::{ChannelError, KernelCandidate, ServerError, clip};
use crate::deadline::{Deadline, Task};
use crate::host::Roots;
use crate::host::http::{HttpError, Listener, connect};
use crate::host::proc::opened_process::OpenedProcess;

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

/// A connection to a kernel's shell channel.
pub struct ShellChannel(Connection<DealerSocket>);

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
        let message = message(KernelInfoRequest {});
        Ok(Self(Connection {
            socket: DealerSocket::greet(stream, until).map_err(|error| of_io(&error))?,
            mac: Some(key),
            session_id: message.header.session,
        }))
    }

    /// What its kernel calls itself: `"ipython"`. A kernel that runs a cell does not answer.
    ///
    /// # Errors
    ///
    /// Where it does not answer by `until`, or not as Jupyter does.
    pub fn implementation(&mut self, until: Deadline) -> Result<String, ChannelError> {
        match self.ask(message(KernelInfoRequest {}), until)? {
            JupyterMessageContent::KernelInfoReply(reply) => Ok(clip(&reply.implementation)),
            other => Err(not_the_answer(&other)),
        }
    }

    /// Has it evaluate an expression in the user's namespace: silently, with no code, no history and no
    /// prompt. A request cannot be taken back: one that is not answered by `until` may be evaluated later.
    ///
    /// # Errors
    ///
    /// Where it does not answer by `until`, or not as Jupyter does.
    pub fn evaluate(
        &mut self,
        expression: String,
        until: Deadline,
    ) -> Result<Evaluated, ChannelError> {
        let request = message(ExecuteRequest {
            code: String::new(),
            silent: true,
            store_history: false,
            user_expressions: Some([(EXPRESSION.to_owned(), expression)].into()),
            allow_stdin: false,
            stop_on_error: false,
        });
        let content = self.ask(request, until)?;
        let JupyterMessageContent::ExecuteReply(reply) = content else {
            return Err(not_the_answer(&content));
        };
        if reply.status == ReplyStatus::Aborted {
            return Ok(Evaluated::Aborted);
        }
        let results = reply.user_expressions.unwrap_or_default();
        match results.into_iter().find(|(name, _)| name == EXPRESSION) {
            Some((_, ExpressionResult::Ok { data, .. })) => {
                let plain = data.content.into_iter().find_map(|it| match it {
                    MediaType::Plain(text) => Some(text),
                    _ => None,
                });
                plain.map(Evaluated::Value).ok_or_else(|| garbage("it has no text"))
            }
            Some((_, ExpressionResult::Error { ename, evalue, .. })) => {
                Ok(Evaluated::Raised(clip(&format!("{ename}: {evalue}"))))
            }
            None => Err(garbage("it has evaluated nothing")),
        }
    }

    /// Sends a message, and takes the answer to it.
    fn ask(
        &mut self,
        message: JupyterMessage,
        until: Deadline,
    ) -> Result<JupyterMessageContent, ChannelError> {
        self.0.socket.set_deadline(until);
        let id = message.header.msg_id.clone();
        at_once(self.0.send(message))?.map_err(|error| of_client(&error))?;
        let mut odd = None;
        for _ in 0..MESSAGES {
            match at_once(self.0.read())? {
                Ok(answer) => {
                    if answer.parent_header.is_some_and(|it| it.msg_id == id) {
                        return Ok(answer.content);
                    }
                }
                Err(RuntimeError::ZmqError(ZmqError::Network(error))) => {
                    return Err(match odd {
                        // What has come was no message of the kernel's.
                        Some(why) if is_late(&error) => why,
                        _ => of_io(&error),
                    });
                }
                Err(error) => odd = Some(of_client(&error)),
            }
        }
        Err(odd.unwrap_or_else(|| garbage("there are too many of them")))
    }
}

/// A message of gpumem's.
fn message(content: impl Into<JupyterMessageContent>) -> JupyterMessage {
    let mut message = JupyterMessage::new(content, None);
    message.header.username = "gpumem".to_owned();
    message
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

/// What a future comes to that is never pending, because its socket waits in the system (`zmtp`).
fn at_once<T>(future: impl Future<Output = T>) -> Result<T, ChannelError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(garbage("it is not there at once")),
    }
}

fn garbage(why: &str) -> ChannelError {
    ChannelError::Garbage { why: clip(why) }
}

fn not_the_answer(content: &JupyterMessageContent) -> ChannelError {
    garbage(&format!("a {}", content.message_type()))
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

fn of_client(error: &RuntimeError) -> ChannelError {
    match error {
        RuntimeError::ZmqError(ZmqError::Network(error)) => of_io(error),
        RuntimeError::VerifyError(_) | RuntimeError::DecodeError(_) => {
            garbage("it is not signed with the key of the kernel's file")
        }
        RuntimeError::ParseError { .. } | RuntimeError::SerdeError(_) => {
            garbage("it is not of that shape")
        }
        _ => garbage("it is no message of Jupyter's"),
    }
}
