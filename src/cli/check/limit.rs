//! `--max-used` and `--max-unattributed`: limits on the memory of a GPU. An unknown value is an error, because it
//! could exceed the limit.

use crate::model::snapshot::{Memory, PidNamespace, ReadError};
use crate::model::{Gpu, Snapshot};
use crate::report::check::{Limit, LimitVerdict};
use crate::units::Amount;

/// Compares each GPU with each limit. Also returns errors for values that could not be read.
pub(super) fn judge(
    limits: &[(Limit, Amount)],
    snapshot: &Snapshot,
) -> (Vec<LimitVerdict>, Vec<ReadError>) {
    let mut verdicts = Vec::new();
    let mut errors = Vec::new();
    for gpu in &snapshot.gpus {
        for &(limit, amount) in limits {
            let actual = match limit {
                Limit::MaxUsed => used(gpu).map(|memory| memory.used_bytes),
                Limit::MaxUnattributed => unattributed(gpu, snapshot),
            };
            if let Err(why) = actual {
                errors.push(ReadError {
                    gpu: Some(gpu.index),
                    call: format!("--{limit}").into(),
                    error: why.into(),
                });
            }
            let actual_bytes = actual.ok();
            let limit_bytes = amount.in_bytes(gpu.memory.map(|memory| memory.total_bytes));
            verdicts.push(LimitVerdict {
                limit,
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                limit_bytes,
                actual_bytes,
                exceeded: actual_bytes.zip(limit_bytes).map(|(actual, limit)| actual > limit),
            });
        }
    }
    (verdicts, errors)
}

fn used(gpu: &Gpu) -> Result<Memory, &'static str> {
    if gpu.stale_seconds.is_some() {
        return Err("the driver does not answer for this GPU, and its last values are old");
    }
    gpu.memory.ok_or("its memory could not be read")
}

fn unattributed(gpu: &Gpu, snapshot: &Snapshot) -> Result<u64, &'static str> {
    used(gpu)?;
    if snapshot.host.pid_namespace != Some(PidNamespace::Host) {
        return Err(
            "NVML lists all processes only in the host's pid namespace; run gpumem on the host",
        );
    }
    snapshot.balance(gpu).ok_or("its memory could not be read")?.unattributed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GpuProcess, Time};
    use crate::units::{Bytes, GIB};

    fn machine(gpu: Gpu) -> Snapshot {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.host.pid_namespace = Some(PidNamespace::Host);
        snapshot.gpus = vec![gpu];
        snapshot
    }

    /// Returns a GPU on which 50 of 80 GiB are used. One process holds `used_bytes`.
    fn gpu(used_bytes: Option<u64>) -> Gpu {
        Gpu {
            memory: Some(Memory {
                total_bytes: 80 * GIB,
                reserved_bytes: Some(GIB),
                used_bytes: 50 * GIB,
                free_bytes: 29 * GIB,
            }),
            processes: Some(vec![GpuProcess { pid: 7, used_bytes, ..GpuProcess::default() }]),
            ..Gpu::default()
        }
    }

    fn one(limit: Limit, amount: Amount, snapshot: &Snapshot) -> (Option<u64>, Option<bool>) {
        let (verdicts, errors) = judge(&[(limit, amount)], snapshot);
        assert_eq!(errors.is_empty(), verdicts[0].exceeded.is_some());
        (verdicts[0].actual_bytes, verdicts[0].exceeded)
    }

    #[test]
    fn a_value_equal_to_the_limit_does_not_exceed_it() {
        let snapshot = machine(gpu(Some(49 * GIB)));
        for (amount, exceeded) in [
            (Amount::Size(Bytes(50 * GIB)), false),
            (Amount::Size(Bytes(50 * GIB - 1)), true),
            (Amount::Share(62.5), false),
            (Amount::Share(62.4), true),
        ] {
            let found = one(Limit::MaxUsed, amount, &snapshot);
            assert_eq!(found, (Some(50 * GIB), Some(exceeded)), "{amount}");
        }
        let gib = Amount::Size(Bytes(GIB));
        assert_eq!(one(Limit::MaxUnattributed, gib, &snapshot), (Some(GIB), Some(false)));
        // A process can allocate memory after the GPU's total is read but before the GPU's processes are read.
        let racing = machine(gpu(Some(51 * GIB)));
        assert_eq!(one(Limit::MaxUnattributed, gib, &racing), (Some(0), Some(false)));
    }

    #[test]
    fn an_unknown_value_neither_passes_nor_exceeds() {
        let size = Amount::Size(Bytes(GIB));
        let whole = gpu(Some(GIB));
        let changed = |change: fn(&mut Gpu)| {
            let mut gpu = whole.clone();
            change(&mut gpu);
            machine(gpu)
        };
        let blind = (None, None);
        for snapshot in
            [changed(|gpu| gpu.memory = None), changed(|gpu| gpu.stale_seconds = Some(9.0))]
        {
            assert_eq!(one(Limit::MaxUsed, size, &snapshot), blind);
            assert_eq!(one(Limit::MaxUsed, Amount::Share(50.0), &snapshot), blind);
            assert_eq!(one(Limit::MaxUnattributed, size, &snapshot), blind);
        }
        let mut container = machine(whole.clone());
        container.host.pid_namespace = Some(PidNamespace::Container);
        let mut unknown = machine(whole.clone());
        unknown.host.pid_namespace = None;
        for snapshot in [
            container,
            unknown,
            machine(gpu(None)),
            changed(|gpu| gpu.processes = None),
            changed(|gpu| gpu.mig_mode = Some(true)),
        ] {
            assert_eq!(one(Limit::MaxUnattributed, size, &snapshot), blind);
            assert_ne!(one(Limit::MaxUsed, size, &snapshot), blind);
        }
    }
}
