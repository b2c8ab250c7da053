//! Reads how busy each process has been since it started, if the driver's accounting mode is enabled.
//!
//! The percentages cover the lifetime of a process, so they change slowly. They are read when a process is first
//! listed, and then once a minute.

use std::time::{Duration, Instant};

use foldhash::HashMap;
use nvml_wrapper::Device;

use super::calls::Calls;
use super::error::Code;
use crate::model::Time;
use crate::model::snapshot::GpuProcess;

const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Utilization of a process since the time `since`.
#[derive(Clone, Copy, Debug)]
struct Lifetime {
    percent: Option<u32>,
    since: Time,
}

/// The statistics of each listed process, or `None` if the driver has none.
#[derive(Debug, Default)]
pub(super) struct Accounting(HashMap<u32, (Instant, Option<Lifetime>)>);

impl Accounting {
    pub(super) fn fill(
        &mut self,
        rows: &mut [GpuProcess],
        device: &Device<'_>,
        is_on: bool,
        calls: &mut Calls,
    ) {
        if !is_on {
            self.0.clear();
            return;
        }
        let mut old_accounts = std::mem::take(&mut self.0);
        // The driver has no statistics for MIG instances.
        let rows = rows.iter_mut().filter(|row| row.gpu_instance_id.is_none());
        for row in rows {
            let account = self.0.get(&row.pid).copied().or_else(|| {
                let account = old_accounts.remove(&row.pid);
                account.filter(|(at, _)| at.elapsed() < AGAIN_AFTER)
            });
            let account = account.or_else(|| {
                let looked_up = look_up(row.pid, device, calls).ok()?;
                Some((Instant::now(), looked_up))
            });
            let Some(account) = account else {
                // The call failed, so the next sample tries again.
                continue;
            };
            self.0.insert(row.pid, account);
            if let Some(lifetime) = account.1 {
                row.lifetime_percent = lifetime.percent;
                row.lifetime_since = lifetime.percent.map(|_| lifetime.since);
            }
        }
    }
}

/// Reads the statistics of a process. Returns `None` if there are none, if they are impossible, or if they are about
/// an earlier process with this pid.
fn look_up(pid: u32, device: &Device<'_>, calls: &mut Calls) -> Result<Option<Lifetime>, ()> {
    const CALL: &str = "nvmlDeviceGetAccountingStats";
    let stats = match calls.raw(CALL, || device.accounting_stats_for(pid)) {
        Ok(stats) => stats,
        // The process started before accounting mode was enabled, or the driver's buffer is full.
        Err(Code::NOT_FOUND) => return Ok(None),
        Err(code) => {
            calls.failed(CALL, code);
            return Err(());
        }
    };
    // If the statistics are complete, the process that they are about has exited.
    if !stats.is_running || stats.start_time == 0 {
        return Ok(None);
    }
    if let Some(percent) = stats.gpu_utilization.filter(|&percent| percent > 100) {
        let lie = format!("the driver reports {percent} percent of process {pid}'s lifetime");
        calls.report(CALL, lie);
        return Ok(None);
    }
    let milliseconds = i64::try_from(stats.start_time / 1000).unwrap_or(i64::MAX);
    Ok(Some(Lifetime {
        percent: stats.gpu_utilization,
        since: Time::from_unix_milliseconds(milliseconds),
    }))
}
