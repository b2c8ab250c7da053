//! Opens the source of samples, and reads samples until the caller has enough.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Context as _;

use super::args::{Global, Recorded};
use super::exit::UsageError;
use super::output::warn;
use super::store;
use crate::host;
use crate::model::{Finding, Gpu, Snapshot, Time};
use crate::source::Source as _;
use crate::source::live::Live;
use crate::source::nvml;
use crate::source::replay::Replay;
use crate::units::Span;

pub(super) fn nvml_options(global: &Global) -> anyhow::Result<nvml::NvmlOptions> {
    if global.nvml_timeout.0.is_zero() {
        return Err(
            UsageError("--nvml-timeout must be longer than 0, for example 2s".to_owned()).into()
        );
    }
    Ok(nvml::NvmlOptions { library: global.nvml_library.clone(), timeout: global.nvml_timeout.0 })
}

pub(super) fn recorded(recorded: &Recorded) -> anyhow::Result<Option<Replay>> {
    Ok(match (&recorded.replay, recorded.demo) {
        (Some(path), _) => Some(Replay::open(path)?),
        (None, true) => Some(Replay::demo()?),
        (None, false) => None,
    })
}

/// Returns the options for sampling this machine. Fails if a duration is 0 or `GPUMEM_CLAIM_DIR` is not absolute.
pub(super) fn live_options(
    global: &Global,
    interval: Duration,
) -> anyhow::Result<nvml::NvmlOptions> {
    if interval.is_zero() {
        return Err(
            UsageError("--interval must be longer than 0, for example 1s".to_owned()).into()
        );
    }
    if !host::is_claim_folder_valid() {
        let why = "GPUMEM_CLAIM_DIR must be an absolute path; correct or unset it (gpumem man run)";
        return Err(UsageError(why.to_owned()).into());
    }
    nvml_options(global)
}

pub(super) fn live(global: &Global, interval: Duration) -> anyhow::Result<Live> {
    let live = Live::open(live_options(global, interval)?, interval)?;
    let (mut releases, parks) = (store::release_log(), store::park_journals());
    let shown = parks.clone();
    let mark = move |snapshot: &mut Snapshot| {
        releases.iter_mut().for_each(|log| log.mark(snapshot));
        parks.mark(snapshot);
    };
    Ok(live.marked_by(move || shown.parked_pids(), mark))
}

/// Returns whether the snapshot contains no GPU, a stale GPU, or a GPU whose processes are unknown.
pub(super) fn unreadable(snapshot: &Snapshot) -> bool {
    let is_unreadable = |gpu: &Gpu| gpu.processes.is_none() || gpu.stale_seconds.is_some();
    snapshot.gpus.is_empty() || snapshot.gpus.iter().any(is_unreadable)
}

/// Warns about damaged lines in a recording.
pub(super) fn warn_of_damage(replay: &Replay) {
    const SHOWN: usize = 3;
    for damage in replay.damage().iter().take(SHOWN) {
        warn(&format!("{}: {damage}", replay.name()));
    }
    let more = replay.damage_count().saturating_sub(SHOWN as u64);
    if more > 0 {
        warn(&format!("{}: {more} more damaged lines were skipped", replay.name()));
    }
}

pub(super) fn play(
    replay: &mut Replay,
    mut handle: impl FnMut(Snapshot) -> ControlFlow<()>,
) -> anyhow::Result<()> {
    while let Some(snapshot) = replay.next()? {
        if handle(snapshot).is_break() {
            break;
        }
    }
    Ok(())
}

/// Plays a recording until the end, and warns about damaged lines.
pub(super) fn play_all(mut replay: Replay, mut handle: impl FnMut(Snapshot)) -> anyhow::Result<()> {
    play(&mut replay, |snapshot| {
        handle(snapshot);
        ControlFlow::Continue(())
    })?;
    warn_of_damage(&replay);
    Ok(())
}

pub(super) fn last(replay: Replay, mut handle: impl FnMut(&Snapshot)) -> anyhow::Result<Snapshot> {
    let mut last = None;
    play_all(replay, |snapshot| {
        handle(&snapshot);
        last = Some(snapshot);
    })?;
    last.context("the recording contains no snapshot")
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SampleWindow {
    pub(super) interval: Duration,
    /// Time between the first and the last sample.
    pub(super) length: Span,
    /// `true` if the window starts when the first sample is complete, so that a slow GPU does not shorten the window.
    /// `false` if the window starts at the timestamp of the first sample.
    pub(super) begins_answered: bool,
}

pub(super) fn sample(
    live: &mut Live,
    window: SampleWindow,
    mut handle: impl FnMut(Snapshot) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    let mut begun: Option<Time> = None;
    while let Some(snapshot) = live.next()? {
        let time = snapshot.time;
        let begun = *begun.get_or_insert_with(|| match window.begins_answered {
            true => live.now(),
            false => time,
        });
        let has_enough = handle(snapshot)?.is_break();
        let seconds = time.seconds_since(begun);
        // Stop if the next sample would be further from the end of the window than this sample.
        let is_last = seconds + window.interval.as_secs_f64() / 2.0 >= window.length.seconds();
        if has_enough || is_last {
            break;
        }
    }
    Ok(())
}

/// Warns that commands from a recording are valid only on the recorded machine at the recorded time.
pub(super) fn warn_of_recorded(recorded: &Recorded, findings: &[Finding]) {
    if recorded.replay.is_some() && findings.iter().any(|finding| !finding.commands.is_empty()) {
        warn(
            "the commands are valid only on the recorded machine at that time; a pid may now belong to \
            another process",
        );
    }
}
