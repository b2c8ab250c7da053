//! `--baseline`: reports each process that holds memory on a GPU now, but held none on that GPU in an earlier snapshot.
//! `--max-used` and the leak rule cover processes whose memory has grown.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use crate::cli::UsageError;
use crate::explain;
use crate::model::snapshot::ReadError;
use crate::model::{Gpu, GpuProcess, Identity, Process, Snapshot, Start};
use crate::report::check::NewHolder;

/// Maximum number of bytes read from a snapshot file.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Baseline {
    name: String,
    snapshot: Snapshot,
}

impl Baseline {
    /// Reads the output of `gpumem ps --json`.
    pub(super) fn read(path: &Path) -> Result<Self, UsageError> {
        use std::io::Read as _;
        let name = path.display().to_string();
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
        let snapshot = match read {
            Ok(_) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match snapshot {
            Ok(snapshot) => Ok(Self { name, snapshot }),
            Err(why) => Err(UsageError(format!(
                "--baseline {name}: {why}; create it with `gpumem ps --json`"
            ))),
        }
    }

    /// Returns why the baseline cannot be compared with `now`. After a reboot, a pid may belong to another process.
    pub(super) fn unusable(&self, now: &Snapshot) -> Option<String> {
        let (then, now) = (&self.snapshot.host, &now.host);
        let why = match (&then.boot_id, &now.boot_id) {
            (then, now) if then == now => return None,
            (Some(_), Some(_)) if then.hostname == now.hostname => "from an earlier boot",
            (Some(_), Some(_)) => "of another machine",
            _ => "from an unknown boot",
        };
        let name = &self.name;
        Some(format!("--baseline {name} is {why}; create a new one: gpumem ps --json > {name}"))
    }

    /// Returns the new holders of memory, and errors for process lists that could not be compared.
    pub(super) fn judge(&self, now: &Snapshot) -> (Vec<NewHolder>, Vec<ReadError>) {
        let (mut new, mut errors) = (Vec::new(), Vec::new());
        for gpu in &now.gpus {
            let is_same_gpu = |then: &&Gpu| match (&then.uuid, &gpu.uuid) {
                (Some(then), Some(now)) => then == now,
                _ => then.index == gpu.index,
            };
            let then = self.snapshot.gpus.iter().find(is_same_gpu);
            let then = then.and_then(|then| then.processes.as_ref());
            let why = match (then, &gpu.processes) {
                (Some(then), Some(rows)) if gpu.stale_seconds.is_none() => {
                    let held: HashSet<Identity> =
                        then.iter().map(|row| identity(&self.snapshot, row)).collect();
                    let is_new = |row: &&GpuProcess| {
                        row.used_bytes != Some(0) && !held.contains(&identity(now, row))
                    };
                    new.extend(rows.iter().filter(is_new).map(|row| holder(now, gpu, row)));
                    continue;
                }
                (None, _) => {
                    "the baseline does not list its processes; create it without --gpu, or run check with --gpu"
                }
                (Some(_), None) => "its processes could not be read",
                (Some(_), Some(_)) => {
                    "the driver does not answer for this GPU, and its last values are old"
                }
            };
            errors.push(ReadError {
                gpu: Some(gpu.index),
                call: "--baseline".into(),
                error: why.into(),
            });
        }
        (new, errors)
    }
}

fn identity(snapshot: &Snapshot, row: &GpuProcess) -> Identity {
    let unknown = Identity { pid: row.pid, start: Start::Unknown };
    snapshot.process(row.pid).map_or(unknown, Process::identity)
}

fn holder(now: &Snapshot, gpu: &Gpu, row: &GpuProcess) -> NewHolder {
    let (name, user) = explain::who(now, row.pid);
    NewHolder {
        gpu: gpu.index,
        uuid: gpu.uuid.as_ref().map(Arc::clone),
        pid: row.pid,
        name,
        user: user.map(str::to_owned),
        used_bytes: row.used_bytes,
    }
}
