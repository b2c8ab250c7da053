//! Reads processes from /proc. `processes` is the table of watched processes, `entry` is a row of the table, and
//! `visit` reads all files of a process. The other modules read or parse single files, or derive facts from them.

pub(super) mod cmdline;
pub(super) mod entry;
pub(super) mod environ;
pub(super) mod environment;
pub(super) mod folder;
pub(super) mod framework;
pub(super) mod guarded;
pub(super) mod mapped;
pub(super) mod memory_reader;
pub(super) mod notebook;
pub(super) mod opened_process;
pub(super) mod parent;
pub(super) mod processes;
pub(super) mod relatives;
pub(super) mod small_file;
pub(super) mod sockets;
pub(super) mod stat;
pub(super) mod status;
pub(super) mod thread;
pub(super) mod traffic;
pub(super) mod tree;
pub(super) mod usage;
pub(super) mod visit;
