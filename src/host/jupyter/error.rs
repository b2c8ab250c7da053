//! Defines the errors for a server that is unknown or did not answer, and for a kernel that cannot be contacted
//! directly.

use rustix::io::Errno;

use super::super::http::HttpError;
use super::super::remedy;
use crate::units::system_message;

/// Reason why the server of a kernel is unknown or did not answer. Paths are relative to the root directory of the
/// process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot read {path}: {}{}", system_message(errno), remedy(*errno))]
    Read { path: String, errno: Errno },
    #[error(
        "the environment of process {pid}, which names its server, cannot be read; that requires \
        root or its owner"
    )]
    Environment { pid: u32 },
    #[error(
        "{path} does not belong to the kernel's owner, and was not read; check who put it there"
    )]
    Foreign { path: String },
    #[error("{path} was not written by Jupyter; check which program wrote it")]
    Malformed { path: String },
    #[error(
        "its server (process {pid}) has no file in {folder}; give both the same runtime directory (JUPYTER_RUNTIME_DIR)"
    )]
    NoFile { pid: u32, folder: String },
    #[error(
        "its server (process {pid}) is {application}, which leaves no file with its address; check \
        its own page or client"
    )]
    Fileless { pid: u32, application: &'static str },
    #[error("its server (process {number}) has exited; shut the kernel down yourself")]
    Gone {
        /// Pid of the server in its pid namespace.
        number: u32,
    },
    #[error(
        "process {pid}, which it names as its parent, is another user's, and was not asked; check \
        what started it"
    )]
    Stranger { pid: u32 },
    #[error(
        "process {number}, which started it, is not visible from here; that requires root on the host"
    )]
    Unseen {
        /// Pid of the server in its pid namespace.
        number: u32,
    },
    #[error(transparent)]
    NotConnected(#[from] HttpError),
    #[error("its server (process {pid}) has just exited; try again")]
    Ended { pid: u32 },
    #[error(
        "it accepts only a password, which gpumem does not have; also set a token (IdentityProvider.token) to see the notebook's activity"
    )]
    Password,
    #[error("it refused {request}; check that its token is in its runtime file")]
    Refused { request: &'static str },
    #[error(
        "it redirected {request}, which gpumem does not follow; check which server listens there"
    )]
    Redirects { request: &'static str },
    #[error("it answered {request} with status {status}; see its log")]
    Status { request: &'static str, status: u16 },
    #[error("its answer to {request} is not from Jupyter; check which server listens there")]
    NotJupyter { request: &'static str },
    #[error("it did not answer {request} in time; check whether it hangs")]
    Timeout { request: &'static str },
    #[error("{request} failed: {why}; check whether it runs")]
    Request { request: &'static str, why: String },
    #[error("it does not know this kernel; shut the kernel down yourself")]
    UnknownKernel,
    #[error("process {pid} is no longer this kernel; make a new plan")]
    Replaced { pid: u32 },
    #[error(
        "process {pid} was started as the same kernel, so the server may mean either; shut the kernel down in its notebook"
    )]
    Twin { pid: u32 },
    #[error("unknown which process the server means: {why}; check that /proc can be read")]
    Unsure { why: String },
}

/// Reason why a kernel cannot be contacted or did not answer. Paths are relative to the root directory of the process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(
        "its command line names no connection file with an absolute path; start the kernel with one"
    )]
    NoFile,
    #[error(
        "{path} can be read or written by others, who may have its key; chmod 600 it, and restart the kernel"
    )]
    Exposed { path: String },
    #[error("{path} has no key, so the kernel accepts requests from anyone; start it with a key")]
    Unsigned { path: String },
    #[error(
        "{path} names a signature scheme other than hmac-sha256, which gpumem does not support"
    )]
    Scheme { path: String },
    #[error("its connection is encrypted (CURVE), which gpumem does not support")]
    Encrypted,
    #[error(
        "{path} names an address that is not on loopback; gpumem contacts only loopback addresses"
    )]
    Elsewhere { path: String },
    #[error("it did not answer in time; try again when it is idle")]
    Silent,
    #[error("it closed the connection without an answer; check whether it has exited")]
    Closed,
    #[error("its answer is not from Jupyter: {why}; check which program listens there")]
    Garbage {
        /// Explanation, which may contain text from the kernel and must be escaped for a terminal.
        why: String,
    },
}
