//! What /proc tells about a listening process: its command line and how many connections it has.

use std::sync::Arc;

use super::Listener;
use crate::host::Roots;
use crate::host::proc::opened_process::OpenedProcess;
use crate::host::proc::sockets::count_connections;

impl Listener {
    /// Its current command line; `None` if it has exited or may not be read.
    pub fn command(&self, roots: &Roots) -> Option<Arc<[Arc<str>]>> {
        self.open(roots)?.command()
    }

    /// How many TCP connections its listening ports have; `None` if that cannot be read.
    pub fn connections(&self, roots: &Roots) -> Option<usize> {
        count_connections(roots, &self.open(roots)?.folder)
    }

    pub(super) fn open(&self, roots: &Roots) -> Option<OpenedProcess> {
        let process = OpenedProcess::open(roots, self.pid).ok()??;
        (process.start_ticks == self.start_ticks).then_some(process)
    }
}
