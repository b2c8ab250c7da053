//! Waiting for GPUs and choosing among them, before the command starts.
//!
//! A GPU is ready when enough memory is free (as in `check --wait-free`) and no other run has claimed it. Each GPU has
//! a queue. A run that claims GPUs first waits in the queues, so that earlier runs choose first. It leaves the queues
//! once it has its GPUs.

use std::cmp::Reverse;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fd::OwnedFd;

use crate::cli::args::{Global, RunArgs, Stored};
use crate::cli::exit::UsageError;
use crate::cli::output::{terminal_width_of_errors, warn};
use crate::cli::selection::{names, no_such_gpu};
use crate::cli::store;
use crate::host::{CannotClaim, Claims};
use crate::model::process_name::name_of;
use crate::model::{Gpu, GpuProcess, Snapshot};
use crate::report::escape::escape;
use crate::report::wrap::fit;
use crate::rules::{Engine, RuleSet};
use crate::source::live::Live;
use crate::units::{Bytes, Span, number_of};

/// The variable that limits which GPUs a program sees.
pub(super) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Interval between messages about waiting, without a terminal.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// The most processes of a GPU that the line names.
const HOLDERS: usize = 2;
/// The most columns of their names.
const NAME_COLUMNS: usize = 16;

/// How soon a free queue is noticed.
const AT_ONCE: Duration = Duration::from_millis(50);

/// The places in the queues of GPUs.
type Places = Result<Vec<OwnedFd>, CannotClaim>;

/// A chosen GPU, with its claim if it is claimed.
type Taken<'a> = (&'a Gpu, Option<OwnedFd>);

/// The chosen GPUs.
#[derive(Debug)]
pub(super) struct Chosen {
    /// The value of [`VISIBLE`].
    pub(super) visible: String,
    /// The claims on them.
    pub(super) locks: Vec<OwnedFd>,
    pub(super) waited: Duration,
}

/// Whether GPUs have to be chosen.
pub(super) fn is_asked(args: &RunArgs) -> bool {
    args.gpus.is_some() || !args.gpu.is_empty() || args.wait_free.is_some() || args.claim
}

/// Waits until as many GPUs are ready as are asked for; `None` where they were not in time.
///
/// # Errors
///
/// Where there are not so many, whatever happens, or they cannot be claimed.
pub(super) fn choose(
    args: &RunArgs,
    global: &Global,
    live: &mut Live,
    (rules, interval): (RuleSet, Duration),
) -> anyhow::Result<Option<Chosen>> {
    let begun = Instant::now();
    let mut snapshot = live.sample();
    let (set, count) = candidates(args, &snapshot)?;
    let is_in_set = |gpu: &&Gpu| set.contains(&gpu.index);
    let claims = Claims::of_machine();
    let first: Vec<Gpu> = snapshot.gpus.iter().filter(is_in_set).cloned().collect();
    let queue = args.claim.then(|| wait_in_line(claims.clone(), first)).transpose()?;
    // Usually the queue is empty.
    let mut places = None;
    if let Some(queue) = &queue {
        places = place(queue, AT_ONCE)?;
    }
    let mut waiting: Option<Waiting> = None;
    loop {
        let is_first = queue.is_none() || places.is_some();
        let mut ready: Vec<&Gpu> = snapshot.gpus.iter().filter(is_in_set).collect();
        ready.retain(|gpu| gpu.claim.is_none() && has_free(gpu, args));
        ready.sort_by_key(|gpu| (Reverse(gpu.free_bytes()), gpu.index));
        if is_first && let Some(locks) = take(&ready, count, args.claim.then_some(&claims))? {
            let (mut chosen, locks): (Vec<&Gpu>, Vec<Option<OwnedFd>>) = locks.into_iter().unzip();
            chosen.sort_by_key(|gpu| gpu.index);
            let uuids: Option<Vec<&str>> = chosen.iter().map(|gpu| gpu.uuid.as_deref()).collect();
            let visible = uuids.context("a GPU that was chosen has no UUID")?.join(",");
            let locks = locks.into_iter().flatten().collect();
            if let Some(waiting) = &waiting {
                waiting.finish();
            }
            return Ok(Some(Chosen { visible, locks, waited: begun.elapsed() }));
        }
        let waiting = match &mut waiting {
            Some(waiting) => waiting,
            none => none.insert(Waiting::new(args, global, live, rules.clone())?),
        };
        waiting.engine.observe(&snapshot);
        waiting.say(&snapshot, &set, (begun.elapsed(), count), is_first);
        if begun.elapsed() >= args.timeout.0 {
            waiting.finish();
            return Ok(None);
        }
        let pause = interval.min(args.timeout.0.saturating_sub(begun.elapsed()));
        match &queue {
            Some(queue) if places.is_none() => places = place(queue, pause)?,
            _ => thread::sleep(pause),
        }
        snapshot = live.sample();
    }
}

