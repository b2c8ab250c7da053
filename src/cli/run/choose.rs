//! Chooses the GPUs of `gpumem run`, and waits until enough GPUs are ready.
//!
//! A GPU is ready if no other run has claimed it or waits in its queue, and new programs can use it. If an amount of
//! memory was requested, the GPU must have that amount free. Otherwise, no other user's process may use the GPU unless
//! `--allow-others` is given. With `--claim`, a run waits in a queue for each GPU, so that earlier runs choose first.

use std::cmp::Reverse;
use std::io::{self, IsTerminal as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fd::OwnedFd;

use crate::cli::args::{Global, RunArgs, Stored};
use crate::cli::devices::{callers_visible, no_such_device, visible as visible_devices};
use crate::cli::exit::UsageError;
use crate::cli::output::{terminal_width_of_errors, warn};
use crate::cli::store;
use crate::host::{CannotClaim, Claims, Roots, descends_from, find_heirs, read_all};
use crate::model::compute_device::DeviceKey;
use crate::model::process_name::name_of;
use crate::model::snapshot::{Claim, ProcessType};
use crate::model::{ComputeDevice, Gpu, GpuProcess, Snapshot};
use crate::report::escape::{escape, fit};
use crate::rules::{Engine, RuleSet};
use crate::source::live::Live;
use crate::units::{Bytes, Span, number_of};

/// Interval between progress messages if standard error is not a terminal.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of processes that a progress message lists per GPU.
const HOLDERS: usize = 2;
const NAME_COLUMNS: usize = 16;

type ClaimedDevice<'a> = (ComputeDevice<'a>, Option<OwnedFd>);

#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) visible: String,
    pub(super) locks: Vec<OwnedFd>,
    pub(super) waited: Duration,
    claimed: Vec<Gpu>,
}

impl Chosen {
    /// Warns about processes that outlive the command and keep a claim that they have inherited.
    pub(super) fn warn_about_heirs(&self) {
        let roots = Roots::default();
        let all = read_all(&roots).unwrap_or_default().into_iter().map(|process| process.pid);
        let ours = |pid: &u32| descends_from(&roots, *pid, std::process::id());
        let pids: Vec<u32> = all.filter(ours).collect();
        for gpu in &self.claimed {
            let heirs = find_heirs(&roots, gpu, &pids);
            let heir = |heir: &Claim| {
                let program = heir.program.as_deref().unwrap_or("gpumem");
                format!("{} ({})", escape(program), heir.pid.unwrap_or_default())
            };
            let heirs: Vec<String> = heirs.iter().map(heir).collect();
            if !heirs.is_empty() {
                let heirs = heirs.join(", ");
                warn(&format!(
                    "GPU {} stays claimed until these processes exit: {heirs}",
                    gpu.index
                ));
            }
        }
    }
}

pub(super) fn is_asked(args: &RunArgs) -> bool {
    args.gpus.is_some() || !args.gpu.is_empty() || args.wait_free.is_some() || args.claim
}

