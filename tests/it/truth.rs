//! One truth on every page: what is reclaimable, how many findings there are and what to type about each.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{command, finish};

/// Standard output of a command, wide enough that nothing is cut.
fn page(arguments: &[&str], recording: &str) -> String {
    let mut command = command(&[arguments, &["--replay", recording]].concat());
    let output = finish(command.env("COLUMNS", "1000").env("LC_ALL", "C.UTF-8"));
    assert!(output.code < 2, "{arguments:?} {recording}: {output:?}");
    output.stdout
}

/// Whole recordings, and each as it was after some seconds, when rules had not decided.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus");
    let files = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|it| it == "jsonl")).collect();
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
fn every_page_says_the_same_of_the_same_recording() {
    let folder = tempfile::tempdir().unwrap();
    let mut headlines = BTreeSet::new();
    for path in recordings(folder.path()) {
        let recording = path.to_str().unwrap();
        let check = page(&["check"], recording);
        let headline = check.lines().next().unwrap();
        let ps = page(&["ps"], recording);
        assert_eq!(ps.lines().next(), Some(headline), "{recording}");
        let watch = page(&["watch", "--once", "--size", "300x60"], recording);
        assert!(watch.lines().next().unwrap().contains(&format!("  {headline}  ")), "{watch}");
        headlines.insert(headline.to_owned());

        let json: Value = serde_json::from_str(&page(&["check", "--json"], recording)).unwrap();
        let sums: Value =
            serde_json::from_str(&page(&["ps", "--by", "user", "--json"], recording)).unwrap();
        let of_users = sums["totals"].as_array().unwrap().iter();
        let of_users: u64 = of_users.filter_map(|it| it["reclaimable_bytes"].as_u64()).sum();
        assert_eq!(json["reclaimable"]["bytes"], of_users, "{recording}: {sums}");

        let findings = json["findings"].as_array().unwrap().iter();
        let findings: Vec<&Value> = findings.filter(|it| it["resolved_at"].is_null()).collect();
        let undecided = json["undecided"].as_array().unwrap();
        let may_be_found = |it: &&Value| {
            ["idle", "orphan", "stopped"].contains(&it["rule"].as_str().unwrap_or_default())
        };
        let says_nothing = headline.starts_with("nothing to reclaim");
        assert!(!says_nothing || findings.is_empty(), "{check}");
        assert!(!says_nothing || !undecided.iter().any(|it| may_be_found(&it)), "{check}");
        for finding in findings {
            let explain = page(&["explain", finding["id"].as_str().unwrap()], recording);
            let commands = finding["commands"].as_array().unwrap().iter().filter_map(Value::as_str);
            for command in commands.filter(|it| !it.starts_with("gpumem explain ")) {
                assert!(explain.contains(&format!("`{command}`")), "{command}: {explain}");
                assert!(check.contains(&format!("run: {command}\n")), "{command}: {check}");
            }
            // What would end it is said once, by one command.
            assert!(explain.matches("`gpumem kill ").count() <= 1, "{explain}");
        }
    }
    // Or nothing was compared.
    for begins in ["nothing to reclaim", "reclaimable: not known", "1 finding, ", "826.0 MiB "] {
        assert!(headlines.iter().any(|it| it.starts_with(begins)), "{begins}: {headlines:?}");
    }
}
