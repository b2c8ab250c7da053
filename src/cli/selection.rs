//! `--gpu` and `--user`: which GPUs and whose processes a command is about.

use super::Misuse;
use crate::model::{Gpu, Process, Snapshot};

/// The GPUs and owners that were asked for; without any named, all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// Indices and UUIDs.
    pub gpus: Vec<String>,
    /// Names and uids.
    pub users: Vec<String>,
}

impl Selection {
    /// Whether this GPU was asked for.
    pub(super) fn has_gpu(&self, index: u32, uuid: Option<&str>) -> bool {
        self.gpus.is_empty() || self.gpus.iter().any(|wanted| is_gpu(wanted, index, uuid))
    }

    /// Whether this process's owner was asked for. An owner who is not known was not.
    pub(super) fn has_owner(&self, process: &Process) -> bool {
        self.users.is_empty() || self.users.iter().any(|user| is_owner(process, user))
    }

    /// Leaves the GPUs that were asked for, and what could not be read of them.
    ///
    /// # Errors
    ///
    /// A GPU was named that the machine does not have; the snapshot is untouched then.
    pub(super) fn narrow_to_gpus(&self, snapshot: &mut Snapshot) -> Result<(), Misuse> {
        for wanted in &self.gpus {
            if !snapshot.gpus.iter().any(|gpu| names(wanted, gpu)) {
                return Err(no_such_gpu(&format!("--gpu {wanted}"), &snapshot.gpus));
            }
        }
        self.retain_gpus(snapshot);
        Ok(())
    }

    /// As [`Selection::narrow_to_gpus`], where a GPU that was named may be missing.
    pub(super) fn retain_gpus(&self, snapshot: &mut Snapshot) {
        if self.gpus.is_empty() {
            return;
        }
        snapshot
            .gpus
            .retain(|gpu| self.has_gpu(gpu.index, gpu.uuid.as_deref()));
        let left = &snapshot.gpus;
        snapshot.errors.retain(|error| {
            error
                .gpu
                .is_none_or(|index| left.iter().any(|gpu| gpu.index == index))
        });
    }

    /// Leaves the processes whose owners were asked for.
    pub(super) fn narrow_to_users(&self, snapshot: &mut Snapshot) {
        if self.users.is_empty() {
            return;
        }
        snapshot.processes.retain(|process| self.has_owner(process));
        let left = &snapshot.processes;
        for gpu in &mut snapshot.gpus {
            if let Some(rows) = &mut gpu.processes {
                rows.retain(|row| left.iter().any(|process| process.pid == row.pid));
            }
        }
    }
}

/// Whether `wanted`, an index or a UUID, names this GPU.
pub(super) fn names(wanted: &str, gpu: &Gpu) -> bool {
    is_gpu(wanted, gpu.index, gpu.uuid.as_deref())
}

fn is_gpu(wanted: &str, index: u32, uuid: Option<&str>) -> bool {
    wanted.parse() == Ok(index) || uuid.is_some_and(|uuid| uuid == wanted)
}

fn is_owner(process: &Process, wanted: &str) -> bool {
    process.user.as_deref() == Some(wanted)
        || process.uid.is_some_and(|uid| wanted.parse() == Ok(uid))
}

/// What was typed names a GPU that is not among these.
pub(super) fn no_such_gpu(typed: &str, gpus: &[Gpu]) -> Misuse {
    let known: Vec<_> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Misuse(format!("{typed}: there is no such GPU; there are {known}"))
}