/// Waits until enough GPUs are ready. Returns `None` after a timeout. Fails if too few GPUs are suitable or can be
/// claimed.
pub(super) fn choose(
    args: &RunArgs,
    global: &Global,
    live: &mut Live,
    (rules, interval): (RuleSet, Duration),
) -> anyhow::Result<Option<Chosen>> {
    let begun = Instant::now();
    let mut snapshot = live.sample();
    let (mut set, count) = candidates(args, &snapshot, callers_visible().as_deref())?;
    let inherited = live.nest_claims(&mut snapshot.gpus);
    if !inherited.is_empty() {
        set.retain(|key| inherited.contains(&key.0));
        if set.len() < count {
            return Err(UsageError(format!(
                "requested {}, but only {} of the GPUs belong to the claim that this run is nested in",
                number_of(count, "GPU"),
                set.len()
            ))
            .into());
        }
    }
    if args.claim {
        set = enter_queues(&set, count, &snapshot, (live.claims(), args.quiet))?;
        live.mark_claims(&mut snapshot.gpus);
    }
    let mut waiting: Option<Waiting<'_>> = None;
    loop {
        let mut ready: Vec<ComputeDevice<'_>> = in_set(&set, &snapshot).collect();
        ready.retain(|device| is_ready(device, args, &snapshot));
        ready.sort_by_key(|device| Reverse(device.free_bytes()));
        if let Some(locks) = take(&ready, count, args.claim.then(|| live.claims()))? {
            let (chosen, locks): (Vec<ComputeDevice<'_>>, Vec<Option<OwnedFd>>) =
                locks.into_iter().unzip();
            // CUDA numbers the devices in the order of CUDA_VISIBLE_DEVICES.
            let named = in_set(&set, &snapshot).filter(|device| chosen.contains(device));
            let uuids: Option<Vec<&str>> = named.map(|device| Some(&**device.uuid()?)).collect();
            let visible = uuids.context("a chosen GPU has no UUID")?.join(",");
            let locks = locks.into_iter().flatten().collect();
            live.claims().leave_queues();
            if let Some(waiting) = &waiting {
                waiting.finish();
            }
            let is_held = |device: &&ComputeDevice<'_>| computing(device).next().is_some();
            for device in chosen.iter().filter(is_held) {
                if args.wait_free.is_none() && !args.quiet {
                    warn(&format!("in use: {}", describe_device(device, &snapshot, |_| None)));
                }
            }
            let claimed = chosen.iter().filter(|_| args.claim).map(|device| device.gpu.clone());
            let claimed = claimed.collect();
            return Ok(Some(Chosen { visible, locks, waited: begun.elapsed(), claimed }));
        }
        // Other processes may have locked a GPU since the sample.
        live.mark_claims(&mut snapshot.gpus);
        let waiting = match &mut waiting {
            Some(waiting) => waiting,
            none => none.insert(Waiting::new(args, global, live, rules.clone())?),
        };
        waiting.engine.observe(&snapshot);
        waiting.show_progress(&snapshot, &set, (begun.elapsed(), count));
        if begun.elapsed() >= args.timeout.0 {
            waiting.finish();
            return Ok(None);
        }
        let pause = interval.min(args.timeout.0.saturating_sub(begun.elapsed()));
        if args.claim {
            live.claims().wait_in_queues(pause);
        } else {
            thread::sleep(pause);
        }
        snapshot = live.sample();
    }
}

/// Enters the queues of the GPUs. Omits GPUs that cannot be claimed, such as a lost GPU, whose bus address is unknown.
/// Fails if fewer than `count` GPUs can be claimed.
fn enter_queues(
    set: &[DeviceKey],
    count: usize,
    snapshot: &Snapshot,
    (claims, is_quiet): (&mut Claims, bool),
) -> Result<Vec<DeviceKey>, CannotClaim> {
    let mut kept = Vec::new();
    let mut errors = Vec::new();
    for device in in_set(set, snapshot) {
        match claims.enter_queue(device.gpu) {
            Ok(()) => kept.push(device.key()),
            Err(error) => errors.push(error),
        }
    }
    if kept.len() < count && !errors.is_empty() {
        return Err(errors.swap_remove(0));
    }
    for error in errors.iter().filter(|_| !is_quiet) {
        warn(&format!("skipped: {error}"));
    }
    Ok(kept)
}

/// Takes the first `count` GPUs, and claims them if requested. Returns `None` if fewer are ready.
fn take<'a>(
    ready: &[ComputeDevice<'a>],
    count: usize,
    mut claims: Option<&mut Claims>,
) -> Result<Option<Vec<ClaimedDevice<'a>>>, CannotClaim> {
    let mut taken = Vec::new();
    for &device in ready {
        if taken.len() == count {
            break;
        }
        match claims.as_mut().map(|claims| claims.claim(device.gpu)).transpose()? {
            // Another run has claimed the GPU since the snapshot was taken.
            Some(None) => {}
            Some(lock) => taken.push((device, lock)),
            None => taken.push((device, None)),
        }
    }
    Ok((taken.len() == count).then_some(taken))
}