/// Takes this many GPUs, or none; claims them if requested.
fn take<'a>(
    ready: &[&'a Gpu],
    count: usize,
    claims: Option<&Claims>,
) -> Result<Option<Vec<Taken<'a>>>, CannotClaim> {
    let mut taken = Vec::new();
    for &gpu in ready {
        if taken.len() == count {
            break;
        }
        match claims.map(|claims| claims.claim(gpu)).transpose()? {
            // Somebody has claimed it since it was looked at.
            Some(None) => {}
            Some(lock) => taken.push((gpu, lock)),
            None => taken.push((gpu, None)),
        }
    }
    Ok((taken.len() == count).then_some(taken))
}

/// The places in the queues, if obtained in time.
fn place(queue: &Receiver<Places>, patience: Duration) -> anyhow::Result<Option<Vec<OwnedFd>>> {
    match queue.recv_timeout(patience) {
        Ok(places) => Ok(Some(places?)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => {
            anyhow::bail!("the thread that waits in line ended")
        }
    }
}

/// Queues for these GPUs, in the order of their indices, as every gpumem does; the places arrive once
/// all are obtained.
fn wait_in_line(claims: Claims, gpus: Vec<Gpu>) -> anyhow::Result<Receiver<Places>> {
    let (had, had_here) = channel();
    let wait = move || {
        let _ = had.send(gpus.iter().map(|gpu| claims.wait_in_queue(gpu)).collect());
    };
    let spawned = thread::Builder::new().name("queue".to_owned()).spawn(wait);
    spawned.context("cannot start a thread that waits in line")?;
    Ok(had_here)
}

fn has_free(gpu: &Gpu, args: &RunArgs) -> bool {
    let free = gpu.free_bytes().filter(|_| gpu.stale_seconds.is_none());
    match args.wait_free {
        Some(wanted) => free.is_some_and(|free| free >= wanted.0),
        None => gpu.processes.is_some() && gpu.stale_seconds.is_none(),
    }
}

/// The indices of candidate GPUs (the named ones, or all, among those that the caller sees), and how many are wanted.
fn candidates(args: &RunArgs, snapshot: &Snapshot) -> anyhow::Result<(Vec<u32>, usize)> {
    let gpus = &snapshot.gpus;
    let mut set: Vec<&Gpu> = visible(gpus, std::env::var(VISIBLE).ok().as_deref())?;
    if !args.gpu.is_empty() {
        for wanted in &args.gpu {
            if !set.iter().any(|gpu| names(wanted, gpu)) {
                let seen: Vec<Gpu> = set.into_iter().cloned().collect();
                return Err(no_such_gpu(&format!("--gpu {wanted}"), &seen).into());
            }
        }
        set.retain(|gpu| args.gpu.iter().any(|wanted| names(wanted, gpu)));
    }
    if let Some(divided) = set.iter().find(|gpu| gpu.mig_mode == Some(true) && !args.gpu.is_empty())
    {
        return Err(UsageError(format!(
            "--gpu {}: it is divided by MIG, and gpumem does not choose among MIG devices; set \
            {VISIBLE} to one of them",
            divided.index
        ))
        .into());
    }
    let count = if args.gpu.is_empty() { args.gpus.unwrap_or(1) as usize } else { set.len() };
    set.retain(|gpu| gpu.mig_mode != Some(true));
    if let Some(wanted) = args.wait_free {
        // What is not known may be enough.
        let total = |gpu: &Gpu| gpu.memory.map_or(u64::MAX, |memory| memory.total_bytes);
        set.retain(|gpu| total(gpu) >= wanted.0);
    }
    if set.len() < count {
        let of_size = args.wait_free.map_or_else(String::new, |size| format!(" of {size} or more"));
        return Err(UsageError(format!(
            "asked for {}{of_size}, and there are {} to choose from",
            number_of(count, "GPU"),
            set.len()
        ))
        .into());
    }
    Ok((set.into_iter().map(|gpu| gpu.index).collect(), count))
}

/// The GPUs that a value of [`VISIBLE`] allows, as CUDA reads it: up to the first invalid entry.
pub(super) fn visible<'a>(
    gpus: &'a [Gpu],
    value: Option<&str>,
) -> Result<Vec<&'a Gpu>, UsageError> {
    let Some(value) = value else { return Ok(gpus.iter().collect()) };
    // CUDA counts the fastest first, unless it is told to count as NVML does.
    let is_by_bus = std::env::var_os("CUDA_DEVICE_ORDER").is_some_and(|it| it == "PCI_BUS_ID");
    let is_same = gpus.iter().all(|gpu| gpu.name == gpus[0].name);
    let mut found: Vec<&Gpu> = Vec::new();
    for word in value.split(',').map(str::trim) {
        if word.starts_with("MIG-") {
            return Err(UsageError(format!(
                "{VISIBLE} names {word}: gpumem does not choose among parts of a GPU; leave out \
                --gpus, --gpu, --wait-free and --claim"
            )));
        }
        let is_number = word.parse::<u32>().is_ok();
        if is_number && !is_by_bus && !is_same {
            return Err(UsageError(format!(
                "{VISIBLE}={value}: with different GPUs a number is CUDA's and not NVML's; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID"
            )));
        }
        let gpu =
            gpus.iter().find(|gpu| (is_number || word.starts_with("GPU-")) && names(word, gpu));
        match gpu {
            Some(gpu) if !found.iter().any(|it| it.index == gpu.index) => found.push(gpu),
            _ => break,
        }
    }
    Ok(found)
}

