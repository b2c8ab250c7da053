//! `stuck`: a process holds memory on a GPU and is in uninterruptible sleep (`D`), sample after sample.
//!
//! It waits inside the kernel, nearly always in a driver, and no signal reaches it. Every sample of the
//! duration has to show `D`, there have to be enough, and its CPU seconds must not advance: a process that
//! reads a slow disk is in `D` whenever it is sampled, and gets on in between. If CPU seconds are unknown, it
//! takes more samples.
//!
//! If its first thread has ended (`Z`) and every other is in `D`, it counts as `D`: it was killed, and a thread
//! that waits for a file system or driver keeps everything it holds.
//!
//! Never stuck: a process that holds nothing on a GPU; one that is in `D` for a moment; one whose CPU seconds
//! advance. No action ends it, because nothing can.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lasting::{held, wait};
use super::rule::{
    FindingParts, ProcessInput, RuleInput, RuleKind, RuleOutput, SEVERITY, Settings, seconds,
};
use super::subject;
use crate::history::{Began, ProcessHistory, Streak};
use crate::model::Process;
use crate::model::evidence::{Evidence, KindEvidence, samples};
use crate::model::finding::{Kind, Severity};
use crate::units::Span;

pub static KIND: RuleKind = RuleKind {
    process,
    ..RuleKind::new::<StuckEvidence>(
        Kind::Stuck,
        "a process that holds memory on a GPU has been in uninterruptible sleep for the duration",
        &[("duration", "how long every sample has to show it in uninterruptible sleep"), SEVERITY],
        Settings { duration: seconds(120), severity: Severity::Critical, ..Settings::NONE },
    )
};

/// The fewest samples, if CPU seconds stood still; fewer may be chance.
const LEAST_SAMPLES: u64 = 3;
/// The fewest samples if CPU seconds are unknown.
const LEAST_SAMPLES_WITHOUT_CPU: u64 = 5;
/// After this many seconds in uninterruptible sleep, signals no longer reach a process.
const BEYOND_SIGNALS_SECONDS: f64 = 120.0;

/// Evidence that a process is blocked in the kernel.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct StuckEvidence {
    /// Process state as in /proc: `D`.
    pub state: char,
    /// Whether the first thread has exited, and another thread is in that state.
    pub of_a_thread: bool,
    /// Kernel function in which the process waits, if known.
    pub wchan: Option<Arc<str>>,
    /// Number of consecutive samples in which the condition held.
    pub samples: u64,
}

impl KindEvidence for StuckEvidence {
    fn words(&self) -> String {
        let wchan = self.wchan.as_ref().map_or_else(String::new, |it| format!(", in {it}"));
        format!("blocked in the kernel ({}{wchan}) in all {}", self.state, samples(self.samples))
    }
}

fn process(it: ProcessInput<'_>, verdicts: &mut RuleOutput) {
    let Some(('D', streak)) = it.known.state() else {
        return;
    };
    let Some((settings, gpus)) = held(it, |_, row| row.used_bytes() != Some(0)) else {
        return;
    };
    let streak = while_still(streak, it.known);
    let needed = settings.duration.seconds();
    let least_samples = match it.known.still_since() {
        Some(_) => LEAST_SAMPLES,
        None => LEAST_SAMPLES_WITHOUT_CPU,
    };
    if streak.seconds() < needed || streak.samples < least_samples {
        wait((it.seen, it.process.pid), gpus[0].index, &streak, needed, verdicts);
        return;
    }
    let process = it.process;
    let of_a_thread = process.has_threads_left();
    let what = match of_a_thread {
        true => "has exited except for one thread, which has been",
        false => "has been",
    };
    let message = format!(
        "{} holds {} and {what} in uninterruptible sleep for {}: no signal reaches it",
        it.name(),
        subject::held(&gpus),
        Span::from_seconds(streak.seconds()),
    );
    let parts = FindingParts {
        severity: settings.severity,
        gpus,
        since: streak.since,
        until: streak.until,
        evidence: Evidence::new(StuckEvidence {
            state: 'D',
            of_a_thread,
            wchan: process.wchan.clone(),
            samples: streak.samples,
        }),
        message,
        advice: advice(process),
    };
    verdicts.find(it.seen.finding(Some(process), parts));
}

/// The part of the time in `D` in which its CPU seconds stood still, if they are known.
fn while_still(streak: Streak, known: &ProcessHistory) -> Streak {
    match known.still_since() {
        // Its first sample in `D` still has the CPU seconds used before it.
        Some(since) if since > streak.since => Streak { since, began: Began::Witnessed, ..streak },
        _ => streak,
    }
}

/// Whether no signal reaches a process: it is dead, or has been in uninterruptible sleep for long.
pub(super) fn is_beyond_signals(seen: RuleInput<'_>, known: &ProcessHistory) -> bool {
    known.state().is_some_and(|(state, streak)| match state {
        'Z' | 'X' => true,
        'D' => seen.snapshot.time.seconds_since(streak.since) >= BEYOND_SIGNALS_SECONDS,
        _ => false,
    })
}

/// What ends a wait, by prefix of the kernel function's name.
const WAITS: [(&str, &str); 4] =
    [("fuse_", FUSE), ("request_wait_answer", FUSE), ("nfs", NFS), ("rpc_", NFS)];

const FUSE: &str = "its file system's FUSE server does not answer: end that server, or abort its connection as root, \
    `echo 1 > /sys/fs/fuse/connections/N/abort` (N is the mount's minor device number in /proc/self/mountinfo)";
const NFS: &str =
    "its NFS server does not answer: restore it, or unmount by force as root, `umount -f MOUNT`";

fn advice(process: &Process) -> Vec<String> {
    let pid = process.pid;
    let known = process.wchan.as_deref().and_then(|wchan| {
        WAITS.iter().find(|(start, _)| wchan.starts_with(start)).map(|(_, line)| (*line).to_owned())
    });
    let threads = "see what its threads wait for, as root: ";
    let seen = format!("{threads}`ps -L -o tid,stat,wchan:32,comm -p {pid}`");
    let signals =
        "a kill takes effect only when the kernel releases it; do not wait for it in a script";
    let driver = "look for driver errors: `dmesg | grep -i -e xid -e nvrm`; if it waits for a \
    file system (fuse, nfs), repair the server of that file system; if nothing else helps, reboot";
    let last = match &known {
        Some(_) => None,
        None => Some(driver.to_owned()),
    };
    [Some(known.unwrap_or(seen)), Some(signals.to_owned()), last].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