/// Returns the processes on the device, without graphics-only processes.
fn computing<'a>(device: &ComputeDevice<'a>) -> impl Iterator<Item = &'a GpuProcess> {
    let rows = device.processes().into_iter().flatten();
    rows.filter(|row| row.kind != ProcessType::Graphics)
}

/// Returns whether a process belongs to another user or to an unknown user. The MPS server is excluded, because it
/// serves all users.
fn is_of_others(row: &GpuProcess, snapshot: &Snapshot) -> bool {
    snapshot.process(row.pid).is_none_or(|process| {
        process.uid != Some(rustix::process::geteuid().as_raw())
            && process.mps_role(Some(row)) != Some("server")
    })
}

fn is_ready(device: &ComputeDevice<'_>, args: &RunArgs, snapshot: &Snapshot) -> bool {
    let is_enough = match args.wait_free {
        Some(wanted) => device.free_bytes().is_some_and(|free| free >= wanted.0),
        None => {
            device.gpu.processes.is_some()
                && device.gpu.stale_seconds.is_none()
                && (args.allow_others || !computing(device).any(|row| is_of_others(row, snapshot)))
        }
    };
    is_enough
        && device.gpu.queue.is_empty()
        && device.gpu.claim.is_none()
        && device.refusal().is_none()
}

/// Returns the devices of `set` that the snapshot contains, in the order of `set`.
fn in_set<'a>(
    set: &'a [DeviceKey],
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = ComputeDevice<'a>> {
    let devices = || snapshot.gpus.iter().flat_map(ComputeDevice::all_of);
    set.iter().filter_map(move |key| devices().find(|device| device.key() == *key))
}

/// Returns the devices to choose from, in the caller's order, and how many to choose. If `--gpu` is given, returns only
/// the named devices. Never returns devices that CUDA_VISIBLE_DEVICES hides.
fn candidates(
    args: &RunArgs,
    snapshot: &Snapshot,
    visible: Option<&str>,
) -> anyhow::Result<(Vec<DeviceKey>, usize)> {
    let mut set = visible_devices(&snapshot.gpus, visible)?;
    let is_partitioned = |set: &[ComputeDevice<'_>]| set.iter().any(|device| device.mig.is_some());
    if !args.gpu.is_empty() {
        let mut named: Vec<ComputeDevice<'_>> = Vec::new();
        for wanted in &args.gpu {
            let before = named.len();
            named.extend(set.iter().filter(|device| device.is_called(wanted)));
            if named.len() == before {
                return Err(
                    no_such_device(("--gpu ", wanted), &snapshot.gpus, &set, visible).into()
                );
            }
        }
        set.clear();
        for device in named {
            if !set.contains(&device) {
                set.push(device);
            }
        }
        let typed = args.gpu.join(",");
        if is_partitioned(&set) && args.claim {
            return Err(UsageError(format!(
                "--gpu {typed}: the GPU is in MIG mode, and --claim claims whole GPUs; leave out --claim"
            ))
            .into());
        }
        let is_one = args.gpu.len() == 1 && set.iter().all(|device| device.mig.is_some());
        if is_partitioned(&set) && !is_one {
            return Err(UsageError(format!(
                "--gpu {typed}: a program can use only one MIG device and no other GPU with it; name one"
            ))
            .into());
        }
    }
    // If a GPU is partitioned, `--gpu` with its name requests any one of its MIG devices.
    let is_whole = !args.gpu.is_empty() && !is_partitioned(&set);
    let count = if is_whole { set.len() } else { args.gpus.unwrap_or(1) as usize };
    set.retain(|device| device.mig.is_none() || (count == 1 && !args.claim));
    if let Some(wanted) = args.wait_free {
        // Keep devices with an unknown total, because they may be large enough.
        set.retain(|device| device.total_bytes().is_none_or(|total| total >= wanted.0));
    }
    if set.len() < count {
        let of_size = args.wait_free.map_or_else(String::new, |size| format!(" of {size} or more"));
        let visible = visible.map(|visible| format!(" (CUDA_VISIBLE_DEVICES={})", escape(visible)));
        return Err(UsageError(format!(
            "requested {}{of_size}, but only {} are available{}",
            number_of(count, "GPU"),
            set.len(),
            visible.unwrap_or_default()
        ))
        .into());
    }
    Ok((set.iter().map(ComputeDevice::key).collect(), count))
}

#[derive(Debug)]
struct Waiting<'a> {
    args: &'a RunArgs,
    engine: Engine,
    shown_at: Option<Instant>,
}