/// The messages while waiting.
#[derive(Debug)]
struct Waiting {
    engine: Engine,
    what: String,
    timeout: Span,
    is_quiet: bool,
    said: Option<Instant>,
}

impl Waiting {
    fn new(args: &RunArgs, global: &Global, live: &Live, rules: RuleSet) -> anyhow::Result<Self> {
        let mut engine = Engine::new(rules);
        let ask = store::Ask::new(global, Stored::default(), store::MOST_FOR_CHECK);
        // Who looks unused is known from the stored history at once.
        store::feed(&mut engine, live, store::Ask { quiet: true, ..ask })?;
        let free = args.wait_free.map_or_else(String::new, |size| format!(" with {size} free"));
        Ok(Self { engine, what: free, timeout: args.timeout, is_quiet: args.quiet, said: None })
    }

    /// Shows one line: updated in place on a terminal, otherwise printed once a minute.
    fn say(
        &mut self,
        snapshot: &Snapshot,
        set: &[u32],
        (waited, count): (Duration, usize),
        is_first: bool,
    ) {
        let is_terminal = io::stderr().is_terminal();
        let is_due = self.said.is_none_or(|said| is_terminal || said.elapsed() >= SAID_EVERY);
        if self.is_quiet || !is_due {
            return;
        }
        self.said = Some(Instant::now());
        let line = if is_first { "" } else { " in line" };
        let waited = Span(Duration::from_secs(waited.as_secs()));
        let mut text = format!("waiting{line}, {waited} of {}", self.timeout);
        let mut gpus: Vec<&Gpu> =
            snapshot.gpus.iter().filter(|gpu| set.contains(&gpu.index)).collect();
        // A terminal may have room for the first of them only.
        gpus.sort_by_key(|gpu| Reverse(gpu.free_bytes()));
        for gpu in gpus {
            text.push_str(&format!("; {}", self.about(gpu, snapshot)));
        }
        let gpus = if count == 1 { "a GPU".to_owned() } else { format!("{count} GPUs") };
        text.push_str(&format!("; for {gpus}{}", self.what));
        match terminal_width_of_errors() {
            Some(width) => {
                let text = format!("gpumem: {}", escape(&text));
                let _ = write!(io::stderr(), "\r{}\x1b[K", fit(&text, width.saturating_sub(1)));
            }
            None => warn(&text),
        }
    }

