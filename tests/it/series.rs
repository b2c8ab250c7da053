//! The leak rule on memory curves of real programs, which are no leaks as far as anybody knows.
//!
//! The curves have no licence and are not in the repository: `GPUMEM_SERIES` names the folder that holds
//! them, as `*.csv` with a line a sample. `NAME_gK.csv` is a whole GPU (`t_s,mem_used_mib,…`), and is taken
//! for one process here; `NAME_procs.csv` has a row a process (`t_s,gpu,pid,type,name,mem_mib`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use gpumem::api::model::{Gpu, GpuProcess, Process, ProcessType, Snapshot, Time};
use gpumem::api::rules::{Engine, RuleSet};

const MIB: u64 = 1 << 20;
const GPU_BYTES: u64 = 96 << 30;
const START: Time = Time::from_unix_milliseconds(1_763_706_000_000);

/// A sample: seconds, and what each process holds on each GPU, in MiB.
type Sample = (f64, Vec<(u32, u32, f64)>);

fn folder() -> Option<PathBuf> {
    let folder = env::var_os("GPUMEM_SERIES").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GPUMEM_SERIES names no folder of memory curves");
    }
    folder
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "csv"))
        .collect();
    files.sort();
    files
}

/// Reads a curve; the clock of some has whole seconds only, and several samples in one.
fn read(path: &Path) -> Vec<Sample> {
    let is_whole_gpu = !path.to_str().unwrap().ends_with("_procs.csv");
    let mut samples: BTreeMap<i64, Vec<(u32, u32, f64)>> = BTreeMap::new();
    for line in fs::read_to_string(path).unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let row = if is_whole_gpu {
            fields[1].parse().ok().map(|mib| (0, 4242, mib))
        } else {
            // A name may hold a comma, and the size is last.
            let (gpu, pid) = (fields[1].parse().ok(), fields[2].parse().ok());
            let mib = fields[fields.len() - 1].parse().ok();
            gpu.zip(pid).zip(mib).map(|((gpu, pid), mib)| (gpu, pid, mib))
        };
        let (Some(row), Ok(seconds)) = (row, fields[0].parse::<f64>()) else {
            continue;
        };
        let rows = samples.entry((seconds * 1000.0) as i64).or_default();
        match rows.iter_mut().find(|known| known.0 == row.0 && known.1 == row.1) {
            Some(known) => known.2 = row.2,
            None => rows.push(row),
        }
    }
    let seconds = |milliseconds: i64| milliseconds as f64 / 1000.0;
    samples.into_iter().map(|(at, rows)| (seconds(at), rows)).collect()
}

fn snapshot(seconds: f64, rows: &[(u32, u32, f64)]) -> Snapshot {
    let mut snapshot = Snapshot::new(START.plus_seconds(seconds));
    let gpus = rows.iter().map(|row| row.0).max().unwrap_or(0) + 1;
    for index in 0..gpus.min(16) {
        let own = rows.iter().filter(|row| row.0 == index);
        snapshot.gpus.push(Gpu {
            index,
            gpu_percent: Some(50),
            processes: Some(
                own.map(|(_, pid, mib)| GpuProcess {
                    pid: *pid,
                    kind: ProcessType::Compute,
                    used_bytes: Some((mib * MIB as f64) as u64),
                    ..GpuProcess::default()
                })
                .collect(),
            ),
            ..Gpu::default()
        });
    }
    let mut pids: Vec<u32> = rows.iter().map(|row| row.1).collect();
    pids.sort_unstable();
    pids.dedup();
    snapshot.processes = pids
        .into_iter()
        .map(|pid| Process { pid, start_ticks: Some(u64::from(pid)), ..Process::default() })
        .collect();
    snapshot
}

fn leak_rule() -> RuleSet {
    let mut settings = RuleSet::default();
    settings.select(&["leak"]).unwrap();
    settings
}

/// Plays a curve, stretched and with a leak on top; what was found, and whether it stood in the end.
fn play(samples: &[Sample], stretch: f64, leak: impl Fn(f64) -> f64) -> (Vec<String>, bool) {
    let mut engine = Engine::new(leak_rule());
    let mut found = Vec::new();
    let mut is_active = false;
    for (seconds, rows) in samples {
        let seconds = seconds * stretch;
        let more = leak(seconds / 60.0);
        let rows: Vec<_> = rows
            .iter()
            .map(|(gpu, pid, mib)| (*gpu, *pid, (mib + more).min(GPU_BYTES as f64)))
            .collect();
        engine.observe(&snapshot(seconds, &rows));
        let now = engine.findings().first();
        if let Some(finding) = now
            && !is_active
        {
            let since = finding.since.seconds_since(START);
            found.push(format!("at {seconds:.0} s since {since:.0} s: {}", finding.message));
        }
        is_active = now.is_some();
    }
    (found, is_active)
}

#[test]
fn real_programs_that_do_not_leak_are_not_accused() {
    let Some(folder) = folder() else { return };
    for stretch in [1.0, 2.0, 10.0] {
        let (mut hours, mut findings) = (0.0, 0);
        for file in files(&folder) {
            let samples = read(&file);
            let (found, _) = play(&samples, stretch, |_| 0.0);
            hours += samples.last().map_or(0.0, |last| last.0) * stretch / 3600.0;
            findings += found.len();
            for finding in found {
                eprintln!("{} x{stretch}: {finding}", file.display());
            }
        }
        let per_day = f64::from(u32::try_from(findings).unwrap()) * 24.0 / hours;
        eprintln!("x{stretch}: {findings} findings in {hours:.1} h, {per_day:.2} a day");
        assert!(hours > 1.0, "no curves in {}", folder.display());
        assert!(per_day <= 1.0, "{per_day} findings a day");
    }
}

#[test]
fn leaks_on_top_of_real_programs_are_found() {
    let Some(folder) = folder() else { return };
    let curves: Vec<Vec<Sample>> = files(&folder).iter().map(|file| read(file)).collect();
    // MiB a minute, and the share of the curves of 20 minutes or more on which it has to be found.
    for (rate, least) in [(100.0, 0.7), (20.0, 0.6), (5.0, 0.4)] {
        let (mut found, mut all) = (0, 0);
        for curve in &curves {
            let minutes = curve.last().map_or(0.0, |last| last.0) / 60.0;
            // From a third of the curve on, for as long as it takes to matter.
            let grown = rate * minutes * 2.0 / 3.0;
            if minutes * 2.0 / 3.0 < 18.0 || grown < 300.0 {
                continue;
            }
            let leak = |now: f64| (rate * (now - minutes / 3.0).max(0.0) / 2.0).floor() * 2.0;
            all += 1;
            found += u32::from(!play(curve, 1.0, leak).0.is_empty());
        }
        eprintln!("{rate} MiB a minute: found on {found} of {all}");
        assert!(f64::from(found) >= least * f64::from(all), "{rate}: {found} of {all}");
    }
}