impl<'a> Waiting<'a> {
    fn new(
        args: &'a RunArgs,
        global: &Global,
        live: &Live,
        rules: RuleSet,
    ) -> anyhow::Result<Self> {
        let mut engine = Engine::new(rules);
        let ask = store::Ask::new(global, Stored::default(), store::MOST_FOR_CHECK);
        // The stored history lets the rules find unused processes without waiting.
        store::feed(&mut engine, live, store::Ask { quiet: true, ..ask })?;
        Ok(Self { args, engine, shown_at: None })
    }

    /// Shows a progress line. On a terminal, updates the line in place. Otherwise, prints a line once a minute.
    fn show_progress(
        &mut self,
        snapshot: &Snapshot,
        set: &[DeviceKey],
        (waited, count): (Duration, usize),
    ) {
        let is_terminal = io::stderr().is_terminal();
        let is_due = self
            .shown_at
            .is_none_or(|shown_at| is_terminal || shown_at.elapsed() >= MESSAGE_INTERVAL);
        if self.args.quiet || !is_due {
            return;
        }
        self.shown_at = Some(Instant::now());
        let waited = Span(Duration::from_secs(waited.as_secs()));
        let mut text = format!("waiting, {waited} of {}", self.args.timeout);
        let mut devices: Vec<ComputeDevice<'_>> = in_set(set, snapshot).collect();
        // List the devices with the most free memory first, because the terminal may be too narrow for all devices.
        devices.sort_by_key(|device| Reverse(device.free_bytes()));
        for device in devices {
            text.push_str(&format!(
                "; {}",
                describe_device(&device, snapshot, |pid| self.verdict(pid))
            ));
        }
        let gpus = if count == 1 { "a GPU".to_owned() } else { format!("{count} GPUs") };
        text.push_str(&format!("; for {gpus}"));
        if let Some(size) = self.args.wait_free {
            text.push_str(&format!(" with {size} free"));
        }
        let has_others =
            |device: ComputeDevice<'_>| computing(&device).any(|row| is_of_others(row, snapshot));
        let excludes_others = self.args.wait_free.is_none() && !self.args.allow_others;
        if excludes_others && in_set(set, snapshot).any(has_others) {
            text.push_str(" without other users' processes (or use --allow-others)");
        }
        match terminal_width_of_errors() {
            Some(width) => {
                let text = format!("gpumem: {}", escape(&text));
                let _ = write!(io::stderr(), "\r{}\x1b[K", fit(&text, width.saturating_sub(1)));
            }
            None => warn(&text),
        }
    }