    /// Free memory of a GPU, and who holds the rest, unused-looking processes first.
    fn about(&self, gpu: &Gpu, snapshot: &Snapshot) -> String {
        let free = gpu.free_bytes().map_or("unknown".to_owned(), |free| Bytes(free).to_string());
        let mut text = format!("GPU {}: {free} free", gpu.index);
        if let Some(claim) = &gpu.claim {
            text.push_str(&format!(", {claim}"));
        }
        let mut rows: Vec<&GpuProcess> = gpu.processes.iter().flatten().collect();
        rows.sort_by_key(|row| (!self.is_unused(row.pid), Reverse(row.used_bytes)));
        for row in rows.iter().take(HOLDERS) {
            let process = snapshot.process(row.pid);
            let user = process.and_then(|it| it.user.as_deref()).unwrap_or("?");
            let name = process.map_or_else(String::new, name_of);
            let name = fit(&name, NAME_COLUMNS);
            let bytes = row.used_bytes.map_or("?".to_owned(), |bytes| Bytes(bytes).to_string());
            let unused = if self.is_unused(row.pid) { ", looks unused" } else { "" };
            text.push_str(&format!(", {bytes} {user}'s {name} ({}){unused}", row.pid));
        }
        text
    }

    /// Whether a finding or suspect says that a process does not use its memory.
    fn is_unused(&self, pid: u32) -> bool {
        let found = self.engine.findings().iter();
        let found = found.filter_map(|it| Some((it.kind, it.process.as_ref()?.pid)));
        let suspected = self.engine.suspects().iter().map(|it| (it.kind, it.process.pid));
        found.chain(suspected).any(|(kind, of)| of == pid && kind.is_unused())
    }

    /// Ends the terminal's line.
    fn finish(&self) {
        if self.said.is_some() && io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_gpus_are_those_to_choose_from() {
        let gpu = |index: u32, name: &str| Gpu {
            index,
            uuid: Some(format!("GPU-{index}a").into()),
            name: Some(name.into()),
            ..Gpu::default()
        };
        let same = [gpu(0, "H100"), gpu(1, "H100"), gpu(2, "H100")];
        for (value, indices) in [
            (None, &[0_u32, 1, 2] as &[u32]),
            (Some("2,0"), &[2, 0]),
            (Some("GPU-1"), &[1]),
            (Some("1,7,0"), &[1]),
            (Some("1,1,0"), &[1]),
            (Some(""), &[]),
            (Some("-1"), &[]),
            (Some("all"), &[]),
        ] {
            let found = visible(&same, value).unwrap();
            assert_eq!(found.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), indices, "{value:?}");
        }
        let different = [gpu(0, "T4"), gpu(1, "H100")];
        assert!(visible(&different, Some("0")).is_err());
        assert_eq!(visible(&different, Some("GPU-1a")).unwrap()[0].index, 1);
        assert!(visible(&same, Some("MIG-1")).is_err());
    }
}
