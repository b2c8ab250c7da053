//! What is known of a process that listens, beside what it answers: its command line, and whether anything is
//! connected to it.

use std::sync::Arc;

use super::Listener;
use crate::host::Roots;
use crate::host::proc::opened_process::OpenedProcess;
use crate::host::proc::sockets::count_connections;

impl Listener {
    /// Its command line as it is now; `None` where it has ended or may not be read.
    pub fn command(&self, roots: &Roots) -> Option<Arc<[Arc<str>]>> {
        self.open(roots)?.command()
    }

    /// How many connections stand to any of its ports of TCP; `None` where that cannot be seen.
    pub fn connections(&self, roots: &Roots) -> Option<usize> {
        count_connections(roots, &self.open(roots)?.folder)
    }

    pub(super) fn open(&self, roots: &Roots) -> Option<OpenedProcess> {
        let process = OpenedProcess::open(roots, self.pid).ok()??;
        (process.start_ticks == self.start_ticks).then_some(process)
    }
}
