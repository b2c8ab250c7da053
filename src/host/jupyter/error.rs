//! Why a kernel's server is not known, or did not tell, in the words that are shown beside the
//! notebook; and why the kernel itself cannot be asked.

use std::fmt;

use rustix::io::Errno;

use super::super::http::HttpError;
use super::super::remedy;

/// Why a kernel's server is not known, or did not tell. A path is as the process itself names it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// A file could not be read.
    #[error("cannot read {path}: {errno}{}", remedy(*errno))]
    Read { path: String, errno: Errno },
    /// The environment could not be read.
    #[error(
        "the environment of process {pid}, which names its server, cannot be read; that takes \
        root or its owner"
    )]
    Environment { pid: u32 },
    /// No regular file, or another user's.
    #[error(
        "{path} does not belong to the kernel's owner, and was not read; check who put it there"
    )]
    Foreign { path: String },
    /// Not what Jupyter writes.
    #[error("{path} is not what Jupyter writes; see what did")]
    Malformed { path: String },
    /// The server that started the kernel has left no file.
    #[error(
        "its server (process {pid}) has no file in {folder}; give both the same runtime directory (JUPYTER_RUNTIME_DIR)"
    )]
    NoFile { pid: u32, folder: String },
    /// A server that leaves none.
    #[error(
        "its server (process {pid}) is {application}, which leaves no file with its address; see \
        its own page or client"
    )]
    Fileless {
        pid: u32,
        /// Which it is: `voila`, `kernelgateway`.
        application: &'static str,
    },
    /// The server is gone.
    #[error(
        "its server (process {number}) has exited{}; shut the kernel down yourself",
        Stale(file)
    )]
    Gone {
        /// Its number in its own namespace.
        number: u32,
        /// Its file, where it is still there.
        file: Option<String>,
    },
    /// Another user's process.
    #[error(
        "process {pid}, which it names as its parent, is another user's, and was not asked; check \
        what started it"
    )]
    Stranger { pid: u32 },
    /// It cannot be told who the server is.
    #[error(
        "process {number}, which started it, is not visible from here; that takes root, on the host"
    )]
    Unseen {
        /// Its number in its own namespace.
        number: u32,
    },
    /// No connection that leads to the server.
    #[error(transparent)]
    NotConnected(#[from] HttpError),
    /// The server ended between two looks.
    #[error("its server (process {pid}) has just exited; try again")]
    Ended { pid: u32 },
    /// A password and no token.
    #[error(
        "it accepts a password only, and gpumem has none; give it a token too (IdentityProvider.token) to see what the notebook does"
    )]
    Password,
    /// 401 or 403.
    #[error("it refused {request}; see that its token is in its runtime file")]
    Refused { request: &'static str },
    /// 3xx.
    #[error("it redirected {request}, which gpumem does not follow; see what serves there")]
    Redirects { request: &'static str },
    /// Another status.
    #[error("it answered {request} with status {status}; see its log")]
    Status { request: &'static str, status: u16 },
    /// Not JSON of this shape, or too long.
    #[error("its answer to {request} is not Jupyter's; see what serves there")]
    NotJupyter { request: &'static str },
    /// No answer in time.
    #[error("it did not answer {request} in time; see whether it hangs")]
    Timeout { request: &'static str },
    /// Anything else.
    #[error("{request} failed: {why}; see whether it runs")]
    Request { request: &'static str, why: String },
    /// The server has no kernel of this id.
    #[error("it does not know this kernel; shut the kernel down yourself")]
    UnknownKernel,
    /// The kernel's process is gone, or runs something else.
    #[error("process {pid} is no longer this kernel; make a new plan")]
    Replaced { pid: u32 },
    /// Another process could be the kernel.
    #[error(
        "process {pid} was started as the same kernel, so that it is not certain which of them the server means; shut the kernel down in its notebook"
    )]
    Twin { pid: u32 },
    /// It cannot be told whether another process could be the kernel.
    #[error("it is not known which process the server means: {why}; see that /proc can be read")]
    Unsure { why: String },
}

/// Why a kernel cannot be talked to, or did not answer. A path is as the process itself names it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    /// The process, its file or what listens at its port.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// It has no connection file.
    #[error(
        "its command line names no connection file with an absolute path; start the kernel with one"
    )]
    NoFile,
    /// Others may read the key.
    #[error(
        "{path} can be read or written by others, who may have its key; chmod 600 it, and restart the kernel"
    )]
    Exposed { path: String },
    /// No key.
    #[error("{path} has no key, so the kernel accepts requests from anyone; start it with a key")]
    Unsigned { path: String },
    /// Another signature.
    #[error(
        "{path} names another signature scheme than hmac-sha256, the only one that gpumem supports"
    )]
    Scheme { path: String },
    /// CURVE.
    #[error("its connection is encrypted (CURVE), which gpumem does not support")]
    Encrypted,
    /// Not on loopback.
    #[error("{path} names an address that is not on loopback; gpumem contacts no other")]
    Elsewhere { path: String },
    /// No answer in time.
    #[error("it did not answer in time; try again when it is idle")]
    Silent,
    /// The connection ended.
    #[error("it closed the connection without an answer; see whether it has exited")]
    Closed,
    /// No Jupyter kernel.
    #[error("its answer is not Jupyter's: {why}; see what listens there")]
    Garbage {
        /// May hold words of the kernel's: escape it for a terminal.
        why: String,
    },
}

/// `, and FILE is stale`.
struct Stale<'a>(&'a Option<String>);

impl fmt::Display for Stale<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(file) => write!(f, ", and {file} is stale"),
            None => Ok(()),
        }
    }
}
