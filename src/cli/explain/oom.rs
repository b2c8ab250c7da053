//! `gpumem explain --oom`: shows which processes held GPU memory at a point in time, from a recording or the store.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Context as _;

use super::{PageStyle, SampledHistory, print_page};
use crate::cli::args::{Explain, Global};
use crate::cli::devices::{VISIBLE, callers_visible, visible as visible_devices};
use crate::cli::exit::Exit;
use crate::cli::selection::{is_gpu_named, no_such_gpu};
use crate::cli::{UsageError, config, live, recorded, session, store, warn_of_damage};
use crate::explain::{Shortage, out_of_memory};
use crate::model::time::{TypedTime, parse_typed};
use crate::model::{Gpu, Snapshot, Time};
use crate::reclaim::commands::CommandSource;
use crate::source::Source as _;
use crate::units::Span;

/// If the last sample precedes the time in `--at` by more than this, the page states the difference.
const OLD_SECONDS: f64 = 30.0;

pub(super) fn run(args: &Explain, global: &Global, page_style: PageStyle) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let source = CommandSource::new(&config.rules, args.recorded.is_live());
    let interval = config.sample.interval.0;
    let mut history = SampledHistory::new(config.rules);
    let at = observe(&mut history, args, global, interval)?;
    let page = history.page(&source, |_, known_so_far| {
        let is_requested =
            |gpu: &&Gpu| args.gpu.as_deref().is_none_or(|typed| is_gpu_named(typed, gpu));
        let mut gpus: Vec<u32> =
            known_so_far.last.gpus.iter().filter(is_requested).map(|gpu| gpu.index).collect();
        if let (Some(typed), true) = (&args.gpu, gpus.is_empty()) {
            return Err(no_such_gpu(&format!("--gpu {typed}"), &known_so_far.last.gpus).into());
        }
        // If GPU models differ, CUDA's device numbers cannot be mapped to GPUs. In this case, keep every GPU.
        let visible = callers_visible().filter(|_| args.gpu.is_none() && args.recorded.is_live());
        if let Ok(devices) = visible_devices(&known_so_far.last.gpus, visible.as_deref()) {
            gpus.retain(|index| devices.iter().any(|device| device.gpu.index == *index));
        }
        if let (Some(value), true) = (visible, gpus.is_empty()) {
            let why = format!("{VISIBLE}={value} names no GPU of this machine; use --gpu");
            return Err(UsageError(why).into());
        }
        let asked_bytes = args.asked.map(|asked| asked.0);
        let shortage = Shortage { gpus: &gpus, asked_bytes };
        let mut page = out_of_memory(known_so_far, &shortage);
        let age_seconds = at.map_or(0.0, |at| at.seconds_since(known_so_far.last.time));
        if age_seconds > OLD_SECONDS {
            let age = Span::from_seconds(age_seconds);
            page.notes.push(format!("the last sample before that time is {age} older"));
        }
        Ok(page)
    })?;
    print_page(&page, args.json, page_style)?;
    Ok(if page.gpu.is_some() { Exit::Clean } else { Exit::CannotMeasure })
}

/// Reads the history up to the time in `--at`, or to the end. Returns the time in `--at`, or `None` if the end was
/// requested or the recording is empty.
fn observe(
    history: &mut SampledHistory,
    args: &Explain,
    global: &Global,
    interval: Duration,
) -> anyhow::Result<Option<Time>> {
    let typed = |shown: Time, now: Option<Time>| -> Result<Option<Time>, UsageError> {
        let Some(text) = args.at.as_deref() else { return Ok(None) };
        match parse_typed(text, shown, now) {
            Ok(TypedTime::At(time)) => Ok(Some(time)),
            Ok(TypedTime::Start) => Ok(Some(shown)),
            Ok(TypedTime::End) => Ok(None),
            Err(why) => Err(UsageError(format!("--at {text}: {why}"))),
        }
    };
    if let Some(mut replay) = recorded(&args.recorded)? {
        let Some(first) = replay.next()? else { return Ok(None) };
        let at = typed(first.time, None)?;
        let is_later = |snapshot: &Snapshot| at.is_some_and(|at| snapshot.time > at);
        if is_later(&first) {
            let begins = first.time.local();
            let why = format!("--at is before the recording, which begins at {begins}");
            return Err(UsageError(why).into());
        }
        history.observe(first);
        session::play(&mut replay, |snapshot| {
            if is_later(&snapshot) {
                return ControlFlow::Break(());
            }
            history.observe(snapshot);
            ControlFlow::Continue(())
        })?;
        warn_of_damage(&replay);
        return Ok(at);
    }
    let mut live = live(global, interval)?;
    history.is_live = true;
    let now = live.now();
    let at = typed(now, Some(now))?;
    let ask =
        store::Ask { until: at, ..store::Ask::new(global, args.stored, store::MOST_FOR_CHECK) };
    let SampledHistory { engine, all_series, last, .. } = history;
    store::feed_each(engine, &live, ask, |engine, snapshot| {
        all_series.follow(engine.history(), snapshot);
        *last = at.map(|_| snapshot.clone());
    })?;
    match at {
        None => history.observe(live.sample()),
        Some(at) => {
            let why = || {
                format!(
                    "no history of this boot before {} is stored; run `gpumem record --store` to store history",
                    at.local()
                )
            };
            history.last.as_ref().with_context(why)?;
        }
    }
    Ok(at)
}