    fn verdict(&self, pid: u32) -> Option<&'static str> {
        let mut found = self.engine.findings().iter().filter(|finding| finding.kind.is_unused());
        let mut suspects = self.engine.suspects().iter().filter(|suspect| suspect.kind.is_unused());
        if found.any(|finding| finding.process.as_ref().is_some_and(|process| process.pid == pid)) {
            return Some("unused");
        }
        suspects.any(|suspect| suspect.process.pid == pid).then_some("suspected")
    }

    fn finish(&self) {
        if self.shown_at.is_some() && io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Describes a device's free memory and its largest processes. Processes that seem unused come first.
fn describe_device(
    device: &ComputeDevice<'_>,
    snapshot: &Snapshot,
    verdict: impl Fn(u32) -> Option<&'static str>,
) -> String {
    let free = device.free_bytes().map_or("unknown".to_owned(), |free| Bytes(free).to_string());
    // The line may be truncated at the width of the terminal, so the reason for waiting comes first.
    let claims = device.gpu.queue.first().into_iter().chain(&device.gpu.claim);
    let notes = claims.map(ToString::to_string).chain(device.refusal());
    let notes: String = notes.map(|note| format!("{note}, ")).collect();
    let mut text = format!("{}: {notes}{free} free", device.name());
    let mut rows: Vec<&GpuProcess> = device.processes().into_iter().flatten().collect();
    rows.sort_by_key(|row| (verdict(row.pid).is_none(), Reverse(row.used_bytes)));
    for row in rows.iter().take(HOLDERS) {
        let process = snapshot.process(row.pid);
        let user = process.and_then(|process| process.user.as_deref()).unwrap_or("?");
        let name = process.map_or_else(String::new, name_of);
        let name = fit(&name, NAME_COLUMNS);
        let bytes = row.used_bytes.map_or("?".to_owned(), |bytes| Bytes(bytes).to_string());
        text.push_str(&format!(", {bytes} {user}'s {name} ({})", row.pid));
        text.extend(verdict(row.pid).map(|verdict| format!(", {verdict}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Cli, Command};
    use crate::model::Time;
    use crate::model::dice::Dice;
    use crate::model::snapshot::{Memory, MigDevice};
    use crate::model::testing::rounds;
    use crate::units::GIB;

    fn memory(total: u64, free: u64) -> Option<Memory> {
        Some(Memory {
            total_bytes: total * GIB,
            used_bytes: (total - free) * GIB,
            free_bytes: free * GIB,
            reserved_bytes: None,
        })
    }

    fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            uuid: Some(format!("GPU-{index}").into()),
            memory: memory(80, 10 * u64::from(index)),
            processes: Some(Vec::new()),
            ..Gpu::default()
        }
    }

    fn args(words: &[&str]) -> RunArgs {
        let words = ["gpumem", "run"].iter().chain(words).chain(&["--", "true"]);
        match Cli::try_parse_from(words).unwrap().command {
            Some(Command::Run(args)) => args,
            _ => unreachable!(),
        }
    }

    fn candidates_of(
        words: &[&str],
        gpus: &[Gpu],
        visible: Option<&str>,
    ) -> Result<(Vec<String>, usize), String> {
        let snapshot = Snapshot { gpus: gpus.to_vec(), ..Snapshot::new(Time::default()) };
        let (set, count) =
            candidates(&args(words), &snapshot, visible).map_err(|error| error.to_string())?;
        Ok((in_set(&set, &snapshot).map(|device| device.name()).collect(), count))
    }

    #[test]
    fn candidates_keep_the_order_of_the_caller() {
        let gpus = [0, 1, 2, 3].map(gpu);
        let of = |words: &[&str], visible| candidates_of(words, &gpus, visible).unwrap();
        let names = |indices: &[u32]| indices.iter().map(|index| format!("GPU {index}")).collect();
        assert_eq!(of(&["--gpus", "2"], None), (names(&[0, 1, 2, 3]), 2));
        assert_eq!(of(&["--gpus", "2"], Some("3,1")), (names(&[3, 1]), 2));
        assert_eq!(of(&["--gpu", "2,0"], None), (names(&[2, 0]), 2));
        assert_eq!(of(&["--gpu", "2,0,2"], Some("0,1,2")), (names(&[2, 0]), 2));
        let hidden = candidates_of(&["--gpu", "2"], &gpus, Some("0,1")).unwrap_err();
        assert!(hidden.contains("CUDA_VISIBLE_DEVICES=0,1 hides that GPU"), "{hidden}");
        assert!(candidates_of(&["--gpus", "2"], &gpus, Some("0")).is_err());
    }

    #[test]
    fn one_mig_device_of_a_partitioned_gpu_is_chosen() {
        let mut gpus = [0, 1].map(gpu);
        gpus[1].mig_mode = Some(true);
        gpus[1].mig_devices = [(0, 20, 2), (1, 10, 9)]
            .map(|(index, total, free)| MigDevice {
                index: Some(index),
                uuid: Some(format!("MIG-{index}").into()),
                memory: memory(total, free),
                ..MigDevice::default()
            })
            .into();
        let all = ["GPU 0", "MIG device 1:0", "MIG device 1:1"].map(str::to_owned);
        let of = |words: &[&str]| candidates_of(words, &gpus, None);
        assert_eq!(of(&["--gpus", "1"]).unwrap(), (all.to_vec(), 1));
        assert_eq!(of(&["--wait-free", "15GiB"]).unwrap(), (all[..2].to_vec(), 1));
        assert_eq!(of(&["--gpu", "1"]).unwrap(), (all[1..].to_vec(), 1));
        assert_eq!(of(&["--gpu", "MIG-1"]).unwrap(), (all[2..].to_vec(), 1));
        assert_eq!(of(&["--claim"]).unwrap(), (all[..1].to_vec(), 1));
        for refused in [
            &["--gpus", "2"] as &[&str],
            &["--gpu", "0,1"],
            &["--gpu", "MIG-0,MIG-1"],
            &["--gpu", "MIG-0", "--claim"],
            &["--gpu", "MIG-1", "--wait-free", "15GiB"],
        ] {
            assert!(of(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn every_chosen_device_is_usable() {
        let (mut chosen, mut dice) = (0, Dice::new(45));
        for _ in 0..rounds(100) {
            let mut gpus: Vec<Gpu> = (0..dice.roll(5) as u32).map(gpu).collect();
            for gpu in &mut gpus {
                gpu.memory = memory(80, dice.roll(81));
                match dice.roll(10) {
                    0 => gpu.compute_mode = Some("prohibited".into()),
                    1 => gpu.compute_mode = Some("exclusive_process".into()),
                    2 => gpu.claim = Some(Claim::default()),
                    3 => gpu.recovery_action = Some("gpu_reset".into()),
                    4 => gpu.stale_seconds = Some(3.0),
                    5 => (gpu.memory, gpu.processes) = (None, None),
                    6 => gpu.mig_mode = Some(true),
                    7 => gpu.queue.push(Claim::default()),
                    _ => {}
                }
                if dice.roll(2) == 0 {
                    gpu.processes.iter_mut().for_each(|rows| rows.push(GpuProcess::default()));
                }
                if gpu.mig_mode == Some(true) {
                    let part = |index: u32| MigDevice {
                        index: Some(index),
                        uuid: Some(format!("MIG-{}-{index}", gpu.index).into()),
                        memory: memory(10, u64::from(index)),
                        ..MigDevice::default()
                    };
                    gpu.mig_devices = (0..dice.roll(8) as u32).map(part).collect();
                }
            }
            let wanted = 1 + dice.roll(12);
            let visible = (dice.roll(3) == 0).then_some("3,0");
            let args = args(&["--wait-free", &format!("{wanted}GiB")]);
            let snapshot = Snapshot { gpus, ..Snapshot::new(Time::default()) };
            let Ok((set, _)) = candidates(&args, &snapshot, visible) else { continue };
            for device in
                in_set(&set, &snapshot).filter(|device| is_ready(device, &args, &snapshot))
            {
                chosen += 1;
                let gpu = device.gpu;
                assert!(gpu.claim.is_none() && gpu.queue.is_empty(), "{device:?}");
                assert!(gpu.stale_seconds.is_none(), "{device:?}");
                assert!(gpu.compute_mode.as_deref() != Some("prohibited"), "{device:?}");
                assert!(gpu.recovery_action.is_none(), "{device:?}");
                let is_held = gpu.processes.as_ref().is_some_and(|rows| !rows.is_empty());
                assert!(gpu.compute_mode.is_none() || !is_held, "{device:?}");
                assert!(visible.is_none() || [0, 3].contains(&gpu.index), "{device:?}");
                let free = match device.mig {
                    Some(mig) => mig.memory.unwrap().free_bytes,
                    None => gpu.memory.unwrap().free_bytes,
                };
                assert!(free >= wanted * GIB, "{device:?}");
                assert_eq!(device.mig.is_some(), gpu.mig_mode == Some(true), "{device:?}");
            }
        }
        assert!(chosen > 50, "{chosen}");
    }
}
