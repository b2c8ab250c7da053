//! Every command shows the same headline, findings and commands for the same data.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::Value;

use crate::machine::{GIB, Machine, Running};
use crate::support::{command, finish, run, short_demo};

/// Returns the output of a command without truncated lines.
fn page(arguments: &[&str], recording: &str) -> String {
    let mut command = command(&[arguments, &["--replay", recording]].concat());
    let output = finish(command.env("COLUMNS", "1000").env("LC_ALL", "C.UTF-8"));
    assert!(output.code < 2, "{arguments:?} {recording}: {output:?}");
    output.stdout
}

/// Returns complete recordings, and the first samples of each recording, which are not enough for the rules.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus");
    let files = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    all.sort();
    assert!(all.len() >= 14, "{all:?}");
    for whole in all.clone() {
        let text = fs::read_to_string(&whole).unwrap();
        let first: String = text.split_inclusive('\n').take(3).collect();
        let path = folder.join(whole.file_name().unwrap());
        fs::write(&path, first).unwrap();
        all.push(path);
    }
    all
}

#[test]
fn every_page_agrees_about_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let mut headlines = BTreeSet::new();
    for path in recordings(folder.path()) {
        let recording = path.to_str().unwrap();
        let check = page(&["check"], recording);
        let headline = check.lines().next().unwrap();
        let ps = page(&["ps"], recording);
        assert_eq!(ps.lines().nth(1), Some(headline), "{recording}");
        let watch = page(&["watch", "--once", "--size", "300x60"], recording);
        let header = watch.lines().next().unwrap();
        let ends = ["  ", " · free "].map(|end| format!("  {headline}{end}"));
        assert!(ends.iter().any(|shown| header.contains(shown)), "{watch}");
        headlines.insert(headline.to_owned());

        let json: Value = serde_json::from_str(&page(&["check", "--json"], recording)).unwrap();
        let sums: Value =
            serde_json::from_str(&page(&["ps", "--by", "user", "--json"], recording)).unwrap();
        let totals = sums["totals"].as_array().unwrap().iter();
        let total: u64 = totals.filter_map(|total| total["reclaimable_bytes"].as_u64()).sum();
        assert_eq!(json["reclaimable"]["bytes"], total, "{recording}: {sums}");

        let findings = json["findings"].as_array().unwrap().iter();
        let findings: Vec<&Value> =
            findings.filter(|finding| finding["resolved_at"].is_null()).collect();
        let undecided = json["undecided"].as_array().unwrap();
        let may_be_found = |entry: &&Value| {
            ["idle", "orphan", "stopped"].contains(&entry["rule"].as_str().unwrap_or_default())
        };
        let says_nothing = headline.starts_with("nothing to reclaim");
        assert!(!says_nothing || findings.is_empty(), "{check}");
        assert!(!says_nothing || !undecided.iter().any(|entry| may_be_found(&entry)), "{check}");
        for finding in findings {
            let explain = page(&["explain", finding["id"].as_str().unwrap()], recording);
            let commands = finding["commands"].as_array().unwrap().iter().filter_map(Value::as_str);
            for command in commands.filter(|command| !command.starts_with("gpumem explain ")) {
                assert!(explain.contains(&format!("`{command}`")), "{command}: {explain}");
                assert!(check.contains(&format!("run: {command}\n")), "{command}: {check}");
            }
            // A page contains at most one command that kills the process.
            assert!(explain.matches("`gpumem kill ").count() <= 1, "{explain}");
        }
    }
    // The recordings must cover each kind of headline.
    for start in ["nothing to reclaim", "reclaimable: not known", "1 finding, ", "826.0 MiB "] {
        let mut headlines = headlines.iter();
        assert!(headlines.any(|headline| headline.starts_with(start)), "{start}");
    }
}

#[test]
fn every_command_resolves_a_target_equally() {
    let (child, other) = (Running::sleep(), Running::sleep());
    let gpu = |uuid: &str, running: &Running| {
        let process = Process::compute(running.pid(), GIB);
        Gpu { uuid: Some(uuid.to_owned()), ..Gpu::default() }.process(process)
    };
    let machine = Machine::new(&Scene::new().gpu(gpu("GPU-aa", &child)).gpu(gpu("GPU-bb", &other)));
    let (pid, others) = (child.pid().to_string(), other.pid().to_string());
    for target in [&*pid, "gpu:0", "GPU:gpu-A", "GPU-aa"] {
        let explain = machine.run(&["explain", target]).exits(0);
        let kill = machine.run(&["kill", "-n", target]).exits(0);
        // The exit code is 1, because the process exists but cannot release memory.
        let release = machine.run(&["release", "--dry-run", target]).exits(1);
        for page in [explain, kill, release] {
            assert!(page.stdout.contains(&pid) && !page.stdout.contains(&others), "{page:?}");
        }
    }
    let both = machine.run(&["kill", "--dry-run", "gpu:0-1"]).exits(0);
    assert!(both.stdout.contains(&pid) && both.stdout.contains(&others), "{both:?}");
    let ps = machine.run(&["ps", "--gpu", "1-7"]).exits(0);
    assert!(!ps.stdout.contains(&pid) && ps.stdout.contains(&others), "{ps:?}");
    machine.run(&["kill", "-n", "gpu:2"]).exits(1);
    machine.run(&["kill", "-n", ""]).exits(2);
    for (name, pid) in [("fine-tune.ipynb", "(pid 398120)"), ("vllm", "(pid 207344)")] {
        let page = run(&["explain", "--replay", short_demo(), name]).exits(0);
        assert!(page.stdout.lines().next().unwrap().ends_with(pid), "{page:?}");
    }
    for command in ["ps", "check", "reap"] {
        machine.run(&[command, "--user", "nobody-of-this-name"]).exits(2);
    }
    assert_eq!(run(&["help", "kill"]).stdout, run(&["kill", "--help"]).stdout);
}
